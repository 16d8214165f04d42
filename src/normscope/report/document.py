"""`Document`: text and tables as plain data, before anyone chose how to show them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["text", "name", "count", "number", "log10", "percent", "seconds"]
"""What a column holds; the renderers format by it, so that cells stay plain values. A name is text never broken."""

Cell = str | int | float | None
"""One value of a table; `None` means not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its heading and what it holds."""

    title: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns.

    Attributes:
        columns: one per cell of a row.
        rows: the cells, unformatted.
        title: stands above the table.
        caption: stands below it: how to read it.

    Raises:
        ValueError: a row has more or fewer cells than there are columns.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {index} of table {self.title!r}: {len(row)} cells, {len(self.columns)} columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A paragraph, with a heading if it opens a part."""

    body: str = ""
    heading: str = ""


Block = Table | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Blocks in reading order."""

    blocks: tuple[Block, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data: each block with its `type`; infinities become strings, `None` stays `None`."""
        return {"blocks": [{"type": type(block).__name__.lower(), **_plain(asdict(block))} for block in self.blocks]}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
