"""The `normscope` command: its verbs, in four files by what they need, and those of other packages, such as the lab.

An entry point of the group `normscope.commands` names each command of another package.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import typer

from .. import __version__
from ..core.errors import InputError, NormscopeError, describe_error
from . import auditing, bounding, demo, saved, training
from .messages import fail, print_anything, readers_may_leave

GROUP = "normscope.commands"
LAB = "lab"
LAB_HELP = (
    "The papers' claims and experiments, and what follows from their rates: a package of its own (pip install "
    "'normscope[lab]')."
)
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command that hands everything behind its name on, `--help` as well."""

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
app.command(epilog=auditing.CHECK_EXAMPLES)(auditing.check)
app.command(epilog=auditing.AUDIT_EXAMPLES)(auditing.audit)
app.command(epilog=saved.SHOW_EXAMPLES)(saved.show)
app.command(epilog=saved.COMPARE_EXAMPLES)(saved.compare)
app.command(epilog=bounding.LIPSCHITZ_EXAMPLES)(bounding.lipschitz)
app.command(epilog=bounding.RADIUS_EXAMPLES)(bounding.radius)
app.command(epilog=bounding.DOMAIN_EXAMPLES)(bounding.domain)
app.command(epilog=bounding.CURVE_EXAMPLES)(bounding.curve)
app.command(epilog=training.CURVATURE_EXAMPLES)(training.curvature)
app.command(epilog=training.GENERALIZATION_EXAMPLES)(training.generalization)
app.command(epilog=training.CHOOSE_EXAMPLES)(training.choose)
app.command(epilog=training.SYMMETRIES_EXAMPLES)(training.symmetries)
app.command(epilog=bounding.VERIFY_EXAMPLES)(bounding.verify)
app.command()(bounding.ops)


def add_to(app: typer.Typer) -> None:
    """Add the command of each package; the package itself loads when its command is run."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    for name in sorted({LAB, *points}):
        about = LAB_HELP if name == LAB else f"Commands of {points[name].value.partition(':')[0]}."
        app.command(name, help=about, context_settings=PASSED_ON, add_help_option=False)(_command(points.get(name)))


def _command(point: EntryPoint | None) -> Callable[[typer.Context], None]:
    """Return a command that runs the app of an entry point, with the words behind the command's name."""

    def run(context: typer.Context) -> None:
        if point is None:
            raise InputError("the lab is not installed: pip install 'normscope[lab]'")
        point.load()(context.args, prog_name=context.command_path)

    return run


add_to(app)


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
