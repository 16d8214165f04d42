"""`curvature_document`: a spectrum and the other measurements of curvature as one report."""

from __future__ import annotations

from collections.abc import Sequence

from ..geometry.curvature import Curvature
from ..report.document import Block, Document, Glossary, Text
from ..report.glossary import glossary


def curvature_document(whole: Curvature, *, brief: bool = False) -> Document:
    """Return one report of all results, in a short form for a terminal if `brief`."""
    return joined([one.document(brief=brief) for one in whole.results], brief=brief)


def joined(documents: Sequence[Document], *, brief: bool = False) -> Document:
    """Return several documents as one: the first as it is, each other one under its own heading."""
    first, *others = documents
    blocks = _without_words(first)
    for document in others:
        blocks.append(Text(heading=document.title, folded=not brief))
        blocks += [block for block in _without_words(document) if not (isinstance(block, Text) and block.heading)]
    return Document(title=first.title, blocks=(*blocks, *(() if brief else glossary(blocks))))


def _without_words(document: Document) -> list[Block]:
    """Return the blocks of a document without its glossary."""
    kept = [block for block in document.blocks if not isinstance(block, Glossary)]
    return [block for block in kept if not (isinstance(block, Text) and block.heading == "Words")]
