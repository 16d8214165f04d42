"""`normscope lab`: one file per verb."""

from __future__ import annotations

import typer

from normscope.commands import help_with_examples

from . import claims, cost, predict, reproduce

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Judge the claims of the papers on normalization, run their experiments, and use their calculators.",
    epilog="From Python: import normscope_lab as lab; lab.claims(), lab.reproduce(names), lab.predictive_power(split), "
    "lab.flow(model, data, loss=...), lab.training_cost(audit), lab.theorem6(widths, scales).",
)
app.command(**help_with_examples(claims.HELP, claims.EXAMPLES))(claims.claims)
app.command(**help_with_examples(reproduce.HELP, reproduce.EXAMPLES))(reproduce.reproduce)
app.command(**help_with_examples(predict.HELP, predict.EXAMPLES))(predict.predict)
app.command(**help_with_examples(cost.HELP, cost.EXAMPLES))(cost.cost)
