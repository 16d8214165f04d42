"""Adversaries in one module, blocks that run twice, outputs that nobody reads, models that take their labels."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.untouched import with_tensors
from normscope_faults.data import table, text
from normscope_faults.models import PARTS
from normscope_faults.models.tuned import rarer as cases
from normscope_faults.models.tuned.healthy_generators import of_discriminator
from normscope_faults.models.tuned.sequences import Speaker
from normscope_faults.networks import GPT

NAMES = """
step-of-a-discriminator step-of-a-discriminator-that-takes-its-own-loss step-of-a-generator-that-takes-its-own-loss
summary-of-a-body-that-nobody-reads
"""
HEALTHY = {healthy.name: healthy for healthy in PARTS["open"][1] if healthy.name in NAMES.split()}


def said(model: nn.Module, data: Any, **options: Any) -> dict[str, Any]:
    """Return the findings of a check by their code."""
    return {finding.code: finding for finding in ns.check(model, data, **options).findings}


def warned(model: nn.Module, data: Any, **options: Any) -> set[str]:
    return {code for code, finding in said(model, data, **options).items() if finding.severity > ns.Severity.INFO}


@pytest.mark.parametrize("name", HEALTHY)
def test_adversaries_and_outputs_that_nobody_reads_are_no_fault(name: str) -> None:
    case = HEALTHY[name].build()
    assert not warned(case.model, case.data, loss=case.loss, optimizer=case.optimizer)


def scores_of_both(model: cases.Adversaries, noise: Tensor, images: Tensor, form: str) -> Any:
    """Return the scores of data and of what was generated, which the generator is not taught by, in some form."""
    if form == "without gradients":
        with torch.no_grad():
            made = model.generator(noise)
    else:
        made = model.generator(noise).detach()
    if form == "one batch":
        return model.discriminator(torch.cat([images, made]))
    scores = model.discriminator(images), model.discriminator(made)
    return torch.cat(scores, 1) if form == "columns" else scores


@pytest.mark.parametrize("form", ["pair", "columns", "one batch", "without gradients"])
def test_a_generator_that_a_discriminators_step_leaves_alone_is_told_as_that(form: str) -> None:
    class Adversaries(cases.Adversaries):
        def forward(self, noise: Tensor, images: Tensor) -> Any:
            return scores_of_both(self, noise, images, form)

    def loss(scores: Any) -> Tensor:
        real, made = scores.chunk(2, 1 if form == "columns" else 0) if isinstance(scores, Tensor) else scores
        return of_discriminator((real, made))

    model, data = Adversaries(detached=True), cases.noise_and_images()
    for optimizer in (None, cases.adam(model.discriminator), [cases.adam(model.generator), cases.adam(model)]):
        findings = said(model, data, loss=loss, optimizer=optimizer)
        assert findings["gradient-cut"].severity is ns.Severity.INFO
        assert findings["gradient-cut"].where.startswith("generator")
        assert not warned(model, data, loss=loss, optimizer=optimizer)
    # the one optimizer that there is holds what no gradient reaches
    assert "gradient-cut" in warned(model, data, loss=loss, optimizer=cases.adam(model.generator))


def test_a_generator_is_trained_through_a_discriminator_that_its_optimizer_does_not_hold() -> None:
    class Judged(cases.Adversaries):
        def forward(self, noise: Tensor, images: Tensor) -> Tensor:  # type: ignore[override]
            return self.discriminator(self.generator(noise))

    def loss(scores: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))

    model, data = Judged(detached=False), cases.noise_and_images()
    assert not warned(model, data, loss=loss)
    findings = said(model, data, loss=loss, optimizer=cases.adam(model.generator))
    assert all(finding.severity is ns.Severity.INFO for finding in findings.values())
    assert findings["not-in-optimizer"].where.startswith("discriminator")
    assert "not-in-optimizer" in warned(model, data, loss=loss, optimizer=cases.adam(model.generator.layers[3:]))


def test_an_order_of_samples_that_a_mean_does_not_see_is_no_lack_of_influence() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 8), nn.Linear(4, 8)

        def forward(self, left: Tensor, right: Tensor, other: Tensor) -> Tensor:
            return self.left(left).tanh().mean() + self.right(right).tanh().square().mean() + 0.0 * other.sum()

    ignored = [f for f in ns.check(Loss(), tuple(torch.randn(3, 16, 4))).findings if f.code == "input-ignored"]
    assert ["'other'" in finding.seen or "'2'" in finding.seen for finding in ignored] == [True]


def test_a_block_that_stands_twice_gets_its_gradient_and_keeps_its_weights() -> None:
    block = nn.Sequential(nn.Linear(12, 12), nn.Tanh())
    model = nn.Sequential(block, block, nn.Linear(12, 3))
    before = [(id(parameter), parameter.detach().clone()) for parameter in model.parameters()]
    checked = ns.check(model, table(), loss="cross_entropy", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert not checked.findings
    assert not checked.skipped
    assert checked.signal is not None
    assert checked.signal.steps is not None
    assert checked.signal.steps.agreement is not None
    assert not checked.signal.steps.starved
    assert all(
        id(parameter) == key and torch.equal(parameter, value)
        for parameter, (key, value) in zip(model.parameters(), before, strict=True)
    )


@pytest.mark.parametrize("raises", [False, True])
def test_other_weights_reach_every_place_and_are_gone_afterwards(raises: bool) -> None:
    block, tied = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), nn.Linear(6, 6)
    tied.weight = block[0].weight
    model = nn.Sequential(block, block, tied).eval()
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in held.items()}
    others = {"0.0.weight": torch.randn(6, 6), "0.1.running_mean": torch.randn(6)}
    twin = copy.deepcopy(model)
    weight, mean = others.values()
    everywhere = {"0.0.weight": weight, "1.0.weight": weight, "2.weight": weight}
    twin.load_state_dict({**twin.state_dict(), **everywhere, "0.1.running_mean": mean, "1.1.running_mean": mean})
    x = torch.randn(4, 6)
    try:
        with with_tensors(model, others):
            assert torch.equal(model(x), twin(x))
            if raises:
                raise ValueError
    except ValueError:
        assert raises
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert after.keys() == before.keys()
    assert all(after[name] is tensor and torch.equal(tensor, value) for name, (tensor, value) in before.items())


class Offering(nn.Module):
    """A body with a pooler, of which the head reads something."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.body, self.pooler, self.head, self.reads = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 3), reads

    def forward(self, x: Tensor) -> Tensor:
        states = self.body(x).relu()
        scores = self.pooler(states)
        pooled = torch.tanh(scores)
        if self.reads == "states, pooled detached":
            return self.head(states + pooled.detach())
        if self.reads == "states, pooled without gradients":
            with torch.no_grad():
                pooled = 2.0 * pooled
            return self.head(states + pooled)
        if self.reads == "states, scores compared":
            return self.head(states) if bool((scores > 9).any()) else self.head(2.0 * states)
        return self.head(states)


