"""The catalogue of planted faults: its cases build and run, and its patterns tell remedies apart."""

import gzip
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import benchmarks.faults as scores
import normscope_faults.models.check_cases as checks
import normscope_faults.runs as runs
from normscope_faults import CAUSES, REMEDIES

FAULTS, HEALTHY = ([entry for part in checks.PARTS.values() for entry in part[kind]] for kind in (0, 1))
RUN_FAULTS = [fault for faults, _ in runs.PARTS.values() for fault in faults]
# Advice as somebody might word it.
ADVICE = {
    "scale-inputs": "Standardise the inputs to mean 0 and standard deviation 1.",
    "clean-data": "Remove or impute the missing values.",
    "check-data": "Check the data loader: every sample is the same.",
    "remove-final-activation": "Remove the softmax: the loss applies it itself.",
    "change-loss": "Use BCEWithLogitsLoss.",
    "change-output-activation": "Use LogSoftmax at the output.",
    "more-outputs": "Give the model one output per class.",
    "scale-outputs": "Divide the cosines by a temperature.",
    "scale-targets": "Standardise the targets.",
    "fix-targets": "Map the labels to -1 and 1.",
    "match-shapes": "Squeeze the output so that both have the same shape.",
    "balance-classes": "Weight the classes in the loss.",
    "shift-targets": "Take the next token as the target.",
    "mask-padding": "Mask the padding.",
    "check-labels": "Check the labels.",
    "initialise": "Initialise `fc2` with Kaiming's scheme.",
    "rescale-layer": "Rescale the weights of `conv3`.",
    "change-activation": "Replace the sigmoid by ReLU.",
    "add-activation": "Put a ReLU between the two layers.",
    "add-normalizer": "Add LayerNorm.",
    "add-skip": "Add skip connections.",
    "scale-branch": "Scale the residual branch by 0.1.",
    "lower-learning-rate": "Lower the learning rate.",
    "clip-gradients": "Clip the gradient norm.",
    "restore-weights": "Go back to an earlier checkpoint.",
    "raise-learning-rate": "Raise the learning rate.",
    "lower-momentum": "Lower the momentum.",
    "minimise": "Minimise the loss: drop maximize=True.",
    "lower-weight-decay": "Lower the weight decay.",
    "reset-bias": "Set the bias to zero.",
    "lower-dropout": "Lower the dropout rate.",
    "keep-gradient": "Remove the detach().",
    "use-parameter": "Use it in forward or remove it.",
    "register-parameter": "Keep the layers in an nn.ModuleList.",
    "add-to-optimizer": "Pass all parameters to the optimizer.",
    "widen-layer": "Widen `fc1`.",
    "fewer-layers": "Use fewer layers.",
    "unfreeze": "Set requires_grad to True.",
    "fix-axis": "Average over the axes of the places.",
    "restore-condition": "The time embedding is multiplied by zero; remove the factor.",
    "guard-domain": "Add a small constant inside the logarithm.",
    "raise-precision": "Compute it in float32.",
    "larger-batch": "Use a batch of 32 or more.",
    "replace-normalizer": "Use GroupNorm instead.",
    "refresh-statistics": "Recompute the running statistics.",
    "lower-eps": "Use a smaller eps.",
    "switch-mode": "Call model.train() before training.",
    "scale-attention": "Divide the scores by the square root of the head's width.",
    "fix-mask": "Invert the mask.",
    "gated-recurrence": "Use an LSTM or a GRU.",
    "carry-state": "Pass the hidden state on from step to step.",
    "forget-bias": "Set the bias of the forget gate to 1.",
    "read-last-step": "Read the output of the last time step.",
    "use-one-direction": "Use one direction: the second reads what is to be predicted.",
}
# Where one wording gives two remedies, both may match.
NEIGHBOURS = {
    frozenset(pair.split())
    for pair in (
        "check-data check-labels",
        "restore-condition rescale-layer",
        "add-normalizer replace-normalizer",
        "refresh-statistics switch-mode",
        "refresh-statistics lower-momentum",
        "reset-bias forget-bias",
        "scale-attention scale-outputs",
        "change-loss remove-final-activation",
        "initialise gated-recurrence",
        "scale-attention scale-branch",
        "reset-bias initialise",
        "change-output-activation guard-domain",
    )
}


