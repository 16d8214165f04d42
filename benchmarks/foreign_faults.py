"""Plant faults of an injector by others into tiny GPT-2, LLaMA, BERT and ViT models; count those that `check` finds.

    python benchmarks/foreign_faults.py [--processes N] [--misses | --harm]

The operators are those that DEForm defines (the injector of the package `defaultplusplus` 0.4.1). They are implemented
here anew from their definitions, with none of its code, and bear its three-letter names. A mutant is one form of an
operator in one model. It is found if `check` gives a warning or an error whose code the healthy model does not show;
the cause is right if such a code is one that `EXPECTED` names for the operator, and the place if that finding names a
module that the operator changes. Mutants that change anything, and those that harm a training or leak the future, are
also counted apart (`foreign_harm.py`, which `--harm` runs). An operator belongs to the half that rules may be tuned on
or to the half for scoring by the hash of its name. A few operators of the scoring half were seen while this was tried
out, so the others are also counted without them. `--misses` names what of the tuned half alone is not found, or not by
its cause and place. Needs `transformers`.
"""

import argparse
import copy
import hashlib
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns

try:
    import transformers
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ImportError:
    sys.exit("This benchmark plants faults into models of transformers >= 5: pip install transformers")

Plant = Callable[[Any, str], Any]
"""Plants a fault into a model of the kind that is named."""

ALL = ("gpt2", "llama", "bert", "vit")
CLASSES = ("GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM", "ViTForImageClassification")
DECODERS, WITH_TOKENS, ENCODERS = ALL[:2], ALL[:3], ALL[2:]
ALL_BUT_LLAMA = ("gpt2", "bert", "vit")
"""LLaMA has fewer keys than queries, and norms without a bias."""
PROJECTIONS = ("query", "key", "value")
SEEN_WHILE_TRIED = {"MZM", "POE", "CLK", "MRM", "RIN"}
"""Operators of the scoring half whose results were seen while the benchmark was tried out."""
WIDTH, HEAD_WIDTH, VOCABULARY, POSITIONS = 96, 24, 160, 48
BLOCKED = torch.finfo(torch.float32).min


def attention_with_faults(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **ignored):
    """Attend as the eager attention of transformers does, with the faults that the module has by `set_attention`."""
    faults = getattr(module, "attention_faults", {})
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scaling = 1.0 if "no_scaling" in faults else query.shape[-1] ** -0.5 if scaling is None else scaling
    precision = torch.half if "half_scores" in faults else query.dtype
    scores = (query.to(precision) @ key.to(precision).transpose(2, 3) * scaling).to(query.dtype)
    mask = None if attention_mask is None else attention_mask[..., : key.shape[-2]]
    if "mask" in faults:
        mask = faults["mask"](query.new_zeros(1, 1, query.shape[2], key.shape[2]) if mask is None else mask)
    if mask is not None:
        scores = scores + mask
    if "dropped_scores" in faults:
        scores = F.dropout(scores, faults["dropped_scores"], True)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    always = "dropped_weights" in faults
    out = F.dropout(weights, faults.get("dropped_weights", dropout), always or module.training) @ value
    if "one_head" in faults:
        out = torch.cat([out[:, :1], torch.zeros_like(out[:, 1:])], 1)
    if "tied_heads" in faults:
        out = out[:, :1].expand_as(out)
    return out.transpose(1, 2).contiguous(), weights


ALL_ATTENTION_FUNCTIONS.register("with_faults", attention_with_faults)
ALL_MASK_ATTENTION_FUNCTIONS.register("with_faults", eager_mask)


