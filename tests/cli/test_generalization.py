"""`normscope generalization`: what it prints and writes, and what it refuses."""

import json

import pytest


@pytest.mark.slow
def test_the_bounds_of_a_model_of_digits_are_printed_written_and_shown_again(work, run):
    options = ("--samples", 400, "--steps", 2, "--cells", 1, "--cells", 4, "--input-range", 0, 1)
    done = run("generalization", "net.py:model", "--data", "digits", *options, "--html", "g.html", "--json", "g.json")
    assert (done.code, done.err) == (0, "")
    assert "Theorem 20, all inputs" in done.out
    assert "Conditions that are not met" in done.out
    assert done.out.endswith("wrote g.html\nwrote g.json\n")
    data = json.loads((work / "g.json").read_text())
    assert (data["type"], data["samples"], data["held_out"], data["tested"]) == ("generalization", 320, 80, 359)
    assert (work / "g.html").read_text().count("<svg") >= 3
    shown = run("show", "g.json", "--html", "again.html")
    assert (shown.code, shown.err) == (0, "")
    assert done.out == shown.out.replace("wrote again.html", "wrote g.html") + "wrote g.json\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:model", "--data", "net.py:loader"), "no labels"),
        (("net.py:model", "--data", "digits", "--test", "digits", "--samples", "50", "--delta", "2"), "delta"),
        (("net.py:model", "--data", "digits", "--partition", "grid", "--samples", "50"), "input_range"),
        (("net.py:model", "--data", "digits", "--samples", "50", "--input-range", "0", "0.5"), "entries from"),
        (("net.py:model", "--data", "digits", "--samples", "50", "--loss", "cross_entropy"), "cross_entropy"),
        (
            ("net.py:model", "--data", "digits", "--samples", "50", "--fixed", "nothing"),
            "no such buffer",
        ),
    ],
)
def test_what_cannot_be_bounded_is_one_sentence(work, run, arguments, message):
    done = run("generalization", *arguments)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
