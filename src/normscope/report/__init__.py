"""Documents as plain data, and what shows them: on a terminal, in a notebook, as a page, as files."""

from typing import TYPE_CHECKING

from ..core.loading import load_when_used
from ..core.shown import Shown
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
from .words import factor, listed, pluralise, sentence

if TYPE_CHECKING:
    from .axes import plot
    from .curves import thinned
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

# What draws and prints loads when it is first used.
__getattr__ = load_when_used(
    __name__,
    {
        "picture": "export",
        "plot": "axes",
        "print_document": "terminal",
        "table_csv": "export",
        "thinned": "curves",
    },
)
