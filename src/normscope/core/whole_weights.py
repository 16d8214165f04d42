"""Models whose weights lie on several processes in parts, run as if every process had them whole.

FSDP2 and tensor parallelism keep weights as DTensors, and hooks of modules gather these, or cut what goes in and out.
Here the hooks rest, and a function that takes a weight gets all of it: so layers and values are those of the model that
nobody cut. Every process has to run the same functions on the same batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_ABOUT = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "untyped_storage", "data_ptr",
    "element_size", "get_device", "is_contiguous", "is_floating_point", "is_complex", "register_hook", "retain_grad",
    "backward", "__len__", "__hash__", "__repr__", "__format__", "__get__", "__set__", "__delete__",
}  # fmt: skip
"""Functions of a tensor that ask for none of its values, or are of the very tensor."""


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether some tensors lie on several processes in parts (FSDP2, tensor parallelism)."""
    parallel = dist.is_available() and dist.is_initialized()
    return parallel and any(hasattr(tensor, "full_tensor") for tensor in tensors)


def gather_whole(tensor: Tensor) -> Tensor:
    """Return a tensor as it would lie on one process; every process has to call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Run a block in which a model whose weights lie in parts computes as if they were whole; others are as always.

    Weights are gathered where a function takes them, and once more where a backward does, so that no process holds
    all of them at a time.
    """
    if not is_sharded((*model.parameters(), *model.buffers())):
        yield
        return
    gathered = _GatheredWeights()
    with _hooks_resting(model), gathered, gathered.saved():
        yield


class _GatheredWeights(TorchFunctionMode):
    """Hands a function whole tensors where it is given DTensors."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = WeakValueDictionary[int, Tensor]()
        self._parts = dict[int, Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; what it asks about a tensor itself goes to that tensor."""
        name = getattr(func, "__name__", "")
        writes = name.endswith("_") and not name.endswith("__")
        if writes or name in _ABOUT or _is_of_autograd(func):
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(Tensor, self._gather, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _gather(self, tensor: Tensor) -> Tensor:
        if not hasattr(tensor, "full_tensor"):
            return tensor
        whole = tensor.full_tensor()
        address = whole.untyped_storage().data_ptr()
        self._whole[address], self._parts[address] = whole, tensor.detach()
        return whole

    def saved(self) -> Any:
        """Keep what autograd saves of a gathered tensor as the parts of this process."""
        return torch.autograd.graph.saved_tensors_hooks(self._put_away, self._take_out)

    def _put_away(self, tensor: Tensor) -> Any:
        address = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
        if address not in self._whole:
            return tensor
        return self._parts[address], tensor.size(), tensor.stride(), tensor.storage_offset()

    @staticmethod
    def _take_out(held: Any) -> Tensor:
        if isinstance(held, Tensor):
            return held
        parts, *form = held
        return gather_whole(parts).as_strided(*form)


def _is_of_autograd(func: Any) -> bool:
    return (getattr(func, "__module__", None) or "").startswith("torch.autograd")


@contextmanager
def _hooks_resting(model: nn.Module) -> Iterator[None]:
    """Take the hooks of torch.distributed off, and the classes that FSDP2 gives to modules."""
    from torch.distributed.fsdp import FSDPModule  # takes a while to load

    taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
    classes = [(module, type(module)) for module in model.modules()]
    try:
        for module, kind in classes:
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                taken.append((hooks, dict(hooks)))
                for key in [key for key, hook in hooks.items() if _is_distributed(hook)]:
                    del hooks[key]
            if issubclass(kind, FSDPModule):
                module.__class__ = kind.__mro__[2]  # the first is made for this one, the second holds FSDP2's methods
        yield
    finally:
        for hooks, before in taken:
            hooks.clear()
            hooks.update(before)
        for module, kind in classes:
            module.__class__ = kind


def _is_distributed(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith("torch.distributed.")
