"""`symmetries`: which changes of its parameters leave a model's function as it is, each verified numerically."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...calls.call import prepare
from ...calls.data_reader import Batches
from ...calls.stand_ins import accepts_graph
from ...core.codec import JsonForm, Saved
from ...core.errors import InputError
from ...core.shown import Shown, data_frame
from ...core.untouched import Mode, dropping_nothing, mode_of, outside_inference_mode, untouched, unwrapped
from ..graph.capturing import capture_batch
from ..graph.ir import Node, Unit
from ..networks.twin import copied
from .candidate import SPHERICAL, SYMMETRY_KINDS, Candidate, Layers, Scaling, SymmetryKind
from .normalized import normalized, reparametrised
from .pairs import attention, pairs
from .verification import Function, SymmetryEvidence, verify

if TYPE_CHECKING:
    import pandas


Status = Literal["verified", "failed", "unseen"]
ELSEWHERE = "these symmetries were read from a file and know no model: measure them with normscope.symmetries"
EPS = ("eps", "variance_epsilon", "epsilon")
"""The names that modules use for their eps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """One group action on some parameters, and the numerical evidence for it.

    Attributes:
        kind: one of `channel scale`, `group scale`, `layer scale`, `row shift`, `redundant bias`, `weight norm`,
            `spectral norm`, `relu pair`, `linear pair`, `query-key pair`, `value-output pair`.
        path: the module whose parameters move; for pairs all of them.
        normalizer: the module that undoes the change; empty where none does.
        parameters: the names of the parameters that move.
        form: the action as a formula.
        units: how many independent factors, shifts or matrices there are (channels, groups, heads).
        dof: the degrees of freedom that the symmetry removes.
        exact: whether it holds for every eps; scales in front of normalizers hold up to eps.
        status: `verified`; `failed`: the numbers contradict it, so that it is not claimed; `unseen`: the output does
            not depend on these weights at this batch, so that the check shows nothing.
        fault: why it is not verified; empty if it is.
        evidence: what was measured.
    """

    kind: SymmetryKind
    path: str
    normalizer: str
    parameters: tuple[str, ...]
    form: str
    units: int
    dof: int
    exact: bool
    status: Status
    fault: str
    evidence: SymmetryEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetries(Saved, Shown):
    """What `normscope.symmetries` found. Prints as a table; in a notebook it shows itself as HTML.

    Attributes:
        rows: one per layer, or pair of layers, and kind, in the order of `SYMMETRY_KINDS`
            (`candidate.py`).
        mode: `"train"` or `"eval"`: which of the model's two functions was measured.
        num_parameters: how many parameters the model has.
        withheld: layers in front of normalizers whose scale has an effect nevertheless, and why.
        canonical_change, canonical_change_eval: by how much the output of the canonical copy differs at the batch,
            relative to its largest entry, in the measured mode and in eval mode. The difference comes from eps and from
            the rounding of the weights; None where nothing can be made canonical.
        notes: what the reader must know.
    """

    page = "normscope.bounds.pages.weights:symmetries_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="symmetries",
        noun="symmetries",
        plural=True,
        write="write them with symmetries.to_json(path)",
        keys=(..., "schema_version", "type", "dof"),
        left_out=("_model", "_candidates"),
    )

    rows: tuple[Symmetry, ...]
    mode: str
    num_parameters: int
    withheld: tuple[tuple[str, str], ...] = ()
    canonical_change: float | None = None
    canonical_change_eval: float | None = None
    notes: tuple[str, ...] = ()
    _model: nn.Module | None = field(default=None, repr=False, compare=False)
    _candidates: tuple[Candidate, ...] = field(default=(), repr=False, compare=False)

    def __iter__(self) -> Iterator[Symmetry]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def verified(self) -> tuple[Symmetry, ...]:
        """The symmetries that the numbers confirm: the only ones that are claimed."""
        return tuple(row for row in self.rows if row.status == "verified")

    @property
    def dof(self) -> int:
        """The degrees of freedom that the verified symmetries remove."""
        return sum(row.dof for row in self.verified)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return by kind how many verified symmetries there are and how many degrees of freedom they remove."""
        counts: dict[str, tuple[int, int]] = {}
        for row in self.verified:
            number, dof = counts.get(row.kind, (0, 0))
            counts[row.kind] = (number + 1, dof + row.dof)
        return counts

    def canonicalize(self, model: nn.Module | None = None) -> nn.Module:
        """Return a copy of the model with the same function whose scale-invariant weights have norm 1.

        The weight and the bias of every channel (group, layer) in front of a normalizer are divided by the norm of the
        weight. Running statistics are rescaled such that eval mode stays as it is: the mean is divided by the norm, and
        the variance is changed such that var + eps shrinks by the norm squared. Where a normalizer serves one such unit
        its eps is divided by the norm squared, so that nothing changes at all. Otherwise eps stays, and train mode
        changes by as much as eps matters relative to the variance: `canonical_change` says by how much at the batch.

        Args:
            model: the model that was measured, or another with the same parameters; left as it is.

        Returns:
            A copy on the same device, in the same mode.

        Raises:
            InputError: the symmetries come from a file and no model is given, or it has other parameters.
        """
        return canonical_copy(self._owner(model), self._scales())

    def param_groups(self, model: nn.Module | None = None) -> list[dict[str, Any]]:
        """Return parameter groups for `normscope.optim`: spheres for scale-invariant weights, the rest plain.

        A group of spheres has `units` (`"channel"`, or how many equal blocks of channels), `axis` (the axis of the
        tensor that counts channels), and a weight decay of zero: on a sphere there is nothing to decay.

        Args:
            model: the model that was measured, or another with the same parameters.

        Returns:
            Dicts for any `torch.optim.Optimizer`; those that do not know `units` ignore it.

        Raises:
            InputError: the symmetries come from a file and no model is given, or it has other parameters.
        """
        return sphere_groups(self._owner(model), self._scales())

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per symmetry, its evidence in columns of its own.

        Raises:
            InputError: pandas is not installed.
        """
        lines = [{**asdict(row), **asdict(row.evidence)} for row in self.rows]
        return data_frame({k: v for k, v in line.items() if k != "evidence"} for line in lines)

    def _owner(self, model: nn.Module | None) -> nn.Module:
        """Return the given model, or else the measured one; refuse a model with other parameters."""
        owner = self._model if model is None else unwrapped(model) if isinstance(model, nn.Module) else model
        if owner is None or self._model is None:
            raise InputError(ELSEWHERE)
        named = {name: tuple(p.shape) for name, p in self._model.named_parameters()}
        if not isinstance(owner, nn.Module) or {n: tuple(p.shape) for n, p in owner.named_parameters()} != named:
            raise InputError(
                "the model's parameters are not those that were measured: measure the symmetries of this model"
            )
        return owner

    def _scales(self) -> tuple[Candidate, ...]:
        """Return the verified scalings under which one tensor alone is scale invariant."""
        pairs = zip(self.rows, self._candidates, strict=True)
        return tuple(one for row, one in pairs if row.status == "verified" and one.kind in SPHERICAL)


