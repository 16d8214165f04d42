"""Show documents in a terminal, with rich."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..core.untouched import random_as_found
from .curves import as_table
from .document import (
    Block,
    Chart,
    Column,
    Curves,
    Document,
    Figures,
    Glossary,
    Notice,
    Steps,
    Table,
    Text,
)
from .limits import within_limits
from .words import LEVELS, format_cell, visible

if TYPE_CHECKING:
    import rich.console
    import rich.table
    import rich.text

COLOURS = {"info": "cyan", "warning": "yellow", "error": "bold red"}

TEXT_WIDTH = 28
"""A column of text has at least this many characters, so that it stays readable."""

FRAME = 3
"""Characters that a column of a table takes beside its content."""


def print_document(document: Document, *, console: rich.console.Console | None = None) -> None:
    """Print `document`.

    Tables too wide for the console are printed in parts that repeat the first column; a line of text stands for a
    chart, which pages draw.

    Args:
        document: the document to print.
        console: the console to print to; standard output if not given.
    """
    with random_as_found():
        from rich.console import Console

    console, document = console or Console(), within_limits(document)
    if document.title:
        _say(console, document.title, "bold underline")
        console.print()
    for block in document.blocks:
        _print_block(block, console)


def render(document: Document, *, width: int = 120, color: bool = False) -> str:
    """Return `document` as text."""
    import io

    with random_as_found():
        from rich.console import Console

    target = io.StringIO()
    system: Literal["truecolor"] | None = "truecolor" if color else None
    print_document(document, console=Console(file=target, width=width, color_system=system, force_terminal=color))
    return target.getvalue()


def _print_block(block: Block, console: rich.console.Console) -> None:
    match block:
        case Table():
            _print_table(block, console)
        case Notice():
            _print_notice(block, console)
        case Chart():
            _say(console, f"{block.title or 'A chart'}: a chart, in the HTML report", "dim")
        case Curves():
            shown = as_table(block)
            if shown is None:
                _say(console, f"{block.title}: nothing was measured", "dim")
            else:
                _print_table(shown, console)
        case Figures():
            wide = max((len(visible(item.label)) for item in block.items), default=0)
            for item in block.items:
                note = f"  ({item.note})" if item.note else ""
                _say(console, f"{visible(item.label):<{wide}}  {format_cell(item.value, item.kind)}{note}")
        case Steps():
            if block.title:
                _say(console, block.title, "bold")
            several = len(block.items) > 1
            for number, step in enumerate(block.items, 1):
                _say(console, f"{number}. {step}" if several else step)
        case Glossary():
            for term, meaning in block.items:
                _say(console, f"{term}: {meaning}")
        case Text():
            if block.heading:
                _say(console, block.heading, "bold")
            if block.body:
                _say(console, block.body, "bold" if block.lead else None)
    if not isinstance(block, Text) or block.body:
        console.print()


def _say(console: rich.console.Console, text: str, style: str | None = None) -> None:
    console.print(visible(text), style=style, markup=False, highlight=False)


def _print_notice(notice: Notice, console: rich.console.Console) -> None:
    from rich.padding import Padding
    from rich.text import Text as RichText

    head = RichText(LEVELS[notice.level], style=COLOURS[notice.level])
    head.append(f" {visible(notice.heading)}", style="bold")
    head.append(f": {visible(notice.where)}" if notice.where else "", style="default")
    head.append(f" ({visible(notice.code)})" if notice.code else "", style="default")
    console.print(head)
    for label, sentence in (*notice.lines, *(notice.more if notice.level != "info" else ())):
        begun = f"{visible(label)}: " if label else ""
        console.print(Padding(RichText(begun + visible(sentence)), (0, 0, 0, 2), expand=False))


def _print_table(table: Table, console: rich.console.Console) -> None:
    for index, part in enumerate(parts(table, width=console.width)):
        console.print(_rich_table(part if index == 0 else replace(part, title=""), console.width))
    if table.caption:
        _say(console, table.caption, "dim")


def parts(table: Table, *, width: int) -> Iterator[Table]:
    """Yield a table, or, where it is too wide, several tables with some of its columns each and the first in all."""
    widths = [_width(table, index, width) + FRAME for index in range(len(table.columns))]
    chosen: list[int] = [0] if widths else []
    for index in range(1, len(widths)):
        if len(chosen) > 1 and sum(widths[i] for i in chosen) + widths[index] + 1 > width:
            yield _part(table, chosen)
            chosen = [0]
        chosen.append(index)
    yield _part(table, chosen)


def _part(table: Table, chosen: list[int]) -> Table:
    return Table(
        title=table.title,
        columns=tuple(table.columns[index] for index in chosen),
        rows=tuple(tuple(row[index] for index in chosen) for row in table.rows),
    )


def _width(table: Table, index: int, width: int) -> int:
    column = table.columns[index]
    longest = max((len(line) for row in table.rows for line in _lines(row[index], column, width)), default=0)
    if column.kind in ("text", "sentence"):
        longest = min(longest, TEXT_WIDTH)
    return max(longest, *map(len, visible(column.title).split(" ")))


def _lines(value: str | int | float | None, column: Column, width: int) -> list[str]:
    """Return the lines of a cell: a name longer than two fifths of the terminal is broken at its dots."""
    text = visible(format_cell(value, column.kind))
    most = 2 * width // 5
    if column.kind != "name" or len(text) <= most:
        return [text]
    lines = [""]
    for index, piece in enumerate(text.split(".")):
        piece = piece if index == 0 else f".{piece}"
        if lines[-1] and len(lines[-1]) + len(piece) > most:
            lines.append("")
        lines[-1] += piece
    return lines


def _rich_table(table: Table, width: int) -> rich.table.Table:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    shown = RichTable(box=box.SIMPLE_HEAD, title=RichText(visible(table.title)) if table.title else None)
    shown.title_justify, shown.title_style = "left", "bold"
    for index, column in enumerate(table.columns):
        # Only text wraps: half of a number would be read as another number, and half of a name as another name.
        side: Literal["left", "right"] = "left" if column.kind in ("text", "sentence", "name") else "right"
        wraps = column.kind in ("text", "sentence")
        # A heading is broken into lines that are no wider than its column where words allow.
        breaks = textwrap.TextWrapper(break_long_words=False, break_on_hyphens=False)
        breaks.width = max(_width(table, index, width), 1)
        heading = RichText(breaks.fill(visible(column.title)))
        shown.add_column(heading, justify=side, no_wrap=not wraps, overflow="fold", vertical="top")
    for row in table.rows:
        cells = ("\n".join(_lines(value, column, width)) for value, column in zip(row, table.columns))
        shown.add_row(*map(RichText, cells))
    return shown
