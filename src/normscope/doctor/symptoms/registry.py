"""Every symptom, the most fundamental causes first; what is wrong with a model, and what goes wrong in a run, by them.

A rule is a function from `Examined` (the facts of a check) or from `History` (those of a run) to `Finding`s, one per
layer that it concerns. It need not order, nor ask what follows from what (`precedence.py`). In a run it looks at a
bounded number of records, the first and the latest, so that its cost does not grow with the run, and says what it sees
now, every time; `add_record` raises it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.finding import Finding, Severity
from ...report.words import listed
from ..facts.examined import Examined
from ..monitor.history import History
from ..monitor.record import Record
from . import (
    batch_statistics,
    constant_output,
    dead_layers,
    dropout,
    exploding_run,
    gradient_depth,
    gradient_reach,
    half_precision,
    inputs,
    labels,
    loss_function,
    no_better,
    normalizer_gain,
    not_finite,
    optimizer_steps,
    rising_loss,
    samples,
    still_weights,
    structure,
    units,
    unseen_training,
    untrained,
    validation,
    weights,
)
from .precedence import EXPLAINED_BY_RAISED, INPUTS_LOST, LOSS_EXPLAINED, unexplained
from .symptom import FindingWords, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a symptom is seen in a check, and in a run: both where the two stand at the same place in the order.

    Attributes:
        check: yields what is wrong with a model.
        watch: yields what goes wrong in a run.
        urgent: whether `watch` is cheap, for it reads no figures layer by layer, and is asked at every record.
        unless: codes of a run after any of which `watch` is not asked any more: they say it already, or say why.
    """

    check: Callable[[Examined], Iterator[Finding]] | None = None
    watch: Callable[[History], Iterator[Finding]] | None = None
    urgent: bool = False
    unless: tuple[str, ...] = ()


