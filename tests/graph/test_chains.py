"""Chains of torch's own layers are traced without torch.export, and give the graph that torch.export gives."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.graph import capturing
from normscope.bounds.graph.capturing import trace_model
from normscope.bounds.graph.chains import changes_nothing
from normscope.bounds.graph.ir import leaves

VECTORS, SEQUENCES, IMAGES = (3, 6), (3, 4, 9), (3, 4, 8, 8)
ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh,
)  # fmt: skip


def every_activation():
    """Return one chain of the layers that keep the shape of a vector."""
    return nn.Sequential(
        *(kind() for kind in (*ACTIVATIONS, nn.LogSigmoid, nn.Tanh, nn.Sigmoid, nn.GELU)),
        *(kind(inplace=True) for kind in ACTIVATIONS),
        nn.LeakyReLU(1),
        nn.LeakyReLU(-0.3, inplace=True),
        nn.ELU(2),
        nn.CELU(0.5),
        nn.Hardtanh(-2, 1.5),
        nn.Softplus(2, 3),
        nn.Softplus(),
        nn.PReLU(),
        nn.GELU("tanh"),
        nn.Softmax(1),
        nn.LogSoftmax(-1),
        nn.BatchNorm1d(6),
        nn.BatchNorm1d(6, momentum=None),
        nn.LayerNorm(6),
        nn.LayerNorm(6, elementwise_affine=False),
        nn.LayerNorm(6, bias=False),
        nn.RMSNorm(6),
        nn.RMSNorm(6, eps=1e-3, elementwise_affine=False),
        nn.Dropout(0.3),
        nn.Identity(),
    )


LAYERS = [
    (every_activation, VECTORS),
    (lambda: nn.PReLU(4), IMAGES),
    (lambda: nn.Linear(6, 5), VECTORS),
    (lambda: nn.Linear(9, 5, bias=False), SEQUENCES),
    (lambda: nn.Conv1d(4, 6, 3), SEQUENCES),
    (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, bias=False), SEQUENCES),
    (lambda: nn.Conv2d(4, 6, 3), IMAGES),
    (lambda: nn.Conv2d(4, 6, (3, 1), stride=(1, 2), padding=(2, 0), dilation=2, groups=2), IMAGES),
    (lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False), IMAGES),
    (lambda: nn.BatchNorm2d(4, eps=1e-3, momentum=None), IMAGES),
    (lambda: nn.BatchNorm2d(4, affine=False), IMAGES),
    (lambda: nn.BatchNorm3d(4), (2, 4, 3, 3, 3)),
    (lambda: nn.LayerNorm((8, 8), eps=1), IMAGES),
    (lambda: nn.GroupNorm(2, 4), IMAGES),
    (lambda: nn.GroupNorm(2, 4, affine=False, eps=1e-2), IMAGES),
    (lambda: nn.MaxPool2d(2), IMAGES),
    (lambda: nn.MaxPool2d((2, 3), stride=(1, 2), padding=1, ceil_mode=True), IMAGES),
    (lambda: nn.MaxPool2d(2, dilation=2), IMAGES),
    (lambda: nn.AvgPool2d(2), IMAGES),
    (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGES),
    (lambda: nn.AvgPool2d(2, divisor_override=3), IMAGES),
    (lambda: nn.AdaptiveAvgPool2d(1), IMAGES),
    (lambda: nn.AdaptiveAvgPool2d((2, 3)), IMAGES),
    (lambda: nn.Flatten(), IMAGES),
    (lambda: nn.Flatten(2), IMAGES),
    (lambda: nn.Flatten(1, 2), IMAGES),
    (lambda: nn.Flatten(-2, -1), IMAGES),
]
"""Layers with the shape of a batch that they take; in `chain` another layer comes before each."""


def drawn(build, seed=0):
    """Build a model with random weights and statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(torch.rand_like(tensor) + 0.5)
    return model


