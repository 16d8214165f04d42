"""`ns.check` as a whole: what it costs, what it says, its forms, and models that cannot be captured."""

import json
from itertools import count

import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError
from normscope.doctor.checking import checking
from normscope.report.document import Chart, Table, Text

from ..net import Net
from .seen import Untraced, randn


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def sigmoids(depth: int = 12) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.Sigmoid())))


class TestCost:
    def counted(self, monkeypatch: pytest.MonkeyPatch, batches: int | None, **known) -> tuple[ns.Check, int, int]:
        model, forwards, backwards = net(), count(), count()  # what Python can put back is put back, an iterator not
        model.register_forward_hook(lambda *_: (next(forwards), None)[1])
        model[0].register_full_backward_hook(lambda *_: (next(backwards), None)[1])
        monkeypatch.setattr(torch.export, "export", lambda *_, **__: pytest.fail("a check traces nothing"))
        monkeypatch.setattr(
            "normscope.bounds.traced_network.BoundSettings.bracket",
            lambda *_, **__: pytest.fail("a check bounds nothing"),
        )
        loader = None if batches is None else (randn(64, 6) for _ in range(batches))
        return ns.check(model, randn(64, 6), loader=loader, **known), next(forwards), next(backwards)

    @pytest.mark.parametrize(("batches", "forwards"), [(None, 2), (1, 2), (5, 6), (100, checking.BATCHES + 1)])
    def test_one_forward_a_batch_and_one_forward_and_backward(self, monkeypatch, batches, forwards) -> None:
        check, seen, back = self.counted(monkeypatch, batches)
        assert (seen - check.cost.small, back) == (forwards, 1) == (check.cost.forwards, check.cost.backwards)
        assert check.cost.small == 3
        assert check.batches == forwards - 1
        assert check.samples == 64 * check.batches

    def test_a_loss_costs_a_step_and_two_halves_more(self, monkeypatch) -> None:
        check, seen, back = self.counted(monkeypatch, None, loss=lambda made: made.square().mean())
        assert (check.cost.forwards, check.cost.backwards) == (5, 2)
        assert (seen - check.cost.small, back) == (6, 3)  # one pass by halves
        assert check.signal.objective.gradient_of == "the loss"


class TestVerdict:
    def test_nothing_wrong(self) -> None:
        assert ns.check(net(), randn(64, 6)).verdict == "No problems found."

    def test_what_is_wrong_and_where(self) -> None:
        check = ns.check(sigmoids(), randn(8, 16))
        assert check.verdict == "The gradient of `0` vanishes; nothing else stands out."

    def test_errors_come_before_warnings(self) -> None:
        model = nn.Sequential(nn.Linear(8, 4), nn.GroupNorm(4, 4), nn.Linear(4, 3), nn.LayerNorm(3, eps=0.0))
        verdict = ns.check(model, randn(64, 8)).verdict
        assert verdict.startswith("`1` normalizes sets of one or two values; ")
        assert "the eps of `3` does not fit its input" in verdict


