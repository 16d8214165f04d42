"""What is known of the parameters without measuring them: who gets a gradient, who is trained, who clears gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer


class Since:
    """How long something has been so: since which step, in how many measured steps.

    Args:
        step: the first.
        version: the version of the parameter then.
    """

    __slots__ = ("records", "step", "version")

    def __init__(self, step: int, version: int = 0) -> None:
        self.step, self.version, self.records = step, version, 0


class ParameterFollower:
    """Follows the parameters of a model from step to step; nothing of it lies on a device.

    Attributes:
        ungraded: parameters that the optimizer has and that got no gradient.
        unmoved: parameters that get gradients, that the optimizer does not have, and that nobody changes.
    """

    def __init__(self) -> None:
        self.ungraded: dict[str, Since] = {}
        self.unmoved: dict[str, Since] = {}
        self._waiting: dict[str, nn.Parameter] = {}
        self._least: nn.Parameter | None = None

    def look(self, parameters: Mapping[str, nn.Parameter], optimizer: Optimizer, step: int) -> None:
        """Look at all parameters, in front of a measured step."""
        held = {name: p for name, p in parameters.items() if p.requires_grad and not is_lazy(p)}
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        trained = {name: p for name, p in held.items() if id(p) in ids}
        self._look_for_ungraded(trained, step)
        self._look_for_unmoved({name: p for name, p in held.items() if name not in trained}, step)
        for since in (*self.ungraded.values(), *self.unmoved.values()):
            since.records += 1
        graded = [p for p in trained.values() if p.grad is not None and not p.grad.is_sparse]
        self._least = min(graded, key=lambda p: p.numel(), default=None)

    def _look_for_ungraded(self, trained: Mapping[str, nn.Parameter], step: int) -> None:
        """Look at the parameters that the optimizer has."""
        self._waiting = {name: p for name, p in trained.items() if p.grad is None}
        self.ungraded = {name: self.ungraded.get(name) or Since(step) for name in self._waiting}

    def _look_for_unmoved(self, others: Mapping[str, nn.Parameter], step: int) -> None:
        """Look at the parameters that the optimizer does not have."""
        known = self.unmoved
        self.unmoved = {name: Since(step, p._version) for name, p in others.items() if p.grad is not None}
        for name, since in self.unmoved.items():
            if name in known and known[name].version == since.version:
                self.unmoved[name] = known[name]

    def pass_by(self) -> None:
        """Look at those without a gradient alone, in front of any other step: a branch may be taken now and then."""
        for name, parameter in list(self._waiting.items()):
            if parameter.grad is not None:
                del self.ungraded[name], self._waiting[name]

    def let_go(self) -> None:
        """Keep no parameter alive any longer."""
        self._least, self._waiting = None, {}

    def clearing(self) -> Clearing | None:
        """Listen whether gradients are cleared before those of the next backward are added; None before the first."""
        return None if self._least is None else Clearing(self._least)


class Clearing:
    """Says how much of a gradient was left from the step before when that of the present one was added to it.

    Args:
        parameter: whose gradient is looked at.

    Attributes:
        left: the largest entry, the least of all times it was added to; None where no backward was seen.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.left: Tensor | None = None
        self._parameter = parameter
        self._hook: Any = parameter.register_hook(self._added)

    def _added(self, grad: Tensor) -> None:
        with torch.no_grad():
            held = self._parameter.grad
            found = grad.new_zeros(()) if held is None else held.detach().abs().amax()
            self.left = found if self.left is None else torch.minimum(self.left, found.to(self.left))

    def close(self) -> Tensor | None:
        """Stop listening, and return what was left."""
        self._hook.remove()
        return self.left
