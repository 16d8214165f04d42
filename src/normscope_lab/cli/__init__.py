"""`normscope lab`: one file per verb."""

from __future__ import annotations

import typer

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
app.command(help=claims.HELP, epilog=claims.EXAMPLES)(claims.claims)
app.command(help=reproduce.HELP, epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command(help=predict.HELP, epilog=predict.EXAMPLES)(predict.predict)
app.command(help=cost.HELP, epilog=cost.EXAMPLES)(cost.cost)
