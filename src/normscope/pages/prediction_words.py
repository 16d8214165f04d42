"""Sentences about a population: which measures predict the gap, and how the networks were trained."""

from __future__ import annotations

from ..experiments.population.kendall import Tau
from ..experiments.population.prediction import Prediction
from ..report.words import counted, listed


def figured(tau: Tau) -> str:
    """Write a tau with its interval."""
    if tau.value is None:
        return "not defined"
    return f"{tau.value:.2f}" + ("" if tau.low is None else f" ({tau.low:.2f} to {tau.high:.2f})")


def verdict(prediction: Prediction) -> str:
    """Return which measure predicts the gap best, and how many do at all."""
    known = {name: found for name, found in prediction.powers.items() if found.mean.value is not None}
    if not known:
        return (
            "Nothing can be said: no axis has two values of which networks reached the training loss. Take more values "
            "of an axis, more steps, or a higher training loss."
        )
    best, found = next(iter(known.items()))
    above = [name for name, one in known.items() if one.mean.low is not None and one.mean.low > 0.0]
    below = [name for name, one in known.items() if one.mean.high is not None and one.mean.high < 0.0]
    text = (
        f"`{best}` orders the gaps best: where one hyperparameter alone changes, its Kendall tau is "
        f"{figured(found.mean)}, in the mean over the axes, and {figured(found.overall)} over all pairs. "
        f"Of {counted(len(known), 'measure')} {len(above)} order them better than chance and {len(below)} the wrong "
        "way round (95 % intervals of the mean over axes)."
    )
    return f"{text} The best of many is chosen after the fact: its tau is flattered by the choice."


def population(prediction: Prediction) -> str:
    """Return how many networks there are, how they were trained, and how their gaps differ."""
    settings, reached = prediction.settings, prediction.reached
    text = (
        f"{counted(len(prediction.members), 'network')} ({settings.get('network')}) were trained with SGD (momentum "
        f"{settings.get('momentum'):g}) on {counted(settings.get('samples', 0), 'sample')} of {prediction.name}, of "
        f"which each label is wrong with probability {settings.get('label_noise'):g}, to a cross entropy of "
        f"{settings.get('target_loss'):g} (eval mode) or for {counted(settings.get('steps', 0), 'step')}. "
        f"{len(reached):,} reached it and {'is' if len(reached) == 1 else 'are'} compared"
    )
    left = len(prediction.members) - len(reached)
    text += f"; {left} did not and are left out." if left else "."
    gaps = sorted(member.gap for member in reached if member.gap is not None)
    if gaps:
        text += (
            f" Their gaps, test error less training error, go from {100 * gaps[0]:.1f} % to {100 * gaps[-1]:.1f} % "
            f"(half of them are below {100 * gaps[(len(gaps) - 1) // 2]:.1f} %)."
        )
    return text


def surest(prediction: Prediction, *, most: int = 4) -> list[str]:
    """Return sentences on the measures that order the gaps better than chance, and on those that do the reverse."""
    above, below = [], []
    for name, found in prediction.powers.items():
        mean = found.mean
        if mean.low is not None and mean.low > 0.0:
            above.append(f"`{name}` {mean.value:.2f}")
        elif mean.high is not None and mean.high < 0.0:
            below.append(f"`{name}` {mean.value:.2f}")
    sentences = []
    if above:
        sentences.append(f"Larger figures go with larger gaps: {listed(above, most=most)}.")
    if below:
        sentences.append(f"Larger figures go with smaller gaps: {listed(below[::-1], most=most)}.")
    return sentences
