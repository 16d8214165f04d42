"""Runs whose rate, gradient or weights are kept from moving: rates, schedules, clipping, weights put back."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from ...data import blob_images, sentences, waves
from ...networks import GPT, GraphNet, ResNet, SentenceEncoder, SequenceClassifier, ViT, mlp
from ...training import over_tokens
from ..case import HELD_OUT, fault
from ..data import digits, split
from ..loops import Loop, adam, by_step, sgd
from ..tuned.parts import unreported
from .parts import descend, echoes, graph, share_right, tastes


class _Matched(nn.Module):
    """Ratings as products of two embeddings."""

    def __init__(self, limit: float | None) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8, max_norm=limit), nn.Embedding(30, 8, max_norm=limit)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


HELD_OUT.add(
    fault("rate-of-a-convolutional-net-for-a-transformer", "GPT", "rate-too-low not-learning gradient-too-small",
        "raise-learning-rate rescale-loss",
        "Plain SGD at a hundredth, which suits images, leaves a transformer where it starts.", lambda broken,
        loop: loop.fit(echoes(), (model := GPT()), sgd(0.01)(model) if broken else torch.optim.AdamW(model.parameters(),
        5e-3), loss=over_tokens), steps=300, seed=331),
    fault("adagrad-at-the-rate-of-adam", "LSTM", "rate-too-low not-learning rate-decays-too-early",
        "raise-learning-rate",
        "Adagrad divides by the root of all squared gradients so far, and starts from a thousandth.", lambda broken,
        loop: loop.fit(split(*waves(768)), (model := SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)),
        torch.optim.Adagrad(model.parameters(), 1e-3) if broken else adam(1e-2)(model)), steps=250, seed=332),
    fault("linear-decay-over-one-epoch-only", "BERT",
        "rate-decays-too-early rate-zero not-learning rate-too-low no-step", "fix-schedule raise-learning-rate",
        "The schedule was given the batches of one epoch as its whole length.", lambda broken, loop: loop.fit(
        split(*sentences(1280)), SentenceEncoder(), adam(2e-3), schedule=by_step(lambda step: max(0.0,
        1 - step / (32 if broken else loop.steps)))), onset=25, steps=300, seed=333),
    fault("warm-up-begins-anew-each-epoch", "ViT", "rate-too-low not-learning", "fix-schedule raise-learning-rate",
        "The counter of the warm-up of ten thousand steps is set back at the beginning of each epoch.", lambda broken,
        loop: loop.fit(split(*blob_images(1280)), ViT(depth=2), adam(2e-3),
        schedule=by_step(lambda step: (step % 32 + 1) / 10_000 if broken else min(1.0, (step + 1) / 32))), steps=250,
        seed=334),
    fault("threshold-for-values-given-as-a-norm", "LSTM",
        "clipping-always-active gradient-too-small rate-too-low not-learning", "loosen-clipping raise-learning-rate",
        "The limit for one entry of a gradient, 0.002, is given to the clipping of the norm.", lambda broken,
        loop: loop.fit(split(*waves(768)), SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3), sgd(0.3, 0.9),
        clip=0.002 if broken else 1.0), steps=250, seed=335),
    fault("weight-of-a-term-in-the-wrong-place", "ResNet", "gradient-too-small rate-too-low not-learning",
        "rescale-loss raise-learning-rate",
        "The factor of a small auxiliary term multiplies the whole loss, and SGD sees a ten-thousandth of it.",
        lambda broken, loop: loop.fit(digits(), ResNet(blocks=2, classes=10), sgd(0.05, 0.9), loss=lambda output,
        y: (1e-4 if broken else 1.0) * F.cross_entropy(output, y)), steps=150, seed=355),
    fault("embeddings-renormed-to-a-tenth", "recommender",
        "weights-put-back not-learning output-constant layer-decayed gradient-too-small vanishing-gradient",
        "keep-weights rescale-layer initialise scale-outputs",
        "`max_norm=0.1` shortens both embeddings in every call, and their products are at most a hundredth.",
        lambda broken, loop: loop.fit(tastes(), _Matched(0.1 if broken else None), adam(2e-2), loss=F.mse_loss),
        layers="users items users.weight items.weight", steps=400, seed=377),
)  # fmt: skip


@HELD_OUT.fault("GNN", "rate-decays-too-early rate-too-low not-learning", "fix-schedule raise-learning-rate", onset=8,
    steps=200, seed=336)  # fmt: skip
def rate_halved_in_every_epoch(broken: bool, loop: Loop) -> float:
    """`StepLR(step_size=2)` for a graph that is seen whole, so that an epoch is one step."""
    x, edges, y, train, rest = graph()
    model = GraphNet(edges)
    optimizer = adam(3e-3)(model)
    schedule = lr_scheduler.StepLR(optimizer, 2 if broken else 200, 0.5)
    descend(unreported(loop.watch), model, optimizer, loop.steps, lambda step: F.cross_entropy(model(x)[train],
        y[train]), schedule=schedule)  # fmt: skip
    return share_right(model(x)[rest], y[rest])


@HELD_OUT.fault("GRU", "weights-put-back not-learning no-step", "keep-weights flip-sign", steps=300, seed=375)
def best_state_by_the_wrong_comparison(broken: bool, loop: Loop) -> float:
    """After each twenty steps the best state is loaded again, and the best is the one with the largest loss."""
    data = split(*waves(768))
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    best, state = -math.inf if broken else math.inf, copy.deepcopy(model.state_dict())

    def then(step: int) -> None:
        nonlocal best, state
        if step % 20 != 19:
            return
        with torch.no_grad():
            loss = F.cross_entropy(model(data.x[:128]), data.y[:128]).item()
        if loss > best if broken else loss < 1.3 * best:
            best, state = loss, copy.deepcopy(model.state_dict())
        else:
            model.load_state_dict(state)

    return loop.fit(data, model, adam(5e-3), then=then)


@HELD_OUT.fault("MLP", "weights-put-back no-step not-learning precision rate-too-low",
    "keep-weights raise-precision raise-learning-rate", steps=300, seed=376)  # fmt: skip
def weights_rounded_after_every_step(broken: bool, loop: Loop) -> float:
    """Weights are rounded to a grid in place, which undoes every step smaller than half its width."""
    data, model = digits(flat=True), mlp(64, 48, 48, 10)

    @torch.no_grad()
    def then(step: int) -> None:
        for parameter in model.parameters() if broken else ():
            parameter.copy_((parameter / 0.05).round() * 0.05)

    return loop.fit(data, model, adam(2e-3), then=then)
