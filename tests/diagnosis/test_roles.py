"""What stored tensors do, from names and shapes: groups of rows, and normalizers that are counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from normscope.auditing.bare_weights import ORDER, audit_weights, role_of

NAMES = """
embedding: model.embed_tokens transformer.wte wpe bert.embeddings.word_embeddings gpt_neox.embed_in
attention q: model.layers.0.self_attn.q_proj bert.encoder.layer.0.attention.self.query layers.1.attention.wq
attention k: model.layers.10.self_attn.k_proj encoder.block.0.layer.0.SelfAttention.k attn.to_k
attention v: model.layers.0.self_attn.v_proj attention.self.value layers.0.attention.wv
attention q, k, v: h.0.attn.c_attn layers.0.attention.query_key_value blocks.0.attn.qkv
attention output: model.layers.0.self_attn.o_proj h.0.attn.c_proj encoder.layer.0.attention.output.dense
attention output: encoder.block.0.layer.0.SelfAttention.o layers.0.self_attn.out_proj blocks.0.attn.proj
attention output: layers.0.attention.wo
MLP gate: model.layers.0.mlp.gate_proj layers.0.feed_forward.w1
MLP gate and up: model.layers.0.mlp.gate_up_proj
MLP up: model.layers.0.mlp.up_proj h.0.mlp.c_fc encoder.layer.0.intermediate.dense blocks.3.mlp.fc1
MLP down: model.layers.0.mlp.down_proj h.0.mlp.c_proj encoder.layer.0.output.dense block.0.layer.1.DenseReluDense.wo
MLP down: layers.0.linear2
output head: lm_head classifier model.score
other: bert.pooler.dense fc1 mixer.x_proj kernel_quality weight model.value_head_stack
"""
"""The names of matrices, by what they do."""


@pytest.mark.parametrize("line", NAMES.split("\n")[1:-1])
def test_matrices_are_known_by_their_names(line: str) -> None:
    role, names = line.split(": ")
    assert role in ORDER
    for name in names.split():
        assert role_of(f"{name}.weight", (8, 4)) == role
        assert role_of(f"{name}.bias", (8,)) == "other"  # a shape can contradict a name


SCALES = """
model.layers.0.input_layernorm.weight model.norm.weight h.0.ln_1.weight ln_f.weight bert.embeddings.LayerNorm.gamma
blocks.0.norm1.weight self_attn.q_norm.weight stage.0.normalization.weight rms_final.scale bn1.weight
"""


@pytest.mark.parametrize("name", SCALES.split())
def test_scales_of_normalizers_are_known_by_their_names(name: str) -> None:
    assert role_of(name, (8,)) == "normalizer"
    assert role_of(name, (8, 8)) == "other"
    assert role_of(name.rpartition(".")[0] + ".bias", (8,)) == "other"


@pytest.mark.parametrize("name", ["normal.weight", "mlp.fc1.weight", "logit_scale", "conv.weight_g", "line.weight"])
def test_other_vectors_are_no_scales(name: str) -> None:
    assert role_of(name, (8,)) == "other"


def llama(layers: int = 3) -> dict[str, Tensor]:
    """The names and the form of a Llama's weights, in the order of a file."""
    generator = torch.Generator().manual_seed(0)
    state = {"lm_head.weight": (20, 8), "model.embed_tokens.weight": (20, 8), "model.norm.weight": (8,)}
    for i in range(layers):
        at = f"model.layers.{i}"
        state |= {f"{at}.input_layernorm.weight": (8,), f"{at}.post_attention_layernorm.weight": (8,)}
        state |= {f"{at}.mlp.{name}_proj.weight": (16, 8) for name in ("gate", "up")}
        state |= {f"{at}.mlp.down_proj.weight": (8, 16)}
        state |= {f"{at}.self_attn.{name}_proj.weight": (8, 8) for name in "koqv"}
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in state.items()}


def audit(state: dict[str, Tensor]):
    return audit_weights({name: lambda tensor=tensor: tensor for name, tensor in state.items()}, name="llama")


def test_a_llama_has_its_normalizers_and_its_groups() -> None:
    found = audit(llama(3))
    assert sum(row.role == "normalizer" for row in found.layers) == 7
    assert sum(row.role == "weight" for row in found.layers) == 2 + 7 * 3
    assert "23 weight layers and 7 normalizers" in str(found)
    kinds = [row.kind.rpartition(" ")[0].removesuffix(", matrix").removesuffix(", scale") for row in found.layers]
    groups = list(dict.fromkeys(kinds))
    assert ", ".join(groups) == (
        "embedding, attention q, attention k, attention v, attention output, MLP gate, MLP up, MLP down, output head, "
        "normalizer"
    )
    assert kinds == sorted(kinds, key=groups.index)  # each group in one piece
    paths = [row.path for row in found.layers if row.kind.startswith("attention q")]
    assert paths == [f"model.layers.{i}.self_attn.q_proj" for i in range(3)]
    assert any("grouped by what they do, as far as names and shapes tell" in note for note in found.notes)
    assert any("3 attention q, 3 attention k" in note and "7 normalizer" in note for note in found.notes)
    assert not any("vector" in what for what, _ in found.skipped)
    assert found.parameters == sum(tensor.numel() for tensor in llama(3).values())
    assert sum(row.parameters for row in found.layers) == found.parameters


def test_scales_and_shifts_of_a_layer_norm_are_one_row() -> None:
    state = {"ln_1.weight": torch.tensor([1.0, 0.0, -2.0]), "ln_1.bias": torch.ones(3), "fc.bias": torch.ones(2)}
    found = audit(state)
    (row,) = found.layers
    assert (row.path, row.role, row.parameters, row.channels, row.dead_channels) == ("ln_1", "normalizer", 6, 3, 1)
    assert row.kind == "normalizer, scale and shift 3"
    assert "from 0 to 2" in row.notes[1]
    assert [finding.code for finding in found.findings] == ["dead-channels"]
    assert "1 vector (biases, scales)" in dict(found.skipped)


def test_unknown_names_are_under_other() -> None:
    found = audit({"a.weight": torch.eye(3), "conv.weight": torch.ones(2, 2, 3), "b.A_log": torch.ones(4, 2)})
    assert [row.kind for row in found.layers] == ["convolution 2x2x3", "other, matrix 3x3", "other, matrix 4x2"]
    assert any("2 other" in note for note in found.notes)


def test_broken_scales_are_found() -> None:
    found = audit({"model.norm.weight": torch.tensor([1.0, float("nan")])})
    (row,) = found.layers
    assert row.role == "normalizer"
    assert [finding.code for finding in found.findings] == ["non-finite-weights"]
