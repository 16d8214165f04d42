"""Linear maps in a neutral vocabulary, for proofs that others can check, and the proof of a norm."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.archive import Archive
from ..core.bracket import Bracket
from ..core.errors import InputError
from .convolution import Convolution
from .linear_map import Centering, Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated, Sum
from .writing import write_out

_SIDE, _ENTRIES = 4096, 3e8
"""Maps given as code are written out up to this short side and this many entries."""


class TooLargeError(Exception):
    """A map given as code is too large to be written out."""


def describe(linear: LinearMap, archive: Archive) -> dict[str, Any]:
    """Return a linear map as plain data whose arrays stand in the archive.

    Raises:
        TooLargeError: a part is given as code and too large to be written out.
    """
    match linear:
        case Identity():
            return {"map": "identity", "shape": list(linear.out_shape)}
        case Diagonal():
            scale = linear.scale
            while scale.ndim and scale.shape[0] == 1:
                scale = scale[0]
            leading = linear.in_shape[: len(linear.in_shape) - scale.ndim]
            return repeated(leading, {"map": "diagonal", "scale": archive.put(scale)})
        case Matrix():
            entries = {"map": "dense", "shape": [linear.weight.shape[0]], "entries": archive.put(linear.weight)}
            return repeated(linear.in_shape[:-1], entries)
        case Reindex():
            return {"map": "index", "index": archive.put(linear.index.reshape(linear.out_shape))}
        case Centering():
            return centering(linear.in_shape, range(len(linear.in_shape) - linear.dims, len(linear.in_shape)))
        case Convolution() if not linear.transposed:
            return _convolution(linear, archive)
        case Repeated():
            return repeated(linear.leading, describe(linear.inner, archive))
        case Composite():
            return {"map": "chain", "parts": [describe(part, archive) for part in linear.parts]}
        case Sum():
            return {"map": "total", "parts": [describe(term, archive) for term in linear.terms]}
    return _written(linear, archive)


def repeated(leading: Sequence[int], inner: dict[str, Any]) -> dict[str, Any]:
    """Return a map on every slice of leading dimensions, which a checker can then look at one by one."""
    return {"map": "repeated", "leading": list(leading), "inner": inner} if leading else inner


def centering(view: Sequence[int], axes: Iterable[int]) -> dict[str, Any]:
    """Return the map that subtracts the mean over some axes of a view."""
    axes, view = sorted(axes), list(view)
    inner = {"map": "centering", "view": view[axes[0] :], "axes": [axis - axes[0] for axis in axes]}
    return repeated(view[: axes[0]], inner)


def _convolution(conv: Convolution, archive: Archive) -> dict[str, Any]:
    """Return a convolution with zero padding, behind an index where the padding is another one, or negative."""
    names = ("size", "kernel", "stride", "dilation", "left", "right")
    axes = [{name: getattr(axis, name) for name in names} for axis in conv.axes]
    plain = conv.padding_mode == "zeros" and all(min(axis["left"], axis["right"]) >= 0 for axis in axes)
    shape = conv.in_shape
    if not plain:
        index = torch.arange(conv.in_size).reshape(shape)
        for dim, axis in enumerate(conv.axes, start=1):
            index = _padded(index, dim, axis.left, axis.right, conv.padding_mode)
        shape = tuple(index.shape)
        axes = [axis | {"size": n, "left": 0, "right": 0} for axis, n in zip(axes, shape[1:], strict=True)]
    found = {"map": "convolution", "weight": archive.put(conv.weight), "axes": axes, "groups": conv.groups}
    return found if plain else {"map": "chain", "parts": [{"map": "index", "index": archive.put(index)}, found]}


def _padded(index: Tensor, dim: int, left: int, right: int, mode: str) -> Tensor:
    """Return which entry every place along one padded dimension holds, -1 for none."""
    size = index.shape[dim]
    place = torch.arange(-left, size + right)
    if mode == "circular":
        place = place % size
    elif mode == "replicate":
        place = place.clamp(0, size - 1)
    elif mode == "reflect":
        place = (size - 1) - ((size - 1) - place.abs()).abs()
    held = (place >= 0) & (place < size)
    found = index.index_select(dim, place.clamp(0, size - 1))
    return torch.where(held.reshape(-1, *(1,) * (index.ndim - dim - 1)), found, -1)


def _written(linear: LinearMap, archive: Archive) -> dict[str, Any]:
    """Write a map given as code out: one slice, where all slices of leading dimensions are treated alike."""
    for depth in (2, 1):
        block = _slice(linear, depth)
        if block is not None:
            inner = _matrix(block, linear.out_shape[depth:], archive)
            return repeated(linear.in_shape[:depth], inner)
    _check_size(linear.in_size, linear.out_size)
    return _matrix(write_out(linear), linear.out_shape, archive)


def _check_size(columns: int, rows: int) -> None:
    if min(rows, columns) > _SIDE or rows * columns > _ENTRIES:
        raise TooLargeError(f"a map of {rows} by {columns} entries")


def _slice(linear: LinearMap, depth: int) -> Tensor | None:
    """Return the matrix of one slice of the leading dimensions, or None if slices are mixed or treated differently."""
    leading = linear.in_shape[:depth]
    count = math.prod(leading)
    if len(linear.in_shape) <= depth or linear.out_shape[:depth] != leading or len(linear.out_shape) < depth:
        return None
    columns, rows = linear.in_size // count, linear.out_size // count
    _check_size(columns, rows)
    if columns * linear.in_size > _ENTRIES:
        return None
    basis = torch.zeros(columns, count, columns, dtype=torch.float64, device=linear.device)
    basis[torch.arange(columns), 0, torch.arange(columns)] = 1.0
    image = linear.apply(basis.reshape(columns, *linear.in_shape)).reshape(columns, count, rows)
    if bool(image[:, 1:].any()):
        return None
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(1, count, columns, dtype=torch.float64, generator=generator).to(linear.device)
    seen = linear.apply(probe.reshape(1, *linear.in_shape)).reshape(1, count, rows)
    return image[:, 0].T if torch.allclose(seen, probe @ image[:, 0], rtol=1e-12, atol=1e-12) else None


def _matrix(matrix: Tensor, shape: tuple[int, ...], archive: Archive) -> dict[str, Any]:
    """Return a matrix as all of its entries or, where most are zero, as a list of the others."""
    matrix = matrix.contiguous()
    places = matrix.nonzero()
    if 4 * len(places) > matrix.numel():
        return {"map": "dense", "shape": list(shape), "entries": archive.put(matrix)}
    rows, columns = places.unbind(1)
    return {
        "map": "sparse",
        "shape": list(shape),
        "rows": archive.put(rows.clone()),
        "columns": archive.put(columns.clone()),
        "entries": archive.put(matrix[rows, columns]),
    }


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Remembers what tensors held, so that a proof is not written of a model that has been trained further since."""

    tensors: tuple[tuple[Tensor, tuple[float, ...]], ...]

    @classmethod
    def of(cls, *tensors: Tensor) -> Unchanged:
        """Remember these."""
        return cls(tuple((tensor, _sums(tensor)) for tensor in tensors))

    def check(self) -> None:
        """Refuse to go on if one holds something else now.

        Raises:
            InputError: it does.
        """
        if any(_sums(tensor) != sums for tensor, sums in self.tensors):
            raise InputError("the model has changed since it was measured: measure it again, then save")


