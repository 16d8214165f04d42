"""`certified_radius`: how far each sample can be changed before its class provably can, next to a strong attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from ...calls.data_reader import Batches, inputs_and_labels
from ...calls.stand_ins import accepts_graph
from ...core.budget import Budget
from ...core.effort import SEARCHING, Effort
from ...core.errors import CaptureError, InputError, NormscopeError, SoundnessError, check_numbers
from ...core.provenance import provenance
from ...core.untouched import Mode, mode_of, outside_inference_mode
from ..segments import Bounds
from ..traced_network import BoundSettings, TracedNetwork
from .certifier import RTOL, Certifier, Columns
from .radii import COLUMNS, Radii

MOST_CLASSES = 1000
"""An audit takes no model with more outputs for a classifier."""

MEANING = (
    "radii are those of the exact function of the stored weights: the rounding of the float64 outputs at each sample "
    "is taken off, that of the model's own precision is not"
)
"""What a radius speaks of."""


@accepts_graph
@outside_inference_mode
def certified_radius(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    effort: Literal["fast", "tight"] = "fast",
    attack: bool = True,
    mode: Mode | None = None,
    output: str | int | None = None,
    known: Mapping[str, float] | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Radii:
    """Return for each sample the largest l2 radius found within which its class provably cannot change.

    A radius counts if over the ball of that radius every difference between the label's output and another one is
    bounded away from zero, by linear bounds carried back to the input or by constants over the ball; the largest is
    sought by bisection, and one 1 % larger was seen to fail. Where the margin over the constants of the differences
    over all inputs reaches further, that counts. Beside it stands the length of the smallest change that a strong
    attack found, confirmed in float64: the true radius lies between the two. The attack does not change the radii.

    A radius is that of the exact real function of the stored weights: what rounding can have done to the float64
    outputs at the sample is taken off the margin. The model's own float32 arithmetic may decide otherwise where margins
    are as small as its rounding.

    Radii are in the units of the model's input: of the data as given, behind any preprocessing of a loader. Divide by
    the deviation that a normalisation divided by to speak of pixels, or make the normalisation part of the model. The
    model is left exactly as found.

    Args:
        model: a classifier in eval mode: one row of K >= 2 outputs per sample, the largest of which is the class.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set. All batches are read, and every sample is measured with its own masks and ids.
            None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
            Without any the predicted class counts.
        effort: how hard to try: `"tight"` takes longer than `"fast"` and certifies more. It searches for ellipsoids
            over the balls, and optimises constants too.
        attack: whether to attack the samples too. Without it `attacked` is None.
        mode: `"eval"` to measure a model that is in train mode as it would be in eval mode.
        output: which output to take, by name or number, for models with several.
        known: constants for modules nobody can see into, by module path.
        max_seconds: the time limit of the whole call: radii stay certified but may be smaller, samples beyond it are
            left out, and the report says so (`advice`). No radius is smaller than by constants over all inputs, whose
            closed forms come first (see `lipschitz`).
        seed: the seed of the attack.

    Returns:
        The radii: `.radius`, `.attacked`, `.certified_accuracy(r)`, `.attacked_accuracy(r)`, `.curve()`; prints as a
        table, and has `.to_html(path)`, `.to_json(path)`, `.to_pandas()`.

    Raises:
        InputError: no classifier, labels that do not fit, a model in train mode, or NaN.
        CaptureError: the model cannot be traced; the message says why.
        MissingRuleError: operators without a rule, listed with module path and source line.
        SoundnessError: the attack got inside a certified radius: a bug.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(2, 2).eval()
        >>> model.weight.data, model.bias.data = torch.eye(2), torch.zeros(2)
        >>> radii = ns.certified_radius(model, torch.tensor([[1.0, 0.0]]), labels=torch.tensor([0]))
        >>> 0.70 < radii.radius[0] < 0.5**0.5 < radii.attacked[0] < 0.71  # the boundary lies at sqrt(1/2)
        True

    Reference: Zhang et al. 2018 (CROWN); Tsuzuku et al. 2018 (Lipschitz-margin training), proposition 1, with constants
    over balls.
    """
    asked = Effort.of(effort, *SEARCHING)
    check_numbers(max_seconds=max_seconds, seed=seed)
    if mode_of(model, mode) == "train":
        raise InputError(
            "the model is in train mode, where it is a map of the whole batch and no sample has a class of its own: "
            'call model.eval() first, or pass mode="eval"'
        )
    bounding = BoundSettings.within(max_seconds)
    budget = bounding.budget

    def certifier(inputs: Any) -> Certifier:
        captured = TracedNetwork.of(model, inputs, bounding, mode=mode, output=output, known=known)
        return Certifier(captured, bounding, effort=asked, attack=attack, seed=seed)

    certified = _CertifiedBatches(certifier)
    batches = Batches(model, data, labels=labels)
    expected = batches.count or 1
    notes: tuple[str, ...] = ()
    for index, batch in enumerate(batches):
        inputs, classes = inputs_and_labels(model, batch)
        if certified.parts and budget.late:
            count = sum(map(len, certified.parts))
            notes = (f"max_seconds cut this short: only the first {count:,} samples were examined",)
            break
        certified.add(inputs, classes, budget.share(1.0 / max(expected - index, 1)))
    return _joined(certified.parts, certified.first, budget, notes, labelled=certified.labelled)


class _CertifiedBatches:
    """What was found of the batches so far; those of one shape share a certifier."""

    def __init__(self, build: Callable[[Any], Certifier]) -> None:
        self.build = build
        self.certifiers: dict[tuple[int, ...] | None, Certifier] = {}
        self.parts: list[Columns] = []
        self.labelled = True

    @property
    def first(self) -> Certifier:
        """The certifier of the first batch, or of the last one where batches are no tensors."""
        return next(iter(self.certifiers.values()))

    def add(self, inputs: Any, labels: Any, budget: Budget) -> None:
        """Certify and attack the samples of one more batch."""
        key = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None
        if key is None or key not in self.certifiers:
            self.certifiers[key] = self.build(inputs)
        certifier = self.certifiers[key]
        rows = certifier.rows(inputs)
        targets, own = certifier.labels(labels, len(rows)), certifier.outputs(inputs)
        self.labelled = self.labelled and targets is not None
        groups = certifier.groups() if key is None else [(list(range(len(rows))), rows, certifier)]
        self.certifiers[key] = groups[0][-1]
        self.parts.append(_examined(groups, own, targets, budget))


def _examined(
    groups: list[tuple[list[int], Tensor, Certifier]],
    own: Tensor,
    labels: Tensor | None,
    budget: Budget,
    *,
    brief: bool = False,
) -> Columns:
    """Certify and attack the samples of a batch, each with its own masks, and return them in their order.

    `groups` are the numbers of samples with the same masks, their inputs and their certifier.
    """
    parts: list[Columns] = []
    for position, (numbers, rows, certifier) in enumerate(groups):
        certifier.check(rows, own[numbers])
        share = budget.share(1.0 / (len(groups) - position)) if len(groups) > 1 else budget
        parts += certifier.examine(rows, None if labels is None else labels[numbers], share, brief=brief)
    numbers = [number for some, _, _ in groups for number in some]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    columns = {name: [value for part in parts for value in getattr(part, name)] for name in (*COLUMNS, "witness")}
    settled = all(part.settled for part in parts)
    return Columns(**{name: tuple(values[i] for i in order) for name, values in columns.items()}, settled=settled)


def audited_radii(
    captured: TracedNetwork,
    bounding: BoundSettings | None = None,
    *,
    values: Bounds | None = None,
    samples: int = 8,
    seed: int = 0,
) -> Radii | None:
    """Return the radii of the first samples of a batch at the classes the model gives; None for no classifier."""
    bounding = bounding or BoundSettings()
    if any(0 in node.shape for node in captured.graph):
        return None
    try:
        certifier = Certifier(captured, bounding, effort=Effort.FAST, attack=True, seed=seed, values=values)
        if certifier.classes > MOST_CLASSES:
            return None
        own = certifier.outputs(captured.batch)
        groups = certifier.groups(samples)
        part = _examined(groups, own, None, bounding.budget, brief=True)
    except (SoundnessError, CaptureError):
        raise
    except NormscopeError:
        return None
    return _joined([part], groups[0][-1], bounding.budget, (), labelled=False)


def _joined(
    parts: list[Columns], certifier: Certifier, budget: Budget, notes: tuple[str, ...], *, labelled: bool
) -> Radii:
    """Return the parts as one result, which says what the clock cut short."""
    graph = certifier.captured.graph
    settled = all(part.settled for part in parts)
    advice = None if settled else "the search for radii ended before a radius 1 % larger was seen to fail"
    names = (*COLUMNS, "witness")
    columns = {name: tuple(value for part in parts for value in getattr(part, name)) for name in names}
    return Radii(
        name=type(certifier.captured.model).__name__,
        **columns,
        classes=certifier.classes,
        labelled=labelled,
        effort=str(certifier.effort),
        rtol=RTOL,
        converged=settled and not budget.cut,
        advice=budget.advice(advice),
        input_shape=graph.inputs[0].shape[1:] if len(graph.inputs) == 1 else graph.input_shape,
        notes=(*notes, *graph.notes, *(() if budget.cut else certifier.captured.unrolled.notes), MEANING),
        provenance=provenance(graph.inputs[0].value.device),
        seconds=budget.elapsed,
    )
