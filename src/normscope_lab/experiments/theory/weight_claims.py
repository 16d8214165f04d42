"""Than's claims about weights and the loss: Theorems 12, 13 and 15, and Corollary 14."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.report import factor
from normscope.theory import l1

from ...extremal import equality13, equality15, theorem13, theorem15
from ..base import Claim, Figures, Job, Judgement, Measured, Settings
from ..judging import ROUNDING, by_convention, judged, reaches
from ..single import single

SETTINGS: Settings = {"widths": (4, 6, 5, 3), "batch": 16, "draws": 20, "eps": 1e-5, "seed": 0}


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Measure constants with respect to weights on small networks and on the extremal ones of the theorems."""
    generator = torch.Generator().manual_seed(settings["seed"])
    return _extremal(generator) | _theorem12(settings, generator) | _l1() | _l1_of_normalized(settings, generator)


def _extremal(generator: torch.Generator) -> dict[str, float]:
    """Return how far the extremal networks deviate from the constants of the theorems."""
    inner, outer, printed, gradient, largest = 0.0, 0.0, 0.0, 0.0, -math.inf
    for widths, scales, layer in (
        ((3, 4, 2, 5), (3.0, 7.0), 1),
        ((6, 5, 4, 2, 3), (10.0, 0.1), 2),
        ((5, 9, 8, 8, 8), (1e3, 1e3, 1e3), 1),
    ):
        x = torch.randn(widths[0], generator=generator, dtype=torch.float64)
        one, other = equality13(theorem13(widths, scales, layer=layer), x)
        inner, outer, printed = max(inner, one.error), max(outer, other.error), max(printed, other.printed_error)
        network = theorem15(widths, scales, layer=layer, factor=2.0, activation=nn.Tanh())
        rows = torch.randn(12, widths[0], generator=generator, dtype=torch.float64)
        equality = equality15(network, lambda value: (value - 0.5).square(), rows)
        gradient = max(gradient, equality.error)
        plain = theorem15(widths, scales, layer=layer)
        largest = max(largest, equality15(plain, lambda value: value, rows).log10_lower)
    return {
        "theorem13.9 error": inner,
        "theorem13.8 error corrected": outer,
        "theorem13.8 error as printed": printed,
        "theorem15.error": gradient,
        "theorem15.largest gradient": largest,
    }


