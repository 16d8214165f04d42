"""Sensitivities to the weights of real architectures, against changes of the weights of the real models."""

from __future__ import annotations

import math

import pytest
from torch import Tensor, nn

from normscope.bounds.weights.weight_constants import weight_sensitivity

from ..soundness.weights import Weight
from .families import FAMILIES
from .observe import assert_same, call, snapshot

TRIED = (
    *("gpt2", "vit", "bert_padded", "llama", "resnet_basic", "convnext", "regnet_y", "efficientnet"),
    *("t5_gated_encoder", "gemma2", "torch_encoder_pre_gelu", "albert", "swin"),
)


def first(batch):
    """The first sample alone."""
    return batch[:1] if isinstance(batch, Tensor) else {key: value[:1] for key, value in batch.items()}


class Called(nn.Module):
    """A model as a function of its batch, with one tensor as its value."""

    def __init__(self, inner: nn.Module, output: str | None) -> None:
        super().__init__()
        self.inner, self.output = inner, output

    def forward(self, batch) -> Tensor:
        return call(self.inner, batch, self.output)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_no_weight_change_gets_above(name):
    model, batch, output = FAMILIES[name]()
    before = snapshot(model)
    result = weight_sensitivity(model, first(batch), output=output, on_missing="inf", loss="cross_entropy")
    assert_same(before, snapshot(model))
    assert len(result) > 0
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for seed, row in enumerate(result):
        assert row.bracket_h.log10_lower > -math.inf, row.path
        if row.parameter is None or row.bracket_h.log10_upper == math.inf or any("embedding" in n for n in row.notes):
            continue
        if math.prod(row.weight_shape) != parameters[row.parameter].numel():  # a part of a parameter
            continue
        weight = Weight(Called(model, output), f"inner.{row.parameter}", first(batch))
        assert weight.attack(seed) <= row.bracket_h.upper * (1 + 1e-6), row.path
