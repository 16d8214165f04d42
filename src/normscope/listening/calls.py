"""Which calls of torch functions are layers, where they run, with which arguments, and what one such call shows.

A layer counts whether a module or a plain function runs it: what says so is the name of the function that is called.

A normalizer shows a variance for every set, which is what it normalizes together: a channel of BatchNorm, a row of
LayerNorm, a group of one sample of GroupNorm. A weight layer shows its input, weight, bias and output; `LayerGeometry`
is how it was called, apart from them: a linear map of one sample, for whatever weight the layer has later. Everything
is computed on the device of the input, and nothing waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..core.threads import ignore_warnings
from ..core.whole_weights import gather_whole
from ..theory.normalizers import rms_epsilon

Site = tuple[str, str, int]
"""Where something runs: module path, family (`batch_norm`, `linear`, `relu`, ...), which of its runs in one forward."""

NORMALIZERS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
WEIGHTS = {
    "linear": "linear", "addmm": "linear", "conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution",
    "conv_transpose1d": "convolution", "conv_transpose2d": "convolution", "conv_transpose3d": "convolution",
}  # fmt: skip
"""Functions of weight layers, with the families that sites name."""
PRODUCTS = ("matmul", "__matmul__", "mm")
"""Functions that are weight layers if their second factor is a parameter."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
EMBEDDINGS = ("embedding", "embedding_bag")
"""Functions that look rows of a table up."""
RELUS = ("relu", "relu_", "relu6")
PLAIN = (Tensor, int, float, str, type(None))
"""Types of arguments that hold no others. Calling torch's own `tree_leaves` takes longer than most functions."""


