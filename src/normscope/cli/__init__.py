"""The `normscope` command: its verbs, in four files by what they need, and those of other packages, such as the lab.

An entry point of the group `normscope.commands` names each command of another package. The file of a verb loads when
the verb is run, so that `normscope --help` takes no time.
"""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import typer

from .. import __version__
from ..core.errors import InputError, NormscopeError, describe_error
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
    "ns.certified_radius(model, (x, y)), ns.symmetries(model, batch), ns.hessian(model, data, loss=...), "
    "ns.generalization(model, train, test), "
    "ns.spectral_norm(layer, input_shape=...), "
    "ns.twin(model, batch, normalizer=...), ns.initialise(model, batch), ns.choose(model, data, loss=...), "
    "ns.capture(model, batch), ns.watch(model, optimizer, log=folder), ns.Run(folder). "
    "What the words mean (bracket, ladder, scope, evidence, ...): docs/glossary.md.",
)
VERBS = {
    "demo": "demo", "check": "auditing", "audit": "auditing", "show": "saved", "compare": "saved",
    "lipschitz": "bounding", "radius": "bounding", "domain": "bounding", "curve": "bounding", "curvature": "training",
    "generalization": "training", "choose": "training", "symmetries": "training", "verify": "bounding",
    "ops": "bounding",
}  # fmt: skip
"""The verbs of Normscope, each a function of a file in this folder."""


def load_verb(name: str) -> typer.Typer:
    """Return one verb of Normscope as an app of its own; its file, and torch with it, loads here."""
    module = importlib.import_module(f".{VERBS[name]}", __name__)
    verb = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    verb.command(epilog=getattr(module, f"{name.upper()}_EXAMPLES", None))(getattr(module, name))
    return verb


def _read_summary(name: str) -> str:
    """Return the first sentence of a verb's docstring from its file, without loading that."""
    source = Path(__file__).with_name(f"{VERBS[name]}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    text = next(ast.get_docstring(node) or "" for node in functions if node.name == name)
    return text.partition("\n\n")[0].replace("\n", " ")


def add_verbs(app: typer.Typer) -> None:
    """Add every verb: it gets all words behind its name, and what it needs loads when it is run."""
    loaders: dict[str, tuple[str, Callable[[], Any]]] = {
        name: (_read_summary(name), partial(load_verb, name)) for name in VERBS
    }
    points = {point.name: point for point in entry_points(group=GROUP)}
    for name in sorted({LAB, *points}):
        about = LAB_HELP if name == LAB else f"Commands of {points[name].value.partition(':')[0]}."
        loaders[name] = (about, points[name].load if name in points else _miss_lab)
    for name, (about, load) in loaders.items():
        app.command(name, help=about, context_settings=PASSED_ON, add_help_option=False)(_pass_on(load))


def _miss_lab() -> NoReturn:
    raise InputError("the lab is not installed: pip install 'normscope[lab]'")


def _pass_on(load: Callable[[], Callable[..., Any]]) -> Callable[[typer.Context], None]:
    """Return a command that runs the app that `load` returns, with the words behind the command's name."""

    def run(context: typer.Context) -> None:
        load()(context.args, prog_name=context.command_path)

    return run


add_verbs(app)


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
