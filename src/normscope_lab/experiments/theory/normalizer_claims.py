"""The claims of Than (section 3 and appendix A), the digest and the Slides about single normalizers."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.theory import (
    batch_norm_eval,
    layer_norm_jacobian,
    lemma1,
    lemma2,
    lemma3,
)

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict
from ..judging import ROUNDING, Judge, judged, reaches
from ..single import single

SETTINGS: Settings = {"channels": 512, "sizes": (3, 4, 8, 64), "draws": 20, "eps": 1e-5, "seed": 0}


def slides_layer_norm(n: int, variance: float, eps: float, gamma: Tensor | None = None) -> float:
    """Return LayerNorm's bound of the digest, (1 - 1/n)/s, or with gamma that of the Slides, (1 - 1/n) norm(gamma/s).

    It is not a bound. (1 - 1/n)/s is below the exact 1/s for every n >= 3, and for n = 2 below eps/s^3 where var < eps.
    The Slides take the l2 norm of the vector gamma/s, sqrt(n)/s for gamma = 1: that is a bound for n >= 3 while all
    scales are equal, and none if one dominates (gamma = e_1, zero variance: exact sqrt(1 - 1/n)/s).

    Reference: Slides, "Normalization: Lipschitz continuity", other normalizers; digest, LN.
    """
    size = 1.0 if gamma is None else float(gamma.detach().double().norm())
    return (1.0 - 1.0 / n) * size / math.sqrt(variance + eps)


def slides_group_norm(n: int, variances: Tensor, eps: float, gamma: Tensor | None = None) -> float:
    """Return GroupNorm's bound of the Slides, (1 - 1/n) norm(gamma/sigma), l2 over all entries of groups of n.

    Like `slides_layer_norm` it is not a bound. Without gamma the largest group's (1 - 1/n)/s_k is returned.

    Reference: Slides, "Normalization: Lipschitz continuity", other normalizers.
    """
    inverse = (variances.double() + eps).rsqrt()
    if gamma is None:
        return (1.0 - 1.0 / n) * float(inverse.max())
    return (1.0 - 1.0 / n) * float((gamma.detach().double().reshape(-1, n) * inverse[:, None]).norm())


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Differentiate torch's own normalizers in float64, and put the printed constants beside the norms."""
    generator = torch.Generator().manual_seed(settings["seed"])
    eps = settings["eps"]
    measured = _batch_norm(settings["channels"], eps, generator)
    worst = {"lemma2.most": 0.0, "lemma23.error": 0.0, "digest.most": 0.0}
    gains = {}
    for size in settings["sizes"]:
        for _ in range(settings["draws"]):
            x = _draw(size, generator)
            spread = float((x.var(correction=0) + eps).sqrt())
            jacobian = _jacobian(lambda u: F.layer_norm(u, u.shape, eps=eps), x)
            norm = _norm(jacobian)
            form = layer_norm_jacobian(x, None, eps)
            variance = spread**2 - eps
            gains[size] = norm * spread
            worst["lemma2.most"] = max(worst["lemma2.most"], norm / lemma2(eps, variance))
            worst["digest.most"] = max(worst["digest.most"], norm / slides_layer_norm(size, variance, eps))
            worst["lemma23.error"] = max(worst["lemma23.error"], float((jacobian - form).norm() / form.norm()))
    still = torch.zeros(8, dtype=torch.float64)
    at_zero = _norm(_jacobian(lambda u: F.layer_norm(u, u.shape, eps=eps), still))
    measured |= worst | {"lemma2.at zero variance": at_zero, "lemma2.inverse root of eps": lemma2(eps)}
    smallest, largest = min(settings["sizes"]), max(settings["sizes"])
    measured |= {"width.smallest": gains[smallest], "width.largest": gains[largest]}
    return measured | _group_norm(settings, generator) | _two(eps, generator)


