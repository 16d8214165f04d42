"""Every `--help` begins with an example that runs as it is printed, in an empty folder."""

import re
import shlex
import subprocess
import sys

import pytest
import typer

import normscope_lab.cli
from normscope import cli

LAB = {f"lab {info.callback.__name__}": info for info in normscope_lab.cli.app.registered_commands}
FAST = {
    "check",
    "show",
    "bound lipschitz",
    "bound ops",
    "lab claims",
}


def first_example(verb: str) -> list[str]:
    info = LAB[verb] if verb in LAB else cli.load_verb(verb).registered_commands[0]
    block = re.match(r"Example:\n\n```\n(.*?)\n```\n\n", info.help, flags=re.DOTALL)
    assert block is not None, verb
    return block[1].splitlines()


def run_examples(verb: str, run) -> None:
    for line in first_example(verb):
        program, *words = shlex.split(line)
        if program == "python":
            subprocess.run([sys.executable, *words], check=True)
            continue
        assert program == "normscope"
        done = run(*words)
        assert done.code == 0, (line, done.err)
        assert done.out, line
    assert words[: len(verb.split())] == verb.split()


@pytest.mark.parametrize("verb", sorted(FAST))
def test_the_first_example_runs(verb, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(verb, run)


@pytest.mark.slow
@pytest.mark.parametrize("verb", sorted({*cli.VERBS, *LAB} - FAST))
def test_the_first_example_of_longer_work_runs(verb, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(verb, run)


def test_there_are_at_most_eleven_words_behind_the_command():
    group = typer.main.get_command(cli.app)
    assert sorted(group.commands) == [
        *("audit", "bound", "check", "choose", "compare", "curvature", "demo", "generalization", "lab", "measures"),
        "show",
    ]


@pytest.mark.parametrize("verb", ["check", "bound lipschitz", "bound radius"])
def test_the_help_as_shown_begins_with_the_example(verb, run):
    shown = run(*verb.split(), "--help").out
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert lines[0].startswith("Usage: ")
    assert lines[1:3] == ["Example:", first_example(verb)[0]]


def test_the_help_of_the_lab_says_what_each_command_does(run):
    shown = run("lab", "--help").out
    assert "Example:" not in shown
    for info in LAB.values():
        assert info.short_help.split()[:4] == info.help.split("```")[2].split()[:4]
        assert " ".join(info.short_help.split()[:4]) in shown
