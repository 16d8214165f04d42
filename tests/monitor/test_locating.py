"""A loss that is not finite names the layer where numbers broke, or none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.core.finding import Severity
from normscope.doctor.monitor.locating import Locator, locate
from normscope.doctor.monitor.watching import watch

from .training import take_step

NAN = float("nan")


def deep(kind: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(6, 6), kind())]
    return nn.Sequential(nn.Linear(4, 6), nn.Sequential(*layers), nn.Linear(6, 2))


class Sound(nn.Module):
    """Breaks nothing until it is told to."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.on = function, False

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) if self.on else x


class Attention(nn.Module):
    """Causal: scores are minus infinity above the diagonal, which is no fault."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.inner = Sound(lambda x: x / (x - x))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.key(x) @ x.mT
        masked = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        return self.last(self.inner(masked.softmax(-1) @ x)).mean(1)


class Recurrent(nn.Module):
    """A residual network with a recurrent layer and functions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm, self.last = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 2)
        self.log = False

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        x = x + self.lstm(x)[0]
        return self.last((x.abs() * 0.0).log() if self.log else x).mean(1)


def broken(model: nn.Module, breaking: Callable[[Tensor], Tensor | None], *, every: int = 10, **more: Any) -> Any:
    """Train for a while, and break something at step 23: the one alarm that is told."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    drawn = torch.Generator().manual_seed(0)
    with watch(model, optimizer, every=every, tier="economy") as run:
        for step in range(35):
            x = torch.randn(8, *more.get("shape", (4,)), generator=drawn)
            if step == 23:
                other = breaking(x)
                x = x if other is None else other
            optimizer.zero_grad()
            loss = more.get("loss", lambda y, step: y.square().mean())(model(x), step)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    [told] = [f for f in run.findings if f.code == "loss-not-finite"]
    assert told.severity is Severity.ERROR
    return told


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", ["0", "1.14", "1.20", "2"])
def test_the_layer_whose_output_breaks_is_named(place: str) -> None:
    model = deep()

    def breaking(x: Tensor) -> None:
        model.get_submodule(place).register_forward_hook(lambda module, given, made: made * torch.inf)

    told = broken(model, breaking)
    assert (told.where, told.step) == (place, 30)
    assert told.numbers["at"] == 23
    assert "at step 23" in told.seen


@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", ["0", "1.14", "2"])
def test_weights_that_are_broken_are_named(place: str) -> None:
    model = deep()

    def breaking(x: Tensor) -> None:
        with torch.no_grad():
            model.get_submodule(place).weight[0, 0] = NAN

    told = broken(model, breaking)
    assert told.where == place
    assert "weights" in told.seen


@pytest.mark.one_in(2)
@pytest.mark.parametrize("value", [NAN, torch.inf])
def test_a_batch_that_is_broken_is_no_layer(value: float) -> None:
    told = broken(deep(), lambda x: x.index_fill(0, torch.tensor([3]), value))
    assert told.where == ""
    assert "batch itself" in told.seen


def test_a_loss_function_that_breaks_is_no_layer() -> None:
    told = broken(deep(), lambda x: x, loss=lambda y, step: (y * (NAN if step == 23 else 1.0)).square().mean())
    assert told.where == ""
    assert "loss function" in told.seen


def test_masks_are_no_fault_and_what_breaks_behind_them_is_named() -> None:
    model = Attention()
    told = broken(model, lambda x: setattr(model.inner, "on", True), shape=(5, 4))
    assert told.where == "inner"
    assert "div" in told.seen


def test_masks_that_are_given_are_no_fault_of_the_batch() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = Sound(lambda x: x / (x - x)), nn.Linear(4, 2)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.last(self.inner((x @ x.mT + mask).softmax(-1) @ x))

    model, mask = Masked(), torch.full((5, 5), -torch.inf).triu(1)
    assert "loss function" in locate(model, (torch.randn(2, 5, 4), mask), {}, 0).words
    model.inner.on = True
    assert locate(model, (torch.randn(2, 5, 4),), {"mask": mask}, 0).where == "inner"


def test_functions_of_the_model_itself_are_told_as_such() -> None:
    model = Recurrent()
    told = broken(model, lambda x: setattr(model, "log", True), shape=(5, 4))
    assert told.where == ""
    assert "`log` in the model's own forward" in told.seen


@pytest.mark.parametrize(("place", "x"), [("lstm", 1.0), ("first", 3e38)])
def test_recurrent_layers_and_overflow(place: str, x: float) -> None:
    model = Recurrent()
    with torch.no_grad():
        model.first.weight.fill_(10.0)
    if place == "lstm":
        model.lstm.register_forward_hook(lambda module, given, made: (made[0] * NAN, made[1]))
    assert locate(model, (torch.full((2, 3, 4), x),), {}, 7).where == place


@pytest.mark.parametrize(("every", "step", "words"), [(1, 3, "The batch itself"), (5, 5, "before this forward")])
def test_without_the_losses_between_records_no_layer_is_guessed(every: int, step: int, words: str) -> None:
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=every) as run:
        for number in range(8):
            take_step(model, optimizer, torch.randn(8, 4) * (NAN if number == 3 else 1.0))
    [told] = [f for f in run.findings if f.code == "loss-not-finite"]
    assert (told.where, told.step) == ("", step)
    assert words in told.seen


def test_a_batch_that_is_left_out_raises_nothing_and_the_model_is_left_as_found() -> None:
    def trained(watched: bool) -> tuple[list[Tensor], list[str]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))
        optimizer, codes = torch.optim.Adam(model.parameters(), lr=0.01), []
        run = watch(model, optimizer, every=5).__enter__() if watched else None
        for step in range(40):
            optimizer.zero_grad()
            x = torch.randn(64, 4)
            loss = model(x).square().mean() * (NAN if step in (12, 13, 20, 33) else 1.0)
            if run is not None:
                run.observe(loss=loss)
            if not loss.isfinite():
                continue
            loss.backward()
            optimizer.step()
        if run is not None:
            run.__exit__(None, None, None)
            codes = [finding.code for finding in run.findings]
        return [tensor.clone() for tensor in model.state_dict().values()], codes

    (alone, _), (seen, codes) = trained(False), trained(True)
    assert all(torch.equal(one, two) for one, two in zip(alone, seen, strict=True))
    assert codes == []


def test_behind_the_step_weights_are_no_evidence():
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, math.nan)  # by the step that the loss led to
    locator = Locator()
    locator.batch, locator.stepped = ((torch.ones(4, 3),), {}), True
    broken = locator.locate_break(model, 8)
    assert (broken.step, broken.where) == (7, "")
    assert "call run.observe between the forward and optimizer.step()" in broken.words
