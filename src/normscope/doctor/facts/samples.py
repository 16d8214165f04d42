"""`compare_samples`: does an output depend on its own sample alone, and on every argument of the model?

A few samples run once as they are and once with a change. One sample replaced by another shows whether the outputs of
the other samples depend on it; one argument whose samples are moved by a place shows whether the output reads it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ...calls.call import Call, arguments, is_mask, labels_of, quantized
from ...calls.data_reader import LABEL_KEYS
from ...core.budget import count
from ...core.codec import JsonForm, Part
from ...core.errors import describe_error
from ...core.threads import uncompiled
from ...core.untouched import random_state, seed_random, untouched
from ...listening.calls import as_floats
from ...listening.listener import ForwardListener
from .batch import FEW_VALUES, find_padding, runs_to_the_end
from .loss import NO_CLASS, LossFacts
from .positions import MOVED_SHARE, Outputs, PositionFacts, have_moved, probe_positions

FEW_SAMPLES = 7
"""Samples that run once more: enough to see a change, cheap beside a batch, and an unlikely width of any layer."""
NEAR_ONE = 0.1
"""How far the deviation of a standardised column may be from 1: one sample more or less in its formula, and an eps."""
TOLD_SHARE = 0.6
"""The share of the variance of a figure of the samples above which labels and figure go together."""
TOO_FEW_ROWS = "that takes three samples, and arguments with a row for each"
DIFFERENT_RUNS = "two runs on the same samples differ"
NO_STEPS = "no output of the model has a vector for each step of the labels"
UNKNOWN_SHIFT = "the labels are the inputs themselves, and whether the loss shifts them by a step is not known"
"""Why it is not looked at whether a model reads the labels ahead."""
FEWEST_STEPS = 4
"""The length of a sequence whose labels are its next steps: in a shorter one that may be chance."""
NO_INFLUENCE = 1e-3
"""The change of the output by one argument, as a share of the change by all of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts(Part):
    """How outputs depend on the samples and arguments of a batch.

    Attributes:
        identical: whether all samples of the batch are the same.
        mixed_at: the first module whose output for one sample moves with another sample; `None` if there is none.
        certain: whether labels show that the first dimension counts samples, or the model knows no order in it.
        idle: the arguments without influence on the output, by name, each with the first module that reads it.
        reads_ahead: where an argument holds the labels: the first module whose output at a step moves with the label
            of that step or later ones; `None` if there is none. Steps without a label (-100) do not count.
        ahead_reason: why that was not looked at, though an argument holds the labels.
        copies: the shape of token ids that are their own labels, in a model whose output at a step reads that step and
            earlier ones alone: it learns to copy. Empty where that is not so.
        inverted_mask: the attention mask that hides the positions with labels or words, and shows the padding.
        random: where the first output is drawn at random and depends on no argument: the last module that does.
        padding_moves: how far the output moves when some of the padding at the ends of rows is cut off, over how much
            it differs from sample to sample; `None` without padding.
        erased: what of a sample's values (`size` or `level`) tells the labels but does not move the output; or empty.
        positions: how outputs depend on the positions of a sequence of tokens, where an argument holds one.
        unsteady: the first module whose output differs between two passes on the same samples in eval mode; `None` if
            there is none.
        draws: whether it takes other random numbers for that.
        forwards: passes of at most ten samples that this took.
        reason: why samples were not compared, where the model raised.
    """

    JSON: ClassVar[JsonForm] = JsonForm(
        sparse=(
            "reads_ahead",
            "ahead_reason",
            "copies",
            "inverted_mask",
            "random",
            "padding_moves",
            "erased",
            "reason",
            "positions",
            "unsteady",
            "draws",
        )
    )

    identical: bool = False
    mixed_at: str | None = None
    certain: bool = False
    idle: tuple[tuple[str, str], ...] = ()
    reads_ahead: str | None = None
    ahead_reason: str | None = None
    copies: tuple[int, ...] = ()
    inverted_mask: str | None = None
    random: str | None = None
    padding_moves: float | None = None
    erased: str = ""
    positions: PositionFacts | None = None
    unsteady: str | None = None
    draws: bool = False
    forwards: int = 0
    reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSteps:
    """An argument that holds the labels of a sequence.

    Attributes:
        place: which of the arguments.
        late: by how many steps the target of an output is later there than the output: 1 or 0.
        counts: the outputs that have a target, by sample and step.
        is_known: whether nobody has to guess `late`: a loss inside of the model may shift its labels.
    """

    place: int
    late: int
    counts: Tensor
    is_known: bool = True