def _theorem12(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return the largest share of the bound that the derivative in a weight reaches.

    The derivative is that of the output at one sample of a batch, with fixed statistics and with those of the batch.
    Besides random networks there is one unit with the weight (1, 0) that reads (0.05, 1) at one sample and (t, -1) with
    small t at all others.
    """
    fixed, batch = 0.0, 0.0
    for _ in range(settings["draws"]):
        x = torch.randn(settings["batch"], settings["widths"][0], generator=generator, dtype=torch.float64)
        x[0] *= 8.0  # an outlier, whose own normalized values are large
        weights = [
            torch.randn(after, before, generator=generator, dtype=torch.float64) / before**0.5
            for before, after in zip(settings["widths"], settings["widths"][1:])
        ]
        statistics, values = [], x
        for weight in weights:
            total = values @ weight.T
            statistics.append((total.mean(0), (total.var(0, correction=0) + settings["eps"]).sqrt()))
            values = ((total - statistics[-1][0]) / statistics[-1][1]).relu()
        for layer in range(len(weights)):
            behind = [float(torch.linalg.matrix_norm(weight, ord=2)) for weight in weights[layer + 1 :]]
            constants = [float((1.0 / spread).norm()) for _, spread in statistics[layer:]]
            sizes = _before(x, weights[:layer], statistics)
            bound = float(sizes.norm(dim=1).max()) * math.prod(behind) * math.prod(constants)
            fixed = max(fixed, _slope(x, weights, layer, settings["eps"], statistics) / bound)
            batch = max(batch, _slope(x, weights, layer, settings["eps"], None) / bound)
    rest = torch.stack(
        (0.1 * torch.randn(settings["batch"], generator=generator).double(), -torch.ones(settings["batch"]))
    )
    x, weight = torch.cat((torch.tensor([[0.05, 1.0]]), rest.T)).double(), torch.tensor([[1.0, 0.0]]).double()
    total = x @ weight.T
    still = [(total.mean(0) - 1.0, (total.var(0, correction=0) + settings["eps"]).sqrt())]
    bound = float(x.norm(dim=1).max() / still[0][1])
    fixed = max(fixed, _slope(x, [weight], 0, settings["eps"], still) / bound)
    batch = max(batch, _slope(x, [weight], 0, settings["eps"], None) / bound)
    return {"theorem12.fixed statistics": fixed, "theorem12.batch statistics": batch}


def _before(x: Tensor, weights: list[Tensor], statistics: list[tuple[Tensor, Tensor]]) -> Tensor:
    for weight, (mean, spread) in zip(weights, statistics):
        x = ((x @ weight.T - mean) / spread).relu()
    return x


def _slope(
    x: Tensor, weights: list[Tensor], layer: int, eps: float, statistics: list[tuple[Tensor, Tensor]] | None
) -> float:
    """Return the largest norm, over samples, of the derivative of a sample's output in one weight."""

    def outputs(moved: Tensor) -> Tensor:
        values = x
        for index, weight in enumerate(weights):
            total = values @ (moved if index == layer else weight).T
            mean, spread = total.mean(0), (total.var(0, correction=0) + eps).sqrt()
            if statistics is not None:
                mean, spread = statistics[index]
            values = ((total - mean) / spread).relu()
        return values

    jacobian = torch.func.jacrev(outputs)(weights[layer]).flatten(2)
    return float(torch.linalg.matrix_norm(jacobian, ord=2).max())


def _l1() -> dict[str, float]:
    """Return the constant of the l1 loss of K outputs in a weight over that of the outputs themselves.

    The network is relu(a relu(W x)) at a positive `W x`, with a target far below, so that all signs are 1.
    """
    outputs, x = 9, torch.ones(4, dtype=torch.float64)

    def network(weight: Tensor) -> Tensor:
        return (3.0 * (weight @ x).relu()).relu()

    start = torch.ones(outputs, 4, dtype=torch.float64)
    of_outputs = torch.func.jacrev(network)(start).flatten(1)
    target = torch.zeros(1, outputs, dtype=torch.float64)
    of_loss = torch.func.grad(lambda weight: l1().rows(network(weight)[None], target)[0])(start)
    ratio = float(of_loss.norm() / torch.linalg.matrix_norm(of_outputs, ord=2))
    printed = 3.0 * float(x.norm())  # x has fewer entries than there are outputs, and is not truncated
    return {
        "corollary14.ratio": ratio,
        "corollary14.constant": l1().constant(outputs),
        "corollary14.outputs": outputs,
        "corollary14.11 measured": float(of_loss.norm()),
        "corollary14.11 as printed": printed,
        "corollary14.11 corrected": printed * l1().constant(outputs),
    }


def _l1_of_normalized(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return the slope of the l1 loss in the first weight of a BatchNorm network over equation (10), by size of x.

    The statistics are fixed, and the network is one ReLU layer behind a normalized one.
    """
    inputs, width, outputs = settings["widths"][0], settings["widths"][1], settings["widths"][-1]
    first = torch.randn(width, inputs, generator=generator, dtype=torch.float64)
    last = torch.randn(outputs, width, generator=generator, dtype=torch.float64)
    x = torch.randn(inputs, generator=generator, dtype=torch.float64)
    spreads = [torch.rand(size, generator=generator, dtype=torch.float64) + 0.5 for size in (width, outputs)]
    constants = math.prod(float((1.0 / one).norm()) for one in spreads)
    bound = float(torch.linalg.matrix_norm(last, ord=2)) * constants
    target = -torch.ones(1, outputs, dtype=torch.float64)
    shares = {}
    for size in (1.0, 1000.0):

        def loss(weight: Tensor, size: float = size) -> Tensor:
            hidden = ((weight @ (size * x)) / spreads[0]).relu()
            return l1().rows(((last @ hidden) / spreads[1]).relu()[None], target)[0]

        shares[size] = float(torch.func.grad(loss)(first).norm()) / bound
    return {
        "corollary14.10 share": shares[1.0],
        "corollary14.10 share at 1000 x": shares[1000.0],
        "corollary14.10 share corrected": shares[1.0] / (l1().constant(outputs) * float(x.norm())),
    }


def _theorem12_judge(figures: Figures) -> Judgement:
    fixed, batch = figures["theorem12.fixed statistics"], figures["theorem12.batch statistics"]
    return by_convention(
        (fixed <= 1.0 + ROUNDING, batch <= 1.0 + ROUNDING),
        f"With statistics held fixed the derivative {reaches(fixed, 'the bound')}; with those of the batch, which "
        f"the weight moves too, {batch:.3g}.",
    )


def _theorem13_8(figures: Figures) -> Judgement:
    printed, corrected = figures["theorem13.8 error as printed"], figures["theorem13.8 error corrected"]
    return judged(
        printed < ROUNDING,
        f"The printed constant is off by {printed:.3g} of the measured one; with the whole h_(i-1)(x) in place of the "
        f"truncated one by {corrected:.1g}.",
        corrected=corrected < ROUNDING,
    )


def _theorem13_9(figures: Figures) -> Judgement:
    error = figures["theorem13.9 error"]
    return judged(error < ROUNDING, f"The constant in y_i differs from the product by {error:.1g} of it.")


def _corollary14(figures: Figures) -> Judgement:
    ratio, constant = figures["corollary14.ratio"], figures["corollary14.constant"]
    return judged(
        ratio <= 1.0 + ROUNDING,
        f"With {figures['corollary14.outputs']:.0f} outputs the l1 loss is {ratio:.4g} times as steep in W_1 as the "
        f"outputs; its constant is the root of the number of outputs, {constant:.4g}.",
        corrected=ratio <= constant * (1.0 + ROUNDING),
    )


def _corollary14_10(figures: Figures) -> Judgement:
    near, far = figures["corollary14.10 share"], figures["corollary14.10 share at 1000 x"]
    corrected = figures["corollary14.10 share corrected"]
    return judged(
        far <= near * (1.0 + ROUNDING),
        f"The l1 loss is {near:.3g} times as steep in W_1 as the printed product at one input and {far:.3g} times at "
        f"1000 times that input: no constant does for all x. Over the product times sqrt(n) norm(h_(i-1)(x)) it is "
        f"{corrected:.3g}.",
        corrected=corrected <= 1.0 + ROUNDING,
    )


def _corollary14_11(figures: Figures) -> Judgement:
    measured, printed, corrected = (
        figures[f"corollary14.11 {name}"] for name in ("measured", "as printed", "corrected")
    )
    return judged(
        abs(printed / measured - 1.0) < ROUNDING,
        f"With {figures['corollary14.outputs']:.0f} outputs the l1 loss has slope {measured:.4g} in W_1; printed is "
        f"{printed:.4g}, and that times the root of the number of outputs is {corrected:.4g}.",
        corrected=abs(corrected / measured - 1.0) < ROUNDING,
    )


def _theorem15_judge(figures: Figures) -> Judgement:
    error, largest = figures["theorem15.error"], figures["theorem15.largest gradient"]
    return judged(
        error < ROUNDING,
        f"Gradients differ from equation 12 by {error:.1g} of their norm; the largest has norm {factor(largest)}.",
    )


WEIGHTS = single(
    name="than.weights",
    title="Constants with respect to weights, and of the loss",
    about="Derivatives in single weights of small BatchNorm networks, in float64, and the extremal networks of "
    "Theorems 13 and 15.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        Claim(
            id="than.theorem12",
            where="Theorem 12",
            text="The constant in W_i is at most the largest input of layer i times norms and normalizers from there "
            "on.",
            quotation=r"$\|\mathbf{h}_{no}, \mathbf{W}_i\|_{Lip} \leq A_{i-1} \|\mathbf{h}_{no}, \mathbf{y}_i\|_{Lip}$",
            corrected="The bound holds with statistics held fixed; with those of the batch the derivative in a weight "
            "also goes through the statistics.",
            judge=_theorem12_judge,
        ),
        Claim(
            id="than.theorem13.8",
            where="Theorem 13, equation (8)",
            text="Some network has in W_i the constant a_(i+1)...a_K times the norm of the truncated h_(i-1)(x).",
            quotation=r"$\|\mathbf{h}^*(\mathbf{x}), \mathbf{W}_i\|_{Lip} = a_{i+1} \cdots a_K \left\| "
            r"(\mathbf{h}_{i-1}(\mathbf{x}))^{(n_{i+1}, \dots, n_K)} \right\|, \forall \mathbf{x}$",
            corrected="The constant in W_i is a_(i+1)...a_K times the norm of the whole h_(i-1)(x).",
            judge=_theorem13_8,
        ),
        Claim(
            id="than.theorem13.9",
            where="Theorem 13, equation (9)",
            text="Some network has in y_i the constant a_(i+1)...a_K.",
            quotation=r"$\|\mathbf{h}^*, \mathbf{y}_i\|_{Lip} = a_{i+1} \cdots a_K$",
            judge=_theorem13_9,
        ),
        Claim(
            id="than.corollary14",
            where="Section 4.3, above Corollary 14",
            text="The l1 loss has in each weight the same constant as the outputs.",
            quotation=r"Observe that $\|f, \mathbf{W}_i\|_{Lip} = \|\mathbf{h}, \mathbf{W}_i\|_{Lip}$.",
            corrected="The l1 loss of n outputs is at most sqrt(n) times as steep in W_i as the outputs are.",
            judge=_corollary14,
        ),
        Claim(
            id="than.corollary14.10",
            where="Corollary 14, equation (10)",
            text="At any x the l1 loss of a normalized network has in W_i a constant of at most O(1) times the weight "
            "norms behind layer i and the normalizers' constants from it on.",
            quotation=r"$\|f(\mathbf{h}_{no}, \mathbf{x}), \mathbf{W}_i\|_{Lip} \leq O(b_{i+1}) \prod_{k=i}^K "
            r"\|\text{NO}_k\|_{Lip}$",
            corrected="The printed product times sqrt(n) norm(h_(i-1)(x)), for n outputs; the norm has no limit.",
            judge=_corollary14_10,
        ),
        Claim(
            id="than.corollary14.11",
            where="Corollary 14, equation (11)",
            text="The l1 loss of some network has in W_i the constant a_(i+1)...a_K times the norm of the truncated "
            "h_(i-1)(x).",
            quotation=r"$\|f(\mathbf{h}^*, \mathbf{x}), \mathbf{W}_i\|_{Lip} = a_{i+1} \cdots a_K \left\| "
            r"(\mathbf{h}_{i-1}(\mathbf{x}))^{(n_{i+1}, \dots, n_K)} \right\|$",
            corrected="It is sqrt(d) a_(i+1)...a_K times the norm of the whole h_(i-1)(x), d the least width behind "
            "layer i.",
            judge=_corollary14_11,
        ),
        Claim(
            id="than.theorem15",
            where="Theorem 15, equation (12)",
            text="Some network has gradients c a_K...a_(i+1) times a mean over the data, as large or small as one "
            "likes.",
            quotation=r"$\frac{\partial L(h^*, \mathbf{D})}{\partial \mathbf{W}_{it}} = \frac{ca_K \cdots a_{i+1}}{m} "
            r"\sum_{\mathbf{x} \in \mathbf{D}} \mathcal{I}_{it} \frac{\partial (f \circ g)}{\partial u} "
            r"\Big|_{u=u(\mathbf{x})} (\mathbf{h}_{i-1}(\mathbf{x}))^\top$",
            judge=_theorem15_judge,
        ),
    ),
)
