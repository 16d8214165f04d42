"""The command as a whole: version, help, what becomes of errors."""

import inspect
import json
import re
import subprocess
import sys

import pytest

import normscope
from normscope import __version__, cli
from normscope.bounds.operators.registry import operators
from normscope.core.errors import InputError


def test_version(run):
    done = run("--version")
    assert (done.code, done.out.strip()) == (0, f"normscope {__version__}")


@pytest.mark.parametrize(
    ("arguments", "taught"),
    [
        ([], ["demo", "audit", "compare", "bound", "import normscope"]),
        (["demo"], ["--seed", "--out", "report"]),
        (["bound", "ops"], ["--json"]),
        (
            ["audit"],
            [
                *("--data", "--html", "--json", "--fail-on", "--mode", "--output", "--batch-size", "--max-seconds"),
                *("--seed", "--trust", "package.module:function", ".pt2", "Hugging Face", "safetensors", "Exit codes"),
                *(
                    "mnist:FOLDER",
                    "npz:FILE",
                    "normscope audit normscope.networks:mlp --data digits --html report.html",
                ),
            ],
        ),
        (["compare"], ["--html", "normscope compare plain.json residual.json"]),
    ],
)
def test_help_teaches(run, arguments, taught):
    done = run(*arguments, "--help")
    assert done.code == 0
    assert [word for word in taught if word not in done.out] == []


@pytest.mark.parametrize("verb", ["check", "bound lipschitz", "bound symmetries"])
def test_json_on_standard_output_is_alone_there(work, run, verb):
    done = run(*verb.split(), "net.py:model", "--data", "digits", "--json", "-")
    assert (done.code, done.err) == (0, "")
    assert isinstance(json.loads(done.out), dict)
    assert not (work / "-").exists()


def test_files_beside_json_on_standard_output_are_named_on_standard_error(work, run):
    done = run("check", "net.py:model", "--data", "digits", "--json", "-", "--html", "c.html")
    assert json.loads(done.out)["type"] == "check"
    assert done.err == "wrote c.html\n"
    refused = run("check", "net.py:model", "--data", "digits", "--html", "-")
    assert refused.code == 2
    assert "only --json takes -" in re.sub(r"[\s│]+", " ", refused.err)


def test_a_failing_builder_is_shown_by_its_own_file_and_line(work, run):
    done = run("check", "net.py:raises", "--data", "digits")
    line = 1 + (work / "net.py").read_text().splitlines().index(
        '    raise ValueError("the weights are gone\\nand so is the second line")'
    )
    assert done.code == 2
    assert f"ValueError: the weights are gone (net.py, line {line}: raise ValueError(" in done.err
    (work / "typo.py").write_text("import torch\n\ndef build(:\n")
    assert "(typo.py, line 3)" in run("check", "typo.py:build", "--data", "digits").err


@pytest.mark.parametrize("verb", [["check"], ["audit"], ["bound", "lipschitz", "--scope", "global"]], ids=" ".join)
def test_a_failing_forward_is_shown_by_its_own_file_and_line(verb, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "narrow.py").write_text(
        "from torch import nn\nclass Narrow(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = nn.Linear(5, 2)\n"
        "    def forward(self, x):\n        return self.inner(x)\n"
    )
    done = run(*verb, "narrow.py:Narrow", "--data", "digits")
    assert done.code == 2
    assert done.err.count("(narrow.py, line 7: return self.inner(x))") == 1


def test_a_failing_loader_is_shown_by_its_own_file_and_line(work, run):
    assert re.search(
        r"OSError: the disk went away \(net\.py, line \d+: raise",
        run("check", "net.py:model", "--data", "net.py:tears").err,
    )


def test_an_error_inside_of_torch_names_the_line_of_the_user_that_called_it(work, run):
    (work / "inside.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(-3, 2)\n")
    assert (
        "(inside.py, line 5: return torch.nn.Linear(-3, 2))" in run("check", "inside.py:build", "--data", "digits").err
    )


def test_verify_says_what_it_wants(work, run):
    (work / "a.json").write_text("{}")
    done = run("bound", "verify", "a.json")
    assert done.code == 2
    assert "files that bracket.save('proof.npz') wrote" in done.err
    assert "normscope show a.json" in done.err


def test_long_work_tells_what_it_does_where_there_is_no_terminal(work, run, monkeypatch):
    monkeypatch.setattr("normscope.core.budget.SECONDS_BETWEEN_LINES", 0.0)
    done = run("audit", "net.py:model", "--data", "digits")
    assert done.code == 0
    lines = done.err.splitlines()
    assert all(line.startswith("normscope: auditing: ") for line in lines)
    assert any("% done" in line for line in lines)


def test_ops_lists_every_rule(run):
    done = run("bound", "ops", "--json", "-")
    assert done.code == 0
    rows = json.loads(done.out)
    assert [row["operator"] for row in rows] == [rule.name for rule in operators()]
    assert all(row["family"] and row["gives"] for row in rows)


def test_an_error_raised_on_purpose_is_one_sentence_and_exit_code_2(monkeypatch, capsys):
    def fail() -> None:
        raise InputError("the batch is empty: pass at least one sample")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "normscope: the batch is empty: pass at least one sample\n"


def test_an_error_nobody_expected_is_one_line_too_and_says_how_to_see_more(monkeypatch, capsys):
    def fail() -> None:
        raise ZeroDivisionError("division by zero\nmore")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    said = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said.startswith("normscope: ZeroDivisionError: division by zero.")
    assert said.count("\n") == 1
    monkeypatch.setenv("NORMSCOPE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_every_command_that_runs_a_model_takes_a_device():
    callbacks = [info.callback for verb in cli.VERBS for info in cli.load_verb(verb).registered_commands]
    running = [one for one in callbacks if {"model", "data"} <= inspect.signature(one).parameters.keys()]
    assert len(running) > 8
    assert [one.__name__ for one in running if "device" not in inspect.signature(one).parameters] == []


def test_version_and_help_need_no_torch():
    for words, text in ((["--version"], "normscope"), (["--help"], "Check a model in seconds")):
        command = [sys.executable, "-X", "importtime", "-m", "normscope", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert text in done.stdout
        assert re.findall(r"\| +(torch|numpy|scipy)\n", done.stderr) == []


def test_every_public_name_loads_from_its_home():
    homes = {name for names in normscope.HOMES.values() for name in names}
    assert homes | {"__version__", "generalization"} == set(normscope.__all__)
    assert {name: getattr(normscope, name).__name__ for name in homes} == {name: name for name in homes}
    assert {*normscope.__all__, "optim"} <= set(dir(normscope))
    with pytest.raises(AttributeError, match="no attribute 'chek'"):
        normscope.chek  # noqa: B018
