"""Saved radii: `normscope show` prints them and writes their page, `normscope compare` refuses them."""

import json

import pytest

from normscope.auditing.audit_result import Audit
from normscope.bounds.radius.radii import Radii
from normscope.core.bracket import Evidence

RADII = Radii(
    name="net",
    label=(1, 2, 0),
    predicted=(1, 2, 2),
    margin=(0.5, 2.0, -0.1),
    radius=(0.25, 0.75, 0.0),
    attacked=(0.5, float("inf"), 0.0),
    method=("ball", "global", "none"),
    evidence=(Evidence.NUMERICAL,) * 3,
    classes=3,
    input_shape=(4,),
)


@pytest.fixture
def saved(work):
    """A folder with saved radii and a saved audit."""
    RADII.to_json(work / "radii.json")
    Audit(name="a", mode=None, parameters=0, samples=0, batches=0).to_json(work / "audit.json")
    return work


def test_show_prints_radii_and_writes_their_page(saved, run):
    done = run("show", "radii.json", "--html", "page.html")
    assert (done.code, done.err) == (0, "")
    assert "Certified radii of net" in done.out
    assert "66.7%" in done.out.replace(" ", "")
    assert done.out.endswith("wrote page.html\n")
    assert (saved / "page.html").read_text() == RADII.to_html()


@pytest.mark.parametrize("order", [("radii.json", "audit.json"), ("audit.json", "radii.json")])
def test_compare_refuses_radii_and_says_what_shows_them(order, saved, run):
    done = run("compare", *order, "--html", "out.html")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "radii.json holds certified radii and no audit" in done.err
    assert "normscope show" in done.err
    assert not (saved / "out.html").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 2}, "has schema_version 2, this version reads 1"),
        ({"radius": [0.25, 0.75]}, "holds damaged radii"),
        ({"radius": [0.6, 0.75, 0.0]}, "(a certified radius lies above an attacked one)"),
        ({"evidence": ["HEARSAY"] * 3}, "holds damaged radii"),
        ({"type": "weight_sensitivity"}, "is a damaged weight sensitivity (rows is missing)"),
        ({"type": "weather"}, "holds no audit"),
        ({"type": ["radii"]}, "holds no audit"),
        ({"schema_version": True}, "has schema_version True"),
        ({"radius": [None, 0.75, 0.0]}, "(radius[0] is null)"),
    ],
)
def test_what_is_no_whole_result_is_refused_in_one_line(change, said, saved, run):
    (saved / "bad.json").write_text(json.dumps(RADII.to_json() | change))
    done = run("show", "bad.json", "--html", "out.html")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert "not expected" not in done.err
    assert not (saved / "out.html").exists()
