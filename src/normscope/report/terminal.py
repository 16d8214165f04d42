"""Documents in a terminal, by rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .cells import format_cell
from .document import Block, Document, Table

if TYPE_CHECKING:
    import rich.console
    import rich.table


def print_document(document: Document, *, console: rich.console.Console | None = None) -> None:
    """Print `document`.

    Args:
        document: what to print.
        console: where to; standard output if not given.
    """
    from rich.console import Console

    console = console or Console()
    for block in document.blocks:
        _print_block(block, console)


def render(document: Document, *, width: int = 120) -> str:
    """Return `document` as plain text without colours.

    Args:
        document: what to render.
        width: columns to fill at most.

    Returns:
        Lines of text.
    """
    import io

    from rich.console import Console

    target = io.StringIO()
    print_document(document, console=Console(file=target, width=width, color_system=None))
    return target.getvalue()


def _print_block(block: Block, console: rich.console.Console) -> None:
    if isinstance(block, Table):
        console.print(_rich_table(block))
        if block.caption:
            console.print(block.caption, style="dim", markup=False, highlight=False)
        console.print()
        return
    if block.heading:
        console.print(block.heading, style="bold", markup=False, highlight=False)
    if block.body:
        console.print(block.body, markup=False, highlight=False)
        console.print()


def _rich_table(table: Table) -> rich.table.Table:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    shown = RichTable(box=box.SIMPLE_HEAD, title=table.title or None, title_justify="left", title_style="bold")
    for column in table.columns:
        # Only text wraps: half a number is a wrong number, half a name another name.
        side: Literal["left", "right"] = "left" if column.kind in ("text", "name") else "right"
        wraps = column.kind == "text"
        shown.add_column(RichText(column.title), justify=side, no_wrap=not wraps, overflow="fold")
    for row in table.rows:
        shown.add_row(*(RichText(format_cell(value, column.kind)) for value, column in zip(row, table.columns)))
    return shown
