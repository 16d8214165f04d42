"""`Shown`: results that show themselves: on a terminal, in a notebook, as a page, as a data frame, as a plot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import InputError
from .files import write_text

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    import rich.console


class Shown:
    """A result with a page; the page, rich, jinja2, pandas and matplotlib load when they are first needed.

    Attributes:
        page: which function makes the document of such a result, as `"package.module:function"`. It is a name and no
            import, because pages stand above the results that they show; so do all that render them, in the room
            `report/`.
    """

    __slots__ = ()

    page: ClassVar[str]

    def document(self, *, brief: bool = False) -> Any:
        """Return the result as plain blocks (a `normscope.report.Document`), which a terminal or a page can show.

        Args:
            brief: whether to make the short form that a terminal shows.
        """
        module, function = self.page.split(":")
        return getattr(import_module(module), function)(self, brief=brief)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return one self-contained HTML page, and write it to a file if a path is given.

        Args:
            path: a file to write (whole or not at all).

        Raises:
            InputError: the file cannot be written.
        """
        page: str = _report("html").to_html(self.document())
        if path is not None:
            write_text(path, page)
        return page

    def to_pandas(self) -> pandas.DataFrame:
        """Return the first table of the page as a data frame, its cells as they were measured.

        Raises:
            InputError: pandas is not installed.
        """
        titles, rows = _report("export").first_table(self.document())
        return data_frame(rows, titles)

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draw the first chart of the page with matplotlib.

        Args:
            ax: the axes to draw on; None for axes of a new figure.

        Returns:
            The axes.

        Raises:
            InputError: matplotlib is not installed, or the page has no chart.
        """
        axes: matplotlib.axes.Axes = _report("axes").plot_document(self.document(), ax, type(self).__name__)
        return axes

    def _repr_html_(self) -> str:
        fragment: str = _report("html").to_fragment(self.document())
        return fragment

    def __rich_console__(self, console: rich.console.Console, options: Any) -> Any:
        from rich.text import Text

        yield Text.from_ansi(self._rendered(options.max_width, color=console.is_terminal))

    def __str__(self) -> str:
        return self._rendered(120)

    def _rendered(self, width: int, color: bool = False) -> str:
        """Return the brief form as text."""
        text: str = _report("terminal").render(self.document(brief=True), width=width, color=color)
        return text


def _report(name: str) -> Any:
    """Return a module of the room `report/`, which stands above this one."""
    return import_module(f"..report.{name}", __package__)


def data_frame(
    rows: Iterable[Mapping[str, Any] | Sequence[Any]], columns: Sequence[str] | None = None
) -> pandas.DataFrame:
    """Return rows as a data frame of pandas.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame(list(rows), columns=columns)
