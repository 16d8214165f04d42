"""Designs that are common in networks of others, and healthy: no warning on a fresh one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.finding import Severity


def warned(check: ns.Check) -> set[str]:
    """Return the codes of warnings and errors."""
    return {finding.code for finding in check.findings if finding.severity > Severity.INFO}


def noted(check: ns.Check) -> set[str]:
    """Return the codes of notes."""
    return {finding.code for finding in check.findings if finding.severity is Severity.INFO}


def images(count: int = 16, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return smooth images, half of them brighter, and which these are."""
    y = torch.arange(count) % 2
    return F.interpolate(torch.randn(count, 3, 4, 4), size=size, mode="bicubic") + y[:, None, None, None], y


class StandardisedConv(nn.Conv2d):
    """A convolution that standardises its weights, as networks without normalizers have them."""

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, len(self.weight), -1), None, None, training=True, eps=1e-6)
        return F.conv2d(x, weight.reshape_as(self.weight) * 0.2, self.bias, self.stride, self.padding)


def test_a_weight_that_is_standardised_is_no_normalizer_of_the_data() -> None:
    model = nn.Sequential(
        StandardisedConv(3, 8, 3), nn.ReLU(), StandardisedConv(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 2),
    )  # fmt: skip
    check = ns.check(model, (torch.randn(16, 3, 16, 16), torch.arange(16) % 2), loss="cross_entropy")
    assert warned(check) == set()
    assert check.signal is not None
    assert all(row.kind != "batch_norm" for row in check.signal.rows)


class Squeeze(nn.Module):
    """A gate by the mean of each channel, with a BatchNorm between its layers."""

    def __init__(self, channels: int, inner: int, *, normalized: bool = True) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.norm = nn.BatchNorm2d(inner) if normalized else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(torch.relu(self.norm(self.down(x.mean((2, 3), keepdim=True))))))


def gated(squeeze: nn.Module) -> nn.Sequential:
    """Return a convolutional network with a gate."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), squeeze, nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2),
    )  # fmt: skip


def test_a_batch_norm_behind_a_squeeze_is_a_note_where_the_others_see_enough() -> None:
    check = ns.check(gated(Squeeze(8, 8)), images(), loss="cross_entropy")
    assert warned(check) == set()
    assert "small-batch" in noted(check)


def test_a_batch_norm_of_few_values_is_a_warning_where_all_see_few() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    assert "small-batch" in warned(ns.check(model, (torch.randn(16, 8), torch.arange(16) % 2), loss="cross_entropy"))


def test_one_unit_of_a_squeeze_is_off_by_chance() -> None:
    squeeze = Squeeze(8, 1, normalized=False)
    with torch.no_grad():
        squeeze.down.weight.copy_(-squeeze.down.weight.abs())
        squeeze.down.bias.zero_()
    check = ns.check(gated(squeeze), images(), loss="cross_entropy")
    assert warned(check) == set()
    assert "dead-relu" in noted(check)


class TalkingHeads(nn.Module):
    """Attention whose heads are mixed before and after the softmax."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.after = nn.Conv2d(heads, heads, 1), nn.Conv2d(heads, heads, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        shares = self.after(self.before(q @ k.mT / 2.0).softmax(-1))
        return x + self.out((shares @ v).transpose(1, 2).flatten(2))


def test_heads_that_talk_behind_their_softmax_hide_no_softmax() -> None:
    model = nn.Sequential(nn.Linear(3, 16), TalkingHeads(), nn.LayerNorm(16), nn.Flatten(), nn.Linear(144, 2))
    check = ns.check(model, (torch.randn(32, 9, 3), torch.arange(32) % 2), loss="cross_entropy")
    assert "hidden-softmax" not in warned(check)


