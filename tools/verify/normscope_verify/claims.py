"""Claims and what becomes of them: one line each, VERIFIED, NOT RE-VERIFIED (why) or REJECTED (why)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import Array, BadFile, Unproven, require
from .network import Network
from .reading import Reader, read
from .steps import Prover, Step, parse_step

VERIFIED, UNVERIFIED, REJECTED = "VERIFIED", "NOT RE-VERIFIED", "REJECTED"
UPPER_TOLERANCE, LOWER_TOLERANCE, PROBE_TOLERANCE = 1e-6, 1e-9, 1e-7
"""How far, relatively, a claim may lie beyond what is proven here."""


@dataclass(frozen=True)
class Verdict:
    """What became of one claim."""

    what: str
    status: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.status}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Ball:
    """All inputs within `radius` of `centre`."""

    centre: Array
    radius: float


@dataclass(frozen=True)
class Claim:
    """One side of a bracket; `given` names what the file brings no proof for."""

    side: str
    log10: float
    ball: Ball | None
    words: str
    steps: tuple[Step, ...]
    witness: tuple[Array, ...]
    given: tuple[str, ...]

    @property
    def bound(self) -> arb:
        """The claimed figure."""
        return ar.power10(self.log10)

    @property
    def what(self) -> str:
        """The claim in words."""
        return f"constant {'<=' if self.side == 'upper' else '>='} {ar.written(self.bound)}{self.words}"


def parse_claim(data: Any, network: Network, reader: Reader) -> Claim:
    """Read one claim and check that everything in it fits the network."""
    require(isinstance(data, dict) and data.get("side") in ("upper", "lower"), "a claim of no side")
    require(data.get("scope") in ("global", "ball"), f"a claim of scope {data.get('scope')!r}")
    ball = None
    if data["scope"] == "ball":
        centre, radius = reader.array(data.get("centre")).reshape(-1), reader.number(data.get("radius"))
        require(centre.size == network.input_size and radius >= 0, "a ball that does not fit the input")
        ball = Ball(centre, radius)
    words = f", {data['scope']}" + (f" of radius {ball.radius:g}" if ball else "")
    words += "".join(f", {str(data[key])[:80]}" for key in ("mode", "method") if data.get(key))
    witness = tuple(reader.array(name).reshape(-1) for name in reader.listed(data.get("witness", []), "witnesses", 2))
    require(all(point.size == network.input_size for point in witness), "a witness does not fit the input")
    require(data["side"] == "upper" or len(witness) == 2, "a lower side without its pair")
    steps = tuple(parse_step(item, network, reader) for item in reader.listed(data.get("steps", []), "steps"))
    given = tuple(str(word)[:200] for word in reader.listed(data.get("given", []), "what is given", 10))
    log10 = reader.number(data.get("log10"))
    require(abs(log10) <= 1e6, f"a claim of 10^{log10:g}")
    return Claim(data["side"], log10, ball, words, steps, witness, given)


def check_upper(claim: Claim, network: Network) -> Verdict:
    """Go through the steps of an upper side, and compare what they prove with what is claimed."""
    prover = Prover(network)
    for step in claim.steps:
        prover.take(step)
    own = prover.best[network.output.name]
    here = f"{ar.written(own)} proven here"
    if own <= claim.bound * (1 + UPPER_TOLERANCE):
        return Verdict(claim.what, VERIFIED, here)
    if prover.rests:
        return Verdict(claim.what, UNVERIFIED, f"rests on {first_few(prover.rests)}, which is not followed here")
    if claim.ball is not None:
        return Verdict(claim.what, UNVERIFIED, f"{here} over all inputs; enclosures over a ball are not followed here")
    if claim.given or prover.loose:
        return Verdict(claim.what, UNVERIFIED, f"{here}; {first_few([*claim.given, *prover.loose])}")
    return Verdict(claim.what, REJECTED, f"only {here}")


def check_lower(claim: Claim, network: Network) -> tuple[Verdict, arb]:
    """Evaluate the pair of a lower side in balls; return the verdict and the slope it attains for certain."""
    u, v = claim.witness
    points = [ar.balls(point) for point in claim.witness]
    if claim.ball is not None:
        far = max((ar.norm_of(point - ar.balls(claim.ball.centre)) for point in points), key=lambda d: float(d.upper()))
        if not far <= claim.ball.radius * (1 + LOWER_TOLERANCE):
            return Verdict(claim.what, REJECTED, f"the pair leaves the ball: {ar.written(far)} from its centre"), arb(0)
    if (u == v).all():
        return Verdict(claim.what, REJECTED, "the pair is one point"), arb(0)
    try:
        ends = [network.values(point)[network.output.name] for point in (u, v)]
        slope = ar.norm_of(ends[0] - ends[1]) / ar.norm_of(points[0] - points[1])
    except Unproven as error:
        return Verdict(claim.what, UNVERIFIED, str(error)), arb(0)
    attained = f"the pair attains {ar.written(slope)}"
    if slope >= claim.bound * (1 - LOWER_TOLERANCE):
        return Verdict(claim.what, VERIFIED, attained), slope.lower()
    if slope < claim.bound:
        return Verdict(claim.what, REJECTED, attained), slope.lower()
    return Verdict(claim.what, UNVERIFIED, f"{attained}, as far as 128 bits can tell"), slope.lower()


def check_probe(data: Any, network: Network, reader: Reader) -> Verdict | None:
    """Compare the network's value at one point with the one the file gives; None if it gives none."""
    if data is None:
        return None
    what = "the network's value at a sample"
    require(isinstance(data, dict), "a probe of unknown form")
    point, value = reader.array(data.get("input")).reshape(-1), reader.array(data.get("output")).reshape(-1)
    require(point.size == network.input_size and value.size == network.output.size, "a probe does not fit the network")
    try:
        apart = ar.norm_of(network.values(point)[network.output.name].reshape(-1) - ar.balls(value))
    except Unproven as error:
        return Verdict(what, UNVERIFIED, str(error))
    size = ar.norm_of(ar.balls(value)) + 1e-30
    if not apart <= PROBE_TOLERANCE * size:
        return Verdict(what, REJECTED, f"it is off by {ar.written(apart / size)}: these are not the claimed weights")
    return Verdict(what, VERIFIED)


