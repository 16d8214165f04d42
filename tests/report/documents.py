"""Documents that the tests of the renderers share."""

import math

from normscope.report.document import (
    Chart,
    Column,
    Curve,
    Curves,
    Document,
    Figure,
    Figures,
    Glossary,
    Mark,
    Notice,
    Series,
    Steps,
    Table,
    Text,
)

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "'><svg onload=alert(1)>",
    "</script><script>alert(1)</script>",
    "</title></style><script>alert(1)</script>",
    "javascript:alert(1)",
    "{{7*7}}{% raw %}",
    "]]><!-- --><b>&lt;",
    "\u202etxt.exe\u2066",
    "a\u2028b\x00c\x1b[2J",
    "half \ud800",
)

ROWS = (
    ("layer10.conv", 2.5, 300),
    ("layer2.conv", math.inf, None),
    ("layer1.conv", None, 20),
    ("layer3.norm", -math.inf, 1000),
    ("layer4.norm", -1.25, 3),
    ("layer5.norm", 2.5, 0),
    ("layer6.norm", -0.5, 8),
    ("layer7.norm", 0.75, 9),
    ("head", 0.0, 7),
)
"""Names to be sorted as people count; infinities, gaps, a tie, a zero."""


def document(name="layer", rows=ROWS):
    """Return one block of each kind; `name` stands wherever a model or a file has a say."""
    labels = tuple(f"{name}{index}" for index in range(5))
    upright = Chart(
        title=f"Gain of {name}",
        labels=labels,
        series=(
            Series(
                name=f"norm {name}",
                style="spans",
                values=(0.0, -math.inf, 1.0, None, 2.0),
                until=(1.0, 1.0, math.inf, None, 2.0),
            ),
            Series(name="exact", style="marks", values=(1.5, None, math.inf, 0.5, 2.5)),
            Series(name="bound", style="line", values=(0.5, 1.0, None, 2.0, math.inf)),
        ),
        axis=f"log10 {name}",
        caption=f"How to read {name}.",
        rules=((f"one {name}", 0.0),),
    )
    sideways = Chart(
        title="Ladder",
        labels=labels[:3],
        series=(Series(name="bracket", style="spans", values=(0.5, 0.5, 0.25), until=(7.5, 2.25, 0.25)),),
        sideways=True,
    )
    table = Table(
        title=f"Layers of {name}",
        caption=f"Read {name} so.",
        columns=(
            Column(title="layer", kind="name"),
            Column(title=f"gain {name}", kind="log10", help=f"log10 of the norm of {name}."),
            Column(title="parameters", kind="count", help="How many."),
            Column(title="notes"),
        ),
        rows=tuple((*row, name) for row in rows),
    )
    curves = Curves(
        title=f"Course of {name}",
        curves=(
            Curve(name=f"first {name}", points=((0.0, 1.0), (10.0, 2.0), (20.0, math.nan), (30.0, 1.5)), depth=0.0),
            Curve(name=f"second {name}", points=((0.0, -1.0), (30.0, math.inf)), depth=1.0),
        ),
        axis=f"log10 {name}",
        along=f"step {name}",
        caption=f"Read the course of {name} so.",
        marks=(Mark(x=10.0, name=f"alarm in {name}", level="error", kind=f"alarm {name}"),),
        rules=((f"zero {name}", 0.0),),
    )
    return Document(
        title=f"Audit of {name}",
        blocks=(
            Text(heading=f"Summary of {name}", body=f"{name} holds."),
            Figures(items=(Figure(label=name, value=name, note=name), Figure(label="upper", value=2.25, kind="log10"))),
            Text(heading="Findings"),
            Notice(
                level="error",
                heading=name,
                where=name,
                code=name,
                lines=(("seen", name), ("advice", f"Change {name}.")),
                more=(("why", name),),
            ),
            Notice(level="info", heading="redundant-bias", more=(("seen", f"`{name}` is redundant."),)),
            Steps(title=f"Next for {name}", items=(f"Change {name}.", f"Change `{name}`.")),
            Text(heading=f"Folded {name}", body=f"{name} unfolds.", folded=True, term="norm"),
            Glossary(items=(("norm", f"What {name} does."), (f"term {name}", name))),
            Text(heading="Figures", term=f"term {name}"),
            upright,
            sideways,
            curves,
            Text(heading="Layers"),
            table,
        ),
    )