def compare_samples(model: nn.Module, batch: Any, loss: LossFacts | None = None) -> SampleFacts:
    """Run a few samples with and without a change, in eval mode and with the same random numbers; leave all as found.

    Models whose arguments do not all have samples as their first dimension, such as graphs, are not compared. What the
    loss was given, where that is known, shows by how many steps it shifts the labels.
    """
    call = arguments(model, batch)
    steps = _find_steps(call, batch, loss)
    try:
        facts = _compare(model, batch, call, steps, loss)
    except Exception as error:  # what the model raises on fewer samples is no fault of it
        facts = SampleFacts(reason=describe_error(error))
    return dataclasses.replace(facts, inverted_mask=_find_inverted_mask(model, batch))


def _compare(
    model: nn.Module, batch: Any, call: Call, steps: LabelledSteps | None, loss: LossFacts | None
) -> SampleFacts:
    tensors = [leaf for leaf in call.leaves if isinstance(leaf, Tensor) and leaf.ndim]
    samples = call.count
    if samples < 3 or not all(len(leaf) == samples for leaf in tensors) or _has_table_of(model, samples):
        return SampleFacts(ahead_reason=None if steps is None else TOO_FEW_ROWS)
    if all(bool((leaf == leaf[:1]).all()) for leaf in tensors):
        return SampleFacts(identical=True)
    few, run, labels = call.first(min(samples, FEW_SAMPLES)), _Runs(model), _labels(batch, call)
    few_steps = steps and dataclasses.replace(steps, counts=steps.counts[: few.count])
    pads = find_padding([leaf for leaf in call.leaves if leaf is not labels], samples)
    if pads is not None:
        longest = pads.sum(1).argsort(descending=True, stable=True)[:FEW_SAMPLES]
        few = call.changed(lambda leaf: leaf[longest.to(leaf.device)])
        few_steps = steps and dataclasses.replace(steps, counts=steps.counts[longest.to(steps.counts.device)])
    training, facts = model.training, dict[str, Any]()
    with uncompiled(), torch.no_grad():
        with untouched(model, "eval"):
            try:
                plain = run(few)
            except Exception:  # a model may be made for batches of one size
                few, few_steps = call, steps
                plain = run(few)
            is_steady = not any(map(have_moved, _ends(plain), _ends(run(few))))
            if is_steady:  # no state, no random numbers of its own
                facts = _probe(run, few, plain, call, batch)
                if run.draws:
                    if any(map(have_moved, _ends(plain), _ends(run(few, draw=True)))):
                        facts["unsteady"] = _first_moved(run.hear(few), run.hear(few, draw=True))
                    facts["draws"] = True
                else:
                    facts["positions"] = probe_positions(run.hear, model, few, batch, loss)
                facts |= _look_ahead(run, few, plain, call, batch, few_steps)
                if pads is not None and few is not call:
                    trimmed = int(pads[longest].sum(1).min())
                    facts["padding_moves"] = _moved_by_padding(run, few, plain, pads.shape[1], trimmed)
        if not is_steady:
            with untouched(model, "eval"):  # its state as it was before the first run
                before, _, after = run.hear(few), run(few), run.hear(few)
            facts = {"unsteady": _first_moved(before, after), "ahead_reason": None if steps is None else DIFFERENT_RUNS}
        if facts.get("idle") and training:  # some arguments are read in training alone
            with untouched(model, "train"):
                in_training = _idle_arguments(run, few, run(few))
            facts["idle"] = tuple((name, reader) for name, reader in facts["idle"] if name in in_training)
    count("passes", run.forwards * few.count)
    positions = facts.get("positions")
    return SampleFacts(**facts, forwards=run.forwards + (0 if positions is None else positions.forwards))


def _first_moved(plain: Outputs, again: Outputs) -> str | None:
    """Return the first module that returns something else for the same samples; None if the model does not."""
    moved = [path for (path, before), (_, after) in zip(plain, again) if have_moved(before, after)]
    return moved[0] if "" in moved else None