def _batch_norm(channels: int, eps: float, generator: torch.Generator) -> dict[str, float]:
    variance = torch.randn(channels, generator=generator, dtype=torch.float64).exp()
    mean = torch.zeros_like(variance)
    jacobian = _jacobian(lambda u: F.batch_norm(u[None], mean, variance, eps=eps)[0], mean)
    scale = torch.randn(channels, generator=generator, dtype=torch.float64)
    affine = _jacobian(lambda u: F.batch_norm(u[None], mean, variance, weight=scale, eps=eps)[0], mean)
    return {
        "lemma1.measured": _norm(jacobian),
        "lemma1.printed": lemma1(variance, eps),
        "lemma1.largest entry": float(batch_norm_eval(None, variance, eps).max()),
        "slides.batch norm.measured": _norm(affine),
        "slides.batch norm.printed": lemma1(variance, eps, scale),
        "slides.batch norm.largest entry": float(batch_norm_eval(scale, variance, eps).abs().max()),
    }


def _group_norm(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    eps, groups, size = settings["eps"], 4, 8
    most, least = 0.0, 1.0
    for _ in range(settings["draws"]):
        x = torch.cat([_draw(size, generator) for _ in range(groups)])
        norm = _norm(_jacobian(lambda u: F.group_norm(u[None], groups, eps=eps)[0], x))
        variances = x.reshape(groups, size).var(dim=1, correction=0)
        share = norm / lemma3(eps, variances)
        most, least = max(most, share), min(least, share)
    still = torch.zeros(groups * size, dtype=torch.float64)
    scale = (torch.arange(groups * size) == 0).double()  # one scale of 1, the others 0
    grouped = _norm(_jacobian(lambda u: F.group_norm(u[None], groups, weight=scale, eps=eps)[0], still))
    layered = _norm(_jacobian(lambda u: F.layer_norm(u, u.shape, weight=scale[:size], eps=eps), still[:size]))
    return {
        "lemma3.most": most,
        "lemma3.least": least,
        "slides.group norm most": grouped / slides_group_norm(size, torch.zeros(groups), eps, scale),
        "slides.layer norm most": layered / slides_layer_norm(size, 0.0, eps, scale[:size]),
        "slides.group norm most without the factor": grouped / float((scale * eps**-0.5).norm()),
        "slides.layer norm most without the factor": layered / float((scale[:size] * eps**-0.5).norm()),
    }


def _two(eps: float, generator: torch.Generator) -> dict[str, float]:
    """Return, for LayerNorm of two entries, the distance of its outputs from a sign, and its gain over 1/s."""
    x = _draw(2, generator)
    spread = float((x.var(correction=0) + eps).sqrt())
    value = F.layer_norm(x, x.shape, eps=eps)
    gain = _norm(_jacobian(lambda u: F.layer_norm(u, u.shape, eps=eps), x)) * spread
    return {"two.distance from a sign": float((value.abs() - 1.0).abs().max()), "two.gain": gain}


def _draw(size: int, generator: torch.Generator) -> Tensor:
    return 3.0 * torch.randn(size, generator=generator, dtype=torch.float64) + 1.0


def _jacobian(function: object, x: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(function, x)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def _lemma1(figures: Figures, start: str = "lemma1") -> Judgement:
    true, printed, corrected = (figures[f"{start}.{name}"] for name in ("measured", "printed", "largest entry"))
    return judged(
        abs(printed / true - 1.0) < ROUNDING,
        f"The Jacobian's norm is {true:.4g}, the printed l2 norm {printed:.4g}, the largest entry {corrected:.4g}.",
        corrected=abs(corrected / true - 1.0) < ROUNDING and printed >= true,
    )


def _slides_batch_norm(figures: Figures) -> Judgement:
    return _lemma1(figures, "slides.batch norm")


def _lemma2(figures: Figures) -> Judgement:
    most, zero, root = (figures[f"lemma2.{name}"] for name in ("most", "at zero variance", "inverse root of eps"))
    return judged(
        most <= 1.0 + ROUNDING and zero <= root * (1.0 + ROUNDING),
        f"At random inputs the Jacobian's norm {reaches(most, 'the bound')}; at zero variance it is {zero:.4g}, "
        f"and the bound over all inputs is 1/sqrt(eps) = {root:.4g} whatever the data are.",
    )


def _lemma3(figures: Figures) -> Judgement:
    most, least = figures["lemma3.most"], figures["lemma3.least"]
    return judged(
        most <= 1.0 + ROUNDING,
        f"The Jacobian's norm is between {least:.3g} and {most:.3g} of the sum over 4 groups: it is the largest "
        "group's.",
    )


def _lemma23(figures: Figures) -> Judgement:
    error = figures["lemma23.error"]
    return judged(error < ROUNDING, f"Formula and automatic differentiation differ by {error:.2g} of the norm.")


def _digest(figures: Figures) -> Judgement:
    most, without = figures["digest.most"], figures["lemma2.most"]
    return judged(
        most <= 1.0 + ROUNDING,
        f"The Jacobian's norm reaches {most:.4g} times (1 - 1/n)/s, and {without:.4g} times 1/s.",
        corrected=without <= 1.0 + ROUNDING,
    )


def _slides(kind: str, where: str) -> Judge:
    """Return a function that judges a bound of the Slides, with and without its factor of 1 - 1/n."""

    def judge(figures: Figures) -> Judgement:
        most, without = (figures[f"slides.{kind} most{ending}"] for ending in ("", " without the factor"))
        return judged(
            most <= 1.0 + ROUNDING,
            f"With one scale of {where} at 1 and the others at 0 the norm is {most:.4g} times the printed bound, and "
            f"{without:.4g} times that without its factor of 1 - 1/n.",
            corrected=without <= 1.0 + ROUNDING,
        )

    return judge


def _widths(figures: Figures) -> Judgement:
    small, large, two = figures["width.smallest"], figures["width.largest"], figures["two.gain"]
    return judged(
        small < large * (1.0 - ROUNDING),
        f"Times s, the norm is {small:.6g} for the smallest set and {large:.6g} for the largest. For 2 entries, away "
        f"from ties, it is {two:.1g}.",
    )


def _size_two(figures: Figures) -> Judgement:
    distance, gain = figures["two.distance from a sign"], figures["two.gain"]
    return Judgement(
        Verdict.MEASURED,
        f"Away from ties two entries come out as signs, to {distance:.1g}, and the Jacobian's norm is {gain:.1g} of "
        "1/s.",
    )


NORMALIZERS = single(
    name="than.normalizers",
    title="Constants of single normalizers",
    about="The Jacobians of torch's own normalizers, by automatic differentiation in float64 at random inputs, beside "
    "the constants that the papers print.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        Claim(
            id="than.lemma1",
            where="Lemma 1",
            text="BatchNorm with fixed statistics has as its Lipschitz constant the l2 norm of the vector 1/sigma.",
            quotation=r"Then $\|\text{BN}\|_{Lip} = \|1/\sigma\|$, where $1/\sigma = ((\sigma_1^2 + \epsilon)^{-0.5}, "
            r"\dots, (\sigma_n^2 + \epsilon)^{-0.5})$.",
            corrected="The Lipschitz constant of BatchNorm with fixed statistics is the largest entry of 1/sigma; the "
            "l2 norm of 1/sigma is an upper bound of it.",
            judge=_lemma1,
        ),
        Claim(
            id="than.lemma2",
            where="Lemma 2",
            text="LayerNorm's Jacobian has norm at most 1/s at every input, and its constant is at most the largest of "
            "these.",
            quotation=r"For any $\epsilon > 0$, we have $\left\| \frac{\partial \text{LN}(\mathbf{x}, "
            r"\epsilon)}{\partial \mathbf{x}} \right\| \leq \frac{1}{\sqrt{\sigma_n^2 + \epsilon}}$.",
            judge=_lemma2,
        ),
        Claim(
            id="than.lemma3",
            where="Lemma 3",
            text="GroupNorm's constant is at most the sum over its groups of 1/s.",
            quotation=r"We have $\|\text{GN}\|_{\text{Lip}} \leq \sum_{k=1}^C (\sigma_k^2 + \epsilon)^{-0.5}$.",
            judge=_lemma3,
        ),
        Claim(
            id="than.lemma23",
            where="Lemma 23",
            text="LayerNorm's Jacobian is (1/s)(I - y y^T/(norm(y)^2 + n eps))(I - 1/n).",
            quotation=r"$\frac{\partial \text{LN}(\mathbf{x}, \epsilon)}{\partial \mathbf{x}} = "
            r"\frac{1}{\sqrt{\sigma_n^2 + \epsilon}} \left(\mathbf{I} - "
            r"\frac{\mathbf{y}\mathbf{y}^T}{\|\mathbf{y}\|^2 + n\epsilon} \right) \left(\mathbf{I} - \frac{1}{n} "
            r"\mathbf{1} \right)$",
            judge=_lemma23,
        ),
        Claim(
            id="beyond.size-two",
            where="groups of two, which Lemma 3 admits",
            text="How much of two entries a normalizer passes besides which one is larger.",
            judge=_size_two,
        ),
        Claim(
            id="digest.layer-norm",
            where="Component map",
            text="LayerNorm's constant is at most (1 - 1/n)/sigma.",
            quotation=r"LN: Normalizes per-sample across features; $\|LN\|_{Lip} \leq (1-1/n)/\sigma$",
            corrected="The constant is at most 1/sigma; there is no factor of 1 - 1/n.",
            judge=_digest,
        ),
        Claim(
            id="digest.small-widths",
            where="Design tradeoffs",
            text="LayerNorm penalizes smaller layers more than larger ones.",
            quotation="LN: Batch-size independent; implicit $(1-1/n)$ penalty factor; smaller layers penalized more",
            corrected="For three neurons and more the norm of the Jacobian is 1/s whatever the width; two neurons "
            "alone are different.",
            judge=_widths,
        ),
        Claim(
            id="slides.batch-norm",
            where="slide Normalization: Lipschitz continuity",
            text="BatchNorm's constant is the l2 norm of the vector gamma/sigma.",
            quotation=r"$\|BN\|_{Lip} = \|\boldsymbol{\gamma}/\boldsymbol{\sigma}\|$",
            corrected="The constant is the largest entry of |gamma|/sigma; the l2 norm is an upper bound of it.",
            judge=_slides_batch_norm,
        ),
        Claim(
            id="slides.layer-norm",
            where="slide Normalization: Lipschitz continuity",
            text="LayerNorm's constant is at most (1 - 1/n) times the l2 norm of gamma/sigma.",
            quotation=r"Layer norm: $\|LN\|_{Lip} \leq \left(1 - \frac{1}{n}\right) "
            r"\|\boldsymbol{\gamma}/\boldsymbol{\sigma}\|$ (for a layer with n neurons)",
            corrected="The constant is at most the l2 norm of gamma/sigma, without the factor of 1 - 1/n.",
            judge=_slides("layer norm", "eight"),
        ),
        Claim(
            id="slides.group-norm",
            where="slide Normalization: Lipschitz continuity",
            text="GroupNorm's constant is at most (1 - 1/n_g) times the l2 norm of gamma/sigma.",
            quotation=r"Group norm: $\|GN\|_{Lip} \leq \left(1 - \frac{1}{n_g}\right) "
            r"\|\boldsymbol{\gamma}/\boldsymbol{\sigma}\|$ (for a group of n_g neurons)",
            corrected="The constant is at most the l2 norm of gamma/sigma, without the factor of 1 - 1/n_g.",
            judge=_slides("group norm", "four groups of eight"),
        ),
    ),
)
