"""Models whose weights lie on several processes in parts, run as if every process had them whole.

FSDP2 and tensor parallelism keep weights as DTensors. Hooks of their modules gather the weights, or split inputs and
outputs over the processes. `whole_weights` takes these hooks off and hands each function the whole of a weight, so that
layers and values are those of the model before it was split. Every process has to run the same functions on the same
batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from .errors import InputError

_PASSED_ON = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "untyped_storage", "data_ptr",
    "element_size", "get_device", "is_contiguous", "is_floating_point", "is_complex", "register_hook", "retain_grad",
    "backward", "__len__", "__hash__", "__repr__", "__format__", "__get__", "__set__", "__delete__",
}  # fmt: skip
"""Functions that get a DTensor as it is: they read none of its values, or concern the tensor object itself."""
_is_gathering: ContextVar[bool] = ContextVar("normscope_is_gathering", default=False)
"""Whether functions are handed whole weights in the place of their parts."""


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
    """Run a block in which a model whose weights lie in parts computes as if they were whole; other models as always.

    A weight is gathered when a function takes it, and again when the backward does, so that no process holds all
    weights at the same time.
    """
    if not is_sharded(itertools.chain(model.parameters(), model.buffers())):
        yield
        return
    gathered = _GatheredWeights()
    with _without_parallel_hooks(model), gathered, gathered.saving_parts(), _gathering(True):
        yield


def without_gathering() -> AbstractContextManager[None]:
    """Run a block inside of `whole_weights` in which functions get the parts: an optimizer makes its step on them."""
    return _gathering(False)


@contextmanager
def _gathering(on: bool) -> Iterator[None]:
    """Run a block in which functions are handed whole weights, or parts."""
    token = _is_gathering.set(on)
    try:
        yield
    finally:
        _is_gathering.reset(token)


def refuse_sharded_weights(model: nn.Module) -> None:
    """Refuse a model whose weights lie in parts, where nothing gathers them.

    Raises:
        InputError: a parameter or a buffer is a DTensor.
    """
    if _is_gathering.get():
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if hasattr(tensor, "full_tensor"):
            raise InputError(
                f"the weight `{name}` lies on several processes in parts (a DTensor, as FSDP2 and tensor parallelism "
                "make them), and this needs it whole. Measure a plain copy of the model that has loaded the whole "
                "weights: torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
                "options=StateDictOptions(full_state_dict=True)). normscope.check and normscope.watch gather weights "
                "by themselves"
            )


class _GatheredWeights(TorchFunctionMode):
    """Hands a function whole tensors where it is given DTensors."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = WeakValueDictionary[int, Tensor]()  # by the address of its memory
        self._parts = dict[int, Tensor]()  # the DTensor that was last gathered to that address

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function on whole tensors, unless it writes to its tensor or is of `_PASSED_ON`."""
        name = getattr(func, "__name__", "")
        writes = name.endswith("_") and not name.endswith("__")
        if not _is_gathering.get() or writes or name in _PASSED_ON or _is_of_autograd(func):
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

    def saving_parts(self) -> Any:
        """Let autograd save the part of this process in place of a gathered tensor."""
        return torch.autograd.graph.saved_tensors_hooks(self._save_part, self._gather_saved)

    def _save_part(self, tensor: Tensor) -> Any:
        address = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
        if address not in self._whole:
            return tensor
        return self._parts[address], tensor.size(), tensor.stride(), tensor.storage_offset()

    @staticmethod
    def _gather_saved(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        parts, *form = saved
        return gather_whole(parts).as_strided(*form)


def _is_of_autograd(func: Any) -> bool:
    return (getattr(func, "__module__", None) or "").startswith("torch.autograd")


@contextmanager
def _without_parallel_hooks(model: nn.Module) -> Iterator[None]:
    """Take off the hooks of torch.distributed, and give modules back the classes that FSDP2 replaced."""
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
