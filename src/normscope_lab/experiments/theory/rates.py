"""The claims of Than and the Slides about iterations: Corollaries 18 and 19, and the rates that both quote."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from normscope.report import factor
from normscope.theory import lemma1

from ...rates import RATES, corollaries
from ..base import Claim, Figures, Job, Judgement, Measured, Settings
from ..judging import ROUNDING, by_convention, judged
from ..single import single

SETTINGS: Settings = {"scales": (1.0, 1e3, 1e6, 1e9), "alpha": 1e-3, "gauge": 10.0, "layers": 4, "width": 8, "seed": 0}

DAVIS = {"in any dimension": 4, "by cutting planes, times d,": 3}
"""Davis et al. (abstract, arXiv 2112.06969): the evaluations that their methods need are O(1/alpha^n) for points within
alpha. Neither a factor on the function nor one on the weights changes a count, so that within a fixed distance they are
O(L^(n-2)/alpha^(n-1)); d is the number of weights."""


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Count steps on an extremal network, and evaluate the printed counts for one network in two gauges."""
    counts = [_steps(scale, settings["alpha"]) for scale in settings["scales"]]
    first, last = settings["scales"][0], settings["scales"][-1]
    summary = {
        "corollary18.steps at the smallest product": float(counts[0]),
        "corollary18.steps at the largest product": float(counts[-1]),
        "corollary18.decades of the product": math.log10(last / first),
    }
    ours, theirs = RATES["nonconvex, Than"], RATES["nonconvex, Slides"]
    return (
        summary
        | _gauge(settings)
        | {
            "rates.Than at L = 100 and alpha = 0.01": ours.log10_iterations(2.0, 0.01),
            "rates.Slides at L = 100 and alpha = 0.01": theirs.log10_iterations(2.0, 0.01),
        }
        | {f"rates.Davis {method} at L = 100 and alpha = 0.01": 2.0 * (2 * n - 3) for method, n in DAVIS.items()}
    )


def _steps(scale: float, alpha: float) -> int:
    """Return the number of Polyak steps until the loss of relu(a relu(w x)) has a gradient in w below alpha.

    The loss is (h(x) - y)^2/2 at one sample. The network is that of Theorem 13 with one unit in each layer, and the
    product behind the first layer is the scale.
    """
    weight = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    target = torch.tensor(0.25 * scale, dtype=torch.float64)
    for step in range(10_000):
        loss = 0.5 * ((scale * weight.relu()).relu() - target).square()
        (slope,) = torch.autograd.grad(loss, weight)
        if abs(float(slope)) <= alpha:
            return step
        with torch.no_grad():
            weight -= 2.0 * loss / slope.square() * slope  # twice the Polyak step is Newton's step for a square
    return 10_000


def _gauge(settings: Settings) -> dict[str, float]:
    """Return the ratio of Corollary 19 for a BatchNorm network, before and after a scaling without effect."""
    generator = torch.Generator().manual_seed(settings["seed"])
    width, factor = settings["width"], settings["gauge"]
    x = torch.randn(256, width, generator=generator, dtype=torch.float64)
    drawn = [
        torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
        for _ in range(settings["layers"])
    ]
    ratios, outputs = [], []
    for scale in (1.0, factor):
        values, norms, constants = x, [], []
        for weight in drawn:
            total = values @ (scale * weight).T
            variance = total.var(0, correction=0)
            norms.append(math.log10(float(torch.linalg.matrix_norm(scale * weight, ord=2))))
            constants.append(math.log10(lemma1(variance, 0.0)))
            values = ((total - total.mean(0)) / variance.sqrt()).relu()
        ratios.append(corollaries(norms, constants, settings["alpha"])[0].log10_ratio)
        outputs.append(values)
    return {
        "corollary19.log10 ratio": ratios[0],
        "corollary19.log10 ratio in another gauge": ratios[1],
        "corollary19.change of the outputs": float((outputs[1] - outputs[0]).norm() / outputs[0].norm()),
    }


