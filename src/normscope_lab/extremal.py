"""Networks whose Lipschitz constants are known (Than's Theorems 6, 13 and 15), and measurements of each equality.

All are ReLU networks without biases, `h_k = relu(W_k h_{k-1})`, in float64. A matrix `a_k I_k` cuts or pads the
coordinates and scales them by `a_k` (Than, equation 35), so that the constants are exactly products of the `a_k`: they
explode or vanish as the scales are chosen. Measurements go through autograd layer by layer and keep the exponent apart,
so that products beyond the range of floats are measured too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from normscope.toolkit import InputError, log10

GIVEN_SCALE = 1.0
"""The gain of the Gaussian weights of layers that a theorem leaves free."""


class ExtremalNetwork(nn.Sequential):
    """A ReLU network without biases, with the widths and scales that it was built from.

    Attributes:
        widths: the widths of the input and of every layer, `n_0, ..., n_K`.
        scales: `a_1, ..., a_K`; None for a layer that the theorem leaves free.
    """

    def __init__(self, widths: Sequence[int], scales: Sequence[float | None], generator: torch.Generator) -> None:
        super().__init__()
        self.widths, self.scales = tuple(widths), tuple(scales)
        for number, ((before, after), scale) in enumerate(zip(pairwise(widths), scales), start=1):
            layer = nn.utils.skip_init(nn.Linear, before, after, bias=False, dtype=torch.float64)
            with torch.no_grad():
                if scale is None:
                    layer.weight.normal_(0.0, GIVEN_SCALE / math.sqrt(before), generator=generator)
                else:
                    layer.weight.copy_(scale * torch.eye(after, before, dtype=torch.float64))
            self.add_module(f"linear{number}", layer)
            self.add_module(f"relu{number}", nn.ReLU())

    def layers(self) -> list[nn.Sequential]:
        """Return the layers, each with its activation, in order."""
        inner = list(self.children())
        return [nn.Sequential(*inner[k : k + 2]) for k in range(0, len(inner), 2)]


class ExtremalScalar(nn.Module):
    """`h(x) = g(c 1^T h_K(x))`, the network of Theorem 15.

    Attributes:
        body: the network `h_K`.
        head: the row `c 1^T`.
        activation: `g`, differentiable.
        layer: the number `i` of the layer whose gradient the theorem is about.
        factor: `c`.
    """

    def __init__(self, body: ExtremalNetwork, layer: int, factor: float, activation: nn.Module) -> None:
        super().__init__()
        self.body, self.activation, self.layer, self.factor = body, activation, layer, factor
        self.head = nn.utils.skip_init(nn.Linear, body.widths[-1], 1, bias=False, dtype=torch.float64)
        nn.init.constant_(self.head.weight, factor)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number per sample."""
        return self.activation(self.head(self.body(x))).squeeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """A claimed equality, and the measured value.

    Attributes:
        claim: the statement.
        log10_claimed: log10 of the claimed value.
        log10_lower: log10 of the value that a witness attains.
        log10_upper: log10 of an upper bound on the same constant; for gradients, which are compared entry by entry, the
            same as the lower side.
        log10_as_printed: log10 of the value that the paper prints, where that is another one.
        error: the relative distance of the claimed value from the farther side.
    """

    claim: str
    log10_claimed: float
    log10_lower: float
    log10_upper: float
    error: float
    log10_as_printed: float | None = None

    @property
    def printed_error(self) -> float:
        """The relative distance of the printed value from the measured one; `error` if the paper prints no other."""
        if self.log10_as_printed is None:
            return self.error
        return _apart(self.log10_as_printed, self.log10_lower)


def theorem6(widths: Sequence[int], scales: Sequence[float]) -> ExtremalNetwork:
    """Return the network of Theorem 6, whose Lipschitz constant is the product of its scales.

    `W_k = a_k I_k` for every layer, so that `h(x) = a_1 ... a_K relu(x cut to the least width)`. Every width must be at
    least 1: with a width of 0 the network is constant.

    Args:
        widths: `n_0, ..., n_K`, that of the input first.
        scales: `a_1, ..., a_K`, finite and not negative; above 1 the constant explodes with depth, below 1 it vanishes.

    Returns:
        A module in float64.

    Raises:
        InputError: the widths are no whole numbers from 1 on, or the scales no finite numbers from 0 on.

    Example:
        >>> network = theorem6([3, 5, 2, 4], [10.0, 20.0, 30.0])
        >>> found = equality6(network)
        >>> round(found.log10_claimed, 6), found.error < 1e-10
        (3.778151, True)

    Reference: Than, Theorem 6 and equation 35.
    """
    _check(widths, scales, None)
    return ExtremalNetwork(widths, scales, torch.Generator())


