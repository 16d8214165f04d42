"""Akbar, sections 3.2 and 4: invariances of normalized networks, their gradients, and the Fisher information."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import symmetries

from ..base import Claim, Figures, Job, Judgement, Measured, Settings
from ..judging import Judge, judged
from ..single import single

SETTINGS: Settings = {"inputs": 4, "width": 6, "batch": 16, "eps": 1e-5, "no eps": 1e-13, "factor": 3.0, "seed": 0}
HELD = 1e-8
"""A relative change below this counts as rounding, also of second derivatives in float64."""
CHANGE = "Three times the weights and biases change the output, of itself, by"


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Scale weights in front of each normalizer, and compare gradients with the printed formulas."""
    generator = torch.Generator().manual_seed(settings["seed"])
    x = torch.randn(settings["batch"], settings["inputs"], generator=generator, dtype=torch.float64)
    summary: dict[str, float] = {}
    for kind in ("batch", "layer"):
        for label, eps in (("eps", settings["eps"]), ("no eps", settings["no eps"])):
            network = _network(settings, kind, eps, generator)
            summary |= {f"{kind}.{label}.{name}": value for name, value in _scaled(network, x, settings).items()}
        small = _network(settings, kind, settings["eps"], generator)
        with torch.no_grad():
            for parameter in small[0].parameters():
                parameter.mul_(1e-2)
        summary |= {f"{kind}.small weights.{name}": value for name, value in _scaled(small, x, settings).items()}
    still = _network(settings, "batch", settings["eps"], generator).eval()
    summary |= {f"batch.eval.{name}": value for name, value in _scaled(still, x, settings).items()}
    summary |= _counts(settings, x, generator) | _weight_norm(settings, x, generator) | _gradients(generator)
    summary |= _smaller_gamma(_network(settings, "batch", settings["no eps"], generator), x, settings["factor"])
    return summary | _metric(settings, generator) | _through_statistics(generator) | _strict_saddle(generator)


def _network(settings: Settings, kind: str, eps: float, generator: torch.Generator) -> nn.Sequential:
    width, first = settings["width"], nn.utils.skip_init(nn.Linear, settings["inputs"], settings["width"])
    norm = nn.BatchNorm1d(width, eps=eps) if kind == "batch" else nn.LayerNorm(width, eps=eps)
    network = nn.Sequential(first, norm, nn.Tanh(), nn.utils.skip_init(nn.Linear, width, 2)).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=generator)
    return network


def _scaled(network: nn.Sequential, x: Tensor, settings: Settings) -> dict[str, float]:
    """Return how the output, the gradient and the Hessian change when the first layer's weights and biases scale."""
    factor, weight, bias = settings["factor"], network[0].weight, network[0].bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    start = torch.cat((weight.detach().flatten(), bias.detach()))
    size = weight.numel()
    network.requires_grad_(False)

    def output(flat_weights: Tensor) -> Tensor:
        moved = {"0.weight": flat_weights[:size].view_as(weight), "0.bias": flat_weights[size:]}
        frozen = {name: buffer.clone() for name, buffer in network.named_buffers()}
        outputs: Tensor = torch.func.functional_call(network, moved | frozen, (x,))
        return outputs

    def loss(flat_weights: Tensor) -> Tensor:
        return output(flat_weights).square().mean() + output(flat_weights).sum() / len(x)

    gradient: Callable[[Tensor], Tensor] = torch.func.grad(loss)
    before, after = output(start), output(factor * start)
    slope, scaled = gradient(start), gradient(factor * start)
    hessian: Callable[[Tensor], Tensor] = torch.func.hessian(loss)
    curved = hessian(start)
    return {
        "change": float((after - before).detach().norm() / before.detach().norm()),
        "radial": abs(float(start @ slope)) / float(start.norm() * slope.norm()),
        "gradient": float((factor * scaled - slope).norm() / slope.norm()),
        "hessian": float((curved @ start + slope).norm() / slope.norm()),
        "curvature": float((factor**2 * hessian(factor * start) - curved).norm() / curved.norm()),
        "null": float((curved @ start).norm() / (curved.norm() * start.norm())),
    }