def batch_of(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def chain(build, shape):
    channels = shape[1]
    first = {2: nn.Linear(6, 6), 3: nn.Conv1d(4, 4, 1), 4: nn.Conv2d(channels, channels, 1), 5: nn.Tanh()}[len(shape)]
    return nn.Sequential(first, nn.Sequential(build(), nn.Identity()), nn.Sigmoid())


def traced_both_ways(monkeypatch, model, batch, mode="eval"):
    """Return the graph as it is captured, that of torch.export, and whether the first came without torch.export."""
    exports: list[int] = []
    with monkeypatch.context() as patched:
        export = torch.export.export
        patched.setattr(torch.export, "export", lambda *args, **kwargs: exports.append(1) or export(*args, **kwargs))
        graph = trace_model(model, batch, mode=mode)
        alone = not exports
        patched.setattr(capturing, "trace_chain", lambda model, call: None)
        return graph, trace_model(model, batch, mode=mode), alone


def described(value):
    """Return a value in a form that compares exactly, types included; tensors by bytes."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.device, value.detach().numpy().tobytes()
    return type(value), value


def assert_same(one, other):
    """Compare two graphs in everything that is read of them."""
    for name in ("output", "mode", "per_sample", "notes", "rounded", "held", "reads"):
        assert getattr(one, name) == getattr(other, name), name
    assert [described(item.value) for item in one.inputs] == [described(item.value) for item in other.inputs]
    assert [(item.name, item.path) for item in one.inputs] == [(item.name, item.path) for item in other.inputs]
    for mine, theirs in zip(one, other, strict=True):
        for name in ("name", "op", "index", "shape", "dtype", "device", "path", "kind", "call", "source", "operands"):
            assert getattr(mine, name) == getattr(theirs, name), (mine, name)
        assert len(mine.args) == len(theirs.args)
        assert mine.kwargs.keys() == theirs.kwargs.keys()
        both = zip(leaves((mine.args, mine.kwargs)), leaves((theirs.args, theirs.kwargs)), strict=True)
        assert all(described(a) == described(b) for a, b in both), mine
    for mine, theirs in zip(one.constants, other.constants, strict=True):
        assert (mine.name, mine.kind, mine.source) == (theirs.name, theirs.kind, theirs.source)
        assert described(mine.value) == described(theirs.value)
    derived = [sorted((where, repr(described(tensor))) for where, tensor in graph.derived) for graph in (one, other)]
    assert derived[0] == derived[1]
    assert (one.samples is None) == (other.samples is None)
    assert one.samples is None or torch.equal(one.samples, other.samples)
    for mine, theirs in zip(one.batched, other.batched, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize(("build", "shape"), LAYERS)
def test_the_graph_of_a_layer_is_that_of_torch_export(monkeypatch, build, shape):
    model = drawn(lambda: chain(build, shape))
    graph, exported, alone = traced_both_ways(monkeypatch, model, batch_of(shape))
    assert alone
    assert_same(graph, exported)


def random_chain(seed):
    """Return a random chain of layers on images, with odd arguments, and its batch."""
    chance = random.Random(seed)
    layers: list[nn.Module] = []
    channels, size = chance.randint(1, 4), chance.randint(7, 9)
    start = (channels, size, size)
    for _ in range(chance.randint(1, 4)):
        width = chance.choice([2, 4, 6])
        groups = 2 if channels % 2 == 0 and chance.random() < 0.5 else 1
        kernel, padding = chance.choice([(1, 0), (3, 1), (2, 1)])
        layers.append(nn.Conv2d(channels, width, kernel, padding=padding, groups=groups, bias=chance.random() < 0.5))
        channels = width
        inplace = chance.random() < 0.5
        layers += chance.sample(
            [
                nn.BatchNorm2d(channels, affine=chance.random() < 0.5, eps=chance.choice([1e-5, 1e-2])),
                nn.GroupNorm(2, channels, eps=chance.choice([1e-5, 0.1])),
                nn.LeakyReLU(chance.uniform(-1, 1), inplace=inplace),
                nn.ELU(chance.uniform(0.1, 2), inplace=inplace),
                nn.Hardtanh(-chance.random(), chance.random(), inplace=inplace),
                nn.Sequential(nn.ReLU(inplace=inplace), nn.Dropout(chance.random())),
                nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=chance.random() < 0.5),
                nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=chance.random() < 0.5),
                nn.Identity(),
            ],
            chance.randint(1, 4),
        )
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(chance.choice([1, -3]))]
    layers += [nn.Linear(4 * channels, 3, bias=chance.random() < 0.5), nn.Softmax(-1)]
    return nn.Sequential(*layers[: chance.randint(2, len(layers))]), start


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_the_graph_and_the_bound_of_a_random_chain_are_those_of_torch_export(monkeypatch, seed):
    model = drawn(lambda: random_chain(seed)[0], seed).eval()
    model[seed % len(model)].training = True  # modes may be mixed
    batch = batch_of((2, *random_chain(seed)[1]))
    graph, exported, _ = traced_both_ways(monkeypatch, model, batch, None)
    assert_same(graph, exported)
    bound = ns.lipschitz(model, batch, sides="upper", on_missing="inf")
    monkeypatch.setattr(capturing, "trace_chain", lambda model, call: None)
    assert bound == ns.lipschitz(model, batch, sides="upper", on_missing="inf")


class Halved(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x):
        return super().forward(x) / 2


def hooked():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, value: 2 * value)
    return model


def hooked_from_outside():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model.register_forward_pre_hook(lambda module, args: (args[0] / 2,))
    return model


def replaced():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    model[1].forward = torch.sigmoid
    return model


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


def in_one_memory():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()), model.parameters())
    return model


def with_a_tensor_as_weight():
    layer = nn.Linear(6, 6)
    weight = layer.weight.detach() * 2
    del layer.weight
    layer.weight = weight
    return nn.Sequential(layer, nn.ReLU())


def run_twice():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


def with_a_learned_slope():
    return nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU(torch.tensor(0.25)))


DECLINED = [
    hooked, hooked_from_outside, replaced, tied, in_one_memory, with_a_tensor_as_weight, run_twice,
    with_a_learned_slope,
    lambda: nn.Sequential(Halved(6, 6)),
    lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))),
    lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))),
    lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)),
    lambda: nn.Sequential(nn.Linear(6, 6), nn.Flatten(0, 0), nn.ReLU(inplace=True)),
    lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False)),
    lambda: nn.Sequential(nn.Unflatten(1, (2, 3))),
    lambda: nn.Sequential(nn.Linear(6, 6), nn.Softmax()),  # torch chooses the dimension
]  # fmt: skip


@pytest.mark.parametrize("build", DECLINED)
def test_what_is_not_exactly_known_is_exported(monkeypatch, build):
    model = drawn(build)
    graph, exported, alone = traced_both_ways(monkeypatch, model, batch_of(VECTORS))
    assert not alone
    assert_same(graph, exported)


def test_global_hooks_and_train_mode_batch_norms_are_exported(monkeypatch):
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
    assert not traced_both_ways(monkeypatch, model, batch_of(VECTORS), "train")[2]
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, value: None)
    try:
        graph, exported, alone = traced_both_ways(monkeypatch, model, batch_of(VECTORS))
    finally:
        handle.remove()
    assert not alone
    assert_same(graph, exported)


def test_a_layer_whose_function_somebody_has_replaced_is_exported(monkeypatch):
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU()))
    monkeypatch.setattr(nn.functional, "relu", lambda value, inplace=False: value.clamp(min=1e-4))
    graph, exported, alone = traced_both_ways(monkeypatch, model, batch_of(VECTORS))
    assert not alone
    assert_same(graph, exported)
    assert [node.operator for node in graph][-1] == "clamp"


def test_weights_in_another_float_than_the_input_are_exported(monkeypatch):
    model = drawn(lambda: nn.Sequential(nn.LayerNorm(6), nn.Tanh()))
    assert not traced_both_ways(monkeypatch, model, batch_of(VECTORS).bfloat16())[2]


def test_a_trace_without_export_leaves_the_model_alone():
    model = drawn(lambda: chain(lambda: nn.Dropout(0.5), VECTORS)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trace_model(model, batch_of(VECTORS))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_only_known_layers_in_eval_mode_are_taken_to_change_nothing():
    """Inside `assume_no_effects` nothing is put back between two runs."""
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5)))).eval()
    assert changes_nothing(model, None)
    model[1][0].train()
    assert not changes_nothing(model, None)
    assert changes_nothing(model, "eval")
    assert not changes_nothing(model, "train")
    for build in (hooked, hooked_from_outside, replaced, run_twice, lambda: nn.Sequential(Halved(6, 6))):
        assert not changes_nothing(drawn(build), "eval")


def run_alone(*lines):
    """Run some lines in a process of their own, and return the words that they print."""
    code = "\n".join(("import sys, torch, normscope as ns", "from normscope.bounds.graph import capturing", *lines))
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_a_chain_needs_no_compiler_and_a_time_limit_loads_it_before_the_clock():
    chain = "model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).eval()"
    bound = 'ns.lipschitz(model, torch.ones(2, 2), sides="upper")'
    loaded = 'print("torch._dynamo" in sys.modules)'
    assert run_alone(chain, bound, loaded, "capturing.warm_up_export(1.0)", loaded) == ["False", "True"]