def test_patterns_tell_remedies_apart():
    assert ADVICE.keys() == REMEDIES.keys()
    wrong = []
    for key, sentence in ADVICE.items():
        matches = {name for name, pattern in REMEDIES.items() if pattern.search(sentence)}
        others = {name for name in matches - {key} if frozenset({name, key}) not in NEIGHBOURS}
        if key not in matches or others:
            wrong.append((key, sentence, matches))
    assert not wrong


def test_every_cause_and_remedy_is_used():
    used = set().union(*(entry.causes for entry in (*FAULTS, *RUN_FAULTS)))
    assert used == CAUSES.keys()
    assert set().union(*(fault.remedies for fault in FAULTS)) == REMEDIES.keys()


def test_names_are_unique():
    names = [entry.name for entry in (*FAULTS, *HEALTHY)]
    assert len(set(names)) == len(names)


@pytest.mark.one_in(20)
@pytest.mark.parametrize("entry", [*FAULTS, *HEALTHY], ids=lambda entry: entry.name)
def test_case_builds_and_runs(entry):
    assert checks.describe_problem(entry) is None


DIGESTS = json.loads(gzip.decompress(Path(__file__).with_name("fault_digests.json.gz").read_bytes()))
"""By case: a digest of what counts as right, of the modules, and of the random numbers drawn, also for its twin."""
MERSENNE_TWISTER_BYTES = 5016


def hashed(*chunks: Any) -> str:
    joined = b"".join((chunk if isinstance(chunk, bytes) else repr(chunk).encode()) + b"|" for chunk in chunks)
    return hashlib.sha256(joined).hexdigest()[:12]


def draws_so_far() -> bytes:
    """Return the generator's state without the normal number that it keeps, whose last bits depend on the processor."""
    return torch.get_rng_state()[:MERSENNE_TWISTER_BYTES].numpy().tobytes()


def built(build: Callable[[], Any]) -> list[str]:
    torch.manual_seed(987)
    model, drawn = build().model, hashed(draws_so_far())
    return [drawn, hashed(*((name, kind(module), module.training) for name, module in model.named_modules()))]


def kind(module: nn.Module) -> str:
    of_torch = type(module).__module__.startswith("torch.")
    return f"{type(module).__name__}({module.extra_repr()})" if of_torch else "own"


def test_digests_cover_the_catalogue():
    assert DIGESTS.keys() == {entry.name for entry in (*FAULTS, *HEALTHY)}


@pytest.mark.one_in(20)
@pytest.mark.parametrize("entry", [*FAULTS, *HEALTHY], ids=lambda entry: entry.name)
def test_case_is_the_one_that_was_scored(entry):
    """The same network from the same random numbers, with the same answer, however the case is written down."""
    told: list[Any] = [entry.family, None, None, None]
    builders = [entry.build]
    if entry in FAULTS:
        told = [entry.family, sorted(entry.causes), sorted(entry.layers), sorted(entry.remedies)]
        builders.append(entry.mend)
    assert hashed(told, [built(build) for build in builders])[:8] == DIGESTS[entry.name]


@pytest.mark.one_in(10)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_mended_twin_runs(fault):
    case = fault.mend()
    inputs, _ = checks.inputs_and_targets(case)
    loss = checks.loss_of(case, checks.run_model(case.model, inputs))
    assert loss is None or bool(loss.isfinite())


def test_score_names_no_misses_of_the_held_out_part(monkeypatch, capsys):
    parts = {part: (faults[:1], healthy_models[:1]) for part, (faults, healthy_models) in checks.PARTS.items()}
    monkeypatch.setattr(scores, "PARTS", parts)
    monkeypatch.setattr(scores, "diagnose", lambda case, examine: [][0])
    printed = {}
    for options in ("", "--misses", "--misses --name-held-out"):
        monkeypatch.setattr(sys, "argv", ["faults.py", *options.split()])
        scores.main()
        printed[options] = capsys.readouterr().out
    names = {part: {entry.name for entries in both for entry in entries} for part, both in parts.items()}
    for options, parts_named in {
        "": (),
        "--misses": tuple(part for part in parts if part != "held-out"),
        "--misses --name-held-out": tuple(parts),
    }.items():
        for part, in_part in names.items():
            assert all((name in printed[options]) is (part in parts_named) for name in in_part)
            assert f"{part} part, check: 1 faults" in printed[options]
