"""Lower lines of kinks that suit what is bounded: below a ReLU every line of slope 0 to 1 through the origin will do.

Each combination of outputs has slopes of its own, which a few steps of Adam improve. Every choice is a bound, so the
best one seen is kept, and none is below the plain choice.

Reference: Xu et al. 2021 (alpha-CROWN), for the output alone: what is known of inner values is not touched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...rules.local.local import Lines
from .enclosure import Enclosures
from .sweep import Below, below

STEPS, RATE = 12, 0.25
"""Steps of Adam, and the first step's length; the last is a tenth of it."""


def tilted(seen: Enclosures, name: str, rows: Tensor) -> Below:
    """Bound combinations of a value's entries as `below`, with the slopes that were found to suit each best."""
    best = below(seen, name, rows)
    shares = _shares(seen, name, rows)
    if not shares:
        return best
    with torch.enable_grad():
        optimizer = torch.optim.Adam(list(shares.values()), lr=RATE, betas=(0.5, 0.9), maximize=True)
        shrinking = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 ** (1 / STEPS))
        for _ in range(STEPS):
            found = below(seen, name, rows, shares)
            best = _better(best, found, seen.radius)
            least = found.least(seen.radius)
            grads = torch.autograd.grad(least[least.isfinite()].sum(), list(shares.values()), allow_unused=True)
            for share, grad in zip(shares.values(), grads, strict=True):
                share.grad = torch.zeros_like(share) if grad is None else grad.nan_to_num(0.0, 0.0, 0.0)
            optimizer.step()
            shrinking.step()
            with torch.no_grad():
                for share in shares.values():
                    share.clamp_(0.0, 1.0)
    return _better(best, below(seen, name, rows, shares), seen.radius)


def _shares(seen: Enclosures, name: str, rows: Tensor) -> dict[str, Tensor]:
    """Return where the plain lower lines lie in their swing, for every step on the way that has one, row by row."""
    found = {}
    for step in seen.unrolled.before(name):
        local = seen.locals.get(step.name)
        lines: Lines | None = None if local is None or local.lines is None else local.lines()
        if lines is None or lines.swing is None or bool((lines.swing[0] >= lines.swing[1]).all()):
            continue
        least, most = lines.swing
        share = torch.where(most > least, (lines.low_slopes[0] - least) / (most - least).clamp(min=1e-300), 0.0)
        every = share[:, None].expand(-1, rows.shape[1], *share.shape[1:])
        found[step.name] = every.clone().clamp_(0.0, 1.0).requires_grad_(True)
    return found


def _better(one: Below, other: Below, radius: Tensor) -> Below:
    """Take the larger bound of every combination."""
    with torch.no_grad():
        larger = other.least(radius) > one.least(radius)
        slopes = torch.where(larger[..., None], other.slopes.detach(), one.slopes)
        return Below(slopes, torch.where(larger, other.offset.detach(), one.offset))