class TestAnythingThatRuns:
    def test_a_model_that_cannot_be_captured(self) -> None:
        with pytest.raises(ns.NormscopeError):
            ns.capture(Untraced(nn.Linear(6, 6)), randn(3, 6))
        check = ns.check(Untraced(nn.Linear(6, 6)), randn(3, 6))
        assert not check.skipped
        assert check.signal.rows[-1].log10_gradient == 0.0

    @pytest.mark.slow
    def test_a_compiled_model(self) -> None:
        assert ns.check(torch.compile(net()), randn(64, 6)).cost.forwards == 2

    def test_labels_and_a_loss(self) -> None:
        check = ns.check(net(), (randn(64, 6), torch.zeros(64, dtype=torch.long)), loss=F.cross_entropy)
        assert check.signal.rows[0].log10_gradient is not None

    def test_inside_inference_mode(self) -> None:
        model = net()
        with torch.inference_mode():
            assert ns.check(model, torch.ones(64, 6)).cost.backwards == 1

    def test_broken_weights_are_said_and_nothing_is_differentiated(self) -> None:
        model = net()
        with torch.no_grad():
            model[0].weight[0, 0] = float("nan")
        check = ns.check(model, randn(64, 6))
        assert check.findings[0].code == "non-finite-weights"
        assert check.signal is None
        assert check.cost.backwards == 0
        assert check.skipped[0][0] == "values and gradients by depth"
        assert str(check)
        assert check.to_html()
        assert not len(check.to_pandas())

    def test_values_that_overflow_on_the_way(self) -> None:
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).half()
        with torch.no_grad():
            model[0].weight.fill_(6e4)
        check = ns.check(model, torch.ones(4, 6).half())
        assert (check.findings[0].code, check.findings[0].where) == ("non-finite-activations", "0")
        assert [row.finite for row in check.signal] == [True, False, False]
        json.dumps(check.to_json(), allow_nan=False)

    def test_a_logarithm_between_two_modules_is_not_told_of_the_second(self) -> None:

        model = Net(lambda net, x: net.second(net.first(x).log()), first=nn.Linear(6, 6), second=nn.Linear(6, 2))
        finding = ns.check(model, randn(16, 6)).findings[0]
        assert (finding.code, finding.where) == ("non-finite-activations", "")
        assert "`log`" in finding.seen
        assert "`log`" in finding.advice

    def test_dead_relus_and_stale_statistics_are_looked_for(self) -> None:
        model = net()
        with torch.no_grad():
            model[1].bias -= 100.0
        assert [f.code for f in ns.check(model, randn(64, 6)).findings] == ["dead-relu"]
        model = net().eval()
        model[1].running_var *= 100.0
        assert "stale-statistics" in [f.code for f in ns.check(model, randn(256, 6)).findings]

    def test_nonsense_is_refused_in_a_sentence(self) -> None:
        for known, words in (
            ({"model": 3}, "not a torch.nn.Module"),
            ({"model": nn.Linear}, "model is the class Linear, not a torch.nn.Module: pass an object of it"),
            ({"batch": randn(3, 5)}, "must work"),
            ({"loader": 3}, "loader is a int: pass a batch"),
            ({"loader": []}, "yields no batch"),
            ({"mode": "fast"}, "mode is"),
            ({"loss": lambda made: made}, "one value"),
            ({"output": "other"}, "no output"),
        ):
            given = {"model": net(), "batch": randn(64, 6), **known}
            with pytest.raises(InputError, match=words):
                ns.check(given.pop("model"), given.pop("batch"), **given)


class TestForms:
    def test_json(self, tmp_path) -> None:
        check = ns.check(sigmoids(), randn(8, 16), name="deep")
        data = check.to_json(tmp_path / "c.json")
        assert data == json.loads((tmp_path / "c.json").read_text())
        assert (data["schema_version"], data["type"], data["name"]) == (1, "check", "deep")
        assert data["verdict"] == check.verdict
        assert data["cost"] == {"forwards": 2, "backwards": 1, "small": 3}
        assert len(data["signal"]["rows"]) == 25
        assert "seconds" not in data
        assert ns.Check.from_json(tmp_path / "c.json") == check == ns.Check.from_json(data)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"type": "audit"}, "holds no check"),
            ({"schema_version": 2}, "has schema_version 2, this version reads 1: update Normscope"),
            ({"signal": 3}, r"damaged check \(signal is 3\)"),
            ({"findings": [{}]}, r"damaged check \(findings\[0\]\.code is missing\)"),
            ({"cost": {"forwards": "2"}}, "damaged"),
            ({"mode": "both"}, "damaged"),
        ],
    )
    def test_what_is_no_check_is_refused(self, change, words) -> None:
        data = ns.check(net(), randn(64, 6)).to_json() | change
        with pytest.raises(InputError, match=words):
            ns.Check.from_json(data)

    def test_the_same_call_gives_the_same_bytes(self) -> None:
        model, batch = sigmoids(), randn(8, 16)
        assert json.dumps(ns.check(model, batch).to_json()) == json.dumps(ns.check(model, batch).to_json())

    def test_pandas(self) -> None:
        frame = ns.check(net(), randn(64, 6)).to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame["kind"]) == ["input", "linear", "batch_norm", "relu", "linear"]
        assert {"path", "mean", "deviation", "least", "greatest", "log10_gradient", "dead"} <= set(frame.columns)

    def test_the_verdict_comes_first(self) -> None:
        check = ns.check(sigmoids(), randn(8, 16))
        for brief in (True, False):
            texts = [
                block.body for block in check.document(brief=brief).blocks if isinstance(block, Text) and block.body
            ]
            assert texts[0] == check.verdict
            assert "2 forward passes and 1 backward pass" in texts[1]
        kinds = [type(block) for block in check.document().blocks]
        assert Chart in kinds
        assert Table in kinds

    def test_it_shows_itself(self, tmp_path) -> None:
        check = ns.check(sigmoids(), randn(8, 16))
        assert check.verdict in str(check)
        assert "The gradient of `0` vanishes" in repr(check)
        assert "<svg" in check._repr_html_()
        check.to_html(tmp_path / "c.html")
        assert "Signal by depth" in (tmp_path / "c.html").read_text()

    def test_the_table_of_a_model_summary(self) -> None:
        model = net()
        model[0].weight.requires_grad_(False)
        check = ns.check(model.double(), randn(64, 6).double())
        (table,) = (block for block in check.document(brief=True).blocks if isinstance(block, Table))
        assert [column.title for column in table.columns] == [
            "layer", "type", "output shape", "parameters", "values: mean", "values: std", "relative gradient",
            "saturated, dead (%)",
        ]  # fmt: skip
        assert [row[:4] for row in table.rows] == [
            ("input", "input", "64x6", None),
            ("0", "linear", "64x16", 112),
            ("1", "batch_norm", "64x16", 32),
            ("2", "relu", "64x16", None),
            ("3", "linear", "64x3", 51),
        ]
        assert "Parameters: 195 in all, 99 trainable, 1.6 kB." in str(check)
        page = next(block for block in check.document().blocks if isinstance(block, Table))
        assert not [column.title for column in page.columns if column.kind == "log10"]

    def test_parameters_are_counted_once_whoever_applies_them(self) -> None:
        class Shared(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embed, self.attend = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)
                self.head, self.scale = nn.Linear(8, 9, bias=False), nn.Parameter(torch.ones(8))
                self.head.weight = self.embed.weight

            def forward(self, tokens: Tensor) -> Tensor:
                x = self.embed(tokens)
                return self.head(self.scale * self.attend(x, x, x, need_weights=False)[0]) + self.head(x)

        check = ns.check(Shared(), torch.arange(9).reshape(3, 3))
        (table,) = (block for block in check.document().blocks if isinstance(block, Table))
        counts = {row[0]: row[3] for row in table.rows if row[3] is not None}
        assert counts == {"embed": 72, "attend": 4 * 64 + 4 * 8, "(model)": 8}
        assert sum(counts.values()) == check.parameters

    def test_a_long_table_is_short_in_a_terminal(self) -> None:
        check = ns.check(nn.Sequential(*(nn.Linear(4, 4) if k % 2 else nn.Tanh() for k in range(50))), randn(8, 4))
        assert "All 51 lines: `print(check.table())`." in str(check)
        assert str(check).count(" tanh ") < str(check.table()).count(" tanh ") == 25
        (table,) = (block for block in check.document().blocks if isinstance(block, Table))
        assert len(table.rows) == 51

    def test_it_is_frozen(self) -> None:
        with pytest.raises(AttributeError):
            ns.check(net(), randn(64, 6)).name = "other"


