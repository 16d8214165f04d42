"""One forward, listened to: every normalizer and weight layer is measured where it runs, module or function.

The calls are seen by a `TorchFunctionMode` that is active on measured steps alone; nothing is changed, drawn at random
or waited for. What comes out are small tensors on the model's device.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..diagnosis.calls import NORMALIZERS, PRODUCTS, RECURRENT, RELUS, WEIGHTS, bound_arguments
from ..diagnosis.data_pass import set_count, set_positions, unit_axis
from ..diagnosis.examined import Site
from ..theory.normalizers import rms_epsilon
from .forward_record import ForwardRecord, NormalizerOnBatch, WeightOnBatch
from .naming import Names
from .probes.normalizer_probe import Sets, channel_variance, row_variance
from .probes.weight_probe import Geometry
from .schedule import Tier
from .user_hooks import in_user_hook

MOVES = ("view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "contiguous",
         "squeeze", "unsqueeze", "t", "swapaxes", "swapdims", "dropout", "to", "clone", "_to_copy")  # fmt: skip
"""Functions that only move entries, or leave them: what is scale invariant behind them is so before them."""
EMBEDDINGS = ("embedding", "embedding_bag")
"""Functions that look rows up."""


class Tap(TorchFunctionMode):
    """Listens to forwards of one model.

    Args:
        model: whose modules give the paths.
        blocks: modules whose gains are measured in the tiers above economy.
        names: of the modules; as they are now if not given.
    """

    def __init__(self, model: nn.Module, blocks: tuple[str, ...] = (), names: Names | None = None) -> None:
        super().__init__()
        known = names or Names(model)
        self.modules = known.modules(model)
        self.names = {id(module): name for name, module in self.modules.items()}
        self.parameters = {id(parameter): name for name, parameter in known.parameters(model).items()}
        self.blocks = set(blocks)
        self.seen = ForwardRecord()

    @contextlib.contextmanager
    def listening(self, tier: Tier, *, readers: bool = False) -> Iterator[ForwardRecord]:
        """Listen to one forward.

        Args:
            tier: how much is measured.
            readers: also say who reads the outputs of the weight layers; they are kept for so long.
        """
        self._tier = tier
        self._made: dict[Any, tuple[Site, Tensor]] | None = {} if readers else None
        self._asked: set[Site] = set()
        self._answers: list[weakref.ref[Tensor]] = []
        self._stack: list[str] = []
        self._runs: Counter[tuple[str, str]] = Counter()
        self._inputs: list[float | Tensor | None] = []
        self._width, self._last = 0, True
        self.seen = ForwardRecord()
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
            self._made, self.seen = None, ForwardRecord()

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
        elif name == "multi_head_attention_forward":
            with contextlib.suppress(Exception):  # never stops the model
                self._attention(bound_arguments(func, args, kwargs), result[0])
        elif name in RECURRENT or name in EMBEDDINGS:
            with contextlib.suppress(Exception):
                self._matrices("recurrent" if name in RECURRENT else "embedding", name, (*args, *kwargs.values()))
        elif name in RELUS and self._tier is not Tier.ECONOMY and isinstance(result, Tensor) and result.ndim > 1:
            with self._measuring("relu") as site:
                axis = unit_axis(result, self._width, last=self._last)
                others = [dim for dim in range(result.ndim) if dim != axis]
                self.seen.dead[site] = (result.detach().amax(others) <= 0).float().mean()
        self.seen.seconds += time.perf_counter() - began
        return result

    @property
    def _path(self) -> str:
        """The module that runs."""
        return self._stack[-1] if self._stack else ""

    @contextlib.contextmanager
    def _measuring(self, family: str, part: str = "") -> Iterator[Site]:
        """Count one run of a layer, or of a part of one; what cannot be measured is left out, never stops the model."""
        key = (f"{self._path}.{part}".strip("."), family)
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
        self.seen.normalizers[site] = NormalizerOnBatch(
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
        axis = 1 if "transpose" in name or name in PRODUCTS else 0
        channels = result.ndim - (tensors[0].ndim - 1 if "conv" in name else 1)
        self._width, self._last = result.shape[channels], "conv" not in name
        self._keep(site, geometry, tensors, axis, channels, result)

    def _keep(
        self, site: Site, geometry: Geometry, tensors: list[Tensor], axis: int, channels: int, result: Tensor | None
    ) -> None:
        """Note a weight layer, its weight and bias, and the output that will be read, if anybody asks for that."""
        named = [self._name(tensor) for tensor in tensors]
        self.seen.weights[site] = WeightOnBatch(
            parameters=tuple(found for found in named if found is not None),
            axis=axis,
            channels=channels,
            geometry=geometry,
            made=tensors[0].detach() if named[0] is None else None,
        )
        if self._made is not None:
            self.seen.readers[site] = [] if result is not None else [None]
            if result is not None:
                self._made[_key(result)] = (site, result)

    def _attention(self, given: Mapping[str, Any], result: Tensor) -> None:
        """Note the projections of torch's attention, which is one call to those who listen."""
        parts = {"in_proj": "in_proj_weight", "q_proj": "q_proj_weight", "k_proj": "k_proj_weight",
                 "v_proj": "v_proj_weight", "out_proj": "out_proj_weight"}  # fmt: skip
        for part, name in parts.items():
            weight, bias = given.get(name), given.get(name.replace("weight", "bias"))
            if weight is not None:
                with self._measuring("linear", part) as site:
                    geometry = Geometry(kind="linear", shape=(1, weight.shape[1]), channels=weight.shape[0])
                    tensors = [weight] if bias is None else [weight, bias]
                    self._keep(site, geometry, tensors, 0, result.ndim - 1, result if part == "out_proj" else None)

    def _matrices(self, family: str, name: str, given: tuple[Any, ...]) -> None:
        """Note the matrices of a recurrent layer, or the table of an embedding, each once however often it runs."""
        tensors = [leaf for leaf in tree_leaves(_held(name, given)) if isinstance(leaf, Tensor)]
        matrices = [tensor for tensor in tensors if tensor.ndim == 2 and tensor.is_floating_point()]
        for number, weight in enumerate(matrices if family == "recurrent" else matrices[:1]):
            own = self._name(weight)
            part = f"{number}" if own is None else own.rpartition(".")[2].removeprefix("weight_")
            part = part if family == "recurrent" else ""
            if (f"{self._path}.{part}".strip("."), family) in self._runs:  # a cell runs at every step of a sequence
                continue
            bias = None if own is None else own.replace("weight", "bias")
            with self._measuring(family, part) as site:
                geometry = Geometry(kind="linear", shape=(1, weight.shape[1]), channels=weight.shape[0])
                beside = [t for t in tensors if bias is not None and t.ndim == 1 and self._name(t) == bias]
                self._keep(site, geometry, [weight, *beside], 0, 1, None)

    def _follow(self, name: str, arguments: Any, result: Any) -> None:
        """Note where the output of a weight layer goes: entries that are only moved are still it."""
        assert self._made is not None, "asked for without readers"
        if in_user_hook():
            self._ask(name, arguments, result)
            return
        self._hear_answers()
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

    def _ask(self, name: str, arguments: Any, result: Any) -> None:
        """Note that a hook looks at what weight layers made, and what it may keep that has a gradient.

        Wrappers (FSDP) hand values on in hooks, on the same memory or in another precision: such a value is still the
        same, unless it was written to.
        """
        assert self._made is not None, "asked for without readers"
        self._asked |= {self._made[_key(leaf)][0] for leaf in tree_leaves(arguments) if _key(leaf) in self._made}
        if self._asked:
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
            if name in ("to", "_to_copy") and len(self._asked) == 1:
                self._made |= {_key(leaf): (next(iter(self._asked)), leaf) for leaf in leaves}
            written = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
            self._answers += [weakref.ref(leaf) for leaf in leaves if written or _key(leaf) not in self._made]

    def _hear_answers(self) -> None:
        """Count a hook as a reader if something that it made lives on: it may come back into the model or the loss."""
        if any(answer() is not None for answer in self._answers):
            for site in self._asked:
                self.seen.readers[site].append(None)
        self._asked, self._answers = set(), []

    def _read(self, reader: Site | None, arguments: Any) -> None:
        """Note who reads what a weight layer made."""
        if self._made:
            for leaf in tree_leaves(arguments):
                if _key(leaf) in self._made:
                    self.seen.readers[self._made[_key(leaf)][0]].append(reader)

    def _name(self, tensor: Tensor) -> str | None:
        """Return the name of the parameter that a layer used."""
        if id(tensor) in self.parameters:
            return self.parameters[id(tensor)]
        module = self.modules.get(self._path)  # sharded parameters are gathered into others while their module runs
        held = [] if module is None else module.named_parameters()
        return next((f"{self._path}.{name}".strip(".") for name, p in held if p is tensor), None)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        began = time.perf_counter()
        with torch._C.DisableTorchFunction():  # what is measured here is not part of the forward
            self._entered(module, args)
        self.seen.seconds += time.perf_counter() - began

    def _leave_module(self, module: nn.Module, args: Any, made: Any) -> None:
        began = time.perf_counter()
        with torch._C.DisableTorchFunction():
            if self._made and self.names.get(id(module)) == "":
                with contextlib.suppress(Exception):
                    self._hear_answers()
                    self._read(None, _tensors(made))  # what the model returns is read by the loss
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


def _held(name: str, given: tuple[Any, ...]) -> Any:
    """Return which arguments of a recurrent layer, or of an embedding, hold its parameters."""
    if name in EMBEDDINGS:
        return given
    return given[2:] if name.endswith("_cell") else [held for held in given if isinstance(held, list | tuple)][-1]


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
