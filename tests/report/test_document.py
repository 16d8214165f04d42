import math
from dataclasses import replace

import pytest

from normscope.core.bracket import Bracket, Evidence, Scope
from normscope.report.brackets import bracket_table, rungs
from normscope.report.document import Chart, Column, Series, Table
from normscope.report.words import format_cell, visible

TABLE = Table(
    title="layers",
    caption="read it so",
    columns=(Column(title="layer"), Column(title="log10", kind="log10"), Column(title="parameters", kind="count")),
    rows=(("[0]", 1.2345, 1200), ("head", math.inf, None)),
)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (5.6721, "log10", "5.67"),
        (math.inf, "log10", "inf"),
        (-math.inf, "log10", "-inf"),
        (-0.0, "log10", "0.00"),
        (-0.001, "log10", "0.00"),
        (-0.0, "number", "0"),
        (None, "log10", "-"),
        (0.0, "number", "0"),
        (0.973, "percent", "97.3 %"),
        (12.34, "seconds", "12.3 s"),
        (1234567, "count", "1,234,567"),
        ("relu", "text", "relu"),
        (3, "text", "3"),
    ],
)
def test_a_cell_is_written_by_what_its_column_holds(value, kind, shown):
    assert format_cell(value, kind) == shown


def test_a_row_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match="row 1 of table 'layers': 1 cells, 2 columns"):
        Table(title="layers", columns=(Column(title="a"), Column(title="b")), rows=(("1", "2"), ("3",)))


@pytest.mark.parametrize(
    ("series", "complaint"),
    [
        (Series(name="s", style="line", values=(1.0,)), "does not fit 2 labels"),
        (Series(name="s", style="spans", values=(1.0, 2.0)), "spans, and only they"),
        (Series(name="s", style="marks", values=(1.0, 2.0), until=(1.0, 2.0)), "spans, and only they"),
        (Series(name="s", style="spans", values=(1.0, 2.0), until=(1.0,)), "does not fit 2 labels"),
    ],
)
def test_a_series_that_does_not_fit_its_chart_is_refused(series, complaint):
    with pytest.raises(ValueError, match=complaint):
        Chart(labels=("a", "b"), series=(series,))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("größe 🙂", "größe 🙂"),
        ("a\nb\tc", "a\nb\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("half\ud800", "half\\ud800"),
        ("line\u2028end", "line\\u2028end"),
    ],
)
def test_what_nobody_could_see_is_written_out(text, shown):
    assert visible(text) == shown
    visible(text).encode("utf-8")


def test_brackets_become_a_table_of_exponents():
    finite = Bracket(log10_lower=0.5, log10_upper=1.5, evidence=Evidence.PROVEN, method="folded")
    why = {"reason": "a gate", "converged": False, "advice": "raise max_seconds"}
    no_bound = Bracket(
        log10_lower=0.5, log10_upper=0.1, evidence=Evidence.NUMERICAL, method="printed", holds=False, reason="skips"
    )
    table = bracket_table({"a": finite, "b": replace(finite, log10_upper=math.inf, **why), "c": no_bound})
    assert table.rows == (
        ("a", 0.5, 1.5, "global", "PROVEN", "a", "folded"),
        ("b", 0.5, math.inf, "global", "PROVEN", "b", "folded; a gate; not converged: raise max_seconds"),
        ("c", 0.5, 0.1, "global", "not a bound", "c", "printed; skips"),
    )


def _side(upper, evidence=Evidence.NUMERICAL, **more):
    return Bracket(log10_lower=0.0, log10_upper=upper, evidence=evidence, method="m", **more)


def test_methods_that_agree_are_one_rung_and_the_best_speaks_for_them():
    proven = _side(2.2504, Evidence.PROVEN)
    others = {"product": _side(4.0), "folded": _side(2.25), "closed-form": _side(2.2549)}
    found = rungs({**others, "best": proven, "tight": _side(2.26)})
    assert [rung.names for rung in found] == [("product",), ("folded", "closed-form", "best"), ("tight",)]
    assert found[1].bracket is proven
    assert [rung.label for rung in found] == ["layer after layer", "best bound", "optimised certificate"]


@pytest.mark.parametrize(
    "other",
    [
        {"scope": Scope.POINT},
        {"holds": False, "reason": "it skips the sums"},
        {"upper": 2.256},
        {"upper": math.inf, "reason": "a gate"},
    ],
)
def test_what_speaks_of_something_else_is_a_rung_of_its_own(other):
    given = dict(other)
    assert len(rungs({"a": _side(2.25), "b": _side(given.pop("upper", 2.25), **given)})) == 2
