"""DATA in an audit: the headline figures, and what they cost."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.auditing import auditing
from normscope.auditing.data_share import FEWEST_NORMS, ONCE, WHAT
from normscope.bounds import bounds_by_method
from normscope.core.errors import InputError
from normscope.report.document import Chart, Figures


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


def thorough_audit(loader: object) -> ns.Audit:
    """Return a thorough audit, without its other parts."""
    with (
        mock.patch.object(auditing, "audited_radii", return_value=None),
        mock.patch.object(auditing, "sensitivities", return_value={}),
        mock.patch.object(
            bounds_by_method, "optimise_certificate", return_value=bounds_by_method.OptimisedCertificate()
        ),
    ):
        return ns.audit(normed(), batches()[0], loader=loader, effort="thorough")


@pytest.fixture(scope="module")
def thorough() -> ns.Audit:
    return thorough_audit(batches())


def labels(audit: ns.Audit) -> list[str]:
    figures = next(block for block in audit.document().blocks if isinstance(block, Figures))
    return [item.label for item in figures.items]


def test_the_headline_goes_from_the_data_to_all_inputs(thorough: ns.Audit) -> None:
    assert labels(thorough)[:3] == [
        "A small change of your data grows at most",
        "At 99 % of data like yours a small change grows at most",
        "Any change of any input grows at most",
    ]
    assert thorough.observed.log10_upper <= max(thorough.quantile.log10_norms) + 1e-9
    assert thorough.quantile.log10_upper <= thorough.lipschitz.log10_upper
    sentences = str(thorough)
    assert sentences.index("(POINT)") < sentences.index("(DATA)")


def test_the_jacobians_are_taken_at_three_hundred_samples(thorough: ns.Audit) -> None:
    """Jacobian norms of 64 samples at a time, seven forwards each."""
    assert thorough.cost.passes["shares"] == 320 * 7
    assert thorough.cost.backwards["shares"] == 320 * (3 + 1)
    assert thorough.quantile.samples == 320


def test_it_is_that_of_the_scope_data(thorough: ns.Audit) -> None:
    alone = ns.lipschitz(normed(), batches(), scope="data", rtol=1e-2)
    assert thorough.quantile.log10_norms == alone.log10_norms
    assert thorough.quantile.log10_upper == alone.log10_upper


def test_it_is_in_the_page_and_in_json(thorough: ns.Audit) -> None:
    titles = [block.title for block in thorough.document().blocks if isinstance(block, Chart)]
    assert "Jacobian norm by share of the data" in titles
    again = ns.Audit.from_json(thorough.to_json())
    assert again.quantile.to_json() == thorough.quantile.to_json()
    older = {key: value for key, value in thorough.to_json().items() if key != "quantile"}
    assert ns.Audit.from_json(older).quantile is None
    with pytest.raises(InputError, match=r"damaged audit \(quantile\.schema_version is missing\)"):
        ns.Audit.from_json({**thorough.to_json(), "quantile": {"type": "data_bracket"}})


def test_a_fast_audit_leaves_it_out_and_says_how_to_get_it() -> None:
    audit = ns.audit(normed(), batches()[0], loader=batches())
    assert audit.quantile is None
    assert "shares" not in audit.cost.seconds
    assert any("(DATA)" in note for note in audit.notes)
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
def test_a_fast_audit_of_a_small_network_without_a_useful_bound_takes_it_from_few_samples() -> None:
    audit = ns.audit(deep(), batches()[0], loader=batches())
    assert audit.quantile.samples == FEWEST_NORMS
    assert "At 90 % of data like yours a small change grows at most" in labels(audit)
    with mock.patch("normscope.auditing.data_share.SMALL", 1.0):
        assert ns.audit(deep(), batches()[0], loader=batches()).quantile is None
    assert ns.audit(deep(), batches()[0]).quantile is None


def test_a_loader_that_can_be_read_once_is_said() -> None:
    audit = thorough_audit(iter(batches(64)))
    assert audit.quantile is None
    assert (WHAT, ONCE) in audit.skipped


def test_few_samples_speak_of_a_smaller_share() -> None:
    few = ns.lipschitz(normed(), batches(64), scope="data")
    assert few.reach(0.99) == 0.95
    assert few.reach(0.5) == 0.5
    assert ns.lipschitz(normed(), [data(3, 4)], scope="data").reach(0.99) is None
