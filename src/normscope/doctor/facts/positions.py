"""`probe_positions`: on which positions of its sequence of tokens does an output depend, and which should it not?

Two sequences run in one batch: as they are, with other tokens from the middle on, with other tokens where the attention
mask hides them, with the tokens of the second half but the last one in another order, and with other tokens before the
last one. A model that decodes with a cache runs on, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...calls.call import Call, is_mask, labels_of, parameters_of
from ...core.codec import JsonForm, Part
from ...core.errors import describe_error
from ...listening.calls import as_floats
from .loss import LossFacts
from .loss_call import CLASSES

Outputs = list[tuple[str, Tensor]]
"""The float outputs of every module in the order they come, with its path; those of the model itself have none."""
FEWEST_TOKENS = 4
"""In a shorter sequence a change behind the middle, or another order, may not show."""
CONTINUED_TOKENS = 2
"""How many of the last tokens are decoded with the cache of those before."""
MOVED_SHARE = 1e-3
"""A change of a value over its size that counts as one: batched kernels round by far less."""
ROUNDED_SHARE = 1e-5
"""A change of a value over its size that sums of the same values in another order stay below."""
CAUSAL_CLASSES = ("ForCausalLM", "LMHeadModel")
"""How classes of models are named whose output at a position is to foretell the next token."""
POSITION_NAMES = ("pos", "rotary", "inv_freq", "wpe", "alibi")
"""Parts of the names of tables that tell positions apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionFacts(Part):
    """How outputs at positions of a sequence of tokens depend on the tokens at others.

    Attributes:
        causal: whether the output at a position is meant to know the tokens up to there alone.
        reads_ahead: of a causal model: the first module whose output before the middle moves with tokens behind it.
        reads_padding: the first module whose output at words moves with tokens that the attention mask hides.
        unordered: the first module in which positions meet, if the order of the tokens before is nothing to it.
        has_positions: whether the model holds tables that tell positions apart all the same.
        cache_differs: whether tokens that are decoded with the cache of those before get other outputs.
        forwards: passes of one sequence that decoding took.
        reason: why positions were not looked at, where the model raised or its passes differ.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    causal: bool = False
    reads_ahead: str | None = None
    reads_padding: str | None = None
    unordered: str | None = None
    has_positions: bool = False
    cache_differs: bool = False
    forwards: int = 0
    reason: str | None = None


def have_moved(before: Tensor, after: Tensor) -> bool:
    """Whether values differ by more than rounding."""
    if before.shape != after.shape or not before.numel():
        return False
    change, size = torch.stack([torch.linalg.vector_norm(v, math.inf) for v in (after - before, before)]).tolist()
    return bool(change > MOVED_SHARE * size)


def probe_positions(
    run: Callable[[Call], Outputs], model: nn.Module, call: Call, batch: Any, loss: LossFacts | None
) -> PositionFacts | None:
    """Run a few sequences with changed tokens, and decode one with a cache; None where no argument holds tokens.

    Args:
        run: runs the model in eval mode and returns the outputs of all modules.
        model: the user's model.
        call: its call, with two samples or more.
        batch: the user's batch.
        loss: what the loss was given, where that is known.
    """
    place = _find_tokens(model, call, batch)
    if place is None:
        return None
    facts = PositionFacts(causal=_is_causal(model, call.leaves[place], loss))
    try:
        facts, rest = _probe(run, model, call, place, facts)
        return facts if rest is None else _decode(model, call.name(place), *rest, facts)
    except Exception as error:  # a model may refuse other tokens, or a cache
        return replace(facts, reason=describe_error(error))


def _find_tokens(model: nn.Module, call: Call, batch: Any) -> int | None:
    """Return which argument holds the tokens that an embedding of the model reads as one sequence."""
    labels, config = labels_of(batch, call), getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return None  # what a decoder is given are the labels
    places = [
        place
        for place, leaf in enumerate(call.leaves)
        if isinstance(leaf, Tensor)
        and leaf.dtype in (torch.int32, torch.int64)
        and leaf.ndim == 2
        and not any(leaf is label for label in labels)
        and not is_mask(call.name(place), leaf)
        and not any(word in call.name(place) for word in ("label", "position", "type"))
    ]
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if len(places) != 1 or not tables:
        return None
    tokens = call.leaves[places[0]]
    fits = tokens.shape[1] >= FEWEST_TOKENS and max(len(table.weight) for table in tables) > int(tokens.max())
    return places[0] if fits and bool((tokens != tokens[:1]).any()) else None


def _is_causal(model: nn.Module, tokens: Tensor, loss: LossFacts | None) -> bool:
    """Whether the output at a position is meant to know no later token: by the loss, or else by the model's class."""
    if loss is not None and loss.name in CLASSES and loss.target_shape and loss.target_shape[0] != len(tokens):
        return loss.ahead == 1
    names_it = any(kind.__name__.endswith(CAUSAL_CLASSES) for kind in type(model).__mro__)
    return names_it and "perm_mask" not in parameters_of(model)  # by which XLNet is told the order


