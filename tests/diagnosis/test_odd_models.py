"""Models and batches that torch takes and that are rarely met: `check` reads them, says what is true, puts all back."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence

import normscope as ns
from normscope.core.errors import CaptureError, InputError, RandomOperatorError

from ..net import Net

X, Y = torch.randn(32, 8, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


class Around(nn.Module):
    """A network inside of a forward that a test gives."""

    def __init__(self, forward):
        super().__init__()
        self.net = network()
        self._forward = forward

    def forward(self, x):
        return self._forward(self.net, x)


def codes(found):
    return [finding.code for finding in found.findings if finding.severity > ns.Severity.INFO]


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no derivative here")


@pytest.mark.parametrize("loss", [None, "cross_entropy"])
def test_a_backward_that_raises_is_an_error_with_its_place(loss):
    model = network().insert(1, Net(lambda _, x: _NoBackward.apply(x)))
    found = ns.check(model, (X, Y), loss=loss)
    assert codes(found) == ["backward-raises"]
    (finding,) = [one for one in found.findings if one.code == "backward-raises"]
    assert (finding.where, finding.severity) == ("1", "error")
    assert "RuntimeError: no derivative here" in finding.seen
    assert "test_odd_models.py" in finding.seen
    assert [one.severity for one in ns.check(model.eval(), X).findings if one.code == "backward-raises"] == ["info"]


def test_a_change_in_place_that_spoils_the_backward_is_an_error():
    def forward(net, x):
        hidden = net[0](x).exp()
        made = net[2](hidden)
        hidden += 1
        return made

    (finding,) = ns.check(Around(forward), X).findings
    assert (finding.code, finding.where) == ("backward-raises", "net.2")


def _nested(layout):
    def forward(net, x):
        return torch.cat(net(torch.nested.as_nested_tensor([x[:5], x[5:]], layout=layout)).unbind())

    return forward


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: torch.vmap(net)(x),
        _nested(torch.strided),
        _nested(torch.jagged),
        lambda net, x: net(x.to_sparse().to_dense()).to_sparse(),
        lambda net, x: torch.fft.fft(net(x)),
    ],
    ids=["vmap", "nested", "jagged", "sparse", "complex"],
)
def test_values_of_another_kind_are_no_fault(forward):
    assert codes(ns.check(Around(forward), X)) == []


def test_layers_inside_of_vmap_are_said_to_be_left_out():
    found = ns.check(Around(lambda net, x: torch.vmap(net)(x)), X)
    assert "layers inside of torch.vmap" in dict(found.skipped)


def test_a_complex_output_without_its_graph_is_still_a_fault():
    assert codes(ns.check(Around(lambda net, x: torch.fft.fft(net(x).detach())), X)) == ["gradient-cut"]


class _Keywords(nn.Module):
    """Takes what it is given by name, and computes a loss of its own from labels, as those of Hugging Face do."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.net, self.scale = network(), scale

    def forward(self, **given):
        logits = self.net(given["x"]) * self.scale
        own = {"loss": nn.functional.cross_entropy(logits, given["labels"])} if "labels" in given else {}
        return {"logits": logits, **own}


@pytest.mark.parametrize(
    "loss", [None, "cross_entropy", lambda made: made["loss"]], ids=["none", "name", "of the model"]
)
def test_labels_among_named_arguments_find_their_loss(loss):
    found = ns.check(_Keywords(), {"x": X, "labels": Y}, loss=loss)
    assert codes(found) == []
    assert found.signal.objective.gradient_of == "the loss"
    assert found.signal.objective.loss_value == pytest.approx(nn.functional.cross_entropy(_Keywords().net(X), Y).item())
    assert "first-loss" in codes(ns.check(_Keywords(1e4), {"x": X, "labels": Y}, loss=loss))


def test_an_optimizer_goes_with_the_loss_of_the_model():
    model = _Keywords()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e5)
    assert "step-too-long" in codes(ns.check(model, {"x": X, "labels": Y}, optimizer=optimizer))
    with pytest.raises(InputError, match="optimizer= needs loss="):
        ns.check(model, {"x": X}, optimizer=optimizer)


def test_t5_with_labels():
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 50,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
        "dropout_rate": 0.0,
    }
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))
    batch = {"input_ids": torch.randint(1, 50, (8, 12)), "labels": torch.randint(1, 50, (8, 7))}
    for loss in (None, "cross_entropy", lambda made: made.loss):
        found = ns.check(model, batch, loss=loss)
        assert found.signal.objective.gradient_of == "the loss"
        assert found.signal.objective.loss_value == pytest.approx(model(**batch).loss.item(), rel=1e-4)


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x, state=None):
        return self.head(self.cell(x, state)[1][0][-1])