def _corollary18(figures: Figures) -> Judgement:
    least, most = (figures[f"corollary18.steps at the {name} product"] for name in ("smallest", "largest"))
    decades = figures["corollary18.decades of the product"]
    grown = math.log10(max(most, 1.0) / max(least, 1.0))
    return judged(
        grown >= decades - 1.0,
        f"While the product grows by {decades:.0f} decades, gradient steps of twice Polyak's length, which is "
        f"Newton's step for a square, to an alpha-stationary point stay at {least:.0f} and {most:.0f}: a bound for the "
        "worst of all functions is none for this loss.",
    )


def _corollary19(figures: Figures) -> Judgement:
    one, other = figures["corollary19.log10 ratio"], figures["corollary19.log10 ratio in another gauge"]
    change = figures["corollary19.change of the outputs"]
    gauges = (one,) if change > ROUNDING else (one, other)  # a scaling that changes the function is no other gauge
    return by_convention(
        [ratio < 0.0 for ratio in gauges],
        f"With the product of the layers' own constants in place of a power of the worst, which is smaller, the "
        f"promised ratio of evaluations is {factor(one)}; after scaling weights by 10, which changes the outputs "
        f"by {change:.1g}, it is {factor(other)}.",
    )


def _rates(figures: Figures) -> Judgement:
    names = ("Than", "Slides", *(f"Davis {method}" for method in DAVIS))
    ours, slides, anywhere, planes = (figures[f"rates.{name} at L = 100 and alpha = 0.01"] for name in names)
    return judged(
        abs(ours - anywhere) < ROUNDING,
        f"From L = 1, alpha = 1 to L = 100, alpha = 0.01 the printed count grows by {factor(ours)} and that of the "
        f"Slides by {factor(slides)}. Within a fixed distance those of Davis et al. grow by {factor(anywhere)} in any "
        f"dimension and by {factor(planes)} for cutting planes, which need a multiple of the number d of weights.",
        corrected=abs(ours - planes) < ROUNDING,
    )


RATES_OF_TRAINING = single(
    name="than.rates",
    title="Iterations that constants promise",
    about="Steps of gradient descent on an extremal network, and the counts of the corollaries for one BatchNorm "
    "network whose weights are scaled without effect.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        Claim(
            id="than.corollary18",
            where="Corollary 18",
            text="Any gradient method needs at least s_(i+1)...s_K/alpha iterations on the loss of an unnormalized "
            "network.",
            quotation=r"Any generalized gradient based method needs at least $\Omega(s_{i+1} \cdots s_K/\alpha)$ "
            r"iterations",
            corrected="Among all functions with that Lipschitz constant there are some that need as many iterations, "
            "and by Zhang et al. (2020) no method finds an alpha-stationary point of all of them in finite time; the "
            "loss of a given network may need one step.",
            judge=_corollary18,
        ),
        Claim(
            id="than.corollary19",
            where="Corollary 19",
            text="BatchNorm reduces the number of evaluations by the factor sigma^(-K+i-1).",
            quotation=r"$O(\sigma^{-K+i-1}s_{i+1} \cdots s_K/\alpha^2)$ function/gradient evaluations of "
            r"$L_{\mathcal{H}_{no}}$.",
            corrected="The ratio of the two bounds is no property of the function: scaling weights in front of "
            "BatchNorm moves it at will.",
            judge=_corollary19,
        ),
        Claim(
            id="than.convergence-rate",
            where="Section 5.1, convergence rate",
            text="The algorithms of Davis et al. need O(L/alpha^2) evaluations.",
            quotation=r"present some algorithms ... with $O(\|\ell, \mathbf{w}\|_{Lip}/\alpha^2)$ function/gradient "
            r"evaluations",
            corrected="O(d L/alpha^2) evaluations with the number d of weights, by cutting planes; O(L^2/alpha^3) in "
            "any dimension, as the Slides quote it; both within a fixed distance of a point that is as flat.",
            judge=_rates,
        ),
    ),
)
