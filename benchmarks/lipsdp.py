"""The optimised certificate beside LipSDP-Neuron solved by general solvers: seconds and bounds, in one run.

    python benchmarks/lipsdp.py [FOLDER] [--threads 1] [--limit 300] [--memory 8] [--solvers CLARABEL SCS CVXOPT]

FOLDER holds `lipsdp_*.mat` (a cell array `weights` each); without it only the random networks are measured. The
solvers come with the extra `[bench]` (cvxpy, which brings Clarabel and SCS); CVXOPT is taken where it is installed.

LipSDP-Neuron (Fazlyab et al. 2019), ReLU: the smallest rho with, for some diagonal T >= 0,

    [[rho I, 0], [0, 0]] - [[0, 0], [0, W_l^T W_l]] + (2 B^T T B - A^T T B - B^T T A) >= 0,

where A and B take the stacked values (input, hidden layers) to all pre-activations and to all activations. It is given
to cvxpy as one matrix inequality, sparse and linear in (rho, T). *compressed*: a first layer wider than high is
replaced by the triangular factor of its transpose, which changes nothing but the size; *as printed*: it is not.

Every solver runs in a process of its own, with a warm-up, a limit on its time and one on its memory. `build` is writing
the problem down and cvxpy's compilation, `solve` the rest. A solver's value is a bound only as far as its tolerance
goes: `proves` is what its multipliers prove in float64 by themselves, `nothing` where they are not feasible.

Ours: `optimise` with 1, 2, 3, 4, 6, ... steps, each from scratch and the median of some repetitions: the first that is
within 1 % (0.1 %) of the reference, which is the best value proved by any solver. `in all` is capturing the model, all
cheaper bounds and the certificate, what `effort="tight"` spends on the upper side.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import multiprocessing
import os
import pathlib
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse
import torch
from torch import nn

from normscope.bounds.bounds_by_method import upper_sides
from normscope.bounds.ellipsoids.ellipsoid_plan import EllipsoidPlan, plan
from normscope.bounds.ellipsoids.optimised import certify, optimise
from normscope.bounds.traced_network import TracedNetwork

RANDOM = [(16, 32, 32, 4), (32, 64, 64, 10), (64, 100, 100, 100, 10)]
"""Sizes of the random networks; entries are Gaussian with variance 1/fan-in."""
REPEATS = 5
"""Of ours; of a solver as many as fit into its limit, at most three."""

Weights = list[np.ndarray]


def networks(folder: pathlib.Path | None) -> dict[str, Weights]:
    """Return the weights of every network by name."""
    found: dict[str, Weights] = {}
    for file in sorted(folder.glob("lipsdp_*.mat")) if folder else []:
        cells = scipy.io.loadmat(file)["weights"].ravel()
        found[file.name] = [np.asarray(cell, dtype=np.float64) for cell in cells]
    generator = np.random.default_rng(0)
    for sizes in RANDOM:
        found["random"] = [generator.standard_normal((b, a)) / math.sqrt(a) for a, b in itertools.pairwise(sizes)]
        found["random " + "-".join(map(str, sizes))] = found.pop("random")
    return found


def compressed(weights: Weights) -> Weights:
    """Return weights with the same W_1 W_1^T and no more inputs than first units."""
    first = weights[0]
    return weights if first.shape[1] <= first.shape[0] else [np.linalg.qr(first.T, mode="r").T, *weights[1:]]


def inequality(weights: Weights) -> tuple[scipy.sparse.csc_array, np.ndarray]:
    """Return the matrix inequality as a sparse matrix from (rho, diagonal of T) to entries, and the constant part."""
    sizes = [w.shape[1] for w in weights]
    starts = np.cumsum([0, *sizes])
    side = int(starts[-1])
    inputs = np.arange(sizes[0]) * (side + 1)
    rows, columns, values = [inputs], [np.zeros_like(inputs)], [np.ones(sizes[0])]
    unit = 0
    for weight, read, made in zip(weights[:-1], starts, starts[1:]):
        for index, row in enumerate(weight):
            unit += 1
            own, across = made + index, np.arange(read, read + len(row))
            rows += [np.array([own * (side + 1)]), across * side + own, own * side + across]
            values += [np.array([2.0]), -row, -row]
            columns.append(np.full(1 + 2 * len(row), unit))
    place = (np.concatenate(rows), np.concatenate(columns))
    linear = scipy.sparse.csc_array((np.concatenate(values), place), shape=(side * side, unit + 1))
    constant = np.zeros((side, side))
    constant[starts[-2] :, starts[-2] :] = weights[-1].T @ weights[-1]
    return linear, constant


@dataclass(frozen=True)
class Solved:
    """What a solver returned: its value, its variables (rho, T) and the seconds of building and solving."""

    value: float
    variables: np.ndarray
    build: float
    solve: float
    status: str


def solve(weights: Weights, solver: str) -> Solved:
    """Solve LipSDP-Neuron through cvxpy."""
    import cvxpy

    began = time.perf_counter()
    linear, constant = inequality(weights)
    free = cvxpy.Variable(linear.shape[1], nonneg=True)
    matrix = cvxpy.reshape(linear @ free, constant.shape, order="F") - constant
    problem = cvxpy.Problem(cvxpy.Minimize(free[0]), [matrix >> 0])
    written = time.perf_counter() - began
    problem.solve(solver=solver)
    total = time.perf_counter() - began
    build = written + (problem.compilation_time or 0.0)
    if free.value is None:
        return Solved(math.nan, np.zeros(linear.shape[1]), build, total - build, problem.status)
    return Solved(math.sqrt(max(free.value[0], 0.0)), free.value, build, total - build, problem.status)


def serve(weights: Weights, solver: str, memory: float, pipe: Connection) -> None:
    """Warm a solver up, then solve again and again, and send every result."""
    resource.setrlimit(resource.RLIMIT_AS, (int(memory * 2**30), int(memory * 2**30)))
    solve([np.ones((2, 2)), np.ones((1, 2))], solver)
    pipe.send("ready")
    while True:
        pipe.send(solve(weights, solver))


def measure(weights: Weights, solver: str, *, limit: float, memory: float) -> list[Solved] | str:
    """Return up to three solutions, those that came within the limit together; or why there is none."""
    sides = [weights[0].shape[1], *(w.shape[0] for w in weights[:-1])]
    clique = max(a + b for a, b in itertools.pairwise(sides))
    dense = (clique * (clique + 1) / 2) ** 2 / 2 * 8 / 2**30
    if solver == "CLARABEL" and dense > memory:  # its factorization holds a dense block for every pair of layers
        return f"not tried: one block of its linear system takes {dense:.0f} GiB"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(weights, solver, memory, theirs), daemon=True)
    process.start()
    theirs.close()
    found: list[Solved] = []
    try:
        if not ours.poll(120.0):
            return "no warm-up within 120 s"
        ours.recv()
        until = time.monotonic() + limit
        while len(found) < 3 and ours.poll(max(until - time.monotonic(), 0.0)):
            found.append(ours.recv())
    except EOFError:
        return found or f"failed, probably for want of memory ({memory:g} GiB)"
    finally:
        process.terminate()
        process.join()
    return found or f"not done within {limit:g} s"


def network(weights: Weights) -> nn.Sequential:
    """Return the ReLU network."""
    layers: list[nn.Module] = []
    for weight in weights:
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        linear.weight.data.copy_(torch.from_numpy(weight))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def proved(steps: EllipsoidPlan, solved: Solved) -> float:
    """Return the bound that a solver's multipliers prove, NaN if they prove none: sigma = T/(2 rho)."""
    rho = float(solved.variables[0])
    if not rho > 0:
        return math.nan
    sigma = torch.from_numpy(solved.variables[1:] / (2.0 * rho)).clamp(min=1e-300)
    sizes = [step.known.size for step in steps.steps]
    parts = dict(zip((step.name for step in steps.steps), sigma.split(sizes)))
    found = certify(steps, parts)
    return math.nan if found is None else 10.0**found.log10


