"""What a check says of the catalogue's planted faults, of their mended twins and of its healthy models.

Of the faults one for each finding and nearly each advice runs by default, of the healthy models one in sixteen; the
others are slow. The held-out part is for scoring alone.
"""

from __future__ import annotations

import pytest

from benchmarks.faults import diagnose
from normscope_faults.models import PARTS
from normscope_faults.score import judge

OPEN_PARTS = [part for name, part in PARTS.items() if name != "held-out"]
FAULTS = {fault.name: fault for faults, _ in OPEN_PARTS for fault in faults}
HEALTHY = {healthy.name: healthy for _, models in OPEN_PARTS for healthy in models}
NO_WORSE_THAN_HEALTHY = {
    "eps-of-adam-beside-which-gradients-vanish",
    "leak-so-small-that-nothing-enters",
    "attention-over-all-edges",
}
"""The faults whose sizes healthy networks of others show as well: they are notes."""
NAMED_BY_CODE = {"order-of-words-lost", "users-looked-up-twice"}
"""The faults of layers that are never used, and that code names all the same: they are notes."""
MISSED = (
    NO_WORSE_THAN_HEALTHY
    | NAMED_BY_CODE
    | {
        "one-group-decayed",
        "twelve-blocks-without-residual-sums",
        "activations-rounded-for-quantisation",
        "heads-split-without-a-transpose",
    }
)
"""The faults whose cause no finding names yet."""
BY_FINDING = """
non-finite-weights: one-word-holds-nan
non-finite-activations: half-precision-overflows missing-values-in-a-column
loss-not-finite: rates-that-may-be-negative hazards-of-raw-columns+
input-scale: unit-pixels-centred-as-if-they-were-bytes coordinates-in-metres bytes-before-a-layer-norm
input-scale: pixels-divided-twice
input-columns: one-column-in-dollars pascals-after-one-step+ pascals-after-four-steps+
constant-input: pixels-floor-divided+
activation-before-loss: softmax-of-the-first-of-two-tasks sigmoid-before-bce-with-logits relu-then-cross-entropy+
activation-before-loss: temperature-the-wrong-way-around margins-of-probabilities
loss-does-not-fit: nll-of-probabilities squares-of-class-numbers labels-smoothed-away divergence-of-probabilities
loss-does-not-fit: divergence-with-the-wrong-sign divergence-subtracted divergence-subtracted-until-it-overflowed+
loss-does-not-fit: weights-of-zero-for-two-classes overlap-of-raw-outputs as-many-tags-as-words
loss-does-not-fit: cross-entropy-with-one-output mean-taken-before-the-square
shapes-broadcast: column-against-row
targets-out-of-range: tanh-for-ages relu-for-standardised-targets labels-of-minus-one-and-one
targets-out-of-range: actions-not-multiplied-by-their-range zeros-where-the-cosine-loss-wants-minus-one
targets-scale: targets-at-a-hundred-thousandth
one-class: labels-all-of-one-class one-case-in-sixty loss-over-padding
one-class: rare-class-weighed-the-wrong-way-around
no-better-than-constant: labels-of-other-rows trained-to-a-constant
first-loss: written-weights-too-large
gradient-cut: reentrant-checkpoint-of-the-first-stage states-rebuilt-from-a-list embeddings-by-data
gradient-cut: state-detached-at-each-step head-behind-a-detach
gradient-cut: noise-detached code-detached-before-the-decoder
gradient-cut: both-steps-with-the-detach-of-one
gradient-cut: stem-detached-before-a-block-that-runs-twice summary-of-a-body-detached
no-gradient: signs-as-activation zero-factor-in-a-buffer softmax-over-an-axis-of-one
unused-parameter: second-encoder-never-called lower-path-lost one-branch-joined-twice
frozen-layer: layer-made-anew-in-each-call+ freezing-recipe-on-a-network-without-pretraining random-embeddings-frozen
frozen-layer: layers-in-a-plain-list head-replaced-before-everything-is-frozen
equal-units: embeddings-all-equal one-head-four-times
zero-weights: head-pruned-away decayed-to-nothing first-layer-of-frozen-zeros+
dead-layer: small-layer-scale-and-no-residual+ gain-of-the-last-norm-decayed gains-zero-without-residuals+
recurrent-scale: relu-states-that-grow sign-of-the-forget-bias+ state-begun-anew-at-every-step+
layer-scale: places-left-as-torch-empty-gave-them+ two-layers-at-a-ten-thousandth+ embeddings-at-a-thousand
rank-one-weights: rank-one-hidden-layer
missing-activation: four-linear-layers-in-a-row leaky-relu-in-place
bottleneck: one-unit-before-eight-classes one-channel-before-the-pooling
labels-are-inputs: targets-are-the-tokens-themselves labels-shifted-before-the-model-shifts-them
output-constant: class-token-in-front-of-a-causal-mask+ input-replaced-by-zeros instance-norm-before-the-mean
gradient-vanishing: seven-layers-of-sigmoids convolutions-drawn-too-small sixteen-means-over-neighbours
gradient-vanishing: written-gelus-behind-small-weights
gradient-explosion: euler-steps-of-one+
exploding-run: orthogonal-with-a-gain-of-five+ residual-scale-of-ten+
saturated-units: tanh-units-saturated-by-data+ output-gate-shut
half-precision: tiny-embeddings-in-half-precision+ differences-of-large-numbers-in-bfloat16
half-precision: adam-on-weights-of-half-precision
softmax-axis: softmax-over-the-queries+
hidden-softmax: softmax-between-layers
strong-dropout: pixels-dropped dropout-behind-the-output
no-loss-gradient: error-rate-as-loss stars-rounded-in-the-loss hinge-with-zeros loss-times-an-empty-mask
no-loss-gradient: triplets-with-the-margin-on-the-wrong-side fakes-detached-in-the-step-of-the-generator
gradient-not-finite: where-does-not-guard-the-gradient
branch-dominates: words-drown-the-positions+ every-weight-at-one+
attention-saturated: converted-queries-too-large
samples-mixed: batch-standardised-by-hand positions-by-place-in-the-batch
input-ignored: label-embedding-at-a-millionth decoder-gets-noise-alone reader-sees-the-padding-alone+
mask-leaks: masked-with-a-small-number language-model-without-a-mask padding-in-the-mean-of-the-words
mask-leaks: labels-among-the-arguments-and-no-mask prompts-without-labels-and-no-mask
mask-leaks: decoder-given-the-labels-that-it-is-to-foretell
mask-leaks: empty-places-of-a-set-averaged words-hidden-instead-of-padding attention-mask-of-gpt2-inverted
dead-relu: four-units-dead-by-data+ five-of-six-units-dead
stale-statistics: buffers-not-saved statistics-of-other-data fresh-batch-norm-in-eval-mode+
wrong-mode: normalizers-in-train-mode-at-inference
tiny-sets: loudness-taken-away-before-it-is-judged batch-norm-of-two-samples group-norm-of-single-values
tiny-sets: layer-norm-of-one-output+
eps-scale: batch-norm-eps-of-hundred+
eps-dominated: variance-below-eps eps-of-a-root-mean-square-in-thousands+
not-in-optimizer: optimizer-holds-a-copy-of-the-model
decay-too-strong: weight-decay-of-one
step-too-long: rate-and-momentum-swapped adam-with-a-rate-of-a-half momentum-that-never-fades
step-too-long: optimizer-set-to-maximise adamw-with-a-rate-of-three
step-too-short: rate-of-one-in-a-billion
"""
"""By the finding that names them: one fault for each advice that it gives; with a + where others are found with it."""
WORDS = [(word, line.partition(":")[0]) for line in BY_FINDING.splitlines() for word in line.split()[1:]]
FAST = {word.rstrip("+"): code for word, code in WORDS}
ALONE = {word for word, _ in WORDS} & FAST.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in FAULTS]
)
def test_a_fault_is_named_with_its_layer_and_a_remedy(name: str) -> None:
    """One finding has a right cause, layer and remedy, and the mended twin has no such finding."""
    fault = FAULTS[name]
    findings = diagnose(fault.build())
    assert judge(fault, findings) == (name not in MISSED, name not in MISSED)
    if name in FAST:
        codes = {finding.code for finding in findings}
        assert FAST[name] in codes
        assert name not in ALONE or codes == {FAST[name]}
        assert FAST[name] not in {finding.code for finding in diagnose(fault.mend())}


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_has_no_warning(name: str) -> None:
    assert not diagnose(HEALTHY[name].build())