def _probe(run: _Runs, few: Call, plain: Outputs, call: Call, batch: Any) -> dict[str, Any]:
    """Return the facts that runs with changed samples show."""
    shift = 0 if run.draws else 1  # noise does not move along
    # All samples at the next place, and the first replaced: the others must not see either of it.
    moved = run(few.changed(partial(_other_first, shift)))
    mixed = _first_mixed(run, few, plain, moved, call.count, shift)
    certain = _labels_count_samples(run.model, call, batch)
    idle = {} if few is call else _idle_arguments(run, few, plain, moved if shift else None)
    if mixed is not None and not certain and _has_labels(call, batch):
        certain = _is_order_free(plain, run(few.rolled()))
    certain = certain or (mixed is not None and _standardises_columns(run.hear(few), mixed))
    mixing = None if mixed is None else run.model.get_submodule(mixed)
    if isinstance(mixing, _BatchNorm) or (mixing is not None and quantized(mixing)):
        mixed = None  # statistics of the batch, or a range of integers for the whole batch: it is meant to see it
    facts = {
        "mixed_at": mixed,
        "certain": certain,
        "idle": tuple(idle.items()),
        "erased": _find_erased(run, few, plain, call, batch),
    }
    if _ends(plain) and run.draws and _is_random(_ends(plain)[0], _ends(run(few.rolled()))[0]):
        moving = _moving_modules(run.hear(few), run.hear(few.rolled()))
        if run.ignores(few, moving):
            facts["random"] = next(reversed(moving), "")
    return facts


def _look_ahead(
    run: _Runs, few: Call, plain: Outputs, call: Call, batch: Any, steps: LabelledSteps | None
) -> dict[str, Any]:
    """Return what a run with other values behind a cut of each sample shows: does the model read its labels ahead?"""
    if steps is None:
        return {}
    if not any(_step_axis(end, few, steps) for end in _ends(plain)):
        return {} if call.leaves[steps.place] is _labels(batch, call) else {"ahead_reason": NO_STEPS}
    other = _with_other_ends(few, steps.place)
    changed = run(other)
    ahead = _first_ahead(plain, changed, few, steps)
    if ahead is not None:
        plain, changed = run.hear(few), run.hear(other)
        ahead = _first_ahead(plain, changed, few, steps)
    if steps.late or _has_source(call, batch, steps.place):
        return {"reads_ahead": ahead}
    if not steps.is_known:
        return {"ahead_reason": UNKNOWN_SHIFT} if ahead is not None else {}
    if _first_ahead(plain, changed, few, dataclasses.replace(steps, late=1)) is None and ahead is not None:
        return {"copies": tuple(call.leaves[steps.place].shape)}
    return {}


def _has_table_of(model: nn.Module, samples: int) -> bool:
    """Whether the model holds a table between all samples of the batch, such as the adjacency matrix of a graph."""
    return any(buffer.shape[-2:] == (samples, samples) for buffer in model.buffers())


def _has_labels(call: Call, batch: Any) -> bool:
    """Whether there are labels, as many along their first dimension as the inputs have."""
    labels = next(iter(labels_of(batch, call)), None)
    return isinstance(labels, Tensor) and labels.shape[:1] == (call.count,)


def _labels_count_samples(model: nn.Module, call: Call, batch: Any) -> bool:
    """Whether the first dimension surely counts samples: inputs are images, or there are as many labels.

    In recurrent models the first dimension may be that of time steps, so there each sample must have one label.
    """
    labels = next(iter(labels_of(batch, call)), None)
    time_first = any(
        vars(module).get("batch_first", True) is False or isinstance(module, nn.RNNCellBase)
        for module in model.modules()
    )
    if labels is None:
        return all(tensor.ndim > 3 for _, tensor in call.variables) and bool(call.variables)  # images
    return _has_labels(call, batch) and (not time_first or labels.numel() == call.count)


