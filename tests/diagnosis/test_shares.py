"""DATA and DOMAIN in an audit: the four headline figures, and what they cost."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.auditing import auditing
from normscope.auditing.scope_shares import BRIEF_SAMPLES, FRESH, ONCE, WHAT
from normscope.bounds import rungs
from normscope.bounds.captured import Captured
from normscope.bounds.curve.curve import HELD_OUT, MARGINS, QUANTILES
from normscope.bounds.domain.domain_bounds import domain_sides
from normscope.bounds.domain.recording import FigureRecorder
from normscope.choosing.audit_comparison import compare_document
from normscope.core.errors import InputError
from normscope.report.document import Chart, Figures, Table


def normed(seed: int = 0) -> nn.Module:
    """A small network with a LayerNorm."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model.eval()


def data(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def batches(count: int = 320, seed: int = 1) -> list[torch.Tensor]:
    return list(data(count, 4, seed=seed).split(64))


@pytest.fixture(scope="module")
def rerun() -> list[int]:
    """How many samples the graph was run at with other roundings, by run: filled while `thorough` is made."""
    return []


@pytest.fixture(scope="module")
def thorough(rerun: list[int]) -> ns.Audit:
    """A thorough audit, without its other parts."""
    outputs = FigureRecorder._outputs

    def noted(self: FigureRecorder, points: torch.Tensor) -> torch.Tensor:
        rerun.append(len(points))
        return outputs(self, points)

    with (
        mock.patch.object(FigureRecorder, "_outputs", noted),
        mock.patch.object(auditing, "audited_radii", return_value=None),
        mock.patch.object(auditing, "sensitivities", return_value={}),
        mock.patch.object(rungs, "optimise_certificate", return_value=rungs.OptimisedCertificate()),
    ):
        return ns.audit(normed(), batches()[0], loader=batches(), effort="thorough")


def labels(audit: ns.Audit) -> list[str]:
    figures = next(block for block in audit.document().blocks if isinstance(block, Figures))
    return [item.label for item in figures.items]


@pytest.mark.slow
def test_the_headline_has_four_figures_from_the_data_to_all_inputs(thorough: ns.Audit) -> None:
    assert labels(thorough)[:4] == [
        "A small change of your data grows at most",
        "At 99 % of data like yours a small change grows at most",
        "At any input in the ranges of your data a small change grows at most",
        "Any change of any input grows at most",
    ]
    curve = thorough.curve
    inside = curve.domain(0.99).bracket.log10_upper
    assert thorough.observed.log10_upper <= max(curve.data.log10_norms) + 1e-9 <= inside + 1e-9
    assert inside <= thorough.lipschitz.log10_upper
    assert len(curve.domains) == len(QUANTILES) + len(MARGINS)
    sentences = str(thorough)
    assert sentences.index("(POINT)") < sentences.index("(DATA)") < sentences.index("(DOMAIN;")


@pytest.mark.slow
def test_one_more_pass_over_the_samples_and_the_jacobians_at_three_hundred(
    thorough: ns.Audit, rerun: list[int]
) -> None:
    """320 samples in float64 beside the model's own output, and Jacobian norms of 64 at a time, seven forwards each.

    Where the two outputs are apart by more than a few units in the last place, runs of the graph with other roundings
    show how much rounding explains: how many it takes depends on the machine, and one or two are enough.
    """
    assert thorough.cost.passes["shares"] == 320 * 2 + 320 * 7 + sum(rerun)
    assert sum(rerun) <= 320 * 2
    assert thorough.cost.backwards["shares"] == 320 * (3 + 1)
    assert thorough.curve.data.samples == 320


def test_the_curve_is_in_the_page_and_in_json(thorough: ns.Audit) -> None:
    titles = [block.title for block in thorough.document().blocks if isinstance(block, Chart)]
    assert "How much a small change grows, by the share of the data" in titles
    again = ns.Audit.from_json(thorough.to_json())
    assert again.curve.to_json() == thorough.curve.to_json()
    assert list(thorough.curve.to_pandas()["scope"].unique()) == ["data", "domain", "global"]
    older = {key: value for key, value in thorough.to_json().items() if key != "curve"}
    assert ns.Audit.from_json(older).curve is None
    with pytest.raises(InputError, match=r"damaged audit \(curve\.schema_version is missing\)"):
        ns.Audit.from_json({**thorough.to_json(), "curve": {"type": "share_curve"}})


def test_a_fast_audit_leaves_it_out_and_says_how_to_get_it() -> None:
    audit = ns.audit(normed(), batches()[0], loader=batches())
    assert audit.curve is None
    assert "shares" not in audit.cost.seconds
    assert any("DATA and DOMAIN" in note for note in audit.notes)
    assert len(labels(audit)) == 4


def deep() -> nn.Module:
    """Four LayerNorms in a row, whose bound over all inputs says nothing."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())]
    model = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) + (parameter.dim() == 1))
    return model.eval()


@pytest.mark.slow
def test_a_fast_audit_of_a_small_network_without_a_useful_bound_takes_one_domain_from_few_samples() -> None:
    audit = ns.audit(deep(), batches()[0], loader=batches())
    (point,) = audit.curve.domains
    assert point.margin == 0.3
    assert point.coverage.samples == BRIEF_SAMPLES // HELD_OUT
    assert audit.observed.log10_lower <= point.bracket.log10_upper < audit.lipschitz.log10_upper - 6
    assert "At any input in the ranges of your data a small change grows at most" in labels(audit)
    assert audit.curve.samples == BRIEF_SAMPLES - point.coverage.samples
    others = {"deep": audit, "shallow": ns.audit(normed(), batches()[0], loader=batches())}
    table = next(block for block in compare_document(others).blocks if isinstance(block, Table))
    column = [item.title for item in table.columns].index("in the data's ranges")
    assert [row[column] for row in table.rows] == [
        point.bracket.log10_upper, others["shallow"].lipschitz.log10_upper,
    ]  # fmt: skip
    with mock.patch("normscope.auditing.scope_shares.SMALL", 1.0):
        assert ns.audit(deep(), batches()[0], loader=batches()).curve is None
    assert ns.audit(deep(), batches()[0]).curve is None


@pytest.mark.slow
def test_a_domain_that_was_recorded_before_is_one_point() -> None:
    model = normed()
    domain = ns.domain(model, batches(), margin=0.5)
    audit = ns.audit(model, batches()[0], loader=batches(64, seed=2), domain=domain)
    (point,) = audit.curve.domains
    assert (point.margin, point.coverage) == (0.5, domain.coverage(batches(64, seed=2)))
    bound = domain_sides(Captured.of(model, batches()[0]), domain)["best"]
    assert point.bracket.log10_upper == pytest.approx(bound.log10_upper, abs=1e-2)  # audits take norms to 1 %
    assert audit.curve.data is None
    assert FRESH in audit.curve.notes
    assert "At any input in the ranges of your data a small change grows at most" in labels(audit)
    alone = ns.audit(model, batches()[0], domain=domain)
    assert alone.curve.domains[0].coverage is None
    assert "was not measured" in str(alone)


def test_a_domain_of_another_network_is_refused() -> None:
    domain = ns.domain(normed(seed=5), batches(64))
    with pytest.raises(InputError, match="another network"):
        ns.audit(normed(), batches()[0], domain=domain)


def test_a_loader_that_can_be_read_once_is_said() -> None:
    domain = ns.domain(normed(), batches(64))
    audit = ns.audit(normed(), batches()[0], loader=iter(batches(64)), domain=domain)
    assert audit.curve is None
    assert (WHAT, ONCE) in audit.skipped


def test_few_samples_speak_of_a_smaller_share() -> None:
    found = ns.curve(normed(), batches(64), margins=(0.0,), quantiles=())
    assert found.reach(0.99) == 0.95
    assert found.reach(0.5) == 0.5
    assert ns.curve(normed(), [data(3, 4)], margins=(0.0,), quantiles=()).reach(0.99) is None
