"""Alarms are raised once, also over the parts of a run that was resumed; what no training shows soon, as records."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from dataclasses import replace

import pytest

from normscope.core.finding import Finding, Severity
from normscope.doctor.monitor.history import History
from normscope.doctor.monitor.layer_record import LayerRecord
from normscope.doctor.monitor.log import LogWriter, read_log
from normscope.doctor.monitor.quantities import normalizers, turning
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.series import SeriesByLayer
from normscope.doctor.symptoms.not_finite import watch_loss_not_finite
from normscope.doctor.symptoms.registry import Rule, add_record

from .alarm_runs import mlp, sgd, train, warned

DEPTH = 5
LAYERS = (
    *(
        LayerRecord(
            name=f"conv{i}", kind="weight", family="convolution", normalizer=f"norm{i}", invariant="channel", groups=8,
            weight_decay=1e-4,
        )
        for i in range(DEPTH)
    ),
    *(
        LayerRecord(name=f"norm{i}", kind="normalizer", family="batch_norm", eps=1e-5, entries=4096, samples=64)
        for i in range(DEPTH)
    ),
    *(LayerRecord(name=f"relu{i}", kind="units", family="relu") for i in range(DEPTH)),
    *(LayerRecord(name=f"block{i}", kind="block", family="Block") for i in range(DEPTH)),
)  # fmt: skip
USUAL = {
    "weight": {
        "log10_norm": 0.3, "log10_folded": 0.5, "log10_size": 0.6, "log10_gradient": -1.0, "rotation": 0.01,
        "log10_effective_lr": -2.0, "zero": 0.0,
    },
    "normalizer": {
        "log10_variance": -0.5, "log10_variance_min": -1.0, "log10_variance_max": 0.2, "log10_constant": 0.5,
        "log10_gain": 0.5, "dominated": 0.0, "constant": 0.0, "dead": 0.0, "log10_running": 0.01,
        "running_spread": 0.05,
    },
    "units": {"dead": 0.1},
    "block": {"log10_activation": 0.1, "log10_backward": 0.1},
}  # fmt: skip


def record(step, *, loss=1.0, gradient=0.0, at=None, **changed):
    """A record of a healthy run, with other figures at one layer, or at all: `weight__rotation=1e-9`."""
    values = {}
    for kind, table in USUAL.items():
        values[kind] = {}
        for quantity, usual in table.items():
            other = changed.get(f"{kind}__{quantity}", usual)
            values[kind][quantity] = tuple(other if at in (None, i) else usual for i in range(DEPTH))
    return Record(
        step=step, seconds=0.1 * step, tier="standard", loss=loss, lr=(0.1,), values=values,
        total={"log10_printed": 1.5, "log10_constants": 2.5, "log10_gradient": gradient},
    )  # fmt: skip


def history(*records):
    found = History()
    found.begin(LAYERS)
    for one in records:
        add_record(found, one)
    return found


def run(count, change, *, every=50):
    """A run whose figures are those of `change(share of the run)`."""
    return history(*(record(every * i, **change(i / (count - 1))) for i in range(count)))


def codes(found):
    return {(finding.code, finding.where) for finding in found.findings if finding.severity >= Severity.WARNING}


def test_a_healthy_run_is_silent():
    assert not run(40, lambda share: {}).findings, "not even an info, though variances are below 1"
    assert not codes(run(40, lambda share: {"loss": 2.0 - share, "weight__log10_norm": 0.3 + 0.3 * share}))
    assert not codes(run(60, lambda share: {"gradient": -6.0 * share, "loss": 10.0 ** (-5 * share)}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: {"normalizer__log10_variance": -0.5 - 4 * s}, "variance-collapse"),
        (lambda s: {"normalizer__dominated": s}, "variance-collapse"),
        (lambda s: {"weight__log10_norm": 0.3 + 2 * s}, "norm-growth"),
        (lambda s: {"normalizer__log10_variance_max": 0.2 - 10 * s}, "dead-layer"),
        (lambda s: {"normalizer__dead": 1.0}, "dead-layer"),
        (lambda s: {"normalizer__constant": 0.5 * s}, "dead-channels"),
        (lambda s: {"weight__zero": 0.5 * s}, "dead-channels"),
        (lambda s: {"units__dead": s}, "dead-relu"),
        (lambda s: {"weight__rotation": 10 ** (-2 - 6 * s)}, "effective-lr"),
        (lambda s: {"weight__rotation": 1.0}, "effective-lr"),
        (lambda s: {"weight__log10_folded": 4.0}, "expanding-normalizer"),
        (lambda s: {"normalizer__log10_running": 0.5}, "stale-statistics"),
        (lambda s: {"weight__log10_gradient": -7.0}, "gradient-vanishing"),
        (lambda s: {"weight__log10_gradient": 5.0}, "gradient-explosion"),
    ],
)
def test_figures_that_raise_an_alarm(change, expected):
    found = run(30, lambda share: {"at": 1, **change(share)})
    assert {code for code, _ in codes(found)} == {expected}
    assert {where for _, where in codes(found)} <= {"conv1", "norm1", "relu1"}
    assert all(f.step is not None and f.seen and f.why and f.advice and f.numbers for f in found.findings)


@pytest.mark.parametrize(("observed", "losses", "told"), [
    (True, (0.056, 0.04, 0.03, 0.029, 0.2, 0.21, 0.2), True),
    (False, (0.056, 0.04, 0.03, 0.029, 0.2, 0.21, 0.2), False),
    (False, (0.056, 0.04, 0.03, 0.029, 0.2, 0.21, 0.2, 0.22), True),
])  # fmt: skip
def test_losses_of_single_batches_are_lost_after_one_record_more(observed, losses, told):
    """A loop that reports nothing shows one batch a record, where one that does shows the mean of all steps."""
    means = [{"loss_mean": loss} if observed else {} for loss in losses]
    records = [replace(record(10 * i, loss=loss), metrics=mean) for i, (loss, mean) in enumerate(zip(losses, means))]
    assert ("loss-rising" in {finding.code for finding in history(*records).findings}) is told


@pytest.mark.parametrize(("losses", "count", "told"), [
    ((1.0, 1.05), 1.0, False),
    ((1.0, 1.05), 50.0, True),
    ((1.0, 1.05, 1.05), 1.0, True),
])  # fmt: skip
def test_two_losses_of_single_batches_do_not_show_steps_that_are_too_large(losses, count, told):
    """A mean of many losses does, or a third record: two batches of a healthy run may differ by as much."""
    found = History()
    for index, loss in enumerate(losses):
        total = {"log10_step": -0.7, "log10_weight": 0.0, "log10_gradient": 0.0}
        seen = {"loss_mean": loss, "loss_count": count} if index and count > 1.0 else {}
        add_record(
            found, Record(step=50 * index, seconds=0.0, tier="economy", loss=loss, lr=(0.1,), total=total, metrics=seen)
        )
    assert ("lr-too-high" in {finding.code for finding in found.findings}) is told


@pytest.mark.parametrize("coupled", [False, True])
def test_a_weight_that_shrinks_to_nothing_is_told_with_its_cause(coupled):
    free = [
        replace(x, normalizer=None, invariant=None, groups=0, coupled=coupled) for x in LAYERS if x.kind == "weight"
    ]
    found = History()
    found.begin((*free, *(layer for layer in LAYERS if layer.kind != "weight")))
    for index in range(30):
        add_record(found, record(50 * index, at=1, weight__log10_norm=0.3 - 0.3 * index))
    [told] = [finding for finding in found.findings if finding.code == "dead-layer"]
    assert told.where == "conv1"
    assert ("AdamW" in told.advice) is coupled
    assert ("coupled" in told.why) is coupled


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: {"gradient": 8.0 * s, "at": 3, "weight__log10_gradient": 0.5}, ("gradient-explosion", "conv3")),
        (lambda s: {"gradient": math.nan if s > 0.5 else 0.0}, ("gradient-explosion", "")),
        (lambda s: {"gradient": -8.0 * s}, ("gradient-vanishing", "")),
        (lambda s: {"loss": 10 ** (3 * s)}, ("loss-rising", "")),
        (lambda s: {"loss": math.inf if s > 0.5 else 1.0}, ("loss-not-finite", "")),
    ],
)
def test_figures_of_the_whole_network(change, expected):
    assert codes(run(30, change)) == {expected}


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {"weight__rotation": 1e-2 if s < 0.2 else 1e-8, "loss": 2.0 if s < 0.2 else 1e-3},  # fitted
        lambda s: {"weight__log10_norm": 0.3 + math.log10(1 + 30 * s)},  # levels off
        lambda s: {"gradient": 5.0 if 0.50 < s < 0.54 else 0.0},  # one batch
        lambda s: {"gradient": math.nan if 0.50 < s < 0.54 else 0.0},  # one step that a GradScaler skips
        lambda s: {"normalizer__dominated": 1.0},  # from the start
        lambda s: {"units__dead": 0.95 if 0.5 < s < 0.6 else 0.1},  # two batches
    ],
)
def test_figures_that_raise_none(change):
    assert not codes(run(30, change))


def test_an_alarm_is_raised_once_and_again_when_it_is_worse(monkeypatch):
    severities = [Severity.INFO, Severity.INFO, Severity.WARNING, Severity.INFO, Severity.ERROR, Severity.ERROR]

    def alarm(found):
        step = found.records[-1].step
        yield Finding(code="x", severity=severities[step], where="a", seen="", why="", advice="", step=step)

    monkeypatch.setattr("normscope.doctor.symptoms.registry.RULES", (Rule(watch=alarm),))
    found = History()
    raised = [[f.severity for f in add_record(found, record(step))] for step in range(6)]
    assert raised == [["info"], [], ["warning"], [], ["error"], []]
    assert len(found.findings) == 3


def test_a_step_that_is_done_again_replaces_the_records_from_there():
    found = history(*(record(step, loss=1.0) for step in (0, 10, 20, 30)))
    add_record(found, record(20, loss=2.0))
    assert [(one.step, one.loss) for one in found.records] == [(0, 1.0), (10, 1.0), (20, 2.0)]
    assert [one.step for one in found.having("weight", "rotation")] == [0, 10, 20]
    assert found.next_step == 21


def written(folder, records, *, step=0, layers=LAYERS, end=None):
    """Write a part of a run as `watch` does; return what it raised."""
    writer, found = LogWriter(folder), History()
    if writer.resumed:
        found.resume(folder)
    found.begin(layers)
    writer.write("run", {"schema_version": 1, "step": step, "layers": [layer.to_json() for layer in layers]})
    raised = []
    for one in records:
        new = add_record(found, one)
        writer.write("step", one.to_json())
        for finding in new:
            writer.write("finding", finding.to_json())
        raised += new
    if end is not None:
        writer.write("end", {"step": end, "how": "finished", "seconds": 1.0, "overhead": 0.0})
    writer.close()
    return raised


def test_a_resumed_run_repeats_no_alarm_and_goes_on_with_what_it_knew(tmp_path):
    collapse = [record(50 * i, at=1, normalizer__log10_variance=-0.5 - 0.2 * i) for i in range(40)]
    first = written(tmp_path, collapse[:14])
    second = written(tmp_path, collapse[14:25], step=700)
    third = written(tmp_path, collapse[20:], step=1000, end=2003)
    assert not first
    assert [(f.code, f.where) for f in (*second, *third)].count(("variance-collapse", "norm1")) == 1, "needs both parts"
    whole = History()
    whole.resume(tmp_path)
    assert [one.step for one in whole.records] == [50 * i for i in range(40)]
    assert whole.records[25] == Record.from_json(collapse[25].to_json())
    assert whole.findings == [Finding.from_json(line) for line in read_log(tmp_path) if line["type"] == "finding"]
    assert whole.layers == LAYERS
    assert whole.next_step == 2003


def test_records_of_another_model_keep_their_loss_alone(tmp_path):
    written(tmp_path, [record(50 * i) for i in range(10)])
    other = tuple(replace(layer, name=f"new.{layer.name}") for layer in LAYERS)
    written(tmp_path, [record(500)], step=500, layers=other)
    found = History()
    found.resume(tmp_path)
    assert len(found.records) == 11
    assert [one.step for one in found.having("weight", "rotation")] == [500]
    assert [one.loss for one in found.records] == [1.0] * 11


@pytest.mark.slow
def test_a_training_in_two_parts(tmp_path):
    first = train(mlp("batch"), sgd(0.01), batch=8, steps=30, log=tmp_path)
    second = train(mlp("batch"), sgd(0.01), batch=8, steps=30, log=tmp_path)
    assert warned(first) == warned(second) == {"small-batch": ["norm1"]}
    assert [line["type"] for line in read_log(tmp_path)].count("finding") == 1
    assert [one.step for one in second.records] == [0, 10, 20, 30, 40, 50]


ODD = (None, math.nan, math.inf, -math.inf, 0.0, 1.0)
QUANTITIES = {
    "weight": (
        "log10_norm",
        "log10_folded",
        "log10_size",
        "log10_gradient",
        *(one.name for one in turning.Turning.quantities),
    ),
    "normalizer": tuple(one.name for one in normalizers.Normalizers.quantities if one.of == "normalizer"),
    "units": ("dead",),
    "block": ("log10_activation", "log10_backward"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_measured_an_alarm_never_fails(seed):
    drawn = random.Random(seed)

    def figure():
        return drawn.choice(ODD) if drawn.random() < seed / 20 else drawn.uniform(-320, 320)

    found = History()
    found.begin(LAYERS)
    for index in range(30):
        values = {
            kind: {quantity: tuple(figure() for _ in range(DEPTH)) for quantity in names[index % 2 :]}
            for kind, names in QUANTITIES.items()
            if drawn.random() < 0.9
        }
        one = Record(
            step=50 * index, seconds=0.0, tier="full", values=values, loss=drawn.choice([None, 0.0, -1.0, 1.0, 1e300]),
            lr=drawn.choice([(), (0.0,), (0.1,), (math.inf,), (math.nan, 1.0)]),
            total={key: figure() for key in ("log10_printed", "log10_constants", "log10_gradient")},
        )  # fmt: skip
        for finding in add_record(found, one):
            assert finding.to_json()["step"] == one.step


@pytest.mark.slow
def test_the_cost_does_not_grow_with_the_run(monkeypatch):
    found = history(*(record(step) for step in range(30)))
    read, looked = Record.of, []
    monkeypatch.setattr(Record, "of", lambda self, *what: looked.append(1) or read(self, *what))
    counts = []
    for stretch in range(2):
        for step in range(1000 * stretch + 30, 1000 * stretch + 1000):
            found.keep(record(step))
        looked.clear()
        for step in range(5):
            add_record(found, record(1000 * (stretch + 1) + step))
        counts.append(len(looked))
    assert counts[0] > 0
    assert counts[1] == counts[0]


def stored(held, seen):
    """How many numbers an object holds."""
    if id(held) in seen:
        return 0
    if isinstance(held, int | float):
        return 1
    seen.add(id(held))
    if isinstance(held, dict):
        return sum(stored(value, seen) for value in held.values())
    if isinstance(held, list | tuple | set | deque):
        return sum(stored(value, seen) for value in held)
    slots = [name for cls in type(held).__mro__ for name in getattr(cls, "__slots__", ())]
    inner = [getattr(held, name) for name in slots if hasattr(held, name)]
    return sum(stored(value, seen) for value in (*inner, *getattr(held, "__dict__", {}).values()))


@pytest.mark.slow
@pytest.mark.parametrize("count", [5000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_what_is_kept_does_not_grow_with_the_run(count):
    found = History()
    found.begin(LAYERS[:1])
    most = 0
    for step in range(count):
        found.keep(
            Record(
                step=step, seconds=0.0, tier="economy", loss=1.0 + step, lr=(0.1,),
                values={"weight": {"log10_norm": (float(step),)}}, total={"log10_gradient": 0.5 + step},
            )
        )  # fmt: skip
        if step % (count // 50) == 0:
            most = max(most, stored(found, set()))
    assert most <= 1000 * 6 + 4 * (3 + 2 * 12 + 1) + 200
    assert len(found.records) <= 1000
    assert [one.step for one in found.records[:3]] == [0, 1, 2]
    assert [one.step for one in found.records[-300:]] == list(range(count - 300, count))
    gaps = [later.step - earlier.step for earlier, later in itertools.pairwise(found.records)]
    assert max(gaps) <= count / 50


@pytest.mark.parametrize("every", [1, 3, 7, 9, 10, 50, 400])
def test_a_course_keeps_a_lasting_state_however_often_is_measured(every):
    courses = SeriesByLayer()
    for index in range(300):
        courses.add(index * every, [float(index)])
        course = courses.of(0)
        pairs = course.latest()
        if pairs:
            steps = [step for step, _ in pairs]
            assert steps[-1] == index * every
            assert len(steps) >= (5 if steps[-1] - steps[0] < 80 else 4)
            assert steps[-1] - steps[0] >= 40
            assert steps[0] > 0, "an untrained model is no lasting state"
            assert steps[-1] - steps[0] <= max(48, 5 * every)
        else:
            assert index < 5 or index * every < 48 + every
    assert course.first == [0.0, 1.0, 2.0]


def test_steps_that_are_done_again_leave_the_course():
    courses = SeriesByLayer()
    for step in range(0, 200, 10):
        courses.add(step, [float(step)])
    courses.forget(160)
    courses.add(160, [-1.0])
    assert courses.of(0).latest()[-1] == (160, -1.0)
    assert courses.of(0).latest()[-2] == (150, 150.0)
    courses.add(170, [math.nan])
    assert courses.of(0).lasting() == []
    assert courses.of(0).now == pytest.approx(135.0), "the median of -1, 130, 140 and 150"


@pytest.mark.parametrize("seed", range(20))
def test_layers_that_share_a_track_have_the_courses_that_each_would_have_alone(seed):
    draw, together, alone = random.Random(seed), SeriesByLayer(), [SeriesByLayer() for _ in range(4)]
    step, gap, share_missing = 0, draw.choice([1, 10, 50]), draw.choice([0.0, 0.1, 0.5])
    for _ in range(40):
        column = [draw.choice([draw.gauss(0, 1), -math.inf, math.nan]) for _ in alone]
        column = [None if draw.random() < share_missing else value for value in column]
        if draw.random() < 0.05:
            step -= min(step, 3 * gap)
            for courses in (together, *alone):
                courses.forget(step)
        together.add(step, column)
        for courses, value in zip(alone, column, strict=True):
            courses.add(step, [value])
        step += draw.randint(1, gap)
        for place, courses in enumerate(alone):
            one, own = together.of(place), courses.of(0)
            # written out, for NaN is not equal to itself
            assert repr((one.first, one.recent, one.latest(), one.lasting())) == repr(
                (own.first, own.recent, own.latest(), own.lasting())
            )
            assert together.starts().get(place) == own.start
            assert together.nows().get(place) == own.now
            assert together.lasting().get(place, []) == own.lasting()
            assert repr(list(together.last().get(place, ()))) == repr(own.last())


def test_numbers_that_break_are_told_at_once_and_others_wait():
    found = history()
    for step in range(8):
        loss = math.nan if step in (3, 4) else 1.0
        raised = [f.code for f in add_record(found, record(step, loss=loss), thorough=False)]
        assert raised == (["loss-not-finite"] if step == 3 else [])
    assert found.findings[0].numbers["last_finite_step"] == 2


def test_alarms_are_looked_for_again_once_numbers_are_finite(monkeypatch):
    def alarm(seen):
        yield Finding(code="x", severity=Severity.INFO, where="a", seen="", why="", advice="", step=0)

    monkeypatch.setattr(
        "normscope.doctor.symptoms.registry.RULES", (Rule(watch=watch_loss_not_finite), Rule(watch=alarm))
    )
    found = History()
    raised = [
        [f.code for f in add_record(found, record(step, loss=math.nan if step == 0 else 1.0))] for step in range(2)
    ]
    assert raised == [["loss-not-finite"], ["x"]]


def test_one_update_is_no_lasting_state():
    """Layers whose update waits its turn have gaps: what was seen once does not count for the records between."""
    still = history()
    for step in range(0, 200, 10):
        one = record(step, loss=1.0)
        rotation = {"rotation": (1e-9,) * len(one.of("weight", "rotation"))} if step in (0, 100) else {}
        table = {q: n for q, n in one.values["weight"].items() if q != "rotation"} | rotation
        add_record(still, replace(one, values={**one.values, "weight": table}))
    assert "effective-lr" not in {finding.code for finding in still.findings}


def test_figures_of_other_layers_leave_no_trace_when_a_run_goes_on_with_a_changed_model() -> None:
    found = History()
    found.begin(LAYERS[:1])
    found.keep(Record(step=0, seconds=0.0, tier="full", loss=1.0, values={"weight": {"log10_norm": (0.5,)}},
                      histograms={"weight": ((1.0, 1.0),)}))  # fmt: skip
    assert not found.begin(LAYERS[1:3])
    assert (found.records[0].values, found.records[0].histograms, found.records[0].loss) == ({}, {}, 1.0)
    assert found.value_series("weight", "log10_norm", 0).start is None