def median(function: Callable[[], Any], repeats: int = REPEATS) -> tuple[Any, float]:
    """Return a function's last result and the median of its seconds."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - began)
    return result, statistics.median(seconds)


def curve(steps: EllipsoidPlan) -> list[tuple[float, float]]:
    """Return (bound, seconds) for growing numbers of steps; the last is that of a search that stops by itself."""
    end, seconds = median(lambda: optimise(steps))
    assert end is not None
    points: list[tuple[float, float]] = []
    count = 1
    while count < 400 and (not points or points[-1][0] > 10.0**end.log10):
        found, took = median(lambda: optimise(steps, steps=count))  # noqa: B023
        assert found is not None
        points.append((10.0**found.log10, took))
        count += max(1, count // 2)
    return [*points, (10.0**end.log10, seconds)]


def reached(points: list[tuple[float, float]], target: float) -> float:
    """Return the seconds of the first run at or below the target, infinite if there is none."""
    return next((seconds for bound, seconds in points if bound <= target), math.inf)


def times(theirs: float, ours: float) -> str:
    """Say how many times sooner we are done."""
    return "never" if math.isinf(ours) else f"{theirs / ours:.0f}x" if theirs >= 3 * ours else f"{theirs / ours:.1f}x"


def compare(name: str, weights: Weights, arguments: argparse.Namespace, solvers: list[str]) -> None:
    """Measure one network and print its rows."""
    model, batch = network(weights), torch.zeros(1, weights[0].shape[1], dtype=torch.float64)
    captured = TracedNetwork.of(model, batch)
    rungs = upper_sides(captured)
    steps = plan(captured.segments, rungs.nodes)
    assert steps is not None
    _, all_in = median(lambda: upper_sides(TracedNetwork.of(model, batch), effort="tight"), 3)
    _, planning = median(lambda: plan(captured.segments, rungs.nodes))
    points = curve(steps)
    rows: list[tuple[str, list[Solved] | str]] = []
    for solver in solvers:
        options = {"limit": arguments.limit, "memory": arguments.memory}
        rows.append((solver, measure(compressed(weights), solver, **options)))
        if compressed(weights) is not weights:
            rows.append((f"{solver}, as printed", measure(weights, solver, **options)))
    proofs = [proved(steps, found[-1]) for _, found in rows if not isinstance(found, str)]
    best = min((bound for bound in proofs if not math.isnan(bound)), default=math.nan)
    bound, searching = points[-1]
    reference = bound if math.isnan(best) else min(best, bound)
    sizes = "-".join(map(str, [weights[0].shape[1], *(w.shape[0] for w in weights)]))
    print(f"{name}: {sizes}, reference {reference:.5f}" + (" (ours: no solver is done)" if math.isnan(best) else ""))
    names = ("product", "closed-form")
    print("  " + "   ".join(f"{n} {rungs[n].upper:.4f} ({rungs[n].upper / reference - 1:+.2%})" for n in names))
    near, nearer = planning + reached(points, 1.01 * reference), planning + reached(points, 1.001 * reference)
    print(
        f"  {'normscope':22s} {bound:10.5f} ({bound / reference - 1:+.3%})  {planning + searching:8.3f} s"
        f"   to 1 % {near:.4f} s   to 0.1 % {nearer:.4f} s   in all {all_in:.3f} s",
        flush=True,
    )
    for label, found in rows:
        if isinstance(found, str):
            print(f"  {label:22s} {found}")
            continue
        seconds = statistics.median(f.build + f.solve for f in found)
        sure = proved(steps, found[-1])
        proves = "nothing" if math.isnan(sure) else f"{sure:.5f}"
        print(
            f"  {label:22s} {found[-1].value:10.5f} ({found[-1].value / reference - 1:+.3%})  {seconds:8.3f} s"
            f"   build {statistics.median(f.build for f in found):.3f} s   proves {proves}   {found[-1].status}"
            f"   ours is at 1 % {times(seconds, near)} sooner, at 0.1 % {times(seconds, nearer)}"
            f", at its end {times(seconds, planning + searching)}",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=None, help="of everything; the libraries' default if absent")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a solver on one network")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB for a solver")
    parser.add_argument("--solvers", nargs="*", default=["CLARABEL", "SCS", "CVXOPT"])
    parser.add_argument("--only", default="", help="networks whose name contains this")
    arguments = parser.parse_args()
    if importlib.util.find_spec("cvxpy") is None:
        print("lipsdp: skipped, it needs cvxpy: pip install 'normscope[bench]'")
        return
    import cvxpy

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
            os.environ[variable] = str(arguments.threads)  # for the solvers, which start after this
    solvers = [solver for solver in arguments.solvers if solver in cvxpy.installed_solvers()]
    threads = arguments.threads or "default"
    print(f"cvxpy {cvxpy.__version__}, {', '.join(solvers)}; threads: {threads} (torch: {torch.get_num_threads()})")
    small = network([np.ones((2, 2)), np.ones((1, 2))])
    upper_sides(TracedNetwork.of(small, torch.zeros(1, 2, dtype=torch.float64)), effort="tight")  # warm-up
    for name, weights in networks(arguments.folder).items():
        if arguments.only in name:
            compare(name, weights, arguments, solvers)


if __name__ == "__main__":
    main()
