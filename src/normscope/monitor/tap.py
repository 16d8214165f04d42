"""One forward, listened to: every normalizer and weight layer is measured where it runs, module or function.

The calls are seen by a `TorchFunctionMode` that is active on measured steps alone; nothing is changed, drawn at random
or waited for. What comes out are small tensors on the model's device.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..diagnosis.examined import Site
from ..diagnosis.streaming import NORMALIZERS, PRODUCTS, RELUS, WEIGHTS, bound_arguments, set_count, set_positions
from ..theory.normalizers import rms_epsilon
from .probes.normalizers import Sets, channel_variance, row_variance
from .probes.running import Moved
from .probes.weights import Geometry
from .schedule import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerSeen:
    """A normalizer on one batch.

    Attributes:
        family: `batch_norm`, `layer_norm`, ...
        sets: what it normalizes.
        samples: of the batch, or sets of the other normalizers.
        groups: sets of one sample with scales of their own.
    """

    family: str
    sets: Sets
    samples: int
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSeen:
    """A weight layer on one batch.

    Attributes:
        parameters: the names of its weight and bias, as far as they are parameters.
        axis: of the weight, counting output channels.
        channels: the dimension of its output that counts them.
        geometry: how it was called.
        made: its weight, if that is no parameter but was made of some.
    """

    parameters: tuple[str, ...]
    axis: int
    channels: int
    geometry: Geometry
    made: Tensor | None = None


@dataclass(slots=True)
class Seen:
    """One forward: the layers in the order they ran, blocks with their gains, units that never fired.

    Attributes:
        normalizers, weights: by site.
        batch_norms: sites whose running variances were read instead, and what the forward did to them.
        activations: the gain of every block.
        gradients: the sizes of the gradients of a block's output and input, as they come.
        dead: the share of units behind a ReLU that fired for no sample.
        readers: who read the output of a weight layer as it came, if that was asked for; a site for a normalizer.
        moved: weight layers whose output was reshaped or transposed on its way.
        lost: sites that could not be measured.
        seconds: spent on listening inside the forward.
    """

    normalizers: dict[Site, NormalizerSeen] = field(default_factory=dict)
    weights: dict[Site, WeightSeen] = field(default_factory=dict)
    batch_norms: tuple[Sequence[Site], Moved] | None = None
    activations: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, list[Tensor | None]] = field(default_factory=dict)
    dead: dict[Site, Tensor] = field(default_factory=dict)
    readers: dict[Site, list[Site | None]] = field(default_factory=dict)
    moved: set[Site] = field(default_factory=set)
    lost: set[Site] = field(default_factory=set)
    seconds: float = 0.0

    def sets(self, normalizer: Site) -> Sets | None:
        """Return what a normalizer normalized, on the device; None if it was not seen."""
        if normalizer in self.normalizers:
            return self.normalizers[normalizer].sets
        sites, moved = self.batch_norms or ((), None)
        return None if moved is None or normalizer not in sites else moved.norms.sets(moved, sites.index(normalizer))


MOVES = ("view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "contiguous",
         "squeeze", "unsqueeze", "t", "swapaxes", "swapdims", "dropout", "to", "clone", "_to_copy")  # fmt: skip
"""Functions that only move entries, or leave them: what is scale invariant behind them is so before them."""


class Tap(TorchFunctionMode):
    """Listens to forwards of one model.

    Args:
        model: whose modules give the paths.
        blocks: modules whose gains are measured in the tiers above economy.
    """

    def __init__(self, model: nn.Module, blocks: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.modules = dict(model.named_modules())
        self.parameters = {id(parameter): name for name, parameter in model.named_parameters()}
        self.blocks = set(blocks)
        self.seen = Seen()

    @contextlib.contextmanager
    def listening(self, tier: Tier, *, readers: bool = False) -> Iterator[Seen]:
        """Listen to one forward.

        Args:
            tier: how much is measured.
            readers: also say who reads the outputs of the weight layers; they are kept for so long.
        """
        self._tier = tier
        self._made: dict[Any, tuple[Site, Tensor]] | None = {} if readers else None
        self._stack: list[str] = []
        self._runs: Counter[tuple[str, str]] = Counter()
        self._inputs: list[float | Tensor | None] = []
        self.seen = Seen()
        hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        try:
            with self:
                yield self.seen
        finally:
            for hook in hooks:
                hook.remove()
            self._made, self.seen = None, Seen()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function as it is; measure its input before, its weight and output after."""
        began = time.perf_counter()
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        if name in NORMALIZERS:  # before the run: in train mode it moves the running statistics
            with self._measuring(name) as site:
                self._read(site, (args[:1], kwargs))
                self._normalizer(site, name, bound_arguments(func, args, kwargs))
        self.seen.seconds += time.perf_counter() - began
        result = func(*args, **kwargs)
        began = time.perf_counter()
        if self._made and name not in NORMALIZERS:
            try:
                self._follow(name, (args, kwargs), result)
            except Exception:  # never stops the model; whatever was made may have been read here
                for site, _ in self._made.values():
                    self.seen.readers[site].append(None)
        if name in WEIGHTS or (name in PRODUCTS and len(args) == 2 and _is_matrix(args[1])):
            with self._measuring(WEIGHTS.get(name, "linear")) as site:
                self._weight(site, func, name, args, kwargs, result)
        elif name in RELUS and self._tier is not Tier.ECONOMY and isinstance(result, Tensor) and result.ndim > 1:
            with self._measuring("relu") as site:
                others = [0, *range(2, result.ndim)] if result.ndim > 3 else [*range(result.ndim - 1)]
                self.seen.dead[site] = (result.detach().amax(others) <= 0).float().mean()
        self.seen.seconds += time.perf_counter() - began
        return result

    @contextlib.contextmanager
    def _measuring(self, family: str) -> Iterator[Site]:
        """Count one run of a layer; what cannot be measured is left out and never stops the model."""
        key = (self._stack[-1] if self._stack else "", family)
        self._runs[key] += 1
        site = (*key, self._runs[key] - 1)
        try:
            with torch.no_grad():
                yield site
        except Exception:
            self.seen.lost.add(site)

    def _normalizer(self, site: Site, family: str, given: Mapping[str, Any]) -> None:
        x, gamma = given["input"].detach(), given.get("weight")
        stored = not given.get("training" if family == "batch_norm" else "use_input_stats", True)
        running = given.get("running_var") if family == "batch_norm" or stored else None
        groups = 1
        if family == "batch_norm" or (family == "instance_norm" and stored):
            eps, entries, samples, variance = float(given["eps"]), x.numel() // x.shape[1], len(x), channel_variance(x)
        else:
            eps = rms_epsilon(given["eps"], x.dtype) if family == "rms_norm" else float(given["eps"])
            samples, groups = set_count(family, given, x), set_positions(family, given, x)
            variance = row_variance(x, sets=samples, groups=groups, centred=family != "rms_norm")
            entries = x.numel() // max(samples, 1)
        gamma = None if gamma is None else gamma.detach().clone()  # sharded scales are gathered for the run alone
        kept = None if running is None else running.clone()  # in train mode the run moves it
        self.seen.normalizers[site] = NormalizerSeen(
            family=family,
            sets=Sets(
                variance=variance,
                entries=entries,
                eps=eps,
                gamma=gamma,
                running=kept,
                centred=family != "rms_norm",
                stored=stored,
            ),
            samples=samples,
            groups=groups,
        )

    def _weight(self, site: Site, func: Any, name: str, args: Any, kwargs: Any, result: Tensor) -> None:
        geometry, tensors = geometry_of(func, name, args, kwargs, result)
        if tensors[0].is_complex() or tensors[0].ndim < 2:
            raise TypeError("no matrix of real numbers")
        module = self.modules.get(self._stack[-1] if self._stack else "")
        named = [self._name(module, tensor) for tensor in tensors]
        self.seen.weights[site] = WeightSeen(
            parameters=tuple(found for found in named if found is not None),
            axis=1 if "transpose" in name or name in PRODUCTS else 0,
            channels=result.ndim - (tensors[0].ndim - 1 if "conv" in name else 1),
            geometry=geometry,
            made=tensors[0].detach() if named[0] is None else None,
        )
        if self._made is not None:
            self._made[_key(result)] = (site, result)
            self.seen.readers[site] = []

    def _follow(self, name: str, arguments: Any, result: Any) -> None:
        """Note where the output of a weight layer goes: entries that are only moved are still it."""
        assert self._made is not None, "asked for without readers"
        given = next((leaf for leaf in tree_leaves(arguments) if _key(leaf) in self._made), None)
        if given is None or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            return
        if name in MOVES and isinstance(result, Tensor):
            site = self._made[_key(given)][0]
            self._made[_key(result)] = (site, result)
            if (result.shape, result.stride()) != (given.shape, given.stride()):
                self.seen.moved.add(site)
        else:
            self._read(None, arguments)

    def _read(self, reader: Site | None, arguments: Any) -> None:
        """Note who reads what a weight layer made."""
        if self._made:
            for leaf in tree_leaves(arguments):
                if _key(leaf) in self._made:
                    self.seen.readers[self._made[_key(leaf)][0]].append(reader)

    def _name(self, module: nn.Module | None, tensor: Tensor) -> str | None:
        """Return the name of the parameter that a layer used."""
        if id(tensor) in self.parameters:
            return self.parameters[id(tensor)]
        path = self._stack[-1] if self._stack else ""
        if module is not None:  # sharded parameters are gathered into others while their module runs
            for name, parameter in module._parameters.items():
                if parameter is tensor:
                    return f"{path}.{name}" if path else name
        return None

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        began = time.perf_counter()
        with torch._C.DisableTorchFunction():  # what is measured here is not part of the forward
            self._entered(module, args)
        self.seen.seconds += time.perf_counter() - began

    def _leave_module(self, module: nn.Module, args: Any, made: Any) -> None:
        began = time.perf_counter()
        with torch._C.DisableTorchFunction():
            self._left(made)
        self.seen.seconds += time.perf_counter() - began

    def _entered(self, module: nn.Module, args: Any) -> None:
        path = self.names.get(id(module))
        self._stack.append(path if path is not None else (self._stack[-1] if self._stack else ""))
        if self._tier is Tier.ECONOMY or path not in self.blocks:
            self._inputs.append(None)
            return
        self._inputs.append(None)
        with contextlib.suppress(Exception):  # sparse, nested, ...: not every tensor has a size
            given = _first(args)
            self._inputs[-1] = None if given is None else _size(given)
            if given is not None:
                self._listen_back(path, 1, given)

    def _left(self, made: Any) -> None:
        path = self._stack.pop() if self._stack else ""
        size = self._inputs.pop() if self._inputs else None
        if size is not None:
            with contextlib.suppress(Exception):
                output = _first(made)
                if output is not None:
                    self.seen.activations[path] = _size(output) / size
                    self._listen_back(path, 0, output)

    def _listen_back(self, path: str, place: int, tensor: Tensor) -> None:
        """Keep the size of a gradient when it comes: of a block's output (0) or input (1)."""
        if not tensor.requires_grad or tensor.is_leaf:  # hooks on leaves would stay
            return
        sizes = self.seen.gradients.setdefault(path, [None, None])

        def keep(grad: Tensor) -> None:
            sizes[place] = _size(grad)

        tensor.register_hook(keep)


