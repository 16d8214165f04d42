"""Akbar, the sketch of a bound in section 7.2, and what section 9 says of normalizers that algebra decides."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..base import Figures, Job, Judgement, Measured, Settings
from ..judging import ROUNDING, judged
from ..single import single
from .propositions import HELD
from .shared import remark

SETTINGS: Settings = {"inputs": 6, "width": 8, "samples": 64, "batch": 8, "eps": 1e-13, "factor": 0.01, "seed": 0}
CLEAR = 1e-3
"""A part of a vector or a change of outputs above this is no rounding."""


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Compute each statement on a small network in float64, without eps where none is named."""
    generator = torch.Generator().manual_seed(settings["seed"])
    x = torch.randn(settings["samples"], settings["inputs"], generator=generator, dtype=torch.float64)
    y = torch.randn(settings["samples"], 1, generator=generator, dtype=torch.float64)
    network = _network(settings, generator)
    return {
        **_biases(network, x),
        **_scales(network, x, y, settings),
        **_samples(network, x, settings),
        **_momentum(network, x, y),
        **_whitening(x, generator),
        **_contrast(generator),
        **_sketch(network, x, settings, generator),
    }


def _network(settings: Settings, generator: torch.Generator) -> nn.Sequential:
    """Return a network with one BatchNorm, and normal weights and biases."""
    width = settings["width"]
    network = nn.Sequential(
        nn.Linear(settings["inputs"], width), nn.BatchNorm1d(width, eps=settings["eps"]), nn.Tanh(), nn.Linear(width, 1)
    ).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=generator)
    return network


def _rescaled(network: nn.Sequential, factor: float) -> nn.Sequential:
    """Return a copy whose weights and biases in front of BatchNorm are multiplied by a factor."""
    made = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in made[0].parameters():
            parameter.mul_(factor)
    return made


def _change(after: Tensor, before: Tensor) -> float:
    return float((after - before).detach().norm() / before.detach().norm())


def _biases(network: nn.Sequential, x: Tensor) -> dict[str, float]:
    """Return how much the outputs move when the bias in front of BatchNorm goes, in train and in eval mode."""
    calibrated, without = copy.deepcopy(network), copy.deepcopy(network)
    for one in (calibrated, without):
        norm = one[1]
        assert isinstance(norm, nn.BatchNorm1d)
        norm.momentum = None  # running statistics are those of all samples
    with torch.no_grad():
        without[0].bias.zero_()  # type: ignore[operator]
        train = _change(without(x), calibrated(x))
        return {"bias.train": train, "bias.eval": _change(without.eval()(x), calibrated.eval()(x))}


def _scales(network: nn.Sequential, x: Tensor, y: Tensor, settings: Settings) -> dict[str, float]:
    """Return how the gradient, the loss and the penalty of decay change with the weights in front of BatchNorm."""

    def state(one: nn.Sequential) -> tuple[float, float, float]:
        loss = F.mse_loss(one(x), y)
        weight = one[0].weight
        assert isinstance(weight, Tensor)
        (slope,) = torch.autograd.grad(loss, [weight])
        penalty = sum(float(parameter.detach().square().sum()) for parameter in one[0].parameters())
        return float(loss.detach()), float(slope.norm()), penalty

    (loss, slope, penalty), (other, steeper, less) = state(network), state(_rescaled(network, settings["factor"]))
    batches = [
        _change(_rescaled(network, settings["factor"])(rows), network(rows)) for rows in x.split(settings["batch"])
    ]
    return {
        "scale.factor": settings["factor"],
        "scale.loss": abs(other - loss) / loss,
        "scale.gradient": steeper / slope,
        "scale.penalty": less / penalty,
        "scale.batches": max(batches),
    }


def _samples(network: nn.Sequential, x: Tensor, settings: Settings) -> dict[str, float]:
    """Return how much one sample's values depend on the other samples of its batch, by normalizer and mode."""
    width, first = settings["width"], network[0]
    norms: dict[str, nn.Module] = {
        "batch": nn.Sequential(first, nn.BatchNorm1d(width, eps=settings["eps"])),
        "layer": nn.Sequential(first, nn.LayerNorm(width, eps=settings["eps"])),
        "weight": nn.utils.parametrizations.weight_norm(copy.deepcopy(first)),
    }
    summary: dict[str, float] = {}
    for name, module in norms.items():
        module.double().train()
        batches = [torch.cat((x[:1], rows)) for rows in x[1:].split(settings["batch"])[:4]]
        with torch.no_grad():
            seen = [module(rows)[0] for rows in batches]
            deviations = module(x).std(0, correction=0)
        summary[f"{name}.batches"] = max(_change(one, seen[0]) for one in seen)
        summary[f"{name}.deviation"] = float((deviations - 1.0).abs().max())
    with torch.no_grad():
        alone = norms["layer"](x[:1])
        summary["layer.alone"] = _change(norms["layer"](x)[:1], alone)
    for mode, leaks in (("train", True), ("eval", False)):
        rows = x[: settings["batch"]].clone().requires_grad_(True)
        (slopes,) = torch.autograd.grad(copy.deepcopy(network).train(leaks)(rows)[0].sum(), [rows])
        summary[f"leak.{mode}"] = float(slopes[1:].norm() / slopes[0].norm())
    return summary


