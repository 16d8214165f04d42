"""The records of the catalogue of models.

A diagnosis of a fault is right if it gives one of the fault's causes, names one of its layers (where it has any), and
if the first remedy that it advises is one of the fault's remedies. A diagnosis of a healthy model is right if it is
empty.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

Loss = str | nn.Module | Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and a batch, as a user hands them over.

    Attributes:
        model: The model, in the mode that `train` says.
        data: A tensor of inputs, a pair (inputs, targets), or a dict of the keyword arguments of `forward`.
        loss: The loss that the user names: None, the name of a loss, or `loss(output, target)`.
        train: Whether the model is handed over in train mode.
        objective: What training minimises, as a function of the output, where `loss` is None.
        judge: How good an output is (larger is better) where neither accuracy nor explained variance fits.
        optimizer: The optimizer that the user hands over, if any.
    """

    model: nn.Module
    data: Any
    loss: Loss | None = None
    train: bool = True
    objective: Callable[[Any], Tensor] | None = None
    judge: Callable[[Any], float] | None = None
    optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        self.model.train(self.train)


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


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """A model with nothing wrong."""

    name: str
    family: str
    build: Callable[[], Case]


def fault(
    register: list[Fault], family: str, *, causes: str, remedies: str, source: str = "", layers: str = ""
) -> Callable[[Callable[[bool], Case]], Callable[[bool], Case]]:
    """Register the decorated builder, which takes whether to plant the fault; keys and names are split at spaces.

    Without `source`, the builder's docstring says where people make this mistake.
    """

    def add(build: Callable[[bool], Case]) -> Callable[[bool], Case]:
        register.append(
            Fault(
                name=build.__name__.replace("_", "-"),
                family=family,
                build=partial(build, True),
                mend=partial(build, False),
                causes=frozenset(causes.split()),
                layers=tuple(layers.split()),
                remedies=frozenset(remedies.split()),
                source=source or build.__doc__ or "",
            )
        )
        return build

    return add


def healthy(register: list[Healthy], *, family: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register the decorated builder of a healthy model."""

    def add(build: Callable[[], Case]) -> Callable[[], Case]:
        register.append(Healthy(name=build.__name__.replace("_", "-"), family=family, build=build))
        return build

    return add