def geometry_of(
    func: Callable[..., Tensor], name: str, args: Any, kwargs: Any, result: Tensor
) -> tuple[Geometry, list[Tensor]]:
    """Return how a layer was called, and its weight and bias."""
    if name == "addmm" or name in PRODUCTS:
        given, used = (args[1], args[2]) if name == "addmm" else args[:2]
        tensors = [used, args[0]] if name == "addmm" else [used]
        return Geometry(kind="matrix", shape=(1, given.shape[-1]), channels=result.shape[-1]), tensors
    named = bound_arguments(func, args, kwargs)
    given, weight, bias = named["input"], named["weight"], named.get("bias")
    tensors = [weight] if bias is None else [weight, bias]
    if name == "linear":
        return Geometry(kind="linear", shape=(1, given.shape[-1]), channels=result.shape[-1]), tensors
    spatial = weight.ndim - 2
    shape = (1, *(given.shape[1:] if given.ndim == weight.ndim else given.shape))
    channels = result.shape[1 if result.ndim == weight.ndim else 0]
    rest = {key: value for key, value in named.items() if key not in ("input", "weight", "bias")}
    if isinstance(rest["padding"], str):
        return Geometry(
            kind="other", shape=shape, channels=channels, function=lambda v, w: func(v, w, None, **rest)
        ), tensors
    settings = (
        *(_repeated(rest[key], spatial) for key in ("stride", "padding", "dilation")),
        "transpose" in name,
        _repeated(rest.get("output_padding", 0), spatial),
        rest["groups"],
    )
    return Geometry(kind="convolution", shape=shape, channels=channels, settings=settings), tensors


def _is_matrix(value: Any) -> bool:
    """Whether a factor is a weight."""
    return isinstance(value, nn.Parameter) and value.ndim == 2


def _repeated(value: Any, count: int) -> list[int]:
    """Return one number per dimension."""
    given = [value] if isinstance(value, int) else list(value)
    return given * count if len(given) == 1 else given


def _key(value: Any) -> Any:
    """Return what two tensors on the same memory share: wrappers may hand a value on as another tensor."""
    if not isinstance(value, Tensor):
        return None
    try:
        return value.data_ptr(), value.numel()
    except (RuntimeError, ValueError):  # no memory of its own, or none yet
        return id(value)


def _size(tensor: Tensor) -> Tensor:
    """Return the root mean square."""
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    return torch.linalg.vector_norm(tensor.detach(), dtype=wide).float() / max(tensor.numel(), 1) ** 0.5


def _first(value: Any) -> Tensor | None:
    return next((t for t in _tensors(value) if t.is_floating_point()), None)


def _tensors(value: Any) -> list[Tensor]:
    inner = vars(value) if hasattr(value, "__dict__") and not isinstance(value, Tensor) else value
    return [leaf for leaf in tree_leaves(inner) if isinstance(leaf, Tensor)]
