"""What a stored tensor does in its network, as far as its name and shape tell.

A file of weights does not say how they are used. Names follow the habits of the common libraries, and a shape can
contradict a name; whatever is not recognised is `other`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

EMBEDDING, CONVOLUTION, HEAD, NORMALIZER, OTHER = "embedding", "convolution", "output head", "normalizer", "other"

_BLOCK = r"(mlp|ffn|feed_?forward|ff|layers?[._]?\d+|blocks?[._]?\d+|h\.\d+|resblocks\.\d+)\."
"""Inside a block of a transformer, where plain names as `fc1` mean one thing."""

MATRICES: tuple[tuple[str, str], ...] = (
    ("attention q", r"q|query|wq|to_q|q_(proj|lin|a_proj|b_proj)|query_proj|linear_q"),
    ("attention k", r"k|key|wk|to_k|k_(proj|lin)|key_proj|linear_k"),
    ("attention v", r"v|value|wv|to_v|v_(proj|lin)|value_proj|linear_v"),
    (
        "attention q, k, v",
        r"qkv|qkv_proj|wqkv|to_qkv|query_key_value|c_attn|in_proj_weight|in_proj|kv|to_kv|kv_proj|kv_[ab]_proj\w*",
    ),
    (
        "attention output",
        r"o_proj|(?<!densereludense\.)wo|to_out(\.0)?|out_lin|linear_o|out_proj"
        r"|(self_?|encdec|cross_?)?(attn|attention)(\.output)?\.(c_proj|proj|dense|o|out)",
    ),
    ("MLP gate", r"gate_proj|(feed_forward|ffn|experts\.\d+)\.w1"),
    ("MLP gate and up", r"gate_up_proj"),
    (
        "MLP up",
        rf"up_proj|c_fc|dense_h_to_4h|intermediate\.dense|wi(_[01])?|fc_in|(feed_forward|ffn|experts\.\d+)\.w3"
        rf"|{_BLOCK}(fc1|lin1|linear1)",
    ),
    (
        "MLP down",
        rf"down_proj|mlp\.c_proj|dense_4h_to_h|\d\.output\.dense|densereludense\.wo|fc_out"
        rf"|(feed_forward|ffn|experts\.\d+)\.w2|{_BLOCK}(fc2|lin2|linear2)",
    ),
    (
        EMBEDDING,
        r"(\w+_)?(wte|wpe|emb|embed|embeddings?|embed_tokens|embed_positions|embed_in|embd)|tok_embeddings|shared",
    ),
    (HEAD, r"lm_head|embed_out|classifier|score|head"),
)
"""Roles of matrices and the names (the end of a path, in small letters) they go by; the first that fits counts."""

ORDER = (
    EMBEDDING,
    *(role for role, _ in MATRICES if role not in (EMBEDDING, HEAD)),
    CONVOLUTION,
    HEAD,
    NORMALIZER,
    OTHER,
)
"""The order of groups in a report."""

_MATRICES = [(role, re.compile(rf"(^|\.)({names})$")) for role, names in MATRICES]
_NORM = re.compile(r"(norm(?!al(?!i[sz]))|^(ln|bn|gn|rms)(_?\w{1,5})?$)")
_SCALES = ("weight", "scale", "gamma", "g")


def role_of(key: str, shape: Sequence[int]) -> str:
    """Return what a tensor does, one of `ORDER`.

    Args:
        key: its name in the file, e.g. `model.layers.3.self_attn.q_proj.weight`.
        shape: its shape: a matrix cannot be a normalizer's scale, nor a vector a projection.

    Example:
        >>> role_of("model.layers.3.self_attn.q_proj.weight", (2048, 2048))
        'attention q'
        >>> role_of("model.layers.3.input_layernorm.weight", (2048,))
        'normalizer'
        >>> role_of("model.layers.3.mixer.A_log", (24, 16))
        'other'
    """
    path, _, last = key.lower().rpartition(".")
    if len(shape) == 1:
        return NORMALIZER if last in _SCALES and _NORM.search(path.rpartition(".")[2]) else OTHER
    if 3 <= len(shape) <= 5:
        return CONVOLUTION if last in ("weight", "kernel") else OTHER
    if len(shape) != 2:
        return OTHER
    name = path if last in ("weight", "kernel") and path else key.lower()
    return next((role for role, names in _MATRICES if names.search(name)), OTHER)
