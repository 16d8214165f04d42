"""Write linear maps as nodes of a proof's network: a few kinds of nodes, all on vectors of equal chunks.

The kinds are those of the independent checker: `scale`, `gather`, `dense`, `center`, `add`, `concat` and `constant`. A
convolution gathers the entries that every tap reads, channel by channel, and multiplies them by the kernel as a matrix.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ...core.bracket import Bracket
from ...core.errors import InputError
from ...core.npz import Archive
from .convolution_map import Convolution, combine_axes
from .dense_form import write_out
from .linear_map import Centering, Composite, Diagonal, Identity, LinearMap, Matrix, Reindex, Repeated, Sum

_SIDE, _ENTRIES = 4096, 3e8
"""Maps given as code are written out up to this short side and this many entries."""
Part = tuple[str, dict[str, Any], Fraction]
"""A kind of node, its data, and the number of its entries over that of its operand."""


class TooLargeError(Exception):
    """A map given as code is too large to be written out."""


class Nodes:
    """The nodes of a proof's network, one after the other.

    Attributes:
        items: the nodes as plain data, with the names of their arrays in the archive.
        sizes: the number of entries of every value, by name.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.items: list[dict[str, Any]] = []
        self.sizes: dict[str, int] = {}

    def add(self, name: str, kind: str, read: Sequence[str], entries: int, **data: Any) -> str:
        """Add a node whose value has the given number of entries."""
        self.items.append({"name": name, "kind": kind, "from": list(read), **data})
        self.sizes[name] = entries
        return name

    def constant(self, name: str, value: Tensor, shape: Sequence[int]) -> str:
        """Add a constant that is broadcast to a shape."""
        size = math.prod(shape)
        return self.add(name, "constant", [], size, size=size, value=pattern(value, shape, self.archive))

    def map(self, name: str, linear: LinearMap, read: str) -> str:
        """Add the nodes of a linear map of a value; the last of them gets the given name."""
        parts = list(self._parts(linear)) or [("add", {}, Fraction(1))]
        for number, (kind, data, growth) in enumerate(parts):
            own = name if number == len(parts) - 1 else f"{name}/{number}"
            if kind == "sum":
                terms = [self.map(f"{own}/{k}", term, read) for k, term in enumerate(data["terms"], start=1)]
                read = self.add(own, "add", terms, self.sizes[terms[0]])
            else:
                read = self.add(own, kind, [read], int(self.sizes[read] * growth), **data)
        return read

    def gather(self, name: str, index: Tensor, read: str) -> str:
        """Add a node that copies the entries an index names."""
        return self.map(name, Reindex(index, (self.sizes[read],)), read)

    def concat(self, name: str, operands: Sequence[str], indices: Sequence[Tensor]) -> str:
        """Add operands side by side; `indices` gives, for each operand, its entry that every output copies, or -1."""
        sizes = [self.sizes[operand] for operand in operands]
        for count in _divisors(math.gcd(*sizes)):
            parts = [size // count for size in sizes]
            index, offset = torch.full_like(indices[0].reshape(-1), -1), 0
            for part, entries in zip(parts, indices, strict=True):
                flat = entries.reshape(-1)
                index = torch.where(flat >= 0, flat // part * sum(parts) + offset + flat % part, index)
                offset += part
            plain = index.numel() == sum(sizes) and bool((index == torch.arange(len(index))).all())
            if plain or count == 1:
                break
        if plain:
            return self.add(name, "concat", operands, sum(sizes), of=parts)
        return self.gather(name, index, self.add(f"{name}/all", "concat", operands, sum(sizes), of=parts))

    def _parts(self, linear: LinearMap) -> Iterator[Part]:
        """Yield the nodes of a map, one after the other."""
        put = self.archive.put
        match linear:
            case Identity():
                return
            case Diagonal():
                yield "scale", {"factors": pattern(linear.scale, linear.in_shape, self.archive)}, Fraction(1)
            case Matrix():
                yield _dense(linear.weight[None], 1, self.archive)
            case Reindex():
                index, of = _chunked(linear.index.cpu(), linear.in_size)
                if not (len(index) == of and bool((index == torch.arange(of)).all())):
                    yield "gather", {"of": of, "index": put(index)}, Fraction(len(index), of)
            case Centering():
                of = math.prod(linear.in_shape[len(linear.in_shape) - linear.dims :])
                yield "center", {"of": of}, Fraction(1)
            case Convolution() if not linear.transposed:
                axes = [axis.reads(linear.padding_mode, torch.device("cpu")) for axis in linear.axes]
                reads = combine_axes(axes, linear.in_shape[1:])
                yield from self._parts(Reindex(reads.reshape(-1), (math.prod(linear.in_shape[1:]),)))
                weight = linear.weight.reshape(linear.groups, linear.weight.shape[0] // linear.groups, -1)
                yield _dense(weight, reads.shape[1], self.archive)
            case Repeated():
                yield from self._parts(linear.inner)
            case Composite():
                for part in linear.parts:
                    yield from self._parts(part)
            case Sum():
                yield "sum", {"terms": linear.terms}, Fraction(1)
            case _:
                yield from self._written(linear)

    def _written(self, linear: LinearMap) -> Iterator[Part]:
        """Write out a map given as code, or one slice of it where it treats all slices of leading dimensions alike."""
        for depth in (2, 1):
            block = _slice(linear, depth)
            if block is not None:
                break
        else:
            _check_size(linear.in_size, linear.out_size)
            block = write_out(linear)
        block = block.double().cpu()
        filled = (block != 0).sum(1)
        fan, rows = int(filled.max()), len(block)
        if 4 * int(filled.sum()) > block.numel() or not fan:
            yield _dense(block[None], 1, self.archive)
            return
        columns = (block != 0).to(torch.int64).sort(dim=1, descending=True, stable=True).indices[:, :fan].T
        entries = block.T.gather(0, columns)
        index = torch.where(entries != 0, columns, -1).reshape(-1).contiguous()
        of = block.shape[1]
        yield "gather", {"of": of, "index": self.archive.put(index)}, Fraction(len(index), of)
        if bool((entries[index.reshape(fan, rows) >= 0] != 1.0).any()):
            factors = self.archive.put(entries.reshape(-1).contiguous())
            yield "scale", {"factors": factors}, Fraction(1)
        if fan > 1:
            yield _dense(torch.ones(1, 1, fan), rows, self.archive)


def pattern(value: Tensor, shape: Sequence[int], archive: Archive) -> Any:
    """Return numbers that are broadcast to a shape, as the checker reads them: a number, or an array that repeats."""
    value = value.detach().double()
    value = value.reshape([1] * (len(shape) - value.ndim) + list(value.shape))
    if value.numel() == 1 and bool(torch.isfinite(value).all()):
        return float(value)
    wide = [k for k, n in enumerate(value.shape) if n > 1] or [0]
    first, last = wide[0], wide[-1] + 1
    core = value.expand(*value.shape[:first], *shape[first:last], *value.shape[last:]).reshape(-1).contiguous()
    each = math.prod(shape[last:])
    return archive.put(core) if each == 1 else {"array": archive.put(core), "each": each}


def _dense(matrix: Tensor, columns: int, archive: Archive) -> Part:
    """Return matrices `[groups, rows, terms]` that multiply all columns of a chunk `[groups, terms, columns]`."""
    rows, terms = matrix.shape[1:]
    return "dense", {"matrix": archive.put(matrix), "columns": columns}, Fraction(rows, terms)


def _chunked(index: Tensor, entries: int) -> tuple[Tensor, int]:
    """Return the index of one of as many chunks as possible that are treated alike, and a chunk's entries."""
    for count in _divisors(math.gcd(len(index), entries)):
        of = entries // count
        local = index.reshape(count, -1)
        local = torch.where(local >= 0, local - torch.arange(count)[:, None] * of, -1)
        if bool((local == local[0]).all()) and bool(((local >= -1) & (local < of)).all()):
            break
    return local[0].contiguous(), of


def _divisors(number: int) -> list[int]:
    """Return all divisors, the largest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, reverse=True)


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
    applied = linear.apply(probe.reshape(1, *linear.in_shape)).reshape(1, count, rows)
    return image[:, 0].T if torch.allclose(applied, probe @ image[:, 0], rtol=1e-12, atol=1e-12) else None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Remembers the values of tensors, so that no proof is written of a model that has been trained further since."""

    tensors: tuple[tuple[Tensor, tuple[float, ...]], ...]

    @classmethod
    def of(cls, *tensors: Tensor) -> Unchanged:
        """Remember the values of these tensors."""
        return cls(tuple((tensor, _sums(tensor)) for tensor in tensors))

    def check(self) -> None:
        """Refuse to go on if the values of a tensor have changed."""
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
        """Write the map as a network of linear nodes, and both sides."""
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


UPPER_MARGIN, LOWER_MARGIN = 4.3e-7, 4.3e-10
"""How much log10 of a claim is weaker than the bracket's side, so that the checker's own rounding has room."""


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

    The checker allows nothing beyond a claim, so each is weaker than the bracket by a relative 1e-6 (upper) or 1e-9.
    """
    about = {"scope": "global" if ball is None else "ball", "mode": bracket.mode, **(ball or {})}
    made: list[dict[str, Any]] = []
    if bracket.log10_upper < math.inf:
        upper = bracket.log10_upper + UPPER_MARGIN if bracket.log10_upper > -math.inf else -1e6
        words = {"method": bracket.method, "evidence": bracket.evidence.name}
        made.append({"side": "upper", "log10": upper, **about, **words, "steps": steps or [], "given": list(given)})
    if bracket.log10_lower > -math.inf and pair is not None:
        witness = [archive.put(point) for point in pair]
        made.append({"side": "lower", "log10": bracket.log10_lower - LOWER_MARGIN, **about, "witness": witness})
    if not made:
        raise InputError("this bracket claims nothing: its upper side is infinite and nothing was found from below")
    return made
