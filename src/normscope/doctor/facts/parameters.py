"""`ParameterRow`: one parameter, its size, and whether it takes part in what the model computes and learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...core.codec import JsonForm, Part
from ...core.untouched import unobserved
from ...core.whole_weights import gather_whole
from ...listening.calls import WEIGHTS, FunctionCall
from .autograd_graph import Reached, find_attributes
from .collector import Collector
from .layers import Layers, fetch_all, norm_of, summable

POWER_STEPS = 4
"""Enough to tell a matrix of rank one: one step finds its direction."""

SAFE_SIZES = 1e-12, 1e12
"""Limits of the largest entry of a parameter: between them no square overflows or is lost in single precision."""
FEWEST_ENTRIES = 4
"""Of lines with fewer entries some may be alike by chance."""
MOST_OTHER_ZEROS = 1e-3
"""Of all entries; a matrix with more zeros outside of lines of zeros is sparse by design."""
SAME_MARK = 1e-6
"""Products with random vectors that differ by less are those of copies: three of them are not so close by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRow(Part):
    """One parameter: its size, and whether it takes part in what the model computes and learns.

    Attributes:
        name, shape: as the model has them.
        trainable: whether it asks for gradients.
        used: whether the forward read it.
        reached: whether gradients of an output can flow to it.
        root_mean_square: the size of a typical entry.
        least, greatest: the range of its entries.
        row_deviation: for matrices and kernels: how much the rows (the weights of each unit) differ from one another,
            as a root mean square; 0 if all units are the same.
        leading_share: for matrices and kernels: the share of the squared entries that one pair of singular vectors
            carries; 1 is a matrix of rank one.
        zero_lines, copied_lines: for matrices and kernels: the shares of rows that are exactly zero, where no other
            entries are, and that are copies of another one; of the columns where more of these are.
        gradient: the norm of its gradient; `None` without one, infinite where it is no number.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool
    used: bool
    reached: bool
    root_mean_square: float
    least: float
    greatest: float
    row_deviation: float | None = None
    leading_share: float | None = None
    zero_lines: float = 0.0
    copied_lines: float = 0.0
    gradient: float | None = None

    JSON: ClassVar[JsonForm] = JsonForm(sparse=("zero_lines", "copied_lines"))

    @property
    def is_zero(self) -> bool:
        """Whether all of its entries are zero."""
        return self.least == self.greatest == 0.0

    @property
    def module(self) -> str:
        """The path of the module that holds it."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse(Part):
    """Which weights a forward reads that are not learned as the parameters of the module that reads them.

    Attributes:
        unregistered: attributes of modules that hold weights which are no parameters of the model, though it uses them.
        beside_loss: parameters that outputs depend on which the loss does not read.
        replaced: modules that read weights in place of their own, with a gradient (`torch.func.functional_call`).
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    unregistered: tuple[str, ...] = ()
    beside_loss: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


class ParameterCollector(Collector):
    """Notes who reads each parameter, and which gradient comes back to it.

    Attributes:
        gradients: by the parameter's id.
    """

    def __init__(self, layers: Layers, model: nn.Module) -> None:
        super().__init__(layers)
        self._model = model
        self.gradients: dict[int, Tensor] = {}
        self._read_at = dict[int, str]()  # who reads each parameter first
        self._replaced = dict[str, None]()
        self._trained = set[int]()  # those that require a gradient when the forward ends
        self._reached = Reached({}, frozenset(), ())

    def after_call(self, call: FunctionCall, leaves: Sequence[Any], result: Any, path: str) -> None:
        """Note the parameters that a function reads, unless it asks for their type or size alone."""
        if isinstance(result, int | torch.dtype | torch.device | torch.Size):
            return
        for leaf in leaves:
            if isinstance(leaf, nn.Parameter):
                self._read_at.setdefault(id(leaf), path)

    def after_layer(self, number: int, call: FunctionCall, result: Any, made: Tensor) -> None:
        """Note weights that are computed from something else."""
        layer = self.layers.heard[number]
        weights = call.args[0:3:2] if call.name == "addmm" else call.args[1:3]  # `addmm` takes the bias first
        computed = any(isinstance(v, Tensor) and v.grad_fn is not None for v in weights)
        if layer.kind in WEIGHTS.values() and computed:
            self._replaced.setdefault(layer.path)

    def forward_ended(self, returned: Sequence[Tensor]) -> None:
        """Note which parameters learn."""
        self._trained = {id(parameter) for parameter in self._model.parameters() if parameter.requires_grad}

    def read_graph(self, reached: Reached) -> None:
        """Note which parameters gradients can reach."""
        self._reached = reached._replace(outputs=())  # which would keep the graph

    def forget_gradients(self) -> None:
        """Drop what a backward that did not end has left."""
        self.gradients = {}

    def by_name(self) -> dict[str, Tensor]:
        """Return the gradients by the names of the parameters."""
        named = self._model.named_parameters()
        return {name: self.gradients[id(p)] for name, p in named if id(p) in self.gradients}

    def use(self) -> WeightUse:
        """Return what the forward reads beside parameters, and parameters that the loss does not read.

        Of weights that learn and are no parameters these are the attributes that hold them, or else the modules that
        read them.
        """
        own = {id(parameter) for parameter in self._model.parameters()} | {id(leaf) for leaf in self.layers.leaves}
        foreign = self._reached.by_objective.keys() - own
        readers = (self._read_at[key] or "the model" for key in sorted(foreign) if key in self._read_at)
        beside = self._reached.by_outputs - self._reached.by_objective.keys()
        return WeightUse(
            unregistered=find_attributes(self._model, foreign) or tuple(dict.fromkeys(readers)),
            beside_loss=tuple(name for name, parameter in self._model.named_parameters() if id(parameter) in beside),
            replaced=tuple(self._replaced),
        )

    def rows(self) -> tuple[ParameterRow, ...]:
        """Return one row for each parameter with values."""
        held = [(n, p) for n, p in self._model.named_parameters() if not is_lazy(p) and p.numel() and not p.is_meta]
        none = torch.full((1,), -1.0, dtype=torch.float64)
        fetched = parameter_statistics([p for _, p in held])
        gradients = (self.gradients.get(id(p)) for _, p in held)
        norms = fetch_all([none if gradient is None else norm_of(gradient).reshape(1) for gradient in gradients])
        return tuple(
            ParameterRow(
                name=name,
                shape=tuple(parameter.shape),
                trainable=id(parameter) in self._trained,
                used=id(parameter) in self._read_at or id(parameter) in self._reached.by_objective,
                reached=id(parameter) in self._reached.by_objective,
                root_mean_square=size,
                least=least,
                greatest=greatest,
                row_deviation=None if math.isnan(between) else between,
                leading_share=None if math.isnan(share) else share,
                zero_lines=zeros,
                copied_lines=copies,
                gradient=None if norm < 0.0 else math.inf if math.isnan(norm) else norm,
            )
            for (name, parameter), (size, least, greatest, between, share, zeros, copies), (norm,) in zip(
                held, fetched, norms, strict=True
            )
        )


@torch.no_grad()
@unobserved()
def parameter_statistics(parameters: Sequence[Tensor]) -> list[list[float]]:
    """Return root mean square, range, deviation between the rows, and the share of the leading singular pair of each.

    Behind these stand the shares of lines that are zero, and that are copies of others.
    """
    whole = [gather_whole(parameter) for parameter in parameters]
    reals = [torch.view_as_real(values) if values.is_complex() else values for values in whole]
    tables = [summable(values) for values in reals]
    ends = fetch_all(
        [torch.stack([*map(torch.Tensor.double, v.aminmax()), torch.count_nonzero(v).double()]) for v in tables]
    )
    rest = fetch_all([_measure(values, *those) for values, those in zip(tables, ends, strict=True)])
    return [[size, least, greatest, *more] for (least, greatest, _), (size, *more) in zip(ends, rest, strict=True)]


def _measure(values: Tensor, least: float, greatest: float, others: float) -> Tensor:
    """Return what the statistics of a parameter have beside its range; `others` of its entries are not zero."""
    largest = max(-least, greatest)
    unit = 1.0
    if 0.0 < largest < math.inf and not SAFE_SIZES[0] < largest < SAFE_SIZES[1]:
        values, unit = values / largest, largest  # so that no square overflows or is lost
    zeros = values.numel() - int(others)
    table = values.squeeze() if values.ndim > 2 else values  # of positions, in the form of a batch of one
    sides = [table, table.mT] if table.ndim == 2 else [values.flatten(1)] if values.ndim > 1 else []
    counted = [_count_lines(side, zeros) for side in sides or [values.reshape(1, -1)]]
    lines = counted[0] if len(counted) == 1 else torch.maximum(*counted)
    rows = values.flatten(1) if values.ndim > 1 else values[None]
    square = rows.square().mean().double()
    size = (unit * square.sqrt()).reshape(1)
    if min(rows.shape) < 2:
        return torch.cat([size, size.new_full((2,), math.nan), lines])
    offsets = rows - rows[:1]  # zero, not rounding, where all rows are the same
    between = unit * offsets.sub_(offsets.mean(0)).square_().mean().double().sqrt()
    vector = torch.linalg.vector_norm(rows, 1, dim=0) + largest / unit
    for _ in range(POWER_STEPS):
        vector = rows.mT @ (rows @ vector)
        vector = vector / torch.linalg.vector_norm(vector).clamp(min=1e-30)
    share = ((rows @ vector).double().square().sum() / (square * rows.numel()).clamp(min=1e-300)).clamp(max=1.0)
    return torch.cat([size, torch.stack([between, share]), lines])


def _count_lines(lines: Tensor, zeros: int) -> Tensor:
    """Return the shares of the lines of a matrix that are zero, where other lines have no zeros, and that are copies.

    Copies have the same products with a few random vectors. `zeros` is how many entries of the matrix are zero.
    """
    count, width = lines.shape
    if min(count, width) < 2 or width < FEWEST_ENTRIES:
        return torch.zeros(2, dtype=torch.float64, device=lines.device)
    generator = torch.Generator(lines.device).manual_seed(0)
    vectors = torch.randn(width, 3, dtype=lines.dtype, device=lines.device, generator=generator) / math.sqrt(width)
    marks = lines @ vectors
    marks = marks[marks[:, 0].argsort()]
    same = (marks[1:] - marks[:-1]).abs().amax(1) <= SAME_MARK * marks.abs().amax()
    copies = (same & (marks[1:] != 0).any(1)).sum()
    if not zeros:
        return torch.stack([torch.zeros_like(copies), copies]).double() / count
    zero = (torch.linalg.vector_norm(lines, math.inf, dim=1) == 0).sum()
    sparse = zeros - zero * width > MOST_OTHER_ZEROS * lines.numel()
    return torch.stack([torch.where(sparse, 0, zero), torch.where(sparse, 0, copies)]).double() / count