def build_model(kind: str, attention: str = "with_faults", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "vit":
        config |= {"image_size": 24, "patch_size": 6, "num_labels": 10}
    else:
        config |= {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "pad_token_id": 0}
    if kind in DECODERS:
        config |= {"bos_token_id": 1, "eos_token_id": 2}
    if kind == "llama":
        config["num_key_value_heads"] = 2
    model = getattr(transformers, CLASSES[ALL.index(kind)])
    return model(model.config_class(**config, attn_implementation=attention)).train()


def build_batch(kind: str) -> dict[str, Tensor]:
    """Return smooth images, or tokens of a Zipf distribution, with padding for LLaMA and BERT."""
    generator = torch.Generator().manual_seed(0)
    if kind == "vit":
        images = F.interpolate(torch.randn(16, 3, 8, 8, generator=generator), size=24, mode="bicubic")
        return {"pixel_values": images, "labels": torch.randint(10, (16,), generator=generator)}
    frequencies = 1 / torch.arange(1.0, 150.0)
    tokens = torch.multinomial(frequencies, 8 * 24, replacement=True, generator=generator).view(8, 24) + 8
    if kind == "gpt2":
        return {"input_ids": tokens, "labels": tokens.clone()}
    mask = (torch.arange(24) < torch.tensor([24, 20, 15, 24, 18, 22, 24, 12])[:, None]).long()
    tokens = torch.where(mask == 1, tokens, 0)
    if kind == "llama":
        return {"input_ids": tokens, "attention_mask": mask, "labels": torch.where(mask == 1, tokens, -100)}
    hidden = (torch.rand(tokens.shape, generator=generator) < 0.3) & (mask == 1)
    tokens, labels = torch.where(hidden, 5, tokens), torch.where(hidden, tokens, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def modules_of(model: nn.Module, *types: str) -> list[Any]:
    modules = [module for module in model.modules() if type(module).__name__ in types]
    assert modules, f"no {types} in {type(model).__name__}"
    return modules


def attentions(model: nn.Module) -> list[Any]:
    return modules_of(model, "GPT2Attention", "LlamaAttention", "BertSelfAttention", "ViTAttention")


def blocks(model: nn.Module) -> list[Any]:
    return modules_of(model, "GPT2Block", "LlamaDecoderLayer", "BertLayer", "ViTLayer")


def projections(model: nn.Module, which: str) -> list[Tensor]:
    """Return the weights of all queries, keys or values ("query", "key", "value"), a row for each output."""
    weights = []
    for module in attentions(model):
        if hasattr(module, "c_attn"):
            weights.append(module.c_attn.weight.data.chunk(3, 1)[PROJECTIONS.index(which)].t())
        else:
            weights.append(getattr(module, which if hasattr(module, which) else f"{which[0]}_proj").weight.data)
    return weights


def feed_forward_weights(model: nn.Module) -> dict[str, Tensor]:
    name = re.compile(r"(?!.*attention).*(mlp|intermediate\.dense|output\.dense).*weight")
    return {one: parameter.data for one, parameter in model.named_parameters() if name.fullmatch(one)}


def output_layer(model: Any, kind: str) -> nn.Linear:
    return model.get_submodule({"vit": "classifier", "bert": "cls.predictions.decoder"}.get(kind, "lm_head"))


def edit_each(parts: Callable[[Any], Iterable[Any]], edit: Callable[[Any], Any]) -> Plant:
    def plant(model: nn.Module, kind: str) -> None:
        for part in list(parts(model)):
            edit(part)

    return plant


def set_attention(**faults: Any) -> Plant:
    return edit_each(attentions, lambda module: setattr(module, "attention_faults", faults))


def drop_mask_of_sdpa(model: nn.Module, kind: str) -> None:
    """Take mask and causality from the attention of torch."""
    for module in attentions(model):
        module.is_causal = False

        def without_mask(*args: Any, forward: Callable[..., Any] = module.forward, **named: Any) -> Any:
            return forward(*args, **{name: None if name == "attention_mask" else one for name, one in named.items()})

        module.forward = without_mask


def open_first_keys(share: float, mask: Tensor) -> Tensor:
    return torch.where(torch.arange(mask.shape[-1]) < max(1, round(mask.shape[-1] * share)), 0.0, mask)


def open_random_keys(share: float, mask: Tensor) -> Tensor:
    is_open = torch.rand(mask.shape[-2:], generator=torch.Generator().manual_seed(3)) < share
    return torch.where(is_open, 0.0, mask)


def swap_queries_with_keys(model: nn.Module, kind: str) -> None:
    for query, key in zip(projections(model, "query"), projections(model, "key"), strict=True):
        saved = query.clone()
        query.copy_(key)
        key.copy_(saved)


def tie_heads(choose: Callable[[int], range], model: nn.Module, kind: str) -> None:
    """Give each head that is chosen of their number the weights of the first."""
    for weight in (weight for which in PROJECTIONS for weight in projections(model, which)):
        heads = weight.unflatten(0, (-1, HEAD_WIDTH))
        for head in choose(len(heads)):
            heads[head].copy_(heads[0].clone())


def freeze_projections(model: nn.Module, kind: str) -> None:
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("query", "key", "value", "q_proj", "k_proj", "v_proj", "c_attn")):
            parameter.requires_grad_(False)


def position_table(model: Any, kind: str) -> Any:
    """Return the module of the positions: their table, rotation or, in ViT, that which holds the table."""
    places = {"gpt2": "transformer.wpe", "llama": "model.rotary_emb", "bert": "bert.embeddings.position_embeddings"}
    return model.get_submodule(places.get(kind, "vit.embeddings"))


def remove_positions(model: Any, kind: str) -> None:
    table = position_table(model, kind)
    forward = table.forward

    def without_rotation(*args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        cosine, sine = forward(*args, **named)
        return torch.ones_like(cosine), torch.zeros_like(sine)

    if kind == "vit":
        table.position_embeddings.requires_grad_(False).zero_()
    else:
        table.forward = without_rotation if kind == "llama" else lambda positions: torch.zeros(*positions.shape, WIDTH)


def change_positions(edit: Callable[[Tensor], Tensor], model: Any, kind: str) -> None:
    table = position_table(model, kind)
    forward = table.forward
    if kind == "vit":
        weight = table.position_embeddings.data
        weight.copy_(weight[:, edit(torch.arange(weight.shape[1])).clamp(max=weight.shape[1] - 1)])
    elif kind == "llama":
        table.forward = lambda x, position_ids=None, **named: forward(x, edit(position_ids), **named)
    else:
        table.forward = lambda positions: forward(edit(positions))


def change_output(module: Any, edit: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Let a module return `edit` of its first input and its output, or the first part of its output."""
    forward = module.forward

    def edited(*args: Any, **named: Any) -> Any:
        out = forward(*args, **named)
        first = args[0] if args else named["hidden_states"]
        return (edit(first, out[0]), *out[1:]) if isinstance(out, tuple) else edit(first, out)

    module.forward = edited


def change_blocks(edit: Callable[[Tensor, Tensor], Tensor], first: int = 0) -> Plant:
    return edit_each(lambda model: blocks(model)[first:], lambda block: change_output(block, edit))


def remove_skips(model: nn.Module, kind: str) -> None:
    if kind != "bert":
        return change_blocks(lambda x, out: out - x)(model, kind)
    for module in modules_of(model, "BertSelfOutput", "BertOutput"):
        module.forward = lambda x, skip, forward=module.forward: forward(x, torch.zeros_like(skip))


def zero_tokens(share: float, model: Any, kind: str) -> None:
    model.get_input_embeddings().weight.data[: round(VOCABULARY * share)].zero_()


def swap_tokens(share: float, model: Any, kind: str) -> None:
    table, count = model.get_input_embeddings().weight.data, round(VOCABULARY * share) // 2
    table[: 2 * count] = table[: 2 * count].roll(count, 0)


def change_feed_forward(edit: Callable[[Tensor], Any]) -> Plant:
    return edit_each(lambda model: feed_forward_weights(model).values(), edit)


def zero_neurons(share: float, model: nn.Module, kind: str) -> None:
    parameters = dict(model.named_parameters())
    for name, weight in feed_forward_weights(model).items():
        if any(part in name for part in ("c_fc", "gate", "up_proj", "intermediate", "fc1")):
            rows = weight.t() if "c_fc" in name else weight
            rows[: round(len(rows) * share)].zero_()
            if (bias := parameters.get(name.replace("weight", "bias"))) is not None:
                bias.data[: round(len(bias) * share)].zero_()


def change_activation(function: Callable[[Tensor], Tensor], model: nn.Module, kind: str) -> None:
    names = {"gpt2": "act", "llama": "act_fn", "bert": "intermediate_act_fn", "vit": "activation_fn"}
    for module in modules_of(model, "GPT2MLP", "LlamaMLP", "BertIntermediate", "ViTMLP"):
        delattr(module, names[kind])
        setattr(module, names[kind], function)


def change_norms(edit: Callable[[Any], Any]) -> Plant:
    return edit_each(lambda model: [module for module in model.modules() if "Norm" in type(module).__name__], edit)


def set_epsilon(epsilon: float, norm: Any) -> None:
    vars(norm).update(eps=epsilon, variance_epsilon=epsilon)


def change_output_weight(edit: Callable[[Tensor], Any], model: nn.Module, kind: str) -> None:
    layer = output_layer(model, kind)
    layer.weight = nn.Parameter(layer.weight.data.clone())  # no longer that of the embedding
    edit(layer.weight.data)


def change_logits(edit: Callable[[Tensor], Tensor], model: nn.Module, kind: str) -> None:
    change_output(output_layer(model, kind), lambda x, out: edit(out))


def change_cache(edit: Callable[[Tensor], Tensor], model: Any, kind: str, layers: int = 2) -> None:
    """Edit the keys and values of past tokens at each step that has some."""
    forward = model.base_model.forward

    def edited(*args: Any, **named: Any) -> Any:
        cache = named.get("past_key_values")
        if cache is not None and hasattr(cache, "layers") and cache.get_seq_length():
            for layer in cache.layers[:layers]:
                layer.keys, layer.values = edit(layer.keys), edit(layer.values)
        return forward(*args, **named)

    model.base_model.forward = edited


def shift_tokens(by: int, past: Tensor) -> Tensor:
    return F.pad(past, (0, 0, max(by, 0), max(-by, 0)))[..., max(-by, 0) :, :][..., : past.shape[-2], :]


def keep_cache_between_calls(model: Any, kind: str) -> None:
    inner, kept = model.base_model, []
    forward = inner.forward

    def edited(*args: Any, **named: Any) -> Any:
        tokens = named.get("input_ids", args[0] if args else None)
        starts_anew = named.get("past_key_values") is None and named.get("use_cache") and tokens is not None
        if starts_anew and kept and len(kept[-1].layers[0].keys) == len(tokens):
            named["past_key_values"] = copy.deepcopy(kept[-1])
        out = forward(*args, **named)
        if getattr(out, "past_key_values", None) is not None:
            kept[:] = [out.past_key_values]
        return out

    inner.forward = edited


FAULTS: list[tuple[str, str, Plant, tuple[str, ...]]] = [
    ("healthy", "", lambda model, kind: None, ALL),
    ("MZM", "", set_attention(mask=torch.zeros_like), ALL),
    ("MZM", "sdpa", drop_mask_of_sdpa, ALL),
    ("MIM", "", set_attention(mask=lambda mask: torch.where(mask == 0, BLOCKED, 0.0)), ALL),
    ("MRM", "head", set_attention(mask=lambda mask: mask.transpose(-1, -2)), ALL),
    ("MRM", "batch", set_attention(mask=lambda mask: mask.roll(1, 0)), ALL),
    *(("MCB", f"{share}", set_attention(mask=partial(open_first_keys, share)), DECODERS) for share in (0.1, 0.5)),
    ("MCB", "random 0.1", set_attention(mask=partial(open_random_keys, 0.1)), DECODERS),
    ("QZQ", "", edit_each(partial(projections, which="query"), Tensor.zero_), ALL),
    ("QZK", "", edit_each(partial(projections, which="key"), Tensor.zero_), ALL),
    ("QZV", "", edit_each(partial(projections, which="value"), Tensor.zero_), ALL),
    ("QSW", "", swap_queries_with_keys, ALL_BUT_LLAMA),
    ("QTH", "all", partial(tie_heads, range), ALL),
    ("QTH", "first half", partial(tie_heads, lambda count: range(max(1, count // 2))), ALL),
    ("QTH", "alternating", partial(tie_heads, lambda count: range(0, count, 2)), ALL),
    ("QFG", "", freeze_projections, ALL),
    ("SDS", "", set_attention(no_scaling=True), ALL),
    ("SPD", "0.1", set_attention(dropped_scores=0.1), ALL),
    ("SUC", "", set_attention(half_scores=True), ALL),
    ("POE", "", remove_positions, ALL),
    *(("PSI", f"{by}", partial(change_positions, lambda positions, by=by: positions + by), ALL) for by in (1, 4)),
    ("PTL", "8", partial(change_positions, lambda positions: positions.clamp(max=7)), ALL),
    ("KMD", "0.1", set_attention(dropped_weights=0.1), ALL),
    ("VSH", "mask", set_attention(one_head=True), ALL),
    ("VSH", "tie", set_attention(tied_heads=True), ALL),
    ("VEC", "", set_attention(mask=lambda mask: mask + torch.full_like(mask[:1, :1], BLOCKED / 2).triu(1)), ENCODERS),
    ("CST", "all", partial(change_cache, lambda past: past[..., :-1, :]), DECODERS),
    ("CST", "first", partial(change_cache, lambda past: past[..., :-1, :], layers=1), DECODERS),
    *(("COB", f"{by}", partial(change_cache, partial(shift_tokens, by)), DECODERS) for by in (-1, 1)),
    ("CTR", "8", partial(change_cache, lambda past: past[..., -8:, :]), DECODERS),
    ("CLK", "", keep_cache_between_calls, DECODERS),
    *(("ETZ", f"{share}", partial(zero_tokens, share), WITH_TOKENS) for share in (0.1, 0.5)),
    ("ESW", "0.3", partial(swap_tokens, 0.3), WITH_TOKENS),
    ("ESS", "5", lambda model, kind: model.bert.embeddings.token_type_embeddings.weight.data.mul_(5), ("bert",)),
    *(("FSW", f"{by}", change_feed_forward(lambda weight, by=by: weight.mul_(by)), ALL) for by in (0.5, 5)),
    *(("FDN", f"{share}", partial(zero_neurons, share), ALL) for share in (0.1, 0.5)),
    *(("FCA", one.__name__, partial(change_activation, one), ALL) for one in (torch.tanh, torch.sigmoid, torch.relu)),
    ("FWI", "zeros", change_feed_forward(Tensor.zero_), ALL),
    ("FWI", "uniform", change_feed_forward(lambda weight: weight.uniform_(-0.02, 0.02)), ALL),
    ("FWI", "ones", change_feed_forward(lambda weight: weight.fill_(1.0)), ALL),
    *(("NSG", f"{by}", change_norms(lambda norm, by=by: norm.weight.data.mul_(by)), ALL) for by in (0.5, 5)),
    ("NZG", "", change_norms(lambda norm: norm.weight.data.zero_()), ALL),
    *(("NSB", f"{by}", change_norms(lambda norm, by=by: norm.bias.data.add_(by)), ALL_BUT_LLAMA) for by in (0.5, 2)),
    *(("NCE", f"{by}", change_norms(partial(set_epsilon, by)), ALL) for by in (0.01, 1.0)),
    ("RRS", "", remove_skips, ALL),
    ("RRS", "zero", change_blocks(lambda x, out: torch.zeros_like(out)), ALL),
    ("RRS", "one block", change_blocks(lambda x, out: x, first=1), ALL),
    *(("RSR", f"{by}", change_blocks(lambda x, out, by=by: out * by), ALL) for by in (0.5, 5)),
    *(("RIN", f"{by}", change_blocks(lambda x, y, by=by: y + by * torch.randn_like(y)), ALL) for by in (0.01, 0.1, 1)),
    *(("OSL", f"{by}", partial(change_logits, lambda logits, by=by: logits * by), ALL) for by in (0.5, 5)),
    ("OZR", "0.1", partial(change_output_weight, lambda weight: weight[: max(1, len(weight) // 10)].zero_()), ALL),
    ("OZR", "all", partial(change_output_weight, Tensor.zero_), ALL),
    ("ORI", "zeros", partial(change_output_weight, Tensor.zero_), ALL),
    ("ORI", "xavier", partial(change_output_weight, nn.init.xavier_uniform_), ALL),
    ("ORI", "kaiming", partial(change_output_weight, nn.init.kaiming_uniform_), ALL),
    ("OOD", "roll", partial(change_logits, lambda logits: logits.roll(1, -1)), ALL),
]
"""Operator, form, what plants it, and the models that it is planted into; the first row is the healthy model."""

ATTENTION, BLOCK, NORM = r"attn|attention", r"\b(h|layers?)\.\d", r"\bln_|norm|LayerNorm"
FEED_FORWARD = r"^(?!.*attention).*(mlp|intermediate|output)"
TOKENS, POSITIONS_HELD, OUTPUT = r"wte|embed", r"wpe|position|rotary|embeddings", r"lm_head|classifier|predictions"
CACHE = r"^the model$|^(model|transformer)$"
EXPECTED: dict[str, tuple[str, str]] = {
    "MZM": ("mask-leaks", ATTENTION),
    "MIM": ("mask-leaks blind-attention input-ignored", ATTENTION),
    "MRM": ("mask-leaks samples-mixed", ATTENTION),
    "MCB": ("mask-leaks", ATTENTION),
    "QZQ": ("zero-weights zero-rows blind-attention", ATTENTION),
    "QZK": ("zero-weights zero-rows blind-attention", ATTENTION),
    "QZV": ("zero-weights zero-rows blind-attention", ATTENTION),
    "QSW": ("", ATTENTION),
    "QTH": ("copied-rows", ATTENTION),
    "QFG": ("frozen-layer", ATTENTION),
    "SDS": ("attention-scale attention-saturated", ATTENTION),
    "SPD": ("strong-dropout eval-differs", ATTENTION),
    "SUC": ("half-precision", ATTENTION),
    "POE": ("order-unknown", POSITIONS_HELD),
    "PSI": ("order-unknown", POSITIONS_HELD),
    "PTL": ("order-unknown", POSITIONS_HELD),
    "KMD": ("strong-dropout eval-differs", ATTENTION),
    "VSH": ("blind-attention unused-parameter no-gradient dead-channels copied-rows equal-units", ATTENTION),
    "VEC": ("input-ignored mask-leaks", ATTENTION),
    "CST": ("cache-differs", CACHE),
    "COB": ("cache-differs", CACHE),
    "CTR": ("cache-differs", CACHE),
    "CLK": ("cache-differs eval-differs", CACHE),
    "ETZ": ("zero-rows", TOKENS),
    "ESW": ("", TOKENS),
    "ESS": ("layer-scale branch-dominates", TOKENS),
    "FSW": ("layer-scale branch-dominates", FEED_FORWARD),
    "FDN": ("zero-rows dead-relu dead-channels", FEED_FORWARD),
    "FCA": ("saturated-units", FEED_FORWARD),
    "FWI": ("zero-weights equal-units rank-one-weights layer-scale", FEED_FORWARD),
    "NSG": ("normalizer-start layer-scale branch-dominates", NORM),
    "NZG": ("dead-layer zero-weights", NORM),
    "NSB": ("normalizer-start layer-scale", NORM),
    "NCE": ("eps-scale eps-dominated", NORM),
    "RRS": ("skip-scale gradient-vanishing output-constant dead-layer no-gradient unused-parameter", BLOCK),
    "RSR": ("skip-scale branch-dominates gradient-explosion gradient-vanishing", BLOCK),
    "RIN": ("eval-differs strong-dropout", BLOCK),
    "OSL": ("first-loss layer-scale loss-does-not-fit", OUTPUT),
    "OZR": ("zero-rows zero-weights equal-units", OUTPUT),
    "ORI": ("untied-weights zero-weights first-loss layer-scale", OUTPUT),
    "OOD": ("loss-does-not-fit", OUTPUT),
}
"""For each operator, by its definition alone: the codes that name its cause (no code tells some), and what the path of
a module matches that it changes."""


def build_mutant(row: int, kind: str, seed: int = 0) -> nn.Module:
    """Return a model of a kind with the fault of a row."""
    _, form, plant, _ = FAULTS[row]
    model = build_model(kind, "sdpa" if form == "sdpa" else "with_faults", seed)
    plant(model, kind)
    return model


def check_mutant(row: int, kind: str) -> set[tuple[str, str]] | str:
    """Return code and place of each warning and error of a mutant, or what `check` raised."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = build_mutant(row, kind)
    torch.manual_seed(1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        result = ns.check(model, build_batch(kind), optimizer=torch.optim.AdamW(trained, lr=1e-3))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    serious = [finding for finding in result.findings if finding.severity > ns.Severity.INFO]
    return {(finding.code, where) for finding in serious for where in (finding.where, *finding.others)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="name what is not right in the tuned half")
    parser.add_argument("--harm", action="store_true", help="measure what mutants do instead, and keep it in a file")
    chosen = parser.parse_args()
    import foreign_harm  # which imports this file

    begun = time.perf_counter()
    mutants = [(row, kind) for row, fault in enumerate(FAULTS) for kind in fault[3]]
    with ProcessPoolExecutor(chosen.processes, get_context("spawn")) as processes:
        if chosen.harm:
            return foreign_harm.write_harm(processes, mutants)
        results = dict(zip(mutants, processes.map(check_mutant, *zip(*mutants))))
    healthy = {kind: results.pop((0, kind)) for kind in ALL}
    for kind, findings in healthy.items():
        print(f"healthy {kind}: {', '.join(sorted({code for code, _ in findings})) or 'no warning'}")
    effects = dict(foreign_harm.read_harm())
    grades = dict[tuple[int, str], int]()  # 0 missed, 1 found, 2 with a right cause, 3 with it at a right place
    for (row, kind), findings in results.items():
        codes, places = EXPECTED[FAULTS[row][0]]
        usual = {code for code, _ in healthy[kind]}
        new = set() if isinstance(findings, str) else {one for one in findings if one[0] not in usual}
        right = [where for code, where in new if code in codes.split()]
        grades[row, kind] = 3 if any(re.search(places, where) for where in right) else 2 if right else int(bool(new))
    tuned = {fault[0] for fault in FAULTS if hashlib.sha256(fault[0].encode()).digest()[0] % 2 == 0}
    scoring = {fault[0] for fault in FAULTS[1:]} - tuned
    halves = {"tuned": tuned, "scoring": scoring, "scoring, never looked at": scoring - SEEN_WHILE_TRIED}
    print(f"{'mutants':<48} {'count':>5} {'found':>11} {'right cause':>11} {'and place':>11}")
    for name, half in halves.items():
        part = {mutant: grade for mutant, grade in grades.items() if FAULTS[mutant[0]][0] in half}
        does = {(row, kind): effects[*FAULTS[row][:2], kind] for row, kind in part}
        groups = {
            "all": list(part),
            "change something": [mutant for mutant in part if does[mutant]],
            "harm or leak": [mutant for mutant in part if does[mutant] - {"changes"}],
            "neither harm nor leak": [mutant for mutant in part if not does[mutant] - {"changes"}],
        }
        for what, group in groups.items():
            counts = [sum(part[mutant] >= grade for mutant in group) for grade in (1, 2, 3)]
            shares = " ".join(f"{f'{count} ({count / max(1, len(group)):.0%})':>11}" for count in counts)
            print(f"{f'{name}: {what}':<48} {len(group):>5} {shares}")
        print(f"{name}: {sum(isinstance(results[mutant], str) for mutant in part)} raised.")
    for (row, kind), grade in grades.items() if chosen.misses else ():
        operator, form, *_ = FAULTS[row]
        if operator in tuned and grade < 3:
            what = ("missed", "wrong cause", "wrong place")[grade]
            print(what, operator, form, kind, sorted(effects[operator, form, kind]), results[row, kind] or "")
    print(f"{time.perf_counter() - begun:.0f} s.")


if __name__ == "__main__":
    main()
