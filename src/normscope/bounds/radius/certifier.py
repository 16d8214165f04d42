"""`Certifier`: radii of samples of one captured classifier, by bounds over balls, beside an attack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...core.bracket import Evidence
from ...core.budget import Budget, affordable, check_time
from ...core.errors import InputError, NotFiniteError
from ...core.progress import Progress
from ...core.untouched import untouched
from ...graph.call import arguments, run
from ...graph.ir import Graph
from ..balls.ball import Balls
from ..bounding import Bounding
from ..captured import Captured
from ..folded import Bounds
from ..passes import multiplications, passes
from .differences import difference_constants
from .largest_radius import LEAST, MOST, widest
from .logits import Logits, margins
from .pgd import Attack, Attacked
from .stages import ConstantStage, LinearStage, RadiusStage, TiltedStage

RTOL = 1e-2
"""A radius larger by this share was seen to fail."""
AT_ONCE = 256
"""Samples certified and attacked together."""
EFFORTS = ("fast", "tight")
SEARCHES_SHARE = 0.8
"""Of the time that is left, where it is limited: what the searches may take; the rest ends what they have begun."""
ATTACK_STEPS, ATTACK_FEWEST = 400, 12
"""Steps of a brief attack on each sample, gradients or values, through small networks and through the largest."""
ERROR_PASSES = 4.0
"""About how many passes the outputs at samples take with their rounding errors."""
BRIEF_WORK = 4e9
"""Multiplications that a brief search for radii takes, and a brief attack: large networks get fewer steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The entries of `Radii` for some samples, and whether their searches ended."""

    label: tuple[int, ...]
    predicted: tuple[int, ...]
    margin: tuple[float, ...]
    radius: tuple[float, ...]
    attacked: tuple[float | None, ...]
    method: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    witness: tuple[Tensor | None, ...]
    settled: bool

    def __len__(self) -> int:
        return len(self.label)


class Certifier:
    """Certifies and attacks samples of one captured classifier.

    Args:
        captured: the model.
        bounding: what its bounds may cost.
        effort: `"fast"` or `"tight"`.
        attack: whether to attack.
        seed: of the attack.
        values: the bounds of all nodes over all inputs, where they were taken already.

    Raises:
        InputError: the model is no classifier of single samples.
    """

    def __init__(
        self,
        captured: Captured,
        bounding: Bounding,
        *,
        effort: str,
        attack: bool,
        seed: int,
        values: Bounds | None = None,
    ) -> None:
        self.captured, self.bounding, self.values = captured, bounding, values
        self.effort, self.attack, self.seed = effort, attack, seed
        graph = captured.graph
        _check_classifier(graph)
        self.classes = graph.output_shape[-1]
        self.exact = Logits(captured.double)
        self.search = Logits(graph) if graph.flat().dtype is torch.float32 else self.exact

    @cached_property
    def _constants(self) -> Tensor:
        """The constants of all differences of outputs over all inputs."""
        return difference_constants(self.captured, self.bounding, effort=self.effort, values=self.values)

    def groups(self, samples: int | None = None) -> list[tuple[list[int], Tensor, Certifier]]:
        """Return the samples of the captured batch by number, those with the same masks together, with their certifier.

        `samples` limits them to the first ones. Between the two stand their inputs, as `rows` gives them.
        """
        groups = self.captured.groups(self.bounding, samples)
        certifiers = [self]
        if len(groups) > 1:
            certifiers = [
                Certifier(captured, self.bounding, effort=self.effort, attack=self.attack, seed=self.seed)
                for _, captured in groups
            ]
        return [(numbers, part.points.double(), own) for (numbers, part), own in zip(groups, certifiers, strict=True)]

    def rows(self, inputs: Any) -> Tensor:
        """Return a batch as flat rows `[B, n]` in float64."""
        if isinstance(inputs, Tensor):
            if not inputs.is_floating_point() or not bool(inputs.isfinite().all()):
                raise InputError("the batch holds NaN, infinite values or no floats: clean the data first")
            return inputs.detach().reshape(len(inputs), -1).double()
        assert self.captured.graph.samples is not None
        return self.captured.graph.samples.double()

    def outputs(self, inputs: Any) -> Tensor:
        """Return what the model itself gives for a batch.

        Raises:
            NotFiniteError: the model gives NaN or infinite values.
        """
        model = self.captured.model
        with untouched(model, self.captured.mode), torch.no_grad():
            own = run(model, arguments(model, inputs, self.captured.output)).double()
        if not bool(own.isfinite().all()):
            raise NotFiniteError("the model returns NaN or infinite values on this batch: it has no classes there")
        return own

    def labels(self, labels: Any, count: int) -> Tensor | None:
        """Return labels as class numbers `[B]`, checked; None where there are none."""
        if labels is None:
            return None
        try:
            found = torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"labels are the classes of the samples, as integers, not {type(labels).__name__}"
            ) from error
        if found.is_floating_point() or found.is_complex() or found.dtype is torch.bool:
            raise InputError(
                f"labels have dtype {found.dtype}: pass class numbers as integers (y.long()); a mask is an argument of "
                "the model: pass (x, mask) as data and the classes as labels="
            )
        if found.ndim == 0:
            found = found[None]
        if found.ndim != 1:
            raise InputError(
                f"labels have shape {tuple(found.shape)}: pass one class number per sample (one-hot rows: y.argmax(1))"
            )
        if len(found) != count:
            raise InputError(f"{count} samples and {len(found)} labels: pass one class number per sample")
        found = found.long()
        low, high = int(found.min()), int(found.max())
        if low < 0 or high >= self.classes:
            wrong = low if low < 0 else high
            raise InputError(
                f"label {wrong} is out of range: the model has {self.classes} outputs, 0 to {self.classes - 1}"
            )
        return found.to(self.captured.double.inputs[0].value.device)

    def check(self, rows: Tensor, own: Tensor) -> None:
        """Refuse samples on which the exact function is not what the model gives, and say why.

        Raises:
            InputError: rounding in the model's own precision makes another function of it, or samples of this batch are
                treated differently, unlike those of the captured one.
        """
        if _alike(self.exact(rows), own, self.captured.graph):
            return
        dtype = str(self.captured.graph.flat().dtype).removeprefix("torch.")
        if self.exact.dtype is not self.captured.graph.flat().dtype and _alike(
            Logits(self.captured.graph)(rows), own, self.captured.graph
        ):
            raise InputError(
                f"on some samples the model's outputs in {dtype} are not those of its exact function: values vanish, "
                f"overflow or cancel in {dtype} on the way. A radius speaks of the exact function, which is another "
                "one: rescale weights and inputs, or measure model.double() on x.double()"
            )
        raise InputError(
            "on some samples the captured function differs from the model's: it treats the samples of this batch "
            "differently by their place, or batches by their size. Pass one sample at a time."
        )

    def examine(self, rows: Tensor, labels: Tensor | None, budget: Budget, *, brief: bool = False) -> list[Columns]:
        """Certify and attack samples, some at a time.

        Args:
            rows: the samples, flat `[B, n]`.
            labels: the class of each; the predicted one if None.
            budget: for all of them; its deadline may cut searches short.
            brief: whether searches through large networks take fewer steps, as an audit wants it.
        """
        found = []
        _ = self._constants  # before the clocks of single samples start
        with Progress("certifying") as progress:
            for start in range(0, len(rows), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                waiting = math.ceil((len(rows) - start) / AT_ONCE)
                own = None if labels is None else labels[part]
                found.append(self._within(rows[part], own, budget.share(1.0 / waiting), progress, brief=brief))
        return found

    def _within(
        self, rows: Tensor, labels: Tensor | None, budget: Budget, progress: Progress, *, brief: bool
    ) -> Columns:
        """Certify and attack some samples, without any search where the clock leaves no time for one."""
        searching = budget.share(SEARCHES_SHARE)
        return budget.attempt(
            lambda: self._some(rows, labels, searching, progress, brief=brief),
            lambda: self._unsearched(rows, labels, budget),
        )

    def _unsearched(self, rows: Tensor, labels: Tensor | None, budget: Budget) -> Columns:
        """Return the radii that take no search, or zero where those take too long, and note what was not begun."""
        budget.search("the attack").leave_out()
        logits = self.exact(rows)
        predicted = logits.argmax(1)
        classes = predicted if labels is None else labels

        def over_all_inputs() -> Tensor:
            check_time(ERROR_PASSES * len(rows) * multiplications(self.captured.graph), rows.device)
            return self._over_all_inputs(Balls(self.captured, rows, self.bounding), classes)[1]

        radius = self.bounding.closed_forms.attempt(over_all_inputs, lambda: torch.zeros_like(logits[:, 0]))
        return self._columns(classes, predicted, margins(logits, classes), radius, _methods(radius), None, False)

    def _some(self, rows: Tensor, labels: Tensor | None, budget: Budget, progress: Progress, *, brief: bool) -> Columns:
        logits = self.exact(rows)
        predicted = logits.argmax(1)
        labels = predicted if labels is None else labels
        margin = margins(logits, labels)
        attacker: Attack | None = None
        steps: int | None = None
        if self.attack:
            graph, count = self.captured.graph, len(rows)
            if brief:
                steps = count * passes(graph, ATTACK_STEPS, work=BRIEF_WORK / count, least=ATTACK_FEWEST)
            own = budget.share(0.4).search("the attack", steps)
            attacker = Attack(self.search, self.exact, rows, labels, seed=self.seed, budget=own, progress=progress)
            attacker.noise = torch.maximum(attacker.noise, 4 * Balls(self.captured, rows, self.bounding).errors.amax(1))
            attacker.run()
        radius, methods, settled = self._radii(rows, labels, budget, progress, brief=brief)
        if attacker is not None:
            attacker.budget = budget.search("the attack within the radii", None if steps is None else steps // 4)
            attacker.challenge(radius)
        return self._columns(
            labels, predicted, margin, radius, methods, None if attacker is None else attacker.result(), settled
        )

    def _radii(
        self, rows: Tensor, labels: Tensor, budget: Budget, progress: Progress, *, brief: bool
    ) -> tuple[Tensor, list[str], bool]:
        """Return the certified radii, what certified each, and whether the search ended."""
        gaps, radius = self._over_all_inputs(Balls(self.captured, rows, self.bounding), labels)
        methods = _methods(radius)
        kept = ((gaps.amin(1) > 0) & radius.isfinite()).nonzero()[:, 0]
        if not len(kept):
            return radius, methods, True
        stages = self._stages(rows[kept], labels[kept], gaps[kept], budget, progress, brief=brief)
        start, rates, settled = stages[0].start(), stages[0].rates, True
        for number, stage in enumerate(stages):
            if number and budget.late:
                settled = False
                break
            tests = MOST
            if brief:
                tests = affordable(MOST, stage.cost, work=BRIEF_WORK, least=LEAST, device=rows.device)
            probes, before = budget.search("the search for radii", tests), radius[kept]
            first = torch.where(before > 0, before * (1 + RTOL), start) if number else start
            least = 0 if stage.effort == "tight" else LEAST
            found = widest(stage.test, gaps[kept], rates, first, before, rtol=RTOL, budget=probes, least=least)
            radius[kept] = found.radius
            settled = settled and bool(found.settled.all())
            for index, better in zip(kept.tolist(), (found.radius > before).tolist(), strict=True):
                methods[index] = stage.method if better else methods[index]
        return radius, methods, settled

    def _over_all_inputs(self, balls: Balls, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the margins at the samples less their rounding errors, and the radii by constants over all inputs."""
        logits, errors = balls.values, balls.errors
        own = logits.gather(1, labels[:, None])
        gaps = own - logits - 1e-12 * (own.abs() + logits.abs()) - errors - errors.gather(1, labels[:, None])
        gaps = gaps.scatter(1, labels[:, None], math.inf)
        return gaps, torch.where(gaps > 0, gaps / self._constants[labels], 0.0).amin(1) * (1 - 1e-9)

    def _stages(
        self, rows: Tensor, top: Tensor, gaps: Tensor, budget: Budget, progress: Progress, *, brief: bool
    ) -> list[RadiusStage]:
        """Return the searches for radii in order: linear bounds where they are affordable, then constants."""
        balls = Balls(self.captured, rows, self.bounding)
        linear = LinearStage(balls, rows, top, gaps, budget, progress)
        stages: list[RadiusStage] = [linear] if linear.usable(BRIEF_WORK if brief else None) else []
        if stages and self.effort == "tight":
            stages.append(TiltedStage(balls, rows, top, gaps, budget, progress))
        efforts = EFFORTS[: 1 + EFFORTS.index(self.effort)]
        return stages + [ConstantStage(balls, rows, top, gaps, budget, progress, effort=effort) for effort in efforts]

    def _columns(
        self,
        labels: Tensor,
        predicted: Tensor,
        margin: Tensor,
        radius: Tensor,
        methods: list[str],
        attacked: Attacked | None,
        settled: bool,
    ) -> Columns:
        count = len(labels)
        lengths = [None] * count if attacked is None else attacked.distance.tolist()
        inputs = self.captured.double.inputs
        shape = inputs[0].shape[1:] if len(inputs) == 1 else None
        witness: list[Tensor | None] = [None] * count
        if attacked is not None:
            for index, length in enumerate(lengths):
                if length is not None and 0 < length < math.inf:
                    point = attacked.point[index]
                    witness[index] = point if shape is None else point.reshape(shape)
        return Columns(
            label=tuple(labels.tolist()),
            predicted=tuple(predicted.tolist()),
            margin=tuple(margin.tolist()),
            radius=tuple(radius.tolist()),
            attacked=tuple(lengths),
            method=tuple(methods),
            evidence=(Evidence.NUMERICAL,) * count,
            witness=tuple(witness),
            settled=settled,
        )


