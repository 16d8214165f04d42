"""Documents as plain data, and what shows them: on a terminal, in a notebook, as a page, as files."""

from .curves import thinned
from .document import (
    Block,
    Cell,
    Chart,
    Circle,
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
from .shown import Shown
from .terminal import print_document
from .words import counted, factor, listed

__all__ = [
    "Block",
    "Cell",
    "Chart",
    "Circle",
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
    "counted",
    "factor",
    "listed",
    "picture",
    "print_document",
    "table_csv",
    "thinned",
]