def test_a_softmax_between_two_layers_is_still_found() -> None:
    model = nn.Sequential(nn.Linear(3, 16), nn.Softmax(-1), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    check = ns.check(model, (torch.randn(32, 3), torch.arange(32) % 2), loss="cross_entropy")
    assert "hidden-softmax" in warned(check)


class RelativePositions(nn.Module):
    """Attention with a bias that a small network computes of how far two places are apart."""

    def __init__(self, places: int = 64) -> None:
        super().__init__()
        self.register_buffer("apart", (torch.arange(places)[:, None] - torch.arange(places))[..., None].float())
        self.bias = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
        self.q, self.v = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        shares = (self.q(x) @ x.mT / 8.0 + 0.01 * self.bias(self.apart)[..., 0]).softmax(-1)
        return x + shares @ self.v(x)


def test_positions_that_a_model_makes_itself_are_no_input() -> None:
    model = nn.Sequential(nn.Linear(3, 8), RelativePositions(), nn.LayerNorm(8), nn.Flatten(), nn.Linear(512, 2))
    check = ns.check(model, (torch.randn(32, 64, 3), torch.arange(32) % 2), loss="cross_entropy")
    assert "input-scale" not in warned(check)


class GainsPerHead(nn.Module):
    """Attention with a gain for each entry of each head that begins at one."""

    def __init__(self, width: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(heads, width // heads))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, *self.gain.shape)).permute(2, 0, 3, 1, 4)
        shares = (q * self.gain[:, None] @ k.mT).softmax(-1)
        return x + self.out((shares @ v).transpose(1, 2).flatten(2))


def test_gains_that_begin_at_one_are_no_units() -> None:
    model = nn.Sequential(nn.Linear(3, 8), GainsPerHead(), nn.LayerNorm(8), nn.Flatten(), nn.Linear(72, 2))
    check = ns.check(model, (torch.randn(32, 9, 3), torch.arange(32) % 2), loss="cross_entropy")
    assert "equal-units" not in warned(check)


class DroppedBranch(nn.Module):
    """A residual branch that is dropped for most samples."""

    def __init__(self, width: int, kept: float) -> None:
        super().__init__()
        self.up, self.down, self.kept = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), kept

    def forward(self, x: Tensor) -> Tensor:
        branch = self.down(F.gelu(self.up(x)))
        return x + branch * x.new_empty(len(x), 1).bernoulli_(self.kept) if self.training else x + branch


class StochasticDepth(nn.Module):
    """Branches of their own names, one of which is hardly ever taken."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 2)
        self.low, self.high = DroppedBranch(16, 0.8), DroppedBranch(16, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.high(self.low(self.stem(x))))


def test_a_branch_that_was_dropped_in_this_pass_is_a_note() -> None:
    check = ns.check(StochasticDepth(), (torch.randn(32, 8), torch.arange(32) % 2), loss="cross_entropy")
    assert warned(check) == set()
    assert "no-gradient" in noted(check)


class Decoder(nn.Module):
    """A decoder whose blocks can attend to an encoder, and are run without one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([DecoderBlock(), DecoderBlock()]), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.relu().mean(1))


class DecoderBlock(nn.Module):
    """Attention to an encoder where there is one, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_attn, self.fc = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        if encoder_hidden_states is not None:
            x = x + self.encoder_attn(encoder_hidden_states)
        return x + torch.tanh(self.fc(x))


def test_a_decoder_without_an_encoder_leaves_its_cross_attention_unused() -> None:
    check = ns.check(Decoder(), (torch.randn(32, 4, 8), torch.arange(32) % 2), loss="cross_entropy")
    assert warned(check) == set()
    assert "unused-parameter" in noted(check)


class AsksForType(nn.Module):
    """A model that asks its first parameter for its type, and has a use for it in other calls alone."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.randn(1, 1, 8))
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.to(self.mask.dtype) if self.mask.is_floating_point() else x)


def test_a_parameter_that_is_asked_for_its_type_is_not_cut_off() -> None:
    check = ns.check(AsksForType(), (torch.randn(32, 8), torch.arange(32) % 2), loss="cross_entropy")
    assert warned(check) == set()
    assert "unused-parameter" in noted(check)


def test_one_fault_of_many_layers_is_one_finding() -> None:
    layers = [layer for _ in range(5) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    check = ns.check(nn.Sequential(*layers, nn.Linear(8, 2)), (torch.randn(8, 8), torch.arange(8) % 2), mode="train")
    (finding,) = (finding for finding in check.findings if finding.code == "small-batch")
    assert finding.numbers["count"] == 5
    assert {finding.where, *finding.others} == {"1", "4", "7", "10", "13"}
    assert "5 normalizers" in check.verdict
    assert ns.Check.from_json(check.to_json()).findings == check.findings
