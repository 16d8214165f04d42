"""How values, numbers, shapes, names and brackets are written, and how much of them: a page of 40 MB helps nobody.

Every renderer shows the first rows, labels and curves, and says how many it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ..core.bracket import Bracket
from ..core.errors import visible as visible
from ..core.log10 import power10
from .document import (
    Block,
    Cell,
    CellFormat,
    Chart,
    Curves,
    Document,
    Glossary,
    Notice,
    ReadColumn,
    Series,
    Steps,
    Table,
    Text,
    tabulate,
)

NOT_MEASURED = "-"


def format_cell(value: Cell, kind: CellFormat) -> str:
    """Return `value` as a reader sees it.

    Example:
        >>> [format_cell(exponent, "factor") for exponent in (-10.0, 3.2525, float("-inf"), -400.0)]
        ['1e-10', '1790', '0', '1e-400']
    """
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        return value
    match kind:
        case "log10":
            return f"{value if abs(value) >= 0.005 else 0.0:.2f}"  # -0.001 would otherwise be written -0.00
        case "factor":
            rounded = float(f"{power10(value):.3g}")
            return f"{rounded:g}" if math.isinf(value) or abs(value) < 300 else f"1e{value:+.0f}"
        case "percent":
            return f"{100 * value:.1f} %"
        case "seconds":
            return f"{value:.1f} s"
        case "number":
            return f"{value + 0.0:.4g}"
        case "count":
            return f"{value:,}"
        case "text" | "sentence" | "name":
            return str(value)


def factor(exponent: float) -> str:
    """Return 10**exponent as a short decimal, or as a power of ten where the decimal would be long.

    Args:
        exponent: log10 of the factor; `-inf` is zero.

    Returns:
        A few characters.

    Example:
        >>> factor(1.0), factor(12.345), factor(float("-inf"))
        ('10', '10^12.35', '0')
    """
    if math.isinf(exponent):
        return "infinity" if exponent > 0 else "0"
    return f"{10.0**exponent:.3g}" if -3 <= exponent < 3 else f"10^{exponent:.2f}"


LEVELS = {"info": "note", "warning": "warning", "error": "error"}
"""How pages name the severities of findings; JSON and the command line keep the severities' own names."""