class _Runs:
    """Runs a model on a few samples, each time with the same random numbers; counts how often, and sees if it draws."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.forwards, self.draws = model, 0, False
        # torch runs these in eval mode without their modules, unless somebody listens to functions
        fast = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
        self._has_fast_path = any(isinstance(module, fast) for module in model.modules())

    def __call__(self, call: Call, *, draw: bool = False) -> Outputs:
        """Return the outputs of the model itself; with `draw` it gets other random numbers than in all other runs."""
        listener = _OutputListener(self.model, {"": self.model})
        if self._has_fast_path:
            return self._run(call, listener, draw)
        hook = self.model.register_forward_hook(lambda model, args, made: listener.left(model, "", made), prepend=True)
        try:
            return self._run(call, listener, draw, nullcontext())
        finally:
            hook.remove()

    def hear(self, call: Call, *, draw: bool = False) -> Outputs:
        """Return the outputs of all modules."""
        return self._run(call, _OutputListener(self.model), draw)

    def _run(
        self, call: Call, listener: _OutputListener, draw: bool, around: AbstractContextManager[None] | None = None
    ) -> Outputs:
        copy = call.changed(torch.clone)  # a model may write to what it is given
        self.forwards += 1
        seed_random(self.model)
        if draw:
            torch.rand(1, device=next((leaf.device for leaf in call.leaves if isinstance(leaf, Tensor)), None))
        before = random_state(self.model)
        with around or (listener.listening() if self._has_fast_path else listener.hearing_modules()):
            self.model(*copy.args, **copy.kwargs)
        self.draws |= before != random_state(self.model)
        return listener.outputs

    def ignores(self, call: Call, paths: Sequence[str]) -> bool:
        """Whether the first output is computed from weights, and no gradient comes back from it to some modules.

        Without weights it is noise that is returned beside an output, which is no fault. Where a gradient comes back,
        as from the likelihood of what was drawn, the modules learn all the same.
        """
        copy = call.changed(torch.clone)
        self.forwards += 1
        with torch.enable_grad():
            outputs = as_floats(self.model(*copy.args, **copy.kwargs))
        if not outputs or (not outputs[0].requires_grad and any(p.requires_grad for p in self.model.parameters())):
            return False
        output, modules = outputs[0], [self.model.get_submodule(path) for path in paths]
        weights = [p for module in modules for p in module.parameters(recurse=False) if p.requires_grad]
        if not weights or not output.requires_grad:
            return True
        gradients = torch.autograd.grad(output, weights, torch.rand_like(output) + 0.5, allow_unused=True)
        return not any(gradient is not None and bool(gradient.any()) for gradient in gradients)


class _OutputListener(ForwardListener):
    """Keeps what modules of the model return."""

    def __init__(self, model: nn.Module, modules: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__(model, modules)
        self.outputs: Outputs = []

    def left(self, module: nn.Module, path: str, made: Any) -> None:
        """Keep a copy: what comes after may write to it."""
        if self.modules.get(path) is module:
            self.outputs.extend((path, tensor.detach().clone()) for tensor in as_floats(made))


def _ends(outputs: Outputs) -> list[Tensor]:
    """Return the outputs of the model itself."""
    return [tensor for path, tensor in outputs if not path]


def _other_first(shift: int, leaf: Tensor, other: int = 1) -> Tensor:
    """Return samples moved by `shift` places, and then the first of them replaced by another one of before."""
    return torch.cat([leaf[other % len(leaf)][None], leaf.roll(shift, 0)[1:]])


def _first_mixed(run: _Runs, few: Call, plain: Outputs, changed: Outputs, whole: int, shift: int) -> str | None:
    """Return the first module in which other samples than the replaced first one moved; None if no output moved.

    Args:
        run: runs the model.
        few: the samples as they are.
        plain: the outputs of these.
        changed: those with all samples moved by `shift` places and the first replaced.
        whole: how many samples the batch has.
        shift: by how many places the samples were moved.
    """
    samples = few.count
    ends = [end for end in _ends(plain) if end.ndim]  # a loss that the model computes itself is no row of a sample
    if ends and ends[0].shape[:1] == (whole,) != (samples,):
        return ""  # as many rows as before for fewer samples
    if not ends or any(end.shape[:1] != (samples,) or end.shape[1:2] == (samples,) for end in ends):
        return None  # rows that are no samples, or a table of all pairs

    def others_moved(before: Tensor, after: Tensor) -> bool:
        return before.shape[:1] == (samples,) and have_moved(before.roll(shift, 0)[1:], after[1:])

    if not any(map(others_moved, _ends(plain), _ends(changed))):
        return None  # as in most models: what lies inside of them need not be looked at
    pairs = zip(run.hear(few), run.hear(few.changed(partial(_other_first, shift))))
    counted = [(path, before, after) for (path, before), (_, after) in pairs]
    place = next(place for place, (_, before, after) in enumerate(counted) if others_moved(before, after))
    while place and counted[place - 1][0] and _counts_others(*counted[place - 1][1:], samples):
        place -= 1  # the module before has another first dimension, which it has taken for the samples
    if samples == whole > FEW_SAMPLES and samples not in counted[place][1].shape[1:]:
        return None  # a graph, whose nodes are meant to meet
    return counted[place][0]


def _counts_others(before: Tensor, after: Tensor, samples: int) -> bool:
    """Whether a value depends on the samples, and its first dimension counts something else."""
    return before.shape[:1] != (samples,) and have_moved(before, after)


def _is_order_free(plain: Outputs, rolled: Outputs) -> bool:
    """Whether outputs move along with the samples, which steps of time would not do: their order counts."""
    pairs = list(zip(_ends(plain), _ends(rolled), strict=True))
    return any(have_moved(before, after) for before, after in pairs) and not any(
        have_moved(before.roll(1, 0), after) for before, after in pairs
    )


def _standardises_columns(plain: Outputs, path: str) -> bool:
    """Whether a module standardises each column over the samples of the batch."""
    outputs = (value for module, value in plain if module == path and path and value.ndim == 2 and len(value) > 2)
    table = next(outputs, None)
    if table is None or table.shape[1] < 2:
        return False
    deviation, mean = torch.std_mean(table.double(), 0)
    return bool((mean.abs() < MOVED_SHARE).all()) and bool(((deviation - 1.0).abs() < NEAR_ONE).all())


def _labels(batch: Any, call: Call) -> Any:
    """Return the labels: those beside the arguments, or the argument that is named so; None without any."""
    beside = labels_of(batch, call)
    return beside[0] if beside else next((call.kwargs[key] for key in LABEL_KEYS if key in call.kwargs), None)


def _find_steps(call: Call, batch: Any, loss: LossFacts | None) -> LabelledSteps | None:
    """Return the argument that holds the labels of a sequence, at the same steps or a step late.

    It is the labels themselves where no other argument holds them and the model takes them. At the same steps floats do
    not count: an autoencoder is to learn them.
    """
    labels = _labels(batch, call)
    if not isinstance(labels, Tensor) or labels.ndim < 2 or labels.shape[1] < FEWEST_STEPS:
        return None
    here = torch.ones_like(labels, dtype=torch.bool) if labels.is_floating_point() else labels != NO_CLASS
    counts = here.flatten(2).any(2) if labels.ndim > 2 else here
    if int(counts.sum()) < FEWEST_STEPS:
        return None
    for place, leaf in enumerate(call.leaves):
        is_other = isinstance(leaf, Tensor) and leaf is not labels and leaf.shape == labels.shape
        if not is_other or not bool((leaf != leaf[:1]).any()):
            continue
        follows = bool((leaf[:, 1:] == labels[:, :-1])[here[:, :-1]].all()) and bool(here[:, :-1].any())
        if follows and bool((leaf[:, 1:] != leaf[:, :-1]).any()):
            return LabelledSteps(place=place, late=1, counts=counts)
        if not leaf.is_floating_point() and bool((leaf == labels)[here].all()):
            if loss is not None and loss.ahead:  # the loss compares an output with the label of the next step
                return LabelledSteps(place=place, late=1, counts=functional.pad(counts[:, 1:], (0, 1)))
            known = bool(labels_of(batch, call)) or (loss is not None and math.prod(loss.target_shape) == leaf.numel())
            return LabelledSteps(place=place, late=0, counts=counts, is_known=known)
    own = next((place for place, leaf in enumerate(call.leaves) if leaf is labels), None)
    if own is None or labels.is_floating_point() or not _has_source(call, batch, own):
        return None
    return LabelledSteps(place=own, late=0, counts=counts)  # a decoder may be given the labels that it is to predict


def _has_source(call: Call, batch: Any, place: int) -> bool:
    """Whether a model reads another argument beside its labels, masks left out, as one that translates does."""
    labels = _labels(batch, call)
    return any(
        isinstance(leaf, Tensor)
        and leaf is not labels
        and leaf.ndim > 0
        and not is_mask(call.name(other), leaf)
        and not torch.equal(leaf, call.leaves[place])
        and bool((leaf != leaf[:1]).any())  # positions are the same in every sample
        for other, leaf in enumerate(call.leaves)
    )


def _find_inverted_mask(model: nn.Module, batch: Any) -> str | None:
    """Return the attention mask that is 0 at most positions with labels or words and 1 at most others; or None."""
    call = arguments(model, batch)
    named = {call.name(place): leaf for place, leaf in enumerate(call.leaves) if isinstance(leaf, Tensor)}
    rows = [leaf for leaf in (*named.values(), *labels_of(batch, call)) if isinstance(leaf, Tensor) and leaf.ndim == 2]
    for name, mask in named.items():
        if "attention_mask" not in name or mask.ndim != 2 or bool(((mask != 0) & (mask != 1)).any()):
            continue
        beside = [row for row in rows if row is not mask and row.shape == mask.shape and not row.is_floating_point()]
        left_out = [row == NO_CLASS for row in beside] + [
            runs_to_the_end(row == row[:, -1].mode().values) for row in beside if len(row.unique()) > FEW_VALUES
        ]
        for out in left_out:
            if bool(out.any()) and not bool(out.all()) and mask[~out].double().mean() < 0.5 < mask[out].double().mean():
                return name
    return None


def _steps_before_cuts(samples: int, steps: int, late: int = 1) -> Tensor:
    """Return which steps of each sample come before a cut of its own; with `late` of 0 the step at the cut, too."""
    cuts = torch.linspace(1, steps - 1, samples + 2)[1:-1].round()
    return torch.arange(steps) < cuts[:, None] + 1 - late


def _find_erased(run: _Runs, few: Call, plain: Outputs, call: Call, batch: Any) -> str:
    """Return what of the only float input, `size` or `level`, tells the labels and moves no output; empty for none."""
    labels = next(iter(labels_of(batch, call)), None)
    floats = [leaf for _, leaf in call.variables]
    if len(floats) != 1 or not isinstance(labels, Tensor) or labels.numel() != call.count or floats[0].ndim < 2:
        return ""
    values = floats[0].detach().double().flatten(1)
    figures = {"size": values.std(1).clamp(min=1e-300).log(), "level": values.mean(1)}
    for name, figure in figures.items():
        if _share_told(figure, labels.detach().flatten()) > TOLD_SHARE:
            factor, summand = (2.0, 0.0) if name == "size" else (1.0, float(values.std()))
            moved = run(few.changed(partial(_rescaled, factor, summand)))
            if not any(map(have_moved, _ends(plain), _ends(moved))):
                return name
    return ""


def _rescaled(factor: float, summand: float, leaf: Tensor) -> Tensor:
    """Return floats times a factor, plus a number; other values as they are."""
    return factor * leaf + summand if leaf.is_floating_point() else leaf


def _share_told(figure: Tensor, labels: Tensor) -> float:
    """Return the share of the variance of a figure of each sample that labels explain, less what chance explains."""
    if labels.is_complex() or not bool(torch.isfinite(figure).all()) or float(figure.var()) == 0.0:
        return 0.0
    if labels.is_floating_point():
        return float(torch.corrcoef(torch.stack([figure, labels.double()]))[0, 1].nan_to_num() ** 2)
    classes = labels.unique()
    if not 1 < len(classes) <= len(labels) // 4:
        return 0.0
    by_class = (figure[labels == label] for label in classes)
    within = sum(float((values - values.mean()).square().sum()) for values in by_class)
    chance = (len(labels) - 1) / (len(labels) - len(classes))
    return 1.0 - within / float((figure - figure.mean()).square().sum()) * chance


def _moved_by_padding(run: _Runs, call: Call, plain: Outputs, steps: int, trimmed: int) -> float | None:
    """Return how far cutting the last `trimmed` steps off, which are padding in all rows, moves the first output.

    The unit is how much it differs from sample to sample; None where that cannot be measured.
    """
    if not trimmed:
        return None
    try:
        shorter = run(call.changed(lambda leaf: leaf[:, :-trimmed] if leaf.shape[1:2] == (steps,) else leaf))
    except Exception:  # a model may know rows of one length alone
        return None
    rows = [pair for pair in zip(_ends(plain), _ends(shorter)) if all(end.shape[:1] == (call.count,) for end in pair)]
    if not rows:
        return None
    before, after = (end.double() for end in rows[0])
    before = before[:, :-trimmed] if before.ndim > 2 and before.shape[1] == steps else before
    if before.shape != after.shape or not bool(torch.isfinite(before).all() & torch.isfinite(after).all()):
        return None
    if not have_moved(before, after):
        return 0.0
    return float((after - before).norm() / (before - before.roll(1, 0)).norm().clamp(min=1e-300))


def _with_other_ends(call: Call, place: int) -> Call:
    """Return a call in which the steps of one argument behind each sample's cut are those of the sample before."""
    chosen = call.leaves[place]
    early = _steps_before_cuts(len(chosen), chosen.shape[1]).to(chosen.device)
    early = early.reshape(*early.shape, *(1,) * (chosen.ndim - 2))
    return call.changed(lambda leaf: torch.where(early, leaf, leaf.roll(1, 0)) if leaf is chosen else leaf)


