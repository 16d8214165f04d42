"""`domain`: the ranges of a network's inner values over data, and the set of all inputs that stay inside."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ...calls.data_reader import Batches
from ...calls.stand_ins import accepts_graph
from ...core.budget import Progress
from ...core.codec import JsonForm, Part
from ...core.errors import InputError, describe_error, visible
from ...core.files import write_bytes
from ...core.npz import read_arrays, read_json_array
from ...core.shown import Shown
from ...core.untouched import Mode, mode_of, outside_inference_mode
from ..graph.ir import Graph
from ..segments import GraphSteps
from .conditions import DomainCondition
from .derivative import treatments
from .gains import block_gains
from .recording import Extremes, FigureRecorder, digests

Record = Literal["ranges", "gains"]
"""What a domain records: ranges of inner values, or the gains of blocks too."""
RECORDS: tuple[str, ...] = get_args(Record)
FORMAT, VERSION = "normscope-domain", 2
DTYPES = ("|u1", "<f8")
"""What the arrays of a domain hold: the bytes of its header, and limits."""
FIELDS = {
    "samples": int,
    "skipped": int,
    "margin": float,
    "quantile": float,
    "record": str,
    "mode": str,
    "digests": dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(Part):
    """How many fresh samples lie inside a domain.

    Attributes:
        inside: samples inside.
        samples: samples tried.
        confidence: of the lower limit.
        lower: with that confidence at least this share of the distribution lies inside (Clopper and Pearson).
    """

    JSON: ClassVar[JsonForm] = JsonForm(keys=("inside", "samples", "share", ...), unread=("lower",))

    inside: int
    samples: int
    confidence: float
    lower: float

    @property
    def share(self) -> float:
        """The share of the samples inside."""
        return self.inside / self.samples

    @property
    def at_least(self) -> str:
        """The lower limit as a percentage, rounded down: a limit must not be said larger than it is."""
        return f"{math.floor(1000 * self.lower) / 10:g} %"

    @classmethod
    def of_fields(cls, **fields: Any) -> Coverage:
        """Return the coverage that was read; its lower limit is computed again.

        Raises:
            ValueError: its numbers are no counts, or no confidence.
        """
        if not 0 <= fields["inside"] <= fields["samples"] or not 0.0 < fields["confidence"] < 1.0:
            raise ValueError("a coverage counts some of its samples, with a confidence between 0 and 1")
        return covered(**fields)

    def __str__(self) -> str:
        return (
            f"{self.inside} of {self.samples} samples lie inside ({self.share:.1%}); with confidence "
            f"{self.confidence:.0%} at least {self.at_least} of the distribution does"
        )


def covered(inside: int, samples: int, confidence: float) -> Coverage:
    """Return the coverage with its lower limit, the share at which `inside` or more would be seen with 1 - confidence.

    Example:
        >>> round(covered(59, 59, 0.95).lower, 3)
        0.95
    """
    from scipy.special import betaincinv  # loads when first needed

    lower = float(betaincinv(inside, samples - inside + 1, 1.0 - confidence)) if inside else 0.0
    return Coverage(inside=inside, samples=samples, confidence=confidence, lower=lower)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """An inner value that leaves its range.

    Attributes:
        sample: which sample of the batch (0 where the batch is one input).
        path, operator: the module and its operator.
        what: the figure that is out of range.
        value: the figure at the sample.
        limit: what it may be at most, or at least.
        excess: how far it is out, relative to the size of such figures over the data.
    """

    sample: int
    path: str
    operator: str
    what: str
    value: float
    limit: float
    excess: float

    def __str__(self) -> str:
        place = f"{self.operator} in `{self.path or 'the model'}`"
        ends = f"{self.what} is {self.value:.6g}, the domain ends at {self.limit:.6g}"
        return visible(f"sample {self.sample}: at {place} {ends}")


class Domain(Shown):
    """All inputs of a model whose inner values stay in the ranges that were recorded over data (`normscope.domain`).

    The set need not be convex. A constant over it bounds the Jacobian norm at every input inside, and so the change of
    the output between two inputs if the whole segment between them lies inside.

    Attributes:
        samples: how many samples (in train mode: batches) it was recorded over.
        skipped: batches of another size that were left out, where the function is that of a whole batch.
        margin, quantile, record: how it was recorded.
        limits: the limit of every figure, by condition.
        mode: `"train"` or `"eval"`.
        input_shape: of one input.
    """

    page = "normscope.bounds.pages.bounds:domain_document"

    def __init__(
        self,
        recorder: FigureRecorder,
        limits: Mapping[str, Tensor],
        *,
        samples: int,
        skipped: int = 0,
        margin: float = 0.0,
        quantile: float = 0.0,
        record: str = "ranges",
    ) -> None:
        self._recorder, self.limits = recorder, dict(limits)
        self.samples, self.skipped, self.margin, self.quantile = samples, skipped, margin, quantile
        self.record, self.mode, self.input_shape = record, recorder.graph.mode, recorder.graph.input_shape

    @property
    def conditions(self) -> tuple[DomainCondition, ...]:
        """What is recorded, operator by operator."""
        return self._recorder.conditions

    def __repr__(self) -> str:
        figures = sum(limit.numel() for limit in self.limits.values())
        return (
            f"Domain({self.samples} samples, {len(self.limits)} conditions on {figures} figures, {self.mode} mode, "
            f"margin={self.margin:g}, quantile={self.quantile:g}, record={self.record!r})"
        )

    def _rendered(self, width: int, color: bool = False) -> str:
        """Return the domain as one line."""
        return repr(self)

    @outside_inference_mode
    def contains(self, data: Any) -> Tensor:
        """Say of each sample whether all its inner values lie in their ranges.

        Args:
            data: as for `normscope.domain`; in train mode batches of the recorded size.

        Returns:
            Truth values, one per sample.
        """
        return self.excess(*self._figures(data)) <= 0

    def inside(self, points: Tensor) -> Tensor:
        """Say of each flat point `[B, n]` of the captured graph, in float64, whether it lies inside."""
        return self.excess(self._recorder.figures_at(points)[0], len(points)) <= 0

    @outside_inference_mode
    def violations(self, data: Any) -> tuple[Violation, ...]:
        """Return every condition that a sample breaks, in the order of the network, each with its worst figure.

        The first violation of a sample names the first operator that leaves its range.
        """
        figures, samples = self._figures(data)
        violations = []
        for sample in range(samples):
            for condition in self.conditions:
                limits, row = self.limits[condition.key], figures[condition.key][sample]
                excess, index = condition.excess(row, limits).max(0)
                if float(excess) > 0:
                    i = int(index)
                    violations.append(
                        Violation(
                            sample=sample,
                            path=condition.node.path,
                            operator=condition.node.operator,
                            what=condition.describe(i),
                            value=condition.reading(float(row[i]), i),
                            limit=condition.reading(float(limits[i]), i),
                            excess=float(excess),
                        )
                    )
        return tuple(violations)

    def coverage(self, data: Any, *, confidence: float = 0.95) -> Coverage:
        """Measure the share of data that lies inside, on data that did not define the domain.

        Args:
            data: fresh data, as for `normscope.domain`.
            confidence: of the lower limit.

        Returns:
            The share seen, and the lower limit of Clopper and Pearson on the share of the distribution.
        """
        if not 0.0 < confidence < 1.0:
            raise InputError(f"confidence is a number between 0 and 1, not {confidence!r}")
        inside = total = 0
        with Progress("measuring coverage") as progress:
            for number, batch in enumerate(Batches(self._recorder.model, data), 1):
                progress.step(f"batch {number}")
                taken = self._recorder.points(batch)
                if taken is not None:
                    excess = self.excess(self._recorder.checked_figures(*taken), len(taken[0]))
                    inside, total = inside + int((excess <= 0).sum()), total + len(excess)
        if total == 0:
            raise InputError("no batch has the recorded size: coverage needs some that have")
        return covered(inside, total, confidence)

    def _figures(self, data: Any) -> tuple[dict[str, Tensor], int]:
        """Return the figures of all batches and how many points they have."""
        parts, samples = [], 0
        for batch in Batches(self._recorder.model, data):
            taken = self._recorder.points(batch)
            if taken is None:
                raise InputError(
                    f"the domain is of a map of whole batches of shape {self.input_shape}: pass batches of that size"
                )
            parts.append(self._recorder.checked_figures(*taken))
            samples += len(taken[0])
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, samples

    @property
    def starts_at_embeddings(self) -> bool:
        """Whether an input is the embeddings of token ids, not what the model is called with."""
        modules = dict(self._recorder.model.named_modules())
        return any(isinstance(modules.get(item.path), nn.Embedding) for item in self._recorder.graph.inputs)

    def points(self, given: Sequence[Tensor]) -> Tensor | None:
        """Return the float inputs of a call as flat points, whatever their values.

        None for a batch of another size, where the domain is of whole batches.

        Raises:
            InputError: they are not those of the recorded function.
        """
        return self._recorder.rows(given)

    def excesses(self, points: Tensor) -> dict[str, Tensor]:
        """Return how far the recorded function is outside of each condition at each flat point, by key."""
        figures, _ = self._recorder.figures_at(points)
        return {c.key: self._over(c, figures[c.key]) for c in self.conditions}

    def _over(self, condition: DomainCondition, figures: Tensor) -> Tensor:
        limits = self.limits[condition.key]
        if not limits.numel():
            return torch.full((len(figures),), -math.inf, dtype=figures.dtype, device=figures.device)
        return condition.excess(figures, limits).amax(1)

    def excess(self, figures: Mapping[str, Tensor], samples: int) -> Tensor:
        """Return how far each sample is out of its worst range, relative to its size; a sample above 0 is outside."""
        worst = [self._over(condition, figures[condition.key]) for condition in self.conditions]
        return torch.stack(worst).amax(0) if worst else torch.full((samples,), -math.inf)

    def check(self, graph: Graph) -> None:
        """Refuse another network than the one the domain was recorded with.

        Raises:
            InputError: operators, shapes or weights differ.
        """
        own, recorded = digests(graph), self._recorder.digests
        other = [name for name, digest in own.items() if recorded.get(name) != digest]
        if other or len(own) != len(recorded) or graph.mode != self.mode:
            raise InputError(
                "the domain was recorded with another network: another mode, other shapes, weights or known constants"
                + (f" (first at {other[0]!r})" if other else "")
                + ". Record it anew with normscope.domain(model, data)"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recorded limits to one file (npz: numbers and JSON, no code); `Domain.load` reads it."""
        header = {
            "format": FORMAT,
            "version": VERSION,
            "keys": list(self.limits),
            **{name: getattr(self, name) for name in FIELDS if name != "digests"},
            "digests": self._recorder.digests,
        }
        members = {f"a{i}": limit.detach().cpu().numpy() for i, limit in enumerate(self.limits.values())}
        text = np.frombuffer(json.dumps(header, allow_nan=False).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, header=text, **members)  # type: ignore[arg-type]
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        data: Any,
        *,
        output: str | int | None = None,
        known: Mapping[str, float] | None = None,
    ) -> Domain:
        """Read what `save` wrote.

        Args:
            path: the file.
            model: the model it was recorded with, with the same weights.
            data: as for `normscope.domain`; the first batch shows the recorded form.
            output: as it was recorded.
            known: as it was recorded.

        Raises:
            InputError: the file is no domain, or was recorded with another network.
        """
        header, limits = read_domain(path)
        digests_then = header.pop("digests")
        record, mode = header["record"], header.pop("mode")
        recorder = FigureRecorder.of(
            model, Batches(model, data).first, mode, output, known, partial(conditions_of, record=record)
        )
        if recorder.digests != digests_then or {condition.key for condition in recorder.conditions} != set(limits):
            raise InputError(f"{os.fspath(path)} was recorded with another network: other weights, shapes or version")
        device = recorder.graph.inputs[0].value.device
        options = {name: header[name] for name in FIELDS if name in header}
        return cls(recorder, {key: value.to(device) for key, value in limits.items()}, **options)