def pluralise(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 layer`, `1,200 layers`.

    Args:
        number: how many.
        noun: the word for one.
        plural: the word for any other number, if it is not the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def memory(size: int) -> str:
    """Return a number of bytes with its unit.

    Example:
        >>> memory(512), memory(29_008), memory(102_400_000)
        ('512 B', '29.0 kB', '102.4 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size} B"


def shape(sizes: Sequence[int] | None) -> str | None:
    """Return a tensor's shape as `64x3x32x32`, or None for none; a scalar is `scalar`."""
    if sizes is None:
        return None
    return "x".join(map(str, sizes)) or "scalar"


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def listed(names: Sequence[str], *, most: int = 3) -> str:
    """Return names joined by commas, the first `most` of them and how many more there are.

    Example:
        >>> listed(["a", "b", "c", "d"], most=2)
        'a, b and 2 more'
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


MAX_ROWS = 1000
"""Rows of a table, labels of a chart, items of a list: ResNet-152 has 310 layers, and a row takes about 1.5 kB."""
MAX_CURVES = 300
"""Curves of one picture; from 60 on nobody can tell them apart."""
MAX_BLOCKS = 1000
MAX_LETTERS, MAX_CELL_LETTERS = 10_000, 2_000
"""Letters of one heading, caption or text, and of one cell or name: a page has thousands of these."""


def within_limits(document: Document) -> Document:
    """Return a document that can be shown: where it is too long, its first parts, with a sentence on the others."""
    blocks = [_shorten_block(_cut(block), MAX_LETTERS, MAX_CELL_LETTERS) for block in document.blocks[:MAX_BLOCKS]]
    if len(document.blocks) > MAX_BLOCKS:
        blocks.append(Text(body=left_out(len(document.blocks), MAX_BLOCKS, "part")))
    return Document(title=cut_text(document.title, MAX_LETTERS), blocks=tuple(blocks))


def _cut(block: Any) -> Any:
    """Return a block with its first rows, labels, curves or items alone."""
    if isinstance(block, Notice) and len(block.lines) + len(block.more) > MAX_ROWS:
        left = left_out(len(block.lines) + len(block.more), MAX_ROWS, "line")
        lines = block.lines[:MAX_ROWS]
        return replace(block, lines=lines, more=(*block.more[: MAX_ROWS - len(lines)], ("", left)))
    # By kind of block: the fields that may be too long, the most that is shown of each, and the word for one of it.
    parts: dict[type[Block], tuple[tuple[str, int, str], ...]] = {
        Table: (("rows", MAX_ROWS, "row"),),
        Chart: (("labels", MAX_ROWS, "place"),),
        Curves: (("curves", MAX_CURVES, "curve"), ("marks", MAX_ROWS, "mark")),
        Steps: (("items", MAX_ROWS, "step"),),
        Glossary: (("items", MAX_ROWS, "term"),),
    }
    cut: dict[str, Any] = {}
    sentences = []
    for name, most, noun in parts.get(type(block), ()):
        held = getattr(block, name)
        if len(held) > most:
            cut[name] = held[:most]
            sentences.append(left_out(len(held), most, noun))
    if isinstance(block, Chart) and cut:
        cut["series"] = tuple(_cut_series(one) for one in block.series)
    if isinstance(block, Steps) and cut:
        cut["items"] += tuple(sentences)
    elif cut and hasattr(block, "caption"):
        cut["caption"] = " ".join(filter(None, (block.caption, *sentences)))
    return replace(block, **cut)


def _cut_series(series: Series) -> Series:
    paths = series.paths
    return replace(
        series,
        values=series.values[:MAX_ROWS],
        until=None if series.until is None else series.until[:MAX_ROWS],
        paths=None if paths is None else tuple(tuple(i for i in path if i < MAX_ROWS) for path in paths),
    )


def left_out(total: int, shown: int, noun: str) -> str:
    """Return the sentence on what a page leaves out; empty if that is nothing."""
    if total <= shown:
        return ""
    return f"Only the first {shown:,} of {pluralise(total, noun)} are shown here; the result itself has them all."


def _shorten_block(block: Any, own: int, inner: int) -> Any:
    """Return a block with at most so many letters of its own texts, and of those of its rows, curves and items."""
    values = {item.name: getattr(block, item.name) for item in fields(block)}
    cut = {name: cut_text(value, own if isinstance(value, str) else inner) for name, value in values.items()}
    return replace(block, **cut)


def cut_text(value: Any, most: int) -> Any:
    """Return a text, or anything that holds texts, with at most so many letters of each, and how many are left out."""
    if isinstance(value, str):
        left = len(value) - most
        return value if left <= 0 else f"{value[:most]}... ({pluralise(left, 'letter')} left out)"
    if isinstance(value, tuple):
        numbers = all(isinstance(item, int | float) for item in value)
        return value if numbers else tuple(cut_text(item, most) for item in value)
    return _shorten_block(value, most, most) if is_dataclass(value) else value


AGREE = 0.005
"""Exponents that differ by less than this are the same in two decimals."""

PLAIN = {
    "printed": "product as papers print it",
    "printed-exact": "the same, exact constants",
    "product": "layer after layer",
    "folded": "linear layers joined",
    "closed-form": "closed form",
    "tight": "optimised certificate",
    "best": "best bound",
    "observed": "seen at the data",
}
"""The methods in plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Methods whose upper sides agree, with the bracket that is shown for them."""

    names: tuple[str, ...]
    bracket: Bracket

    @property
    def label(self) -> str:
        """The methods in plain words: "best bound" where that is one of them, otherwise the first of them."""
        return PLAIN["best"] if "best" in self.names else PLAIN.get(self.names[0], self.names[0])


def rungs(brackets: Mapping[str, Bracket]) -> list[Rung]:
    """Return brackets by method; those that agree share a rung, which shows `best` or the one of strongest evidence."""
    groups: list[list[str]] = []
    for name, bracket in brackets.items():
        alike = next((names for names in groups if _agree(brackets[names[0]], bracket)), None)
        if alike is None:
            groups.append([name])
        else:
            alike.append(name)
    strongest = [max(names, key=lambda name: (name == "best", brackets[name].evidence)) for names in groups]
    return [Rung(names=tuple(names), bracket=brackets[name]) for names, name in zip(groups, strongest, strict=True)]


def _agree(one: Bracket, other: Bracket) -> bool:
    same = one.log10_upper == other.log10_upper or abs(one.log10_upper - other.log10_upper) < AGREE
    return same and (one.scope, one.holds, one.reason) == (other.scope, other.holds, other.reason)


BRACKET_COLUMNS: tuple[ReadColumn[Rung], ...] = (
    ReadColumn("lower", "log10", "bracket.log10_lower", "log10 of the side that inputs which were found attain."),
    ReadColumn("upper", "log10", "bracket.log10_upper", "log10 of the side that bounds it."),
    ReadColumn("scope", "name", "bracket.scope.value", "Over which inputs it holds."),
    ReadColumn(
        "evidence",
        "name",
        lambda rung: rung.bracket.evidence.name if rung.bracket.holds else "not a bound",
        "How the upper side is known.",
    ),
)
LADDER_CHART: dict[str, Any] = {"axis": "log10 of the Lipschitz constant", "sideways": True, "term": "ladder of bounds"}


def span_series(brackets: Iterable[Bracket | None]) -> Series:
    """Return brackets as bars from the lower to the upper side; None leaves a gap."""
    sides = [(None, None) if one is None else (one.log10_lower, one.log10_upper) for one in brackets]
    lower, upper = zip(*sides)
    return Series(name="from the lower to the upper side", style="spans", values=lower, until=upper)


def bracket_table(
    brackets: Mapping[str, Bracket], *, title: str = "", caption: str = "", noted: Collection[str] = ()
) -> Table:
    """Return one row per bracket: its methods, both sides as exponents of ten, the evidence and remarks.

    Notes that the page shows elsewhere (`noted`) are left out of the remarks.
    """
    columns: tuple[ReadColumn[Rung], ...] = (
        ReadColumn("bound", "text", "label", "What is done; methods that agree stand in one line."),
        *BRACKET_COLUMNS,
        ReadColumn(
            "methods", "text", lambda rung: ", ".join(rung.names), "Their names in the JSON file and in the papers."
        ),
        ReadColumn("remarks", "text", lambda rung: _remarks(rung, noted)),
    )
    return tabulate(rungs(brackets), columns, title=title, caption=caption)


def bracket_chart(brackets: Mapping[str, Bracket], *, title: str = "") -> Chart | None:
    """Return brackets as bars from the lower to the upper side, and formulas that are no bound as marks, in log10."""
    shown = rungs(brackets)
    if not shown:
        return None
    spans = span_series(rung.bracket if rung.bracket.holds else None for rung in shown)
    loose = tuple(None if rung.bracket.holds else rung.bracket.log10_upper for rung in shown)
    marks = Series(name="a formula that is no bound for this network", style="marks", values=loose)
    return Chart(
        title=title,
        labels=tuple(rung.label for rung in shown),
        series=(spans, marks) if any(value is not None for value in loose) else (spans,),
        **LADDER_CHART,
    )


def _remarks(rung: Rung, noted: Collection[str]) -> str:
    bracket = rung.bracket
    parts = ["" if bracket.method in rung.names else bracket.method, bracket.reason or ""]
    if not bracket.converged:
        parts.append(f"not converged: {bracket.advice}" if bracket.advice else "not converged")
    return "; ".join(part for part in (*parts, *bracket.notes) if part and part not in noted)


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Return values as one line of block characters, as high as their own range; a NaN is a gap."""
    count = len(values)
    if count > width:
        values = [values[(index + 1) * count // width - 1] for index in range(width)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, high = min(finite), max(finite)

    def block(value: float) -> str:
        if math.isnan(value):
            return " "
        if math.isinf(value):
            return BLOCKS[-1] if value > 0 else BLOCKS[0]
        return BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] if high > low else BLOCKS[3]

    return "".join(map(block, values))