def _step_axis(made: Tensor, call: Call, steps: LabelledSteps) -> int:
    """Return the dimension of an output that counts steps, the second or the last; 0 if there is none."""
    length = call.leaves[steps.place].shape[1]
    if made.ndim < 2 or len(made) != call.count:
        return 0
    return 1 if made.shape[1] == length else made.ndim - 1 if made.shape[-1] == length else 0


def _first_ahead(plain: Outputs, changed: Outputs, call: Call, steps: LabelledSteps) -> str | None:
    """Return the first module whose steps before the cuts moved with inputs behind them; None if no output did."""
    early = _steps_before_cuts(call.count, steps.counts.shape[1], steps.late)  # the last has its label behind the cut
    early = early.to(steps.counts.device) & steps.counts
    moved = [
        path
        for (path, before), (_, after) in zip(plain, changed)
        if (axis := _step_axis(before, call, steps))
        and have_moved(*(value.movedim(axis, 1)[early.to(value.device)] for value in (before, after)))
    ]
    return next(iter(moved)) if "" in moved else None


def _moving_modules(plain: Outputs, changed: Outputs) -> list[str]:
    """Return the modules whose output depends on what was changed, in their order."""
    return [path for (path, a), (_, b) in zip(plain, changed) if path and have_moved(a, b)]