class TestRaiseIf:
    def test_a_healthy_model_goes_on(self) -> None:
        check = ns.check(net(), randn(64, 6))
        assert check.raise_if("info") is check

    def test_findings_are_the_message(self) -> None:
        check = ns.check(sigmoids(), randn(8, 16))
        assert check.raise_if("error") is check
        with pytest.raises(ns.FindingsError) as raised:
            check.raise_if("warning")
        assert raised.value.findings == check.findings
        told = str(raised.value)
        assert told.startswith("the model has 1 finding:\nwarning The gradient of `0` vanishes (gradient-vanishing)")
        assert check.findings[0].advice.split(".")[0] in " ".join(told.split())

    def test_only_what_reaches_the_severity_is_listed(self) -> None:
        model = sigmoids()
        with torch.no_grad():
            model[0].weight[0, 0] = float("inf")
        audit = ns.audit(model, randn(8, 16))
        with pytest.raises(ns.NormscopeError, match="non-finite-weights") as raised:
            audit.raise_if("error")
        assert {finding.severity for finding in raised.value.findings} == {ns.Severity.ERROR}

    def test_another_word_is_refused(self) -> None:
        with pytest.raises(InputError, match="severity is 'fatal': pass 'info', 'warning', 'error'"):
            ns.check(net(), randn(64, 6)).raise_if("fatal")


@pytest.mark.slow
def test_an_audit_shows_the_signal_too() -> None:
    audit = ns.audit(net(), randn(64, 6), rtol=0.1)
    titles = [block.heading for block in audit.document().blocks if isinstance(block, Text) and block.heading]
    assert "Signal by depth" in titles
    assert [row.path for row in audit.signal] == ["input", "0", "1", "2", "3"]
    older = audit.to_json()
    del older["signal"]
    assert ns.Audit.from_json(older).signal is None
    damaged = audit.to_json()
    damaged["signal"]["rows"][0]["mean"] = "much"
    with pytest.raises(InputError, match="damaged"):
        ns.Audit.from_json(damaged)
