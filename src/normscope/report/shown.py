"""Results that show themselves: on a terminal, in a notebook, as a page."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..core.files import write_text
from .document import Document

if TYPE_CHECKING:
    import rich.console


class Shown(ABC):
    """A result with a `document`; rich and jinja2 load when it is first shown."""

    __slots__ = ()

    @abstractmethod
    def document(self, *, brief: bool = False) -> Document:
        """Return the result as plain blocks, before anyone chose how to show them.

        Args:
            brief: for a terminal.
        """

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return one self-contained HTML page, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        from .html import to_html

        page = to_html(self.document())
        if path is not None:
            write_text(path, page)
        return page

    def _repr_html_(self) -> str:
        from .html import to_fragment

        return to_fragment(self.document())

    def __rich_console__(self, console: rich.console.Console, options: Any) -> Any:
        from rich.text import Text

        yield Text.from_ansi(self._rendered(options.max_width, color=console.is_terminal))

    def __str__(self) -> str:
        return self._rendered(120)

    def _rendered(self, width: int, color: bool = False) -> str:
        """Return the brief form as text."""
        from .terminal import render

        return render(self.document(brief=True), width=width, color=color)