@flint.ctx.workprec(128)
@np.errstate(all="ignore")
def check(path: str) -> list[Verdict]:
    """Check every claim of a file."""
    header, arrays = read(path)
    reader = Reader(arrays)
    network = Network(header.get("network"), reader)
    claims = [parse_claim(item, network, reader) for item in reader.listed(header.get("claims"), "claims")]
    require(claims, "no claims")
    probe = check_probe(header.get("probe"), network, reader)
    lowers = {id(claim): check_lower(claim, network) for claim in claims if claim.side == "lower"}
    verdicts = [] if probe is None else [probe]
    for claim in claims:
        if claim.side == "lower":
            verdicts.append(lowers[id(claim)][0])
            continue
        pairs = [lowers[id(c)][1] for c in claims if c.side == "lower" and inside(c.ball, claim.ball)]
        broken = [slope for slope in pairs if slope > claim.bound * (1 + UPPER_TOLERANCE)]
        if broken:
            verdicts.append(Verdict(claim.what, REJECTED, f"a pair attains {ar.written(broken[0])}"))
        else:
            verdicts.append(check_upper(claim, network))
    return verdicts


def inside(inner: Ball | None, outer: Ball | None) -> bool:
    """Say whether what holds over one ball (None: all inputs) must hold for pairs of the other."""
    same = inner is not None and outer is not None and bool((inner.centre == outer.centre).all())
    return outer is None or (same and inner.radius <= outer.radius)  # type: ignore[union-attr]


def first_few(words: Iterable[str]) -> str:
    """Return the first few of several reasons."""
    found = list(words)
    return "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def shown(text: str) -> str:
    """Return a line that no terminal acts on."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:2000])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check files and print one line per claim; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="verify",
        description="Check what Normscope claims, without Normscope.",
        epilog="Exit code: 0 all verified, 1 something rejected, 2 a file cannot be used, 3 something not re-verified.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a proof that bracket.save(path) wrote")
    seen: set[str] = set()
    for path in parser.parse_args(arguments).files:
        try:
            verdicts = check(path)
        except BadFile as error:
            print(shown(f"{path}: {error}"), file=sys.stderr)
            seen.add("bad")
            continue
        except Exception as error:  # a file that nobody foresaw must not pass for one that was checked
            print(shown(f"{path}: cannot be checked: {type(error).__name__}: {error}"), file=sys.stderr)
            seen.add("bad")
            continue
        for verdict in verdicts:
            print(shown(f"{path}: {verdict}"))
            seen.add(verdict.status)
    return 2 if "bad" in seen else 1 if REJECTED in seen else 3 if UNVERIFIED in seen else 0
