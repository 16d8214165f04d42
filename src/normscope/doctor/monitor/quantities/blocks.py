"""Blocks: the parts that a network is made of, and what each does to the sizes of values and of gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ....core.whole_weights import gather_whole
from ....listening.calls import tensors_in
from ..distributed import sum_over
from ..transfer import Arriving
from .quantity import Probe, Quantity, RecordDraft, log10_of, read_number

ACTIVATION = Quantity("block", "log10_activation", "the root mean square of a block's output over that of its input")
BACKWARD = Quantity("block", "log10_backward", "that of the gradient of its input over that of its output")


class Blocks(Probe):
    """Sends the gains of all blocks, above the economy tier."""

    quantities = (ACTIVATION, BACKWARD)
    _activations: Mapping[str, Arriving] = {}
    _backwards: Mapping[str, Arriving] = {}

    def finish(self) -> None:
        forward, send = self.step.forward, self.step.send
        if forward is not None and self.step.is_rich:
            self._activations = {path: send(gain) for path, gain in forward.activations.items()}
            sizes = ((path, out, inner) for path, (out, inner) in forward.gradients.items())
            self._backwards = {p: send(inner / out) for p, out, inner in sizes if out is not None and inner is not None}

    def fill(self, record: RecordDraft) -> None:
        for quantity, sent in ((ACTIVATION, self._activations), (BACKWARD, self._backwards)):
            paths = self.step.subject.places["block"]
            record.column(quantity, [log10_of(read_number(sent.get(path))) for path in paths])


class BlockGains:
    """Measures how blocks change the sizes of values in one forward, and those of gradients as they come back.

    Args:
        blocks: paths of the modules that are measured.
        activations: to which the gain of every block is added.
        gradients: to which the sizes of the gradients of its output and input are added as they come.
        cut_over: says over which groups of processes the values that run now may be cut.
    """

    def __init__(
        self,
        blocks: Collection[str],
        activations: dict[str, Tensor],
        gradients: dict[str, list[Tensor | None]],
        cut_over: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._blocks, self._activations, self._gradients = blocks, activations, gradients
        self._cut_over = cut_over
        self._sizes: list[Tensor | None] = []  # of the inputs of all modules that run now; None for what is no block

    def entered(self, path: str | None, args: Any) -> None:
        """Measure the input of a block."""
        self._sizes.append(None)
        if path is not None and path in self._blocks:
            with contextlib.suppress(Exception):  # sparse, nested, ...: not every tensor has a size
                entering = _first_float(args)
                if entering is not None:
                    self._sizes[-1] = _rms(entering, self._cut_over())
                    self._listen_back(path, 1, entering)

    def left(self, path: str, made: Any) -> None:
        """Measure the output of a block."""
        size = self._sizes.pop() if self._sizes else None
        if size is not None:
            with contextlib.suppress(Exception):
                output = _first_float(made)
                if output is not None:
                    self._activations[path] = _rms(output, self._cut_over()) / size
                    self._listen_back(path, 0, output)

    def _listen_back(self, path: str, place: int, tensor: Tensor) -> None:
        """Keep the size of a gradient when it comes: of a block's output (0) or input (1)."""
        if not tensor.requires_grad or tensor.is_leaf:  # hooks on leaves would stay
            return
        sizes, groups = self._gradients.setdefault(path, [None, None]), self._cut_over()

        def keep(grad: Tensor) -> None:
            sizes[place] = _rms(grad, groups)

        tensor.register_hook(keep)


def _rms(tensor: Tensor, groups: Sequence[Any]) -> Tensor:
    """Return the root mean square, of the parts on all processes."""
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    norm = gather_whole(torch.linalg.vector_norm(tensor.detach(), dtype=wide)).float()
    if not groups or hasattr(tensor, "full_tensor"):
        return norm / max(tensor.numel(), 1) ** 0.5
    squares, entries = sum_over(groups, torch.stack([norm.square(), torch.full_like(norm, tensor.numel())]))
    return (squares / entries.clamp(min=1)).sqrt()


def _first_float(value: Any) -> Tensor | None:
    """Return the first float tensor that a module was given or returned."""
    tensor = next((tensor for tensor in tensors_in(value) if tensor.is_floating_point()), None)
    return None if tensor is None or is_functorch_wrapped_tensor(tensor) else tensor
