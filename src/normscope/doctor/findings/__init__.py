"""What is wrong with a model: one function per finding, the most fundamental causes first.

A finding is a function from `Examined` to `Finding`s, one per layer it concerns, with a line in `LOOKED_FOR`. It need
not order: `look` drops consequences (`causes.py` says what follows from what) and sorts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...core.finding import Finding
from ..checking.examined import Examined
from .causes import unexplained
from .depth import (
    backward_raises,
    batch_norm_depth,
    exploding_run,
    gradient_explosion,
    gradient_jump,
    gradient_vanishing,
    no_gradient,
    starved_layers,
)
from .loss import (
    activation_before_loss,
    equal_outputs,
    idle_label,
    labels_outside,
    loss_not_finite,
    means_compared,
    no_better_than_constant,
    no_loss_gradient,
    one_class,
    targets_do_not_fit,
    wrong_sign,
)
from .normalizers import (
    eps_dominated,
    eps_scale,
    expanding_normalizer,
    small_batch,
    spectral_norm_off,
    stale_statistics,
    tiny_sets,
    written_eps,
    wrong_mode,
)
from .parameters import (
    branch_dominates,
    cut_gradient,
    decayed_weights,
    embedding_scale,
    equal_units,
    frozen_layer,
    gradient_not_finite,
    lost_draws,
    rank_one,
    recurrent_scale,
    scale_stands_out,
    strong_dropout,
    unregistered_weights,
    unused_parameters,
    zero_weights,
)
from .samples import (
    constant_input,
    erased_by_norm,
    input_ignored,
    inverted_mask,
    labels_are_inputs,
    mask_leaks,
    padding_read,
    reads_ahead,
    samples_mixed,
)
from .scale import half_precision, input_scale, non_finite_activations, non_finite_weights, one_column, unscaled_numbers
from .steps import loss_rises, next_step, resting_group, shrinking_values, wrong_parameters
from .structure import (
    constant_output,
    fading_differences,
    flat_activation,
    hidden_softmax,
    missing_activation,
    narrow_layer,
    softmax_axis,
)
from .units import dead_channels, dead_layer, dead_relu, saturated_units

LOOKED_FOR: tuple[Callable[[Examined], Iterator[Finding]], ...] = (
    labels_outside,
    backward_raises,
    activation_before_loss,
    targets_do_not_fit,
    one_class,
    equal_outputs,
    no_loss_gradient,
    idle_label,
    means_compared,
    wrong_sign,
    input_scale,
    unscaled_numbers,
    one_column,
    non_finite_weights,
    non_finite_activations,
    loss_not_finite,
    gradient_not_finite,
    constant_input,
    samples_mixed,
    input_ignored,
    erased_by_norm,
    mask_leaks,
    reads_ahead,
    labels_are_inputs,
    inverted_mask,
    padding_read,
    wrong_parameters,
    unregistered_weights,
    cut_gradient,
    lost_draws,
    unused_parameters,
    equal_units,
    zero_weights,
    decayed_weights,
    recurrent_scale,
    scale_stands_out,
    embedding_scale,
    branch_dominates,
    rank_one,
    missing_activation,
    narrow_layer,
    flat_activation,
    hidden_softmax,
    softmax_axis,
    strong_dropout,
    tiny_sets,
    eps_scale,
    spectral_norm_off,
    dead_layer,
    constant_output,
    fading_differences,
    exploding_run,
    batch_norm_depth,
    gradient_explosion,
    no_gradient,
    starved_layers,
    saturated_units,
    gradient_vanishing,
    shrinking_values,
    half_precision,
    dead_channels,
    wrong_mode,
    stale_statistics,
    small_batch,
    eps_dominated,
    written_eps,
    dead_relu,
    expanding_normalizer,
    frozen_layer,
    loss_rises,
    next_step,
    resting_group,
    gradient_jump,
    no_better_than_constant,
)
"""Every finding; what stands earlier is more likely the cause of what stands later."""


def look(
    examined: Examined, more: Mapping[Callable[..., Any], Sequence[Callable[[Any], Iterator[Finding]]]] = {}
) -> tuple[Finding, ...]:
    """Return what is wrong with a model or worth knowing about it.

    Args:
        examined: the model with its layers and data.
        more: further findings, by the one of `LOOKED_FOR` before which they stand.

    Returns:
        The most serious findings first; within a severity the more fundamental causes, then the earlier layers. Mere
        consequences of another finding are left out.
    """
    found = [finding for one in LOOKED_FOR for finder in (*more.get(one, ()), one) for finding in finder(examined)]
    order = {code: rank for rank, code in enumerate(dict.fromkeys(finding.code for finding in found))}
    depth = _depths(examined)
    kept = unexplained(_once(found), examined)
    kept.sort(key=lambda f: (-f.severity.rank, order[f.code], depth(f.where)))
    return tuple(kept)


def _depths(examined: Examined) -> Callable[[str], int]:
    """Return a function that says how deep in the model a path or parameter lies."""
    paths: dict[str, int] = {}
    for row in () if examined.signal is None else examined.signal.rows:
        paths.setdefault(row.path, len(paths))
    for place in examined.places:
        paths.setdefault(place.path, len(paths))

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