def theorem13(widths: Sequence[int], scales: Sequence[float], *, layer: int, seed: int = 0) -> ExtremalNetwork:
    """Return the network of Theorem 13: `W_k = a_k I_k` behind layer `i`, Gaussian weights up to it.

    Its constant in `y_i` is `a_{i+1} ... a_K` (equation 9), its constant in `W_i` that times the norm of `h_{i-1}(x)`.

    Args:
        widths: `n_0, ..., n_K`.
        scales: `a_{i+1}, ..., a_K`, one for each layer behind layer `i`.
        layer: `i`, from 1 to K - 1.
        seed: the seed of the weights up to layer `i`, which the theorem leaves free.

    Raises:
        InputError: widths, scales or the layer have no valid values.

    Example:
        >>> network = theorem13([3, 4, 2, 5], [3.0, 7.0], layer=1)
        >>> inner, weights = equality13(network, torch.ones(3, dtype=torch.float64))
        >>> round(10 ** inner.log10_claimed), inner.error < 1e-10, weights.error < 1e-10, weights.printed_error > 1e-3
        (21, True, True, True)

    Reference: Than, Theorem 13, equations 8 and 9.
    """
    _check(widths, scales, layer)
    return ExtremalNetwork(widths, [None] * layer + list(scales), torch.Generator().manual_seed(seed))


def theorem15(
    widths: Sequence[int],
    scales: Sequence[float],
    *,
    layer: int,
    factor: float = 1.0,
    activation: nn.Module | None = None,
    seed: int = 0,
) -> ExtremalScalar:
    """Return the network of Theorem 15, whose loss has gradients proportional to `c a_{i+1} ... a_K` in `W_i`.

    Args:
        widths: `n_0, ..., n_K` of the body `h_K`.
        scales: `a_{i+1}, ..., a_K`, above 0.
        layer: `i`, from 1 to K - 1.
        factor: `c`, above 0.
        activation: `g`, differentiable; None for the identity.
        seed: the seed of the weights up to layer `i`, which the theorem leaves free.

    Raises:
        InputError: widths, scales, the layer or the factor have no valid values.

    Example:
        >>> network = theorem15([3, 4, 2], [1e6], layer=1, activation=torch.nn.Tanh())
        >>> x = torch.linspace(-1.0, 2.0, 12, dtype=torch.float64).reshape(4, 3)
        >>> equality15(network, lambda value: value.square() / 2, x).error < 1e-10
        True

    Reference: Than, Theorem 15, equation 12.
    """
    _check(widths, scales, layer)
    if not 0.0 < factor < math.inf or not all(scale > 0.0 for scale in scales):
        raise InputError(f"Theorem 15 needs a factor and scales above 0, not {factor!r} and {list(scales)!r}")
    body = ExtremalNetwork(widths, [None] * layer + list(scales), torch.Generator().manual_seed(seed))
    return ExtremalScalar(body, layer, factor, activation or nn.Identity())


def equality6(network: ExtremalNetwork) -> Equality:
    """Measure the Lipschitz constant of a network of Theorem 6 from both sides and compare it with the product.

    The lower side is the norm of the Jacobian at a positive input, where every unit with a non-zero input is on. The
    upper side is the product of the norms of the weights (Lemma 5).
    """
    claimed = _product(network.scales)
    ones = torch.ones(network.widths[0], dtype=torch.float64)
    lower = _jacobian_norm(network.layers(), ones)
    return _equality("Theorem 6: the Lipschitz constant is a_1 ... a_K", claimed, lower, _norms(network.layers()))


