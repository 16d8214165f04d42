"""Where the samples of a batch stand in a domain that is followed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....calls.call import Call
from ....core.errors import InputError
from ..layer_record import LayerRecord
from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft

if TYPE_CHECKING:
    from ....bounds.domain.domain import Domain
    from ....bounds.graph.ir import Node

OUTSIDE = Quantity("network", "share_outside", "of the samples outside of the domain")
EXCESS = Quantity("operator", "excess", "how far the worst sample is outside of an operator's limits")
MAX_FOLLOWED_SAMPLES = 32
"""Samples of a batch that are followed in a domain, at most."""


class InDomain(Probe):
    """Sends what `DomainProbe` measured."""

    quantities = (OUTSIDE, EXCESS)
    _sent: Arriving | None = None

    def finish(self) -> None:
        if self.step.forward is not None and self.step.forward.domain is not None:
            self._sent = self.step.send(self.step.forward.domain)

    def fill(self, record: RecordDraft) -> None:
        if self._sent is not None:
            share, *excess = self._sent.numbers.tolist()
            record.network(OUTSIDE, share)
            record.column(EXCESS, excess)


class DomainProbe:
    """Measures batches against a domain, without a wait for the device.

    Args:
        domain: the domain of a model that takes float inputs alone.

    Raises:
        InputError: the domain is of a model of tokens, whose embeddings change while it is trained.
    """

    def __init__(self, domain: Domain) -> None:
        from ....bounds.domain.domain import Domain

        if not isinstance(domain, Domain):
            raise InputError(f"domain is a {type(domain).__name__}: pass what normscope.domain(model, loader) returned")
        if domain.starts_at_embeddings:
            raise InputError(
                "the domain is of a model of tokens and starts at its embeddings, which training changes: domain= "
                "follows models that take float inputs"
            )
        self._domain = domain
        self._operators: dict[str, Node] = {c.node.name: c.node for c in domain.conditions}
        if not self._operators:
            raise InputError("the domain has no ranges: its model is linear, and no input can leave it")

    @property
    def layers(self) -> tuple[LayerRecord, ...]:
        """One entry per operator that has a range, in the order of the network; runs of one module are counted."""
        names: dict[str, int] = {}
        operators = []
        for node in self._operators.values():
            name = node.path or node.operator
            names[name] = names.get(name, 0) + 1
            title = name if names[name] == 1 else f"{name}#{names[name]}"
            operators.append(LayerRecord(name=title, kind="operator", family=node.operator))
        return tuple(operators)

    @torch.no_grad()
    def measure(self, args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
        """Return the share of the samples outside, then for each operator how far the worst sample is outside.

        An operator's figure is the largest excess over its limits, relative to their size: below 0 it is the distance
        to the edge. None for a batch of another size, where the domain is of whole batches.

        Args:
            args: the positional arguments of the model's forward.
            kwargs: the same.

        Raises:
            InputError: the model is called with other inputs than the domain is of.
        """
        call = Call(args=args, kwargs=dict(kwargs), output=None)
        variables = [tensor.detach() for _, tensor in call.variables]
        if len(variables) != sum(isinstance(leaf, Tensor) for leaf in call.leaves):
            raise InputError("the model is called with tensors that are no float inputs (masks, labels)")
        points = self._domain.points(variables)
        if points is None:
            return None
        excesses = self._domain.excesses(points[:MAX_FOLLOWED_SAMPLES])
        by_operator = {
            name: torch.stack([excesses[c.key] for c in self._domain.conditions if c.node.name == name]).amax(0)
            for name in self._operators
        }
        table = torch.stack(list(by_operator.values()))
        return torch.cat([(table.amax(0) > 0).double().mean().reshape(1), table.amax(1)])
