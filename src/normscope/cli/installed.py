"""Commands that other packages add, such as the lab: an entry point of the group `normscope.commands` names each."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import typer

from ..core.errors import InputError

GROUP = "normscope.commands"
LAB = "lab"
LAB_HELP = (
    "The papers' claims and experiments, and what follows from their rates: a package of its own (pip install "
    "'normscope[lab]')."
)
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command that hands everything behind its name on, `--help` as well."""


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
