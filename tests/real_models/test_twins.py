"""Twins of real architectures: each is built and runs, comes back exactly, or is refused with a reason."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

import normscope as ns
from normscope.core.errors import InputError

from .families import FAMILIES

KINDS = (None, "batch", "layer", "group", "instance", "rms")
REFUSED = {  # family: what is refused, with words of the reason
    "convnext": {"instance": "sets of 1 entry"},
    "convnextv2": {"instance": "sets of 1 entry"},
    "mobilenet_v2": {"instance": "sets of 1 entry"},
    "beit": {"instance": "sets of 1 entry"},
    "clip_vision": {"instance": "sets of 1 entry"},
    "opt": {"instance": "samples on the first axis"},
    "torch_attention_bare": dict.fromkeys(KINDS[1:], "feeds an activation"),
}


def run(model, batch):
    with torch.no_grad():
        made = model(**batch) if isinstance(batch, dict) else model(batch)
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def equal(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_twins_of_a_family(name):
    model, batch, _ = FAMILIES[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    outputs, refused, own = run(model, batch), {}, None
    twins = {}
    for kind in KINDS:
        try:
            twins[kind] = ns.twin(model, batch, normalizer=kind)
            own = kind if kind and not twins[kind].changes else own
        except InputError as error:
            refused[kind] = str(error)
    wanted = REFUSED.get(name, {})
    assert refused.keys() == wanted.keys()
    assert all(words in refused[kind] for kind, words in wanted.items())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert own is not None or name == "torch_attention_bare"
    for twin in twins.values():
        assert twin.checked
        assert all(torch.isfinite(leaf).all() for leaf in run(twin.model, batch))
        if own is not None and twin.changes:
            assert equal(run(ns.twin(twin.model, batch, normalizer=own).model.eval(), batch), outputs)
