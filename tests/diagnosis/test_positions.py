"""What an output may know of the other positions of its sequence: each fault beside the healthy model without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    FNetConfig,
    FNetForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

import normscope as ns

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
LENGTHS = torch.tensor([12, 6, 9, 12])


def tokens() -> dict[str, Tensor]:
    """Return sequences that are filled up at their ends, and the mask that hides that."""
    ids = torch.randint(3, 40, (4, 12), generator=torch.Generator().manual_seed(0))
    shown = torch.arange(12) < LENGTHS[:, None]
    return {"input_ids": ids * shown, "attention_mask": shown.long()}


def llama() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=1, eos_token_id=2))


def bert() -> nn.Module:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SIZES))


def warned(model: nn.Module, batch: Any, **options: Any) -> dict[str, ns.Finding]:
    """Return the warnings and errors of a check by their code."""
    found = ns.check(model.train(), batch, **options).findings
    return {finding.code: finding for finding in found if finding.severity > ns.Severity.INFO}


def test_healthy_models_of_sequences_get_no_warning():
    batch = tokens()
    for labels in ({}, {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}):
        assert warned(llama(), batch | labels) == {}
    assert warned(bert(), batch) == {}
    facts = ns.check(llama(), batch).signal.dependence.positions
    assert (facts.causal, facts.reason, facts.forwards) == (True, None, 3)


def without_mask(model: nn.Module) -> nn.Module:
    """Let every attention see everything."""
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
            module.register_forward_pre_hook(
                lambda _, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
            )
    return model


@pytest.mark.parametrize("labels", ["none", "all", "some"])
def test_a_causal_model_without_its_mask_is_told_whatever_the_labels_are(labels):
    batch = tokens() if labels == "some" else {"input_ids": tokens()["input_ids"].clamp(min=3)}
    if labels != "none":
        batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)
    assert warned(without_mask(llama()), batch)["mask-leaks"].where.startswith("model.layers.0")


def test_tokens_that_the_mask_hides_are_not_read():
    found = warned(without_mask(bert()), tokens())
    assert found["mask-leaks"].where == "bert.encoder.layer.0.attention.self"
    assert "fill up the rows" in found["mask-leaks"].seen


def test_positions_that_end_too_early_are_told():
    model = llama()
    model.model.rotary_emb.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "position_ids": kwargs["position_ids"].clamp(max=5)}),
        with_kwargs=True,
    )
    assert "order-unknown" in warned(model, tokens())


class Places(nn.Module):
    """Patches with a table of places, which may be read twice."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.places = nn.Parameter(torch.randn(1, 8, 16))
        if twice:
            self.places.data[:, 4:] = self.places.data[:, :4]

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.enter(x) + self.places).relu().mean(1))


@pytest.mark.parametrize("twice", [False, True])
def test_rows_of_a_table_of_positions_do_not_repeat(twice):
    torch.manual_seed(0)
    found = warned(Places(twice=twice), (torch.randn(16, 8, 6), torch.arange(16) % 3), loss="cross_entropy")
    assert set(found) == ({"copied-rows"} if twice else set())


@pytest.mark.parametrize("kind", ["positions by the padding", "a mixture of all positions"])
def test_models_that_read_the_padding_by_design_get_no_warning(kind):
    torch.manual_seed(0)
    if kind == "positions by the padding":
        model = RobertaForMaskedLM(RobertaConfig(**{**SIZES, "max_position_embeddings": 20}))
    else:
        model = FNetForMaskedLM(FNetConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=2, vocab_size=40))
    assert {"order-unknown", "mask-leaks"}.isdisjoint(warned(model, tokens()))


def test_padding_without_a_mask_is_no_order():
    batch = tokens()
    shown = torch.arange(12) < torch.tensor([5, 5, 4, 5])[:, None]
    assert "order-unknown" not in warned(llama(), {"input_ids": batch["input_ids"] * shown})


@pytest.mark.parametrize("build", [llama, bert])
def test_a_model_that_does_not_know_the_order_is_told(build):
    model = build()
    for name, module in model.named_modules():
        if name.endswith("rotary_emb"):
            module.register_forward_hook(lambda *call: tuple(map(torch.ones_like, call[-1])))
        elif name.endswith("position_embeddings"):
            module.register_forward_hook(lambda _, args, made: torch.zeros_like(made))
    assert ".layer" in warned(model, tokens())["order-unknown"].where


