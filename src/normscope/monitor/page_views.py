"""The pictures of a run with one curve per layer: what they show and how to read them."""

from __future__ import annotations

from dataclasses import dataclass

from .record import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A picture with one curve per layer of a kind: which quantity, and how to read it."""

    kind: Kind
    quantity: str
    title: str
    axis: str
    caption: str = ""
    rules: tuple[tuple[str, float], ...] = ()
    log10: bool = False
    """Whether the logarithm is still to be taken."""


VARIANCE = View(
    kind="normalizer",
    quantity="log10_variance",
    title="Variance at the input of each normalizer",
    axis="log10 of the variance",
    caption="One curve per layer, coloured from the first to the last: the mean over what is normalized together "
    "(channels, rows, groups), on the batch of the step. Where it grows, the normalizer takes ever more of the layers "
    "in front of it back.",
    rules=(("variance 1", 0.0),),
)
NORM = View(
    kind="weight",
    quantity="log10_norm",
    title="Operator norm of each weight",
    axis="log10 of the norm",
    caption="One curve per layer, coloured from the first to the last: at its real input size, by power steps that go "
    "on from one measurement to the next, an estimate from below.",
    rules=(("norm 1", 0.0),),
)
FOLDED = View(
    kind="weight",
    quantity="log10_folded",
    title="Weights folded with the normalizer behind them",
    axis="log10 of the norm",
    caption="The norm of the weight and its normalizer together, with the variance of the batch: rescaling the weight "
    "does not move it.",
)
PARTS: tuple[tuple[str, tuple[View, ...]], ...] = (
    ("Variance at the normalizers", (VARIANCE,)),
    ("Norms of the weights", (NORM, FOLDED)),
    (
        "Scale-invariant weights",
        (
            View(
                kind="weight",
                quantity="log10_effective_lr",
                title="Effective learning rate",
                axis="log10 of lr over the norm",
                caption="lr/norm² for SGD, lr/norm for optimizers that rescale gradients, with the norm of the "
                "weight's invariant parts: the rate at which the function is really trained.",
            ),
            View(
                kind="weight",
                quantity="rotation",
                title="Rotation of the weights",
                axis="log10 of the angle of one step, in radians",
                caption="How far one step turns a weight whose length says nothing.",
                log10=True,
            ),
        ),
    ),
    (
        "Gradients",
        (
            View(
                kind="weight",
                quantity="log10_gradient",
                title="Norm of the gradient of each weight",
                axis="log10 of the norm",
                caption="As the optimizer gets it, after clipping.",
            ),
        ),
    ),
    (
        "Gain by block",
        (
            View(
                kind="block",
                quantity="log10_activation",
                title="Gain of the activations through each block",
                axis="log10 of the gain",
                rules=(("gain 1", 0.0),),
            ),
            View(
                kind="block",
                quantity="log10_backward",
                title="Gain of the gradient back through each block",
                axis="log10 of the gain",
                rules=(("gain 1", 0.0),),
            ),
        ),
    ),
    (
        "Dead units",
        (View(kind="units", quantity="dead", title="Share of the units that never fire on the batch", axis="share"),),
    ),
)
