"""`prediction_document`: the predictive power of measures over a population as the report a person reads."""

from __future__ import annotations

from collections.abc import Hashable
from statistics import fmean

from normscope.report import Block, Chart, Column, Document, Series, Steps, Table, Text, listed, pluralise

from ..population.kendall import Tau
from ..population.measures import MEASURES
from ..population.member import Member
from ..population.prediction import Prediction
from ..population.recipes import AXES

CAPTION = (
    "Kendall's tau of each measure with the gap: 1 is the order of the gaps, -1 its reverse, 0 no relation. Mean: of "
    "the taus along single axes, where one hyperparameter alone changes (Psi of Jiang et al. 2020); overall: over all "
    "pairs of networks. Intervals are at 95 %, from resamples of whole configurations with their seeds."
)


def prediction_document(prediction: Prediction, *, brief: bool = False) -> Document:
    """Return the report of a population: the verdict, a chart of tau by measure, and the tables behind it."""
    blocks: list[Block] = [
        Text(heading="" if brief else "What predicts the gap", body=verdict(prediction), lead=True),
        Steps(items=tuple(surest(prediction))),
        Text(body=population(prediction)),
        *([] if brief else _chart(prediction)),
        _brief_table(prediction) if brief else _table(prediction),
        *_left_out(prediction),
        *(Text(body=f"Note: {note}.") for note in prediction.notes),
    ]
    if not brief:
        blocks += [
            Text(heading="What the measures are", folded=True), _measures(prediction),
            Text(heading="Gap by hyperparameter", folded=True), _by_value(prediction),
            Text(heading="All networks", folded=True), _networks(prediction),
        ]  # fmt: skip
    return Document(title=f"What predicts generalization on {prediction.name}", blocks=tuple(blocks))


def _number(tau: Tau) -> float | None:
    return None if tau.value is None else round(tau.value, 2)


def _chart(prediction: Prediction) -> list[Block]:
    means = [(name, power.mean) for name, power in prediction.powers.items() if power.mean.value is not None]
    if not means:
        return []
    series = (
        Series(
            name="95 % interval",
            style="spans",
            values=tuple(mean.low for _, mean in means),
            until=tuple(mean.high for _, mean in means),
        ),
        Series(name="mean over axes", style="marks", values=tuple(mean.value for _, mean in means)),
        Series(
            name="over all pairs",
            style="marks",
            values=tuple(prediction.powers[name].overall.value for name, _ in means),
            faint=True,
        ),
    )
    return [
        Chart(
            labels=tuple(name for name, _ in means),
            series=series,
            title="How well each measure orders the gaps",
            axis="Kendall's tau",
            sideways=True,
            rules=(("no relation", 0.0),),
            caption="Right of zero a larger figure goes with a larger gap.",
        )
    ]


def _brief_table(prediction: Prediction) -> Table:
    """Return the table with fewer, narrower columns, for a terminal."""
    short = {"batch_size": "batch", "lr": "lr", "weight_decay": "decay", "normalizer": "norm"}
    columns = (
        Column(title="measure", kind="name"),
        Column(title="mean over axes", kind="name"),
        Column(title="overall", kind="number"),
        *(Column(title=short.get(axis, axis), kind="number") for axis in AXES),
    )
    rows = tuple(
        (
            name,
            figured(power.mean),
            _number(power.overall),
            *(_number(power.axes[axis]) for axis in AXES),
        )
        for name, power in prediction.powers.items()
    )
    return Table(columns=columns, rows=rows, caption=CAPTION)


def _table(prediction: Prediction) -> Table:
    ends = (
        Column(title="from", kind="number", help="of the 95 % interval"),
        Column(title="to", kind="number", help="of the 95 % interval"),
    )
    columns = (
        Column(title="measure", kind="name"),
        Column(title="mean over axes", kind="number"),
        *ends,
        Column(title="overall", kind="number", help="over all pairs of networks"),
        *ends,
        *(Column(title=title, kind="number", help="where this alone changes") for title in AXES.values()),
        Column(title="seed", kind="number", help="where the seed alone changes; no part of the mean"),
        Column(title="networks", kind="count"),
    )
    rows = tuple(
        (
            name,
            *_with_ends(power.mean),
            *_with_ends(power.overall),
            *(_number(power.axes[axis]) for axis in AXES),
            _number(power.seed),
            power.networks,
        )
        for name, power in prediction.powers.items()
    )
    return Table(title="Kendall's tau with the gap", columns=columns, rows=rows, caption=CAPTION)


def _with_ends(tau: Tau) -> tuple[float | None, float | None, float | None]:
    low, high = (None if end is None else round(end, 2) for end in (tau.low, tau.high))
    return _number(tau), low, high


