"""Than's figures 1, 2 and 3 as experiments: their settings, their claims and what is drawn of them.

Figure 1 has the weight norms, their product and the accuracy of a ReLU network and of ResNet18; figure 2 the input
variances of the same runs, and the products of 1/sigma that the paper and the Slides print; figure 3 both of
EfficientNet-B3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..base import Claim, Experiment, Settings
from .curve_figures import figures
from .pictures import both, variances, weight_norms
from .verdicts import (
    exponential,
    fits_the_data,
    norms_exceed_one,
    product_of,
    reduces,
    reduction_of,
    small_at_first,
    variances_all_grow,
    variances_grow,
)
from .watched_training import jobs, measure

TRAINING: dict[str, Any] = {
    "decays": ("coupled", "none", "decoupled"),
    "batch_size": 128,
    "learning_rate": 1e-3,
    "weight_decay": 1e-4,
    "initialisation": "He normal",
    "inputs": "divided by the largest norm of a training image",
    "augmentation": "none",
    "watch_every": 1,
}
"""The settings of appendix E, with choices for what it leaves open: the kind of decay, and the scale of inputs."""
FULL: dict[str, Any] = TRAINING | {
    "data": "cifar10",
    "depth": 10,
    "width": 512,
    "base": 64,
    "efficientnet": {"width": 1.2, "depth": 1.4, "divisor": 8},
    "epochs": 100,
    "autocast": ("resnet18",),
    "search_every": 2,
    "reshape_every": 5,
    "keep_every": 4,
}
QUICK: dict[str, Any] = TRAINING | {
    "data": "digits",
    "images": 640,
    "depth": 10,
    "width": 32,
    "base": 4,
    "efficientnet": {"width": 0.2, "depth": 0.3, "divisor": 4},
    "epochs": 6,
    "autocast": (),
    "search_every": 3,
    "reshape_every": 2,
    "keep_every": 3,
}
CHAINS = ("relu", "relu_bn", "resnet18")
"""The networks of figures 1 and 2; `relu` is the paper's, `relu_bn` the same network with BatchNorm."""


