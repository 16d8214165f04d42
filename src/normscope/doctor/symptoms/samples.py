"""What the output for a sample depends on: other samples, arguments, padding, what a mask was to hide."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.finding import Finding, Severity, figures, percent
from ...listening.calls import NORMALIZERS, RECURRENT
from ...report.words import listed
from ..facts.examined import Examined
from ..facts.input_use import MOST_SILENT
from ..facts.loss_call import CLASSES
from ..facts.pass_facts import PassFacts, is_generator_step
from ..facts.positions import PositionFacts
from .check_readings import loss_facts_of, sample_facts_of
from .symptom import FindingWords, finding

FINDING_WORDS = {
    "samples-mixed": FindingWords("the samples of a batch are mixed in {where}"),
    "input-ignored": FindingWords(
        "the output ignores part of its input ({where})", "the output ignores {count} parts of its input"
    ),
    "mask-leaks": FindingWords("the mask of {where} does not hide"),
    "order-unknown": FindingWords("the order of the tokens is lost before {where}"),
    "cache-differs": FindingWords("decoding with a cache gives other outputs than without"),
    "eval-differs": FindingWords(
        "in eval mode the same samples get different outputs ({where})",
        note=("in eval mode outputs are drawn at random ({where})",) * 2,
    ),
}


def check_samples_mixed(examined: Examined) -> Iterator[Finding]:
    """`samples-mixed` (warning, info): in eval mode the output for one sample moves with another sample, with the first
    module where it shows (info: where it is not certain that the first dimension counts samples: there are neither
    labels nor images, or its order matters, as that of time steps does)
    """
    facts = sample_facts_of(examined)
    if facts is None or facts.mixed_at is None:
        return
    place = f"`{facts.mixed_at}` is the first module where" if facts.mixed_at else "In the model itself"
    yield finding(
        "samples-mixed",
        facts.mixed_at,
        f"In eval mode the output for one sample changes with the other samples of the batch. {place} one sample "
        "shows in another.",
        "Labels are then compared with what belongs to several samples, and a prediction depends on what else is "
        "in the batch.",
        "Check the dim of every softmax, mean, sum, norm, reshape, flatten and transpose at or before this "
        "place: dim 0 is the batch. Recurrent and attention layers need batch_first=True for inputs (batch, time, "
        "features), and flatten needs start_dim=1. If samples are meant to meet (a graph, a set), there is nothing "
        "to do.",
        severity=Severity.WARNING if facts.certain else Severity.INFO,
    )


def check_input_ignored(examined: Examined) -> Iterator[Finding]:
    """`input-ignored` (warning, info): the output does not depend on one of the arguments (info: where layers start at
    zero), on most of the places of an input that differ from sample to sample, or on anything but random numbers
    """
    facts, signal = sample_facts_of(examined), examined.signal
    if signal is None:
        return
    yield from _silent_places(signal)
    if facts is None:
        return
    if facts.random is not None:
        yield _ignored(
            facts.random or "input",
            "The output differs from sample to sample, and it is the same with other inputs: it is drawn at random."
            + (f" `{facts.random}` is the last module that depends on the input." if facts.random else ""),
            "What was computed has no influence on the output. Look where the "
            "random numbers are drawn: the values that the network computed must go in (mean plus "
            "deviation times noise).",
        )
    zeros = [row.name for row in signal.parameters if row.used and row.is_zero and not row.name.endswith("bias")]
    in_generator_step = is_generator_step(signal)
    for name, reader in facts.idle:
        yield _ignored(
            reader or name,
            f"The output does not depend on the argument {name!r}: given the values of other samples it stays the "
            "same."
            + (f" `{reader}` reads it." if reader else "")
            + (f" {listed([f'`{row}`' for row in zeros], most=2)} hold zeros alone." if zeros else ""),
            "This condition has no effect on the output: look on its way for a factor of zero or far too small "
            "a scale, a mask that hides it (invert the mask?), an argument that is overwritten, a detach."
            if not zeros and not in_generator_step
            else "A layer that starts at zero opens with the first steps: nothing to do for a fresh model."
            if zeros
            else "In the step of a generator the data for its discriminator have no effect: nothing to do.",
            Severity.INFO if zeros or in_generator_step else Severity.WARNING,
        )


def _silent_places(signal: PassFacts) -> Iterator[Finding]:
    """Inputs and embeddings of which the output reads few places, though the others differ from sample to sample."""
    attention = next((row.path for row in signal.layers if row.kind == "attention"), None)
    for number, row in enumerate(signal.rows):
        readers = zip(signal.rows, signal.flow.feeds, strict=False)
        recurrent = next(
            (reader.path for reader, feeds in readers if number in feeds and reader.kind in RECURRENT), None
        )
        if row.cut is not None and row.log10_gradient not in (None, -math.inf):
            path, share = row.cut
            place = f"`{path}`" if path else "the forward of the model"
            yield finding(
                "gradient-cut",
                path or row.path,
                f"No gradient comes back to {percent(share)} of the places of `{row.path}` that differ from "
                f"sample to sample, though the output depends on them: values are detached in or behind {place}.",
                "What the network makes of these places is not learned.",
                "Remove the detach (or .data, no_grad) if this is not meant: a state that is detached at each "
                "step learns nothing over time; detach it between batches alone.",
                figures(share=share),
            )
        if row.silent is not None and row.silent > MOST_SILENT and row.log10_gradient not in (None, -math.inf):
            yield _ignored(
                attention or recurrent or row.path,
                f"{percent(row.silent)} of the places of `{row.path}` that differ from sample to sample (columns, "
                "positions, channels or pixels) have no influence on the output.",
                "Check the mask of the attention, if there is one: in torch's key_padding_mask and attn_mask True "
                "hides a place, in others it shows one; invert it. Otherwise look for an index, a slice or a stride "
                "that skips places"
                + (
                    ": of a recurrent layer read the last step (output[:, -1]), the first knows nothing of the others"
                    if recurrent
                    else ""
                )
                + ". If the output is meant to read a few places, there is nothing to do.",
            )


def _ignored(where: str, seen: str, advice: str, severity: Severity = Severity.WARNING) -> Finding:
    return finding(
        "input-ignored",
        where,
        seen,
        "What should steer the network has no influence on it, and what reads it learns nothing.",
        advice,
        severity=severity,
    )


def check_erased_by_norm(examined: Examined) -> Iterator[Finding]:
    """A model that sees nothing of what tells the labels: how large the values of a sample are, or where they lie."""
    facts, signal = sample_facts_of(examined), examined.signal
    if facts is None or signal is None or not facts.erased:
        return
    where = next((row.path for row in signal.layers if row.kind in NORMALIZERS), "")
    yield finding(
        "tiny-sets",
        where or "input",
        f"The labels go with the {facts.erased} of the values of a sample, and the output stays the same when "
        "that changes" + (f": `{where}` takes it away." if where else "."),
        "What a normalizer takes away from each sample by itself no later layer can read.",
        "Use BatchNorm in its place, which standardises each channel over many samples, or standardise the data "
        f"by figures of the whole training set; or hand the {facts.erased} on as an input of its own.",
    )


MAX_LEAK_SHARE = 0.01
"""The share of a softmax that hidden entries may get: what is hidden should get none."""


def check_reads_ahead(examined: Examined) -> Iterator[Finding]:
    """A model that is to predict the next step, and reads it."""
    facts = sample_facts_of(examined)
    by_labels = None if facts is None else facts.reads_ahead
    by_tokens = None if facts is None or facts.positions is None else facts.positions.reads_ahead
    where = by_labels if by_tokens is None else by_tokens
    if where is None:
        return
    yield finding(
        "mask-leaks",
        where or "the model",
        (
            "The model is to foretell the next token, and its output at a position moves when later tokens change"
            if by_labels is None
            else "An argument of the model holds the labels, and the output at a step depends on the label of that step"
        )
        + (f", from `{where}` on." if where else "."),
        "The model reads the answer: its loss goes to zero in training, and in use, where the next step is not "
        "there yet, it knows nothing.",
        "Use a causal mask: is_causal=True in scaled_dot_product_attention, or scores.masked_fill(~ones.tril(), "
        "-inf) before the softmax. Pad convolutions on the left alone, and do not use bidirectional recurrent layers. "
        "Give a decoder the labels of the steps before: tokens[:, :-1] as input, tokens[:, 1:] as labels.",
    )


def check_inverted_mask(examined: Examined) -> Iterator[Finding]:
    """An attention mask among the arguments that hides what counts."""
    facts = sample_facts_of(examined)
    if facts is None or facts.inverted_mask is None:
        return
    yield finding(
        "mask-leaks",
        facts.inverted_mask,
        f"`{facts.inverted_mask}` is 0 at most of the positions that labels count or words stand at, and 1 at the "
        "others.",
        "What should be read is hidden, and what fills the rows up is read in its place.",
        "Invert the mask: in the attention_mask of transformers 1 shows a position and 0 hides it.",
    )


def check_mask_leaks(examined: Examined) -> Iterator[Finding]:
    """`mask-leaks` (warning): entries that `masked_fill` was to hide get more than 1 % of a softmax; an argument holds
    the labels, and the output at a step depends on the label of that step (steps with the label -100 do not count);
    rows are padded at their ends, and cutting some of the padding off changes the output by more than other samples
    do; the attention mask hides tokens, and the output at words moves when these tokens change; a mask that is
    inverted: it hides the words, or the positions that have labels, and shows the padding
    """
    for row in () if examined.signal is None else examined.signal.rows:
        if row.leak is not None and row.leak > MAX_LEAK_SHARE:
            where = f"the softmax of `{row.path}`" if row.path else "a softmax of the model"
            yield finding(
                "mask-leaks",
                row.path or "the model",
                f"Entries that masked_fill was to hide get {percent(row.leak)} of {where}.",
                "What is hidden takes part all the same, and what is not is drowned by it.",
                "Check the value of the mask: fill with -inf or -1e9 (not 1e-9, 0 or -1) before the softmax, so "
                "that hidden entries get nothing.",
                figures(share=row.leak),
            )


def check_hidden_tokens_read(examined: Examined) -> Iterator[Finding]:
    """Tokens that an attention mask hides, and that are read."""
    where, layers = _positions_of(examined).reads_padding, () if examined.signal is None else examined.signal.layers
    attends = any(row.kind in ("attention", "softmax") for row in layers)
    if where is None or not attends or any(check_inverted_mask(examined)):
        return
    yield finding(
        "mask-leaks",
        where or "the model",
        "The attention mask hides the tokens that fill up the rows, and the output at the words moves when these "
        "tokens change" + (f", from `{where}` on." if where else "."),
        "A prediction then depends on how far its row is filled up, and the words drown in the padding.",
        "Hand the attention mask to every attention, one row of it to each sample, and add it to the scores before the "
        "softmax: 0 where a token is shown, -inf where it is hidden.",
    )


def check_order_unknown(examined: Examined) -> Iterator[Finding]:
    """`order-unknown` (warning, info): the first module in which tokens meet returns the same at the last one when some
    before it change places (info: in a model that holds no table of positions)
    """
    facts = _positions_of(examined)
    where = facts.unordered
    if where is not None:
        yield finding(
            "order-unknown",
            where,
            f"`{where}` is the first module that reads several tokens, and its output at the last one stays the same "
            "when tokens before it change places.",
            "The sequence is read as a bag of words: positions are not added to the tokens, or do not reach this "
            "layer.",
            "Look where positions are made: whether their table is added to the tokens (or rotates queries and keys), "
            "is not zero, is long enough, and is indexed by 0, 1, 2, ... along the sequence.",
            severity=Severity.WARNING if facts.has_positions else Severity.INFO,
        )


def check_cache_differs(examined: Examined) -> Iterator[Finding]:
    """`cache-differs` (warning): tokens that are decoded with the cache of those before them get other outputs"""
    if _positions_of(examined).cache_differs:
        yield finding(
            "cache-differs",
            "the model",
            "Given the cache of the tokens before, the model returns other outputs for the last tokens of a sequence "
            "than without a cache.",
            "What it generates is not what it was trained to say, and no figure of its training shows it.",
            "Look at what the cache holds: keys and values of all tokens so far, of this sequence alone, in order; and "
            "at the positions of the new tokens, which go on behind those in the cache.",
        )


def check_unsteady(examined: Examined) -> Iterator[Finding]:
    """`eval-differs` (warning, info): in eval mode the model returns something else for the same samples, as it keeps a
    state from call to call, or (info: where the loss is not one of classes) as it draws random numbers
    """
    facts, loss = sample_facts_of(examined), loss_facts_of(examined)
    if facts is None or facts.unsteady is None or facts.random is not None:
        return
    place = f" `{facts.unsteady}` is the first module where it shows." if facts.unsteady else ""
    yield finding(
        "eval-differs",
        facts.unsteady or "the model",
        "Two passes over the same samples in eval mode give different outputs"
        + (", with other random numbers." if facts.draws else ", with the same random numbers.")
        + place,
        "A prediction is then a matter of chance, and a validation as well."
        if facts.draws
        else "A prediction then depends on what the model was asked before.",
        "Draw random numbers in training alone (if self.training), unless the model is to sample."
        if facts.draws
        else "Begin each call from the same state, unless the model is to remember: give it back to the caller.",
        severity=Severity.INFO if facts.draws and (loss is None or loss.name not in CLASSES) else Severity.WARNING,
    )


def _positions_of(examined: Examined) -> PositionFacts:
    """Return how outputs depend on positions; what nobody looked at is as it should be."""
    facts = sample_facts_of(examined)
    return PositionFacts() if facts is None or facts.positions is None else facts.positions


PADDING_SHARE, MOVED_BY_PADDING_RATIO = 0.2, 1.0
"""The share of padding among positions, above which an inverted mask shows; and how far the output moves when some of
it is cut off, over how far other samples move it, from which the padding is read: behind a mask it does not move."""


def check_padding_read(examined: Examined) -> Iterator[Finding]:
    """Rows that are filled up at their ends, and a model for which it matters by how much."""
    signal, facts = examined.signal, sample_facts_of(examined)
    padding = None if signal is None else signal.batch.padding
    if signal is None or padding is None or facts is None or any(check_mask_leaks(examined)):
        return
    attention = next((row.path for row in signal.layers if row.kind == "attention"), None)
    inverted = padding.share > PADDING_SHARE and padding.words_read < 0.5 < padding.pads_read
    if not inverted and (facts.padding_moves or 0.0) < MOVED_BY_PADDING_RATIO:
        return
    yield finding(
        "mask-leaks",
        (attention if inverted else None) or padding.path,
        f"{percent(padding.share)} of the positions of `{padding.path}` fill up the rows with one value. "
        + (
            f"The output reads {percent(padding.pads_read)} of them, and {percent(padding.words_read)} of the others."
            if inverted
            else "When some of that is taken away from the ends of all rows, the output changes by more than other "
            "samples change it."
        ),
        "What tells the samples apart is hidden, and the padding is read in its place."
        if inverted
        else "The output depends on how long the longest row of the batch is: what tells the samples apart drowns in "
        "the padding, or is forgotten while it is read.",
        "Invert the mask: in torch's key_padding_mask True hides a position, in the attention_mask of "
        "transformers 1 shows one. The padding is what must be masked."
        if inverted
        else "Use a mask that hides the padding: key_padding_mask in attention, a mean over the words alone, "
        "pack_padded_sequence or the state at the last word in recurrent layers; and pad to the longest row of "
        "each batch.",
        figures(share=padding.share, moved=facts.padding_moves),
    )
