"""`LossReading`: what a loss was made of, of calls (`LossCall`); and what a blind guess would score.

A check hears the calls themselves (`loss.py`); in a run they are found in autograd's graph (`loss_graph.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.special import entr

CLASSES, BINARY = ("cross_entropy", "nll"), ("bce", "bce_with_logits")
NO_CLASS = -100
"""Torch's own number for targets that do not count."""
MAX_OUTPUT_ENTRIES = 1 << 22
"""In a run outputs with more entries than this are not looked at: a pass over them would take time."""
FIGURES = (
    "own", "constant", "label_low", "label_high", "classes", "label_mean", "label_error", "samples", "differ", "kinds",
)  # fmt: skip
"""What is measured of outputs and targets; NaN where it does not apply.

- `own`: the loss of the batch, without factors; `constant`: that of the best constant output, estimated without bias.
- `label_low`, `label_high`: the least and the largest label; `classes`: how many there are in the batch.
- `label_mean`, `label_error`: the mean of the labels and its standard error; `samples`: how many there are.
- `differ`: the standard deviation of the outputs over the samples, over their root mean square; of a squared error
  over the deviation of the targets.
- `kinds`: how many classes there may be.
"""


class LossCall(NamedTuple):
    """What a loss was given, and which one it is, by the names of `TRAINING_LOSSES`.

    `ignored` is the label that does not count, `positives` the weight of yes in a loss of yes and no, `result` what the
    loss returned, where it was heard.
    """

    name: str
    output: Tensor
    target: Tensor
    smoothing: float = 0.0
    reduction: str = "mean"
    ignored: int = NO_CLASS
    weight: Tensor | None = None
    positives: Tensor | None = None
    result: Tensor | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether classes or samples have weights."""
        return self.weight is not None or self.positives is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReading:
    """What a loss was made of, as `read_loss` has it.

    Attributes:
        calls: what loss functions were given, where they were heard; a run holds no outputs beyond their step.
        figures: `FIGURES` of the only call that the graph shows, on the device.
        oddities: what is odd in how it is put together: `negated`, and off its graph `softmax`, `sigmoid`, `broadcast`,
            `likelihood` (a mean log-probability that is minimised), `divergence` (that of a code is subtracted), `cut`
            (the code gets a gradient from its divergence alone).
        rest: what else is in it, where a single call was heard.
        untaught: the ids of parameters before a code that no other part of the loss reaches than its divergence from
            a standard normal one; None where the loss shows no such divergence.
        shapes: the shapes of outputs and of what they were compared to, where those were broadcast.
        compares: whether it has a part that compares outputs with targets.
        half_precision: whether values on the way to it are cast to float16; known where activations are measured.
        activations: of each activation on the way to the loss what is measured (`off`, the share of units that no
            sample switches on; `saturated_tanh` and `saturated_sigmoid`, the share of entries in the flat parts;
            `one_place`, the share of the rows of an attention that look at one entry), the figure on the device, and
            the parameters of the layers next in front of it.
    """

    calls: tuple[LossCall, ...] = ()
    figures: Tensor | None = None
    oddities: frozenset[str] = frozenset()
    rest: float = 0.0
    untaught: frozenset[int] | None = None
    shapes: str = ""
    compares: bool = True
    half_precision: bool = False
    activations: tuple[tuple[str, Tensor, list[int]], ...] = ()


def blind_loss(name: str, shares: Tensor, samples: Tensor | int | None = None) -> Tensor:
    """Return the mean loss of the best output that is the same for every sample: the entropy of the labels.

    Args:
        name: which loss, of classes or of yes and no.
        shares: of each class, or of yes in each column.
        samples: in how many labels they were counted, to return what other samples would give: the entropy of the
            shares in a sample is too small by (kinds - 1)/(2 samples). None for these labels alone.
    """
    if name in CLASSES:
        entropy, kinds = entr(shares).sum(), (shares > 0).double().sum()
        return entropy if samples is None else entropy + (kinds - 1) / (2 * samples)
    entropy, both = entr(shares) + entr(1 - shares), ((shares > 0) & (shares < 1)).double()
    return (entropy if samples is None else entropy + both / (2 * samples)).mean()


def measure_figures(call: LossCall) -> Tensor | None:
    """Return `FIGURES` of a loss, on its device; None where its labels have weights or its outputs are too large."""
    if call.output.numel() > MAX_OUTPUT_ENTRIES or call.is_weighted:
        return None
    if call.name in CLASSES:
        return _measure_classes(call)
    return _measure_binary(call) if call.name in BINARY else _measure_squares(call)


def _measure_classes(call: LossCall) -> Tensor:
    """Measure a loss of classes: outputs are log-probabilities."""
    scores = call.output.movedim(1, -1).flatten(0, -2) if call.output.ndim > 1 else call.output[None]
    scores, target = scores.double(), call.target.reshape(-1)
    valid = (target != call.ignored).double()
    labels, count = target.clamp(0, scores.shape[1] - 1), valid.sum()
    own = -(scores.gather(1, labels[:, None])[:, 0] * valid).sum() / count
    shares = torch.zeros_like(scores[0]).scatter_add_(0, labels, valid) / count
    constant, classes = blind_loss(call.name, shares, count), (shares > 0).double().sum()
    return _pack(own, constant, labels.double(), valid, classes, scores.exp(), kinds=scores.shape[1])


def _measure_binary(call: LossCall) -> Tensor:
    """Measure a loss of yes and no."""
    outputs, target = call.output.double(), call.target.double()
    shares = outputs.sigmoid() if call.name == "bce_with_logits" else outputs
    own, mean = F.binary_cross_entropy(shares.clamp(0, 1), target.clamp(0, 1)), target.mean(0).clamp(0, 1)
    constant, labels = blind_loss(call.name, mean, len(target)), target.reshape(-1)
    classes = 1 + ((mean > 0) & (mean < 1)).double().amax()
    return _pack(own, constant, labels, torch.ones_like(labels), classes, shares)


def _measure_squares(call: LossCall) -> Tensor | None:
    """Measure a squared error."""
    output, target = call.output.double(), call.target.double()
    if output.ndim == 0 or len(target) < 2:
        return None
    own, constant = (output - target).square().mean(), target.var(0, correction=1).mean()
    nothing = own.new_full((), torch.nan)
    figures = _pack(own, constant, target.reshape(-1), torch.ones_like(target.reshape(-1)), nothing, output)
    figures[2:4] = figures[-1] = torch.nan  # targets are no labels
    figures[-2] = (output.var(0, correction=1).mean() / constant.clamp(min=1e-30)).sqrt()  # their mean may be large
    return figures


def _pack(
    own: Tensor, constant: Tensor, labels: Tensor, valid: Tensor, classes: Tensor, outputs: Tensor, *, kinds: int = 2
) -> Tensor:
    """Return `FIGURES`; labels that are not valid count as the first."""
    counted = torch.where(valid > 0, labels, labels[0])
    count = valid.sum()
    error = counted.std(correction=0) / count.sqrt()
    spread = outputs.std(0, correction=0).square().mean().sqrt() if len(outputs) > 1 else own.new_full((), torch.nan)
    size = outputs.square().mean().sqrt().clamp(min=1e-30)
    possible = torch.full_like(own, kinds)
    return torch.stack(
        [own, constant, counted.amin(), counted.amax(), classes, counted.mean(), error, count, spread / size, possible]
    )
