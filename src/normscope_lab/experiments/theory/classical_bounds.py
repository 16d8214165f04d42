"""The bounds that the Slides quote from others, against their worst cases: VC dimension, weight norms, PAC-Bayes."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from ..base import Claim, Figures, Job, Judgement, Measured, Settings
from ..judging import ROUNDING, Judge, judged, reaches
from ..single import single

SETTINGS: Settings = {
    "samples": 100,
    "draws": 200,
    "delta": 0.2,
    "intervals": (1, 5, 20),
    "widths": (4, 64),
    "samples of norms": 1024,
    "hypotheses": 64,
    "seed": 0,
}
GROWTH = 2.0
"""Growth with the width by more than this is no matter of chance."""


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Draw many data sets, take the models that do their worst on them, and put their gaps beside the bounds."""
    generator = torch.Generator().manual_seed(settings["seed"])
    return {
        "delta": settings["delta"],
        **_intervals(settings, generator),
        **_linear_maps(settings, generator),
        **_gibbs(settings, generator),
        "decomposition.largest share": _decomposition(settings, generator),
    }


def _intervals(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return how often the VC bound fails for the union of k intervals that fits random labels best.

    The VC dimension is 2 k, and every model has risk 1/2. The best fit is found by dynamic programming over the number
    of ends of intervals so far, whose parity says which label is predicted.
    """
    samples, delta = settings["samples"], settings["delta"]
    labels = torch.randint(2, (settings["draws"], samples), generator=generator)
    failed, most = 0.0, 0.0
    for count in settings["intervals"]:
        dimension = 2 * count
        parity = torch.arange(dimension + 1) % 2
        right = torch.zeros(len(labels), dimension + 1)
        for label in labels.T:
            ended = torch.cat((torch.full((len(labels), 1), -math.inf), right[:, :-1]), dim=1)
            right = torch.maximum(right, ended) + (parity == label[:, None])
        gaps = right.max(dim=1).values / samples - 0.5
        inside = 2.0 * dimension * math.log(2.0 * math.e * samples / dimension) + math.log(2.0 / delta)
        shares = gaps / math.sqrt(inside / samples)
        failed, most = max(failed, float((shares > 1.0).float().mean())), max(most, float(shares.max()))
    return {"vc.failed": failed, "vc.largest share": most}


def _linear_maps(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return how the gap of the worst orthogonal map, times sqrt(m) over a product of norms, grows with its width.

    Inputs x and targets y are independent unit vectors, the loss is `1 - y.Wx`, which is 1-Lipschitz in the output and
    has risk 1 whatever W is; the orthogonal W of the singular vectors of `mean(y x^T)` has the smallest mean loss. The
    factor that Bartlett et al. have beside the spectral norm is the sum of the norms of the columns over it.
    """
    samples, scaled = settings["samples of norms"], {}
    for width in settings["widths"]:
        gaps = []
        for _ in range(20):
            x, y = (
                torch.nn.functional.normalize(torch.randn(samples, width, generator=generator), dim=1) for _ in "xy"
            )
            gaps.append(float(torch.linalg.matrix_norm(y.T @ x / samples, ord="nuc")))
        scaled[width] = math.fsum(gaps) / len(gaps) * math.sqrt(samples)
    small, large = settings["widths"]
    growth = scaled[large] / scaled[small]
    return {
        "norms.spectral growth": growth,
        "norms.frobenius growth": growth / math.sqrt(large / small),
        "norms.spectral growth corrected": growth / (large / small),
        "norms.widths": large / small,
    }


def _gibbs(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return how often McAllester's bound fails for some posterior that favours models with lucky data.

    All models have risk 1/2 and independent errors, and the prior is uniform.
    """
    samples, count = settings["samples"], settings["hypotheses"]
    chances = torch.full((settings["draws"], count), 0.5)
    gaps = 0.5 - torch.binomial(torch.full_like(chances, samples), chances, generator=generator) / samples
    shares: list[Tensor] = []
    for sharpness in (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0):
        posterior = (sharpness * gaps).softmax(dim=1)
        divergence = (posterior * (posterior * count).clamp(min=1e-30).log()).sum(dim=1)
        bound = ((divergence + math.log(samples / settings["delta"])) / (2 * samples - 1)).sqrt()
        shares.append((posterior * gaps).sum(dim=1) / bound)
    worst = torch.stack(shares).max(dim=0).values
    return {"mcallester.failed": float((worst > 1.0).float().mean()), "mcallester.largest share": float(worst.max())}


def _decomposition(settings: Settings, generator: torch.Generator) -> float:
    """Return the largest share of the Slides' bound on the estimation error, over models with random losses."""
    risks, means = torch.rand(2, 1000 * settings["draws"], settings["hypotheses"] // 16, generator=generator)
    trained = risks[:, 0] - risks.min(dim=1).values
    bound = means[:, 0] - means.min(dim=1).values + 2.0 * (risks - means).abs().max(dim=1).values
    return float((trained / bound).max())


def _decomposed(figures: Figures) -> Judgement:
    share = figures["decomposition.largest share"]
    return judged(
        share <= 1.0 + ROUNDING,
        f"For families of models with random losses the left side {reaches(share, 'the right')}.",
    )


def _seldom(name: str, what: str) -> Judge:
    """Return a function that judges a bound by how often it fails."""

    def judge(figures: Figures) -> Judgement:
        failed, most = figures[f"{name}.failed"], figures[f"{name}.largest share"]
        return judged(
            failed <= figures["delta"],
            f"For {what} it failed in {100 * failed:.3g} % of the draws, {100 * figures['delta']:g} % are allowed; the "
            f"largest gap is {most:.3g} of the bound.",
        )

    return judge


def _frobenius(figures: Figures) -> Judgement:
    growth, widths = figures["norms.frobenius growth"], figures["norms.widths"]
    return judged(
        growth < GROWTH,
        f"For the orthogonal map that does its worst, the gap times sqrt(m) over the Frobenius norm grows {growth:.3g}-"
        f"fold while the width grows {widths:g}-fold.",
    )


def _spectral(figures: Figures) -> Judgement:
    growth, corrected = figures["norms.spectral growth"], figures["norms.spectral growth corrected"]
    return judged(
        growth < GROWTH,
        f"For the orthogonal map that does its worst, the gap times sqrt(m) over the spectral norm grows {growth:.3g}-"
        f"fold while the width grows {figures['norms.widths']:g}-fold; with the factor that Bartlett et al. have "
        f"beside it, {corrected:.3g}-fold.",
        corrected=corrected < GROWTH,
    )


WEIGHT_NORM = "slide Generalization: Weight norm"
CLASSICAL = single(
    name="slides.bounds",
    title="Bounds that the Slides quote from others",
    about="Data sets on which every model has the same risk, and the models that fit them best by chance: unions of "
    "intervals, orthogonal maps, and posteriors over independent models.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        Claim(
            id="slides.vc",
            where="slide Generalization: VC dimension",
            text="With probability 1 - delta every gap is at most the root of (2 VC log(2 e m/VC) + log(2/delta))/m.",
            quotation=r"$F(P, h) - F(\mathbf{D}, h) \leq \sqrt{\frac{2}{m} VC(\mathcal{H}) \log \frac{2e \cdot "
            r"m}{VC(\mathcal{H})} + \frac{1}{m} \log \frac{2}{\delta}}$",
            judge=_seldom("vc", "unions of 1, 5 and 20 intervals on random labels"),
        ),
        Claim(
            id="slides.decomposition",
            where="slide Errors of a trained model",
            text="The risk above the best of the family is at most the mean loss above the least, and twice the "
            "largest gap.",
            quotation=r"$|F(P, h_o) - F(P, h^*)| \leq |F(\mathbf{D}, h_o) - F(\mathbf{D}, h_o^*)| + 2 \sup_{h \in "
            r"\mathcal{H}} |F(P, h) - F(\mathbf{D}, h)|$",
            judge=_decomposed,
        ),
        Claim(
            id="slides.norms.frobenius",
            where=WEIGHT_NORM,
            text="The gap is at most O(1) times the product of Frobenius norms over sqrt(m); tested for one layer.",
            quotation=r"$F(P, h) - F(\mathbf{D}, h) \leq O(\|\mathbf{W}_1\|_F \cdots \|\mathbf{W}_K\|_F) / \sqrt{m}$",
            judge=_frobenius,
        ),
        Claim(
            id="slides.norms.spectral",
            where=WEIGHT_NORM,
            text="The gap is at most O(1) times the product of spectral norms over sqrt(m), whatever the widths.",
            quotation=r"$F(P, h) - F(\mathbf{D}, h) \leq O(\|\mathbf{W}_1\|_2 \cdots \|\mathbf{W}_K\|_2) / \sqrt{m}$",
            corrected="Bartlett et al. (2017) have a further factor, (sum over layers of (the (2,1) norm over the "
            "spectral norm)^(2/3))^(3/2), which grows with the width.",
            judge=_spectral,
        ),
        Claim(
            id="slides.mcallester",
            where="slide on PAC-Bayes",
            text="With probability 1 - delta the mean gap of every posterior is at most the root of (KL + "
            "log(m/delta))/(2 m - 1).",
            quotation=r"$\mathbb{E}_{h \sim \rho}[F(P, h) - F(\mathbf{D}, h)] \leq \sqrt{\frac{KL(\rho || \mu) + "
            r"\log(m/\delta)}{2m - 1}}$",
            judge=_seldom("mcallester", "posteriors that favour what fits by chance"),
        ),
    ),
)
