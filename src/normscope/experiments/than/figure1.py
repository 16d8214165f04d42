"""Than's figure 1: weight norms, their product and the accuracy of a ReLU network and of ResNet18."""

from __future__ import annotations

from ..base import Claim, Experiment
from .curve_figures import figures
from .pictures import weight_norms
from .settings import ABOUT, CHAINS, FULL, QUICK, SOURCE
from .verdicts import fits_the_data, norms_exceed_one, product_of
from .watched_training import jobs, measure

PAPER = ("relu", "resnet18")
"""The networks that the paper trains."""

CLAIMS = (
    Claim(
        id="than.figure1.norms",
        source=SOURCE,
        where="Remark 7 and Figure 1",
        text="As a ReLU network and ResNet18 train, the norms of the weights of (nearly) all layers become larger than "
        "one, and their product grows.",
        judge=lambda f: norms_exceed_one(f, PAPER),
    ),
    Claim(
        id="than.figure1.product",
        source=SOURCE,
        where="Remark 7 and Figure 1",
        text="The product of all weight norms of the trained ResNet18 is about 10^50.",
        judge=lambda f: product_of(f, "resnet18", 50.0, 5.0),
    ),
    Claim(
        id="than.figure1.accuracy",
        source=SOURCE,
        where="Figure 1 and section 4.2",
        text="The training error of the ReLU network and of ResNet18 approaches zero within 100 epochs.",
        judge=lambda f: fits_the_data(f, PAPER),
    ),
)
FIGURE1 = Experiment(
    name="than.figure1",
    title="Than, figure 1: weight norms while a ReLU network and ResNet18 train",
    about=ABOUT,
    quick={"networks": CHAINS, **QUICK},
    full={"networks": CHAINS, **FULL},
    jobs=jobs,
    measure=measure,
    figures=figures,
    claims=CLAIMS,
    draw=weight_norms,
    stored=True,
)