def _left_out(prediction: Prediction) -> list[Block]:
    """Return how many networks were left out, by normalizer and reason."""
    reasons: dict[tuple[str, str, str], int] = {}
    for member in prediction.members:
        if member.status != "reached":
            key = (member.recipe.normalizer, member.status, member.reason)
            reasons[key] = reasons.get(key, 0) + 1
    columns = (
        Column(title="normalizer", kind="name"),
        Column(title="networks", kind="count"),
        Column(title="what happened"),
        Column(title="why"),
    )
    rows = tuple((kind, count, status, why) for (kind, status, why), count in reasons.items())
    return [Table(title="What was left out", columns=columns, rows=rows)] if rows else []


def _measures(prediction: Prediction) -> Table:
    columns = (Column(title="measure", kind="name"), Column(title="kind"), Column(title="what it is"))
    described = ((name, MEASURES[name]) for name in prediction.powers if name in MEASURES)
    return Table(columns=columns, rows=tuple((name, one.group, one.about) for name, one in described))


def _by_value(prediction: Prediction) -> Table:
    """Return the mean gap of the networks with each value of each axis."""
    columns = (
        Column(title="axis", kind="name"),
        Column(title="value", kind="name"),
        Column(title="networks", kind="count"),
        Column(title="mean gap", kind="percent"),
        Column(title="reached the loss", kind="percent"),
    )
    rows = []
    for axis, title in AXES.items():
        groups: dict[Hashable, list[Member]] = {}
        for member in prediction.members:
            groups.setdefault(getattr(member.recipe, axis), []).append(member)
        for value, members in sorted(groups.items(), key=lambda item: str(item[0]).rjust(9)):
            gaps = [m.gap for m in members if m.status == "reached" and m.gap is not None]
            rows.append((title, str(value), len(gaps), fmean(gaps) if gaps else None, len(gaps) / len(members)))
    return Table(columns=columns, rows=tuple(rows))


def _networks(prediction: Prediction) -> Table:
    columns = (
        *(Column(title=title, kind="name") for title in AXES.values()),
        Column(title="seed", kind="count"),
        Column(title="status"),
        Column(title="steps", kind="count"),
        Column(title="training loss", kind="number"),
        Column(title="training error", kind="percent"),
        Column(title="gap", kind="percent"),
    )
    rows = tuple(
        (
            *map(str, member.recipe.configuration),
            member.recipe.seed,
            member.status,
            member.steps,
            member.train_loss,
            member.train_error,
            member.gap,
        )
        for member in prediction.members
    )
    return Table(columns=columns, rows=rows)


def figured(tau: Tau) -> str:
    """Write a tau with its interval."""
    if tau.value is None:
        return "not defined"
    return f"{tau.value:.2f}" + ("" if tau.low is None else f" ({tau.low:.2f} to {tau.high:.2f})")


def verdict(prediction: Prediction) -> str:
    """Return which measure predicts the gap best, and how many do at all."""
    powers = {name: power for name, power in prediction.powers.items() if power.mean.value is not None}
    if not powers:
        return (
            "Nothing can be said: no axis has two values of which networks reached the training loss. Take more values "
            "of an axis, more steps, or a higher training loss."
        )
    best, power = next(iter(powers.items()))
    above = [name for name, one in powers.items() if one.mean.low is not None and one.mean.low > 0.0]
    below = [name for name, one in powers.items() if one.mean.high is not None and one.mean.high < 0.0]
    text = (
        f"`{best}` orders the gaps best: where one hyperparameter alone changes, its Kendall tau is "
        f"{figured(power.mean)}, in the mean over the axes, and {figured(power.overall)} over all pairs. "
        f"Of {pluralise(len(powers), 'measure')} {len(above)} order them better than chance and {len(below)} the wrong "
        "way round (95 % intervals of the mean over axes)."
    )
    return f"{text} The best of many is chosen after the fact: its tau is flattered by the choice."


def population(prediction: Prediction) -> str:
    """Return how many networks there are, how they were trained, and how their gaps differ."""
    settings, reached = prediction.settings, prediction.reached
    text = (
        f"{pluralise(len(prediction.members), 'network')} ({settings.get('network')}) were trained with SGD (momentum "
        f"{settings.get('momentum'):g}) on {pluralise(settings.get('samples', 0), 'sample')} of {prediction.name}, of "
        f"which each label is wrong with probability {settings.get('label_noise'):g}, to a cross entropy of "
        f"{settings.get('target_loss'):g} (eval mode) or for {pluralise(settings.get('steps', 0), 'step')}. "
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


def surest(prediction: Prediction) -> list[str]:
    """Return sentences on the measures that order the gaps better than chance, and on those that do the reverse."""
    above, below = [], []
    for name, power in prediction.powers.items():
        mean = power.mean
        if mean.low is not None and mean.low > 0.0:
            above.append(f"`{name}` {mean.value:.2f}")
        elif mean.high is not None and mean.high < 0.0:
            below.append(f"`{name}` {mean.value:.2f}")
    sentences = []
    if above:
        sentences.append(f"Larger figures go with larger gaps: {listed(above, most=4)}.")
    if below:
        sentences.append(f"Larger figures go with smaller gaps: {listed(below[::-1], most=4)}.")
    return sentences