def canonical_copy(model: nn.Module, scales: tuple[Candidate, ...]) -> nn.Module:
    """Return a copy of a model in which the weight of every unit has norm 1.

    Running statistics are rescaled accordingly, and so is eps where a normalizer serves a single unit.
    """
    canonical = copied(model)
    parameters = dict(canonical.named_parameters())
    with torch.no_grad():
        for scale in scales:
            assert isinstance(scale.action, Scaling)
            term = scale.action.terms[0]
            weight = term.piece.of(parameters).double()
            norms = term.total(weight.square(), scale.action.units).sqrt()
            norms = torch.where(norms > 0, norms, 1.0)
            for part in scale.action.terms:
                view = part.piece.of(parameters)
                view.copy_(view.double() / part.pick(norms))
            for feed in scale.feeds:
                _rescale_normalizer(canonical, feed.normalizer, norms)
    return canonical


def _rescale_normalizer(model: nn.Module, node: Node, norms: Tensor) -> None:
    """Divide the running statistics of a normalizer, or its eps, by the norms that its input was divided by."""
    module = model.get_submodule(node.path)
    held = [name for name in EPS if isinstance(getattr(module, name, None), float)]
    arguments = node.op.data if isinstance(node.op, Unit) else node.bound()
    eps = float(arguments["eps"])
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if isinstance(variance, Tensor) and isinstance(mean, Tensor) and variance.shape == norms.shape:
        mean.copy_(mean.double() / norms)
        variance.copy_(((variance.double() + eps) / norms.square() - eps).clamp(min=0.0))
    elif norms.numel() == 1 and len(held) == 1 and getattr(module, held[0]) == eps:
        setattr(module, held[0], eps / float(norms) ** 2)


