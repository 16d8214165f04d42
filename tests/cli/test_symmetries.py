"""`normscope bound symmetries`: what it prints and writes, and what it refuses."""

import pytest

import normscope as ns


@pytest.mark.slow
def test_the_symmetries_of_a_network_are_printed_written_and_shown(work, run):
    options = ("--mode", "train", "--html", "s.html", "--json", "s.json")
    done = run("bound", "symmetries", "net.py:model", "--data", "digits", *options)
    assert (done.code, done.err) == (0, "")
    assert "By kind" in done.out
    assert done.out.endswith("wrote s.html\nwrote s.json\n")
    found = ns.Symmetries.from_json(work / "s.json")
    assert found.verified == found.rows
    assert "Symmetries of the parameters" in (work / "s.html").read_text()
    shown = run("show", "s.json")
    assert shown.code == 0
    assert "By kind" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("net.py:model",), "--data"), (("net.py:broken", "--data", "digits"), "NaN")],
)
def test_what_cannot_be_looked_at_is_one_sentence(work, run, arguments, message):
    done = run("bound", "symmetries", *arguments)
    assert done.code == 2
    assert message in done.err
