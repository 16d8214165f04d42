"""Every architecture of the list, audited end to end: a row for every layer, true figures, every form."""

import math

import pytest
from torch import nn

import normscope as ns

from .families import FAMILIES

NORMALIZERS = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_an_audit_from_end_to_end(name):
    model, batch, output = FAMILIES[name]()
    audit = ns.audit(model, batch, loader=[batch, batch], output=output)
    assert ns.Audit.from_json(audit.to_json()) == audit
    page, frame = audit.to_html(), audit.to_pandas()
    assert len(page.encode()) < 2e6
    assert len(frame) == len(audit.layers) > 0
    assert str(audit)
    told = {row.path for row in audit.layers} | {what for what, _ in audit.skipped}
    silent = [path for path, module in model.named_modules() if isinstance(module, NORMALIZERS) and path not in told]
    assert not silent, "a normalizer that runs has a row or a reason"
    for row in audit.layers:
        if row.role == "normalizer":
            assert row.variance is not None, row.path
            assert row.log10_at_data <= row.log10_exact + 1e-4, row.path
        else:
            assert row.norm is None or row.norm.log10_lower <= row.norm.log10_upper
        if row.log10_observed is not None:
            assert row.log10_observed <= row.log10_cumulative + 1e-4, row.path
    if audit.lipschitz.log10_upper == math.inf:
        assert any(finding.code == "not-lipschitz" for finding in audit.findings)
    assert audit.observed.log10_lower <= audit.lipschitz.log10_upper
    assert all(finding.severity is not ns.Severity.ERROR for finding in audit.findings)
