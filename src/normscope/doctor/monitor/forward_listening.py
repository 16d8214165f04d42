"""How one forward of a watched model is listened to, and what it shows: small tensors on the model's device.

There are three ways, and `StepListener` takes the cheapest that will do. `FunctionListener` has everything on: every
layer is measured where it runs, module or function. `ModuleListener` hooks a few modules of networks that are made of
torch's own layers, and reads BatchNorms off their running variances. Where listening would change the forward or hear
nothing, the model is run once more, `aside`. All of it happens on measured steps alone; nothing is changed, drawn at
random or waited for.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from ...core.threads import uncompiled
from ...core.untouched import untouched
from ...core.whole_weights import is_sharded
from ...listening.calls import (
    EMBEDDINGS,
    NORMALIZERS,
    PRODUCTS,
    FunctionCall,
    LayerGeometry,
    NormalizerSeen,
    Site,
    WeightSeen,
    normalizer_seen,
    row_variance,
    tensors_in,
)
from ...listening.listener import LayerListener, Names, in_user_hook
from ...theory.normalizers import rms_epsilon
from .blocks import find_blocks
from .distributed import groups_of
from .forward_record import AppliedWeight, ForwardRecord
from .quantities.blocks import BlockGains
from .quantities.dead_units import measure_dead_units
from .running_variances import MIN_MOMENTUM, BatchNorms
from .schedule import Tier

Timing = Callable[[], AbstractContextManager[Any]]
ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
PROJECTIONS = {"in_proj": "in_proj_weight", "q_proj": "q_proj_weight", "k_proj": "k_proj_weight",
               "v_proj": "v_proj_weight", "out_proj": "out_proj_weight"}  # fmt: skip
"""The weights of torch's attention by the names of its projections."""
ROW_NORMALIZERS = {"layer_norm": nn.LayerNorm, "group_norm": nn.GroupNorm, "rms_norm": nn.RMSNorm}
"""Normalizers of single samples that a hook on their module can measure."""
MOVES = ("view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "contiguous",
         "squeeze", "unsqueeze", "t", "swapaxes", "swapdims", "dropout", "to", "clone", "_to_copy")  # fmt: skip
"""Functions that only move entries, or leave them: what is scale invariant behind them is so before them."""


# ---- which way it is listened to


