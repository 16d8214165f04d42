"""What the tests see for themselves, without Normscope's bounds: the model as found, its values and its gains."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .families import Batch, as_call


def call(model: nn.Module, batch: Batch, output: str | None) -> Tensor:
    """Call the model as its user would and pick the output."""
    args, kwargs = as_call(batch)
    result = model(*args, **kwargs)
    return result if output is None else getattr(result, output)


@contextmanager
def embeddings(model: nn.Module, path: str, value: Tensor):
    """Make the token embedding at `path` return `value`, whatever the tokens.

    Some models (Gemma) scale the embedding inside that module; a measurement starts before the scaling.
    """
    module = model.get_submodule(path)
    replacement = value * getattr(module, "embed_scale", 1.0)
    handle = module.register_forward_hook(lambda *_: replacement)
    try:
        yield
    finally:
        handle.remove()


def value_at(model: nn.Module, batch: Batch, output: str | None, graph: Any, point: Tensor) -> Tensor:
    """The real model's output where its float input (pixels, or token embeddings) is `point`."""
    samples = point.shape[0]
    if isinstance(batch, Tensor):
        return call(model, point, output)
    batch = {key: value[:samples] for key, value in batch.items()}
    floats = [key for key, value in batch.items() if value.is_floating_point()]
    if floats:
        return call(model, batch | {floats[0]: point}, output)
    with embeddings(model, graph.inputs[0].path, point):
        return call(model, batch, output)


def gain_at(
    function: Callable[[Tensor], Tensor], point: Tensor, *, steps: int, seed: int = 0, h: float = 1e-5
) -> float:
    """The largest secant gain found near `point`: a true lower bound of any Lipschitz constant there.

    Power iteration: `J^T u` by one backward pass, `J v` by a central difference.  Float64 in, float64 throughout.
    """
    point = point.detach().double()
    with torch.enable_grad():
        x = point.clone().requires_grad_()
        y = function(x)
    u = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    h *= max(float(point.norm()) / point.numel() ** 0.5, 1e-3)
    best = 0.0
    for _ in range(steps):
        (v,) = torch.autograd.grad(y, x, u, retain_graph=True)
        if float(v.norm()) == 0.0:
            return best
        v = v / v.norm()
        with torch.no_grad():
            u = (function(point + h * v) - function(point - h * v)) / (2 * h)
        best = max(best, float(u.norm()))
        u = u / u.norm()
    return best


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything of a model, and of the process, that a public call must leave as it was."""
    modules = dict(model.named_modules())
    tensors = {f"parameter {k}": v for k, v in model.named_parameters(remove_duplicate=False)}
    tensors |= {f"buffer {k}": v for k, v in model.named_buffers(remove_duplicate=False)}
    tensors |= {f"state {k}": v for k, v in model.state_dict().items()}
    return {
        "tensors": {k: v.detach().clone() for k, v in tensors.items()},
        "addresses": {k: v.data_ptr() for k, v in tensors.items()},
        "versions": {k: v._version for k, v in tensors.items() if k.startswith("parameter")},
        "dtypes": {k: (v.dtype, v.device, v.requires_grad) for k, v in tensors.items()},
        "grad objects": {k: id(p.grad) for k, p in model.named_parameters()},
        "grads": {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None},
        "training": {k: m.training for k, m in modules.items()},
        "classes": {k: type(m) for k, m in modules.items()},
        "forwards": {k: m.__dict__.get("forward") for k, m in modules.items()},
        "attributes": {k: sorted(m.__dict__) for k, m in modules.items()},
        "hooks": {
            (k, name): list(value.items())
            for k, m in modules.items()
            for name, value in m.__dict__.items()
            if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and hasattr(value, "items")
        },
        "config": dict(model.config.to_dict()) if hasattr(model, "config") else None,
        "torch rng": torch.get_rng_state(),
        "numpy rng": np.random.get_state()[1].copy(),
        "python rng": random.getstate(),
        "process": (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
        ),
    }


def assert_same(before: Any, after: Any, where: str = "") -> None:
    """Compare two snapshots entry by entry and name the first that differs."""
    if isinstance(before, dict):
        assert list(before) == list(after), f"{where}: keys changed"
        for key in before:
            assert_same(before[key], after[key], f"{where} {key}".strip())
    elif isinstance(before, Tensor):
        assert torch.equal(before, after), f"{where} changed"
    elif isinstance(before, np.ndarray):
        assert (before == after).all(), f"{where} changed"
    else:
        assert before == after, f"{where} changed"


def used(model: nn.Module) -> None:
    """Bring a model into the state of one in use: grads, hooks, a frozen weight, mixed training flags."""
    parameters = list(model.parameters())
    for index, parameter in enumerate(parameters):
        if index % 3 == 0:
            parameter.grad = torch.full_like(parameter, 0.5)
    parameters[-1].requires_grad_(False)
    leaves = [module for module in model.modules() if not list(module.children())]
    leaves[0].register_forward_hook(lambda module, args, output: None)
    leaves[-1].register_forward_pre_hook(lambda module, args: None)
    leaves[-1].register_full_backward_hook(lambda module, grad_input, grad_output: None)
