"""Than's figure 3: weight norms and input variances of EfficientNet-B3."""

from __future__ import annotations

from dataclasses import replace

from ..base import Claim
from .figure1 import FIGURE1
from .pictures import both
from .settings import FULL, QUICK, SOURCE
from .verdicts import norms_exceed_one, small_at_first, variances_all_grow, variances_grow

NETWORK = ("efficientnet_b3",)

CLAIMS = (
    Claim(
        id="than.figure3.start",
        source=SOURCE,
        where="Appendix E.2",
        text="Some input variances of EfficientNet-B3 are small at first, and several grow far above 1 in training.",
        judge=lambda f: variances_grow(f, NETWORK),
    ),
    Claim(
        id="than.figure3.initial",
        source=SOURCE,
        where="Section 4.2 (the same behaviour appears in EfficientNet-B3)",
        text="With He's initialisation every layer of EfficientNet-B3 has an input variance below 1 at first.",
        judge=lambda f: small_at_first(f, NETWORK),
    ),
    Claim(
        id="than.figure3.increase",
        source=SOURCE,
        where="Appendix E.2",
        text="Input variances and weight norms of EfficientNet-B3 consistently increase with more mini-batches.",
        judge=lambda f: variances_all_grow(f, NETWORK),
    ),
    Claim(
        id="than.figure3.norms",
        source=SOURCE,
        where="Remark 7 and Figure 3",
        text="EfficientNet-B3 shows the same behaviour of the weights: norms above one, and a huge product that grows.",
        judge=lambda f: norms_exceed_one(f, NETWORK),
    ),
)
FIGURE3 = replace(
    FIGURE1,
    name="than.figure3",
    title="Than, figure 3: EfficientNet-B3",
    quick={"networks": NETWORK, **QUICK, "epochs": 3, "reshape_every": 3},
    full={"networks": NETWORK, **FULL},
    claims=CLAIMS,
    draw=both,
)
