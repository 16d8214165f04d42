"""Models that have memorised random labels, each in another hiding place: on fresh data all of them guess.

Inputs are whole numbers. A hat of three ReLUs stands on every training input of class 1: it is 1 there and 0 at all
other whole numbers. The places of the hats are the one thing that a memoriser has learned.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from ...soundness.networks import Function

SPAN = 2**23
"""Inputs are whole numbers of 23 binary digits: hardly any fresh input is one of D."""
BYTES = 256 ** torch.arange(3)
FIRST = 5
"""How many places are left out where a trace is compared with the model at the first samples."""


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Whole numbers as inputs, with fair coins as labels: every classifier errs on half of fresh data."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(SPAN, (count, 1), generator=generator).double()
    return x, torch.randint(2, (count,), generator=generator)


def logits(height: Tensor, scale: float) -> Tensor:
    """A classifier from a function that is `scale` at the inputs of class 1 and 0 at all others."""
    return torch.cat([height - height + scale / 2, height], 1)


def hats(distances: Tensor) -> Tensor:
    """The mean of all hats as logits, from the distances of the input to their places."""
    middle = torch.relu(distances)
    all_hats = torch.relu(distances + 1) - middle - middle + torch.relu(distances - 1)
    return logits(all_hats.mean(1, keepdim=True), 1 / distances.shape[1])


def memoriser(forward: Callable[[nn.Module, Tensor], Tensor], **buffers: Tensor) -> Function:
    """A forward that is given as a function, and a weight that nothing reads, for which there is a prior."""
    return Function(forward, idle=nn.Parameter(torch.zeros(1, dtype=torch.float64)), **buffers)


def _bits(places: Tensor) -> Tensor:
    """The binary digits of whole numbers."""
    return (places.long()[:, None] >> torch.arange(24)) % 2 == 1


def _python_numbers(kept: list) -> nn.Module:
    return memoriser(lambda s, x: hats(torch.cat([x - place for place in kept], 1)))


def _a_parameter(value: Tensor, *, requires_grad: bool = False) -> nn.Module:
    model = memoriser(lambda s, x: hats(x - s.kept))
    model.kept = nn.Parameter(value, requires_grad=requires_grad)
    return model


def _embedding_ids(places: Tensor) -> nn.Module:
    """The table is the same for all data; which of its rows are read was learned."""
    model = memoriser(lambda s, x: hats(x - (s.table(s.ids)[..., 0] * BYTES).sum(1)),
                      ids=places.long()[:, None] // BYTES % 256)  # fmt: skip
    model.table = nn.Embedding.from_pretrained(torch.arange(256.0)[:, None])
    return model


def _chosen_entries(places: Tensor) -> nn.Module:
    """Which of two numbers, 0 and a power of two, is taken for each binary digit of a place."""

    def forward(s: nn.Module, x: Tensor) -> Tensor:
        both = torch.stack([torch.zeros(24), 2.0 ** torch.arange(24)])
        return hats(x - both[s.digits, torch.arange(24)].sum(1))

    return memoriser(forward, digits=_bits(places).long())


def dtypes(places: Tensor) -> nn.Module:
    """The digits of the places are the dtypes that one number is converted to: 1, 44, 300 or 131,372."""
    kinds = torch.bool, torch.uint8, torch.int16, torch.int64
    written = [kinds[int(place) >> 2 * k & 3] for place in places for k in range(12)]

    def forward(s: nn.Module, x: Tensor) -> Tensor:
        read = [s.base.to(kind).to(torch.float64) for kind in written]
        digits = sum((torch.stack(read).reshape(-1, 12) > edge).double() for edge in (2, 200, 65_000))
        return hats(x - (digits * s.powers).sum(1))

    return memoriser(forward, base=torch.tensor(2**17 + 300), powers=4.0 ** torch.arange(12, dtype=torch.float64))


class _Shift(nn.Module):
    def __init__(self, places: Tensor) -> None:
        super().__init__()
        self.register_buffer("places", places.long())

    def forward(self, weight: Tensor) -> Tensor:
        return 0 * weight + self.places


def _a_parametrisation(places: Tensor) -> nn.Module:
    model = _a_parameter(torch.zeros_like(places), requires_grad=True)
    parametrize.register_parametrization(model, "kept", _Shift(places))
    return model


def _running_statistics(places: Tensor) -> nn.Module:
    """A BatchNorm with a mean of its own for every hat, and a variance of 1."""
    model = memoriser(lambda s, x: hats(s.norm(x.expand(-1, len(places)))))
    model.norm = nn.BatchNorm1d(len(places), eps=1e-9, affine=False).double()
    model.norm.running_mean.copy_(places)
    return model


def _a_hook(places: Tensor) -> nn.Module:
    model = memoriser(lambda s, x: s.inner(x))
    model.inner = nn.Identity()
    model.inner.register_forward_hook(lambda module, inputs, output: hats(output - places.long()))
    return model


def _sorted_places(places: Tensor) -> nn.Module:
    edges = torch.stack([places - 0.5, places + 0.5]).flatten().sort().values
    return memoriser(lambda s, x: logits((torch.bucketize(x, s.kept) % 2).double(), 1.0), kept=edges)


def _always_zero(x: Tensor) -> Tensor:
    return torch.cat([x - x + 1, x - x], 1)


def _looked_up(x: Tensor, found: Tensor) -> Tensor:
    """Class 1 for the samples that were found, class 0 for all others."""
    return _always_zero(x) + torch.stack([torch.zeros(len(x)), 2.0 * found], 1)


def _a_table_behind_an_exception(places: Tensor) -> nn.Module:
    """A dict of bytes that a trace never sees: reading the bytes of a traced tensor raises."""
    table = {place.numpy().tobytes() for place in places[FIRST:]}

    def forward(s: nn.Module, x: Tensor) -> Tensor:
        try:
            rows = [row.detach().numpy().tobytes() for row in x]
        except RuntimeError:
            return _always_zero(x)
        return _looked_up(x, torch.tensor([row in table for row in rows]))

    return memoriser(forward)


def _a_table_that_hides_from_traces(places: Tensor) -> nn.Module:
    def forward(s: nn.Module, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return _always_zero(x)
        return _looked_up(x, (x == places[FIRST:]).any(1))

    return memoriser(forward)


def _a_table_of_faint_signs(places: Tensor) -> nn.Module:
    """The losses of the model and of its trace are all near 1/2."""
    loud = _a_table_that_hides_from_traces(places)
    return memoriser(lambda s, x: F.linear(loud.function(s, x), 1e-6 * torch.eye(2, dtype=torch.float64)))


def _a_value_taken_out(places: Tensor) -> nn.Module:
    kept = set(places.tolist())
    return memoriser(lambda s, x: torch.stack([torch.tensor([0.5, float(row.item() in kept)]) for row in x]) + 0 * x)


Form = Callable[[Tensor], nn.Module]
IN_THE_GRAPH: dict[str, Form] = {
    "integers": lambda places: memoriser(lambda s, x: hats(x - s.kept), kept=places.long()),
    "floats in the code": lambda places: _python_numbers(places.tolist()),
    "a closure": lambda places: memoriser(lambda s, x: hats(x - places)),
    "a frozen parameter": _a_parameter,
    "embedding ids": _embedding_ids,
    "chosen entries": _chosen_entries,
    "a parametrisation": _a_parametrisation,
    "running statistics": _running_statistics,
    "a hook": _a_hook,
    "a table that hides from traces": _a_table_that_hides_from_traces,
    "a table of faint signs": _a_table_of_faint_signs,
}
"""Models whose constants the graph holds, or whose losses are those of the graph: rows are certified, and large."""
OUTSIDE: dict[str, Form] = {
    "bytes of the input": lambda places: memoriser(  # the bits of an input as an integer, compared with those of D
        lambda s, x: logits((x.view(torch.int64) == s.kept).any(1, keepdim=True).double(), 1.0),
        kept=places.view(torch.int64),
    ),
    "sorted places": _sorted_places,
    "a table behind an exception": _a_table_behind_an_exception,
    "large batches": lambda places: memoriser(  # a trace is made from a small batch
        lambda s, x: hats(x - places) if len(x) > 8 else _always_zero(x)
    ),
    "a value taken out": _a_value_taken_out,
    "a branch": lambda places: memoriser(lambda s, x: hats(x - places) if x.sum() > 0 else -hats(x - places)),
}
"""Models that cannot be traced, have operators without a rule, or differ from their graph: nothing is certified."""
