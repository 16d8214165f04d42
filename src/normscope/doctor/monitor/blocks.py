"""Blocks: the parts that a network is made of."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy


def find_blocks(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of the parts a network is made of: entries of its containers, or else its children.

    Example:
        >>> find_blocks(nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 4)))
        ('0', '1')
    """
    paths: list[str] = []
    half = parameter_count(model) / 2

    def walk(module: nn.Module, path: str) -> None:
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            row = isinstance(child, nn.Sequential) and not isinstance(module, nn.Sequential)
            most = parameter_count(child) > half and any(True for _ in child.children())
            if row or most or isinstance(child, nn.ModuleList):
                walk(child, inner)
            elif parameter_count(child):
                paths.append(inner)

    walk(model, "")
    return tuple(paths)


def parameter_count(module: nn.Module) -> int:
    """Return how many parameters a module has; those without a size yet count as none."""
    return sum(0 if is_lazy(parameter) else parameter.numel() for parameter in module.parameters())
