"""What the results of this room share: plain data for files, and a document for readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ..core.codec import JsonForm, Saved
from ..report.document import Block, Document, Glossary, Text
from ..report.glossary import glossary
from ..report.shown import Shown


class FigureResult(Saved, Shown):
    """A frozen result of figures, any of which may be NaN."""

    __slots__ = ()

    @classmethod
    def of_fields(cls, **given: Any) -> Self:
        """Make the result from the fields that were read; what cannot be shown is damaged."""
        made = cls(**given)
        made.document()
        return made


def figures_form(kind: str, function: str, left_out: tuple[str, ...] = ()) -> JsonForm:
    """Return the form of the file of a result of figures.

    Args:
        kind: its `type`.
        function: of `normscope`, that returns it.
        left_out: fields that are not stored.
    """
    noun, write = f"result of normscope.{function}", "write one with to_json(path)"
    return JsonForm(kind=kind, noun=noun, write=write, left_out=left_out, nan=True)


def joined(documents: Sequence[Document], *, brief: bool = False) -> Document:
    """Return one document of several: the first as it is, each other one under its own heading.

    Args:
        documents: at least one.
        brief: for a terminal: nothing is folded away, and there is no glossary.
    """
    first, *others = documents
    blocks = _without_words(first)
    for document in others:
        blocks.append(Text(heading=document.title, folded=not brief))
        blocks += [block for block in _without_words(document) if not (isinstance(block, Text) and block.heading)]
    return Document(title=first.title, blocks=(*blocks, *(() if brief else glossary(blocks))))


def _without_words(document: Document) -> list[Block]:
    """Return the blocks but for the glossary and its heading."""
    kept = [block for block in document.blocks if not isinstance(block, Glossary)]
    return [block for block in kept if not (isinstance(block, Text) and block.heading == "Words")]
