"""Than's figure 2: input variances of the same runs, and the products of 1/sigma that the paper and Slides print."""

from __future__ import annotations

from dataclasses import replace

from ..base import Claim
from .figure1 import FIGURE1, PAPER
from .pictures import variances
from .settings import SOURCE
from .verdicts import exponential, reduces, reduction_of, small_at_first, variances_grow

SLIDES = "Slides"

CLAIMS = (
    Claim(
        id="than.figure2.start",
        source=SOURCE,
        where="Section 4.2, below Corollary 11",
        text="With He's initialisation every layer of both networks has a small input variance (below 1) at first.",
        judge=lambda f: small_at_first(f, PAPER),
    ),
    Claim(
        id="than.figure2.growth",
        source=SOURCE,
        where="Section 4.2 and Figure 2",
        text="As training goes on, the input variances of several layers grow rapidly and exceed 1 by a large margin.",
        judge=lambda f: variances_grow(f, PAPER),
    ),
    Claim(
        id="than.figure2.exponential",
        source=SOURCE,
        where="Figure 2, caption",
        text="The product of the layers' input variances grows about exponentially in the course of training.",
        judge=lambda f: exponential(f, PAPER),
    ),
    Claim(
        id="than.figure2.product",
        source=SOURCE,
        where="Section 4.2",
        text="In ResNet18 with 20 BatchNorms the product of 1/sigma over the layers is about 10^-25 after training.",
        judge=lambda f: reduction_of(f, "resnet18", ("sigma", "variance", "inverse", "inverse_l2"), "paper", 3.0),
    ),
    Claim(
        id="than.slides.product",
        source=SLIDES,
        where="Exponential benefits: capacity",
        text="In ResNet18 the product of the norms of gamma/sigma over the layers is about 1.35e-8.",
        judge=lambda f: reduction_of(f, "resnet18", ("gain", "gain_l2"), "slides", 1.0),
    ),
    Claim(
        id="than.figure2.reduction",
        source=SOURCE,
        where="Section 4.2, potentially exponential reduction",
        text="After training, the factors of the normalizers of ResNet18 multiply to less than one: normalization "
        "reduces the bound of the network's Lipschitz constant.",
        judge=lambda f: reduces(f, "resnet18"),
    ),
)
FIGURE2 = replace(
    FIGURE1,
    name="than.figure2",
    title="Than, figure 2: input variances while a ReLU network and ResNet18 train",
    claims=CLAIMS,
    draw=variances,
    shares="than.figure1",
)