def shift_cache(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    cache = kwargs.get("past_key_values")
    for layer in cache.layers if cache is not None and cache.get_seq_length() else ():
        layer.keys = layer.keys.roll(1, 2)
    return args, kwargs


def test_decoding_with_the_cache_gives_what_a_whole_pass_gives():
    model = llama()
    model.model.register_forward_pre_hook(shift_cache, with_kwargs=True)
    assert set(warned(model, tokens())) == {"cache-differs"}


class Counting(nn.Module):
    """A classifier whose output takes random numbers, or what it has seen before, when it is asked to."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.head = kind, nn.Linear(8, 16), nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x).relu()
        if self.kind == "noise" or (self.kind == "noise in training" and self.training):
            x = x + torch.randn_like(x)
        if self.kind == "state":
            self.calls += 1
            x = x + self.calls
        return self.head(x)


@pytest.mark.parametrize(
    ("kind", "told"), [("", False), ("noise in training", False), ("noise", True), ("state", True)]
)
def test_two_passes_in_eval_mode_agree(kind, told):
    torch.manual_seed(0)
    batch = (torch.randn(16, 8), torch.arange(16) % 3)
    found = warned(Counting(kind), batch, loss="cross_entropy")
    assert set(found) == ({"eval-differs"} if told else set())


def projections(model: nn.Module, name: str) -> list[Tensor]:
    """Return the weights of one projection of all layers."""
    return [weight for path, weight in model.named_parameters() if path.endswith(f"self_attn.{name}.weight")]


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
@torch.no_grad()
def test_attention_without_queries_keys_or_values_is_told_by_its_weights(name):
    model = llama()
    for weight in projections(model, name):
        weight.zero_()
    found = [f for f in ns.check(model.train(), tokens()).findings if f.severity > ns.Severity.INFO]
    paths = [f"model.layers.{number}.self_attn" for number in (0, 1)]
    assert [(f.code, f.where) for f in found] == [("zero-weights", f"{path}.{name}") for path in paths]
    assert f"`{paths[0]}` has nothing else to go by" in found[0].seen


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@torch.no_grad()
def test_both_forms_of_attention_show_one_blind_head_of_two(kernel):
    model = llama()
    model.set_attn_implementation(kernel)
    for weight in projections(model, "q_proj"):
        weight[:16] = 0.0
    rows = ns.check(model.train(), tokens()).signal.layers
    assert {row.blind_heads for row in rows if row.blind_heads is not None} == {0.5}


@pytest.mark.parametrize(
    ("kind", "code"), [("copies", "copied-rows"), ("zeros", "zero-rows"), ("tokens", "zero-rows"), ("padding", None)]
)
@torch.no_grad()
def test_rows_of_fresh_matrices_are_neither_zero_nor_copies(kind, code):
    model = llama()
    for weight in projections(model, "q_proj"):
        weight[:16] = weight[16:] if kind == "copies" else 0.0 if kind == "zeros" else weight[:16]
    model.model.embed_tokens.weight[: {"tokens": 9, "padding": 1}.get(kind, 0)] = 0.0
    assert set(warned(model, tokens())) == (set() if code is None else {code})


class Experts(nn.Module):
    """A mean of four experts, whose weights stand in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.head = nn.Parameter(torch.randn(4, 6, 16) / 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.einsum("bi,eij->bej", x, self.experts).relu().mean(1))


@pytest.mark.parametrize(("kind", "code"), [("", None), ("zeros", "zero-rows"), ("copies", "copied-rows")])
def test_experts_are_neither_zero_nor_copies(kind, code):
    torch.manual_seed(0)
    model = Experts()
    if kind:
        model.experts.data[1] = 0.0 if kind == "zeros" else model.experts.data[2]
    found = warned(model, (torch.randn(16, 6), torch.arange(16) % 3), loss="cross_entropy")
    assert set(found) == (set() if code is None else {code})


def test_a_block_that_is_used_twice_counts_once():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    batch = (torch.randn(16, 8), torch.arange(16) % 3)
    assert warned(nn.Sequential(block, block, nn.Linear(8, 3)), batch, loss="cross_entropy") == {}


class OneHead(nn.Module):
    """Attention without an axis of heads, fused or written out."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused, self.query, self.key, self.head = fused, nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query(x), self.key(x)
        if self.fused:
            return self.head(nn.functional.scaled_dot_product_attention(query, key, x).relu().mean(1))
        return self.head(((query @ key.mT).softmax(-1) @ x).relu().mean(1))


@pytest.mark.parametrize("fused", [True, False])
def test_attention_without_an_axis_of_heads_is_one_head(fused):
    torch.manual_seed(0)
    model, batch = OneHead(fused=fused), (torch.randn(16, 5, 6), torch.arange(16) % 3)
    assert "blind-attention" not in warned(model, batch, loss="cross_entropy")
    model.key.weight.data.zero_()
    found = warned(model, batch, loss="cross_entropy")
    assert "blind-attention" not in found, "the weights of its keys say why"
    assert "zero-weights" in found


@torch.no_grad()
def test_kernels_whose_channels_become_pixels_may_begin_as_copies():
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3, padding=1)
    first.weight.copy_(first.weight[:4].repeat_interleave(4, 0))
    for last, code in ((nn.PixelShuffle(2), None), (nn.Upsample(scale_factor=2), "copied-rows")):
        model = nn.Sequential(first, last, nn.ReLU(), nn.Conv2d(4 if code is None else 16, 3, 3, padding=1))
        found = warned(model, (torch.randn(8, 3, 8, 8), torch.randn(8, 3, 16, 16)), loss="mse")
        assert set(found) == ({code} if code else set())
