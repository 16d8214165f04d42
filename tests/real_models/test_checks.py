"""Every architecture of the list, checked: no warning, few passes, and the model left as it was found."""

import itertools

import pytest

import normscope as ns

from .families import FAMILIES
from .observe import assert_same, snapshot

SIGNAL = {"gradient-vanishing", "gradient-explosion", "no-gradient", "saturated-units", "half-precision", "input-scale"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_healthy_family_is_silent(name: str) -> None:
    model, batch, output = FAMILIES[name]()
    forwards = itertools.count()  # what Python can put back is put back, an iterator not
    hook = model.register_forward_hook(lambda *_: (next(forwards), None)[1])
    before = snapshot(model)
    check = ns.check(model, batch, output=output)
    assert_same(before, snapshot(model))
    hook.remove()
    assert next(forwards) == check.cost.forwards == 2
    assert check.cost.backwards == 1
    assert not check.skipped
    assert not SIGNAL & {finding.code for finding in check.findings}
    assert all(row.finite and row.deviation is not None for row in check.signal)
    assert sum(row.log10_gradient is not None for row in check.signal) > 0.7 * len(check.signal)
    serious = {finding.code for finding in check.findings if finding.severity is not ns.Severity.INFO}
    assert serious <= {"stale-statistics"}  # the running statistics of these models were drawn at random
    assert serious or "No problems found" in check.verdict
