"""`normscope lab predict`: what it prints and writes, and what it refuses."""

import pytest

from normscope_lab.population.prediction import Prediction

QUICK = ("--depths", "2", "--widths", "24", "--normalizers", "none", "--batch-sizes", "16", "--learning-rates",
         "0.05,0.1", "--weight-decays", "0", "--seeds", "1", "--samples", "48", "--workers", "0")  # fmt: skip


@pytest.mark.slow
def test_a_population_is_printed_and_written(work, run):
    done = run(
        "lab", "predict", *QUICK, "--target-loss", "1.5", "--html", "p.html", "--json", "p.json", "--folder", "runs"
    )
    assert (done.code, done.err) == (0, "")
    assert "2 reached it and are compared." in " ".join(done.out.split())
    assert [one.recipe.lr for one in Prediction.from_json(work / "p.json").members] == [0.05, 0.1]
    assert "How well each measure orders the gaps" in (work / "p.html").read_text()
    assert len((work / "runs" / "runs.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "imagenet"), "none of digits, mnist:FOLDER"),
        (("--data", "mnist:"), "none of digits, mnist:FOLDER"),
        (("--data", "cifar10:nowhere"), "no file"),
        (("--widths", "32,x"), "--widths are numbers"),
        (("--normalizers", "spectral"), "normalizers are some of"),
        (("--samples", "1700"), "cannot be drawn"),
        (("--device", "nowhere"), "cannot be used here"),
        (("--target-loss", "0"), "target_loss is a number above 0"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(work, run, arguments, message):
    done = run("lab", "predict", *arguments)
    assert done.code == 2
    assert message in done.err
