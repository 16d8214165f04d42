"""`normscope choose`: what it prints and writes, and what it refuses."""

import pytest

import normscope as ns

QUICK = ("--normalizers", "none", "--batch-sizes", "8", "--learning-rates", "0.01", "--seeds", "1", "--steps", "2",
         "--workers", "0", "--no-capacity")  # fmt: skip


def test_a_choice_is_printed_and_written(work, run):
    done = run("choose", "net.py:build", "--data", "digits", *QUICK, "--html", "c.html", "--json", "c.json")
    assert (done.code, done.err) == (0, "")
    assert "Nothing can be recommended" in done.out  # after two steps
    assert [one.run.key for one in ns.Choice.from_json(work / "c.json").outcomes] == ["none batch=8 lr=0.01 seed=0"]
    assert "Recommendation" in (work / "c.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:build", "--data", "digits", "--batch-sizes", "2,x"), "--batch-sizes are numbers"),
        (("net.py:build", "--data", "net.py:loader"), "has no labels"),
        (("net.py:build", "--data", "digits", "--normalizers", "spectral"), "normalizers are some of"),
        (("net.py:build", "--data", "digits", "--loss", "unknown"), "loss is 'unknown'"),
        (("net.py:build", "--data", "digits", "--device", "nowhere"), "cannot be moved to --device nowhere"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(work, run, arguments, message):
    done = run("choose", *arguments)
    assert done.code == 2
    assert message in done.err
