"""Real architectures over domains: observed <= DOMAIN <= GLOBAL, and the data inside."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import normscope as ns

from .families import FAMILIES


def loader(batch: Any) -> list[Any]:
    """The batch, and for floats other batches like it."""
    if isinstance(batch, torch.Tensor) and batch.is_floating_point():
        generator = torch.Generator().manual_seed(1)
        return [batch, *(batch + 0.5 * torch.randn(batch.shape, generator=generator) for _ in range(2))]
    return [batch]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_order_of_the_scopes(name: str) -> None:
    """Record a domain and compare the scopes; what GLOBAL refuses may be refused here."""
    model, batch, output = FAMILIES[name]()
    if isinstance(batch, dict) and "attention_mask" in batch:  # a domain speaks of one function, hence of one mask
        mask = batch["attention_mask"]
        if bool((mask != mask[:1]).any()):
            with pytest.raises(ns.NormscopeError, match="the same "):
                ns.domain(model, loader(batch), output=output)
        batch["attention_mask"] = mask[:1].expand_as(mask).clone()
    domain = ns.domain(model, loader(batch), output=output)
    assert domain.contains(batch).all()
    rungs = ns.ladder(model, batch, domain=domain, output=output, on_missing="inf")
    best = rungs["best"]
    assert best.log10_upper <= rungs["global"].log10_upper
    if "observed" in rungs:
        assert rungs["observed"].log10_lower <= best.log10_upper
    assert best.log10_lower <= best.log10_upper
    assert math.isfinite(best.log10_upper) or best.reason
