"""Options of verbs are those of the functions that they call: one place for a default and for what it means."""

import re
from functools import partial
from typing import Annotated, Literal

import pytest
import typer

import normscope_lab.cli
from normscope import cli
from normscope.cli.options import options_of


def measure(model, *, kinds=("a", "b"), how="fast", only=None, probes=3, density=True, at_most=None):
    """Measure.

    Args:
        model: any model.
        kinds: the kinds to try.
        how: `"fast"`, or `"slow"` with many
            `probes`. It is slow.
        only: the names of some; None for all.
        probes: how many vectors to take (`found`), with `how="slow"`.
        density: whether to find the density too.
        at_most: the time limit.

    Returns:
        Nothing.
    """


@options_of(measure)
def verb(
    model: str,
    *,
    kinds: str,
    how: Literal["fast", "slow"],
    only: list[str] | None,
    probes: Annotated[int, typer.Option(min=1)],
    density: bool,
    at_most: Annotated[float, typer.Option(help="Seconds.")] = 5.0,
) -> None:
    """Measure."""


def test_defaults_and_sentences_are_those_of_the_function():
    app = typer.Typer(add_completion=False)
    app.command()(verb)
    options = {option.name: option for option in typer.main.get_command(app).params}
    assert {name: (option.default, option.help) for name, option in options.items() if name != "model"} == {
        "kinds": ("a,b", "With commas: the kinds to try."),
        "how": ("fast", "Fast, or slow with many --probes."),
        "only": (None, "The names of some; left out, all. May be given several times."),
        "probes": (3, "How many vectors to take, with --how slow."),
        "density": (True, "Find the density too."),
        "at_most": (5.0, "Seconds."),
    }


def test_an_option_that_the_function_does_not_have_is_refused():
    def misspelt(model: str, *, probe: int) -> None: ...

    with pytest.raises(KeyError, match="probe"):
        options_of(measure)(misspelt)


COMMANDS = {name: partial(cli.load_verb, name) for name in cli.VERBS} | {"lab": lambda: normscope_lab.cli.app}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_says_what_it_means(name):
    command = typer.main.get_command(COMMANDS[name]())
    for verb in getattr(command, "commands", {name: command}).values():
        for option in verb.params:
            assert option.help or option.name == "help", (verb.name, option.name)
            assert not re.search("None|`", option.help or ""), option.help
