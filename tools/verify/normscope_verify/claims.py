"""Claims and what becomes of them: one line each, VERIFIED, NOT RE-VERIFIED (why) or REJECTED (why)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import BadFile, Unproven, require
from .nodes import Network
from .proving import Prover
from .reading import Reader, read

VERIFIED, UNVERIFIED, REJECTED = "VERIFIED", "NOT RE-VERIFIED", "REJECTED"
PROBE_TOLERANCE = 1e-7
"""How far, relatively, the value at a sample may lie from the one in the file, a plain float64; no claim has room."""


@dataclass(frozen=True)
class Verdict:
    """What became of one claim."""

    what: str
    status: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.status}" + (f" ({self.why})" if self.why else "")


class Claim:
    """One side of a bracket, over all inputs or (`centre`) a ball; `given` names what the file brings no proof for."""

    def __init__(self, data: Any, network: Network, reader: Reader) -> None:
        require(isinstance(data, dict) and data.get("side") in ("upper", "lower"), "a claim of no side")
        require(data.get("scope") in ("global", "ball"), f"a claim of scope {data.get('scope')!r}")
        self.upper, self.centre, self.radius = data["side"] == "upper", None, 0.0
        log10 = reader.number(data.get("log10"))
        require(abs(log10) <= 1e6, f"a claim of 10^{log10:g}")
        self.bound = arb(10) ** arb(log10)
        self.what = f"constant {'<=' if self.upper else '>='} {ar.written(self.bound)}, {data['scope']}"
        if data["scope"] == "ball":
            self.centre, self.radius = reader.array(data.get("centre")), reader.number(data.get("radius"))
            require(self.centre.size == network.input.size and self.radius >= 0, "a ball does not fit the input")
            self.what += f" of radius {self.radius:g}"
        self.what += "".join(f", {str(data[key])[:80]}" for key in ("mode", "method") if data.get(key))
        self.pair = [reader.array(name) for name in reader.listed(data.get("witness", []), "witnesses", 2)]
        require(all(point.size == network.input.size for point in self.pair), "a witness does not fit the input")
        require(self.upper or len(self.pair) == 2, "a lower side without its pair")
        self.steps = reader.listed(data.get("steps", []), "steps")
        self.given = [str(word)[:200] for word in reader.listed(data.get("given", []), "what is given", 10)]

    def covers(self, other: Claim) -> bool:
        """Say whether what is claimed must hold for the pairs of another claim."""
        if self.centre is None or other.centre is None:
            return self.centre is None
        return bool((self.centre == other.centre).all()) and other.radius <= self.radius


def check_upper(claim: Claim, network: Network, reader: Reader) -> Verdict:
    """Go through the steps of an upper side, and compare what they prove with what is claimed."""
    prover = Prover(network, reader)
    for step in claim.steps:
        prover.take(step)
    own = prover.best.get(network.output.name)
    here = "nothing proven here" if own is None else f"{ar.written(own)} proven here"
    if own is not None and own <= claim.bound:
        return Verdict(claim.what, VERIFIED, here)
    over = "over all inputs; enclosures over a ball are not followed here"
    reasons = [*claim.given, *prover.notes] + ([over] if claim.centre is not None else [])
    if not reasons:
        return Verdict(claim.what, REJECTED, f"only {here}")
    more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    return Verdict(claim.what, UNVERIFIED, f"{here}; {'; '.join(reasons[:3])}{more}")


def check_lower(claim: Claim, network: Network) -> tuple[Verdict, arb]:
    """Evaluate the pair of a lower side in balls; return the verdict and the slope it attains for certain."""
    points = [ar.balls(point) for point in claim.pair]
    if claim.centre is not None:
        away = [ar.norm_of(point - ar.balls(claim.centre)) for point in points]
        if not all(far <= claim.radius for far in away):
            return Verdict(claim.what, REJECTED, "the pair leaves the ball"), arb(0)
    if (claim.pair[0] == claim.pair[1]).all():
        return Verdict(claim.what, REJECTED, "the pair is one point"), arb(0)
    try:
        ends = [network.values(point)[network.output.name] for point in claim.pair]
        slope = ar.norm_of(ends[0] - ends[1]) / ar.norm_of(points[0] - points[1])
    except Unproven as error:
        return Verdict(claim.what, UNVERIFIED, str(error)), arb(0)
    attained = f"the pair attains {ar.written(slope)}"
    if slope >= claim.bound:
        return Verdict(claim.what, VERIFIED, attained), slope.lower()
    if slope < claim.bound:
        return Verdict(claim.what, REJECTED, attained), slope.lower()
    return Verdict(claim.what, UNVERIFIED, f"{attained}, as far as 128 bits can tell"), slope.lower()


def check_probe(data: Any, network: Network, reader: Reader) -> Verdict:
    """Compare the network's value at one point with the one the file gives."""
    what = "the network's value at a sample"
    require(isinstance(data, dict), "a probe of unknown form")
    point, value = reader.array(data.get("input")), reader.array(data.get("output"))
    require(point.size == network.input.size and value.size == network.output.size, "a probe does not fit the network")
    try:
        apart = ar.norm_of(network.values(point)[network.output.name] - ar.balls(value))
    except Unproven as error:
        return Verdict(what, UNVERIFIED, str(error))
    if not apart <= PROBE_TOLERANCE * (ar.norm_of(ar.balls(value)) + 1e-30):
        return Verdict(what, REJECTED, f"it is off by {ar.written(apart)}: these are not the claimed weights")
    return Verdict(what, VERIFIED)