def equality13(network: ExtremalNetwork, x: Tensor) -> tuple[Equality, Equality]:
    """Measure both equalities of Theorem 13: the constants in `y_i` (equation 9) and in `W_i` at x (equation 8).

    The constant in `W_i` is the supremum over all `W_i` at a fixed x, with the Frobenius norm on `W_i`; it is attained
    where the first unit of layer `i` is on, as it is at the witness. The printed equation 8 cuts `h_{i-1}` to the later
    widths; but the cut acts on the rows of `W_i`, so that the norm of the whole `h_{i-1}(x)` is the right factor.

    Args:
        network: a network of `theorem13`.
        x: one input.

    Returns:
        The equality in `y_i`, and the one in `W_i` with the printed value beside it.

    Raises:
        InputError: x is no vector of the input's width.
    """
    if x.shape != network.widths[:1]:
        raise InputError(f"x has shape {tuple(x.shape)}: the network takes one vector of {network.widths[0]} entries")
    layer = sum(scale is None for scale in network.scales)
    layers, tail = network.layers(), network.layers()[layer:]
    product = _product(network.scales[layer:])
    inner = _equality(
        "Theorem 13, equation 9: the constant in y_i is a_{i+1} ... a_K",
        product,
        _jacobian_norm([nn.Sequential(nn.ReLU()), *tail], torch.ones(network.widths[layer], dtype=torch.float64)),
        _norms(tail),
    )
    with torch.no_grad():
        before = x.double()
        for part in layers[: layer - 1]:
            before = part(before)
    claimed = product + log10(float(before.norm()))
    kept = min(network.widths[layer + 1 :])
    printed = product + log10(float(before[:kept].norm()))
    outer = _equality(
        "Theorem 13, equation 8 corrected: the constant in W_i is a_{i+1} ... a_K norm(h_{i-1}(x))",
        claimed,
        _weight_jacobian_norm(before, network.widths[layer], tail),
        _norms(tail) + log10(float(before.norm())),
        printed,
    )
    return inner, outer


def equality15(network: ExtremalScalar, loss: Callable[[Tensor], Tensor], x: Tensor) -> Equality:
    """Compare the gradient of a mean loss in `W_i` with equation 12 of Theorem 15, entry by entry.

    Where the input of a ReLU is exactly zero, autograd takes the slope 0 and the paper takes 1.

    Args:
        network: a network of `theorem15`.
        loss: a differentiable function from the network's output, one number per sample, to one loss per sample.
        x: inputs, one per row.

    Returns:
        `log10_claimed` and `log10_lower` belong to the norms of both gradients; `error` is the norm of their difference
        relative to that of the gradient.

    Raises:
        InputError: x is no matrix of inputs.
    """
    if x.ndim != 2 or x.shape[1] != network.body.widths[0]:
        raise InputError(f"x has shape {tuple(x.shape)}: pass rows of {network.body.widths[0]} entries")
    layer, x = network.layer, x.double()
    weight: Tensor = network.body.get_parameter(f"linear{layer}.weight")
    (gradient,) = torch.autograd.grad(loss(network(x)).mean(), weight)
    claimed = claimed_gradient(network, loss, x)
    size, norm = float(gradient.norm()), float(claimed.norm())
    apart = float((gradient - claimed).norm())
    measured = log10(size)
    return Equality(
        claim="Theorem 15, equation 12: the gradient in W_i is c a_{i+1} ... a_K times a mean over the data",
        log10_claimed=log10(norm),
        log10_lower=measured,
        log10_upper=measured,
        error=apart / size if size > 0.0 else (0.0 if norm == 0.0 else math.inf),
    )


