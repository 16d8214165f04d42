"""The pictures of a run with one curve per layer: what they show and how to read them."""

from __future__ import annotations

from dataclasses import dataclass

from ..monitor.record import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPicture:
    """A picture with one curve per layer of a kind: its quantity, and how to read it."""

    kind: Kind
    quantity: str
    title: str
    axis: str
    caption: str = ""
    rules: tuple[tuple[str, float], ...] = ()
    log10: bool = False
    """Whether the picture shows the logarithm of a quantity that is logged as it is."""
    term: str = ""
    """The term of the papers for what the title says in plain words."""


VARIANCE = LayerPicture(
    kind="normalizer",
    quantity="log10_variance",
    title="How much the input of each normalizer varies",
    term="normalized variance",
    axis="log10 of the variance",
    caption="One curve per layer, coloured from the first to the last: the mean over what is normalized together "
    "(channels, rows, groups), on the batch of the step. Where it grows, the normalizer takes ever more of the layers "
    "in front of it back.",
    rules=(("variance 1", 0.0),),
)
NORM = LayerPicture(
    kind="weight",
    quantity="log10_norm",
    title="How much each weight can stretch what it is given",
    term="operator norm",
    axis="log10 of the norm",
    caption="One curve per layer, coloured from the first to the last: at its real input size, an estimate from "
    "below. Where it may be off by more than 0.02 there is no point.",
    rules=(("norm 1", 0.0),),
)
FOLDED = LayerPicture(
    kind="weight",
    quantity="log10_folded",
    title="The same with the normalizer behind it",
    term="folded gain",
    axis="log10 of the norm",
    caption="The norm of the weight and its normalizer together, with the variance of the batch: rescaling the weight "
    "does not move it.",
)
EFFECTIVE_LR = LayerPicture(
    kind="weight",
    quantity="log10_effective_lr",
    title="How fast weights whose scale has no effect are trained",
    term="effective learning rate",
    axis="log10 of lr over the norm",
    caption="lr/norm² for SGD, lr/norm for optimizers that rescale gradients, with the norm of the weight's invariant "
    "parts: the rate at which the function is really trained.",
)
ROTATION = LayerPicture(
    kind="weight",
    quantity="rotation",
    title="How far one step turns each of these weights",
    axis="log10 of the angle of one step, in radians",
    caption="Of weights whose length says nothing.",
    log10=True,
)
GRADIENT = LayerPicture(
    kind="weight",
    quantity="log10_gradient",
    title="Size of the gradient of each weight",
    axis="log10 of the norm",
    caption="As the optimizer gets it, after clipping.",
)
ACTIVATION = LayerPicture(
    kind="block",
    quantity="log10_activation",
    title="How much the signal grows through each block",
    axis="log10 of the gain",
    rules=(("gain 1", 0.0),),
)
BACKWARD = LayerPicture(
    kind="block",
    quantity="log10_backward",
    title="How much the gradient grows on its way back through each block",
    axis="log10 of the gain",
    rules=(("gain 1", 0.0),),
)
DEAD = LayerPicture(
    kind="units", quantity="dead", title="Share of the units that never fire on the batch", axis="share"
)
EXCESS = LayerPicture(
    kind="operator",
    quantity="excess",
    title="How far the worst sample is outside of each operator's range",
    axis="relative to the size of the range",
    caption="Of the domain that is followed; below 0 it is the distance to the edge.",
    rules=(("edge", 0.0),),
)

PARTS: tuple[tuple[str, str, tuple[LayerPicture, ...]], ...] = (
    ("Normalizers", "normalized variance", (VARIANCE,)),
    ("Weights", "operator norm", (NORM, FOLDED, EFFECTIVE_LR, ROTATION)),
    ("Signal and gradients", "", (ACTIVATION, BACKWARD, GRADIENT, DEAD)),
    ("The data in their domain", "domain", (EXCESS,)),
)
"""The parts of a page with a picture per quantity: heading, term, pictures."""
