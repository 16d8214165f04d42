"""Runs of a twin: what its normalizers are given, the statistics of new BatchNorms, and whether it works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..core.errors import InputError, said
from ..core.untouched import untouched
from ..graph.call import Call

FUNCTIONS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")


def seen_shapes(
    model: nn.Module, call: Call, modules: Sequence[nn.Module], *, outputs: bool = False
) -> tuple[dict[int, tuple[int, ...]], tuple[str, ...]]:
    """Run a model once; return the shape of what each module is given, by its id, and the normalizers that it calls.

    Args:
        model: left as found.
        call: its arguments.
        modules: whose inputs (or outputs) are looked at.
        outputs: look at what they return.

    Returns:
        The shapes, and the names of normalizing functions that are called outside of the modules.

    Raises:
        InputError: the model does not accept the batch.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    watcher = _Functions()

    def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
        watcher.depth += 1
        values = [*args, *kwargs.values()]
        if not outputs and values and isinstance(values[0], Tensor):
            shapes[id(module)] = tuple(values[0].shape)

    def left(module: nn.Module, args: Any, made: Any) -> None:
        watcher.depth -= 1
        if outputs and isinstance(made, Tensor):
            shapes[id(module)] = tuple(made.shape)

    hooks: list[Any] = []
    try:
        with untouched(model), torch.no_grad(), watcher:
            hooks += [module.register_forward_pre_hook(entered, with_kwargs=True) for module in dict.fromkeys(modules)]
            hooks += [module.register_forward_hook(left) for module in dict.fromkeys(modules)]
            run(model, call)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes, tuple(sorted(watcher.called))


class _Functions(TorchFunctionMode):
    """Notes which normalizing functions are called outside of the modules that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.called: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in FUNCTIONS and not self.depth:
            self.called.add(name)
        return func(*args, **(kwargs or {}))


def calibrated(model: nn.Module, call: Call, norms: Sequence[_BatchNorm]) -> list[str]:
    """Set the running statistics of new BatchNorms to those of the batch; return what the reader must know."""
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms:
        return []
    held = [(norm, norm.momentum) for norm in norms]
    statistics: list[tuple[Tensor, Tensor]] = []
    try:
        with untouched(model, "eval"), torch.no_grad():
            for norm in norms:
                norm.training, norm.momentum = True, None
                norm.reset_running_stats()
            run(model, call)
            statistics = [(b, b.clone()) for norm in norms for b in norm.buffers()]
    except InputError as error:
        return [f"the new BatchNorms could not take their running statistics from the batch: {error}"]
    finally:
        for norm, momentum in held:
            norm.momentum = momentum
    with torch.no_grad():
        for buffer, value in statistics:
            buffer.copy_(value)
    return [f"the running statistics of {len(norms)} new BatchNorms are those of the batch: pass one that is large"]


def check_run(model: nn.Module, call: Call, used: Iterable[nn.Module]) -> list[str]:
    """Run a twin in eval mode without gradients, as users do; return what the reader must know.

    Raises:
        InputError: it raises, or a new normalizer never runs: a fused kernel, or code that reads the weights of a
            module without running it, passes it by.
    """
    new = {id(module) for module in used if not isinstance(module, nn.Identity)}
    hook = register_module_forward_hook(lambda module, args, made: new.discard(id(module)))  # one that kernels ignore
    try:
        with untouched(model, "eval"), torch.no_grad():
            made = run(model, call)
    finally:
        hook.remove()
    if new:
        raise InputError(f"{len(new)} of the new normalizers never run: the model passes its modules by")
    finite = bool(torch.isfinite(made).all())
    return [] if finite else ["the twin gives infinite values or NaN on the batch in eval mode"]


def run(model: nn.Module, call: Call) -> Tensor:
    """Return every float that a model gives on copies of its inputs, in one row.

    Raises:
        InputError: the model raises.
    """
    args, kwargs = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, (call.args, call.kwargs))
    try:
        made = tree_leaves(model(*args, **kwargs))
    except Exception as error:
        raise InputError(f"it raises {said(error)} on the batch") from error
    floats = [leaf.reshape(-1) for leaf in made if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([leaf.to(floats[0].dtype) for leaf in floats]) if floats else torch.zeros(0)