RULES: tuple[Rule, ...] = (
    Rule(check=labels.check_labels_outside),
    Rule(check=gradient_reach.check_backward_raises),
    Rule(check=loss_function.check_activation_before_loss),
    Rule(check=labels.check_targets_do_not_fit),
    Rule(watch=not_finite.watch_loss_not_finite, urgent=True, unless=("loss-not-finite",)),
    Rule(watch=inputs.watch_constant_input, urgent=True),
    Rule(watch=inputs.watch_same_batch),
    Rule(check=labels.check_one_class, watch=labels.watch_labels_alike, urgent=True),
    Rule(check=weights.check_equal_outputs),
    Rule(check=gradient_reach.check_no_loss_gradient),
    Rule(check=loss_function.check_idle_label),
    Rule(check=loss_function.check_means_compared),
    Rule(check=loss_function.check_classes_as_numbers),
    Rule(check=loss_function.check_wrong_sign),
    Rule(watch=loss_function.watch_loss_oddities, urgent=True),
    Rule(watch=inputs.watch_data_changed, urgent=True),
    Rule(check=inputs.check_input_scale, watch=inputs.watch_large_column),
    Rule(check=inputs.check_unscaled_numbers),
    Rule(check=inputs.check_one_column),
    Rule(check=not_finite.check_non_finite_weights),
    Rule(check=not_finite.check_non_finite_activations),
    Rule(check=not_finite.check_loss_not_finite),
    Rule(check=not_finite.check_gradient_not_finite),
    Rule(check=inputs.check_constant_input),
    Rule(check=inputs.check_telling_columns),
    Rule(check=samples.check_samples_mixed),
    Rule(check=samples.check_input_ignored),
    Rule(check=samples.check_erased_by_norm),
    Rule(check=samples.check_mask_leaks),
    Rule(check=samples.check_reads_ahead),
    Rule(check=labels.check_labels_are_inputs),
    Rule(check=samples.check_inverted_mask),
    Rule(check=samples.check_padding_read),
    Rule(check=samples.check_hidden_tokens_read),
    Rule(check=samples.check_order_unknown),
    Rule(check=samples.check_cache_differs),
    Rule(check=samples.check_unsteady),
    Rule(check=untrained.check_wrong_parameters),
    Rule(check=untrained.check_unregistered_weights),
    Rule(check=gradient_reach.check_cut_gradient),
    Rule(check=gradient_reach.check_lost_draws),
    Rule(check=gradient_reach.check_unused_parameters),
    Rule(watch=gradient_reach.watch_gradient_missing, urgent=True),
    Rule(watch=gradient_reach.watch_no_gradient, urgent=True, unless=("no-gradient",)),
    Rule(watch=untrained.watch_not_trained, urgent=True, unless=("not-trained",)),
    Rule(watch=untrained.watch_slow_groups),
    Rule(watch=untrained.watch_frozen_layer, urgent=True, unless=("frozen-layer",)),
    Rule(watch=batch_statistics.watch_part_in_eval_mode, urgent=True, unless=("eval-mode",)),
    Rule(
        check=weights.check_equal_units,
        watch=weights.watch_units_alike,
        urgent=True,
        unless=("units-alike",),
    ),
    Rule(check=weights.check_zero_weights),
    Rule(check=weights.check_lines),
    Rule(check=weights.check_blind_attention),
    Rule(check=weights.check_decayed_weights),
    Rule(check=weights.check_recurrent_scale),
    Rule(check=weights.check_scale_stands_out),
    Rule(check=weights.check_embedding_scale),
    Rule(check=weights.check_branch_dominates),
    Rule(check=weights.check_rank_one),
    Rule(check=structure.check_missing_activation),
    Rule(check=structure.check_narrow_layer),
    Rule(check=structure.check_flat_activation),
    Rule(check=structure.check_hidden_softmax),
    Rule(check=structure.check_softmax_axis),
    Rule(check=structure.check_skip_scale),
    Rule(check=structure.check_attention_scale),
    Rule(check=structure.check_untied_weights),
    Rule(watch=still_weights.watch_no_zero_grad, urgent=True),
    Rule(watch=still_weights.watch_rate_zero, urgent=True, unless=("rate-decayed",)),
    Rule(watch=still_weights.watch_rate_decayed),
    Rule(watch=rising_loss.watch_rate_rose, urgent=True, unless=("loss-spike",)),
    Rule(check=dropout.check_strong_dropout, watch=dropout.watch_strong_dropout),
    Rule(check=batch_statistics.check_tiny_sets),
    Rule(check=normalizer_gain.check_eps_scale),
    Rule(check=normalizer_gain.check_normalizer_start),
    Rule(check=normalizer_gain.check_spectral_norm_off),
    Rule(watch=optimizer_steps.watch_decay_too_strong, unless=("decay-too-strong",)),
    Rule(watch=optimizer_steps.watch_penalty_outweighs, unless=("decay-too-strong",)),
    Rule(watch=still_weights.watch_weights_put_back, urgent=True, unless=("weights-put-back",)),
    Rule(watch=still_weights.watch_weights_still, unless=("weights-put-back",)),
    Rule(watch=rising_loss.watch_steps_too_large, unless=LOSS_EXPLAINED),
    Rule(watch=rising_loss.watch_edge_of_stability),
    Rule(watch=batch_statistics.watch_small_batch, unless=("small-batch",)),
    Rule(watch=normalizer_gain.watch_variance_collapse),
    Rule(check=dead_layers.check_dead_layer, watch=dead_layers.watch_dead_layer),
    Rule(check=constant_output.check_constant_output),
    Rule(check=gradient_depth.check_fading_differences),
    Rule(check=exploding_run.check_exploding_run),
    Rule(check=gradient_depth.check_batch_norm_depth),
    Rule(watch=weights.watch_norm_growth),
    Rule(watch=gradient_depth.watch_gradient_not_finite, unless=("loss-not-finite",)),
    Rule(
        check=gradient_depth.check_gradient_explosion,
        watch=gradient_depth.watch_gradient_explosion,
        unless=("gradient-explosion",),
    ),
    Rule(check=gradient_reach.check_no_gradient),
    Rule(check=gradient_reach.check_starved_layers),
    Rule(check=units.check_saturated_units),
    Rule(
        check=gradient_depth.check_gradient_vanishing,
        watch=gradient_depth.watch_gradient_vanishing,
        unless=("gradient-vanishing",),
    ),
    Rule(check=gradient_depth.check_shrinking_values),
    Rule(check=half_precision.check_half_precision),
    Rule(watch=still_weights.watch_effective_lr),
    Rule(check=dead_layers.check_dead_channels, watch=dead_layers.watch_dead_channels),
    Rule(check=batch_statistics.check_wrong_mode),
    Rule(watch=units.watch_dead_relu),
    Rule(watch=units.watch_saturated_units),
    Rule(watch=units.watch_attention_saturated, unless=("attention-saturated",)),
    Rule(
        check=batch_statistics.check_stale_statistics,
        watch=batch_statistics.watch_stale_statistics,
        unless=("stale-statistics",),
    ),
    Rule(check=batch_statistics.check_small_batch),
    Rule(check=normalizer_gain.check_eps_dominated),
    Rule(check=normalizer_gain.check_written_eps),
    Rule(check=units.check_dead_relu),
    Rule(
        check=normalizer_gain.check_expanding_normalizer,
        watch=normalizer_gain.watch_expanding_normalizer,
        unless=("expanding-normalizer",),
    ),
    Rule(check=untrained.check_frozen_layer),
    Rule(check=optimizer_steps.check_loss_rises),
    Rule(check=optimizer_steps.check_next_step),
    Rule(check=untrained.check_resting_group),
    Rule(check=gradient_depth.check_gradient_jump),
    Rule(watch=rising_loss.watch_loss_rising, urgent=True),
    Rule(watch=rising_loss.watch_loss_spike, urgent=True, unless=("loss-spike",)),
    Rule(watch=constant_output.watch_output_constant, unless=INPUTS_LOST),
    Rule(watch=half_precision.watch_half_precision),
    Rule(
        check=no_better.check_no_better_than_constant,
        watch=no_better.watch_no_better_than_constant,
        unless=LOSS_EXPLAINED,
    ),
)
"""Every rule; what stands earlier is more likely the cause of what stands later."""
FILES = (
    batch_statistics, constant_output, dead_layers, dropout, exploding_run, gradient_depth, gradient_reach,
    half_precision, inputs, labels, loss_function, no_better, normalizer_gain, not_finite, optimizer_steps, rising_loss,
    samples, still_weights, structure, units, unseen_training, untrained, validation, weights,
)  # fmt: skip
FINDING_WORDS = {code: words for file in FILES for code, words in file.FINDING_WORDS.items()} | {
    "gradient-mismatch": FindingWords(
        "the gradient through {where} is not that of its forward",
        "the gradient through {count} modules is not that of their forward",
    ),
    "redundant-bias": FindingWords("the bias of {where} has no effect", "the biases of {count} layers have no effect"),
    "not-lipschitz": FindingWords(
        "{where} can amplify some inputs without limit", "{count} parts can amplify some inputs without limit"
    ),
    "loose-bound": FindingWords("there is no useful bound over all inputs"),
    "no-rule": FindingWords("{where} runs an operator without a rule", "{count} parts run operators without a rule"),
}
"""The words of verdicts by code, those of codes that audits alone raise included."""
EARLY_RECORDS = 5
"""The first records, at each of which all symptoms are looked for: most faults are there from the start."""


