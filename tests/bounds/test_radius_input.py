"""What `certified_radius` takes, what it refuses, and how it leaves a model."""

import math

import pytest
import torch
from torch import Tensor, nn

from normscope.bounds.radius.radius import certified_radius
from normscope.core.errors import InputError

from ..soundness.networks import noise
from .classifiers import FAMILIES, made


@pytest.mark.slow
def test_batches_loaders_and_labels_left_out_give_the_same():
    model, x = made(FAMILIES["batch norm"]), noise(4, 16)
    y = model(x).argmax(1)
    whole = certified_radius(model, x, attack=False)
    assert whole.label == whole.predicted == tuple(y.tolist())
    assert whole.attacked == (None,) * 4
    assert whole.attacked_accuracy(0.1) is whole.curve()[0].attacked is None
    assert "Under attack" not in str(whole).split("Certified:")[0]
    pairs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    for given in (pairs, (x, y), [{"input": x, "labels": y}]):
        radii = certified_radius(model, given, attack=False)
        assert radii.label == whole.label
        assert radii.radius == pytest.approx(whole.radius, rel=0.02)


class Several(nn.Module):
    """A model with two outputs, one of which is a row of class scores."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": x[:, :3], "map": x[:, None, :].repeat(1, 2, 1)}


class Masked(nn.Module):
    """A model whose second input is held constant."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


class Optional(nn.Module):
    """A model whose second argument looks like labels."""

    def forward(self, x: Tensor, kind: Tensor | None = None) -> Tensor:
        return x if kind is None else x * (1 + kind[:, None])


@pytest.mark.slow
def test_arguments_and_labels_cannot_be_mistaken():
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1:3, 0] = False
    model = Masked().eval()
    with torch.no_grad():
        predicted = model(X, mask).argmax(1)
    ways = [
        ((X, mask), predicted),
        ((X, mask), None),
        ({"x": X, "mask": mask}, predicted),
        (((X, mask), predicted), None),
    ]
    ways += [([((X, mask), predicted)], None), ([(X, mask)], None)]
    ways += [((X, mask, predicted), None), ([(X, mask, predicted)], None)]
    first, *others = [certified_radius(model, data, labels=labels, attack=False) for data, labels in ways]
    assert all(other.radius == first.radius and other.label == first.label for other in others)
    kinds = torch.tensor([0, 1, 2, 3])
    several = certified_radius(Optional().eval(), (X, kinds), labels=X.argmax(1), attack=False)
    plain = certified_radius(Optional().eval(), (X, X.argmax(1)), attack=False)  # needs no second argument
    assert several.label == plain.label == tuple(X.argmax(1).tolist())
    assert several.margin == pytest.approx([m * (1 + k) for m, k in zip(plain.margin, kinds.tolist())], rel=1e-6)
    assert several.radius == pytest.approx(plain.radius, rel=0.03)


X = noise(4, 5)
Y = torch.zeros(4, dtype=torch.int64)
NOT_FINITE = X.clone()
NOT_FINITE[1, 1] = math.nan

REFUSED = {
    "train mode": (nn.Linear(5, 3).train(), X, Y, {}, "train mode.*eval"),
    "one output": (nn.Linear(5, 1).eval(), X, Y, {}, "single output"),
    "a map": (nn.Unflatten(1, (5, 1)).eval(), X, Y, {}, "shape"),
    "samples that mix": (nn.Softmax(0).eval(), X, Y, {}, "single sample"),
    "float labels": (nn.Linear(5, 3).eval(), X, Y.float(), {}, "dtype"),
    "one-hot labels": (nn.Linear(5, 3).eval(), X, torch.eye(4, 3).long(), {}, "argmax"),
    "too few labels": (nn.Linear(5, 3).eval(), X, Y[:3], {}, "4 samples and 3 labels"),
    "a class too many": (nn.Linear(5, 3).eval(), X, Y + 3, {}, "label 3 is out of range"),
    "a negative class": (nn.Linear(5, 3).eval(), X, Y - 1, {}, "label -1"),
    "labels of text": (nn.Linear(5, 3).eval(), X, ["a", "b", "c", "d"], {}, "integers"),
    "NaN": (nn.Linear(5, 3).eval(), NOT_FINITE, Y, {}, "NaN"),
    "no batch": (nn.Linear(5, 3).eval(), [], None, {}, "no batch"),
    "no data": (nn.Linear(5, 3).eval(), 3, None, {}, "int"),
    "an unknown effort": (nn.Linear(5, 3).eval(), X, Y, {"effort": "exact"}, "effort"),
    "several outputs": (Several().eval(), X, Y, {}, "output"),
    "a wrong shape": (nn.Linear(5, 3).eval(), noise(4, 6), Y, {}, "shapes"),
    "labels twice": (nn.Linear(5, 3).eval(), (X, Y), Y, {}, "pass them once"),
    "labels twice in a dict": (nn.Linear(5, 3).eval(), {"input": X, "labels": Y}, Y, {}, "pass them once"),
    "labels beside a loader": (nn.Linear(5, 3).eval(), iter([X]), Y, {}, "labels belong to one batch"),
    "a mask for labels": (nn.Linear(5, 3).eval(), (X, X > 0), None, {}, "a mask is an argument"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_certified_is_refused_in_a_sentence(case):
    model, x, y, options, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        certified_radius(model, x, labels=y, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_an_output_and_a_mode_can_be_chosen():
    assert certified_radius(Several().eval(), X, output="scores", attack=False).classes == 3
    model = made(FAMILIES["batch norm"]).train()
    radii = certified_radius(model, noise(2, 16), mode="eval", attack=False)
    assert model.training
    assert all(radius > 0 for radius in radii.radius)


@pytest.mark.slow
def test_the_model_is_left_as_found():
    model = made(FAMILIES["batch norm"])
    (model(noise(2, 16)).sum()).backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    with torch.inference_mode():
        certified_radius(model, noise(3, 16))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(a, b.grad) for a, b in zip(grads, model.parameters()))
    assert not model.training


@pytest.mark.slow
def test_a_budget_ends_the_search_with_radii_that_hold():
    model, x = made(FAMILIES["layer norm"]), noise(6, 16)
    free, short = certified_radius(model, x), certified_radius(model, [(x, None), (x, None)], max_seconds=0.0)
    assert free.converged
    assert free.advice is None
    assert not short.converged
    assert "max_seconds" in short.advice
    assert len(short) == 6
    assert "first 6 samples" in short.notes[0]
    assert all(0 <= a <= 1.02 * b for a, b in zip(short.radius, free.radius))
    assert "did not end" in str(short)


class Vanishing(nn.Module):
    """Scales down and up again: in float32 nothing is left of its first term."""

    def __init__(self, factor: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(4, 3, dtype=dtype), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.factor * self.factor / self.factor / self.factor) + 1e-3 * x[:, :3]


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-23, 1e-30])
def test_values_that_vanish_in_float32_are_named_as_such(factor):
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    with pytest.raises(InputError, match="outputs in float32 are not those of its exact function"):
        certified_radius(Vanishing(factor, torch.float32).eval(), x)
    assert len(certified_radius(Vanishing(factor, torch.float64).eval(), x.double()).radius) == 3
