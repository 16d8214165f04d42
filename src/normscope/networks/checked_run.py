"""Run a twin: to see the shapes at its normalizers, to set the statistics of new BatchNorms, and to check it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..core.errors import InputError, describe_error
from ..core.untouched import untouched
from ..graph.call import Call
from ..listening.calls import NORMALIZERS


def module_shapes(
    model: nn.Module, call: Call, modules: Sequence[nn.Module], *, outputs: bool = False
) -> tuple[dict[int, tuple[int, ...]], tuple[str, ...]]:
    """Run a model once; return the shape of each module's input, and the normalizing functions that are called."""
    shapes: dict[int, tuple[int, ...]] = {}
    functions = _NormalizingCalls()

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        functions.depth += 1
        values = [*args, *kwargs.values()]
        if not outputs and values and isinstance(values[0], Tensor):
            shapes[id(module)] = tuple(values[0].shape)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        functions.depth -= 1
        if outputs and isinstance(output, Tensor):
            shapes[id(module)] = tuple(output.shape)

    hooks: list[Any] = []
    try:
        with untouched(model), torch.no_grad(), functions:
            hooks += [module.register_forward_pre_hook(before, with_kwargs=True) for module in dict.fromkeys(modules)]
            hooks += [module.register_forward_hook(after) for module in dict.fromkeys(modules)]
            run(model, call)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes, tuple(sorted(functions.called))


class _NormalizingCalls(TorchFunctionMode):
    """Notes which normalizing functions are called outside of some modules; `depth` counts the modules that run."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.called: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in NORMALIZERS and not self.depth:
            self.called.add(name)
        return func(*args, **(kwargs or {}))


def calibrate_batch_norms(model: nn.Module, call: Call, norms: Sequence[_BatchNorm]) -> list[str]:
    """Set the running statistics of new BatchNorms to those of the batch; return notes for the reader."""
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms:
        return []
    momenta = [(norm, norm.momentum) for norm in norms]
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
        for norm, momentum in momenta:
            norm.momentum = momentum
    with torch.no_grad():
        for buffer, value in statistics:
            buffer.copy_(value)
    return [f"the running statistics of {len(norms)} new BatchNorms are those of the batch: pass one that is large"]


def check_run(model: nn.Module, call: Call, used: Iterable[nn.Module]) -> list[str]:
    """Run a twin in eval mode without gradients, as users do; return notes for the reader."""
    not_run = {id(module) for module in used if not isinstance(module, nn.Identity)}
    # A global hook: a hook on a module would keep torch from its fused kernels.
    hook = register_module_forward_hook(lambda module, args, output: not_run.discard(id(module)))
    try:
        with untouched(model, "eval"), torch.no_grad():
            outputs = run(model, call)
    finally:
        hook.remove()
    if not_run:
        raise InputError(f"{len(not_run)} of the new normalizers never run: the model passes its modules by")
    finite = bool(torch.isfinite(outputs).all())
    return [] if finite else ["the twin gives infinite values or NaN on the batch in eval mode"]


def run(model: nn.Module, call: Call) -> Tensor:
    """Run a model on copies of its inputs; return all floats of its outputs in one row."""
    args, kwargs = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, (call.args, call.kwargs))
    try:
        outputs = tree_leaves(model(*args, **kwargs))
    except Exception as error:
        raise InputError(f"it raises {describe_error(error)} on the batch") from error
    floats = [leaf.reshape(-1) for leaf in outputs if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([leaf.to(floats[0].dtype) for leaf in floats]) if floats else torch.zeros(0)
