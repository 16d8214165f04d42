"""Than's claims about products over whole networks: Lemma 5, Theorems 6 and 9, Corollaries 10 and 11."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope import lipschitz
from normscope.report import factor
from normscope.theory import ACTIVATIONS, gelu, lemma1, lemma2, lemma3, softmax_norm

from ...extremal import equality6, theorem6
from ..base import Claim, Figures, Job, Judgement, Measured, Settings, Verdict
from ..judging import ROUNDING, Judge, by_convention, judged
from ..single import single

SETTINGS: Settings = {"widths": (3, 6, 6, 2), "networks": 3, "deviation": 4.0, "wide": 64, "eps": 1e-5, "seed": 0}
GROUPED, GROUPS = (3, 12, 12, 12), {"group": 2, "instance": 4}
"""The widths of networks with GroupNorm and InstanceNorm, and how many groups or channels these have."""
SIZES = (1e-7, 1e-4, 1e-1, 10.0)
"""The sizes of the inputs at which networks are differentiated; LayerNorms are steepest at small variances."""
MARGIN = 1e-6
"""A product may fall below a witness by this many decades through rounding."""


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Differentiate small networks at many inputs, and put the printed products beside the largest norm."""
    generator = torch.Generator().manual_seed(settings["seed"])
    summary: dict[str, float] = {f"{name}.least excess": math.inf for name in ("lemma5", "batch", "batch2", "layer")}
    observed = at_input = math.inf
    for _ in range(settings["networks"]):
        plain = _network(settings, "none", generator)
        summary["lemma5.least excess"] = min(
            summary["lemma5.least excess"], _weights(plain) - _steepest(plain, generator)
        )
        batch = _network(settings, "batch", generator)
        constants = [math.log10(lemma1(m.running_var, m.eps)) for m in _norms(batch)]  # type: ignore[arg-type]
        steepest, weights = _steepest(batch, generator), _weights(batch)
        summary["batch.least excess"] = min(summary["batch.least excess"], weights + sum(constants) - steepest)
        second = weights + len(constants) * max(constants)
        summary["batch2.least excess"] = min(summary["batch2.least excess"], second - steepest)
        layer = _network(settings, "layer", generator)
        steepest, weights = _steepest(layer, generator), _weights(layer)
        least = [math.log10(lemma2(settings["eps"])) for _ in _norms(layer)]
        summary["layer.least excess"] = min(summary["layer.least excess"], weights + sum(least) - steepest)
        observed = min(observed, weights - _deviations(layer, generator) - steepest)
        at_input = min(at_input, _excess_at_inputs(layer, weights, generator))
        for kind, groups in GROUPS.items():
            grouped = _network({**settings, "widths": GROUPED}, kind, generator)
            bound = _weights(grouped) + (len(GROUPED) - 1) * math.log10(lemma3(settings["eps"], torch.zeros(groups)))
            least_excess = min(summary.get(f"{kind}.least excess", math.inf), bound - _steepest(grouped, generator))
            summary[f"{kind}.least excess"] = least_excess
    summary["layer.least excess with the deviations of data"] = observed
    summary["layer.least excess at each input"] = at_input
    summary |= _exponential(settings) | _factors(settings) | _skip()
    units = ("relu", "leaky_relu", "tanh", "sigmoid")
    slopes = [max(map(abs, ACTIVATIONS[name].slope)) for name in units]
    summary["slopes.named"] = max(*slopes, 10.0 ** softmax_norm(10).log10)
    summary["slopes.gelu"] = gelu().slope[1]
    return summary


