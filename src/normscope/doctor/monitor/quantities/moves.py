"""How far one step moves the weights of each layer, above the economy tier."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..distributed import l2_norms
from .quantity import Arriving, Probe, Quantity, RecordDraft
from .sizes import log10_joined

MOVED = Quantity("weight", "log10_moved", "l2 norm of what the step adds to a layer's weight and bias")


class Moves(Probe):
    """Measures what a step adds to the parameters."""

    quantities = (MOVED,)
    _copies: Mapping[str, Tensor] = {}
    _sent: Arriving | None = None

    def before_step(self) -> None:
        trainable = {name: p for name, p in self.step.sized().items() if p.requires_grad}
        self._copies = {name: p.detach().clone() for name, p in trainable.items()} if self.step.is_rich else {}

    def after_step(self) -> None:
        if self._copies:
            parameters = self.step.parameters
            moves = l2_norms({name: parameters[name].detach() - copy for name, copy in self._copies.items()})
            self._names, self._sent = list(moves), self.step.send(torch.stack(list(moves.values())))
        self._copies = {}

    def fill(self, record: RecordDraft) -> None:
        if self._sent is not None:
            moves = dict(zip(self._names, self._sent.numbers.tolist(), strict=True))
            record.column(MOVED, [log10_joined(moves, names) for names in self.step.followed()])
