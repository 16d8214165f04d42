"""`LayerRecord`: one thing that is watched, as the log of a run names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...core.codec import JsonForm, Part

LayerKind = Literal["weight", "normalizer", "block", "units", "operator"]
LAYER_KINDS: tuple[LayerKind, ...] = ("weight", "normalizer", "block", "units", "operator")
Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord(Part):
    """One thing that is watched.

    Attributes:
        name: the module's path; later runs of a module in one forward have `#2`, `#3`, ... behind it.
        kind: a weight layer, a normalizer, a block of the network, the units behind a ReLU, or, in logs of older
            versions alone, an operator.
        family: `convolution`, `linear`, `batch_norm`, ... or the class of a block.
        parameters: the names of a weight layer's parameters.
        normalizer: the normalizer that a weight layer feeds, if it does.
        invariant: what of a weight can be rescaled without changing the output: each `channel`, each `group`, the
            `layer`; None for weights that are not scale invariant.
        groups: how many such units there are; of a normalizer: sets of one sample with scales of their own.
        eps: the stabiliser of a normalizer.
        entries: values that a normalizer normalizes together.
        samples: how many samples stand behind one variance of a BatchNorm; how many sets another normalizer has.
        weight_decay: the weight decay of a weight, as its optimizer has it.
        coupled: whether that decay is added to the gradient and then rescaled with it (L2 in Adam and its like).
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    name: str
    kind: LayerKind
    family: str
    parameters: tuple[str, ...] = ()
    normalizer: str | None = None
    invariant: str | None = None
    groups: int = 0
    eps: float | None = None
    entries: int | None = None
    samples: int | None = None
    weight_decay: float | None = None
    coupled: bool = False
