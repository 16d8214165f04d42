"""Alarms about layers, channels and units through which nothing passes any more, for several records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from ...core.finding import Finding, Severity
from ...diagnosis.findings.dead import DECOUPLE, MANY_CHANNELS, NEGLIGIBLE_NORM, RELATIVE_NORM
from ...diagnosis.findings.finding_words import figure, figures, percent, power
from ...report.words import counted
from ..history import History
from ..record import Kind, LayerRecord
from .medians import current, lasting, step, then_and_now

FAR_BELOW_EPS = 3.0
"""Decades: a normalizer passes var/(var + eps) of the variance, here a thousandth."""
MOSTLY_OFF = 0.7
"""Share of the units that no sample of a batch switches on; healthy runs have up to half where samples are alike."""
RISEN = 0.4
"""Share of the units that training itself switched off: narrow layers on a plateau lose a quarter and come back."""


def dead_layer(history: History) -> Iterator[Finding]:
    """Layers through which nothing passes: variances far below eps, zero scales, zero weights, zero gradients."""
    now = step(history)
    for index, layer, largest in lasting(history, "normalizer", "log10_variance_max"):
        if layer.eps is None or layer.eps <= 0.0:
            continue
        values = largest
        if layer.family != "batch_norm":  # rows of one loud sample say nothing of the others
            usual = current(history, "normalizer", "log10_variance", index)
            values = largest if usual is None else [usual]
        if max(values) <= math.log10(layer.eps) - FAR_BELOW_EPS:
            fed = next((w for w in history.of("weight") if w.normalizer == layer.name), None)
            coupled = fed is not None and fed.coupled and fed.invariant is not None
            yield Finding(
                code="dead-layer",
                severity=Severity.WARNING,
                where=layer.name,
                seen=f"For {counted(len(largest), 'record')} the {'largest' if values is largest else 'typical'} "
                f"variance into {layer.name} was at most {power(max(values))}, far below eps = {figure(layer.eps)}.",
                why="Nothing of the input passes this layer any more."
                + (f" Coupled L2 has shrunk {fed.name}, whose scale the loss does not see." if fed and coupled else ""),
                advice=DECOUPLE
                if coupled
                else "Look at what comes before it for weights that have shrunk or units that are never on, and go "
                "on from a checkpoint in which they were alive.",
                numbers=figures(log10_variance=max(values), eps=layer.eps, coupled=int(coupled)),
                step=now,
            )
    for _, layer, shares in lasting(history, "normalizer", "dead"):
        if min(shares) >= 1.0:
            yield _zero(layer, "scales", now)
    yield from _small_weights(history)
    yield from _no_gradient(history)


def _zero(layer: LayerRecord, what: str, now: int) -> Finding:
    return Finding(
        code="dead-layer",
        severity=Severity.WARNING,
        where=layer.name,
        seen=f"All {what} of {layer.name} are exactly zero, and have stayed so.",
        why="A zero layer opens with the first steps if a gradient reaches it; this one gets none, or is not trained.",
        advice="Check that the optimizer has these parameters and that no other zero layer follows; otherwise "
        "initialise it: torch.nn.init.kaiming_normal_ for weights, torch.nn.init.ones_ for scales.",
        numbers=figures(zero=1),
        step=now,
    )


def _small_weights(history: History) -> Iterator[Finding]:
    """Weights that are zero, or have shrunk to nothing against the others of the network."""
    for _, layer, sizes in lasting(history, "weight", "log10_size"):
        if max(sizes) == -math.inf:
            yield _zero(layer, "weights", step(history))
    found = lasting(history, "weight", "log10_norm")
    norms = {i: (layer, values) for i, layer, values in found if all(map(math.isfinite, values))}
    typical_norm = median([median(values) for _, values in norms.values()]) if norms else math.nan
    for index, (layer, values) in norms.items():
        start = history.course("weight", "log10_norm", index).start
        if (
            layer.normalizer is None  # the normalizer's own alarm says it with the cause
            and max(values) <= math.log10(NEGLIGIBLE_NORM)
            and max(values) < typical_norm + math.log10(RELATIVE_NORM)
            and (start is None or start > max(values))
        ):
            yield Finding(
                code="dead-layer",
                severity=Severity.WARNING,
                where=layer.name,
                seen=f"The operator norm of {layer.name} fell to {power(max(values))}; that of a typical weight layer "
                f"here is {power(typical_norm)}.",
                why="Nothing of the input passes this layer any more."
                + (
                    " Its decay is coupled: where gradients are small it is rescaled with them."
                    if layer.coupled
                    else ""
                ),
                advice=DECOUPLE if layer.coupled else "Lower its weight decay, and look whether a gradient reaches it.",
                numbers=figures(log10_norm=max(values), log10_typical=typical_norm, coupled=int(layer.coupled)),
                step=step(history),
            )


def _no_gradient(history: History) -> Iterator[Finding]:
    """The last of the weight layers that get no gradient at all, while others do."""
    found = list(lasting(history, "weight", "log10_gradient"))
    gone = [(index, layer) for index, layer, values in found if max(values) == -math.inf]
    if not gone or len(gone) == len(found):
        return
    layer, records = gone[-1][1], len(found[0][2])
    if any(f.code == "dead-layer" and "gradient" in f.numbers for f in history.findings):
        return
    also = f" So are those of {counted(len(gone) - 1, 'other layer')}." if len(gone) > 1 else ""
    yield Finding(
        code="dead-layer",
        severity=Severity.WARNING,
        where=layer.name,
        seen=f"For {counted(records, 'record')} all gradients of {layer.name} were exactly zero.{also}",
        why="These weights no longer learn: behind them everything is switched off, or detached from the loss.",
        advice="Look at what follows: a ReLU that is never on, a zero scale, a detach(), a branch that is not used. "
        "Freeze weights that are not to be trained with requires_grad_(False).",
        numbers=figures(gradient=0.0, count=len(gone)),
        step=step(history),
    )


def dead_channels(history: History) -> Iterator[Finding]:
    """Channels that have died since the start: constant inputs, negligible scales, zero filters."""
    parts: tuple[tuple[Kind, str, str], ...] = (
        ("normalizer", "constant", "have a constant input"),
        ("normalizer", "dead", "have a scale below 1e-4 of the largest"),
        ("weight", "zero", "have a filter that is exactly zero"),
    )
    for kind, quantity, words in parts:
        lows = {i: min(v) for i, _, v in lasting(history, kind, quantity)}
        for index, layer, then, _ in then_and_now(history, kind, quantity):
            share = lows.get(index, 0.0)
            rows = quantity == "constant" and layer.family != "batch_norm"  # of samples, not of channels
            if rows or not MANY_CHANNELS <= share < 1.0 or share - then < MANY_CHANNELS:
                continue
            yield Finding(
                code="dead-channels",
                severity=Severity.WARNING,
                where=layer.name,
                seen=f"{percent(share)} of the channels of {layer.name} {words}; at the start it was {percent(then)}.",
                why="They put out a constant whatever the input: what they cost in memory and time is lost, and they "
                "rarely come back.",
                advice="Exclude this layer from weight decay (or use AdamW instead of Adam with L2) and lower the "
                "learning rate; if you prune on purpose, remove them for good.",
                numbers=figures(share=share, share_first=then),
                step=step(history),
            )


def dead_relu(history: History) -> Iterator[Finding]:
    """ReLUs most of whose units are never on, and that were on before."""
    for index, layer, shares in lasting(history, "units", "dead"):
        start = min(history.course("units", "dead", index).first, default=0.0)
        if min(shares) < MOSTLY_OFF or (min(shares) - start < RISEN and min(shares) < 1.0):
            continue
        yield Finding(
            code="dead-relu",
            severity=Severity.WARNING,
            where=layer.name,
            seen=f"For {counted(len(shares), 'record')} at least {percent(min(shares))} of the units of the ReLU in "
            f"{layer.name or 'the model'} were on for no sample of their batch; at the start it was {percent(start)}.",
            why="A ReLU that is never positive outputs zero and passes no gradient, so the weights before it stop "
            "learning.",
            advice="Lower the learning rate, start biases at zero, normalize before the ReLU, or use LeakyReLU or "
            "GELU.",
            numbers=figures(share=min(shares), share_first=start),
            step=step(history),
        )
