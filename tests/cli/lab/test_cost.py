"""`normscope lab cost`: what it prints and writes, and what it refuses."""

import json

import pytest


@pytest.mark.slow
def test_cost_prints_ratios_with_their_warning_and_writes_both_files(work, run):
    done = run(
        "lab", "cost", "net.py:model", "--data", "digits", "--alpha", "0.1", "--html", "c.html", "--json", "c.json"
    )
    assert (done.code, done.err) == (0, "")
    assert "depends on a convention" in done.out
    assert done.out.endswith("wrote c.html\nwrote c.json\n")
    data = json.loads((work / "c.json").read_text())
    (layer,) = data["at_data"]
    assert data["paths"] == ["1"]
    assert layer["log10_at_least"] == pytest.approx(layer["log10_behind"] + 1.0)
    assert layer["log10_normalized"] == pytest.approx(layer["log10_unnormalized"] + layer["log10_normalizers"])
    assert "Training cost of net.py:model" in (work / "c.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:model", "--data", "digits", "--alpha", "0"), "--alpha is a number above 0"),
        (("net.py:model",), "--data"),
        (("net.py:narrow", "--data", "net.py:vectors"), "two or more weight layers"),
    ],
)
def test_what_has_no_cost_is_one_sentence(work, run, arguments, message):
    with (work / "net.py").open("a") as file:
        file.write("\nnarrow = nn.Linear(4, 2)\n")
    done = run("lab", "cost", *arguments)
    assert done.code == 2
    assert message in done.err
