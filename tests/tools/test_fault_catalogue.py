"""The catalogue of planted faults: its cases build and run, and its patterns tell remedies apart."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are no installed package
try:
    checks = importlib.import_module("benchmarks.fault_catalogue.check_cases")
    scores = importlib.import_module("benchmarks.faults")
finally:
    sys.path.remove(str(ROOT))

FAULTS, HEALTHY = ([entry for half in checks.HALVES.values() for entry in half[kind]] for kind in (0, 1))
# Advice as somebody might word it; each sentence gives one remedy.
ADVICE = {
    "scale-inputs": [
        "Standardise the inputs to mean 0 and standard deviation 1.",
        "Normalize each column before training.",
        "Divide the pixels by 255.",
        "Scale the features to a common range, for instance with StandardScaler.",
        "Bring column 6 to the scale of the others.",
    ],
    "clean-data": [
        "Remove or impute the missing values.",
        "Replace NaN by the mean of its column.",
        "Clean the data first: 3 rows hold NaN.",
    ],
    "check-data": [
        "Check the data loader: every sample is the same.",
        "Look at the images that the pipeline returns.",
        "Inspect the preprocessing.",
    ],
    "remove-final-activation": [
        "Remove the softmax: the loss applies it itself.",
        "Pass the logits to the loss.",
        "Return raw scores from the model.",
        "Leave out the last ReLU.",
        "Let the last layer be linear.",
    ],
    "change-loss": [
        "Use BCEWithLogitsLoss.",
        "Train with cross entropy.",
        "Choose a loss for classification.",
        "Switch to nn.NLLLoss.",
    ],
    "change-output-activation": [
        "Use LogSoftmax at the output.",
        "Replace the softmax by a sigmoid.",
        "Apply log_softmax in place of softmax.",
    ],
    "more-outputs": [
        "Give the model one output per class.",
        "Let the last layer have two outputs.",
        "Let the head have as many units as there are classes.",
    ],
    "scale-outputs": ["Divide the cosines by a temperature.", "Multiply the similarities by a learned factor."],
    "scale-targets": [
        "Standardise the targets.",
        "Divide the labels by their standard deviation.",
        "Predict the logarithm of the target.",
    ],
    "fix-targets": [
        "Map the labels to -1 and 1.",
        "Bring the targets into the range of the output.",
        "Labels must lie between 0 and 1.",
        "Convert the masks to targets of 0 and 1.",
    ],
    "match-shapes": [
        "Squeeze the output so that both have the same shape.",
        "Call targets.unsqueeze(1).",
        "Give outputs and targets the same shape.",
    ],
    "balance-classes": [
        "Weight the classes in the loss.",
        "Use a WeightedRandomSampler, or oversample the rare class.",
        "Pass class weights.",
    ],
    "check-labels": ["Check the labels.", "Shuffle the data set.", "Look at how the labels were read."],
    "initialise": [
        "Initialise `fc2` with Kaiming's scheme.",
        "Reinitialize the layer.",
        "Draw the weights at random to break the symmetry.",
        "Use an orthogonal initialization.",
    ],
    "rescale-layer": [
        "Rescale the weights of `conv3`.",
        "Divide the weight by 100.",
        "Shrink the embedding to a standard deviation of 0.02.",
    ],
    "change-activation": [
        "Replace the sigmoid by ReLU.",
        "Use a non-saturating activation such as GELU.",
        "Try LeakyReLU.",
    ],
    "add-activation": [
        "Put a ReLU between the two layers.",
        "Add an activation after `0`.",
        "Insert a nonlinearity between them.",
    ],
    "add-normalizer": [
        "Add LayerNorm.",
        "Insert a normalization layer before each block.",
        "Put BatchNorm after `conv1`.",
    ],
    "add-skip": ["Add skip connections.", "Give the blocks residual connections."],
    "scale-branch": ["Scale the residual branch by 0.1.", "Multiply each branch by 1/sqrt(depth).", "Use LayerScale."],
    "lower-learning-rate": ["Lower the learning rate.", "Use a smaller step size.", "Begin with a warmup."],
    "clip-gradients": ["Clip the gradient norm.", "Use gradient clipping."],
    "restore-weights": ["Go back to an earlier checkpoint.", "Reload the weights.", "Retrain the model."],
    "lower-weight-decay": ["Lower the weight decay.", "Use less weight decay."],
    "reset-bias": ["Set the bias to zero.", "Raise the bias of `conv2`.", "Reset the biases."],
    "lower-dropout": ["Lower the dropout rate.", "Use a dropout of 0.1.", "Reduce p of the dropout layer."],
    "keep-gradient": [
        "Remove the detach().",
        "Take away torch.no_grad around the encoder.",
        "Use a straight-through estimator.",
        "Replace the argmax by something differentiable.",
    ],
    "use-parameter": [
        "Use it in forward or remove it.",
        "Call the layer in forward, or delete it.",
        "Delete the module if it is not needed.",
    ],
    "unfreeze": ["Set requires_grad to True.", "Unfreeze the layer."],
    "fix-axis": [
        "Average over the axes of the places.",
        "Set batch_first=True.",
        "Use dim=1.",
        "Flatten from dimension 1 on.",
    ],
    "restore-condition": [
        "The time embedding is multiplied by zero; remove the factor.",
        "Let the condition enter with a factor of 1.",
        "Check the scale of the time embedding.",
    ],
    "guard-domain": [
        "Add a small constant inside the logarithm.",
        "Clamp the argument before the division.",
        "Use torch.log1p.",
        "Add eps under the root.",
    ],
    "raise-precision": ["Compute it in float32.", "Use bfloat16.", "Use a GradScaler."],
    "larger-batch": ["Use a batch of 32 or more.", "Use larger batches.", "Raise the batch size."],
    "replace-normalizer": [
        "Use GroupNorm instead.",
        "Replace BatchNorm by LayerNorm.",
        "Remove the normalizer before the pooling.",
    ],
    "refresh-statistics": [
        "Recompute the running statistics.",
        "Load the buffers too.",
        "Run a few batches in train mode.",
        "Let the running mean and variance be estimated anew.",
    ],
    "lower-eps": ["Use a smaller eps.", "Lower eps to 1e-5.", "Set eps to its default."],
    "switch-mode": ["Call model.train() before training.", "Put the whole model into eval mode."],
    "scale-attention": [
        "Divide the scores by the square root of the head's width.",
        "Normalise queries and keys (QK-norm).",
        "Scale the attention logits by 1/sqrt(d).",
    ],
    "fix-mask": ["Invert the mask.", "Check attn_mask: True means visible."],
    "gated-recurrence": ["Use an LSTM or a GRU.", "Bring the spectral radius to 1."],
    "forget-bias": ["Set the bias of the forget gate to 1.", "Start with a forget bias of 1."],
}
# Where one wording gives two remedies, both may match.
NEIGHBOURS = {
    frozenset(pair.split())
    for pair in (
        "check-data check-labels",
        "restore-condition rescale-layer",
        "add-normalizer replace-normalizer",
        "refresh-statistics switch-mode",
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
    assert ADVICE.keys() == checks.REMEDIES.keys()
    wrong = []
    for key, sentences in ADVICE.items():
        for sentence in sentences:
            matches = {name for name, pattern in checks.REMEDIES.items() if pattern.search(sentence)}
            others = {name for name in matches - {key} if frozenset({name, key}) not in NEIGHBOURS}
            if key not in matches or others:
                wrong.append((key, sentence, matches))
    assert not wrong


def test_every_cause_and_remedy_is_used():
    assert set().union(*(fault.causes for fault in FAULTS)) == checks.CAUSES.keys()
    assert set().union(*(fault.remedies for fault in FAULTS)) == checks.REMEDIES.keys()


def test_names_are_unique():
    names = [entry.name for entry in (*FAULTS, *HEALTHY)]
    assert len(set(names)) == len(names)


@pytest.mark.one_in(20)
@pytest.mark.parametrize("entry", [*FAULTS, *HEALTHY], ids=lambda entry: entry.name)
def test_case_builds_and_runs(entry):
    assert checks.describe_problem(entry) is None


@pytest.mark.one_in(10)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_mended_twin_runs(fault):
    case = fault.mend()
    inputs, _ = checks.inputs_and_targets(case)
    loss = checks.loss_of(case, checks.run_model(case.model, inputs))
    assert loss is None or bool(loss.isfinite())


def test_score_names_misses_of_the_open_half_alone(monkeypatch, capsys):
    halves = {half: (faults[:1], healthy_models[:1]) for half, (faults, healthy_models) in checks.HALVES.items()}
    monkeypatch.setattr(scores, "HALVES", halves)
    monkeypatch.setattr(scores, "diagnose", lambda case, examine: ([], "refused"))
    printed = {}
    for options in ("", "--misses", "--misses --name-held-out"):
        monkeypatch.setattr(sys, "argv", ["faults.py", *options.split()])
        scores.main()
        printed[options] = capsys.readouterr().out
    names = {half: {entry.name for entries in both for entry in entries} for half, both in halves.items()}
    for options, halves_named in {"": (), "--misses": ("open",), "--misses --name-held-out": tuple(halves)}.items():
        for half, in_half in names.items():
            assert all((name in printed[options]) is (half in halves_named) for name in in_half)
            assert f"{half} half, check: 1 faults" in printed[options]
