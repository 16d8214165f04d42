"""Commands that other packages add to `normscope`, and what is said where the lab is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from normscope import cli
from normscope.core.errors import InputError


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """A package with a command, as its entry point names it."""
    app = typer.Typer()

    @app.command()
    def twice(number: int, loud: bool = False) -> None:
        typer.echo(f"{2 * number}{'!' if loud else ''}")

    @app.command()
    def leaves() -> None:
        raise typer.Exit(3)

    module = ModuleType("others_package")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "others_package", module)
    return EntryPoint("other", "others_package:app", cli.GROUP)


def built(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> typer.Typer:
    """Return a command with the verbs of Normscope, and with what packages add."""
    monkeypatch.setattr(cli, "entry_points", lambda group: [one for one in points if one.group == group])
    app = typer.Typer()
    cli.add_verbs(app)
    return app


@pytest.mark.parametrize("words", [(), ("claims",), ("claims", "than.lemma1", "--json"), ("--help",)])
def test_without_the_lab_its_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    app = built(monkeypatch)
    with pytest.raises(InputError, match=r"the lab is not installed: pip install 'normscope\[lab\]'"):
        CliRunner().invoke(app, ["lab", *words], catch_exceptions=False)
    assert "lab" in CliRunner().invoke(app, ["--help"]).output


def test_a_command_gets_all_words_behind_its_name(monkeypatch: pytest.MonkeyPatch, other: EntryPoint) -> None:
    app = built(monkeypatch, other)
    assert CliRunner().invoke(app, ["other", "twice", "21", "--loud"], catch_exceptions=False).output == "42!\n"
    assert CliRunner().invoke(app, ["other", "leaves"]).exit_code == 3
    assert "--loud" in CliRunner().invoke(app, ["other", "twice", "--help"]).output
    assert "others_package" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.slow
def test_the_lab_loads_when_it_is_run_and_not_before() -> None:
    code = "import sys, normscope.cli; print('normscope_lab' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
