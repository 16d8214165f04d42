"""The `operators` directive: the table of operators, read from the registry when the documentation is built."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from normscope.bounds.operators.registry import operators


class Operators(SphinxDirective):
    """One row per operator."""

    def run(self) -> list[nodes.Node]:
        rows = [
            (known.name, known.family, known.summary, known.near, known.proof, str(len(known.examples)))
            for known in operators()
        ]
        table = nodes.table()
        group = nodes.tgroup(cols=6)
        table += group
        for width in (24, 12, 36, 10, 10, 8):
            group += nodes.colspec(colwidth=width)
        head, body = nodes.thead(), nodes.tbody()
        titles = ("operator", "family", "what it gives", "near a point", "in a proof", "examples")
        head += self._row(titles, literal=False)
        for row in rows:
            body += self._row(row, literal=True)
        group += [head, body]
        return [table]

    @staticmethod
    def _row(cells: tuple[str, ...], *, literal: bool) -> nodes.row:
        row = nodes.row()
        for index, cell in enumerate(cells):
            text = nodes.literal(text=cell) if literal and index == 0 else nodes.Text(cell)
            row += nodes.entry("", nodes.paragraph("", "", text))
        return row


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("operators", Operators)
    return {"parallel_read_safe": True}
