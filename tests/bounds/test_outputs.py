"""Constants of single outputs and of differences: above every sampled one, below what the whole implies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.bounds import outputs
from normscope.bounds.ellipsoids import optimised
from normscope.bounds.ellipsoids.optimised import optimise, with_rounding
from normscope.bounds.outputs import directed, directions
from normscope.core.bracket import Bracket
from normscope.core.errors import InputError

from .exactly import proves
from .graphs import DOUBLE, Sheet, chain, planned
from .relaxations import Relaxation
from .test_rounded import stream


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few optimisation steps at most, whatever is asked for."""
    real = optimised.optimise
    limited = lambda plan, *, steps=None, **named: real(plan, steps=min(steps or 400, 15), **named)  # noqa: E731
    monkeypatch.setattr(outputs, "optimise", limited)


def classifier(seed: int = 0, classes: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return (
            nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 7), nn.GELU(), nn.Linear(7, classes)).double().eval()
        )


def sampled(model: nn.Module, rows: Tensor) -> Tensor:
    """The largest gradient of every combination of outputs, at many points."""
    generator = torch.Generator().manual_seed(1)
    points = torch.cat([s * torch.randn(60, 3, dtype=DOUBLE, generator=generator) for s in (0.1, 1.0, 10.0)])
    dense = torch.func.vmap(torch.func.jacrev(lambda x: model(x[None])[0]))(points)
    return (rows @ dense).norm(dim=-1).amax(0).detach()


@pytest.mark.slow
@pytest.mark.parametrize("per", ["output", "difference"])
@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_every_bracket_is_above_what_is_sampled(per: str, effort: str) -> None:
    model = classifier()
    whole = ns.lipschitz(model, torch.randn(2, 3, dtype=DOUBLE), per=per, effort=effort, max_seconds=60)
    rows = directions(per, 4)
    assert whole.per_output is not None and len(whole.per_output) == len(rows)  # noqa: PT018
    for bracket, row, seen in zip(whole.per_output, rows, sampled(model, rows), strict=True):
        assert bracket.upper >= float(seen) * (1 - 1e-9)
        assert bracket.log10_upper <= whole.log10_upper + math.log10(float(row.norm())) + 1e-9
        assert bracket.lower <= bracket.upper
        _assert_witness(model, bracket, row)
    assert max(b.log10_upper for b in whole.per_output) <= whole.log10_upper + math.log10(2.0) / 2 + 1e-9


def _assert_witness(model: nn.Module, bracket: Bracket, row: Tensor) -> None:
    """The lower side is a pair of inputs."""
    (u,), (v,) = bracket.witness
    with torch.no_grad():
        change = abs(float(row @ (model(u) - model(v))[0]))
    assert change / float((u - v).norm()) >= bracket.lower * (1 - 1e-9)


def test_one_certificate_gives_them_all() -> None:
    """Along a row, a certificate is above the relaxations of the graph that ends in that row."""
    graph = chain(2, (3, 8, 6, 4), ["relu", "gelu"])
    _, plan, _ = planned(graph)
    rows = directions("difference", 4)
    certificate = optimise(plan, directions=rows, steps=15)
    along = certificate.along(rows)
    for row, log in zip(rows, along.tolist(), strict=True):
        segments, _, _ = planned(directed(graph, row))
        assert log >= math.log10(Relaxation(segments).strongest(starts=1, rounds=25)) - 1e-9
    assert float(along.max()) <= certificate.log10 + math.log10(2) / 2 + 1e-9
    everywhere = optimise(plan, steps=15)
    assert float(along.mean()) <= float(everywhere.along(rows).mean()) + 1e-6


@pytest.mark.parametrize(("per", "count"), [("class", 3), ("difference", 1), ("output", 5000), ("difference", 100)])
def test_rows_that_make_no_sense_are_refused(per: str, count: int) -> None:
    with pytest.raises(InputError):
        directions(per, count)


@pytest.mark.parametrize("apart", [1e-2, 1e-6, 3e-8])
def test_outputs_that_are_nearly_equal(apart: float) -> None:
    """One hidden unit: the constant of the difference is known, however small it is."""
    for base in (0.5, 0.7, 0.9, 1.1, 1.3, 1.7):
        sheet = Sheet((1, 2))
        last = torch.tensor([[base], [base + apart], [0.3]], dtype=DOUBLE)
        x = sheet.linear(sheet.relu(sheet.linear(sheet.refs[0], torch.tensor([[1.0, 2.0]]))), last)
        _, plan, _ = planned(sheet.graph(x))
        rows = directions("difference", 3)
        log = float(optimise(plan, directions=rows, steps=3).along(rows)[0]) + 1e-10
        assert log >= math.log10(math.sqrt(5.0) * abs(float(last[0] - last[1])))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [10.0, 1e5])
def test_outputs_of_a_stream_that_is_large_elsewhere(size: float) -> None:
    """The second output is small beside the first: what is claimed of it is what its multipliers prove."""
    rows = directions("output", 2)
    for seed in range(4):
        _, plan, _ = planned(stream(size, seed, both=True))
        certificate = with_rounding(plan, optimise(plan, directions=rows, steps=3))
        assert certificate is not None
        assert float(certificate.along(rows)[1]) + 1e-10 >= proves(plan, certificate, rows[1])
