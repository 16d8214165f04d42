"""Documents as plain data, and what shows them: on a terminal, in a notebook, as a page, as files."""

from typing import TYPE_CHECKING

from ..core.loading import load_when_used
from ..core.shown import Shown
from .words import factor, listed, pluralise, sentence

if TYPE_CHECKING:
    from .axes import plot
    from .curves import thinned
    from .document import (
        Block,
        Cell,
        Chart,
        Column,
        Curve,
        Curves,
        Document,
        Figure,
        Figures,
        Series,
        Steps,
        Table,
        Text,
    )
    from .export import picture, table_csv
    from .terminal import print_document

__all__ = [
    "Block",
    "Cell",
    "Chart",
    "Column",
    "Curve",
    "Curves",
    "Document",
    "Figure",
    "Figures",
    "Series",
    "Shown",
    "Steps",
    "Table",
    "Text",
    "factor",
    "listed",
    "picture",
    "plot",
    "pluralise",
    "print_document",
    "sentence",
    "table_csv",
    "thinned",
]

# Documents, and what draws and prints them, load when they are first used.
__getattr__ = load_when_used(
    __name__,
    {
        "Block": "document",
        "Cell": "document",
        "Chart": "document",
        "Column": "document",
        "Curve": "document",
        "Curves": "document",
        "Document": "document",
        "Figure": "document",
        "Figures": "document",
        "Series": "document",
        "Steps": "document",
        "Table": "document",
        "Text": "document",
        "picture": "export",
        "plot": "axes",
        "print_document": "terminal",
        "table_csv": "export",
        "thinned": "curves",
    },
)
