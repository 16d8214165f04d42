import json

import pytest
from typer.testing import CliRunner

from normscope import __version__, cli
from normscope.core.errors import InputError
from normscope.rules.registry import rules

runner = CliRunner()


def test_version():
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"normscope {__version__}"


@pytest.mark.parametrize(("arguments", "taught"), [([], ["demo", "ops"]), (["demo"], ["seed"]), (["ops"], ["json"])])
def test_help_teaches(arguments, taught):
    result = runner.invoke(cli.app, [*arguments, "--help"], env={"COLUMNS": "120", "NO_COLOR": "1"})
    assert result.exit_code == 0
    assert all(word in result.output for word in taught)


def test_no_verb_shows_the_help():
    assert "demo" in runner.invoke(cli.app, []).output


def test_ops_lists_every_rule():
    result = runner.invoke(cli.app, ["ops", "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.output)
    assert [row["operator"] for row in rows] == [rule.name for rule in rules()]
    assert all(row["family"] and row["gives"] for row in rows)


def test_ops_prints_a_table():
    result = runner.invoke(cli.app, ["ops"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "aten.relu.default" in result.output


def test_an_error_raised_on_purpose_is_one_sentence_and_exit_code_2(monkeypatch, capsys):
    def fail() -> None:
        raise InputError("the batch is empty: pass at least one sample")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "normscope: the batch is empty: pass at least one sample\n"


def test_demo_prints_layers_and_ladder_of_every_network(monkeypatch):
    from normscope.cli import demo

    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "SECONDS", 2.0)
    result = runner.invoke(cli.app, ["demo"], env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == 0
    for name in demo.NETWORKS:
        assert f"{name}: layers" in result.output
        assert f"{name}: ladder" in result.output
    for rung in ("printed", "folded", "best", "observed"):
        assert rung in result.output
