"""The catalogue of watched runs: loops run, vocabularies agree, and the scorer judges and names as it says."""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import sys
import types
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

import benchmarks.watch_faults as scores
import normscope_faults.runs.check_runs as checks
from normscope_faults import CAUSES
from normscope_faults.runs.score import judge
from normscope_faults.runs.stories import CAUSES_BY_CODE, REMEDIES, STORIES

from .test_fault_catalogue import draws_so_far

FAULTS, HEALTHY = ([entry for part in checks.PARTS.values() for entry in part[kind]] for kind in (0, 1))
# Stories as somebody might word them, with the causes that each tells (others may be told beside them).
TOLD = {
    "The updates are too small beside the weights.": "rate-too-low",
    "The learning rate is 1e-7, which is very low.": "rate-too-low",
    "The learning rate is zero.": "rate-zero",
    "The learning rate fell to 1e-9 at step 60.": "rate-decays-too-early",
    "The gradient is tiny in every layer.": "gradient-too-small vanishing-gradient",
    "Clipping cut every gradient.": "clipping-always-active",
    "Something overwrites the weights between steps.": "weights-put-back",
    "The loss does not fall.": "not-learning",
    "The loss stays at what guessing gives.": "not-learning labels-unrelated",
    "All labels are of one class.": "labels-constant",
    "Every step sees the same batch.": "same-batch",
    "Dropout removes 99 % of the values.": "dropout-too-strong",
    "The outputs are probabilities, and the loss takes a softmax.": "softmax-twice",
    "There is no gradient at the step.": "gradient-missing gradient-cut",
    "Outputs (32, 1) and targets (32,) are broadcast.": "shapes-broadcast",
    "The loss falls without bound: check its sign.": "sign-of-loss",
    "No gradient reaches `encoder`.": "gradient-cut",
    "Gradients shrink from layer to layer and vanish.": "vanishing-gradient",
    "optimizer.step was never called: no step in 50 passes.": "no-step",
    "The scaler skipped every step.": "steps-skipped",
    "`head` is in no optimizer.": "not-in-optimizer",
    "`features` is frozen.": "frozen-layer",
    "The learning rate is too high.": "rate-too-high",
    "The loss grew from 2 to 40.": "divergence",
    "The gradient is 300 times as large as before.": "exploding-gradient",
    "The activations of `3` grow by orders of magnitude.": "exploding-values",
    "The loss is NaN.": "not-finite",
    "The input batch holds NaN.": "not-finite-data not-finite",
    "A weight of `conv2` is infinite.": "not-finite-weights not-finite",
    "Values overflow in half precision.": "precision",
    "The loss jumped at step 200.": "loss-spike",
    "One target is an outlier.": "outlier",
    "The weight decay is stronger than the gradient.": "decay-too-strong",
    "All units of `2` are zero: the layer is dead.": "dead-units",
    "Units of `1` are saturated.": "saturated-units",
    "The inputs are not standardised.": "inputs-not-scaled",
    "The running statistics are stale.": "running-statistics-wrong",
    "BatchNorm is in eval mode.": "wrong-mode",
    "BatchNorm sees a batch of 1.": "normalizer-too-few-samples",
    "The attention of `blocks.0` looks at one token.": "attention-collapse",
    "The discriminator is always right.": "discriminator-wins",
    "The latent code is unused.": "posterior-collapse",
    "The outputs are the same for every sample.": "output-constant",
    "The weights of `0` have shrunk to nothing.": "layer-decayed",
    "Gradients accumulate: zero_grad is missing.": "gradient-accumulates",
    "All units of the layer are copies of each other.": "units-alike",
    "The validation loss rises while the training loss falls.": "overfitting validation-worsens",
    "The accuracy fell from 0.9 to 0.5.": "validation-worsens",
    "The inputs changed at step 150.": "data-changed",
    "The batches are sorted by class.": "sorted-batches",
}
LIMIT_OF_CAUSES_TOLD = 5  # a short sentence that tells more causes shows a pattern that fits everything


def alarm(**attributes):
    return scores.Alarm(**{"code": "some-code", "step": 0, "where": "", "story": "", "advice": "", **attributes})


@pytest.mark.parametrize("sentence", TOLD)
def test_patterns_read_stories(sentence):
    told = alarm(story=sentence).tells()
    assert set(TOLD[sentence].split()) <= told
    assert len(told) <= LIMIT_OF_CAUSES_TOLD, sorted(told)