def _network(settings: Settings, kind: str, generator: torch.Generator) -> nn.Sequential:
    """Return a ReLU network in float64 and eval mode, with random weights and, for BatchNorm, random variances."""
    layers: list[nn.Module] = []
    widths = settings["widths"]
    for before, after in itertools.pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, before, after, bias=False, dtype=torch.float64)
        nn.init.normal_(linear.weight, std=before**-0.5, generator=generator)
        layers.append(linear)
        if kind == "batch":
            norm = nn.BatchNorm1d(after, eps=settings["eps"], affine=False, dtype=torch.float64)
            assert norm.running_var is not None
            norm.running_var.copy_(torch.randn(after, generator=generator, dtype=torch.float64).exp())
            layers.append(norm)
        elif kind == "group":
            layers.append(nn.GroupNorm(GROUPS[kind], after, eps=settings["eps"], affine=False, dtype=torch.float64))
        elif kind == "instance":  # as many channels, each of several positions
            layers += [nn.Unflatten(1, (GROUPS[kind], -1)), nn.InstanceNorm1d(GROUPS[kind], eps=settings["eps"])]
            layers.append(nn.Flatten())
        elif kind == "layer":
            layers.append(nn.LayerNorm(after, eps=settings["eps"], elementwise_affine=False, dtype=torch.float64))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers).eval().requires_grad_(False)


def _norms(network: nn.Sequential) -> list[nn.Module]:
    return [module for module in network if isinstance(module, nn.BatchNorm1d | nn.LayerNorm)]


def _weights(network: nn.Sequential) -> float:
    """Return log10 of the product of the weights' norms."""
    weights = [module.weight for module in network if isinstance(module, nn.Linear)]
    return math.fsum(math.log10(float(torch.linalg.matrix_norm(weight, ord=2))) for weight in weights)


def _steepest(network: nn.Sequential, generator: torch.Generator) -> float:
    """Return log10 of the largest Jacobian norm at random inputs of all sizes, a lower bound on every constant."""
    first = network[0]
    assert isinstance(first, nn.Linear)
    inputs = [s * torch.randn(100, first.in_features, generator=generator, dtype=torch.float64) for s in SIZES]
    return lipschitz(network, torch.cat(inputs), scope="point").log10_lower


def _deviations(network: nn.Sequential, generator: torch.Generator) -> float:
    """Return log10 of the product of the mean deviations that random data have in front of each LayerNorm."""
    first, total = network[0], 0.0
    assert isinstance(first, nn.Linear)
    x = 10.0 * torch.randn(256, first.in_features, generator=generator, dtype=torch.float64)
    for module in network:
        if isinstance(module, nn.LayerNorm):
            total += math.log10(float(x.var(dim=1, correction=0).mean().add(module.eps).sqrt()))
        x = module(x)
    return total


def _excess_at_inputs(network: nn.Sequential, weights: float, generator: torch.Generator) -> float:
    """Return the least excess, over inputs, of the product with an input's own deviations over its Jacobian's norm."""
    first, least = network[0], math.inf
    assert isinstance(first, nn.Linear)
    for size in SIZES:
        x = size * torch.randn(25, first.in_features, generator=generator, dtype=torch.float64)
        norms = torch.linalg.matrix_norm(torch.func.vmap(torch.func.jacrev(network))(x), ord=2)
        product = torch.full_like(norms, weights)
        for module in network:
            if isinstance(module, nn.LayerNorm):
                product -= x.var(dim=1, correction=0).add(module.eps).log10() / 2.0
            x = module(x)
        least = min(least, float((product - norms.log10()).min()))
    return least


def _exponential(settings: Settings) -> dict[str, float]:
    """Return how exactly extremal networks attain large and small products."""
    worst, largest, least = 0.0, -math.inf, math.inf
    for widths, scale in (((3, 5, 2, 4), 10.0), ((1, 1, 1), 0.1), ((8,) * 21, 5.0), ((8,) * 21, 0.2), ((4, 1, 7), 3.0)):
        equality = equality6(theorem6(widths, [scale] * (len(widths) - 1)))
        worst = max(worst, equality.error)
        largest, least = max(largest, equality.log10_lower), min(least, equality.log10_lower)
    return {"theorem6.error": worst, "theorem6.largest": largest, "theorem6.least": least}


def _factors(settings: Settings) -> dict[str, float]:
    """Return the factor of one BatchNorm, all of whose inputs have the same deviation above 1."""
    variance = torch.full((settings["wide"],), settings["deviation"] ** 2, dtype=torch.float64)
    return {
        "factor.deviation": settings["deviation"],
        "factor.width": float(settings["wide"]),
        "factor.printed": lemma1(variance, settings["eps"]),
        "factor.largest entry": float((variance + settings["eps"]).rsqrt().max()),
    }