def _is_random(plain: Tensor, rolled: Tensor) -> bool:
    """Whether an output differs from sample to sample, and stays as it is when all samples move by a place."""
    return plain.ndim > 0 and not have_moved(plain, rolled) and have_moved(plain, plain.roll(1, 0))


def _idle_arguments(run: _Runs, call: Call, plain: Outputs, moved: Outputs | None = None) -> dict[str, str]:
    """Return the arguments without influence on the output, each with the first module that reads it.

    With the samples of such an argument moved by a place, and the first of them replaced (a mean over samples is the
    same in any order), the values of that module move, and no output does. `moved` has the outputs with all arguments
    changed so, where they are at hand.
    """
    if len(call.leaves) < 2:
        return {}
    whole = _distances(plain, run(call.changed(partial(_other_first, 1))) if moved is None else moved)
    idle: dict[str, str] = {}
    for place, leaf in enumerate(call.leaves):
        name = call.name(place)
        if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.dtype == torch.bool or "[" in name:
            continue
        if is_mask(name, leaf):
            continue  # masks are often all alike, and a dict may hold what only the loss reads
        if bool((leaf == leaf.roll(1, 0)).all()):
            continue
        is_idle = any(whole)
        for other in (1, 2):  # a loss may be the same for one other sample by chance
            if is_idle:
                last = call.changed(partial(_other_first_if, leaf, other))
                distances = zip(_distances(plain, run(last)), whole, strict=True)
                is_idle = all(one <= NO_INFLUENCE * every for one, every in distances)
        if is_idle:
            idle[name] = next(iter(_moving_modules(run.hear(call), run.hear(last))), "")
    return idle


def _other_first_if(chosen: Tensor, other: int, tensor: Tensor) -> Tensor:
    """Return a tensor with its samples moved by a place and the first replaced, if it is the chosen one."""
    return _other_first(1, tensor, other) if tensor is chosen else tensor


def _distances(plain: Outputs, changed: Outputs) -> list[float]:
    """Return how far each output of the model moved; large values such as those of a mask count by their logarithm."""
    ends = zip(_ends(plain), _ends(changed), strict=True)
    moved = [torch.linalg.vector_norm(a.double().asinh() - b.double().asinh()) for a, b in ends]
    return torch.stack(moved).tolist() if moved else []
