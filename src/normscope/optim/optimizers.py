"""`SphereSGD` and `SphereAdam`: optimisers that keep scale-invariant weights on spheres (Cho and Lee 2017)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ..core.errors import InputError
from .sphere import adaptive_step, as_rows, make_tangent, momentum_step

DECAY = (
    "weight decay on a sphere does nothing but fight the constraint: the length of a scale-invariant weight has no "
    "effect, and it stays as it is. Set weight_decay=0 for groups with units, and give it to the plain groups"
)


class _SphereOptimizer(Optimizer):
    """What both optimisers share: groups of parameters on spheres, beside plain groups.

    A group has `units`: None (plain), `"channel"` (one sphere per index of `axis`), or the number of equal blocks along
    `axis`, one sphere each (1: the whole tensor). `normscope.symmetries(model, batch).param_groups()` makes such
    groups.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see the class for what `units` and `axis` mean.

        Raises:
            InputError: the units do not divide the axis, or the group has spheres and weight decay.
        """
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except InputError:
            self.param_groups.pop()
            raise

    def _check(self, group: dict[str, Any]) -> None:
        """Refuse a group whose spheres do not fit its parameters."""
        units, axis = group["units"], group["axis"]
        if units is None:
            return
        if units != "channel" and not (isinstance(units, int) and not isinstance(units, bool) and units > 0):
            raise InputError(f'units is None, "channel" or a number of spheres a tensor, not {units!r}')
        if group["weight_decay"]:
            raise InputError(DECAY)
        for parameter in group["params"]:
            if not isinstance(axis, int) or not 0 <= axis < parameter.ndim:
                raise InputError(f"axis is {axis!r}, and a tensor of shape {tuple(parameter.shape)} has none such")
            if parameter.is_complex() or not parameter.is_floating_point():
                raise InputError(f"a sphere is one of real numbers, not of {parameter.dtype}: make the group plain")
            if units != "channel" and parameter.shape[axis] % units:
                raise InputError(
                    f"{units} spheres do not divide axis {axis} of a tensor of shape {tuple(parameter.shape)}"
                )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a stored state; keys that older states lack get their default."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("units", None)
            group.setdefault("axis", 0)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: evaluates the model again and returns the loss.

        Raises:
            InputError: a group of spheres has weight decay, or a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            with_gradient = [parameter for parameter in group["params"] if parameter.grad is not None]
            if any(parameter.grad.is_sparse for parameter in with_gradient):
                raise InputError("sparse gradients are not supported: use torch.optim.SparseAdam for them")
            if group["units"] is None:
                self._plain_step(group, with_gradient)
                continue
            if group["weight_decay"]:
                raise InputError(DECAY)
            alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for parameter in (parameter for parameter in with_gradient if parameter.numel()):
                alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
            for params in alike.values():
                self._sphere_step(group, params)
        return loss

    @abstractmethod
    def _plain_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Take the usual step with parameters that are on no sphere."""

    @abstractmethod
    def _sphere_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Take a step with parameters whose blocks are on spheres, all on one device and of one dtype."""

    def _units(self, group: dict[str, Any], params: list[Tensor]) -> list[int]:
        """Return how many spheres each parameter has."""
        return [p.shape[group["axis"]] if group["units"] == "channel" else group["units"] for p in params]


class SphereSGD(_SphereOptimizer):
    """SGD with momentum on the spheres of scale-invariant weights, plain SGD elsewhere (SGD-G of Cho and Lee 2017).

    On a sphere with direction u, h = r g - <u, r g> u is clipped to norm `clip`, d <- momentum T(d) - lr h, and u moves
    along the geodesic in direction d. The length r of a weight stays as it is, so that running statistics stay valid;
    the step does not depend on it. `lr` is an angle per unit of gradient.

    Args:
        params: parameters or groups, as for any optimizer; `normscope.symmetries(model, batch).param_groups()`.
        lr: the learning rate.
        momentum: the momentum of both kinds of groups.
        clip: the largest norm of a sphere's gradient; None for no limit.
        weight_decay: the weight decay of plain groups; refused on spheres.
        nesterov: whether plain groups use Nesterov's momentum.
        units: the default for groups without `units`: None (plain), `"channel"`, or a number of spheres per tensor.
        axis: the axis of a tensor that counts channels.
        maximize: whether to maximize the loss instead of minimizing it.
        foreach: for plain groups, as in `torch.optim.SGD`.

    Raises:
        InputError: an argument is out of range, or a group of spheres has weight decay.

    Example:
        >>> import torch, normscope as ns
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        >>> groups = ns.symmetries(model, torch.randn(16, 4), mode="train").param_groups()
        >>> optimizer = ns.optim.SphereSGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-4)
        >>> [(group["units"], group["weight_decay"]) for group in optimizer.param_groups]
        [('channel', 0.0), (None, 0.0001)]

    Reference: Cho and Lee, Riemannian approach to batch normalization, NeurIPS 2017, algorithms 1 and 4.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.2,
        *,
        momentum: float = 0.9,
        clip: float | None = 0.1,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        units: str | int | None = None,
        axis: int = 0,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        _check_range(clip, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and not momentum:
            raise InputError("nesterov needs a momentum: pass momentum=0.9, say")
        defaults = {"lr": lr, "momentum": momentum, "clip": clip, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults | {"units": units, "axis": axis, "maximize": maximize, "foreach": foreach})

    def _plain_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if not params:
            return
        buffers = [self.state[parameter].get("momentum_buffer") for parameter in params]
        sgd(
            params,
            [parameter.grad for parameter in params if parameter.grad is not None],
            buffers,
            foreach=group["foreach"],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=group["nesterov"],
            maximize=group["maximize"],
        )
        if group["momentum"]:
            for parameter, buffer in zip(params, buffers, strict=True):
                self.state[parameter]["momentum_buffer"] = buffer

    def _sphere_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        count, units = len(params), self._units(group, params)
        for parameter, spheres in zip(params, units, strict=True):
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            if state.pop("along", None) is not None:  # an older state, whose buffers hold a component along y too
                with as_rows([spheres] * 2, group["axis"], [parameter, state["momentum_buffer"]]) as (row, buffer):
                    make_tangent(buffer, row)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in params]
        with as_rows(units * 3, group["axis"], [*params, *_gradients(group, params), *buffers]) as rows:
            momentum_step(
                rows[:count],
                rows[count : 2 * count],
                rows[2 * count :],
                lr=group["lr"],
                momentum=group["momentum"],
                clip=group["clip"],
            )


