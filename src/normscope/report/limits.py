"""How much of a document is shown: a page of 40 MB helps nobody.

Every renderer shows the first rows, labels and curves, and says how many it leaves out.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from .document import Block, Chart, Curves, Document, Glossary, Notice, Series, Steps, Table, Text
from .words import pluralise

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