@flint.ctx.workprec(128)
@np.errstate(all="ignore")
def check(path: str, work: float = ar.USUAL_WORK) -> list[Verdict]:
    """Check every claim of a file, with at most so many multiplications."""
    ar.WORK.most, ar.WORK.done = work, 0.0
    header, arrays = read(path)
    reader = Reader(arrays)
    network = Network(header.get("network"), reader)
    claims = [Claim(item, network, reader) for item in reader.listed(header.get("claims"), "claims")]
    require(claims, "no claims")
    verdicts = [] if header.get("probe") is None else [check_probe(header["probe"], network, reader)]
    lowers = {id(claim): check_lower(claim, network) for claim in claims if not claim.upper}
    for claim in claims:
        pairs = [lowers[id(other)][1] for other in claims if claim.upper and not other.upper and claim.covers(other)]
        broken = [slope for slope in pairs if slope > claim.bound]
        if broken:
            verdicts.append(Verdict(claim.what, REJECTED, f"a pair attains {ar.written(broken[0])}"))
        else:
            verdicts.append(check_upper(claim, network, reader) if claim.upper else lowers[id(claim)][0])
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """Check files and print one line per claim; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="verify",
        description="Check what Normscope claims, without Normscope.",
        epilog="Exit code: 0 all verified, 1 something rejected, 2 a file cannot be used, 3 something not re-verified.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a proof that bracket.save(path) wrote")
    parser.add_argument("--work", type=float, default=ar.USUAL_WORK, metavar="N",
                        help="multiplications that one file may take (default: %(default)g, minutes)")  # fmt: skip
    options, seen = parser.parse_args(arguments), set()
    for path in options.files:
        try:
            lines = [(verdict.status, str(verdict)) for verdict in check(path, options.work)]
        except (BadFile, Unproven) as error:
            lines = [("bad", str(error))]
        except Exception as error:  # a file that nobody foresaw must not pass for one that was checked
            lines = [("bad", f"cannot be checked: {type(error).__name__}: {error}")]
        for status, text in lines:
            shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in f"{path}: {text}"[:2000])
            print(shown, file=sys.stderr if status == "bad" else sys.stdout)  # nothing that a terminal acts on
            seen.add(status)
    return 2 if "bad" in seen else 1 if REJECTED in seen else 3 if UNVERIFIED in seen else 0
