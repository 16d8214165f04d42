"""Norms of layers, bounds of networks and certified radii: the ways of the scripts beside this folder, by turns."""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.ellipsoids.ellipsoid_plan import plan
from normscope.bounds.linalg.layer_norms import spectral_norm
from normscope.bounds.linalg.weight_norms import matrix_norm
from normscope.bounds.traced_network import TracedNetwork
from normscope.data import digits
from normscope.networks.small import train
from normscope.products.lanczos import MISSED

from .. import conv_norms, eclipse, lipsdp, radii_beside_crown
from .. import stored_weights as stored
from .turns import Row, Way, by_turns

KERNELS = ("64->64 3x3 at 32x32", "32->32 3x3 at 8x8", "64->64 3x3 circular at 32x32")
"""Those cases of benchmarks/conv_norms.py that take a few minutes at most with all peers."""
ROUNDING = 1e-5
"""The relative distance from the norm within which a value in float32 counts as equal to it."""


def compare_with_norm(value: float, truth: float) -> dict[str, Any]:
    """Return how far a value lies from the norm, and on which side."""
    away = value / truth - 1.0
    side = "below the norm: no bound" if away < -ROUNDING else "above the norm" if away > ROUNDING else "up to rounding"
    return {"quality": abs(away), "says": side}


def divisor_of_spectral_norm(layer: nn.Conv2d, shape: tuple[int, ...]) -> float:
    """Return what torch's `spectral_norm` divides the weight by."""
    twin = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, bias=False)
    twin.weight.data.copy_(layer.weight)
    nn.utils.parametrizations.spectral_norm(twin, n_power_iterations=100)
    return float(layer.weight.norm() / twin.weight.norm())


@torch.no_grad()
def convolutions() -> Iterator[Row]:
    """Yield rows for norms of convolutions; the quality is the distance to its proven lower side."""
    torch.manual_seed(0)
    for name, build, shape in conv_norms.CASES:
        if name not in KERNELS:
            continue
        layer = build()
        nn.init.normal_(layer.weight, std=1.0 / math.sqrt(layer.weight[0].numel()))
        yield from by_turns(name, convolution_ways(layer, shape), 3)


def convolution_ways(layer: nn.Conv2d, shape: tuple[int, ...]) -> dict[str, Way | str]:
    """Return every way to a norm."""
    truth = spectral_norm(layer, shape, rtol=1e-3).lower  # the norm is at most a relative 1e-3 above

    def ours(turn: int) -> dict[str, Any]:
        bracket = spectral_norm(layer, shape, rtol=1e-3)
        return {"quality": bracket.upper / truth - 1.0, "says": f"upper side, {bracket.evidence.name}"}

    def way(peer: Callable[[nn.Conv2d, tuple[int, ...]], float]) -> Way:
        return lambda turn: compare_with_norm(peer(layer, shape), truth)

    peers = {
        "power iteration, 100 steps": conv_norms.PEERS["power 100"],
        "FFT and SVD (Sedghi et al.)": conv_norms.PEERS["FFT + SVD"],
        "Gram iteration, 6 steps": conv_norms.PEERS["Gram 6"],
        "torch's spectral_norm": divisor_of_spectral_norm,
    }
    return {"normscope": ours} | {name: way(peer) for name, peer in peers.items()}


def networks() -> Iterator[Row]:
    """Yield rows for Lipschitz constants of ReLU networks; the quality is the bound over the largest seen growth."""
    for name, weights in lipsdp.networks(None).items():
        torch.manual_seed(0)  # of the inputs at which growth is seen
        if "100-100" not in name:
            yield from by_turns(name, network_ways(weights), 3)


