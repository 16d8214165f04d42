"""Where every value can be over a ball, and how fast it can move: the pass from the input to the output.

Each value gets an interval per entry, an l2 Lipschitz constant L and one per entry. Intervals come from interval
arithmetic with absolute maps, from rows (norm of the row times L of the source) and from the entries' own constants;
they all hold, so the tightest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ...core.budget import check_time
from ...core.log10 import ceiling10
from ...core.log10 import norm as l2
from ..linalg.linear_map import LinearMap
from ..linalg.operator_norms import absolute, applied, row_norms
from ..operators.effects import Norm
from ..operators.local.local import ROUNDING, Affine, Enclosure, LocalForm, UnrolledStep, flat, times, wide
from ..segments import Form, UnrolledNetwork


class Tightener(Protocol):
    """Knows more about values than the pass itself."""

    def tighten_enclosure(self, enclosures: Enclosures, name: str, step: UnrolledStep | None) -> Enclosure | None:
        """Return a tighter enclosure of a value that a primitive `step` is about to read (None: the output)."""
        ...

    def learn(self, enclosures: Enclosures, index: int, step: UnrolledStep) -> None:
        """Hear of a primitive, whose local map and enclosure are known now."""
        ...


@dataclass(slots=True)
class Enclosures:
    """Every value over the balls, and what every primitive does there.

    Attributes:
        unrolled: the steps.
        radius: `[B]`.
        known: an enclosure per value.
        locals: what each primitive does.
        reasons: why a value cannot be enclosed, by step.
    """

    unrolled: UnrolledNetwork
    radius: Tensor
    known: dict[str, Enclosure] = field(default_factory=dict)
    locals: dict[str, LocalForm] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def output(self) -> Enclosure:
        """The enclosure of the output."""
        return self.known[self.unrolled.output]


def enclose(
    unrolled: UnrolledNetwork,
    values: Mapping[str, Tensor],
    radius: Tensor,
    norm: Norm,
    *,
    ceilings: Mapping[str, float] | None = None,
    helpers: Sequence[Tightener] = (),
) -> Enclosures:
    """Enclose every value over the balls of `radius` `[B]` around the centres whose `values` are given.

    `ceilings` are constants over all inputs, where they are known. Helpers are asked for a tighter enclosure of every
    value that a primitive reads, and of the output.
    """
    result = Enclosures(unrolled, radius)
    most = dict(ceilings or {})
    one = torch.ones_like(radius)
    for item in unrolled.graph.inputs:
        centre = values[item.name]
        reach = wide(radius, centre)
        result.known[item.name] = tidy(centre, centre - reach, centre + reach, one, torch.ones_like(centre), radius)
    for index, step in enumerate(unrolled.steps.values()):
        check_time()
        if isinstance(step.operation, Affine):
            x = _affine(step, step.operation, result, values[step.name], norm)
            ceiling = most.get(step.name, torch.inf)
            if ceiling != torch.inf:
                x = tidy(x.centre, x.low, x.high, x.constant.clamp(max=ceiling), x.entries, x.radius)
            result.known[step.name] = x
            continue
        for name in dict.fromkeys(step.operands):
            _ask(result, name, helpers, step)
        operands = [result.known[name] for name in step.operands]
        local = result.locals[step.name] = step.operation.local(operands)
        fast = any(not bool(part.gain.isfinite().all()) for part in local.parts)
        if local.reason is not None or (fast and all(bool(x.constant.isfinite().all()) for x in operands)):
            result.reasons[step.name] = local.reason or f"{step.name} has no finite limits over the ball"
        constant = sum((times(p.gain, o.constant) for p, o in zip(local.parts, operands, strict=True)), 0.0 * one)
        constant = constant.clamp(max=most.get(step.name, torch.inf))
        entries = sum((part.entries for part in local.parts[1:]), local.parts[0].entries)
        result.known[step.name] = tidy(values[step.name], local.low, local.high, constant, entries, radius)
        for helper in helpers:
            helper.learn(result, index, step)
    _ask(result, unrolled.output, helpers, None)
    return result


def _ask(enclosures: Enclosures, name: str, helpers: Sequence[Tightener], step: UnrolledStep | None) -> None:
    for helper in helpers:
        tighter = helper.tighten_enclosure(enclosures, name, step)
        if tighter is not None:
            enclosures.known[name] = tighter


def tidy(centre: Tensor, low: Tensor, high: Tensor, constant: Tensor, entries: Tensor, radius: Tensor) -> Enclosure:
    """Let every figure tighten the others; what is not a number is not known."""
    constant, entries = (x.nan_to_num(nan=torch.inf, posinf=torch.inf) for x in (constant, entries))
    constant = torch.minimum(constant, l2(flat(entries), 1) * (1 + 1e-12))
    entries = torch.minimum(entries, wide(constant, entries))
    low = torch.where(low.isnan(), -torch.inf, low)
    high = torch.where(high.isnan(), torch.inf, high)
    pad = ROUNDING * centre.abs().nan_to_num(0.0, 0.0, 0.0)
    reach = times(entries, wide(radius, entries)) * (1 + 1e-12) + pad
    low = torch.minimum(torch.maximum(low - pad, centre - reach), centre)
    high = torch.maximum(torch.minimum(high + pad, centre + reach), centre)
    return Enclosure(centre, low, high, constant, entries, radius)


def _affine(step: UnrolledStep, affine: Affine, enclosures: Enclosures, centre: Tensor, norm: Norm) -> Enclosure:
    """Enclose an affine step: one operator at a time and, where a segment ends, by folded maps of the sources."""
    by_step = _combined(list(zip(step.operands, affine.maps, strict=True)), enclosures, centre, norm, affine.disjoint)
    if step.name in enclosures.unrolled.ends:
        form: Form = enclosures.unrolled.forms[step.name]
        if list(form.items()) != list(zip(step.operands, affine.maps, strict=True)):
            inputs = {item.name for item in enclosures.unrolled.graph.inputs}
            by_form = _combined(list(form.items()), enclosures, centre, norm, inputs.issuperset(form))
            by_step = [
                torch.maximum(by_step[0], by_form[0]),
                *(torch.minimum(a, b) for a, b in zip(by_step[1:], by_form[1:], strict=True)),
            ]
    low, high, constant, entries = by_step
    return tidy(centre, low, high, constant, entries, enclosures.radius)


def _combined(
    terms: list[tuple[str, LinearMap]], enclosures: Enclosures, centre: Tensor, norm: Norm, apart: bool
) -> list[Tensor]:
    """Return low, high, constant and entries of a sum of maps; `apart`: changes combine as a root sum of squares."""
    moved, reach = torch.zeros_like(centre), torch.zeros_like(centre)
    constants, entries = [torch.zeros_like(enclosures.radius)], [torch.zeros_like(centre)]
    for name, linear in terms:
        x = enclosures.known[name]
        middle = (x.low + x.high) / 2
        middle = torch.where((x.low == x.high) | ~middle.isfinite(), x.centre, middle)
        half = torch.where(x.low == x.high, 0.0, torch.maximum(x.high - middle, middle - x.low))
        size = ceiling10(norm(linear).log10) * (1 + 1e-12)
        constant = times(torch.full_like(x.constant, size), x.constant)
        spread, rows = absolute(linear), row_norms(linear)
        own = wide(constant, centre).expand_as(centre)
        if rows is not None:
            own = torch.minimum(own, times(rows.to(centre.device).expand_as(centre), wide(x.constant, centre)))
        if spread is not None:
            noise = ROUNDING * torch.where(x.centre.isfinite(), x.centre.abs(), 0.0)
            shift = torch.where(x.low == x.high, 0.0, middle - x.centre)
            moved = moved + linear.apply(shift)
            reach = reach + applied(spread, half + noise)
            own = torch.minimum(own, applied(spread, x.entries))
        else:
            reach = reach + times(own, wide(enclosures.radius, own)) + ROUNDING * centre.abs()
        constants.append(constant)
        entries.append(own)
    reach = reach + ROUNDING * (reach + moved.abs())
    whole, each = torch.stack(constants), torch.stack(entries)
    if apart:
        return [centre + moved - reach, centre + moved + reach, l2(whole, 0), l2(each, 0)]
    return [centre + moved - reach, centre + moved + reach, whole.sum(0), each.sum(0)]
