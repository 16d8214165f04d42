"""Rules on trial: every example of a rule is captured, bounded by every method, and attacked from below."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.budget import Budget
from ..core.errors import NormscopeError, SoundnessError
from .bounds_by_method import upper_sides
from .graph.ir import Unit
from .lower import lower_bound
from .operators.effects import Unbounded
from .operators.registry import FAILED, Example
from .traced_network import TracedNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial saw: the operators met, every method's upper side and the best attack (log10), why `inf`."""

    operators: tuple[Any, ...]
    log10_uppers: dict[str, float]
    log10_lower: float
    reason: str | None


class _Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the function."""
        return self.function(*inputs)


def try_example(example: Example, *, seed: int = 0, steps: int = 200) -> Trial:
    """Put a rule's example on trial: bound it by every method and attack it.

    Parameters and running statistics are drawn at random, so that no rule passes because of a default of 1 or 0.

    Args:
        example: `(function or module, *input_shapes)`, as given to `@normscope.rule`.
        seed: of the parameters, the inputs and the attack.
        steps: of the attack: gradients, and pairs in float64.

    Raises:
        SoundnessError: the attack got above an upper side: the rule is wrong.
        NormscopeError: the rule itself raised.
    """
    function, *shapes = example
    generator = torch.Generator().manual_seed(seed)
    model = shaken(function, generator) if isinstance(function, nn.Module) else _Function(function)
    inputs = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    captured = TracedNetwork.of(model, inputs)
    for node in captured.double:
        effect = captured.segments.effects[node.name]
        if isinstance(effect, Unbounded) and effect.reason.startswith(FAILED):
            raise NormscopeError(effect.reason)
    if captured.unrolled.failures:
        raise NormscopeError(captured.unrolled.failures[0])
    rungs = upper_sides(captured)
    uppers = {name: b.log10_upper for name, b in rungs.items() if b.holds}
    lower = lower_bound(captured.graph, captured.double, budget=Budget(steps), seed=seed).log10
    for name, value in uppers.items():
        if not lower <= value:  # nor may it be NaN
            raise SoundnessError(f"{name}: upper side 10^{value} below the attack's 10^{lower} (seed {seed})")
    operators = tuple(node.op.name if isinstance(node.op, Unit) else node.op for node in captured.graph)
    return Trial(operators=operators, log10_uppers=uppers, log10_lower=lower, reason=rungs["best"].reason)


def shaken(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy of a model with random parameters and plausible random running statistics."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in model.parameters():
            scale = 1.0 / math.sqrt(max(tensor[0].numel(), 1)) if tensor.ndim > 1 else 1.0
            tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(10.0 ** (2 * torch.rand(buffer.shape, generator=generator) - 1))
            elif name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return model
