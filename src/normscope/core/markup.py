"""Escape text from models and files, so that a page or a terminal shows it and never acts on it."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping

NAME = re.compile(r"`([^`]+)`")
"""A name in a sentence."""
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that are invisible, or that reverse or break the text beside them."""


def card(title: str, lines: Mapping[str, str | None]) -> str:
    """Return a few labelled lines as HTML for a notebook, with inline styles that no other style sheet changes.

    Words between backticks are shown as code.

    Example:
        >>> "&lt;b&gt;" in card("a", {"where": "<b>"})
        True
    """
    cell = "padding:1px 12px 1px 0;text-align:left;vertical-align:top;border:0;background:none;white-space:normal"
    rows = "".join(
        f'<tr style="background:none;border:0"><td style="{cell};opacity:.7;white-space:nowrap">{escaped(label)}</td>'
        f'<td style="{cell}">{with_code(text)}</td></tr>'
        for label, text in lines.items()
        if text
    )
    table = f'<table style="border:0;margin:0;border-collapse:collapse;table-layout:auto">{rows}</table>'
    return f'<div style="max-width:52rem;text-align:left"><strong>{escaped(title)}</strong>{table}</div>'


def with_code(text: str) -> str:
    """Return a sentence as HTML, with the words between backticks as code and everything else as text."""
    return NAME.sub(r"<code>\1</code>", escaped(text))


def escaped(text: str) -> str:
    """Return text in the form in which HTML shows it as it is."""
    return html.escape(visible(text))


def visible(text: str) -> str:
    r"""Return `text` with characters that would act on their surroundings written out.

    Names come from models and files: an escape sequence in one must not reach a terminal, a direction mark must not
    turn a sentence around, and half a surrogate pair cannot be written to a file. Line breaks and tabs stay.

    Example:
        >>> visible("layer\u202e1")
        'layer\\u202e1'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in UNSEEN:
        return character
    return (
        character.encode("ascii", "backslashreplace").decode() if ord(character) > 127 else f"\\x{ord(character):02x}"
    )