@pytest.mark.parametrize(
    ("reads", "code"),
    [
        ("states", "unused-parameter"),
        ("states, scores compared", "unused-parameter"),
        ("states, pooled detached", "gradient-cut"),
        ("states, pooled without gradients", "gradient-cut"),
    ],
)
def test_what_nobody_reads_is_told_apart_from_what_is_cut_off(reads: str, code: str) -> None:
    findings = said(Offering(reads), table(), loss="cross_entropy")
    assert findings.keys() & {"unused-parameter", "gradient-cut"} == {code}
    assert findings[code].where == "pooler"
    assert ("detach" in findings[code].advice) == (code == "gradient-cut")


def test_the_pooler_of_a_body_that_offers_it_is_no_fault_where_nobody_reads_it() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(
        vocab_size=70, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=32, attention_type="original_full", is_decoder=True,
    )  # fmt: skip
    findings = said(transformers.BigBirdForCausalLM(config).train(), {"input_ids": torch.randint(5, 70, (6, 16))})
    assert "gradient-cut" not in findings
    assert (findings["unused-parameter"].where, findings["unused-parameter"].severity) == ("bert.pooler", "info")


def speaker(causal: bool) -> Speaker:
    torch.manual_seed(0)
    return Speaker(causal)


IDS = text(16, 12)[0]


@pytest.mark.parametrize(
    ("hidden", "length"), [(slice(0, 0), 12), (slice(0, 5), 12), (slice(9, 12), 12), (slice(0, 0), 5), (slice(0, 2), 5)]
)
def test_a_model_that_takes_its_labels_is_asked_whether_it_reads_them_ahead(hidden: slice, length: int) -> None:
    labels = IDS.clone()
    labels[:, hidden] = -100
    data = {"input_ids": IDS[:, :length], "labels": labels[:, :length]}
    assert warned(speaker(causal=False), data) == {"mask-leaks"}
    checked = ns.check(speaker(causal=True), data)
    assert not [finding for finding in checked.findings if finding.severity > ns.Severity.INFO]
    assert not checked.skipped


def test_steps_without_a_label_may_read_ahead() -> None:
    class Prefixed(Speaker):
        """Words of the prompt see all of it, the others those before them."""

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            seen = torch.ones(12, 12).tril().bool()
            seen[:6, :6] = True
            for block in self.blocks:
                block.attention.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            return super().forward(input_ids, labels)

    labels = IDS.clone()
    assert warned(Prefixed(True), {"input_ids": IDS, "labels": labels}) == {"mask-leaks"}
    torch.manual_seed(288)
    words = text(16, 12)[0]  # with the second sample's labels for the first the mean loss is the same
    torch.manual_seed(0)
    assert warned(Prefixed(True), {"input_ids": words, "labels": words.clone()}) == {"mask-leaks"}
    labels[:, :6] = -100  # the last word of the prompt has the first label, and sees no later word
    assert not warned(Prefixed(True), {"input_ids": IDS, "labels": labels})


def test_where_it_cannot_be_asked_whether_labels_are_read_ahead_the_result_says_so() -> None:
    for data, reason in (
        ({"input_ids": IDS[:2], "labels": IDS[:2]}, "three samples"),
        ({"input_ids": IDS, "labels": IDS, "extra": torch.randn(3)}, "a row for each"),
    ):

        class Open(Speaker):
            def forward(self, input_ids: Tensor, labels: Tensor, extra: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
                return super().forward(input_ids, labels)

        torch.manual_seed(0)
        skipped = dict(ns.check(Open(False), data).skipped)
        assert reason in skipped["whether labels are read ahead"]

    class OwnLoss(Speaker):
        """Takes a loss that nobody knows."""

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            scores = GPT.forward(self, input_ids).log_softmax(-1)
            return {"loss": -scores[:, :-1].gather(2, labels[:, 1:, None]).mean(), "logits": scores}

    torch.manual_seed(0)
    skipped = dict(ns.check(OwnLoss(False), {"input_ids": IDS, "labels": IDS}).skipped)
    assert "is not known" in skipped["whether labels are read ahead"]