@accepts_graph
@outside_inference_mode
def domain(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    margin: float = 0.0,
    quantile: float = 0.0,
    record: Record = "ranges",
    mode: Mode | None = None,
    output: str | int | None = None,
    known: Mapping[str, float] | None = None,
) -> Domain:
    """Record, over data, the ranges of a model's inner values: the domain of all inputs that stay inside.

    Recorded are the least variance of each normalizer (of every group or channel), the range of every channel before an
    entrywise nonlinearity and of both factors of a product, the gains of softmax attention at the data. The data are
    streamed once, in float64; memory is that of one batch.

    `normscope.lipschitz(model, batch, scope="domain", domain=domain)` bounds the Jacobian norm at every input inside.

    Args:
        model: any `torch.nn.Module` (or its captured graph) that can be traced.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set; all batches are read. None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        margin: widens every range: by this share of its width; variances, norms and gains by this share of their size.
        quantile: the share of samples that each single limit may leave outside (the most extreme ones); above 0 the
            data need a length.
        record: `"ranges"`, or `"gains"` to record also the norm of the Jacobian of each block, the part between two
            values that everything passes through, at the ends of modules. The bound is then at most the product of the
            blocks' largest gains; it costs up to some 150 passes per sample.
        mode: `"train"`, `"eval"`, or None for the mode the model is in. In train mode an input is a whole batch.
        output: which output to measure, for models with several.
        known: constants for modules nobody can see into, by module path, the same as for `normscope.lipschitz`.

    Returns:
        The domain: `contains`, `violations`, `coverage`, `save`.

    Raises:
        InputError: there are no data, or an option is not what it can be.
        CaptureError: the model cannot be traced.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).eval()
        >>> batch = torch.randn(16, 4)
        >>> inside = ns.domain(model, [batch])
        >>> bool(inside.contains(batch).all())
        True
    """
    if not (isinstance(margin, int | float) and 0.0 <= margin < math.inf):
        raise InputError(f"margin is a finite number >= 0, not {margin!r}")
    if not (isinstance(quantile, int | float) and 0.0 <= quantile < 1.0):
        raise InputError(f"quantile is a share from 0 up to (not including) 1, not {quantile!r}")
    if record not in RECORDS:
        raise InputError(f"record is one of {', '.join(RECORDS)}, not {record!r}")
    mode_of(model, mode)
    batches = Batches(model, data, labels=labels)
    first = batches.first
    recorder = FigureRecorder.of(model, first, mode, output, known, partial(conditions_of, record=record))
    dropped = 0.0
    if quantile > 0:
        if batches.count is None:
            raise InputError("quantile needs data with a length: pass a DataLoader or a list of batches")
        taken = recorder.points(first)
        dropped = quantile * batches.count * (1 if taken is None else len(taken[0]))
    extremes, skipped = Extremes(dropped), 0
    with Progress("recording the domain") as progress:
        for number, batch in enumerate(batches, 1):
            progress.step(f"batch {number}")
            taken = recorder.points(batch)
            if taken is None:
                skipped += 1
            else:
                extremes.add(recorder.checked_figures(*taken), len(taken[0]))
    limits = extremes.settled(recorder.conditions, margin, quantile)
    return Domain(
        recorder,
        limits,
        samples=extremes.samples,
        skipped=skipped,
        margin=float(margin),
        quantile=float(quantile),
        record=record,
    )


