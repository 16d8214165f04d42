"""`normscope bound curve`: what it prints and writes, and what it refuses."""

import pytest

import normscope as ns


def test_the_curve_of_digits_is_printed_written_and_shown(work, run):
    options = ("--samples", 100, "--html", "c.html", "--json", "c.json")
    done = run("bound", "curve", "net.py:model", "--data", "digits", *options)
    assert (done.code, done.err) == (0, "")
    assert "By share of the data" in done.out
    assert done.out.endswith("wrote c.html\nwrote c.json\n")
    found = ns.ShareCurve.from_json(work / "c.json")
    assert (found.samples, found.domains[0].coverage.samples) == (80, 20)
    assert "<svg" in (work / "c.html").read_text()
    shown = run("show", "c.json")
    assert shown.code == 0
    assert "By share of the data" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("net.py:model",), "--data"), (("net.py:broken", "--data", "digits"), "NaN")],
)
def test_what_cannot_be_measured_is_one_sentence(work, run, arguments, message):
    done = run("bound", "curve", *arguments)
    assert done.code == 2
    assert message in done.err