def _momentum(network: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return the radial part of gradients and of momentum's steps, at their largest over a short run."""
    made = copy.deepcopy(network)
    made[0].register_parameter("bias", None)
    weight = made[0].weight
    assert isinstance(weight, Tensor)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    radial = {"momentum.gradient": 0.0, "momentum.step": 0.0}
    for _ in range(20):
        optimizer.zero_grad()
        F.mse_loss(made(x), y).backward()
        assert weight.grad is not None
        optimizer_steps = {"momentum.gradient": weight.grad.clone()}
        before = weight.detach().clone()
        optimizer.step()
        optimizer_steps["momentum.step"] = weight.detach() - before
        for name, one in optimizer_steps.items():
            radial[name] = max(radial[name], float((one * before).sum().abs() / (one.norm() * before.norm())))
    return radial


def _whitening(x: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Return how features that are whitened (ZCA) change with maps in front of it, and how they are conditioned."""
    size = x.shape[1]
    mixed = x @ torch.randn(size, size, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    roots, vectors = torch.linalg.eigh(torch.cov(mixed.T, correction=0))
    along = vectors @ torch.diag(roots.sqrt()) @ vectors.T  # commutes with the covariance
    whitened = _white(mixed)
    return {
        "whitening.turned": _change(_white(mixed @ turn), whitened),
        "whitening.turned back": _change(_white(mixed @ turn) @ turn.T, whitened),
        "whitening.along": _change(_white(mixed @ along), whitened),
        "condition.raw": _condition(mixed),
        "condition.standardized": _condition((mixed - mixed.mean(0)) / mixed.std(0, correction=0)),
        "condition.whitened": _condition(whitened),
    }


def _white(features: Tensor) -> Tensor:
    roots, vectors = torch.linalg.eigh(torch.cov(features.T, correction=0))
    return (features - features.mean(0)) @ vectors @ torch.diag(roots.rsqrt()) @ vectors.T


def _condition(features: Tensor) -> float:
    return float(torch.linalg.cond(torch.cov(features.T, correction=0)))


def _contrast(generator: torch.Generator) -> dict[str, float]:
    """Return how much InstanceNorm's output moves when one image gets more contrast, beside BatchNorm's."""
    images = torch.randn(8, 3, 6, 6, generator=generator, dtype=torch.float64)
    more = images.clone()
    more[0] = 3.0 * more[0] + 1.0
    norms = {"instance": nn.InstanceNorm2d(3), "batch": nn.BatchNorm2d(3)}
    return {f"contrast.{name}": _change(norm.double()(more)[0], norm(images)[0]) for name, norm in norms.items()}


def _sketch(network: nn.Sequential, x: Tensor, settings: Settings, generator: torch.Generator) -> dict[str, float]:
    """Return how the sketched bound moves with weights that do not change the function, and its rate with samples.

    The rate is that of linear maps of norm 1 on random labels, of which the one that does its worst is known.
    """
    scaled = _rescaled(network, settings["factor"])
    gaps = []
    for samples in (100, 1600):
        inputs = torch.randn(50, samples, 20, generator=generator, dtype=torch.float64)
        labels = torch.randn(50, samples, generator=generator, dtype=torch.float64).sign()
        worst = torch.einsum("dn,dni->di", labels, inputs).norm(dim=1) / samples
        gaps.append(samples * float(worst.mean()))
    return {
        "sketch.outputs": _change(scaled(x), network(x)),
        "sketch.bound": _sketched(scaled) / _sketched(network),
        "sketch.gap times samples": gaps[1] / gaps[0],
    }


def _sketched(network: nn.Sequential) -> float:
    """Return the sum over layers of norm(W)_(2,1)^2 times the squared norms_(2,inf) of the other layers."""
    rows = [layer.weight.detach().norm(dim=1) for layer in network if isinstance(layer, nn.Linear)]
    largest = [one.max().square() for one in rows]
    every = range(len(rows))
    terms = [rows[i].sum().square() * torch.stack([largest[j] for j in every if j != i]).prod() for i in every]
    return float(sum(terms))


def _unneeded(f: Figures) -> Judgement:
    return judged(
        max(f["bias.train"], f["bias.eval"]) < ROUNDING,
        f"Without the bias the outputs move by {f['bias.train']:.1g} of themselves in train mode, and in eval mode by "
        f"{f['bias.eval']:.1g} where the running mean is the network's own.",
    )


def _capacity(f: Figures) -> Judgement:
    return judged(
        max(f["bias.train"], f["bias.eval"]) > ROUNDING,
        f"Networks with and without the bias have the same outputs, to {f['bias.train']:.1g} in train mode and "
        f"{f['bias.eval']:.1g} in eval mode: each function of the one is a function of the other.",
    )


def _bounded(f: Figures) -> Judgement:
    return judged(
        f["scale.gradient"] < 2.0,
        f"With {f['scale.factor']:g} of the weights in front of BatchNorm the loss moves by {f['scale.loss']:.1g} and "
        f"the gradient is {f['scale.gradient']:.4g} times as large.",
    )


def _minimum(f: Figures) -> Judgement:
    return judged(
        f["scale.penalty"] >= 1.0,
        f"With {f['scale.factor']:g} of the weights the loss moves by {f['scale.loss']:.1g} and the penalty is "
        f"{f['scale.penalty']:.1g} of what it was: smaller weights are always better, and none are best.",
    )


def _breaks(f: Figures) -> Judgement:
    return judged(
        f["scale.batches"] > HELD,
        f"With {f['scale.factor']:g} of the weights in front of BatchNorm the outputs on mini-batches move by "
        f"{f['scale.batches']:.1g} of themselves at most.",
    )


def _weight_norm(f: Figures) -> Judgement:
    return judged(
        f["weight.batches"] < ROUNDING < CLEAR < min(f["batch.batches"], f["weight.deviation"])
        and f["batch.deviation"] < HELD,
        f"Between batches a sample's values behind BatchNorm's layer change by {f['batch.batches']:.2g} of themselves, "
        f"behind weight normalization by {f['weight.batches']:.1g}; the units' deviations are off 1 by "
        f"{f['batch.deviation']:.1g} and {f['weight.deviation']:.2g}.",
    )


def _alone(f: Figures) -> Judgement:
    return judged(
        f["layer.alone"] < ROUNDING,
        f"A sample alone and in a batch has the same values behind LayerNorm, to {f['layer.alone']:.1g} of themselves.",
    )


def _leaks(f: Figures) -> Judgement:
    return judged(
        f["leak.train"] > CLEAR > ROUNDING > f["leak.eval"],
        f"In train mode a sample's output depends on the others of its batch, by {f['leak.train']:.2g} of its gradient "
        f"in its own inputs; in eval mode by {f['leak.eval']:.1g}.",
    )


def _orthonormal(f: Figures) -> Judgement:
    return judged(
        f["whitening.turned"] < HELD,
        f"Behind an orthonormal transform the whitened features move by {f['whitening.turned']:.2g} of themselves, and "
        f"are turned alike to {f['whitening.turned back']:.1g}; behind the root of their covariance they move by "
        f"{f['whitening.along']:.1g}.",
        corrected=max(f["whitening.turned back"], f["whitening.along"]) < HELD,
    )


def _better_conditioned(f: Figures) -> Judgement:
    return judged(
        f["condition.whitened"] < min(f["condition.standardized"], 1.0 + HELD),
        f"The features' covariance has condition number {f['condition.raw']:.3g}, standardized "
        f"{f['condition.standardized']:.3g}, whitened {f['condition.whitened']:.6g}.",
    )


def _contrast_removed(f: Figures) -> Judgement:
    return judged(
        f["contrast.instance"] < CLEAR < f["contrast.batch"],
        f"An image with three times the contrast and more light moves InstanceNorm's output by "
        f"{f['contrast.instance']:.1g} of itself, with the usual eps, and BatchNorm's by {f['contrast.batch']:.2g}.",
    )


def _carried(f: Figures) -> Judgement:
    return judged(
        f["momentum.gradient"] < HELD < CLEAR < f["momentum.step"],
        f"The largest cosine of weights and gradient is {f['momentum.gradient']:.1g}, that of weights and momentum's "
        f"step {f['momentum.step']:.2g}.",
    )


def _bounds(f: Figures) -> Judgement:
    moved = abs(f["sketch.bound"] - 1.0) > CLEAR and f["sketch.outputs"] < HELD
    return judged(
        not moved and f["sketch.gap times samples"] < 2.0,
        f"With smaller weights in front of BatchNorm the outputs move by {f['sketch.outputs']:.1g} and the right side "
        f"is {f['sketch.bound']:.1g} of what it was. For linear maps on random labels N times the gap grows "
        f"{f['sketch.gap times samples']:.3g}-fold where N grows 16-fold.",
    )


DISCUSSION = single(
    name="akbar.discussion",
    title="The sketch of a bound, and remarks on normalizers",
    about="Statements of sections 7.2 and 9 that algebra decides, computed on small networks in float64.",
    measure=measure,
    settings=SETTINGS,
    claims=(
        remark(
            "7.2.sketch",
            "7.2, formal bound attempt (sketch)",
            "With BatchNorm the gap is at most O(1/N) times the sum over layers of norm(W_l)_(2,1)^2 and the others' "
            "norm_(2,inf)^2.",
            r"$\text{GenGap} \leq O\left(\frac{1}{N} \sum_{l=1}^L \|W^{(l)}\|_{2,1}^2 "
            r"\prod_{j \neq l} \|W^{(j)}\|_{2,\infty}^2\right)$",
            _bounds,
            "No such bound holds with the weights as they are, whatever the norms: their scale in front of BatchNorm "
            "is no property of the function, and the gap falls as 1/sqrt(N) in the worst case.",
        ),
        remark(
            "9.1.bias",
            "9.1",
            "Biases in front of BatchNorm are unnecessary.",
            "Our results also suggest that biases before a BN layer are unnecessary (since BN will subtract the mean;",
            _unneeded,
        ),
        remark(
            "9.1.capacity",
            "9.1",
            "Without biases in front of BatchNorm the network has less capacity.",
            "Removing those biases saves parameters and slightly reduces model capacity in a way that might act as "
            "implicit regularization",
            _capacity,
            "Parameters are saved; the functions that the network can be are the same.",
        ),
        remark(
            "9.1.weight-norm",
            "9.1",
            "Weight normalization has neither BatchNorm's noise nor its normalized activations.",
            "in particular, it lacks the noise injection and global activation normalization",
            _weight_norm,
        ),
        remark(
            "9.1.bounded",
            "9.1, learning rates",
            "BatchNorm keeps gradients bounded.",
            "since BN keeps gradients bounded, one can ramp up learning rate or use aggressive schedules",
            _bounded,
            "The gradient grows as one over the norm of the weights in front of BatchNorm: what is bounded is their "
            "product.",
        ),
        remark(
            "9.1.minimum",
            "9.1, regularization",
            "Of all solutions that are equal with BatchNorm weight decay selects the one of least norm.",
            "BN finds an equivalence class of solutions, and weight decay then selects the minimum norm one among "
            "those",
            _minimum,
            "There is none of least norm: decay shrinks the weights in front of BatchNorm as long as it acts, and so "
            "raises the learning rate that acts.",
        ),
        remark(
            "9.2.batches",
            "9.2, limitations",
            "With the statistics of mini-batches BatchNorm's invariance is no longer exact.",
            "BN uses mini-batch estimates which add noise and break exact invariances",
            _breaks,
            "Each mini-batch has the same invariance, exactly.",
        ),
        remark(
            "9.4.layer-norm",
            "9.4, very small batches",
            "LayerNorm of a batch of one normalizes that sample.",
            "if batch size = 1, LN reduces to exactly normalizing each sample",
            _alone,
        ),
        remark(
            "9.4.leaks",
            "9.4, data that are not iid",
            "BatchNorm passes information from one sample of a batch to the others.",
            "BN could mix statistics between patients, possibly leaking info across samples",
            _leaks,
        ),
        remark(
            "9.5.contrast",
            "9.5, model types",
            "InstanceNorm removes the contrast of each image.",
            "Instance norm tends to remove instance-specific contrast",
            _contrast_removed,
        ),
        remark(
            "9.5.conditioning",
            "9.5, alternative normalizations",
            "Whitening conditions features better than standardizing them does.",
            "some works do full whitening via learnable params, which in theory could further improve conditioning by "
            "decorrelating features",
            _better_conditioned,
        ),
        remark(
            "9.5.whitening",
            "9.5, alternative normalizations",
            "With whitening every orthonormal transform of the weights in front of it leaves the outputs unchanged.",
            "they would yield invariances under a larger group like any orthonormal transform of weights corresponds "
            "to an equivalent point",
            _orthonormal,
            "An orthonormal transform turns the whitened outputs; what leaves them unchanged are positive maps that "
            "commute with the covariance, which is a larger group than that of scales.",
        ),
        remark(
            "9.5.momentum",
            "9.5, beyond gradient flow",
            "Momentum has a part along the weights in front of BatchNorm, though no gradient has.",
            "if a weight's radial component has no gradient, momentum could still carry it",
            _carried,
        ),
    ),
)
