"""The `normscope` command: one file per verb."""

from __future__ import annotations

import os

import typer

from .. import __version__
from ..core.errors import NormscopeError, describe_error
from . import (
    audit,
    check,
    choose,
    compare,
    curvature,
    curve,
    demo,
    domain,
    generalization,
    installed,
    lipschitz,
    ops,
    radius,
    show,
    symmetries,
    verify,
)
from .messages import fail, print_anything, readers_may_leave

app = typer.Typer(
    name="normscope",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="From Python: import normscope as ns; ns.check(model, batch), ns.audit(model, batch, loader=loader), "
    "ns.lipschitz(model, batch), ns.ladder(model, batch), ns.domain(model, loader), ns.curve(model, loader), "
    "ns.certified_radius(model, x, y), ns.symmetries(model, batch), ns.hessian(model, loss_fn, loader), "
    "ns.generalization(model, train, test), "
    "ns.spectral_norm(layer, input_shape=...), "
    "ns.twin(model, batch, normalizer=...), ns.initialise(model, batch), ns.choose(model, loader, loss_fn), "
    "ns.capture(model, batch), ns.watch(model, optimizer, log=folder), ns.Run(folder). "
    "What the words mean (bracket, ladder, scope, evidence, ...): docs/glossary.md.",
)
app.command()(demo.demo)
app.command(help=check.HELP, epilog=check.EXAMPLES)(check.check)
app.command(help=audit.HELP, epilog=audit.EXAMPLES)(audit.audit)
app.command(help=show.HELP, epilog=show.EXAMPLES)(show.show)
app.command(help=compare.HELP, epilog=compare.EXAMPLES)(compare.compare)
app.command(help=lipschitz.HELP, epilog=lipschitz.EXAMPLES)(lipschitz.lipschitz)
app.command(help=radius.HELP, epilog=radius.EXAMPLES)(radius.radius)
app.command(help=domain.HELP, epilog=domain.EXAMPLES)(domain.domain)
app.command(help=curve.HELP, epilog=curve.EXAMPLES)(curve.curve)
app.command(help=curvature.HELP, epilog=curvature.EXAMPLES)(curvature.curvature)
app.command(help=generalization.HELP, epilog=generalization.EXAMPLES)(generalization.generalization)
app.command(help=choose.HELP, epilog=choose.EXAMPLES)(choose.choose)
app.command(help=symmetries.HELP, epilog=symmetries.EXAMPLES)(symmetries.symmetries)
app.command(help=verify.HELP, epilog=verify.EXAMPLES)(verify.verify)
app.command()(ops.ops)
installed.add_to(app)


def _print_version(asked: bool) -> None:
    if asked:
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
    print_anything()
    with readers_may_leave():
        _run()


def _run() -> None:
    try:
        app()
    except NormscopeError as error:
        fail(str(error))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # A panic of an extension written in Rust is no Exception.
        if os.environ.get("NORMSCOPE_TRACEBACK"):
            raise
        fail(
            f"{describe_error(error)}. That was not expected: set NORMSCOPE_TRACEBACK=1 to see where it comes "
            "from, and please "
            "report it."
        )