def sphere_groups(model: nn.Module, scales: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    """Return one parameter group per kind of sphere and one for all other parameters; frozen ones are left out."""
    named = dict(model.named_parameters())
    spheres: dict[tuple[int | str, int], list[Tensor]] = {}
    on_spheres: set[int] = set()
    for scale in scales:
        term = scale.action.terms[0]  # type: ignore[union-attr]
        weight = named[term.piece.name]
        layout = blocks(term.units, tuple(weight.shape), term.piece.size, scale.action.units)
        if layout is not None and weight.requires_grad and id(weight) not in on_spheres:
            spheres.setdefault(layout, []).append(weight)
            on_spheres.add(id(weight))
    groups: list[dict[str, Any]] = [
        {"params": params, "units": units, "axis": axis, "weight_decay": 0.0}
        for (units, axis), params in spheres.items()
    ]
    rest = [p for p in named.values() if p.requires_grad and id(p) not in on_spheres]
    return [*groups, {"params": rest, "units": None, "axis": 0}] if rest else groups


def blocks(units: Tensor, shape: tuple[int, ...], part: tuple[int, ...], count: int) -> tuple[int | str, int] | None:
    """Return how a weight's entries lie on spheres: `"channel"` or a number of blocks, and the axis that counts them.

    Return None where the layer uses only a part of the parameter, or its units are no equal blocks along one axis.
    """
    if part != shape:
        return None
    axes = [dim for dim, size in enumerate(units.shape) if size > 1] or [0]
    if len(axes) != 1:
        return None
    [axis] = axes
    channels = shape[axis]
    expected = torch.arange(channels) * count // channels
    if channels % count or not torch.equal(units.reshape(-1).expand(channels), expected):
        return None
    return ("channel" if count == channels and count > 1 else count), axis


@accepts_graph
@outside_inference_mode
def symmetries(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    mode: Mode | None = None,
    output: str | int | None = None,
    seed: int = 0,
) -> Symmetries:
    """Find the symmetries of a model in its parameters, and verify each numerically.

    The structure of the graph suggests them: scales of channels (BatchNorm, InstanceNorm), groups (GroupNorm) and
    layers (LayerNorm, RMSNorm), shifts W + 1 u^T of all rows in front of a LayerNorm, redundant biases, `weight_norm`
    and `spectral_norm`, pairs of layers that trade a factor per channel through a ReLU or directly, pairs of queries
    and keys, and pairs of values and outputs. Each is then checked in float64 at random group elements: the output
    stays; the gradient has no component along it; H X w = -X^T grad; the Fisher information along it is zero. A
    symmetry that holds up to eps is checked at weights so large that eps plays no part; its defect at the weights as
    found is compared with the formula <w, grad> = eps/(var + eps) sum (dL/dzhat) zhat. A symmetry that fails is shown
    as failed, and no figure counts on it.

    The check takes about six forward and two double backward passes of the batch per symmetry, in float64: a few
    samples are enough.

    Args:
        model: any `torch.nn.Module` (or its captured graph) that can be traced; left exactly as found.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set; the first batch is measured. None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        mode: which of the model's two functions to take, `"train"` or `"eval"`; None for the mode the model is in. A
            BatchNorm is scale invariant in train mode.
        output: which output to take, by name or number, for models with several.
        seed: the seed of the random group elements and directions.

    Returns:
        One row per symmetry; prints as a table, and has `.canonicalize()`, `.param_groups()`, `.to_json()`.

    Raises:
        InputError: the model has no parameters, does not accept the batch, or does not run in float64.
        CaptureError: the model cannot be traced.

    Example:
        >>> import torch, normscope as ns
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        >>> found = ns.symmetries(model, torch.randn(16, 4), mode="train")
        >>> [(row.kind, row.dof, row.status) for row in found]  # doctest: +NORMALIZE_WHITESPACE
        [('channel scale', 8, 'verified'), ('redundant bias', 8, 'verified'), ('relu pair', 8, 'verified')]

    Reference: Akbar, section 4 and table 1, with the corrections of this project's documentation.
    """
    measured_mode = mode_of(model, mode)
    model = unwrapped(model)
    if not any(parameter.is_floating_point() for parameter in model.parameters()):
        raise InputError("the model has no parameters: there is nothing that a symmetry could move")
    batches = Batches(model, data, labels=labels)
    batch = batches.first
    graph = capture_batch(model, batch, mode=mode, output=output)
    layers = Layers(model, graph)
    before_normalizers, withheld = normalized(layers)
    candidates = [*before_normalizers, *reparametrised(model), *pairs(layers), *attention(layers)]
    candidates.sort(key=lambda candidate: SYMMETRY_KINDS.index(candidate.kind))
    generator = torch.Generator().manual_seed(seed)
    with untouched(model, mode), dropping_nothing(model):
        function = Function(model, prepare(model, batch, output))
        rows = tuple(map(_row, candidates, verify(function, graph, candidates, generator)))
        scales = tuple(c for row, c in zip(rows, candidates) if row.status == "verified" and c.kind in SPHERICAL)
        change = _canonical_change(function, scales)
    with untouched(model, "eval"), dropping_nothing(model):
        eval_change = _canonical_change(function, scales) if measured_mode == "train" else change
    return Symmetries(
        rows=rows,
        mode=measured_mode,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        withheld=tuple(withheld),
        canonical_change=change,
        canonical_change_eval=eval_change,
        notes=(*graph.notes, *batches.notes),
        _model=model,
        _candidates=tuple(candidates),
    )


def _row(candidate: Candidate, evidence: SymmetryEvidence) -> Symmetry:
    fault = evidence.fault() or ""
    return Symmetry(
        kind=candidate.kind,
        path=candidate.path,
        normalizer=candidate.normalizer,
        parameters=candidate.action.names,
        form=candidate.form,
        units=candidate.action.units,
        dof=candidate.action.dof,
        exact=candidate.exact,
        status="unseen" if fault.startswith("unseen") else "failed" if fault else "verified",
        fault=fault.removeprefix("unseen: "),
        evidence=evidence,
    )


def _canonical_change(function: Function, scales: tuple[Candidate, ...]) -> float | None:
    """Return by how much the output of the canonical copy differs at the batch, relative to its largest entry.

    Return None where there is nothing to make canonical, or the model cannot be copied.
    """
    if not scales:
        return None
    try:
        copied = canonical_copy(function.model, scales)
    except InputError:
        return None
    with torch.no_grad():
        before = function(function.start)
        after = Function(copied, function.call)
        return float((after(after.start) - before).abs().amax() / before.abs().amax().clamp(min=1e-300))
