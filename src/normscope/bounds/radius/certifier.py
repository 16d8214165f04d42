"""`Certifier`: radii of samples of one captured classifier, by bounds over balls, beside an attack.

Radii are searched for in stages: by linear bounds of the margins, by constants over balls, and by the constants of the
differences of outputs over all inputs. Where a search starts depends on the samples alone, never on what an attack
found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ...calls.agreement import agree
from ...calls.call import arguments, run
from ...core.bracket import Evidence
from ...core.budget import Budget, Progress, affordable, check_time
from ...core.effort import SEARCHING, Effort
from ...core.errors import CaptureError, InputError, NotFiniteError
from ...core.log10 import ceiling10
from ...core.threads import full_precision
from ...core.untouched import untouched
from ..balls.ball import Balls, LinearMargins, RadiusOutcome
from ..bounds_by_method import upper_sides
from ..ellipsoids.ellipsoid_plan import plan
from ..ellipsoids.optimised import Certified, optimise, with_rounding
from ..graph.capturing import NOT_THE_MODEL
from ..graph.ir import Graph
from ..graph_weights import multiplications, passes
from ..outputs import directions
from ..segments import Bounds
from ..traced_network import BoundSettings, TracedNetwork
from .largest_radius import MAX_RADIUS_TESTS, MIN_RADIUS_TESTS, widest
from .logits import Logits, margins
from .pgd import Attack, Attacked


class RadiusStage:
    """Tests radii of samples: by linear bounds of the margins, or by limits and constants over the balls.

    Results name the stage by `method`, `"linear"` or `"ball"`; see `affine_outcome` for the gaps.
    """

    def __init__(
        self, method: str, effort: Effort, balls: Balls, top: Tensor, gaps: Tensor, budget: Budget, progress: Progress
    ) -> None:
        self.method, self.effort, self.balls, self.top, self.gaps = method, effort, balls, top, gaps
        self.budget, self.progress = budget, progress
        self._some = balls

    def test(self, some: Tensor, radius: Tensor) -> RadiusOutcome:
        """Test radii `[m]` of the samples with numbers `some`; those that are settled are left out."""
        self.progress.step("radii")
        top, gaps = self.top[some], self.gaps[some]
        if len(some) != len(self._some.centres):
            self._some = self.balls.select(some) if len(some) < len(self.balls.centres) else self.balls
        if self.method == "linear":
            return LinearMargins(self._some).over(radius, top, gaps, self.budget)
        return self._some.over(radius, effort=self.effort, steps=MULTIPLIER_STEPS).tested(top, gaps)

    def start(self) -> Tensor:
        """Return the first radii to try: a share of those at which the linear model changes class."""
        linear = torch.where(self.rates > 0, self.gaps / self.rates, math.inf).amin(1)
        size = self.balls.centres.norm(dim=1)
        return torch.where(
            linear.isfinite() & (linear > 0), linear * FIRST_RADIUS_SHARE, torch.where(size > 0, size, 1.0)
        )

    @cached_property
    def cost(self) -> float:
        """About how many multiplications one test of all samples takes."""
        return LinearMargins(self.balls).cost if self.method == "linear" else self.balls.cost

    @cached_property
    def rates(self) -> Tensor:
        """How fast each margin falls at the samples, `[B, K]`."""
        if self.method == "linear":
            return LinearMargins(self.balls).rates(torch.zeros_like(self.gaps[:, 0]), self.top, self.budget)
        return self.balls.over(0.0).differences(self.top)


FIRST_RADIUS_SHARE = 1 / 8
"""The first radius tried, as a share of the linear one, at which the bounds of deep networks are too loose to help."""
RTOL = 1e-2
"""A radius larger by this share was seen to fail."""
AT_ONCE = 256
"""Samples certified and attacked together."""
MULTIPLIER_STEPS = 6
"""Steps of the search for multipliers in a tight test of radii: with more of them few radii rose, by 1 to 2 %."""
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
    """Certifies and attacks samples of one captured classifier; `values` are bounds of its nodes, if known."""

    def __init__(
        self,
        captured: TracedNetwork,
        bounding: BoundSettings,
        *,
        effort: Effort,
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
        """Return what the model itself gives for a batch; NotFiniteError for NaN or infinite values."""
        model = self.captured.model
        with full_precision(), untouched(model, self.captured.mode), torch.no_grad():
            own = run(model, arguments(model, inputs, self.captured.output)).double()
        if not bool(own.isfinite().all()):
            raise NotFiniteError("the model returns NaN or infinite values on this batch: it has no classes there")
        return own

    def labels(self, labels: Any, count: int) -> Tensor | None:
        """Return labels as class numbers `[B]`, checked; None where there are none."""
        if labels is None:
            return None
        try:
            classes = torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"labels are the classes of the samples, as integers, not {type(labels).__name__}"
            ) from error
        if classes.is_floating_point() or classes.is_complex() or classes.dtype is torch.bool:
            raise InputError(
                f"labels have dtype {classes.dtype}: pass class numbers as integers (y.long()); a mask is an argument "
                "of the model: pass (x, mask) as data and the classes as labels="
            )
        if classes.ndim == 0:
            classes = classes[None]
        if classes.ndim != 1:
            raise InputError(
                f"labels have shape {tuple(classes.shape)}: pass one class number per sample "
                "(one-hot rows: y.argmax(1))"
            )
        if len(classes) != count:
            raise InputError(f"{count} samples and {len(classes)} labels: pass one class number per sample")
        classes = classes.long()
        low, high = int(classes.min()), int(classes.max())
        if low < 0 or high >= self.classes:
            wrong = low if low < 0 else high
            raise InputError(
                f"label {wrong} is out of range: the model has {self.classes} outputs, 0 to {self.classes - 1}"
            )
        return classes.to(self.captured.double.inputs[0].value.device)

    def check(self, rows: Tensor, own: Tensor) -> None:
        """Refuse samples on which the exact function is not what the model gives, and say why.

        Rounding in the model's own precision may make another function of it, or samples of this batch may be treated
        differently, unlike those of the captured one.
        """
        exact = self.exact(rows)
        if _alike(exact, own, self.captured.graph):
            if agree(exact, own.reshape(exact.shape), lambda: self.exact(rows), eps=self.captured.graph.eps):
                return
            raise CaptureError(NOT_THE_MODEL.format(where=" at some samples"))
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
        """Certify and attack flat samples at their labels (the predicted ones if None), some at a time.

        A `brief` search through a large network takes fewer steps, as an audit wants it.
        """
        columns = []
        _ = self._constants  # before the clocks of single samples start
        with Progress("certifying") as progress:
            for start in range(0, len(rows), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                waiting = math.ceil((len(rows) - start) / AT_ONCE)
                own = None if labels is None else labels[part]
                columns.append(self._within(rows[part], own, budget.share(1.0 / waiting), progress, brief=brief))
        return columns

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
        balls = Balls(self.captured, rows, self.bounding)
        attacker: Attack | None = None
        steps: int | None = None
        if self.attack:
            graph, count = self.captured.graph, len(rows)
            if brief:
                steps = count * passes(graph, ATTACK_STEPS, work=BRIEF_WORK / count, least=ATTACK_FEWEST)
            own = budget.share(0.4).search("the attack", steps)
            noise = 4 * balls.errors.amax(1)  # the errors at a changed sample are like those at the sample
            attacker = Attack(
                self.search, self.exact, rows, labels, noise=noise, seed=self.seed, budget=own, progress=progress
            )
            attacker.run()
        radius, methods, settled = self._radii(balls, labels, budget, progress, brief=brief)
        if attacker is not None:
            attacker.budget = budget.search("the attack within the radii", None if steps is None else steps // 4)
            attacker.challenge(radius)
        self._check_model(rows, radius, None if attacker is None else attacker.result())
        return self._columns(
            labels, predicted, margin, radius, methods, None if attacker is None else attacker.result(), settled
        )

    def _check_model(self, rows: Tensor, radius: Tensor, attacked: Attacked | None) -> None:
        """Refuse a graph that is not the model where radii end: at changed samples, and at the edges of the balls.

        The edges are on the way to the changed samples, and outward from zero.
        """
        sizes = torch.where(radius.isfinite(), radius, 0.0)[:, None]
        ways, points = [rows], []
        if attacked is not None:
            ways.append(attacked.point - rows)
            points.append(attacked.point)
        points += [rows + sizes * torch.nn.functional.normalize(way, dim=1) for way in ways]
        points = [point[(point != rows).any(1)] for point in points]
        self.captured.check_at(*torch.cat(points))

    def _radii(
        self, balls: Balls, labels: Tensor, budget: Budget, progress: Progress, *, brief: bool
    ) -> tuple[Tensor, list[str], bool]:
        """Return the certified radii, what certified each, and whether the search ended."""
        gaps, radius = self._over_all_inputs(balls, labels)
        methods = _methods(radius)
        kept = ((gaps.amin(1) > 0) & radius.isfinite()).nonzero()[:, 0]
        if not len(kept):
            return radius, methods, True
        balls, shared = balls.select(kept), (labels[kept], gaps[kept], budget, progress)
        efforts = SEARCHING[: 1 + SEARCHING.index(self.effort)]
        stages = [RadiusStage("ball", effort, balls, *shared) for effort in efforts]
        linear = LinearMargins(balls)  # where a few tests fit into the work of a brief search
        tests = (
            affordable(MIN_RADIUS_TESTS, linear.cost, work=BRIEF_WORK, least=0, device=radius.device)
            if brief
            else MIN_RADIUS_TESTS
        )
        if tests == MIN_RADIUS_TESTS and linear.usable:
            stages.insert(0, RadiusStage("linear", Effort.FAST, balls, *shared))
        start, rates, settled = stages[0].start(), stages[0].rates, True
        for number, stage in enumerate(stages):
            if number and budget.late:
                settled = False
                break
            tests = MAX_RADIUS_TESTS
            if brief:
                tests = affordable(
                    MAX_RADIUS_TESTS, stage.cost, work=BRIEF_WORK, least=MIN_RADIUS_TESTS, device=radius.device
                )
            probes, before = budget.search("the search for radii", tests), radius[kept]
            first = torch.where(before > 0, before * (1 + RTOL), start) if number else start
            least = 0 if stage.effort == Effort.TIGHT else MIN_RADIUS_TESTS
            largest = widest(stage.test, gaps[kept], rates, first, before, rtol=RTOL, budget=probes, least=least)
            radius[kept] = largest.radius
            settled = settled and bool(largest.settled.all())
            for index, better in zip(kept.tolist(), (largest.radius > before).tolist(), strict=True):
                methods[index] = stage.method if better else methods[index]
        return radius, methods, settled

    def _over_all_inputs(self, balls: Balls, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the margins at the samples less their rounding errors, and the radii by constants over all inputs."""
        logits, errors = balls.values, balls.errors
        own = logits.gather(1, labels[:, None])
        gaps = own - logits - 1e-12 * (own.abs() + logits.abs()) - errors - errors.gather(1, labels[:, None])
        gaps = gaps.scatter(1, labels[:, None], math.inf)
        return gaps, torch.where(gaps > 0, gaps / self._constants[labels], 0.0).amin(1) * (1 - 1e-9)

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


