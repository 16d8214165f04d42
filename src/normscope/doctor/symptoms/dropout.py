"""Dropout that takes nearly everything away, or drops where it should not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ...core.finding import Finding, figures, percent
from ..facts.calls import DropoutCall
from ..facts.examined import Examined
from ..facts.objective import RANDOM
from ..monitor.history import History
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "strong-dropout": FindingWords(
        "the dropout of {where} takes nearly everything away", "{count} dropouts take nearly everything away"
    ),
}
STRONG_DROPOUT_RATE = 0.8
"""Beyond it; some published classifiers drop as much as this before their last layer."""
STRONG_DROPOUT = Symptom(
    code="strong-dropout",
    seen="Dropout {where} removes {share:percent} of all values at each step.",
    why="What is left is noise: each step trains on a few of the units, and their values are multiplied by {factor}.",
    advice="Lower the dropout to 0.5 or less. p is the share that is dropped: to keep {kept:percent}, set p={p:.2g}.",
)


def _keep(rate: float) -> dict[str, Any]:
    """Return the words for what a dropout at a rate does to what it keeps."""
    return {"kept": rate, "p": 1.0 - rate, "factor": f"{1.0 / (1.0 - rate):.3g}" if rate < 1.0 else "infinity"}


def check_strong_dropout(examined: Examined) -> Iterator[Finding]:
    """`strong-dropout` (warning): dropout of more than 80 %, or a function of dropout that drops in eval mode too;
    dropout of the outputs themselves
    """
    for call in () if examined.signal is None else examined.signal.calls.dropouts:
        where = f"`{call.path}`" if call.path else "the model"
        if call.on_output:
            if examined.signal is not None and examined.signal.objective.gradient_of != RANDOM:
                yield _output_dropout(call)
        elif call.in_eval or call.rate > STRONG_DROPOUT_RATE:
            yield finding(
                "strong-dropout",
                call.path,
                f"A dropout in the forward of {where} drops {percent(call.rate)} of the values"
                + (" in eval mode too." if call.in_eval else "."),
                "What a model says in use is then drawn at random."
                if call.in_eval
                else "What is left is noise: each step trains on a few of the units.",
                "Pass training=self.training to F.dropout, so that model.eval() switches it off, or use nn.Dropout."
                if call.in_eval
                else "Lower the dropout to 0.5 or less.",
                figures(rate=call.rate),
            )
    for path, module in examined.model.named_modules():
        inside = isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.RNNBase) and module.num_layers > 1)
        rate = vars(module).get("p") if isinstance(module, _DropoutNd) else vars(module).get("dropout") if inside else 0
        if not isinstance(rate, int | float) or rate <= STRONG_DROPOUT_RATE:
            continue
        seen = f"`{path}` drops {percent(rate)} of the values in training."
        yield STRONG_DROPOUT.at(path, _keep(rate), seen=seen, rate=rate)


def _output_dropout(call: DropoutCall) -> Finding:
    """A dropout between the last layer and the loss."""
    return finding(
        "strong-dropout",
        call.path,
        f"A dropout in {f'`{call.path}`' if call.path else 'the model'} sets {percent(call.rate)} of the outputs "
        "themselves to zero in training.",
        "The loss then compares targets with zeros, and the scores of classes are taken away at random.",
        "Remove this dropout: the last one stands before the last layer, not after it.",
        figures(rate=call.rate),
    )


STRONG_DROPOUT_IN_RUN_RATE = 0.85
"""The share that is removed; the strongest in use is 0.8, of inputs. Above that of a check, for a run that has begun
was meant so more often."""


def watch_strong_dropout(history: History) -> Iterator[Finding]:
    """`strong-dropout` (warning): dropout that removes 85 % or more"""
    share, path = history.parameter_state.dropout
    if share >= STRONG_DROPOUT_IN_RUN_RATE and len(history.records) > 1:
        yield STRONG_DROPOUT.at(path, _keep(share), share=share)
