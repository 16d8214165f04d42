"""`normscope bound lipschitz`: what it prints and writes, and what it refuses."""

import json

import pytest

from normscope.bounds.data.quantile import DataBracket


def test_a_quantile_over_the_digits_is_printed_written_and_shown(work, run):
    options = ("--scope", "data", "--share", 0.9, "--html", "q.html", "--json", "q.json")
    done = run("bound", "lipschitz", "net.py:model", "--data", "digits", *options)
    assert (done.code, done.err) == (0, "")
    assert "With confidence 0.95, at 90 % of inputs or more" in " ".join(done.out.split())
    assert done.out.endswith("wrote q.html\nwrote q.json\n")
    found = DataBracket.from_json(work / "q.json")
    assert (found.samples, found.share, found.mode) == (32, 0.9, "eval")
    assert len(set(found.indices)) == 32
    assert found.indices != tuple(range(32))
    assert "adversarial" in (work / "q.html").read_text()
    shown = run("show", "q.json")
    assert shown.code == 0
    assert "Look at these first" in shown.out


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["point", "global"])
def test_other_scopes_are_one_line(work, run, scope):
    done = run("bound", "lipschitz", "net.py:model", "--data", "net.py:loader", "--scope", scope, "--json", "b.json")
    assert (done.code, done.err) == (0, "")
    assert json.loads((work / "b.json").read_text())["scope"] == scope


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:model",), "--data"),
        (("net.py:model", "--data", "nonsense"), "no known form"),
        (("net.py:model", "--data", "digits", "--share", 1.5), "share is a number between 0 and 1"),
        (("net.py:model", "--data", "digits", "--confidence", 0), "confidence is a number"),
        (("net.py:model", "--data", "net.py:loader", "--scope", "point", "--per", "class"), "--scope data"),
        (("net.py:model", "--data", "net.py:loader", "--sides", "upper"), "--scope global"),
        (("net.py:broken", "--data", "digits"), "NaN"),
        (("net.py:model", "--data", "net.py:wrong_shape"), "shapes"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(work, run, arguments, message):
    done = run("bound", "lipschitz", *arguments)
    assert done.code == 2
    assert message in done.err


def test_a_bound_over_all_inputs_has_a_page_too(work, run):
    words = ("net.py:model", "--data", "digits", "--scope", "global", "--mode", "eval", "--html", "p.html")
    done = run("bound", "lipschitz", *words)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("wrote p.html\n")
    assert "Lipschitz constant" in (work / "p.html").read_text()


def test_one_side_of_a_bound_over_all_inputs(work, run):
    words = ("net.py:model", "--data", "digits", "--scope", "global", "--sides", "upper", "--json", "b.json")
    assert run("bound", "lipschitz", *words).code == 0
    bracket = json.loads((work / "b.json").read_text())
    assert bracket["log10_lower"] == "-inf"
    assert isinstance(bracket["log10_upper"], float)