class StepListener:
    """Listens to forwards of a model, one at a time: the first with everything on, later ones as cheaply as possible.

    Args:
        outer: the model as it is called in the loop.
        model: the one inside.
        timing: makes contexts in which the time inside the forward that listening takes is counted.
    """

    def __init__(self, outer: nn.Module, model: nn.Module, timing: Timing = nullcontext) -> None:
        self._outer, self._model, self._timing = outer, model, timing
        self._names: Names | None = None
        self._blocks: tuple[str, ...] = ()
        self._cheap: ModuleListener | None = None
        self._shapes: list[tuple[int, ...]] = []
        self._apart = self._delicate = False
        self._stack: ExitStack | None = None
        self._hearing: ForwardRecord | None = None

    @property
    def listens(self) -> bool:
        """Whether it listens to a forward just now."""
        return self._stack is not None

    @property
    def apart(self) -> bool:
        """Whether to listen inside of a forward would change it, or hear nothing: it is run once more, aside."""
        return self._apart or self._delicate

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules that the model has now; each keeps the name that it had at the first forward."""
        return dict(self._model.named_modules()) if self._names is None else self._names.modules(self._model)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the model has now; each keeps the name that it had at the first forward."""
        return (self._names or Names(self._model)).parameters(self._model)

    def begin(self, tier: Tier, args: Any, kwargs: Any, *, first: bool) -> ForwardRecord | None:
        """Listen to the forward that begins; return what it showed if it was run aside instead.

        Args:
            tier: how much is measured.
            args: the positional arguments of the forward.
            kwargs: the named arguments of the forward.
            first: whether it says what there is to watch.
        """
        self._delicate = is_delicate(
            self._outer.modules() if self._outer is not self._model else self.modules().values()
        )
        shapes = [tuple(leaf.shape) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        cheap = self._cheap if tier is Tier.ECONOMY and shapes and shapes == self._shapes else None
        cheap = cheap if cheap is not None and cheap.ready() else None
        if first:
            self._shapes, self._apart, self._blocks = shapes, compiled_functions(), find_blocks(self._model)
            self._names = Names(self._model)
        if cheap is None:  # to modules as they are now
            listening = FunctionListener(self._model, self._blocks, self._names, self._timing).recording(
                tier, readers=first
            )
        else:
            listening = cheap.recording()
        if (cheap is None or cheap.hooked) and self.apart:
            with aside(self._model), listening as forward:
                self._model(*args, **kwargs)
            return forward
        self._stack = ExitStack()
        self._hearing = self._stack.enter_context(listening)
        return None

    def end(self) -> ForwardRecord | None:
        """Stop listening, and return what the forward showed."""
        heard, self._hearing = self._hearing, None
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        return heard

    def learn(self, forward: ForwardRecord) -> None:
        """Listen to later forwards as cheaply as the first one allows."""
        fits = ModuleListener.fits(self._model, forward)
        self._cheap = ModuleListener(self._model, forward, self._timing) if fits else None

    def close(self) -> None:
        """Stop listening, and keep no model alive."""
        self.end()
        self._cheap = self._names = None
        for name in ("_outer", "_model"):
            self.__dict__.pop(name, None)


def aside(model: nn.Module) -> ExitStack:
    """Return a context in which a model can be run without a trace: eager, no gradients, all put back."""
    stack, modes = ExitStack(), [(module, module.training) for module in model.modules()]
    stack.enter_context(untouched(model))
    for module, mode in modes:  # with dropout, as in the run
        module.training = mode
    stack.enter_context(torch.no_grad())
    stack.enter_context(uncompiled())
    return stack


def is_delicate(modules: Iterable[nn.Module]) -> bool:
    """Whether to listen inside of a forward of some modules would change it, or hear nothing.

    A part of the model is compiled, or attention in eval mode, whose fast path torch takes only where nobody listens.
    """
    return any(
        "_orig_mod" in module._modules  # hasattr would take long to say no
        or getattr(module, "_compiled_call_impl", None) is not None
        or (isinstance(module, ATTENTION) and not module.training)
        for module in modules
    )


def compiled_functions() -> bool:
    """Whether this process has functions that torch.compile has made: a model may call them."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", None)
    if frames is None or (backends is not None and not any(map(callable, backends.values()))):
        return False  # nothing was compiled: to look at every object takes long
    return any(
        type(held) is FunctionType
        and "_torchdynamo_orig_callable" in held.__dict__
        and not held.__dict__.get("_torchdynamo_disable")
        for held in gc.get_objects()
    )


# ---- the cheap way


class ModuleListener:
    """Listens to forwards of a model that a `FunctionListener` has heard: hooks on few modules, or on none.

    The variances of a BatchNorm are read off the running variance that the forward moves: no pass over its input.

    Args:
        model: the model whose modules are hooked.
        first: what its first forward showed.
        timing: as in `StepListener`.
    """

    def __init__(self, model: nn.Module, first: ForwardRecord, timing: Timing = nullcontext) -> None:
        self._timing = timing
        self._modules = dict(model.named_modules())
        self._tree = [(m._modules, name, child) for m in self._modules.values() for name, child in m._modules.items()]
        self._held = [(m._parameters, name) for m in self._modules.values() for name in m._parameters]
        self._weights = {site: replace(weight, made=None) for site, weight in first.weights.items()}
        batch = {site: n for site, n in first.normalizers.items() if n.family == "batch_norm"}
        self._sites = list(batch)
        held = [self._modules[site[0]] for site in batch]
        self._norms = BatchNorms(held, list(batch.values())) if batch else None
        self._rows = {site: n for site, n in first.normalizers.items() if n.family != "batch_norm"}

    @staticmethod
    def fits(model: nn.Module, first: ForwardRecord) -> bool:
        """Whether a network can be listened to in this way."""
        modules = dict(model.named_modules())
        places = {n.variance.device for n in first.normalizers.values()}
        layers = not is_sharded(model.parameters()) and all(weight.made is None for weight in first.weights.values())
        fit = len(places) <= 1 and all(_is_hookable(modules, site, n) for site, n in first.normalizers.items())
        return layers and fit and not first.lost

    def ready(self) -> bool:
        """Whether modules and parameters are still there, and BatchNorms use and move their statistics as they did."""
        same = all(held.get(name) is child for held, name, child in self._tree)
        same = same and all(name in held for held, name in self._held)
        return same and (self._norms is None or self._norms.ready())

    @property
    def hooked(self) -> bool:
        """Whether any module has to be hooked; otherwise compiled models can be listened to as well."""
        return bool(self._rows)

    @contextmanager
    def recording(self) -> Iterator[ForwardRecord]:
        """Listen to one forward."""
        forward = ForwardRecord(weights=self._weights)
        with torch.no_grad():
            before = None if self._norms is None else self._norms.now()
        hooks = [
            self._modules[site[0]].register_forward_pre_hook(self._hook(forward, site, first), with_kwargs=True)
            for site, first in self._rows.items()
        ]
        try:
            yield forward
        finally:
            for hook in hooks:
                hook.remove()
        _copy_scales(forward)
        if self._norms is not None and before is not None:
            with torch.no_grad():
                forward.batch_norms = (self._sites, self._norms.changes_since(before))

    def _hook(self, forward: ForwardRecord, site: Site, first: NormalizerSeen) -> Any:
        """Return a hook that measures what enters a normalizer of single samples."""

        def before(module: Any, args: Any, kwargs: Any) -> None:
            # what cannot be measured never stops the model
            with self._timing(), contextlib.suppress(Exception), torch.no_grad():
                x = (args[0] if args else kwargs["input"]).detach()
                sets = x.numel() // first.entries
                variance = row_variance(x, sets=sets, groups=first.groups, centred=first.centred)
                eps = rms_epsilon(module.eps, x.dtype) if first.family == "rms_norm" else first.eps
                gamma = None if module.weight is None else module.weight.detach()
                forward.normalizers[site] = replace(first, variance=variance, samples=len(x), eps=eps, gamma=gamma)

        return before


def _copy_scales(forward: ForwardRecord) -> None:
    """Copy the scales of normalizers, all at once: the optimizer's step will change them."""
    scaled = {site: one for site, one in forward.normalizers.items() if one.gamma is not None}
    if scaled:
        copies = torch._foreach_mul([one.gamma for one in scaled.values()], 1.0)
        forward.normalizers |= {s: replace(one, gamma=c) for (s, one), c in zip(scaled.items(), copies, strict=True)}


def _is_hookable(modules: dict[str, nn.Module], site: Site, first: NormalizerSeen) -> bool:
    """Whether a normalizer is a module of torch's, called once, whose statistics say what its input was."""
    module = modules.get(site[0])
    if site[2] or module is None:
        return False
    if first.family == "batch_norm":
        if not isinstance(module, _BatchNorm) or module.running_var is None or first.stored:
            return False
        if module.num_batches_tracked is None or not module.track_running_stats:
            return False
        exact = module.running_var.dtype in (torch.float32, torch.float64)
        return exact and (module.momentum or 0.0) >= MIN_MOMENTUM and first.entries > 1
    return first.family in ROW_NORMALIZERS and type(module) is ROW_NORMALIZERS[first.family]


# ---- with everything on


class FunctionListener(LayerListener):
    """Listens to forwards of one model with everything on, and keeps what they show until the optimizer's step.

    Args:
        model: whose modules give the paths.
        blocks: modules whose gains are measured in the tiers above economy.
        names: the names of the modules; those that they have now if not given.
        timing: as in `StepListener`.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: tuple[str, ...] = (),
        names: Names | None = None,
        timing: Timing = nullcontext,
    ) -> None:
        self._timing, names = timing, names or Names(model)
        super().__init__(model, names.modules(model))
        self._parameters = {id(parameter): name for name, parameter in names.parameters(model).items()}
        self._blocks = frozenset(blocks)
        self._cut_over: list[Any] = []  # groups of processes with parts of what the last layer made

    @contextmanager
    def recording(self, tier: Tier, *, readers: bool = False) -> Iterator[ForwardRecord]:
        """Listen to one forward.

        Args:
            tier: how much is measured.
            readers: whether to say who reads the outputs of the weight layers, which are kept until the forward ends.
        """
        forward = self._forward = ForwardRecord()
        self.lost, self._tier = forward.lost, tier
        self._readers = OutputReaders(forward) if readers else None
        kept = forward.activations, forward.gradients
        self._gains = None if tier is Tier.ECONOMY else BlockGains(self._blocks, *kept, lambda: self._cut_over)
        try:
            with self.listening():
                yield forward
        finally:
            self._forward, self._readers, self._gains, self._cut_over = ForwardRecord(), None, None, list[Any]()

    def before_call(self, call: FunctionCall) -> None:
        """Measure a normalizer, and the time that this takes."""
        with self._timing():
            super().before_call(call)

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Measure any other layer, and the time that this takes."""
        with self._timing():
            if self._readers is not None and call.name not in NORMALIZERS:
                self._readers.follow(call, result)
            super().after_call(call, result)
            if call.name == "multi_head_attention_forward":
                with contextlib.suppress(Exception):  # never stops the model
                    self._keep_projections(call.named(), result[0])
            elif call.name in EMBEDDINGS:
                with contextlib.suppress(Exception):
                    tensors = _float_tensors_in((*call.args, *call.kwargs.values()))
                    table = next(tensor for tensor in tensors if tensor.ndim == 2)
                    self._keep_matrix("embedding", self.path, table, tensors)
        return result

    def entered(self, path: str | None, args: Any) -> None:
        """Measure the input of a block."""
        if self._gains is not None:
            with self._timing():
                self._gains.entered(path, args)

    def left(self, module: nn.Module, path: str, made: Any) -> None:
        """Measure the output of a block."""
        with self._timing():
            if self._readers is not None and module is self.model:
                with contextlib.suppress(Exception):
                    self._readers.returned(made)
            if self._gains is not None:
                self._gains.left(path, made)

    def normalizer(self, site: Site, call: FunctionCall) -> None:
        """Note what a normalizer is about to do, and that it reads its input; scales that it reads keep their size."""
        if self._readers is not None:
            self._readers.read(site, call.input)
            self._readers.read(None, (call.args[1:], {k: v for k, v in call.kwargs.items() if k != "input"}))
        if any(map(is_functorch_wrapped_tensor, tensors_in(call.input))):
            raise TypeError("values inside of torch.vmap cannot be kept")
        self._forward.normalizers[site] = normalizer_seen(call)

    def watches_weight(self, call: FunctionCall) -> bool:
        """Return whether a call has one operator norm: a product with a stack of matrices, or a vector, has none."""
        return call.name not in PRODUCTS or call.args[1].ndim == 2

    def weight(self, site: Site, seen: WeightSeen) -> None:
        """Keep which weight a layer applied, and how."""
        if seen.weight.is_complex() or seen.weight.ndim < 2:
            raise TypeError("no matrix of real numbers")
        self._keep(site, seen.geometry(), seen.tensors, seen.axis, seen.channels, seen.output)
        self._cut_over = [] if seen.output is None else groups_of(seen.output, seen.channels)

    def recurrent(self, call: FunctionCall, made: Any) -> None:
        """Keep the matrices of a recurrent layer, each once however often it runs."""
        with contextlib.suppress(Exception):  # never stops the model
            arguments = (*call.args, *call.kwargs.values())
            lists = [argument for argument in arguments if isinstance(argument, list | tuple)]
            tensors = _float_tensors_in(arguments[2:] if call.name.endswith("_cell") else lists[-1])
            for number, weight in enumerate(tensor for tensor in tensors if tensor.ndim == 2):
                name = self._name(weight)
                part = f"{number}" if name is None else name.rpartition(".")[2].removeprefix("weight_")
                self._keep_matrix("recurrent", self._inside(part), weight, tensors)

    def units(self, site: Site, made: Tensor, axis: int) -> None:
        """Measure the share of units that fired for no sample."""
        self._forward.dead[site] = measure_dead_units(made, axis, self._cut_over)

    def watches_units(self) -> bool:
        """Return whether dead units are measured in this tier."""
        return self._tier is not Tier.ECONOMY

    def _keep_projections(self, arguments: Mapping[str, Any], result: Tensor) -> None:
        """Keep the projections of torch's attention, which is one call to those who listen."""
        for part, name in PROJECTIONS.items():
            weight, bias = arguments.get(name), arguments.get(name.replace("weight", "bias"))
            if weight is not None:
                with self.measuring("linear", self._inside(part)) as site:
                    tensors = [weight] if bias is None else [weight, bias]
                    output = result if part == "out_proj" else None
                    self._keep(site, _matrix_geometry(weight), tensors, 0, result.ndim - 1, output)

    def _keep_matrix(self, family: str, path: str, weight: Tensor, beside: list[Tensor]) -> None:
        """Keep a matrix and its bias among the tensors beside it, unless it was kept in this forward."""
        if self.has_run(family, path):  # a cell runs at every step of a sequence
            return
        name = self._name(weight)
        bias = None if name is None else name.replace("weight", "bias")
        with self.measuring(family, path) as site:
            biases = [t for t in beside if bias is not None and t.ndim == 1 and self._name(t) == bias]
            self._keep(site, _matrix_geometry(weight), [weight, *biases], 0, 1, None)

    def _keep(
        self,
        site: Site,
        geometry: LayerGeometry,
        tensors: list[Tensor],
        axis: int,
        channels: int,
        output: Tensor | None,
    ) -> None:
        """Keep a weight layer, its weight and bias, and follow its output if readers are asked for."""
        names = [self._name(tensor) for tensor in tensors]
        self._forward.weights[site] = AppliedWeight(
            parameters=tuple(name for name in names if name is not None),
            axis=axis,
            channels=channels,
            geometry=geometry,
            made=tensors[0].detach() if names[0] is None else None,
        )
        if self._readers is not None:
            self._readers.add(site, output)

    def _inside(self, part: str) -> str:
        """Return the path of a part of the module that is running now."""
        return f"{self.path}.{part}".strip(".")

    def _name(self, tensor: Tensor) -> str | None:
        """Return the name of the parameter that a layer used."""
        if id(tensor) in self._parameters:
            return self._parameters[id(tensor)]
        module = self.modules.get(self.path)  # sharded parameters are gathered into others while their module runs
        held = [] if module is None else module.named_parameters()
        return next((self._inside(name) for name, p in held if p is tensor), None)


def _float_tensors_in(arguments: Any) -> list[Tensor]:
    """Return the tensors among some arguments that may be parameters of a layer."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _matrix_geometry(weight: Tensor) -> LayerGeometry:
    """Return how a matrix is applied to vectors."""
    return LayerGeometry(kind="linear", shape=(1, weight.shape[1]), channels=weight.shape[0])


# ---- who reads the output of a weight layer: a normalizer alone, or anything else that would see its scale


class OutputReaders:
    """Follows the outputs of weight layers through one forward, and keeps them until it ends.

    Args:
        forward: the record of the forward, to which the readers are added.
    """

    def __init__(self, forward: ForwardRecord) -> None:
        self._forward = forward
        self._made: dict[Any, tuple[Site, Tensor]] = {}
        self._asked: set[Site] = set()
        self._answers: list[weakref.ref[Tensor]] = []

    def add(self, site: Site, output: Tensor | None) -> None:
        """Follow the output of a weight layer; one that is not seen may be read by anything."""
        self._forward.readers[site] = [] if output is not None else [None]
        if output is not None:
            self._made[_memory_key(output)] = (site, output)

    def read(self, reader: Site | None, arguments: Any) -> None:
        """Note who reads what weight layers made."""
        if self._made:
            for leaf in tree_leaves(arguments):
                if _memory_key(leaf) in self._made:
                    self._forward.readers[self._made[_memory_key(leaf)][0]].append(reader)

    def follow(self, call: FunctionCall, result: Any) -> None:
        """Note where the outputs of weight layers go in a call; this never stops the model."""
        if not self._made:
            return
        try:
            if in_user_hook():
                self._ask(call, result)
            else:
                self._hear_answers()
                self._pass_on(call, result)
        except Exception:  # whatever was made may have been read here
            for site, _ in self._made.values():
                self._forward.readers[site].append(None)

    def returned(self, made: Any) -> None:
        """Note what the model returns: the loss reads it."""
        if self._made:
            self._hear_answers()
            self.read(None, tensors_in(made))

    def _pass_on(self, call: FunctionCall, result: Any) -> None:
        """Note the readers of a call; entries that it only moves are still the output."""
        arguments = (call.args, call.kwargs)
        output = next((leaf for leaf in tree_leaves(arguments) if _memory_key(leaf) in self._made), None)
        if output is None or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            return
        if call.name in MOVES and isinstance(result, Tensor):
            site = self._made[_memory_key(output)][0]
            self._made[_memory_key(result)] = (site, result)
            if (result.shape, result.stride()) != (output.shape, output.stride()):
                self._forward.moved.add(site)
        else:
            self.read(None, arguments)

    def _ask(self, call: FunctionCall, result: Any) -> None:
        """Note that a hook looks at what weight layers made, and what it may keep that has a gradient."""
        # wrappers (FSDP) hand values on in hooks, on the same memory or in another precision: such a value is still the
        # same, unless it was written to
        arguments = tree_leaves((call.args, call.kwargs))
        self._asked |= {self._made[_memory_key(leaf)][0] for leaf in arguments if _memory_key(leaf) in self._made}
        if self._asked:
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
            if call.name in ("to", "_to_copy") and len(self._asked) == 1:
                self._made |= {_memory_key(leaf): (next(iter(self._asked)), leaf) for leaf in leaves}
            written = call.name.startswith("__i") or (call.name.endswith("_") and not call.name.endswith("__"))
            self._answers += [weakref.ref(leaf) for leaf in leaves if written or _memory_key(leaf) not in self._made]

    def _hear_answers(self) -> None:
        """Count a hook as a reader if something that it made lives on: it may come back into the model or the loss."""
        if any(answer() is not None for answer in self._answers):
            for site in self._asked:
                self._forward.readers[site].append(None)
        self._asked, self._answers = set(), []


def _memory_key(value: Any) -> Any:
    """Return what two tensors on the same memory share: wrappers may hand a value on as another tensor."""
    if not isinstance(value, Tensor):
        return None
    try:
        return value.data_ptr(), value.numel()
    except (RuntimeError, ValueError):  # no memory of its own, or none yet
        return id(value)
