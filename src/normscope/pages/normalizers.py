"""What the normalizers of an audited network do to a small change: the chart of the first screen, and its figures."""

from __future__ import annotations

from ..diagnosis.normalizer_effects import NormalizerEffects
from ..report.document import Chart, Column, Series, Table
from ..report.words import pluralise

NAMES = {
    "shrinks": "shrinks it",
    "grows": "lets it grow",
    "keeps": "keeps it",
    "idle": "idle",
    "eps": "eps decides",
    "few-values": "too few values",
}
"""What normalizers of each kind do, in legends and tables."""
SIDEWAYS = 12
"""Up to this many normalizers have a line each; the bars of more stand side by side."""

COLUMNS = (
    Column(title="normalizer", kind="name"),
    Column(title="fed by", kind="name", help="The weight layer that counts as one with it."),
    Column(title="what it does", kind="name", help="To a small change, as in the chart."),
    Column(
        title="growth",
        kind="factor",
        help="The change as a share of the values, behind the normalizer over in front of the layer that feeds it.",
    ),
    Column(
        title="reaction",
        kind="percent",
        help="How much of the change its statistics take away or add, beside a fixed scale and shift.",
    ),
    Column(
        title="network, frozen",
        kind="factor",
        help="The growth through the whole network, by the distance of the samples, with this normalizer frozen.",
    ),
)


def normalizer_chart(effects: NormalizerEffects | None) -> Chart | None:
    """Return the growth across each normalizer, coloured by what it does; None where none was measured."""
    if effects is None or all(effect.log10_growth is None for effect in effects.normalizers):
        return None
    series = []
    for kind, name in NAMES.items():  # all of them, so that a kind has the same colour on every page
        growths = tuple(effect.log10_growth if effect.kind == kind else None for effect in effects.normalizers)
        start = tuple(None if growth is None else 0.0 for growth in growths)
        series.append(Series(name=name, style="spans", values=start, until=growths))
    return Chart(
        title="What each normalizer does to a small change, together with the layer before it",
        labels=tuple(effect.path for effect in effects.normalizers),
        series=tuple(series),
        caption=f"A random change of {pluralise(effects.samples, 'sample')}, as a share of the values that it changes: "
        "behind the normalizer over in front of the layer that feeds it. Rescaling weights whose size the "
        "function hides moves none of this.",
        axis="log10 of the growth (0.3 is twice, -0.3 is half)",
        sideways=len(effects.normalizers) <= SIDEWAYS,
        term="growth across a normalizer",
    )


def normalizer_table(effects: NormalizerEffects | None) -> Table | None:
    """Return the figures behind the chart; None where there are none."""
    if effects is None:
        return None
    rows = (
        (one.path, one.feeding, NAMES[one.kind], one.log10_growth, one.reaction, one.log10_frozen)
        for one in effects.normalizers
    )
    return Table(title="What each does to a small change", columns=COLUMNS, rows=tuple(rows))
