"""Documents as plain data, and what shows them: on a terminal, in a notebook, as a page, as files."""

from ..core.shown import Shown
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
from .words import factor, listed, pluralise, sentence

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