def decoupled_shrinkage(settings: Settings) -> float:
    """Return by which share AdamW's decay by itself shortens the weights in a whole run; CIFAR-10 has 50,000 images."""
    steps = settings["epochs"] * (settings.get("images", 50_000) // settings["batch_size"])
    return 1.0 - (1.0 - settings["learning_rate"] * settings["weight_decay"]) ** steps


ABOUT = (
    "Trained as in appendix E: Adam with learning rate 0.001, batches of 128, 100 epochs, weight decay 1e-4, He's "
    "normal initialisation, no augmentation, inputs divided by the largest norm of a training image. The paper does "
    "not say how the decay acts, so each network is trained with it in the gradient (torch's Adam), beside it (AdamW) "
    f"and without. At these settings AdamW's decay shortens the weights by {100 * decoupled_shrinkage(FULL):.1f} % in "
    "a whole run: that arm is one without decay in all but name, so that the three do not tell whether the strength "
    "of a decay matters or where it acts. Watched with `ns.watch` and read back with `ns.Run`. The images of CIFAR-10 "
    "went through JPEG (quality 75) once. ResNet18 has the stem for small images and trains in bfloat16 where there "
    "is a GPU; EfficientNet-B3 has neither dropout nor dropped blocks. Quick settings take small networks of the same "
    "kinds and digits."
)
PAPER = ("relu", "resnet18")
"""The networks that the paper trains."""

CLAIMS1 = (
    Claim(
        id="than.figure1.norms",
        where="Remark 7 and Figure 1",
        text="As a ReLU network and ResNet18 train, the norms of the weights of (nearly) all layers become larger than "
        "one, and their product grows.",
        quotation="the norms of weight matrices at all layers often become significantly larger than one as training "
        "progresses",
        judge=lambda f: norms_exceed_one(f, PAPER),
    ),
    Claim(
        id="than.figure1.product",
        where="Remark 7 and Figure 1",
        text="The product of all weight norms of the trained ResNet18 is about 10^50.",
        quotation=r"the overall bound $\prod_{k=1}^K s_k$ can become astronomically high for modern DNNs (e.g., "
        r"10^{50} for ResNet18)",
        judge=lambda f: product_of(f, "resnet18", 50.0),
    ),
    Claim(
        id="than.figure1.accuracy",
        where="Section 4.2 and Figure 1",
        text="The training error of the ReLU network and of ResNet18 approaches zero within 100 epochs.",
        quotation="In some layers, the variance continues to grow steadily even after the training error approaches "
        "zero",
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
    claims=CLAIMS1,
    draw=weight_norms,
    stored=True,
    task="CIFAR-10, one run of each network",
)

CLAIMS2 = (
    Claim(
        id="than.figure2.start",
        where="Section 4.2, below Corollary 11",
        text="With He's initialisation every layer of both networks has a small input variance (below 1) at first.",
        quotation="Owing to the use of He initialization, both models initially exhibit small input variances across "
        "all layers",
        judge=lambda f: small_at_first(f, PAPER),
    ),
    Claim(
        id="than.figure2.growth",
        where="Section 4.2 and Figure 2",
        text="As training goes on, the input variances of several layers grow rapidly and exceed 1 by a large margin.",
        quotation="as training continues, we observe that the input variances at several layers increase rapidly ... "
        "often exceeding 1 by a large margin",
        judge=lambda f: variances_grow(f, PAPER),
    ),
    Claim(
        id="than.figure2.exponential",
        where="Figure 2, caption",
        text="The product of the layers' input variances grows about exponentially in the course of training.",
        quotation="Consequently, the cumulative product of layer-wise variances grows approximately exponentially.",
        corrected="Without decay, and with AdamW's, which is next to none at these settings, it grows, and in ResNet18 "
        "a power of the epochs fits it better than an exponential; with 1e-4 in the gradient that of ResNet18 falls.",
        judge=lambda f: exponential(f, PAPER),
    ),
    Claim(
        id="than.figure2.product",
        where="Section 4.2",
        text="In ResNet18 with 20 BatchNorms the product of 1/sigma over the layers is about 10^-25 after training.",
        quotation=r"in ResNet18 with 20 BN layers, we empirically observe $\prod_{k=1}^K 1/\sigma_k \approx 10^{-25}$",
        judge=lambda f: reduction_of(f, "resnet18", ("sigma", "variance", "inverse", "inverse_l2"), "paper"),
    ),
    Claim(
        id="than.slides.product",
        where="below Lemma 4",
        text="In ResNet18 the product of the norms of gamma/sigma over the layers is about 1.35e-8.",
        quotation=r"ResNet-18: $\prod_{k=1}^K \|\boldsymbol{\gamma}_k / \boldsymbol{\sigma}_k\| \approx 1.35 \times "
        r"10^{-8}$",
        judge=lambda f: reduction_of(f, "resnet18", ("gain", "gain_l2"), "slides"),
    ),
    Claim(
        id="than.figure2.reduction",
        where="Section 4.2, potentially exponential reduction",
        text="After training, the factors of the normalizers of ResNet18 multiply to less than one: normalization "
        "reduces the bound of the network's Lipschitz constant.",
        quotation="Consequently, the cumulative reduction factors can be extremely large in magnitude ... potentially "
        "exponential in the number of normalization layers.",
        judge=lambda f: reduces(f, "resnet18"),
    ),
)
FIGURE2 = replace(
    FIGURE1,
    name="than.figure2",
    title="Than, figure 2: input variances while a ReLU network and ResNet18 train",
    claims=CLAIMS2,
    draw=variances,
    shares="than.figure1",
)

EFFICIENTNET = ("efficientnet_b3",)

CLAIMS3 = (
    Claim(
        id="than.figure3.start",
        where="Appendix E.2",
        text="Some input variances of EfficientNet-B3 are small at first, and several grow far above 1 in training.",
        quotation="After the training, those quantities can be significantly large, leading to huge products of "
        "norms/variances.",
        judge=lambda f: variances_grow(f, EFFICIENTNET),
    ),
    Claim(
        id="than.figure3.initial",
        where="Section 4.2",
        text="With He's initialisation every layer of EfficientNet-B3 has an input variance below 1 at first.",
        quotation="The same behavior also appears in EfficientNet-B3 as reported by Figure 3 in Appendix E.",
        judge=lambda f: small_at_first(f, EFFICIENTNET),
    ),
    Claim(
        id="than.figure3.increase",
        where="Appendix E.2",
        text="Input variances and weight norms of EfficientNet-B3 consistently increase with more mini-batches.",
        quotation="those variances and norms of the weight matrices consistently increase as training the model with "
        "more mini-batches",
        judge=lambda f: variances_all_grow(f, EFFICIENTNET),
    ),
    Claim(
        id="than.figure3.norms",
        where="Remark 7 and Figure 3",
        text="EfficientNet-B3 shows the same behaviour of the weights: norms above one, and a huge product that grows.",
        quotation="Figure 3 in Appendix E reports the same behavior for EfficientNet, which has extreme weight norms.",
        judge=lambda f: norms_exceed_one(f, EFFICIENTNET),
    ),
)
FIGURE3 = replace(
    FIGURE1,
    name="than.figure3",
    title="Than, figure 3: EfficientNet-B3",
    quick={"networks": EFFICIENTNET, **QUICK, "epochs": 3, "reshape_every": 3},
    full={"networks": EFFICIENTNET, **FULL},
    claims=CLAIMS3,
    draw=both,
)
