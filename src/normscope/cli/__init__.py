"""The `normscope` command: its verbs, in files by what they need, and those of other packages, such as the lab.

An entry point of the group `normscope.commands` names each command of another package. The file of a verb loads when
the verb is run, so that `normscope --help` takes no time. The help of a verb begins with an example that runs as it
is printed, and ends with those that need a model of the reader's own.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import typer

from .. import __version__
from ..core.errors import InputError, NormscopeError, describe_error
from .messages import fail, help_with_examples, print_anything, readers_may_leave

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
    epilog="From Python: import normscope as ns; ns.check(model, data), and around a training loop "
    "with ns.watch(model, optimizer, log=folder) as run. Every verb has its --help, which begins with an example that "
    "runs as it is printed. What the words mean: docs/glossary.md.",
)
VERBS = {
    "check": "auditing", "audit": "auditing", "show": "saved", "compare": "saved", "choose": "training",
    "curvature": "training", "generalization": "generalization", "measures": "training", "demo": "demo",
    "bound lipschitz": "bounding", "bound radius": "bounding",
    "bound symmetries": "training", "bound verify": "bounding", "bound ops": "bounding",
}  # fmt: skip
"""The verbs of Normscope, each a function of a file in this folder; those of a group have its name before theirs."""
GROUPS = {
    "bound": "Bounds that hold for all inputs, for a share of the data or within a radius, and how they are checked: "
    "lipschitz, radius, symmetries, verify, ops."
}


def load_verb(name: str) -> typer.Typer:
    """Return one verb of Normscope as an app of its own; its file, and torch with it, loads here."""
    module = importlib.import_module(f".{VERBS[name]}", __name__)
    function = getattr(module, name.rpartition(" ")[2])
    verb = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    examples = getattr(module, f"{function.__name__.upper()}_EXAMPLES")
    verb.command(**help_with_examples(inspect.getdoc(function) or "", examples))(function)
    return verb


@cache
def _read_summaries(file: str) -> dict[str, str]:
    """Return the first sentence of each function's docstring in a file of this folder, without loading that."""
    source = Path(__file__).with_name(f"{file}.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    texts = {node.name: ast.get_docstring(node) or "" for node in functions}
    return {name: text.partition("\n\n")[0].replace("\n", " ") for name, text in texts.items()}


def add_verbs(app: typer.Typer) -> None:
    """Add every verb: it gets all words behind its name, and what it needs loads when it is run."""
    groups = {name: typer.Typer(no_args_is_help=True, help=about) for name, about in GROUPS.items()}
    for name, file in VERBS.items():
        group, _, verb = name.rpartition(" ")
        _add_loader(groups[group] if group else app, verb, _read_summaries(file)[verb], partial(load_verb, name))
    for name, group_app in groups.items():
        app.add_typer(group_app, name=name)
    points = {point.name: point for point in entry_points(group=GROUP)}
    for name in sorted({LAB, *points}):
        about = LAB_HELP if name == LAB else f"Commands of {points[name].value.partition(':')[0]}."
        _add_loader(app, name, about, points[name].load if name in points else _miss_lab)


def _add_loader(app: typer.Typer, name: str, about: str, load: Callable[[], Any]) -> None:
    """Add a command that loads another app when it is run."""
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
    """Say what is wrong with a PyTorch model, which layer it is and what to do about it.

    `normscope check normscope.networks:mlp --data digits` checks a small network that comes with Normscope;
    `normscope check net.py:build --data digits` checks the model that the function `build` in your `net.py` returns.
    """


def main() -> None:
    """Run the command; an error is one sentence on standard error and exit code 2."""
    print_anything()
    with readers_may_leave():
        _run()


def _run() -> None:
    try:
        app()
    except NormscopeError as error:
        if error.__cause__ is None:
            fail(str(error))
        from .model_forms import describe_with_place

        fail(describe_with_place(error))
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
