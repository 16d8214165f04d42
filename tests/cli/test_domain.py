"""`normscope bound domain`: what it prints and writes, and what it refuses."""

import json

import pytest


def test_the_domain_of_digits_is_printed_and_written(work, run):
    done = run("bound", "domain", "net.py:model", "--data", "digits", "--save", "d.npz", "--json", "d.json")
    assert (done.code, done.err) == (0, "")
    assert "a small change grows at most" in done.out
    assert "lie inside" in done.out
    assert done.out.endswith("wrote d.json\nwrote d.npz\n")
    found = json.loads((work / "d.json").read_text())
    assert found["mode"] == "eval"
    assert found["rungs"]["best"]["scope"] == "domain"
    assert found["rungs"]["best"]["log10_upper"] <= found["rungs"]["global"]["log10_upper"]
    assert found["coverage"]["samples"] > 200
    assert 0 < found["coverage"]["lower"] < found["coverage"]["share"]
    assert (work / "d.npz").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:model",), "--data"),
        (("net.py:model", "--data", "nonsense"), "no known form"),
        (("net.py:broken", "--data", "digits"), "NaN"),
    ],
)
def test_what_is_refused(work, run, arguments, message):
    done = run("bound", "domain", *arguments)
    assert done.code == 2
    assert message in done.err
