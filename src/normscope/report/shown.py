"""Results that show themselves: on a terminal, in a notebook, as a page."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.files import write_text
from .document import Document

if TYPE_CHECKING:
    import rich.console


class Shown:
    """A result with a page; the page, rich and jinja2 load when it is first shown.

    Attributes:
        page: which function of the room `pages/` makes the document of such a result, as `"file:function"`; in another
            package `"package.module:function"`. It is a name and no import, because pages stand above the results that
            they show.
    """

    __slots__ = ()

    page: ClassVar[str]

    def document(self, *, brief: bool = False) -> Document:
        """Return the result as plain blocks, which a terminal, a notebook or a page can show.

        Args:
            brief: whether to make the short form that a terminal shows.
        """
        file, function = self.page.split(":")
        module = file if "." in file else f"..pages.{file}"
        made: Document = getattr(import_module(module, __package__), function)(self, brief=brief)
        return made

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