def network_ways(weights: lipsdp.Weights) -> dict[str, Way | str]:
    """Return every way to a bound."""
    model, batch = lipsdp.network(weights), torch.randn(4, weights[0].shape[1], dtype=torch.float64)
    captured = TracedNetwork.of(model, batch)
    steps = plan(captured.segments, upper_sides(captured).nodes)
    assert steps is not None
    growth = ns.lipschitz(model, batch, effort="tight").lower
    matrices = [torch.from_numpy(weight) for weight in weights]

    def ours(effort: str) -> Way:
        def run(turn: int) -> dict[str, Any]:
            bracket = ns.lipschitz(model, batch, effort=effort, sides="upper")
            return {"quality": bracket.upper / growth, "says": bracket.evidence.name}

        return run

    def solver(name: str) -> Way:
        def run(turn: int) -> dict[str, Any]:
            solved = lipsdp.solve(lipsdp.compressed(weights), name)
            proven = lipsdp.proved(steps, solved)
            says = "its multipliers prove nothing" if math.isnan(proven) else f"proves {proven / growth:.4f}"
            return {"quality": solved.value / growth, "says": says}

        return run

    ways: dict[str, Way | str] = {
        "normscope, fast": ours("fast"),
        "normscope, tight": ours("tight"),
        "ECLipsE-Fast": lambda turn: {
            "quality": eclipse.eclipse_fast(matrices) / growth,
            "says": "not rounded outward",
        },
    }
    solvers = {"LipSDP, SCS": "SCS", "LipSDP, Clarabel": "CLARABEL"}
    for label, name in solvers.items():
        ways[label] = solver(name) if find_spec("cvxpy") and find_spec(name.lower()) else "not installed"
    if len(weights[0]) > 40:
        ways["LipSDP, Clarabel"] = "not tried: four minutes (docs/results/lipsdp_2cores.txt)"
    ways["GeoLIP"] = "cannot be run: it needs the MOSEK solver; for the l2 norm its dual is LipSDP, as its README says"
    return ways


def radii(samples: int = 6) -> Iterator[Row]:
    """Yield rows for certified l2 radii of digits classifiers; the quality is their median."""
    data = digits(generator=torch.Generator().manual_seed(0))
    for name in ("MLP", "MLP + LayerNorm", "convolutional + BatchNorm"):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        model = radii_beside_crown.NETWORKS[name](generator)
        train(model, data.train_images, data.train_labels, generator=generator, epochs=15)
        x, y = data.test_images[: 2 * samples], data.test_labels[: 2 * samples]
        right = model(x).argmax(1) == y
        yield from by_turns(f"{name}, {samples} samples", radius_ways(model, x[right][:samples], y[right][:samples]), 2)


def radius_ways(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Way | str]:
    """Return every way to certified radii."""

    def way(certify: Callable[[], Tensor]) -> Way:
        return lambda turn: {"quality": float(certify().median())}

    ways: dict[str, Way | str] = {"normscope, fast": way(lambda: radii_beside_crown.own_radii(model, x, y, "fast"))}
    convolutional = any(isinstance(module, nn.Conv2d) for module in model.modules())
    for method in ("CROWN", "alpha-CROWN"):
        if radii_beside_crown.BoundedModule is None:
            ways[method] = "auto_LiRPA is not installed"
        elif method == "alpha-CROWN" and convolutional:
            ways[method] = "not tried: 20 s a sample (docs/results/radii_beside_crown_2cores.txt)"
        else:
            ways[method] = way(partial(radii_beside_crown.crown, model, x, y, method))
    return ways


@torch.no_grad()
def stored_weights() -> Iterator[Row]:
    """Yield rows for norms of stored bfloat16 matrices; the quality is the distance to the true norm."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((256, 2048), (2048, 2048)):
        weight = (0.02 * torch.randn(shape, generator=generator)).bfloat16()
        yield from by_turns(f"{shape[0]} x {shape[1]}", matrix_ways(weight), 3)


def matrix_ways(weight: Tensor) -> dict[str, Way | str]:
    """Return every way to the norm of a stored matrix."""
    exact = weight.double()
    truth = float(torch.linalg.eigvalsh(exact @ exact.T)[-1].sqrt())

    def ours(missed: float) -> Way:
        def run(turn: int) -> dict[str, Any]:
            bracket = matrix_norm(weight, rtol=5e-2, missed=missed)
            return {"quality": bracket.upper / truth - 1.0, "says": f"upper side, {bracket.evidence.name}"}

        return run

    def way(value: Callable[[], float]) -> Way:
        return lambda turn: compare_with_norm(value(), truth)

    def weightwatcher() -> float:
        import weightwatcher

        logging.getLogger("weightwatcher").setLevel(logging.CRITICAL)
        layer = nn.Linear(*weight.T.shape, bias=False)
        layer.weight.data.copy_(weight)
        with contextlib.redirect_stdout(io.StringIO()):
            details = weightwatcher.WeightWatcher(model=nn.Sequential(layer)).analyze()
        return 10.0 ** (float(details["log_spectral_norm"].iloc[0]) / 2.0)

    installed = find_spec("weightwatcher") is not None
    return {
        "normscope": ours(MISSED / sum(stored.SHAPES.values())),
        "normscope, certify": ours(0.0),
        "power iteration, 30 steps": way(lambda: stored.power_iteration(weight)),
        "torch.linalg.matrix_norm, float32": way(lambda: float(torch.linalg.matrix_norm(weight.float(), 2))),
        "weightwatcher (all of its figures)": way(weightwatcher) if installed else "not installed",
    }
