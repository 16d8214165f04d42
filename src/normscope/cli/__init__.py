"""The `normscope` command: one file per verb."""

from __future__ import annotations

import os
import sys

import typer

from .. import __version__
from ..core.errors import NormscopeError, said
from . import audit, compare, demo, ops, show

app = typer.Typer(
    name="normscope",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="From Python: import normscope as ns; ns.audit(model, batch, loader=loader), ns.lipschitz(model, batch), "
    "ns.ladder(model, batch), ns.spectral_norm(layer, input_shape=...), ns.capture(model, batch).",
)
app.command()(demo.demo)
app.command(help=audit.HELP, epilog=audit.EXAMPLES)(audit.audit)
app.command(help=show.HELP, epilog=show.EXAMPLES)(show.show)
app.command(help=compare.HELP, epilog=compare.EXAMPLES)(compare.compare)
app.command()(ops.ops)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"normscope {__version__}")
        raise typer.Exit


@app.callback()
def normscope(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Measure how much a PyTorch network can amplify its input, what its normalizers do to that, and what is wrong."""


def main() -> None:
    """Run the command; an error is one sentence on standard error and exit code 2."""
    try:
        app()
    except NormscopeError as error:
        typer.echo(f"normscope: {error}", err=True)
        sys.exit(2)
    except Exception as error:
        if os.environ.get("NORMSCOPE_TRACEBACK"):
            raise
        typer.echo(
            f"normscope: {said(error)}. That was not expected: set NORMSCOPE_TRACEBACK=1 to see where it comes from, "
            "and please report it.",
            err=True,
        )
        sys.exit(2)