class FunctionCall(NamedTuple):
    """One call of a torch function.

    Attributes:
        name: the name of the function, without the overload (`relu`, not `relu.default`).
        func: the function itself.
        args, kwargs: what it is called with.
    """

    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def weight_family(self) -> str | None:
        """The family of a weight layer, `linear` or `convolution`; None for any other call."""
        if self.name in PRODUCTS and len(self.args) == 2 and isinstance(self.args[1], nn.Parameter):
            return "linear"
        return WEIGHTS.get(self.name)

    @property
    def normalizer(self) -> str | None:
        """The family of a normalizer; None for any other call, and for one that standardises a weight of the model."""
        if self.name not in NORMALIZERS:
            return None
        values, base = self.input, getattr(self.input, "_base", None)
        whole = values if base is None or base.numel() != values.numel() else base
        return None if isinstance(whole, nn.Parameter) else self.name

    @property
    def leaves(self) -> list[Any]:
        """All arguments, without their nesting."""
        held = (*self.args, *self.kwargs.values())
        return [leaf for value in held for leaf in ((value,) if isinstance(value, PLAIN) else tree_leaves(value))]

    @property
    def input(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else self.kwargs.get("input")

    def named(self) -> Mapping[str, Any]:
        """Return the arguments by name, with the defaults of those that are not given."""
        if inspect.isfunction(self.func):
            bound = _signature(self.func).bind(*self.args, **self.kwargs)
            bound.apply_defaults()
            return bound.arguments
        names, defaults = _schema(self.name)
        return {**defaults, **dict(zip(names, self.args)), **self.kwargs}


@lru_cache(maxsize=64)
def _signature(func: Any) -> inspect.Signature:
    """Return the parameters of a function that is written in Python."""
    return inspect.signature(func)


@lru_cache(maxsize=64)
def _schema(name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the arguments of one of torch's own operators, and their defaults."""
    packet = getattr(torch.ops.aten, name)
    kinds = packet.overloads()
    arguments = getattr(packet, "default" if "default" in kinds else kinds[0])._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return tuple(argument.name for argument in arguments), defaults


def tensors_in(made: Any) -> list[Tensor]:
    """Return the tensors that a module returned, out of their nest or the object that holds them."""
    if isinstance(made, Tensor):
        return [made]
    inner = vars(made) if hasattr(made, "__dict__") else made
    try:
        leaves = tree_leaves(inner)
    except RecursionError:
        leaves = _leaves_once(inner)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _leaves_once(nest: Any) -> list[Any]:
    """Return the leaves of a nest that holds itself."""
    leaves, waiting, met = [], [nest], set[int]()
    while waiting:
        value = waiting.pop()
        if not isinstance(value, dict | list | tuple):
            leaves.append(value)
        elif id(value) not in met:
            met.add(id(value))
            waiting.extend(reversed(value.values() if isinstance(value, dict) else value))
    return leaves


def float_tensors(made: Any) -> list[Tensor]:
    """Return the dense float tensors that a module returned, without empty ones."""
    return [tensor for tensor in tensors_in(made) if tensor.is_floating_point() and is_dense(tensor)]


def as_floats(made: Any) -> list[Tensor]:
    """Return what a module returned as dense tensors of reals, in the graph of autograd.

    Complex numbers are pairs of reals, and of sparse and nested tensors these are the values.
    """
    values = list[Tensor]()
    for tensor in tensors_in(made):
        if tensor.is_nested:
            tensor = torch.cat([part.flatten() for part in tensor.unbind()])
        elif tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        values.append(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)
    return float_tensors(values)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has values, each in its place."""
    return not tensor.is_nested and tensor.layout is torch.strided and tensor.numel() > 0


aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSeen:
    """One call of a weight layer; it holds the tensors of the call, so that it must not outlive the forward.

    Attributes:
        call: the call itself.
        input, output: what the layer was given and returned.
        weight: the weight as it was applied.
        bias: None without one.
        settings: further arguments of a convolution by name.
    """

    call: FunctionCall
    input: Tensor
    output: Tensor
    weight: Tensor
    bias: Tensor | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> list[Tensor]:
        """The weight, and the bias where there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def axis(self) -> int:
        """The dimension of the weight that counts output channels."""
        return 1 if "transpose" in self.call.name or self._is_matrix else 0

    @property
    def channels(self) -> int:
        """The dimension of the output that counts its channels."""
        return self.output.ndim - (self.weight.ndim - 1 if self._is_convolution else 1)

    @property
    def _is_convolution(self) -> bool:
        return "conv" in self.call.name

    @property
    def _is_matrix(self) -> bool:
        """Whether the weight is the second factor of a product x W, and not transposed."""
        return self.call.name in (*PRODUCTS, "addmm")

    def geometry(self) -> LayerGeometry:
        """Return how the layer was called, apart from its weight."""
        if not self._is_convolution:
            kind = "matrix" if self._is_matrix else "linear"
            return LayerGeometry(kind=kind, shape=(1, self.input.shape[-1]), channels=self.output.shape[-1])
        batched = self.input.ndim == self.weight.ndim
        shape = (1, *(self.input.shape[1:] if batched else self.input.shape))
        channels = self.output.shape[self.channels]
        rest, func, spatial = self.settings, self.call.func, self.weight.ndim - 2
        if isinstance(rest["padding"], str):

            def convolve(values: Tensor, weight: Tensor) -> Tensor:
                with ignore_warnings("Using padding='same'"):  # which the model's own call has shown
                    return cast(Tensor, func(values, weight, None, **rest))

            return LayerGeometry(kind="other", shape=shape, channels=channels, function=convolve)
        settings = (
            *(_repeated(rest[key], spatial) for key in ("stride", "padding", "dilation")),
            "transpose" in self.call.name,
            _repeated(rest.get("output_padding", 0), spatial),
            rest["groups"],
        )
        return LayerGeometry(kind="convolution", shape=shape, channels=channels, settings=settings)


def weight_seen(call: FunctionCall, output: Tensor) -> WeightSeen:
    """Return what a call of a weight layer shows."""
    if call.name in PRODUCTS:
        return WeightSeen(call=call, input=call.args[0], output=output, weight=call.args[1])
    arguments = dict(call.named())
    if call.name == "addmm":
        bias = arguments["input"] if "input" in arguments else arguments["self"]
        return WeightSeen(call=call, input=arguments["mat1"], output=output, weight=arguments["mat2"], bias=bias)
    first, weight, bias = arguments.pop("input"), arguments.pop("weight"), arguments.pop("bias", None)
    return WeightSeen(call=call, input=first, output=output, weight=weight, bias=bias, settings=arguments)


def _repeated(value: Any, count: int) -> list[int]:
    """Return one number per dimension."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * count if len(numbers) == 1 else numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGeometry:
    """How a weight layer was called, apart from its weight.

    Attributes:
        kind: `"matrix"` (x W), `"linear"` (x W^T), `"convolution"`, or `"other"`.
        shape: the shape of one sample, with a leading dimension of 1.
        channels: how many channels the output has.
        settings: stride, padding, dilation, transposed, output padding and groups of a convolution.
        function: the layer as a function of (sample, weight), where it has no adjoint of its own here.
    """

    kind: str
    shape: tuple[int, ...]
    channels: int
    settings: tuple[Any, ...] = ()
    function: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def groups(self) -> int:
        """How many groups of channels do not see each other."""
        return self.settings[5] if self.settings else 1

    def image(self, vectors: Tensor, weight: Tensor) -> Tensor:
        """Return A v for the layer A, without bias, and each of several vectors, one behind the other."""
        if self.kind == "other":
            assert self.function is not None, "a layer without adjoint has a function"
            return self.function(vectors, weight)
        if self.kind != "convolution":
            return vectors @ (weight if self.kind == "matrix" else weight.mT)
        made: Tensor = aten.convolution.default(vectors, weight, None, *self.settings)
        return made

    def back(self, images: Tensor, weight: Tensor) -> Tensor:
        """Return A^T w for the layer A and each of several images, one behind the other."""
        if self.kind == "other":
            with torch.enable_grad():
                anywhere = images.new_zeros(self._like(images)).requires_grad_(True)
                (pulled_back,) = torch.autograd.grad(self.image(anywhere, weight), anywhere, images.detach())
            return pulled_back
        if self.kind != "convolution":
            return images @ (weight.mT if self.kind == "matrix" else weight)
        anywhere = images.new_empty(self._like(images))  # its shape alone is read
        result: Tensor = aten.convolution_backward.default(
            images, anywhere, weight, None, *self.settings, (True, False, False)
        )[0]
        return result

    def _like(self, images: Tensor) -> tuple[int, ...]:
        return (len(images), *self.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerSeen:
    """One call of a normalizer.

    The tensors are arrays of numpy once they have been sent to the host.

    Attributes:
        family: `batch_norm`, `layer_norm`, ...
        variance: the variance of every set, `[*, groups]`: sets with the same scales lie along the first dimension.
        entries: how many values a set has.
        samples: the size of the batch.
        eps: the stabiliser.
        groups: sets of one sample with scales of their own; those of BatchNorm are counted by `variance` alone.
        gamma: every scale, those of a group next to each other; None without scales.
        mean: the mean of every channel, where the sets are channels and exact statistics were asked for.
        running_mean, running_variance: those of every channel before the call; None where there are none.
        stored: whether it divides by the running variance, a constant, instead of the batch's.
    """

    family: str
    variance: Any
    entries: int
    samples: int
    eps: float
    groups: int = 1
    gamma: Any = None
    mean: Any = None
    running_mean: Any = None
    running_variance: Any = None
    stored: bool = False

    @property
    def centred(self) -> bool:
        """Whether the mean is taken off first; RMSNorm does not."""
        return is_centred(self.family)

    @property
    def by_channel(self) -> bool:
        """Whether its sets are the channels of the whole batch."""
        return self.family == "batch_norm" or (self.family == "instance_norm" and self.stored)

    @property
    def divisor(self) -> Any:
        """The variances that it divides by."""
        return self.running_variance[None] if self.stored else self.variance

    @property
    def free(self) -> int:
        """Degrees of freedom of a set: its entries, less one where their mean is subtracted.

        They are 2 for stored statistics, where the constant is 1/s, as it is for any larger set.
        """
        return 2 if self.stored else self.entries - self.centred

    def without_tensors(self) -> NormalizerSeen:
        """Return what can be kept while variances and scales are on their way to the host."""
        return replace(self, variance=None, gamma=None, running_variance=None)


def normalizer_seen(call: FunctionCall, *, exact: bool = False) -> NormalizerSeen:
    """Return what a normalizer is about to do: in train mode the call moves the running statistics.

    It is called without gradients, as all functions here. With `exact`, variances and means of channels are taken in
    float64; otherwise the variances alone, in float32 at least.
    """
    arguments, family = call.named(), call.name
    x, gamma = gather_whole(arguments["input"]), arguments.get("weight")
    gamma = None if gamma is None else gather_whole(gamma).clone()  # FSDP gathers scales for the run alone
    stored = not arguments.get("training" if family == "batch_norm" else "use_input_stats", True)
    if family == "batch_norm" or (family == "instance_norm" and stored):
        wide = x.double() if exact else x
        return NormalizerSeen(
            family=family,
            variance=channel_variance(wide),
            entries=x.numel() // x.shape[1],
            samples=len(x),
            eps=float(arguments["eps"]),
            gamma=gamma,
            mean=wide.mean([0, *range(2, x.ndim)]) if exact else None,
            running_mean=_copied(arguments.get("running_mean")) if exact else None,
            running_variance=_copied(arguments.get("running_var")),
            stored=stored,
        )
    eps = rms_epsilon(arguments["eps"], x.dtype) if family == "rms_norm" else float(arguments["eps"])
    sets, groups = set_count(family, arguments, x), set_positions(family, arguments, x)
    return rows_seen(family, x, sets=sets, groups=groups, eps=eps, gamma=gamma, exact=exact)


def rows_seen(
    family: str, x: Tensor, *, sets: int, eps: float, groups: int = 1, gamma: Tensor | None = None, exact: bool = False
) -> NormalizerSeen:
    """Return what a normalizer does whose sets are runs of consecutive entries of its input.

    `groups` are sets of one sample with scales of their own; `exact` is as for `normalizer_seen`.
    """
    wide = x.double() if exact else x
    return NormalizerSeen(
        family=family,
        variance=row_variance(wide, sets=sets, groups=groups, centred=is_centred(family)),
        entries=x.numel() // max(sets, 1),
        samples=len(x),
        eps=eps,
        groups=groups,
        gamma=gamma,
    )


def is_centred(family: str) -> bool:
    """Whether a normalizer takes the mean off; what it divides by otherwise is the root mean square."""
    return family not in ("rms_norm", "rms")


def set_positions(family: str, arguments: Mapping[str, Any], x: Tensor) -> int:
    """Return how many sets of one sample have scales of their own: groups, channels, or one."""
    if family == "group_norm":
        return int(arguments["num_groups"])
    return int(x.shape[-2] if x.ndim == 2 else x.shape[1]) if family == "instance_norm" else 1


def set_count(family: str, arguments: Mapping[str, Any], x: Tensor) -> int:
    """Return how many sets a normalizer has; each is a run of consecutive entries."""
    if family == "group_norm":
        return int(x.shape[0] * arguments["num_groups"])
    if family == "instance_norm":
        return x.shape[:-1].numel() if x.ndim == 2 else int(x.shape[0] * x.shape[1])
    return x.shape[: x.ndim - len(arguments["normalized_shape"])].numel()


def channel_variance(x: Tensor) -> Tensor:
    """Return the variances `[1, channels]` of the channels of a BatchNorm's input `[samples, channels, ...]`."""
    return torch.var(_wide(x), dim=[0, *range(2, x.ndim)], correction=0)[None]


def row_variance(x: Tensor, *, sets: int, groups: int, centred: bool = True) -> Tensor:
    """Return the variances `[sets/groups, groups]` of the sets of LayerNorm, GroupNorm, InstanceNorm or RMSNorm.

    A set is a run of consecutive entries. The "variance" of RMSNorm, which is not `centred`, is the mean square.
    """
    rows = _wide(x).reshape(sets, -1)
    variance = torch.var(rows, dim=1, correction=0) if centred else rows.square().mean(1)
    return variance.reshape(-1, groups)


def _wide(x: Tensor) -> Tensor:
    """Return values that can be squared and summed."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