def _counts(settings: Settings, x: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Return the degrees of freedom of the symmetries in front of both normalizers, and the Fisher information."""
    summary: dict[str, float] = {}
    fisher = 0.0
    for kind in ("batch", "layer"):
        network = _network(settings, kind, settings["eps"], generator)
        rows = [row for row in symmetries(network, x, mode="train").verified if row.normalizer]
        printed = (
            2 * settings["width"] if kind == "batch" else 2
        )  # a scale and a shift, for each channel or for all of them
        summary[f"table1.{kind} beyond"] = float(sum(row.dof for row in rows) - printed)
        fisher = max(fisher, *(row.evidence.fisher_no_eps or 0.0 for row in rows))
    return summary | {"fisher.along symmetries": fisher}


def _weight_norm(settings: Settings, x: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Return how the printed symmetry of weight normalization changes the weight, and the gradients along it."""
    factor = settings["factor"]
    v, g = torch.randn(settings["inputs"], generator=generator, dtype=torch.float64), torch.tensor(1.7).double()
    target = torch.randn(len(x), generator=generator, dtype=torch.float64)

    def weight(v: Tensor, g: Tensor) -> Tensor:
        return g / v.norm() * v

    def loss(v: Tensor, g: Tensor) -> Tensor:
        return (x @ weight(v, g) - target).square().mean()

    of_v, of_g = torch.func.grad(loss, argnums=(0, 1))(v, g)
    size = float(weight(v, g).norm())
    return {
        "weight norm.change as printed": float((weight(factor * v, g / factor) - weight(v, g)).norm()) / size,
        "weight norm.change with g fixed": float((weight(factor * v, g) - weight(v, g)).norm()) / size,
        "weight norm.part along (v, -g)": abs(float(of_v @ v - g * of_g)) / abs(float(g * of_g)),
        "weight norm.part along v": abs(float(of_v @ v)) / float(of_v.norm() * v.norm()),
    }


def _gradients(generator: torch.Generator) -> dict[str, float]:
    """Return how far the printed gradients of both normalizers are from automatic differentiation."""
    rows, columns = 8, 5
    z = torch.randn(rows, columns, generator=generator, dtype=torch.float64, requires_grad=True)
    delta = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    scale = torch.rand(columns, generator=generator, dtype=torch.float64) + 0.5
    summary: dict[str, float] = {}
    for kind, axis in (("batch", 0), ("layer", 1)):
        value = (
            F.batch_norm(z, None, None, scale, training=True, eps=1e-5)
            if kind == "batch"
            else F.layer_norm(z, (columns,), scale, eps=1e-5)
        )
        (true,) = torch.autograd.grad((delta * value).sum(), z)
        size = true.norm()
        printed = _form(z.detach(), delta, axis, index=kind == "batch")
        corrected = _form(z.detach(), scale * delta, axis, index=True)
        summary[f"gradient.{kind} as printed"] = float((printed - true).norm() / size)
        summary[f"gradient.{kind} corrected"] = float((corrected - true).norm() / size)
    return summary


def _form(z: Tensor, delta: Tensor, axis: int, *, index: bool) -> Tensor:
    """Return the printed gradient in front of a normalizer over an axis; without `index` zhat is summed as well."""
    spread = (z.var(axis, correction=0, keepdim=True) + 1e-5).sqrt()
    hat = (z - z.mean(axis, keepdim=True)) / spread
    turned = hat * (delta * hat).mean(axis, keepdim=True) if index else (hat * delta * hat).mean(axis, keepdim=True)
    return (delta - delta.mean(axis, keepdim=True) - turned) / spread


def _smaller_gamma(network: nn.Sequential, x: Tensor, factor: float) -> dict[str, float]:
    """Return how the output changes when weights and biases grow, and gamma shrinks, by one factor."""
    with torch.no_grad():
        before = network(x)
        for parameter in network[0].parameters():
            parameter.mul_(factor)
        grown = network(x)
        gamma = network[1].weight
        assert isinstance(gamma, Tensor)
        gamma.div_(factor)
        after = network(x)
    changes = {"gamma.change as printed": after, "gamma.change with gamma as it was": grown}
    return {name: float((one - before).norm() / before.norm()) for name, one in changes.items()}


def _metric(settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return how far the printed metric of the weights moves when a weight and both directions are scaled."""
    y, one, other = torch.randn(3, settings["inputs"], generator=generator, dtype=torch.float64)
    factor = settings["factor"]
    metric, scaled = one @ other / (y @ y), (factor * one) @ (factor * other) / ((factor * y) @ (factor * y))
    return {"metric.change": float((scaled / metric - 1.0).abs())}


def _through_statistics(generator: torch.Generator) -> dict[str, float]:
    """Return how far appendix A.1's derivative and Hessian of BatchNorm are from automatic differentiation."""
    count, gamma = 8, 1.7
    z = torch.randn(count, generator=generator, dtype=torch.float64)
    one, mean, spread = torch.ones(count, count, dtype=torch.float64) / count, z.mean(), z.std(correction=0)
    unit, hat = torch.eye(count, dtype=torch.float64), (z - mean) / spread
    turned = torch.outer(hat, hat)

    def normalize(values: Tensor) -> Tensor:
        return (values - values.mean()) / values.std(correction=0)

    def loss(values: Tensor) -> Tensor:
        return (gamma * (normalize(values) - hat)).square().sum() / 2.0  # every sample is fitted at z

    derivative: Tensor = torch.func.jacrev(normalize)(z)
    hessian: Tensor = torch.func.hessian(loss)(z)
    size = (gamma / spread) ** 2
    eigenvalues = torch.linalg.eigvalsh(hessian) / size
    expected = torch.cat((torch.zeros(2), torch.ones(count - 2))).double()
    forms = {
        "A.1.1 as printed": (derivative, (unit - one - turned) / spread),
        "A.1.1 corrected": (derivative, (unit - one - turned / count) / spread),
        "A.1.2 as printed": (hessian, size * (unit - one - turned + unit / count)),
        "A.1.2 corrected": (hessian, size * (unit - one - turned / count)),
    }
    errors = {name: float((form - true).norm() / true.norm()) for name, (true, form) in forms.items()}
    return errors | {"A.1.2 spectrum": float((eigenvalues - expected).abs().max())}


def _strict_saddle(generator: torch.Generator) -> dict[str, float]:
    """Return what a chain of five linear layers with BatchNorm has at a point where its output is constant.

    The last weights are 0, and each row of the first is uncorrelated with the target, so that all units are.
    """
    width, samples, layers = 6, 64, 4
    x = torch.randn(samples, width, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(width, generator=generator, dtype=torch.float64)
    x, y = x - x.mean(0), y - y.mean()
    rows = torch.randn(layers, width, width, generator=generator, dtype=torch.float64)
    toward = F.normalize(x.T @ y, dim=0)
    rows[0] -= torch.outer(rows[0] @ toward, toward)
    start = torch.cat((rows.flatten(), torch.zeros(width, dtype=torch.float64)))

    def loss(flat: Tensor) -> Tensor:
        values = x
        for weight in flat[:-width].view_as(rows):
            total = values @ weight.T
            values = (total - total.mean(0)) / total.std(0, correction=0)
        return (values @ flat[-width:] - y).square().mean()

    gradient: Tensor = torch.func.grad(loss)(start)
    hessian: Tensor = torch.func.hessian(loss)(start)
    eigenvalues = torch.linalg.eigvalsh(hessian)
    return {
        "saddle.gradient": float(gradient.norm() / y.square().mean()),
        "saddle.least eigenvalue": float(eigenvalues[0]),
        "saddle.largest eigenvalue": float(eigenvalues[-1]),
        "saddle.loss over the variance": float(loss(start) / y.square().mean()),
    }


def _without_eps(kind: str, name: str, what: str, *, still: bool = False) -> Judge:
    """Return a function that judges a statement whose sigma contains eps, and is derived as if it did not."""

    def judge(figures: Figures) -> Judgement:
        none, usual, small = (figures[f"{kind}.{case}.{name}"] for case in ("no eps", "eps", "small weights"))
        evidence = (
            f"{what} {none:.1g} without eps, {usual:.1g} with the usual eps and {small:.2g} where weights are small"
        )
        fixed = (
            f"; in eval mode, of which the proof does not speak, {figures[f'{kind}.eval.{name}']:.2g}" if still else ""
        )
        return judged(max(usual, small) < HELD, f"{evidence} beside it{fixed}.", corrected=none < HELD)

    return judge


def _derivative(figures: Figures) -> Judgement:
    printed, corrected = figures["A.1.1 as printed"], figures["A.1.1 corrected"]
    return judged(
        printed < HELD,
        f"The printed derivative is off by {printed:.3g} of the true one; with 1/m in its last term by "
        f"{corrected:.1g}.",
        corrected=corrected < HELD,
    )


def _gamma(figures: Figures) -> Judgement:
    printed, kept = figures["gamma.change as printed"], figures["gamma.change with gamma as it was"]
    return judged(
        printed < HELD,
        f"Three times the weights and a third of gamma change the output by {printed:.2g} of itself; with gamma as it "
        f"was, by {kept:.1g}.",
        corrected=kept < HELD,
    )


def _scale_free_metric(figures: Figures) -> Judgement:
    change = figures["metric.change"]
    return judged(change < HELD, f"It moves by {change:.1g} of itself when all three vectors are three times as long.")


def _kept_length(figures: Figures) -> Judgement:
    part, along = figures["weight norm.part along (v, -g)"], figures["weight norm.part along v"]
    return judged(
        along < HELD,
        f"The cosine of v and its gradient is {along:.1g}, so that gradient flow keeps its norm. The printed reason is "
        f"not so: the gradient's part along (v, -g) is {part:.3g} of g dL/dg.",
    )


def _matrix(figures: Figures) -> Judgement:
    printed, corrected = figures["A.1.2 as printed"], figures["A.1.2 corrected"]
    return judged(
        printed < HELD,
        f"The printed matrix is off by {printed:.3g} of the Hessian; with zhat zhat^T/m and without the last term by "
        f"{corrected:.1g}.",
        corrected=corrected < HELD,
    )


def _spectrum(figures: Figures) -> Judgement:
    error = figures["A.1.2 spectrum"]
    return judged(
        error < HELD,
        f"With gamma held fixed two eigenvalues are 0 and the others gamma^2/sigma^2, to {error:.1g} of that: it "
        "need not adjust.",
    )


def _saddle(figures: Figures) -> Judgement:
    gradient, least, largest, loss = (
        figures[f"saddle.{name}"]
        for name in ("gradient", "least eigenvalue", "largest eigenvalue", "loss over the variance")
    )
    return judged(
        not (gradient < HELD and least < -HELD * largest and loss > HELD),
        f"A chain 6-6-6-6-6-1 with BatchNorm whose last weights are 0 and whose first rows are uncorrelated with the "
        f"target has a gradient of {gradient:.1g}, a loss of {loss:.3g} of the variance, and a Hessian with "
        f"eigenvalues from {least:.3g} to {largest:.3g}: a strict saddle.",
    )


def _proposition43(figures: Figures) -> Judgement:
    printed, fixed = figures["weight norm.change as printed"], figures["weight norm.change with g fixed"]
    return judged(
        printed < HELD,
        f"(3 v, g/3) changes the weight by {printed:.3g} of itself; (3 v, g), by {fixed:.1g}.",
        corrected=fixed < HELD,
    )


def _section43(figures: Figures) -> Judgement:
    part, along = figures["weight norm.part along (v, -g)"], figures["weight norm.part along v"]
    return judged(
        part < HELD,
        f"The gradient's part along (v, -g) is {part:.3g} of g dL/dg; along (v, 0) it is {along:.1g}.",
        corrected=along < HELD,
    )


def _table1(figures: Figures) -> Judgement:
    batch, layer = figures["table1.batch beyond"], figures["table1.layer beyond"]
    return judged(
        batch == 0.0 and layer == 0.0,
        f"Beyond the printed ones BatchNorm has {batch:.0f} and LayerNorm {layer:.0f} degrees of freedom in front of "
        "it: adding one vector to every row of the weight changes nothing in front of a LayerNorm either.",
        corrected=min(batch, layer) >= 0.0,
    )


def _equation1(figures: Figures) -> Judgement:
    printed, corrected = figures["gradient.batch as printed"], figures["gradient.batch corrected"]
    return judged(
        printed < HELD,
        f"The printed gradient is off by {printed:.3g} of the true one; with gamma as a factor by {corrected:.1g}.",
        corrected=corrected < HELD,
    )


def _layer_gradient(figures: Figures) -> Judgement:
    printed, corrected = figures["gradient.layer as printed"], figures["gradient.layer corrected"]
    return judged(
        printed < HELD,
        f"With the summed index on zhat, as printed, it is off by {printed:.3g} of the true one; with zhat_i and gamma "
        f"by {corrected:.1g}.",
        corrected=corrected < HELD,
    )


def _fisher(figures: Figures) -> Judgement:
    share = figures["fisher.along symmetries"]
    return judged(
        share < HELD, f"Along verified symmetries it is at most {share:.1g} of that along a direction by chance."
    )


def _flat(figures: Figures) -> Judgement:
    null, identity_error = figures["batch.no eps.null"], figures["batch.no eps.hessian"]
    return judged(
        null < HELD,
        f"Away from critical points H w is {null:.2g} of norm(H) norm(w) and not 0; "
        f"H w = -grad holds to {identity_error:.1g}.",
        corrected=identity_error < 1e3 * HELD,
    )


SYMMETRIES = single(
    name="akbar.symmetries",
    title="Invariances and gradients of normalized networks",
    about="A small network with each normalizer in float64: its weights are scaled, its gradients compared with the "
    "printed formulas, and its symmetries found and verified by `normscope.symmetries`.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        Claim(
            id="akbar.equation1",
            where="Equation (1)",
            text="The gradient in front of BatchNorm is (1/(m sigma)) (m delta - sum delta - zhat sum delta zhat), "
            "delta the gradient at its output.",
            quotation=r"$\frac{\partial \mathcal{L}}{\partial z_i(x_n)} = \frac{1}{m \sigma_i} \left[m \delta_i(x_n) "
            r"- \sum_{k \in B} \delta_i(x_k) - \hat{z}_i(x_n) \sum_{k \in B} \delta_i(x_k) \hat{z}_i(x_k) \right]$",
            corrected="The printed formula times gamma_i, as appendix A.1.1 has it.",
            judge=_equation1,
        ),
        Claim(
            id="akbar.equation1.layer-norm",
            where="Section 3.2, Layer Norm",
            text="The gradient in front of LayerNorm is that formula with sums over neurons.",
            quotation=r"$\frac{1}{d_l \sigma(x_n)} \left[d_l \delta_i(x_n) - \sum_{j=1}^{d_l} \delta_j(x_n) - "
            r"\hat{z}_j(x_n) \sum_{j=1}^{d_l} \delta_j(x_n) \hat{z}_j(x_n) \right]$",
            corrected="The formula with zhat_i in front of the last sum, and gamma_j delta_j in place of delta_j.",
            judge=_layer_gradient,
        ),
        Claim(
            id="akbar.3.2.inverse",
            where="Section 3.2",
            text="The gradient in front of BatchNorm is inversely proportional to the scale of the weights.",
            quotation="BN causes the gradient w.r.t weights to be inversely proportional to the input scale",
            corrected="So it is without eps; where the variance is not large beside eps it is not.",
            judge=_without_eps("batch", "gradient", "At three times the weights the gradient is a third, to"),
        ),
        Claim(
            id="akbar.3.2.hessian",
            where="Section 3.2, Hessian; section 6",
            text="Along an invariance direction the Hessian has eigenvalue 0.",
            quotation="(assuming perfect invariance, the loss is flat, Hessian eigenvalue 0)",
            corrected="w^T H w = 0 everywhere; H w = -grad, so that w is an eigenvector with eigenvalue 0 at critical "
            "points alone.",
            judge=_flat,
        ),
        Claim(
            id="akbar.4.1",
            where="Proposition 4.1 (second version)",
            text="In train mode, sigma containing eps as in section 3.2, scaling weights and bias in front of "
            "BatchNorm leaves the network's output unchanged.",
            quotation="scaling the weights and bias of that layer by any positive factor c leaves the output of the "
            "network (hence the loss) unchanged",
            corrected="So it is in train mode without eps; with eps the output moves where the variance is not large "
            "beside eps, and with fixed statistics it moves.",
            judge=_without_eps("batch", "change", CHANGE, still=True),
        ),
        Claim(
            id="akbar.4.1.1",
            where="Corollary 4.1.1",
            text="In train mode the gradient is orthogonal to weights and bias in front of BatchNorm.",
            quotation="The gradient of the loss with respect to the parameters of layer l in a BN network is "
            "orthogonal to the direction corresponding to simultaneous scaling of $(W^{(l)}, b^{(l)})$.",
            corrected="So it is in train mode without eps.",
            judge=_without_eps("batch", "radial", "The cosine of weights and gradient is", still=True),
        ),
        Claim(
            id="akbar.4.2",
            where="Proposition 4.2",
            text="Sigma containing eps as in the proof, scaling weights and bias in front of LayerNorm leaves "
            "the output unchanged for any input.",
            quotation="Scaling the weight matrix $W^{(l)}$ and bias $b^{(l)}$ of that layer by any constant $c > 0$ "
            "leaves the output of the network unchanged (for any input, in exact arithmetic).",
            corrected="So it is without eps; with eps the output moves where the variance is not large beside eps.",
            judge=_without_eps("layer", "change", CHANGE),
        ),
        Claim(
            id="akbar.4.3",
            where="Proposition 4.3",
            text="Weight normalization is invariant to (alpha v, g/alpha).",
            quotation=r"Thus the network function (and loss) is invariant under $(v, g) \rightarrow (\alpha v, "
            r"g/\alpha)$ for any $\alpha > 0$.",
            corrected="It is invariant under (alpha v, g): g stays.",
            judge=_proposition43,
        ),
        Claim(
            id="akbar.4.3.gradient",
            where="Section 4.3",
            text="With weight normalization the gradient is orthogonal to (v, -g).",
            quotation="The direction $(v, -g)$ in (v, g) space yields no loss change, so gradient is orth to that",
            corrected="The gradient is orthogonal to (v, 0).",
            judge=_section43,
        ),
        Claim(
            id="akbar.2.1",
            where="Section 2.1; proposition 4.1 (first version)",
            text="Weights in front of BatchNorm times a factor, and gamma over it, leave the output unchanged.",
            quotation="if one multiplies the weights feeding into a BN layer by some factor and divides the BN scaling "
            "parameter ... by the same factor, the output of the network remains unchanged",
            corrected="Gamma stays as it is, as the second version of proposition 4.1 says.",
            judge=_gamma,
        ),
        Claim(
            id="akbar.4.1.metric",
            where="Section 4.1, metric tensor",
            text="The metric d1.d2/y.y is unchanged when y, d1 and d2 are scaled by one factor.",
            quotation=r"which indeed satisfies $g_{ky}(k\Delta_1, k\Delta_2) = g_y(\Delta_1, \Delta_2)$",
            judge=_scale_free_metric,
        ),
        Claim(
            id="akbar.5.1.weight-norm",
            where="Section 5.1, below lemma 5.1",
            text="With weight normalization gradient flow conserves the norm of v.",
            quotation=r"In weight normalization, one can show $\frac{d}{dt}\|v\|^2 = 0$ (so the norm of v stays "
            r"constant) because of the analogous orthogonality of gradient to $(v, -g)$ direction.",
            judge=_kept_length,
        ),
        Claim(
            id="akbar.A.1.1",
            where="Appendix A.1.1",
            text="The derivative of BatchNorm's output n in its input k is delta_nk/sigma - 1/(m sigma) - (z_n - mu)"
            "(z_k - mu)/sigma^3.",
            quotation=r"$\frac{1}{\sigma_i} \delta_{nk} - \frac{1}{m \sigma_i} - \frac{(z_i(x_n) - \mu_i)}{\sigma_i^3} "
            r"(z_i(x_k) - \mu_i)$",
            corrected="The last term is divided by m, as it is in the formula that the appendix ends with.",
            judge=_derivative,
        ),
        Claim(
            id="akbar.A.1.2.matrix",
            where="Appendix A.1.2",
            text="Where every sample is fitted the Hessian in z is (gamma^2/sigma^2)(I - 11^T/m - zhat zhat^T + I/m).",
            quotation=r"this Hessian (with respect to z vector of length m) is $\frac{\gamma_i^2}{\sigma_i^2}(I - "
            r"\frac{1}{m}\mathbf{1}\mathbf{1}^T - \hat{z}\hat{z}^T + \frac{1}{m}I)$",
            corrected="It is (gamma^2/sigma^2)(I - 11^T/m - zhat zhat^T/m).",
            judge=_matrix,
        ),
        Claim(
            id="akbar.A.1.2.spectrum",
            where="Appendix A.1.2",
            text="Two eigenvalues of that Hessian are 0, and m - 2 are gamma^2/sigma^2.",
            quotation="Thus final Hessian eigenvalues: one zero from bias shift, one zero from weight scaling (with "
            "gamma adjusting), and $m - 2$ equal",
            judge=_spectrum,
        ),
        Claim(
            id="akbar.7.1.saddles",
            where="Section 7.1",
            text="A deep linear network with BatchNorm has no saddles.",
            quotation="in deep linear networks, which have saddle points, adding BN eliminates the pathological "
            "saddles, enabling global convergence",
            corrected="There are strict saddles with BatchNorm too; gradient descent from random weights leaves them.",
            judge=_saddle,
        ),
        Claim(
            id="akbar.table1",
            where="Table 1",
            text="BatchNorm has one scale and one shift per neuron, LayerNorm one of each per layer.",
            quotation=r"$(W, b) \rightarrow (c W, c b)$ 1 (scale) + 1 (common shift)",
            corrected="In front of LayerNorm the bias and each column of the weight have a common shift of their own: "
            "1 (scale) + 1 for each input + 1.",
            judge=_table1,
        ),
        Claim(
            id="akbar.4.curvature",
            where="Section 4, curvature",
            text="The curvature in directions of the weight falls as 1/r^2 with its norm r.",
            quotation="So if r increases, the curvature in actual weight coordinates goes down by factor $1/r^2$.",
            corrected="So it is without eps; where the variance is not large beside eps it is not.",
            judge=_without_eps("batch", "curvature", "At three times the weights the Hessian is a ninth, to"),
        ),
        Claim(
            id="akbar.4.fisher",
            where="Section 4, natural gradient",
            text="The Fisher information has a null space along the symmetries.",
            quotation="scaling weights doesn't change distribution because BN normalizes anyway, so likely the FIM "
            "has a null space in those directions",
            judge=_fisher,
        ),
    ),
)
