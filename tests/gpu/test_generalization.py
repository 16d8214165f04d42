"""Generalization bounds on a CUDA device are the CPU's, and the device is waited for once a pass."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.theory.losses import probability
from normscope_lab.generalize import stream

pytestmark = pytest.mark.gpu


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x = torch.rand(600, 6)
    return model, x, (3 * x[:, 0]).long().clamp(max=2)


def test_figures_are_those_of_the_cpu() -> None:
    model, x, y = problem()
    batches = list(zip(x.split(100), y.split(100)))
    here = ns.generalization(model, batches, input_range=(0.0, 1.0), steps=0)
    there = ns.generalization(copy.deepcopy(model).cuda(), batches, input_range=(0.0, 1.0), steps=0)
    for one, other in zip(here.rows, there.rows, strict=True):
        assert one.log10_value == pytest.approx(other.log10_value, abs=1e-3), one.name
        assert one.evidence == other.evidence


def test_a_posterior_is_found_there() -> None:
    model, x, y = problem()
    found = ns.generalization(model.cuda(), (x, y), steps=20)
    assert 0.0 < found["PAC-Bayes"].value <= 1.0
    assert next(model.parameters()).is_cuda


def test_no_piece_waits_for_the_device() -> None:
    model, x, y = problem()
    collector = stream.Collector(model.cuda(), probability(), torch.ones(6).long())
    pieces = list(stream.sample_batches(model, list(zip(x.split(100), y.split(100)))))
    collector.add(pieces[0], slopes=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for piece in pieces[1:]:
            collector.add(piece, slopes=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert collector.finish("train").samples == 600
