"""A normalizer's input on one batch: its variances and the constants that follow (theory: normalizers).

What runs on the device is a variance per set; the figures are made of it on the host, or on the device where there are
too many sets to send.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....listening.calls import NormalizerSeen, Site
from ..running_variances import Moved
from ..transfer import Arriving
from .quantity import ArraySegments, Probe, Quantity, RecordDraft, sum_measured

VARIANCE = Quantity("normalizer", "log10_variance", "mean over its sets (channels, rows, ...) of the biased variance")
CONSTANT = Quantity("normalizer", "log10_constant", "the largest Jacobian norm on the batch without the scale")
GAIN = Quantity("normalizer", "log10_gain", "the largest abs(gamma)/sqrt(var + eps)")
CONSTANTS = Quantity("network", "log10_constants", "the product of the constants of all normalizers")
DOMINATED_EPS = 10.0
"""A variance below this many eps: eps decides what the normalizer does."""
CONSTANT_EPS_SHARE = 1e-6
"""A share of eps: an input with a smaller variance is constant as far as the normalizer can tell."""
DEAD_SCALE_SHARE = 1e-4
"""A scale below this share of the largest one lets nothing through."""
MAX_SENT_VARIANCES = 2048
"""Variances of a normalizer that are sent to the host one by one; more are summed up on the device."""
SENT_TENSORS = ("variance", "gamma", "running_variance")
"""What a normalizer showed that is sent to the host."""


class Normalizers(Probe):
    """Sends what the normalizers of a forward showed, and makes their figures."""

    quantities = (
        VARIANCE,
        Quantity("normalizer", "log10_variance_min", "the smallest of its variances"),
        Quantity("normalizer", "log10_variance_max", "the largest of its variances"),
        CONSTANT,
        GAIN,
        Quantity("normalizer", "dominated", "share of the sets with var < 10 eps"),
        Quantity("normalizer", "constant", "share of the sets with var <= 1e-6 eps"),
        Quantity("normalizer", "dead", "share of the scales below 1e-4 of the largest", optional=True),
        Quantity(
            "normalizer", "log10_running", "mean over the channels of (var + eps)/(running var + eps)", optional=True
        ),
        Quantity("normalizer", "running_spread", "the deviation of that over the channels", optional=True),
        CONSTANTS,
    )
    _seen: Sequence[tuple[Site, NormalizerSeen, Mapping[str, Arriving]]] = ()
    _measured: Mapping[Site, Arriving] = {}
    _moved: tuple[Sequence[Site], Moved, Mapping[str, Arriving]] | None = None

    def finish(self) -> None:
        forward, send = self.step.forward, self.step.send
        if forward is None:
            return
        if forward.batch_norms is not None:
            sites, moved = forward.batch_norms
            sent = {name: send(getattr(moved, name)) for name in ("before", "after", "gamma", "calls")}
            self._moved = sites, moved, sent
        seen, measured, large = [], dict[Site, Arriving](), dict[Hashable, list[Site]]()
        for site, one in forward.normalizers.items():
            if one.variance.numel() > MAX_SENT_VARIANCES:
                large.setdefault(likeness(one), []).append(site)
            else:
                tensors = {name: tensor for name in SENT_TENSORS if (tensor := getattr(one, name)) is not None}
                seen.append((site, one, {name: send(tensor) for name, tensor in tensors.items()}))
        for sites in large.values():
            rows = measure([forward.normalizers[site] for site in sites])
            measured |= {site: send(row) for site, row in zip(sites, rows.unbind(), strict=True)}
        self._seen, self._measured = seen, measured

    @cached_property
    def rows(self) -> dict[Site, np.ndarray]:
        """The figures of every normalizer that was measured, in the order of its quantities."""
        with_numbers = [_with_numbers(one, sent) for _, one, sent in self._seen]
        rows = dict(zip((site for site, *_ in self._seen), measure_all(with_numbers), strict=True))
        rows |= {site: sent.numbers for site, sent in self._measured.items()}
        if self._moved is not None:
            sites, moved, arriving = self._moved
            on_host = _with_numbers(moved, arriving)
            measured = zip(sites, measure_all(on_host.seen()), on_host.calls, strict=True)
            rows |= {site: row for site, row, calls in measured if calls == 1}
        return rows

    def column(self, quantity: Quantity) -> list[float | None]:
        """Return one of the figures of every normalizer."""
        place, sites = self.quantities.index(quantity), self.step.subject.places["normalizer"]
        return [float(self.rows[site][place]) if site in self.rows else None for site in sites]

    def fill(self, record: RecordDraft) -> None:
        *of_layers, _ = self.quantities
        record.columns(of_layers, [self.rows.get(site) for site in self.step.subject.places["normalizer"]])
        record.network(CONSTANTS, sum_measured(self.column(CONSTANT)))


def _with_numbers(seen: Any, sent: Mapping[str, Arriving]) -> Any:
    """Return what was seen with the numbers that have arrived in place of its tensors."""
    return replace(seen, **{name: arriving.numbers for name, arriving in sent.items()})


def measure(many: Sequence[NormalizerSeen]) -> Tensor:
    """Return the figures of normalizers that are alike (`likeness`) on the device, one row each, in few kernels."""
    first, eps = many[0], many[0].eps
    variance = torch.stack([normalizer.variance for normalizer in many])
    running = _stack_like(variance, [normalizer.running_variance for normalizer in many])
    sets, logs = variance.flatten(1), torch.log10(variance).flatten(1)
    constants = jacobian_norm(running[:, None] if first.stored and running is not None else variance, first.free, eps)
    gamma = _stack_like(variance, [normalizer.gamma for normalizer in many])
    gains = constants
    dead = ratio = spread = sets[:, 0] * float("nan")
    if gamma is not None:
        size = gamma.abs().flatten(1)
        gains = constants * size.reshape(len(many), 1, variance.shape[-1], -1).amax(3)
        dead = _share(size <= DEAD_SCALE_SHARE * size.amax(1, keepdim=True))
    if running is not None:
        relative = torch.log10((variance + eps) / (running[:, None] + eps)).flatten(1)
        ratio, spread = relative.mean(1), relative.std(1, correction=0)
    columns = [
        logs.mean(1),
        *torch.aminmax(logs, dim=1),
        torch.log10(constants.flatten(1).amax(1)),
        torch.log10(gains.flatten(1).amax(1)),
        _share(sets < DOMINATED_EPS * eps),
        _share(sets <= CONSTANT_EPS_SHARE * eps),
    ]
    return torch.stack([*columns, dead, ratio, spread], dim=1)


def likeness(normalizer: NormalizerSeen) -> Hashable:
    """Return what normalizers must share that are measured together."""
    tensors = (normalizer.variance, normalizer.gamma, normalizer.running_variance)
    shapes = tuple(None if tensor is None else (tensor.shape, tensor.device) for tensor in tensors)
    return shapes, normalizer.variance.dtype, normalizer.eps, normalizer.free, normalizer.stored


def _stack_like(variance: Tensor, tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return tensors as one, in the precision of the variances; None where there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(present).to(variance) if present else None


def group_scales(normalizer: NormalizerSeen) -> Any:
    """Return the largest abs(gamma) of every group; None without scales."""
    if normalizer.gamma is None:
        return None
    size = abs(normalizer.gamma).reshape(normalizer.variance.shape[-1], -1)
    return size.amax(1) if isinstance(size, Tensor) else size.max(1)


def jacobian_norm(variance: Any, free: int, eps: float) -> Any:
    """Return the Jacobian norm of a set without its scale: 1/s, eps/s^3 for one free dimension, 0 for none."""
    deviation = (variance + eps) ** 0.5
    if free >= 2:
        return 1.0 / deviation
    return eps / deviation**3 if free == 1 else 0.0 * deviation


def _share(flags: Tensor) -> Tensor:
    return flags.float().mean(1)


def measure_all(many: Sequence[NormalizerSeen]) -> np.ndarray:
    """Return the figures of several normalizers on the host, one row each: as `measure`."""
    if not many:
        return np.zeros((0, len(Normalizers.quantities) - 1))
    flat = [np.asarray(normalizer.variance) for normalizer in many]
    pieces = ArraySegments(flat)
    eps = np.repeat([normalizer.eps for normalizer in many], pieces.counts)
    free = np.repeat([normalizer.free for normalizer in many], pieces.counts)
    variance = divisor = pieces.values
    if any(normalizer.stored for normalizer in many):
        parts = [np.broadcast_to(s.divisor, v.shape).reshape(-1) for s, v in zip(many, flat, strict=True)]
        divisor = np.concatenate(parts)
    scale = np.concatenate(
        [np.ones(v.size) if (s := group_scales(normalizer)) is None else np.broadcast_to(s, v.shape).reshape(-1)
         for normalizer, v in zip(many, flat, strict=True)]
    )  # fmt: skip
    with np.errstate(all="ignore"):
        deviation, logs = np.sqrt(divisor + eps), np.log10(variance)
        constants = np.where(free >= 2, 1.0 / deviation, np.where(free == 1, eps / deviation**3, 0.0))
        columns = [
            pieces.mean(logs),
            pieces.of(np.minimum, logs),
            pieces.of(np.maximum, logs),
            np.log10(pieces.of(np.maximum, constants)),
            np.log10(pieces.of(np.maximum, constants * scale)),
            pieces.mean(variance < DOMINATED_EPS * eps),
            pieces.mean(variance <= CONSTANT_EPS_SHARE * eps),
        ]
        rest = np.full((len(many), 3), math.nan)
        scaled = [index for index, normalizer in enumerate(many) if normalizer.gamma is not None]
        if scaled:
            sizes = ArraySegments([np.abs(many[index].gamma) for index in scaled])
            largest = np.repeat(sizes.of(np.maximum, sizes.values), sizes.counts)
            rest[scaled, 0] = sizes.mean(sizes.values <= DEAD_SCALE_SHARE * largest)
        stored = [index for index, normalizer in enumerate(many) if normalizer.running_variance is not None]
        if stored:
            ratios = ArraySegments(
                [(flat[i].reshape(-1) + many[i].eps) / (many[i].running_variance + many[i].eps) for i in stored]
            )
            logs = np.log10(ratios.values)
            mean = ratios.mean(logs)
            rest[stored, 1:] = np.column_stack([mean, np.sqrt(np.maximum(ratios.mean(logs**2) - mean**2, 0.0))])
    return np.column_stack([*columns, rest])