def conditions_of(steps: GraphSteps, record: str) -> list[DomainCondition]:
    """Return what is recorded of a network: its operators, and its blocks where gains are asked for."""
    conditions = [condition for treatment in treatments(steps)[0].values() for condition in treatment.conditions]
    return [*conditions, *(block_gains(steps) if record == "gains" else ())]


def read_domain(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the limits of a file.

    Raises:
        InputError: there is no such file, or it is no domain.
    """
    where = Path(path)
    if not where.is_file():
        raise InputError(f"there is no file {where}")
    try:
        arrays = read_arrays(where, DTYPES)
        header = read_json_array(arrays.pop("header"))
        if header.get("format") != FORMAT or header.get("version") != VERSION:
            raise InputError(f"{where} is no domain of this version: write it with Domain.save")
        names = [f"a{i}" for i in range(len(header["keys"]))]
        if arrays.keys() != set(names):
            raise ValueError("its header names other arrays than it holds")
        limits = {key: torch.from_numpy(arrays[name]) for key, name in zip(header["keys"], names)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if type(error) is ValueError else describe_error(error)
        raise InputError(f"{where} is no domain that can be read ({why}): write one with Domain.save") from None
    sound = all(limit.dtype is torch.float64 and limit.ndim == 1 for limit in limits.values())
    complete = all(isinstance(header.get(name), kind) for name, kind in FIELDS.items())
    if not (sound and complete) or any(bool(limit.isnan().any()) for limit in limits.values()):
        raise InputError(f"{where} is a damaged domain: its header or its limits are not what Domain.save writes")
    return header, limits