def _probe(
    run: Callable[[Call], Outputs], model: nn.Module, call: Call, place: int, facts: PositionFacts
) -> tuple[PositionFacts, tuple[Tensor, Tensor] | None]:
    """Run the changed sequences as one batch; return what to decode with a cache as well, and its outputs without."""
    tokens, words = call.leaves[place], _words(call, place)
    totals = words.sum(1)
    fewest, most = torch.stack([totals.argmin(), totals.argmax()]).tolist()
    rows = torch.tensor([fewest, most if most != fewest else (fewest + 1) % len(tokens)], device=tokens.device)
    tokens, words, counts = tokens[rows], words[rows], totals[rows]
    filled = (words == (torch.arange(words.shape[1], device=words.device) < counts[:, None])).all()
    is_filled, least, longest = torch.stack([filled, counts.min(), counts[1]]).tolist()
    if not is_filled or least < FEWEST_TOKENS:
        return replace(facts, reason="the sequences are padded at their beginnings, or too short"), None
    other = _other_tokens(call.leaves[place], _words(call, place) & (call.leaves[place] != _padding_token(model)), rows)
    steps = torch.arange(tokens.shape[1], device=tokens.device)
    before_last = steps < counts[:, None] - 1
    early = steps < counts[:, None] // 2
    turned = counts[:, None] // 2 + counts[:, None] - 2  # the sum of two steps that change places
    forms = [
        tokens,
        torch.where(early | ~words, tokens, other),
        torch.where(words, tokens, other),
        torch.where(before_last & ~early, tokens.gather(1, (turned - steps).clamp(0, len(steps) - 1)), tokens),
        torch.where(before_last, other, tokens),
    ]
    whole = call.changed(lambda leaf: leaf[rows].repeat(len(forms), *(1,) * (leaf.ndim - 1)))
    outputs = run(whole.replaced({place: torch.cat(forms)}))
    ends = [made for path, made in outputs if not path]
    views = [(path, _by_form(made, len(forms), words.shape)) for path, made in outputs]
    steps_out = any(view is not None for path, view in views if not path)
    compared = [(path, view) for path, view in views if view is not None]
    ahead = _find_moving(compared, 1, early) if facts.causal else None
    end_moved = any(have_moved(made[:2], made[4:6]) for made in ends if made.shape[:1] == (2 * len(forms),))
    at_last = [(path, view[:, 1, longest - 1]) for path, view in compared]  # of the longer sequence
    meeting = next((own for own in at_last if own[0] and have_moved(own[1][0], own[1][4])), None)
    turns = bool((forms[3] != tokens)[1].any())  # the places of padding are all alike
    unordered = meeting[0] if turns and meeting is not None and not _knows_order(meeting[1]) else None
    mixes = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.RNNBase) for module in model.modules())
    mixes |= any(made.ndim == 3 and made.shape[1] != words.shape[1] for _, made in outputs)  # positions are pooled
    facts = replace(
        facts,
        reads_ahead=ahead,
        reads_padding=None if mixes else _find_moving(compared, 2, words, at_end=not (end_moved and not steps_out)),
        unordered=unordered,
        has_positions=unordered is not None and _has_positions(model),
    )
    plain = next((view[0][1, :longest] for path, view in compared if not path), None)
    if facts.reads_ahead is None and facts.causal and plain is not None and "use_cache" in parameters_of(model):
        return facts, (tokens[:, :longest], plain)
    return facts, None


