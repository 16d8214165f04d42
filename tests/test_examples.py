"""The documentation's code is code that runs."""

import re
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("seeded")

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.py"))
HURRIED = {"audit", "capture", "check", "lipschitz", "ladder", "weight_sensitivity"}  # all run in the slow tests


def hurried(code: str) -> str:
    """The same code with budgets of a quarter of a second."""
    return re.sub(r"max_seconds=[0-9.]+", "max_seconds=0.25", code)


@pytest.mark.slow
@pytest.mark.parametrize("script", [s for s in EXAMPLES if s.stem in HURRIED], ids=lambda script: script.stem)
def test_example_runs_in_a_hurry(script, capsys):
    exec(compile(hurried(script.read_text()), str(script), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("script", [*EXAMPLES, *GUIDES], ids=lambda script: script.stem)
def test_example_runs_as_it_stands(script, capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


def test_there_is_one_example_per_measurement():
    measurements = {"audit", "check", "capture", "spectral_norm", "lipschitz", "ladder", "certified_radius"}
    measurements |= {"symmetries", "hessian", "smoothness", "flatness", "margins", "weight_sensitivity"}
    assert {script.stem for script in EXAMPLES} == measurements | {
        "certificates", "watch", "twin", "initialise", "choose", "generalization", "measures", "claims", "flow",
    }  # fmt: skip


def test_there_are_nine_guides_and_the_readme_leads_to_each():
    readme = (ROOT / "README.md").read_text()
    assert len(GUIDES) == 9
    assert [guide.name for guide in GUIDES if f"docs/guides/{guide.name}" not in readme] == []


@pytest.mark.slow
@pytest.mark.parametrize("change", [hurried, pytest.param(str, id="as_it_stands")])
def test_the_tour_runs(change, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes a report
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tour.md").read_text(), flags=re.DOTALL)
    exec(compile(change(block), "tour.md", "exec"), {})
    assert capsys.readouterr().out


def without_numbers(text: str) -> list[str]:
    """The words of a text, one list for all: numbers are `#`, and lines may be broken otherwise."""
    return re.sub(r"[-+]?\d[\d.,]*(e[-+]\d+)?", "#", text).replace("─", "").split()


def test_the_readme_prints_what_it_says():
    written = runpy.run_path(str(ROOT / "tools" / "written_pages.py"))
    readme = (ROOT / "README.md").read_text()
    ((code, shown),) = written["CODE_AND_OUTPUT"].findall(readme)
    assert without_numbers(written["printed_by"](code)) == without_numbers(shown), "run: python tools/written_pages.py"
    assert "activation-before-loss" in shown
    assert "steps are too large" in shown


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()] == []


def test_pages_say_how_often_no_problems_found_is_wrong_as_the_result_does():
    result = (ROOT / "docs" / "results" / "faults.txt").read_text()
    faults, found = map(int, re.findall(r"^held-out part, check: (\d+) faults: (\d+) found", result, flags=re.M)[0])
    one_in = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}[round(faults / (faults - found))]
    population = (ROOT / "docs" / "results" / "population.txt").read_text()
    warned, networks = re.findall(r"^all +- +(\d+)/(\d+) ", population, flags=re.M)[0]
    for page in ("README.md", "docs/limits.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.findall(r"wrong for one (?:fault )?in (\w+)", text) == [one_in], page
        assert f"{warned} of {networks}" in text.replace("*", "")