class _Skip(nn.Module):
    """`x + W x`, a residual block without its nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.utils.skip_init(nn.Linear, 2, 2, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.branch.weight.copy_(0.1 * torch.eye(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def _skip() -> dict[str, float]:
    network = _Skip().requires_grad_(False)
    bracket = lipschitz(network, torch.ones(1, 2, dtype=torch.float64))
    return {
        "skip.measured": bracket.lower,
        "skip.product": float(torch.linalg.matrix_norm(network.branch.weight, ord=2)),
    }


def _above(name: str, what: str) -> Judge:
    """Return a function that judges whether a product never falls below a Jacobian's norm."""

    def judge(figures: Figures) -> Judgement:
        excess = figures[f"{name}.least excess"]
        return judged(excess >= -MARGIN, f"{what} is at least {factor(excess)} times the largest Jacobian.")

    return judge


def _grouped(figures: Figures) -> Judgement:
    excess = {kind: figures[f"{kind}.least excess"] for kind in GROUPS}
    return judged(
        min(excess.values()) >= -MARGIN,
        f"With Lemma 3's constants the product is at least {factor(excess['group'])} times the largest Jacobian with "
        f"GroupNorm, and {factor(excess['instance'])} times with InstanceNorm.",
    )


def _theorem6(figures: Figures) -> Judgement:
    error, most, least = (figures[f"theorem6.{name}"] for name in ("error", "largest", "least"))
    return judged(
        error < ROUNDING,
        f"Constants from {factor(least)} to {factor(most)} are attained to {error:.1g} in networks of up to 20 layers.",
    )


def _reduction(figures: Figures) -> Judgement:
    printed, corrected = figures["factor.printed"], figures["factor.largest entry"]
    return judged(
        printed < 1.0,
        f"With {figures['factor.width']:.0f} inputs of deviation {figures['factor.deviation']:g} each, the printed "
        f"factor is {printed:.3g} and the largest entry {corrected:.3g}: in the l2 form it reduces only if the "
        "deviation is above the root of the width.",
        corrected=corrected < 1.0,
    )


def _reduction_of_layer_norm(figures: Figures) -> Judgement:
    fixed = figures["layer.least excess"]
    data = figures["layer.least excess with the deviations of data"]
    own = figures["layer.least excess at each input"]
    return by_convention(
        (fixed >= -MARGIN, own >= -MARGIN, data >= -MARGIN),
        f"With sigma as Lemma 2 defines it the product is at least {factor(fixed)} times the largest Jacobian; at each "
        f"input, with the deviations there, at least {factor(own)} times the Jacobian; with the mean deviations that "
        f"data have, as section 4.2 reads them off, {factor(data)} times the largest Jacobian.",
    )


def _skips(figures: Figures) -> Judgement:
    measured, product = figures["skip.measured"], figures["skip.product"]
    return Judgement(
        Verdict.MEASURED,
        f"x + 0.1 x has constant {measured:.4g}; the product of its weight norms is {product:.4g}.",
    )


def _slopes(figures: Figures) -> Judgement:
    named, gelu = figures["slopes.named"], figures["slopes.gelu"]
    return judged(
        named <= 1.0 + ROUNDING,
        f"The steepest of those that are named has {named:.6g}; GELU, which is not, has {gelu:.4g}.",
    )


