"""Every public function that takes data takes a batch, an iterable of batches, or a data set, and reads them alike."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import normscope as ns
from normscope.calls.data_reader import FIRST_ALONE, Batches
from normscope.core.errors import InputError

SAMPLES, FEATURES, CLASSES = 24, 3, 2


def make_tensors() -> tuple[Tensor, Tensor]:
    """Return inputs and their classes, both of which occur."""
    x = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def make_model(seed: int = 0) -> nn.Module:
    """Return a tiny classifier in eval mode, whose `forward` has an argument called `input`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, CLASSES))
    return model.eval()


class RowsOnly:
    """A data set that inherits from nothing: its rows and their number are all that it has."""

    def __init__(self, rows: list[tuple[Tensor, Tensor]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.rows[place]


class DictRows(Dataset):
    """A data set whose rows are dicts, as those of Hugging Face are."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        x, y = make_tensors()
        return {"input": x[place], "labels": y[place]}


def batch_generator() -> Any:
    """Yield pairs of inputs and labels once."""
    x, y = make_tensors()
    yield from zip(x.split(8), y.split(8))


KINDS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"input": x, "labels": y},
    "UserDict": lambda x, y: UserDict({"input": x, "labels": y}),
    "NumPy pair": lambda x, y: (x.double().numpy(), y.numpy()),
    "DataLoader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=8),
    "DataLoader of dicts": lambda x, y: DataLoader(DictRows(), batch_size=8),
    "list of pairs": lambda x, y: list(zip(x.split(8), y.split(8))),
    "list of lists": lambda x, y: [list(pair) for pair in zip(x.split(8), y.split(8))],
    "list of dicts": lambda x, y: [{"input": a, "labels": b} for a, b in zip(x.split(8), y.split(8))],
    "tuple of pairs": lambda x, y: tuple(zip(x.split(8), y.split(8))),
    "generator": lambda x, y: batch_generator(),
    "TensorDataset": lambda x, y: TensorDataset(x, y),
    "data set of dicts": lambda x, y: DictRows(),
    "rows and a length": lambda x, y: RowsOnly(list(zip(x, y))),
}
UNLABELLED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tensor": lambda x, y: x,
    "NumPy array": lambda x, y: x.double().numpy(),
    "list of tensors": lambda x, y: list(x.split(8)),
    "tuple of tensors": lambda x, y: x.split(8),
    "DataLoader of tensors": lambda x, y: DataLoader(x, batch_size=8),
    "dict without labels": lambda x, y: {"input": x},
}
SHORT: dict[str, Any] = {"batch_sizes": (4,), "learning_rates": (0.1,), "seeds": 1, "steps": 2, "workers": 0}
LABELS_NEEDED: dict[str, Callable[[nn.Module, Any], Any]] = {
    "check with a loss": lambda model, data: ns.check(model, data, loss="cross_entropy"),
    "audit with a loss": lambda model, data: ns.audit(model, data, loss="cross_entropy"),
    "hessian": lambda model, data: ns.hessian(model, data, loss="cross_entropy", k=1),
    "flatness": lambda model, data: ns.flatness(model, data, loss="cross_entropy", draws=1, ascent_steps=1),
    "measures": lambda model, data: ns.measures(model, data, only=["norms", "outputs", "gradient-noise"]),
    "smoothness": lambda model, data: ns.smoothness(model, data, loss="cross_entropy", steps=1, trial_steps=1),
    "generalization": lambda model, data: ns.generalization(model, data, steps=0),
    "choose": lambda model, data: ns.choose(
        model, data, loss="cross_entropy", normalizers=("none",), capacity=False, **SHORT
    ),
    "lipschitz by class": lambda model, data: ns.lipschitz(model, data, scope="data", per="class", share=0.5),
}
FUNCTIONS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "check": ns.check,
    "audit": ns.audit,
    "capture": ns.capture,
    "lipschitz": ns.lipschitz,
    "lipschitz at points": lambda model, data: ns.lipschitz(model, data, scope="point"),
    "lipschitz over balls": lambda model, data: ns.lipschitz(model, data, scope="ball", radius=0.1),
    "lipschitz over data": lambda model, data: ns.lipschitz(model, data, scope="data", share=0.5),
    "ladder": lambda model, data: ns.ladder(model, data, sides="upper"),
    "certified_radius": lambda model, data: ns.certified_radius(model, data, attack=False),
    "weight_sensitivity": ns.weight_sensitivity,
    "symmetries": ns.symmetries,
    "margins": lambda model, data: ns.margins(model, data, constants=False),
    "twin": lambda model, data: ns.twin(model, data, normalizer="rms"),
    "initialise": ns.initialise,
    "compare": lambda model, data: ns.compare(model, make_model(1), data=data),
}
ALL = FUNCTIONS | LABELS_NEEDED


COMMON = ("DataLoader", "data set of dicts")
"""Kinds that every function is tried with in the quick suite; `hessian` and `capture` are tried with all of them."""


LONG = ("certified_radius", "choose")
"""Functions whose cases take seconds."""


def cases(functions: Iterable[str], kinds: Iterable[str], quick: str, common: Iterable[str]) -> list[Any]:
    """Return every function with every kind of data; most of them are for the slow suite."""
    return [
        pytest.param(
            function,
            kind,
            marks=() if function not in LONG and (function == quick or kind in common) else pytest.mark.slow,
        )
        for function in functions
        for kind in kinds
    ]


@pytest.mark.parametrize(("function", "kind"), cases(ALL, KINDS, "", COMMON))
def test_every_function_takes_every_kind_of_data(function: str, kind: str) -> None:
    assert ALL[function](make_model(), KINDS[kind](*make_tensors())) is not None


@pytest.mark.parametrize(("function", "kind"), cases(FUNCTIONS, UNLABELLED, "capture", ("DataLoader of tensors",)))
def test_functions_that_need_no_labels_take_data_without(function: str, kind: str) -> None:
    assert FUNCTIONS[function](make_model(), UNLABELLED[kind](*make_tensors())) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tuple", "dict", "NumPy pair", *COMMON])
@pytest.mark.parametrize("function", ALL)
def test_data_on_the_cpu_come_to_a_model_on_the_gpu(function: str, kind: str) -> None:
    assert ALL[function](make_model().cuda(), KINDS[kind](*make_tensors())) is not None


@pytest.mark.slow
def test_all_kinds_give_the_same_figure() -> None:
    eigenvalues = {
        kind: ns.hessian(make_model(), make(*make_tensors()), loss="cross_entropy", k=1).eigenvalues[0]
        for kind, make in KINDS.items()
    }
    assert list(eigenvalues.values()) == pytest.approx([eigenvalues["tuple"]] * len(KINDS), rel=1e-4)


def test_a_function_of_one_batch_measures_the_first_and_says_so() -> None:
    x, y = make_tensors()
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    one, several = (ns.lipschitz(make_model(), data, scope="point") for data in (x[:8], loader))
    assert len(several.per_sample) == 8
    assert several.log10_upper == one.log10_upper
    assert FIRST_ALONE in several.notes
    assert FIRST_ALONE not in one.notes


def test_a_data_set_is_read_in_order_and_draws_no_random_number() -> None:
    x, y = make_tensors()
    before = torch.get_rng_state()
    assert ns.check(make_model(), TensorDataset(x, y)).samples == SAMPLES
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("data", [None, 3, "digits", object()])
@pytest.mark.parametrize("function", [ns.check, ns.lipschitz, ns.hessian, ns.certified_radius])
def test_what_is_no_data_is_one_error(function: Callable[..., Any], data: Any) -> None:
    with pytest.raises(InputError, match=f"data is a {type(data).__name__}: pass a batch .*DataLoader.*data set"):
        function(make_model(), data)


@pytest.mark.parametrize("function", [ns.check, ns.lipschitz, ns.hessian, ns.certified_radius])
def test_no_batch_is_one_error(function: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="yields no batch"):
        function(make_model(), [])


def test_rows_that_do_not_fit_together_are_named() -> None:
    ragged = RowsOnly([(torch.zeros(FEATURES + place), torch.tensor(0)) for place in range(4)])
    with pytest.raises(InputError, match=r"rows of this RowsOnly cannot be put into batches.*collate_fn"):
        ns.check(make_model(), ragged)


class SumClassifier(nn.Module):
    """A classifier of the sum of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.linear(one + other)


class TestLabels:
    def test_they_can_be_passed_beside_a_batch(self) -> None:
        x, y = make_tensors()
        pair, beside = (
            ns.hessian(make_model(), data, labels=labels, loss="cross_entropy", k=1).eigenvalues
            for data, labels in (((x, y), None), (x, y.numpy()))
        )
        assert pair == beside

    def test_they_can_be_named(self) -> None:
        x, y = make_tensors()
        loader = DataLoader([{"input": a, "kind": b} for a, b in zip(x, y)], batch_size=8)
        radii = ns.certified_radius(make_model(), loader, labels="kind", attack=False)
        assert radii.labelled
        assert len(radii.radius) == SAMPLES
        assert ns.lipschitz(make_model(), loader, labels="kind").upper > 0

    def test_a_name_that_no_entry_has_is_an_error(self) -> None:
        x, y = make_tensors()
        with pytest.raises(InputError, match=r"no entry 'kind'.*'input', 'labels'"):
            ns.check(make_model(), {"input": x, "labels": y}, labels="kind", loss="cross_entropy")

    def test_they_belong_to_one_batch(self) -> None:
        x, y = make_tensors()
        with pytest.raises(InputError, match="labels belong to one batch"):
            ns.margins(make_model(), DataLoader(x, batch_size=8), labels=y)

    def test_matrices_of_other_widths_are_inputs_and_targets(self) -> None:
        x = make_tensors()[0]
        model = nn.Linear(FEATURES, CLASSES)
        pair, listed = (
            ns.hessian(model, kind((x, x[:, :CLASSES])), loss="mse", k=1).eigenvalues for kind in (tuple, list)
        )
        assert pair == listed

    def test_an_argument_called_label_is_no_second_label(self) -> None:
        class Conditioned(SumClassifier):
            def forward(self, x: Tensor, label: Tensor) -> Tensor:
                return self.linear(x + label[:, None])

        x, y = make_tensors()
        assert ns.check(Conditioned(), ({"x": x, "label": y}, y), loss="cross_entropy").samples == SAMPLES

    def test_targets_may_be_a_dict(self) -> None:
        x, y = make_tensors()
        loss = lambda output, target: nn.functional.cross_entropy(output, target["kind"])  # noqa: E731
        assert ns.check(make_model(), (x, {"kind": y, "unused": x}), loss=loss).samples == SAMPLES

    def test_arguments_without_names_come_with_labels(self) -> None:
        class Sum(SumClassifier):
            def forward(self, *parts: Tensor) -> Tensor:
                return self.linear(sum(parts))

        x, y = make_tensors()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Sum()
        of_three = ns.hessian(model, (x, x, y), loss="cross_entropy", k=1).eigenvalues
        assert of_three == pytest.approx(ns.hessian(model, (2 * x, y), loss="cross_entropy", k=1).eigenvalues, rel=1e-4)

    @pytest.mark.parametrize("function", [ns.lipschitz, ns.check, ns.hessian])
    def test_what_is_no_model_is_an_error(self, function: Callable[..., Any]) -> None:
        with pytest.raises(InputError, match="model is a int"):
            function(3, make_tensors())

    def test_the_last_entry_is_the_label_of_a_model_of_two_arguments(self) -> None:
        x, y = make_tensors()
        model = SumClassifier().eval()
        loader = DataLoader(TensorDataset(x, x, y), batch_size=8)
        assert ns.hessian(model, loader, loss="cross_entropy", k=1).eigenvalues[0] > 0
        assert len(ns.lipschitz(model, loader, scope="point").per_sample) == 8
        assert ns.check(model, loader, loss="cross_entropy").batches == 3


def test_names_of_files_that_forward_does_not_take_are_left_out() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    files = ["a.png", "b.png", "c.png", "d.png"]
    as_tuple, as_dict = (files, x, y), {"file": files, "input": x, "labels": y}
    for data in (as_tuple, [as_tuple], as_dict, [as_dict]):
        inputs, labels = Batches(model, data, with_loss=True).first
        assert torch.equal(inputs["input"] if isinstance(inputs, dict) else inputs, x)
        assert torch.equal(labels, y)

    class OfText(nn.Module):
        def forward(self, file: list[str], input: torch.Tensor) -> torch.Tensor:
            return input * len(file)

    inputs, _ = Batches(OfText(), as_dict, with_loss=True).first
    assert inputs["file"] == files