def diagnose_model(
    examined: Examined, more: Mapping[Callable[..., Any], Sequence[Callable[[Any], Iterator[Finding]]]] = {}
) -> tuple[Finding, ...]:
    """Return what is wrong with a model or worth knowing about it.

    Args:
        examined: the model with its layers and data.
        more: further rules of a check, by the one before which they stand.

    Returns:
        The most serious findings first; within a severity the more fundamental causes, then the earlier layers. Mere
        consequences of another finding are left out. Many of one code and severity are one, that of the worst layer.
    """
    checks = [check for rule in RULES if rule.check for check in (*more.get(rule.check, ()), rule.check)]
    found = [finding for check in checks for finding in check(examined)]
    if any(finding.severity > Severity.INFO for finding in found):
        from .population import demote_usual  # a healthy model does without the population

        found = demote_usual(found, examined)
    order = {code: rank for rank, code in enumerate(dict.fromkeys(finding.code for finding in found))}
    depth = _depths(examined)
    kept = unexplained(_once(found), examined)
    kept.sort(key=lambda f: (-f.severity.rank, order[f.code], depth(f.where)))
    alike: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in kept:
        alike.setdefault((finding.code, finding.severity), []).append(finding)
    return tuple(shown for group in alike.values() for shown in (_fold(group) if len(group) > MAX_ALIKE else group))


