"""`LossCall`: what one call of a loss was given, and the loss of the best output that is the same for every sample.

A check hears the call itself (`loss.py`); in a run it is found in autograd's graph of the loss (`loss_graph.py`).
"""

from __future__ import annotations

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

    `ignored` is the label that does not count, `positives` the weight of yes in a loss of yes and no.
    """

    name: str
    output: Tensor
    target: Tensor
    smoothing: float = 0.0
    reduction: str = "mean"
    ignored: int = NO_CLASS
    weight: Tensor | None = None
    positives: Tensor | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether classes or samples have weights."""
        return self.weight is not None or self.positives is not None


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


def measure_loss(call: LossCall) -> Tensor | None:
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