def _sums(tensor: Tensor) -> tuple[float, ...]:
    """Return sums that a change of the entries, or of their order, would change."""
    flat = tensor.detach().reshape(-1).double()
    place = torch.arange(1, flat.numel() + 1, dtype=torch.float64, device=flat.device)
    return float(flat.sum()), float(flat.abs().sum()), float((flat * place.rsqrt()).sum())


@dataclass(frozen=True, slots=True)
class NormProof:
    """The proof of a linear map's norm: the map itself, and the bracket's witness."""

    linear: LinearMap
    unchanged: Unchanged = field(default_factory=lambda: Unchanged(()))

    def write(self, path: str | os.PathLike[str], bracket: Bracket) -> None:
        """Write the map as a network of one linear node, and both sides.

        Raises:
            InputError: the map has changed, is given as code too large to be written out, or the upper side is
                infinite and there is no witness.
        """
        self.unchanged.check()
        archive = Archive()
        try:
            maps = [describe(self.linear, archive)]
        except TooLargeError as error:
            raise InputError(f"{error} is too large to be written out for a proof") from None
        shapes = {"in": list(self.linear.in_shape), "out": list(self.linear.out_shape)}
        node = {"name": "y", "kind": "linear", "from": ["x"], "shape": shapes["out"], "maps": maps}
        network = {"inputs": [{"name": "x", "shape": shapes["in"]}], "nodes": [node], "output": "y"}
        steps = [{"do": "sum", "at": "y", "by": "operands"}]
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
        bracket: with the two sides.
        archive: takes the pair.
        pair: two flat inputs that attain the lower side.
        ball: centre and radius, for a claim about a ball.
        steps: what the certificate of the upper side needs.
        given: what else the upper side rests on, in words.

    Raises:
        InputError: nothing is claimed.
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