def _find_moving(
    compared: Sequence[tuple[str, Tensor]], form: int, places: Tensor, *, at_end: bool = True
) -> str | None:
    """Return the first module whose output at some places differs from that of the unchanged form, if there is one.

    With `at_end` None is returned unless the output of the model itself differs.
    """
    at = places.nonzero(as_tuple=True)
    ends = [one for one in compared if not one[0]] if at_end else compared
    if not any(have_moved(view[0][at], view[form][at]) for _, view in ends):
        return None
    return next(path for path, view in compared if have_moved(view[0][at], view[form][at]))


def _words(call: Call, place: int) -> Tensor:
    """Return the positions that a mask among the arguments shows; all where there is none."""
    tokens = call.leaves[place]
    for other, leaf in enumerate(call.leaves):
        if isinstance(leaf, Tensor) and leaf.shape == tokens.shape and is_mask(call.name(other), leaf):
            return leaf != 0
    return torch.ones_like(tokens, dtype=torch.bool)


def _padding_token(model: nn.Module) -> int:
    """Return the token that fills rows up, by which some models count positions; -1 where nobody can tell."""
    token = getattr(getattr(model, "config", None), "pad_token_id", None)
    return -1 if token is None else token


def _other_tokens(tokens: Tensor, words: Tensor, rows: Tensor) -> Tensor:
    """Return, for some rows, a word of another row at each position, which differs wherever one does."""
    other = tokens[rows]
    for shift in range(1, len(tokens)):
        usable = (other == tokens[rows]) & words.roll(shift, 0)[rows]
        other = torch.where(usable, tokens.roll(shift, 0)[rows], other)
    return other


def _by_form(made: Tensor, forms: int, shape: Sequence[int]) -> Tensor | None:
    """Return an output by form, sample and position; None where it has no vector for each."""
    if made.shape[:2] != (forms * shape[0], shape[1]):
        return None
    return made.unflatten(0, (forms, shape[0]))


def _knows_order(view: Tensor) -> bool:
    """Whether an output at the last word moves when words before it change places; numbers may be too coarse."""
    before, after = view[0].double(), view[3].double()
    exact = view.dtype in (torch.float32, torch.float64)
    return not exact or bool((after - before).abs().amax() > ROUNDED_SHARE * before.abs().amax())


def _has_positions(model: nn.Module) -> bool:
    """Whether a model holds tables that tell positions apart."""
    held: Iterator[tuple[str, Any]] = iter([*model.named_parameters(), *model.named_buffers()])
    return any(word in name for name, _ in held for word in POSITION_NAMES)


def _decode(model: nn.Module, name: str, tokens: Tensor, plain: Tensor, facts: PositionFacts) -> PositionFacts:
    """Decode the end of the second sequence with the cache of its beginning, after the cache of the first was made."""
    begin = tokens.shape[1] - CONTINUED_TOKENS

    def decode(ids: Tensor, **options: Any) -> Any:
        return model(**{name: ids}, use_cache=True, **options)

    decode(tokens[:1, :begin])  # of which nothing may be left in what follows
    first = decode(tokens[1:, :begin])
    cache = getattr(first, "past_key_values", None)
    if cache is None:
        return replace(facts, forwards=2)
    rest = decode(tokens[1:, begin:], past_key_values=cache)
    decoded = torch.cat([as_floats(made.logits)[0][0] for made in (first, rest)])
    return replace(facts, forwards=3, cache_differs=have_moved(plain, decoded))