MAX_ALIKE = 3
"""Layers that may have a finding of their own of one code: more of them show one fault."""
MEASURES = ("share", "gates", "filters", "relative_error")
"""Numbers of a finding of which the largest is the worst."""


def _fold(group: Sequence[Finding]) -> list[Finding]:
    """Return one finding for all of a code and severity: that of the worst layer, or else of the first."""
    worst = max(group, key=lambda finding: [finding.numbers.get(name) or 0.0 for name in MEASURES])
    others = tuple(finding.where for finding in group if finding is not worst)
    also = listed([place(where) for where in others], most=MAX_ALIKE)
    numbers = {**worst.numbers, "count": len(group)}
    return [replace(worst, seen=f"{worst.seen} The same is seen in {also}.", numbers=numbers, others=others)]


def _depths(examined: Examined) -> Callable[[str], int]:
    """Return a function that says how deep in the model a path or parameter lies."""
    paths: dict[str, int] = {}
    for row in () if examined.signal is None else examined.signal.rows:
        paths.setdefault(row.path, len(paths))
    for seen in examined.places:
        paths.setdefault(seen.path, len(paths))

    def depth(where: str) -> int:
        return paths.get(where, paths.get(where.rpartition(".")[0], len(paths)))

    return depth


def _once(found: Sequence[Finding]) -> list[Finding]:
    """Keep the most serious finding of a kind at a place: a module that runs twice is one module."""
    best: dict[tuple[str, str], Finding] = {}
    for finding in found:
        key = (finding.code, finding.where)
        if key not in best or finding.severity > best[key].severity:
            best[key] = finding
    return list(best.values())


def add_record(history: History, record: Record, *, thorough: bool = True) -> list[Finding]:
    """Add a record to a history; return the alarms that it raises.

    An alarm of a code at a place is raised once in a run, and once more if it becomes more severe.

    Args:
        history: the history of the run.
        record: the next one.
        thorough: whether to look for all alarms, or only for those that cannot wait.

    Example:
        >>> broken = Record(step=0, seconds=0.0, tier="economy", loss=float("nan"))
        >>> [finding.code for finding in add_record(History(), broken)]
        ['loss-not-finite']
    """
    history.keep(record)
    return look_for_alarms(history, thorough=thorough)


def look_for_alarms(history: History, *, thorough: bool = True) -> list[Finding]:
    """Return the alarms that the records so far raise, and that were not raised yet.

    While numbers are not finite nothing else is said: all of it would follow from that. Nor is what follows from an
    alarm that was raised (`EXPLAINED_BY_RAISED`).
    """
    if not history.records:
        return []
    everything = thorough or len(history.records) <= EARLY_RECORDS
    rules = [rule for rule in RULES if everything or rule.urgent]
    if not_finite.is_broken(history.records[-1]):
        rules = [rule for rule in RULES if rule.watch is not_finite.watch_loss_not_finite]
    raised: list[Finding] = []
    told = {finding.code for finding in history.findings}
    for rule in rules:
        if rule.watch is None or told.intersection(rule.unless):
            continue
        for finding in rule.watch(history):
            finding = replace(finding, step=history.step)
            follows = any(finding.code in EXPLAINED_BY_RAISED[code] for code in told & EXPLAINED_BY_RAISED.keys())
            if not follows and history.raised(finding):
                raised.append(finding)
                told.add(finding.code)
    return raised