class SphereAdam(_SphereOptimizer):
    """Adam on the spheres of scale-invariant weights, AdamW elsewhere (Adam-G of Cho and Lee 2017).

    On a sphere the first moment is a tangent, transported along each step, and the second is a single number, the
    running mean of norm(h)^2: a step goes in the direction of the first moment, by an angle of about `lr`. The length
    of a weight stays as it is.

    Args:
        params: parameters or groups, as for any optimizer; `normscope.symmetries(model, batch).param_groups()`.
        lr: the learning rate: on a sphere about the angle of a step.
        betas: the decay rates of both moments.
        eps: the number added to the root of the second moment.
        clip: the largest norm of a sphere's gradient; None for no limit.
        weight_decay: the weight decay of plain groups, decoupled as in AdamW; refused on spheres.
        units: the default for groups without `units`: None (plain), `"channel"`, or a number of spheres per tensor.
        axis: the axis of a tensor that counts channels.
        maximize: whether to maximize the loss instead of minimizing it.
        foreach: for plain groups, as in `torch.optim.AdamW`.

    Raises:
        InputError: an argument is out of range, or a group of spheres has weight decay.

    Example:
        >>> import torch, normscope as ns
        >>> weight = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
        >>> optimizer = ns.optim.SphereAdam([weight], lr=0.05, units="channel")
        >>> (weight * torch.tensor([1.0, 0.0])).sum().backward()
        >>> optimizer.step()
        >>> round(weight.norm().item(), 4)
        5.0

    Reference: Cho and Lee, Riemannian approach to batch normalization, NeurIPS 2017, algorithms 2 and 4.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.05,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        clip: float | None = 0.1,
        weight_decay: float = 0.0,
        units: str | int | None = None,
        axis: int = 0,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        _check_range(clip, lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise InputError(f"betas are {betas}: each is at least 0 and below 1")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "clip": clip, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"units": units, "axis": axis, "maximize": maximize, "foreach": foreach})

    def _plain_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if not params:
            return
        for parameter in params:
            if not self.state[parameter]:
                self.state[parameter]["step"] = torch.tensor(0.0)
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in params]
        adam(
            params,
            [parameter.grad for parameter in params if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=group["foreach"],
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _sphere_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        by_step: dict[int, list[Tensor]] = {}
        for parameter, units in zip(params, self._units(group, params), strict=True):
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = parameter.new_zeros(units)
            state["step"] += 1
            by_step.setdefault(int(state["step"]), []).append(parameter)
        for step, same_step in by_step.items():
            means = [self.state[parameter]["exp_avg"] for parameter in same_step]
            count, units_of = len(same_step), self._units(group, same_step)
            with as_rows(units_of * 3, group["axis"], [*same_step, *_gradients(group, same_step), *means]) as rows:
                adaptive_step(
                    rows[:count],
                    rows[count : 2 * count],
                    rows[2 * count :],
                    [self.state[parameter]["exp_avg_sq"] for parameter in same_step],
                    lr=group["lr"],
                    betas=group["betas"],
                    eps=group["eps"],
                    step=step,
                    clip=group["clip"],
                )


def _gradients(group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
    """Return the gradients in the parameters' dtype, negated if the group maximizes the loss."""
    gradients = [p.grad.to(p.dtype) for p in params if p.grad is not None]
    return [-gradient for gradient in gradients] if group["maximize"] else gradients


def _check_range(clip: float | None, **numbers: float) -> None:
    """Refuse a limit on the gradient that is not above 0, and other numbers below 0."""
    for name, value in numbers.items():
        if not float(value) >= 0.0:
            raise InputError(f"{name} is {value}: it must be at least 0")
    if clip is not None and not clip > 0.0:
        raise InputError(f"clip is {clip}: it must be above 0, or None to clip nothing")