PAIRED = 12
"""Up to this many outputs the tight certificate is optimised for all pairs; beyond, for the output as a whole."""


def difference_constants(
    captured: TracedNetwork,
    bounding: BoundSettings | None = None,
    *,
    effort: Effort = Effort.FAST,
    values: Bounds | None = None,
) -> Tensor:
    """Bound the constants of all `out[a] - out[b]` over all inputs, `[K, K]`; `inf` where there is no finite bound.

    The effort TIGHT optimises the certificate for the differences. `values` are the bounds of all nodes over all
    inputs, where they were taken already.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 2, bias=False).requires_grad_(False)
        >>> layer.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) is layer.weight
        True
        >>> round(float(difference_constants(TracedNetwork.of(layer.eval(), torch.zeros(1, 2)))[0, 1]), 4)
        5.0
    """
    size, device = math.prod(captured.graph.output_shape), captured.double.inputs[0].value.device
    limits = bounding or BoundSettings()
    node_bounds = upper_sides(captured, limits, proofs=False).nodes if values is None else values
    whole = node_bounds[captured.graph.output].log10
    bound = torch.full((size, size), math.sqrt(2) * ceiling10(whole) * (1 + 1e-12), dtype=torch.float64, device=device)
    for way, budget in limits.efforts(effort) if math.isfinite(whole) else ():
        certificate = budget.share(0.5).attempt(
            partial(_certificate, captured, budget, node_bounds, way, size), lambda: None
        )
        if certificate is None:
            continue
        diagonal = certificate.q.diagonal()
        both = diagonal[:, None] + diagonal[None, :]
        # the sum cancels where two outputs move together: its rounding is added
        squared = (both - 2 * certificate.q).clamp(min=0.0) + 1e-12 * both
        bound = torch.minimum(bound, squared.sqrt() * 10.0**certificate.log10_scale * (1 + 1e-9))
    return bound.fill_diagonal_(0.0)


def _certificate(
    captured: TracedNetwork, budget: Budget, values: Bounds, effort: Effort, size: int
) -> Certified | None:
    """Return the ellipsoid of the output, or None where the graph is too wide for one, or time is up."""
    with torch.no_grad():
        steps = plan(captured.segments, values)
    if steps is None:
        return None
    pairs = (
        directions("difference", size).to(steps.output.device) if effort == Effort.TIGHT and size <= PAIRED else None
    )
    most = 1 if effort == Effort.FAST else None
    certificate = optimise(steps, steps=most, budget=budget.share(0.3), directions=pairs)
    return None if certificate is None else with_rounding(steps, certificate) or certificate
