"""`margins`: how clearly a classifier decides, alone and relative to how far its outputs can move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...calls.batches import Batch, kept_batches
from ...calls.call import run
from ...calls.stand_ins import accepts_graph
from ...core.budget import Progress
from ...core.codec import JsonForm
from ...core.errors import InputError, NormscopeError, check_numbers, describe_error
from ...core.untouched import Mode, mode_of, outside_inference_mode, untouched, unwrapped
from ...report.document import FigureResult, figures_form
from ...theory.losses import margins as logit_margins
from ..lipschitz import lipschitz

DEFINITIONS = {
    "margin": "the output of the class less the largest other output; the class is the label, or the predicted one "
    "without labels; negative where another class wins",
    "margin over GLOBAL": "the margin over sqrt(2) times the Lipschitz constant over all inputs: no change of the "
    "input shorter than this changes the class",
}
"""What each figure of the result means, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins(FigureResult):
    """Margins of samples. Prints as a table; in a notebook as HTML.

    Attributes:
        name, mode: the model's class and the mode that was measured.
        labelled: whether labels were given.
        classes: how many outputs the classifier has.
        margin: one margin per sample.
        log10_constants: log10 of the Lipschitz constants that margins are divided by, by scope (`global`).
        definitions: what the figures mean.
        notes: what the reader must know.
    """

    page = "normscope.bounds.pages.curvature:margins_document"
    JSON: ClassVar[JsonForm] = figures_form("margins", "margins")

    name: str
    mode: str
    labelled: bool
    classes: int
    margin: tuple[float, ...]
    log10_constants: Mapping[str, float] = field(default_factory=dict)
    definitions: tuple[tuple[str, str], ...] = tuple(DEFINITIONS.items())
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.margin)

    @property
    def accuracy(self) -> float:
        """The share of samples with a positive margin."""
        return sum(value > 0 for value in self.margin) / len(self)

    def normalised(self, scope: str) -> tuple[float, ...]:
        """Return the margins over sqrt(2) times the constant of a scope: `"global"`.

        Raises:
            InputError: there is no constant of that scope.
        """
        if scope not in self.log10_constants:
            raise InputError(
                f"there is no constant of scope {scope!r}: there is {list(self.log10_constants) or 'none'}"
            )
        exponent = self.log10_constants[scope] + 0.5 * math.log10(2.0)
        return tuple(
            math.copysign(10.0 ** (math.log10(abs(value)) - exponent), value) if value and exponent < 300 else 0.0
            for value in self.margin
        )

    def quantile(self, share: float) -> float:
        """Return the smallest margin that a share of the samples does not exceed."""
        ordered = sorted(self.margin)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share > 0 else 0)]


@accepts_graph
@outside_inference_mode
def margins(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    constants: bool = True,
    mode: Mode | None = "eval",
    output: str | int | None = None,
    batches: int | None = None,
    max_seconds: float | None = None,
) -> Margins:
    """Measure the margins of a classifier's outputs, alone and relative to how far its outputs can move.

    Args:
        model: a classifier: one row of K >= 2 outputs per sample.
        data: a batch (a tensor, a NumPy array, a tuple of arguments, a dict of them), an iterable of batches such as a
            `DataLoader`, or a data set (see `batches`). Without labels the predicted class counts. None for the batch
            of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        constants: whether to bound the Lipschitz constant over all inputs.
        mode: `"eval"`, which is the default here (a classifier as it is used), `"train"`, or None for the mode the
            model is in.
        output: which output to take, for models with several.
        batches: read at most this many batches of the data; None for all.
        max_seconds: how long the bound may take.

    Returns:
        The figures: `.margin`, `.normalised("global")`, `.quantile(share)`.

    Raises:
        InputError: the model is no classifier, the data have no batch, or the labels are no classes.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.eye(2)
        >>> found = ns.margins(model, (torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])))
        >>> found.margin, found.accuracy, round(found.normalised("global")[0], 3)
        ((2.0, -1.0), 0.5, 1.414)
    """
    check_numbers(max_seconds=max_seconds)
    mode = mode_of(model, mode)
    model = unwrapped(model)
    kept = kept_batches(model, data, batches, own_loss=False, labels=labels)
    values, classes = _measured(model, kept, mode, output)
    exponents: dict[str, float] = {}
    notes: list[str] = []
    if constants:
        inputs = kept[0].call.args or kept[0].call.kwargs
        try:
            bracket = lipschitz(model, inputs, mode=mode, output=output, max_seconds=max_seconds)
        except NormscopeError as error:
            notes.append(f"no constant of scope global: {describe_error(error)}")
        else:
            exponents["global"] = bracket.log10_upper
            if bracket.reason:
                notes.append(f"the constant of scope global is infinite: {bracket.reason}")
    return Margins(
        name=type(model).__name__,
        mode=mode,
        labelled=all(batch.targets is not None for batch in kept),
        classes=classes,
        margin=tuple(values.tolist()),
        log10_constants=exponents,
        notes=tuple(notes),
    )


def _measured(model: nn.Module, batches: list[Batch], mode: str, output: str | int | None) -> tuple[Tensor, int]:
    """Return the margin of every sample, and how many classes there are."""
    margins_of_batches, classes = [], 0
    with untouched(model, mode), torch.no_grad(), Progress("margins", len(batches)) as progress:
        for batch in batches:
            logits = run(model, replace(batch.call, output=output)).double()
            if logits.ndim != 2 or logits.shape[1] < 2:
                raise InputError(f"the output has shape {tuple(logits.shape)}: a classifier gives a row of 2 or more")
            classes = logits.shape[1]
            margins_of_batches.append(logit_margins(logits, _classes(batch.targets, logits)))
            progress.step()
    return torch.cat(margins_of_batches), classes


def _classes(targets: Any, logits: Tensor) -> Tensor:
    """Return the class of every row, the predicted one without labels; refuse labels that are no classes."""
    if targets is None:
        return logits.argmax(1)
    integers = isinstance(targets, Tensor) and not targets.is_floating_point() and targets.shape == logits.shape[:1]
    if not integers or bool(((targets < 0) | (targets >= logits.shape[1])).any()):
        raise InputError(f"labels are one class from 0 to {logits.shape[1] - 1} per sample")
    return targets.long()
