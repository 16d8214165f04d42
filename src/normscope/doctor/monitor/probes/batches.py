"""What is measured at a batch: how far its samples differ, and where they stand in a domain.

A domain is that of one function: the network as it was recorded is run on the batch, not the one that is being trained.
So what moves these figures is the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ....calls.call import Call
from ....core.errors import InputError
from ..record import LayerRecord

if TYPE_CHECKING:
    from ....bounds.domain.domain import Domain
    from ....bounds.graph.ir import Node

MAX_FOLLOWED_SAMPLES = 32
"""Samples of a batch that are followed in a domain, at most."""


@torch.no_grad()
def measure_spread(args: Any, kwargs: Any) -> Tensor | None:
    """Return the largest difference between two samples in any entry of the batch; of one sample between its entries.

    Args:
        args: the positional arguments of the forward.
        kwargs: the named arguments of the forward.

    Returns:
        A number on the device of the batch; None where it holds no tensor that could be compared.

    Example:
        >>> float(measure_spread((torch.tensor([[1.0, 5.0], [1.0, 7.0]]),), {}))
        2.0
    """
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if _is_compared(leaf)]
    spreads = []
    for leaf in leaves:
        if len(leaf) == len(leaves[0]):
            low, high = torch.aminmax(leaf, dim=0) if len(leaf) > 1 else torch.aminmax(leaf)
            apart = high - low if leaf.dtype in (torch.float32, torch.float64) else high.double() - low.double()
            spreads.append(apart.amax())
    if len(spreads) < 2:
        return spreads[0] if spreads else None
    return torch.stack([one.to(spreads[0].device, torch.float64) for one in spreads]).amax()


def _is_compared(leaf: Any) -> bool:
    return (
        isinstance(leaf, Tensor)
        and leaf.ndim > 0
        and leaf.numel() > 0
        and leaf.layout == torch.strided
        and not leaf.is_complex()
        and leaf.dtype is not torch.bool
    )


MARKED_ENTRIES = 1 << 16
"""Entries of a batch, at most and evenly spaced, that tell it from others."""


@torch.no_grad()
def measure_batch(args: Any, kwargs: Any) -> Tensor | None:
    """Return what tells a batch from others: how far its samples differ, its mean and size, and how many there are.

    Args:
        args: the positional arguments of the forward.
        kwargs: the named arguments of the forward.

    Returns:
        `measure_spread`, the standard deviation and the mean of its entries, the number of samples, and the largest
        column over the median one (left out where it is no table), of the first tensor that can be compared; None
        where there is none.
    """
    spread, leaf = measure_spread(args, kwargs), _first_compared(args, kwargs)
    if spread is None or leaf is None:
        return None
    deviation, mean = _mark(leaf)
    column: tuple[Tensor, ...] = ()
    if leaf.ndim == 2 and leaf.is_floating_point() and MIN_COLUMNS <= leaf.shape[1] <= MAX_COLUMNS and len(leaf) > 1:
        sizes = leaf[:MARKED_ROWS].abs().amax(0).to(mean)
        column = (sizes.amax() / sizes.median().clamp(min=1e-30),)
    return torch.stack([spread.to(mean), deviation, mean, torch.full_like(mean, len(leaf)), *column])


@torch.no_grad()
def mark_batch(args: Any, kwargs: Any) -> Tensor | None:
    """Return the standard deviation and the mean of the entries of a batch, as `measure_batch` has them."""
    leaf = _first_compared(args, kwargs)
    return None if leaf is None else torch.stack(_mark(leaf))


def _mark(leaf: Tensor) -> tuple[Tensor, Tensor]:
    """Return the standard deviation and the mean of the entries of a tensor."""
    entries = leaf.reshape(-1)
    entries = entries[:: entries.numel() // MARKED_ENTRIES] if entries.numel() > MARKED_ENTRIES else entries
    entries = entries.to(torch.float32 if entries.device.type == "mps" else torch.float64)
    deviation, mean = torch.std_mean(entries, correction=0)
    return deviation, mean


def _first_compared(args: Any, kwargs: Any) -> Tensor | None:
    """Return the first tensor of a call that can be compared; None where there is none."""
    return next((leaf for leaf in tree_leaves((args, kwargs)) if _is_compared(leaf)), None)


MARK_RTOL = 1e-12
"""Relative difference of sums over the same entries in another order."""


def are_same(marks: tuple[float, float], others: tuple[float, float]) -> bool:
    """Return whether two batches, each by the mean and the size of its entries, hold the same entries."""
    apart = sum(abs(one - other) for one, other in zip(marks, others, strict=True))
    return apart <= MARK_RTOL * sum(map(abs, marks))


MIN_COLUMNS, MAX_COLUMNS, MARKED_ROWS = 4, 4096, 256
"""Columns of a table whose sizes are compared, and rows that say how large they are."""


MIN_OUTPUT_SAMPLES, MIN_OUTPUT_WIDTH, MAX_OUTPUT_ENTRIES = 8, 8, 1 << 20
"""Samples and entries of outputs, at least and at most, whose differences between samples are measured."""


@torch.no_grad()
def measure_outputs(made: Any) -> Tensor | None:
    """Return the length of the mean of all outputs, each scaled to length one: 1 where all point one way.

    Args:
        made: what a model returned.

    Returns:
        That of the first tensor in it; None where that has no rows that could be compared.
    """
    first = next((leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)), None)
    if first is None or first.ndim != 2 or not first.is_floating_point() or first.numel() > MAX_OUTPUT_ENTRIES:
        return None
    if first.layout != torch.strided or first.shape[0] < MIN_OUTPUT_SAMPLES or first.shape[1] < MIN_OUTPUT_WIDTH:
        return None
    lengths = torch.linalg.vector_norm(first, dim=1, keepdim=True, dtype=torch.float32)
    return torch.linalg.vector_norm((first / lengths).mean(0))


@torch.no_grad()
def measure_codes(made: Any) -> Tensor | None:
    """Return how far two outputs of one shape, such as mean and log-variance of a code, differ between samples.

    Args:
        made: what a model returned.

    Returns:
        The largest standard deviation over the samples of any of their entries; None where there is no such pair
        beside another output.
    """
    if isinstance(made, Tensor):
        return None
    rows = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    codes = [leaf.detach() for leaf in rows if leaf.ndim == 2 and len(leaf) >= MIN_OUTPUT_SAMPLES]
    pair = next(((one, two) for one, two in pairwise(codes) if one.shape == two.shape), None)
    if pair is None or len(rows) < 3 or pair[0].layout != torch.strided or pair[0].numel() > MAX_OUTPUT_ENTRIES:
        return None
    return torch.cat([one.to(pair[0]) for one in pair], 1).std(0).amax()


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