def claimed_gradient(network: ExtremalScalar, loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the gradient in `W_i` that equation 12 of Theorem 15 claims for a mean loss."""
    layer, body = network.layer, network.body
    with torch.no_grad():
        before = x.double()
        for part in body.layers()[: layer - 1]:
            before = part(before)
        active = before @ body.get_parameter(f"linear{layer}.weight").T >= 0.0
        u = network.head(body(x.double())).squeeze(-1)
    u.requires_grad_(True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(loss(network.activation(u)).sum(), u)
    size = network.factor * math.prod(scale or 0.0 for scale in body.scales[layer:]) / len(x)
    gradient = size * (active * slope[:, None]).T @ before
    gradient[min(body.widths[layer + 1 :]) :] = 0.0
    return gradient


def _check(widths: Sequence[int], scales: Sequence[float], layer: int | None) -> None:
    """Refuse widths, scales and layers from which no network can be built."""
    whole = all(isinstance(width, int) and not isinstance(width, bool) and width >= 1 for width in widths)
    if len(widths) < 2 or not whole:
        raise InputError(f"widths are whole numbers from 1 on, the input's first, at least two, not {list(widths)!r}")
    depth = len(widths) - 1
    if layer is not None and not (isinstance(layer, int) and 1 <= layer < depth):
        raise InputError(f"layer is a number from 1 to {depth - 1}, one less than the {depth} layers, not {layer!r}")
    count = depth - (layer or 0)
    if len(scales) != count or not all(isinstance(a, int | float) and 0.0 <= a < math.inf for a in scales):
        behind = "" if layer is None else f" behind layer {layer}"
        raise InputError(f"scales are {count} finite numbers from 0 on, one per layer{behind}, not {list(scales)!r}")


def _product(scales: Sequence[float | None]) -> float:
    """Return log10 of a product of scales."""
    return math.fsum(log10(scale or 0.0) for scale in scales)


def _equality(claim: str, claimed: float, lower: float, upper: float, printed: float | None = None) -> Equality:
    return Equality(
        claim=claim,
        log10_claimed=claimed,
        log10_lower=lower,
        log10_upper=upper,
        error=max(_apart(claimed, lower), _apart(claimed, upper)),
        log10_as_printed=printed,
    )


def _apart(one: float, other: float) -> float:
    """Return the relative distance of two values given as exponents of ten."""
    if one == other:
        return 0.0
    if math.inf in (abs(one), abs(other)):
        return math.inf
    return abs(math.expm1(min((one - other) * math.log(10.0), 700.0)))


def _norms(layers: Sequence[nn.Module]) -> float:
    """Return log10 of the product of the norms of the layers' weights; the constant of a ReLU is 1."""
    weights = [weight.detach() for layer in layers for weight in layer.parameters()]
    return math.fsum(log10(float(torch.linalg.matrix_norm(weight, ord=2))) for weight in weights)


def _jacobian_norm(layers: Sequence[nn.Module], x: Tensor) -> float:
    """Return log10 of the norm of the Jacobian of ReLU layers without biases at x, by autograd layer by layer.

    The values are rescaled after every layer, which changes no sign and so no slope, and the product of the Jacobians
    is rescaled with its exponent kept apart, so that nothing overflows.
    """
    product, exponent = torch.eye(len(x), dtype=torch.float64), 0.0
    for layer in layers:
        x, slope = _value_and_jacobian(layer, x)
        product = slope @ product
        largest = float(product.abs().max())
        if largest == 0.0:
            return -math.inf
        x = x / (float(x.abs().max()) or 1.0)
        product, exponent = product / largest, exponent + log10(largest)
    return exponent + log10(float(torch.linalg.matrix_norm(product, ord=2)))


def _value_and_jacobian(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's value at x and its Jacobian, with one backward pass through one copy of x per output."""
    with torch.no_grad():
        value: Tensor = layer(x)
    copies = x.repeat(len(value), 1).requires_grad_(True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(layer(copies).diagonal().sum(), copies)
    return value, slope


def _weight_jacobian_norm(before: Tensor, width: int, tail: Sequence[nn.Module]) -> float:
    """Return log10 of the norm of the Jacobian, in the weight of a layer with input `before`, of that layer and a tail.

    It is taken where each of the weight's `width` rows is `before` itself, so that every unit is on.
    """
    size = float(before.norm())
    if size == 0.0:
        return -math.inf
    unit = before / size
    layers = [_Reads(unit), nn.ReLU(), *tail]
    return _jacobian_norm(layers, unit.repeat(width)) + log10(size)


class _Reads(nn.Module):
    """The total input `W h` of a layer, as a function of the entries of `W`."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, weight: Tensor) -> Tensor:
        """Return `W h` for a flat vector of the rows of `W`."""
        return weight.reshape(*weight.shape[:-1], -1, len(self.values)) @ self.values