def test_packed_sequences_are_one_argument():
    packed = pack_padded_sequence(torch.randn(6, 9, 8), torch.tensor([9, 8, 7, 5, 4, 2]), batch_first=True)
    for found in (ns.check(_Recurrent(), packed), ns.check(_Recurrent(), (packed, Y[:6]), loss="cross_entropy")):
        assert codes(found) == []
        assert found.batches == 1
        assert found.samples == 6


def test_an_input_and_its_state_are_one_batch():
    state = torch.zeros(1, 6, 16), torch.zeros(1, 6, 16)
    found = ns.check(_Recurrent(), (torch.randn(6, 9, 8), state))
    assert codes(found) == []
    assert found.batches == 1


@dataclasses.dataclass(frozen=True)
class _Inputs:
    x: Tensor
    scale: Tensor


def test_inputs_in_a_dataclass():
    inputs = _Inputs(X, torch.rand(32, 1) + 0.5)
    model = Around(lambda net, given: net(given.x * given.scale))
    found = ns.check(model, (inputs, Y), loss="cross_entropy")
    assert codes(found) == codes(ns.check(model, inputs)) == []
    assert found.samples == 32
    assert [row.path for row in found.signal.inputs] == ["input 0.x", "input 0.scale"]
    constant = _Inputs(X[:1].expand(32, 8), torch.ones(32, 1))
    assert codes(ns.check(model, constant)) == ["constant-input"]


def test_a_dict_that_holds_itself():
    def forward(net, x):
        made = {"logits": net(x)}
        made["again"] = made
        return made

    assert codes(ns.check(Around(forward), X)) == []
    batch = {"x": X}
    batch["again"] = batch
    with pytest.raises(InputError, match="holds itself"):
        ns.check(Around(lambda net, given: net(given["x"])), batch)


def test_an_expert_without_samples_is_not_dead():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.experts = nn.ModuleList(network() for _ in range(3))

        def forward(self, x):
            chosen, made = (x[:, 0] > 0).long(), x.new_zeros(len(x), 4)
            for number, expert in enumerate(self.experts):
                made[chosen == number] = expert(x[chosen == number])
            return made

    assert codes(ns.check(Experts(), X)) == []


def test_frozen_weights_that_others_stand_in_for():
    class Adapted(nn.Module):
        def __init__(self, uses):
            super().__init__()
            self.net, self.uses = network().requires_grad_(False), uses
            self.change = nn.Parameter(0.1 * torch.randn(16, 8))

        def forward(self, x):
            weight = self.net[0].weight + self.change * self.uses
            stand_ins = {"0.weight": weight, "2.weight": self.net[2].weight * (1 + self.change.mean())}
            return functional_call(self.net, stand_ins if self.uses else {}, (x * (1 + self.change.mean()),))

    assert codes(ns.check(Adapted(True), X)) == []
    assert "frozen-layer" in codes(ns.check(Adapted(False), X))


def test_an_output_that_the_loss_does_not_read_is_not_cut_off():
    class TwoHeads(nn.Module):
        def __init__(self, *, cut):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.head, self.aux, self.cut = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 2), cut

        def forward(self, x):
            hidden = self.body(x).relu()
            aux = self.aux(hidden)
            return {"logits": self.head(hidden), "aux": aux.detach() if self.cut else aux}

    assert codes(ns.check(TwoHeads(cut=False), (X, Y), loss="cross_entropy")) == []
    assert codes(ns.check(TwoHeads(cut=True), (X, Y), loss="cross_entropy")) == ["gradient-cut"]


@pytest.mark.parametrize("raises", [False, True])
def test_requires_grad_that_a_forward_sets_is_put_back(raises):
    def forward(net, x):
        net[0].requires_grad_(False)
        net[2].requires_grad_(True)
        if raises:
            raise ValueError("no")
        return net(x)

    model = Around(forward)
    model.net[2].requires_grad_(False)
    if raises:
        with pytest.raises(InputError, match="no"):
            ns.check(model, X)
    else:
        assert [f.where for f in ns.check(model, X).findings] == ["net.0"]  # the second layer does train in the forward
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]


def test_bounds_name_a_layer_without_units_and_a_forward_that_draws():
    with pytest.raises(CaptureError, match=r"'0\.weight' \(0x8\) has no"):
        ns.lipschitz(nn.Sequential(nn.Linear(8, 0)), X)
    noisy = Around(lambda net, x: net(x) + torch.randn(4)).eval()
    with pytest.raises(RandomOperatorError, match="a random function has no Lipschitz constant"):
        ns.lipschitz(noisy, X)


class AddMM(nn.Module):
    """A layer that multiplies as GPT-2's do, with the bias first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8) / 3), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_an_input_with_a_gradient_is_no_weight_in_place_of_a_layers_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), AddMM(), nn.Tanh(), nn.Linear(8, 2))
    model[2].requires_grad_(False)
    check = ns.check(model, torch.randn(16, 8))
    assert check.signal.weights.replaced == ()
    assert "frozen-layer" in [finding.code for finding in check.findings]
