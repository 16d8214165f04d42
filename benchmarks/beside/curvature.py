"""Eigenvalues and traces of Hessians: the ways of benchmarks/hessian.py and benchmarks/trace.py, and their peers'."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import normscope as ns

from .. import hessian as eigenvalues
from .. import trace as traces
from .turns import Row, Way, by_turns

LANCZOS_STEPS = 30
"""Steps of hessian-eigenthings, which does not stop by itself: after its default, twice as many as eigenvalues, the
values are still far off."""
PROBES = 8
"""Probes of `ns.hessian` for a trace; the peers get as many products as these take."""


def eigenthings_operator(model: nn.Module, x: Tensor, y: Tensor, loss: Any) -> tuple[Any, Any]:
    """Return the package and its Hessian."""
    package: Any = import_module("hessian_eigenthings")
    model = copy.deepcopy(model).eval()
    return package, package.HessianOperator(model, [(x, y)], package.supervised_loss(loss))


def eigenthings_way(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> tuple[np.ndarray, int]:
    """Return eigenvalues and products of hessian-eigenthings' Lanczos."""
    package, operator = eigenthings_operator(model, x, y, eigenvalues.LOSS)
    pairs = package.lanczos(operator, k=eigenvalues.K, max_iter=LANCZOS_STEPS, which="LA", seed=0)
    return pairs.eigenvalues.numpy(), LANCZOS_STEPS


EIGENVALUE_WAYS = (*eigenvalues.WAYS, ("hessian-eigenthings", "hessian_eigenthings", ("eval",), eigenthings_way))


def hessian() -> Iterator[Row]:
    """Yield rows for the five largest eigenvalues; the quality is the largest relative error."""
    for steps, mode in ((60, "eval"), (60, "train")):
        case = f"after {steps} steps, {mode} mode"
        yield from by_turns(case, eigenvalue_ways(*eigenvalues.made(steps, 0), mode), 2)


def eigenvalue_ways(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> dict[str, Way | str]:
    """Return every way to five eigenvalues."""
    truth = eigenvalues.truth(model, x, y, mode)

    def way(solve: eigenvalues.Way) -> Way:
        def run(turn: int) -> dict[str, Any]:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                values, products = solve(model, x, y, mode)
            error = np.max(np.abs(np.sort(values)[::-1] - truth) / np.abs(truth))
            return {"quality": float(error), "says": f"{products} products"}

        return run

    ways: dict[str, Way | str] = {}
    for name, package, modes, solve in EIGENVALUE_WAYS:
        lacking = "not in this mode" if mode not in modes else "not installed"
        ways[name] = way(solve) if mode in modes and find_spec(package) else lacking
    return ways


def trace() -> Iterator[Row]:
    """Yield rows for the trace at equal products; the quality is the error over the sum of sizes of eigenvalues."""
    for steps in (0, 100):
        yield from by_turns("fresh" if steps == 0 else f"after {steps} steps", trace_ways(*traces.made(steps)), 5)


def trace_ways(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Way | str]:
    """Return every way to the trace; each returns its value and the products that it took."""
    dense = traces.dense(model, x, y)
    truth, size = float(dense.trace()), float(torch.linalg.eigvalsh(dense).abs().sum())

    def ours(name: str) -> Callable[[int], tuple[float, int]]:
        def run(turn: int) -> tuple[float, int]:
            asked = traces.ASKED[name]
            curvature = ns.hessian(model, (x, y), loss=traces.LOSS, probes=PROBES, deflate=False, seed=turn, **asked)
            assert curvature.trace is not None
            return curvature.trace.value, curvature.num_products

        return run

    _, products = ours("the trace")(0)

    def pyhessian(turn: int) -> tuple[float, int]:
        peer: Any = import_module("pyhessian.hessian")
        matrix = peer.hessian(copy.deepcopy(model), nn.CrossEntropyLoss(), data=(x, y), cuda=False)
        values = matrix.trace(maxIter=products, tol=0.0)
        return sum(values) / len(values), len(values)

    def curvlinops(name: str) -> Callable[[int], tuple[float, int]]:
        count = products - products % (3 if name == "hutchpp_trace" else 2)  # curvlinops takes multiples of that

        def run(turn: int) -> tuple[float, int]:
            peer: Any = import_module("curvlinops")
            data = (nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])
            operator = peer.HessianLinearOperator(model, *data, check_deterministic=False)
            return float(getattr(peer, name)(operator, num_matvecs=count)), count

        return run

    def eigenthings(turn: int) -> tuple[float, int]:
        package, operator = eigenthings_operator(model, x, y, traces.LOSS)
        return float(package.trace(operator, num_matvecs=products, method="hutch++", seed=turn).estimate), products

    def way(estimate: Callable[[int], tuple[float, int]]) -> Way:
        def run(turn: int) -> dict[str, Any]:
            torch.manual_seed(turn)
            value, count = estimate(turn)
            return {"quality": abs(value - truth) / size, "says": f"{count} products"}

        return run

    estimators = (
        ("normscope", "normscope", ours("the trace")),
        ("normscope, with five eigenvalues and density", "normscope", ours("all")),
        ("PyHessian, Hutchinson", "pyhessian", pyhessian),
        ("curvlinops, Hutchinson", "curvlinops", curvlinops("hutchinson_trace")),
        ("curvlinops, Hutch++", "curvlinops", curvlinops("hutchpp_trace")),
        ("curvlinops, XTrace", "curvlinops", curvlinops("xtrace")),
        ("hessian-eigenthings, Hutch++", "hessian_eigenthings", eigenthings),
    )
    return {name: way(estimate) if find_spec(package) else "not installed" for name, package, estimate in estimators}