def test_vocabularies_agree():
    assert STORIES.keys() == set(" ".join(TOLD.values()).split())
    assert STORIES.keys() <= CAUSES.keys()
    assert set().union(*CAUSES_BY_CODE.values()) <= STORIES.keys()
    for fault in FAULTS:
        assert fault.causes, fault.name
        assert fault.causes <= STORIES.keys(), fault.name
        assert fault.remedies, fault.name
        assert fault.remedies <= REMEDIES.keys(), fault.name
        assert 0 <= fault.onset < fault.steps, fault.name
        assert fault.source, fault.name
    assert set().union(*(fault.causes for fault in FAULTS)) == STORIES.keys()


def test_names_are_unique():
    names = [entry.name for entry in (*FAULTS, *HEALTHY)]
    assert len(set(names)) == len(names)


def digest(entry, train):
    """Return a digest of what counts as right, of the modules and the optimizer, and of the random numbers drawn."""
    said = [str(sorted(value) if isinstance(value, frozenset) else value)
            for name, value in vars(entry).items() if name != "build"]  # fmt: skip

    @contextlib.contextmanager
    def watch(model, optimizer):
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        said.append(f"{[*model.state_dict()]} {type(optimizer).__name__} {sizes}")
        yield types.SimpleNamespace(observe=lambda **figures: None, log_metrics=lambda **figures: None)

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(train(watch, steps=3), float)
    return hashlib.sha256("\n".join(said).encode() + draws_so_far()).hexdigest()[:12]


def digests(entry):
    return "".join(digest(entry, train) for train in (entry.train, getattr(entry, "mend", entry.train)))


DIGESTS = json.loads(gzip.decompress(Path(__file__).with_name("run_digests.json.gz").read_bytes()))
"""Of some runs: the digest of it and of its mended twin."""


@pytest.mark.one_in(12)
@pytest.mark.parametrize("entry", [*FAULTS, *HEALTHY], ids=lambda entry: entry.name)
def test_loop_runs(entry):
    found = digests(entry)
    assert found == DIGESTS.get(entry.name, found)


FAULT = dataclasses.replace(FAULTS[0], causes=frozenset({"loss-spike"}), layers=("head",), onset=40)


@pytest.mark.parametrize(
    ("alarms", "outcome", "early"),
    [
        ([], "missed", False),
        ([{"step": 40, "story": "Nobody expects this."}], "wrong", False),
        ([{"step": 47, "story": "The loss jumped.", "where": "body"}], "wrong", False),
        ([{"step": 39, "story": "The loss jumped.", "where": "head"}], "missed", True),
        ([{"step": 47, "story": "The loss jumped.", "where": "head.weight"}], "right", False),
        ([{"step": 47, "story": "The loss jumped because of `head`."}], "right", False),
    ],
)
def test_judge(alarms, outcome, early):
    verdict = judge(FAULT, [alarm(**attributes) for attributes in alarms])
    assert (verdict.outcome, verdict.early) == (outcome, early)
    assert verdict.delay == (7 if outcome == "right" else 0)


def test_score_names_no_misses_of_the_held_out_part(monkeypatch, capsys):
    parts = {"open": (FAULTS[:1], HEALTHY[:1]), "held-out": (FAULTS[1:2], HEALTHY[1:2])}
    monkeypatch.setattr(scores, "PARTS", parts)
    monkeypatch.setattr(scores, "watch_run", lambda entry, **_: ([alarm(story="Nobody expects this.")], ""))
    for options, parts_named in {"": (), "--misses": ("open",), "--misses --name-held-out": tuple(parts)}.items():
        monkeypatch.setattr(sys, "argv", ["watch_faults.py", "--every", "10", *options.split()])
        scores.main()
        printed = capsys.readouterr().out
        for part, entries in parts.items():
            assert all((entry.name in printed) is (part in parts_named) for both in entries for entry in both)
            assert f"{part} part, every 10 steps: 1 faults: 0 named right (0%), 1 with a wrong story" in printed


def test_watched_runs_give_alarms_and_refusals():
    """A rate of 1e9 is alarming, an optimizer of another model is refused."""

    def train(broken, loop, foreign=False):
        model, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD((other if foreign else model).parameters(), lr=1e9)
        with loop.watch(model, optimizer) as run:
            for _ in range(30):
                optimizer.zero_grad()
                loss = model(torch.ones(4, 3)).square().mean()
                run.observe(loss=loss)
                loss.backward()
                optimizer.step()

    entry = dataclasses.replace(FAULTS[0], build=train)
    alarms, ended = scores.watch_run(entry, 10)
    assert any("not-finite" in one.tells() for one in alarms)
    assert not ended
    refused, ended = scores.watch_run(dataclasses.replace(entry, build=partial(train, foreign=True)), 10)
    assert [one.code for one in refused] == ["refused"]
    assert "not-in-optimizer" in refused[0].tells()
    assert not ended