NETWORKS = single(
    name="than.networks",
    title="Products over whole networks",
    about="Small ReLU networks in float64: the printed products beside the largest Jacobian at inputs of all sizes, "
    "and the networks of Theorem 6, whose constants are known.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        Claim(
            id="than.definition4",
            where="Definition 4, remark",
            text="ReLU, leaky ReLU, tanh, sigmoid and softmax have Lipschitz constants of at most 1.",
            quotation="Note that most popular activation functions (e.g., ReLU, Leaky ReLU, Tanh, Sigmoid, Softmax) "
            "have Lipschitz constants being at most 1.",
            judge=_slopes,
        ),
        Claim(
            id="than.lemma5",
            where="Lemma 5",
            text="The constant of a chain of layers is at most the product of its weight norms.",
            quotation=r"$\|\mathbf{h}, \mathbf{x}\|_{Lip} \leq P_w(\mathbf{h})$, for all $\mathbf{h} \in \mathcal{H}$ "
            r"defined in Definition 4, where $P_w(\mathbf{h}) = \prod_{k=1}^K \|\mathbf{W}_i\|$.",
            judge=_above("lemma5", "The product"),
        ),
        Claim(
            id="than.theorem6",
            where="Theorem 6",
            text="Some ReLU network has any product of admissible norms as its constant.",
            quotation=r"For any $a_i \in [0, s_i], i \leq K$, there exists a member $\mathbf{h}^* \in \mathcal{H}$ "
            r"satisfying $\|\mathbf{h}^*, \mathbf{x}\|_{Lip} = \prod_{k=1}^K a_k$.",
            judge=_theorem6,
        ),
        Claim(
            id="beyond.skips",
            where="the product that Remark 7 gives for ResNet18",
            text="The product of weight norms beside the constant of a block with a skip, as ResNet18 has them.",
            judge=_skips,
        ),
        Claim(
            id="than.theorem9",
            where="Theorem 9 and Corollary 10.1",
            text="With BatchNorm the constant is at most the product of weight norms and norms of 1/sigma.",
            quotation=r"$\|\mathbf{h}_{no}, \mathbf{x}\|_{Lip} \leq P_w(\mathbf{h}_{no}) \prod_{k=1}^K "
            r"\|\text{NO}_k\|_{Lip}$, for all $\mathbf{h}_{no} \in \mathcal{H}_{no}$ defined in Definition 8",
            judge=_above("batch", "The product"),
        ),
        Claim(
            id="than.theorem9.groups",
            where="Section 4.2, below Corollary 11",
            text="With GroupNorm and InstanceNorm too the constant is at most the product of weight norms and the "
            "normalizers' constants.",
            quotation="one can observe that BN and LN (and, by extension, GN and IN) share several theoretical "
            "properties",
            judge=_grouped,
        ),
        Claim(
            id="than.corollary10.2",
            where="Corollary 10.2",
            text="With BatchNorm the constant is at most sigma^-K times the product of weight norms.",
            quotation=r"$\|\mathbf{h}_{no}, \mathbf{x}\|_{Lip} \leq \sigma^{-K} P_w(\mathbf{h}_{no})$, where $\sigma "
            r"= \min_k \|1/\sigma_k\|^{-1}$.",
            judge=_above("batch2", "sigma^-K times the product of weight norms"),
        ),
        Claim(
            id="digest.reduction",
            where="Critical path 2",
            text="BatchNorm reduces the bound wherever the deviations of its inputs are above 1.",
            quotation="Verify variances grow >1 (required for exponential benefit)",
            corrected="With the exact constant, the largest 1/sigma, BatchNorm reduces the bound where every "
            "deviation is above 1; with the printed l2 norm it does where they are above the root of the width.",
            judge=_reduction,
        ),
        Claim(
            id="than.corollary11",
            where="Corollary 11",
            text="With LayerNorm the constant is at most the product of weight norms and of 1/sigma, sigma the least "
            "over all inputs.",
            quotation=r"Then $\|\mathbf{h}_{no}, \mathbf{x}\|_{Lip} \leq P_w(\mathbf{h}_{no}) \prod_{k=1}^K "
            r"\sigma_k^{-1}$.",
            judge=_above("layer", "The product"),
        ),
        Claim(
            id="than.corollary11.reduction",
            where="Section 4.2, potentially exponential reduction",
            text="LayerNorm reduces the constant by the product of 1/sigma, sigma being the deviations seen in "
            "training.",
            quotation=r"while Corollary 11 indicates that LN provides a reduction of order $O\left(\prod_{k=1}^K "
            r"1/\sigma_k\right)$",
            corrected="The Jacobian at an input is at most the product with the deviations at that input; the "
            "constant over all inputs has the least deviation over all inputs, sqrt(eps).",
            judge=_reduction_of_layer_norm,
        ),
    ),
)
