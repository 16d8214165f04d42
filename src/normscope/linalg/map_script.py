"""The proof of a linear map's norm, and the claims that proofs of every kind make."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.archive import Archive
from ..core.bracket import Bracket
from ..core.errors import InputError
from .linear_map import LinearMap
from .lowering import Nodes, TooLargeError


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Remembers the values of tensors, so that no proof is written of a model that has been trained further since."""

    tensors: tuple[tuple[Tensor, tuple[float, ...]], ...]

    @classmethod
    def of(cls, *tensors: Tensor) -> Unchanged:
        """Remember the values of these tensors."""
        return cls(tuple((tensor, _sums(tensor)) for tensor in tensors))

    def check(self) -> None:
        """Refuse to go on if the values of a tensor have changed.

        Raises:
            InputError: a tensor has changed.
        """
        if any(_sums(tensor) != sums for tensor, sums in self.tensors):
            raise InputError("the model has changed since it was measured: measure it again, then save")


def _sums(tensor: Tensor) -> tuple[float, ...]:
    """Return sums that a change of the entries, or of their order, would change."""
    flat = tensor.detach().reshape(-1).double()
    position = torch.arange(1, flat.numel() + 1, dtype=torch.float64, device=flat.device)
    return float(flat.sum()), float(flat.abs().sum()), float((flat * position.rsqrt()).sum())


@dataclass(frozen=True, slots=True)
class NormProof:
    """The proof of a linear map's norm: the map itself, and the bracket's witness."""

    linear: LinearMap
    unchanged: Unchanged = field(default_factory=lambda: Unchanged(()))

    def write(self, path: str | os.PathLike[str], bracket: Bracket) -> None:
        """Write the map as a network of linear nodes, and both sides.

        Raises:
            InputError: the map has changed, is given as code too large to be written out, or the upper side is
                infinite and there is no witness.
        """
        self.unchanged.check()
        archive = Archive()
        nodes = Nodes(archive)
        nodes.sizes["x"] = self.linear.in_size
        try:
            nodes.map("y", self.linear, "x")
        except TooLargeError as error:
            raise InputError(f"{error} is too large to be written out for a proof") from None
        network = {"input": {"name": "x", "size": self.linear.in_size}, "nodes": nodes.items, "output": "y"}
        steps = [{"do": "gain", "at": node["name"]} for node in nodes.items]
        steps.append({"do": "fold", "at": "y", "from": ["x"]})
        pair = None
        if bracket.witness is not None:
            pair = (bracket.witness.double().reshape(-1), torch.zeros(self.linear.in_size, dtype=torch.float64))
        archive.write(path, {"network": network, "claims": claims(bracket, archive, pair, steps=steps)})


def claims(
    bracket: Bracket,
    archive: Archive,
    pair: tuple[Tensor, Tensor] | None,
    *,
    ball: dict[str, Any] | None = None,
    steps: list[dict[str, Any]] | None = None,
    given: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return both sides of a bracket as claims; an infinite upper side and a lower side of zero claim nothing.

    Args:
        bracket: the bracket with the two sides.
        archive: the archive that stores the pair.
        pair: two flat inputs that attain the lower side.
        ball: centre and radius, for a claim about a ball.
        steps: the steps of the upper side's certificate.
        given: further assumptions of the upper side, in words.

    Raises:
        InputError: there is nothing to claim.
    """
    about = {"scope": "global" if ball is None else "ball", "mode": bracket.mode, **(ball or {})}
    found: list[dict[str, Any]] = []
    if bracket.log10_upper < math.inf:
        upper = bracket.log10_upper if bracket.log10_upper > -math.inf else -1e6
        words = {"method": bracket.method, "evidence": bracket.evidence.name}
        found.append({"side": "upper", "log10": upper, **about, **words, "steps": steps or [], "given": list(given)})
    if bracket.log10_lower > -math.inf and pair is not None:
        witness = [archive.put(point) for point in pair]
        found.append({"side": "lower", "log10": bracket.log10_lower, **about, "witness": witness})
    if not found:
        raise InputError("this bracket claims nothing: its upper side is infinite and nothing was found from below")
    return found