def _methods(radius: Tensor) -> list[str]:
    """Return how radii by constants over all inputs are named."""
    return ["none" if one == 0 else "global" for one in radius.tolist()]


def _alike(logits: Tensor, own: Tensor, graph: Graph) -> bool:
    """Whether outputs are the model's own up to rounding; NaN and infinite values never are."""
    own = own.reshape(logits.shape).to(logits.device)
    coarse = graph.flat().dtype in (torch.float16, torch.bfloat16)
    scale = float(own.abs().amax()) or 1.0
    return float((logits.double() - own).abs().amax()) <= (5e-2 if coarse else 1e-3) * scale


def _check_classifier(graph: Graph) -> None:
    """Refuse a model that does not give each sample a row of outputs of its own."""
    shape = graph.output_shape
    if not graph.per_sample:
        raise InputError(
            "the output of one sample depends on the others in the batch, or on its place there (the model treats them "
            "differently), or the first dimension is no batch: a radius is that of a single sample"
        )
    if graph.samples is None:
        raise InputError(
            "the model takes token ids, which cannot move by a small distance: pass float inputs, such as embeddings"
        )
    if len(shape) != 2:
        raise InputError(
            f"one sample gives an output of shape {shape[1:]}: a classifier gives one row of K outputs per sample. "
            "Choose another output with output=, or wrap the model so that it returns class scores [B, K]."
        )
    if shape[1] < 2:
        raise InputError(
            "the model has a single output: a class needs a rival. For a binary classifier with one logit z wrap the "
            "model so that it returns the two outputs 0 and z."
        )
