"""The records of the catalogue of models, and how a row of it becomes one.

A diagnosis of a fault is right if it gives one of the fault's causes, names one of its layers (where it has any), and
if the first remedy that it advises is one of the fault's remedies. A diagnosis of a healthy model is right if it is
empty.
"""

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .training import train

Loss = str | nn.Module | Callable[[Any, Tensor], Tensor]
LOSSES_BY_NAME: dict[str, Callable[[Any, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


@dataclass
class Case:
    """A model and a batch, as a user hands them over.

    Attributes:
        data: A tensor of inputs, a pair (inputs, targets), or a dict of the keyword arguments of `forward`.
        model: The model, in the mode that `train` says.
        loss: The loss that the user names: None, the name of a loss, or `loss(output, target)`.
        train: Whether the model is handed over in train mode.
        steps: For how many steps the model has been trained on its batch with its loss.
        objective: What training minimises, as a function of the output, where `loss` is None.
        judge: How good an output is (larger is better) where neither accuracy nor explained variance fits.
        judge_of: Returns the judge, given the targets.
        optimizer: The optimizer that the user hands over, if any, or what makes it from the parameters.
    """

    data: Any
    model: nn.Module
    loss: Loss | None = None
    _: KW_ONLY
    train: bool = True
    steps: int = 0
    objective: Callable[[Any], Tensor] | None = None
    judge: Callable[[Any], float] | None = None
    judge_of: Callable[[Any], Callable[[Any], float]] | None = None
    optimizer: Any = None

    def __post_init__(self) -> None:
        if self.steps:
            loss = LOSSES_BY_NAME[self.loss] if isinstance(self.loss, str) else self.loss
            assert loss is not None
            x, y = self.data
            train(self.model, x, y, loss, self.steps)
        if self.judge_of is not None:
            self.judge = self.judge_of(self.data[1])
        if isinstance(self.optimizer, partial):
            self.optimizer = self.optimizer(self.model.parameters())
        self.model.train(self.train)


def given(values: Any, build: Callable[..., Any]) -> Any:
    """Return what is built from a value, or from several, that it needs more than once."""
    return build(*values) if build.__code__.co_argcount > 1 else build(values)


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """A model with nothing wrong.

    Attributes:
        name: The name of the case.
        family: The kind of network.
        build: Builds the case, the same one each time.
    """

    name: str
    family: str
    build: Callable[[], Case]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault and what counts as its right diagnosis.

    Attributes:
        name: The name of the case.
        family: The kind of network.
        build: Builds the faulty case, the same one each time.
        mend: Builds the same case without the fault.
        causes: Keys of `causes.CAUSES`; any one of them counts.
        layers: Names of modules or parameters, one of which must be named; empty if no one layer is at fault.
        remedies: Keys of `remedies.REMEDIES`; any one of them counts as the first remedy.
        source: Where people make this mistake.
    """

    name: str
    family: str
    build: Callable[[], Case]
    mend: Callable[[], Case]
    causes: frozenset[str]
    layers: tuple[str, ...]
    remedies: frozenset[str]
    source: str


class Part:
    """A part of the catalogue, to which rows and functions add cases.

    A row is `PART(text, build, plant=...)`, a function is decorated with `@PART` and has the text, without the name, as
    its docstring. The text of a healthy model is `name | family | seed`, that of a fault goes on with ` | source |
    causes | layers | remedies`; words are split at spaces, and in layers braces stand for several (`0.{weight,bias}`,
    `layers.{0..7}`). A builder of a fault may take whether it is planted; a plant changes the faulty model
    that was built, a cure its mended twin.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.healthy: list[Healthy] = []

    def __call__(
        self,
        row: str | Callable[..., Case] = "",
        build: Callable[..., Case] | None = None,
        plant: Any = None,
        cure: Any = None,
    ) -> Any:
        """Add a row, or the case of a decorated function."""
        if not row:
            return partial(self, plant=plant, cure=cure)
        if callable(row):
            build, row = row, f"{row.__name__.replace('_', '-')} | {row.__doc__}"
        assert build is not None
        name, family, seed, *answer = (" ".join(cell.split()) for cell in re.split(r"\s\|(?=\s|$)", row))
        if not answer:
            self.healthy.append(Healthy(name=name, family=family, build=partial(build_case, build, seed)))
            return build
        *source, causes, layers, remedies = answer
        self.faults.append(
            Fault(
                name=name,
                family=family,
                build=partial(build_case, build, seed, True, plant),
                mend=partial(build_case, build, seed, False, cure),
                causes=frozenset(causes.split()),
                layers=tuple(layer for word in layers.split() for layer in expand_braces(word)),
                remedies=frozenset(remedies.split()),
                source=" | ".join(source),
            )
        )
        return build


def build_case(build: Callable[..., Case], seed: str, planted: bool = False, plant: Any = None) -> Case:
    """Build a case from its seed, with its fault or without."""
    if seed:
        torch.manual_seed(int(seed))
    case = build(planted) if build.__code__.co_argcount else build()
    if plant is not None:
        with torch.no_grad():
            plant(case.model)
        case.model.train(case.train)
    return case


def expand_braces(word: str) -> list[str]:
    """Return the words that a word with braces stands for, as a shell does."""
    found = re.match(r"([^{]*)\{([^}]*)\}(.*)", word)
    if found is None:
        return [word]
    head, inner, tail = found.groups()
    first, _, last = inner.partition("..")
    choices = map(str, range(int(first), int(last) + 1)) if last else inner.split(",")
    return [head + choice + end for choice in choices for end in expand_braces(tail)]


OPEN, FIRST, SECOND, THIRD, HELD_OUT = Part(), Part(), Part(), Part(), Part()
