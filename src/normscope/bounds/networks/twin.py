"""`twin`: the same architecture and weights with its normalizers removed, replaced or inserted."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ...calls.call import Call, arguments
from ...calls.data_reader import Batches
from ...calls.stand_ins import accepts_graph
from ...core.codec import JsonForm, Part
from ...core.errors import CaptureError, InputError, describe_error
from ...core.shown import Shown
from ...core.untouched import mode_of, outside_inference_mode, untouched, unwrapped
from ...core.whole_weights import refuse_sharded_weights
from ...listening.calls import NORMALIZERS
from ...networks.normalizer_modules import (
    NORMALIZER_KINDS,
    Absent,
    ChannelAffine,
    FeaturesLast,
    Normalized,
    NormalizerKind,
    NormalizerPlace,
    build,
    original_of,
    place_of,
    remember,
)
from ..graph.capturing import trace_model
from ..graph.ir import Graph
from ..operators.invariance import feeds, moves_all, weight_layer

Where = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
ACTIVATIONS = {
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid",
    "softplus", "hardtanh", "hardswish", "hardsigmoid", "clamp_min", "softsign",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One module of a model that differs in its twin.

    Attributes:
        path: the path of the module.
        was, now: the module in the model, and the one in the twin.
        note: what was done to weights, scales, shifts or statistics.
    """

    path: str
    was: str
    now: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin(Part, Shown):
    """A copy of a model with other normalizers. Prints as a table of what was changed.

    Attributes:
        model: the twin, a `torch.nn.Module` of its own; None where the list of changes was read from a file.
        normalizer: the kind of normalizer that was asked for; None for none.
        changes: one per changed module, in the order of the model.
        checked: whether the twin was run on a batch.
        notes: what the reader must know.
    """

    page = "normscope.bounds.pages.weights:twin_document"
    JSON: ClassVar[JsonForm] = JsonForm(left_out=("model",))

    model: nn.Module = field(default=None, repr=False)  # type: ignore[assignment]
    normalizer: str | None
    changes: tuple[Change, ...]
    checked: bool
    notes: tuple[str, ...] = ()


@accepts_graph
@outside_inference_mode
def twin(
    model: nn.Module,
    data: Any = None,
    *,
    normalizer: NormalizerKind | None,
    labels: Any = None,
    where: Where = None,
    fold: bool = False,
    groups: int | None = None,
) -> Twin:
    """Return a copy of a model with its normalizers removed, replaced or inserted, and the list of changes.

    All weights are kept, and so are the names of the remaining modules; the scale, shift and eps of a replaced
    normalizer go to the new one. The model itself is not touched. Each kind normalizes what it usually does: on images
    LayerNorm and RMSNorm normalize all channels and positions of a sample together (`GroupNorm(1, C)`), on tokens the
    features of each token; GroupNorm normalizes groups of channels, on tokens those of each token; BatchNorm and
    InstanceNorm normalize positions together, so that in a causal model a token depends on later ones through them.

    A twin remembers the normalizers that it replaces: the twin of a twin, with the normalizer of the model, is the
    model again, with its running statistics.

    Args:
        model: any `torch.nn.Module` (or its captured graph) whose normalizers are modules.
        data: a batch of inputs, an iterable of batches such as a `DataLoader`, or a data set; the first batch counts.
            With it the twin is run and checked, normalizing sets of one or two entries is refused, and new BatchNorms
            take their running statistics from it. Folding and inserting need it.
        normalizer: `"batch"`, `"layer"`, `"group"`, `"instance"`, `"rms"`, or None to remove them.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        where: which modules to change: patterns of module paths (`"layer1.*"`), or a function of path and module. They
            name normalizers to change or, if they name none, weight layers behind which to insert one. None for all
            normalizers or, in a model without any, for every weight layer that feeds an activation.
        fold: with `normalizer=None`: fold BatchNorms in eval mode into the layers before them instead of dropping them,
            so that the function in eval mode stays the same.
        groups: the number of groups of GroupNorms; None for sixteen channels per group, or for two groups where there
            are fewer than 32 channels.

    Returns:
        `.model` is the twin, `.changes` lists what was changed and how; prints as a table.

    Raises:
        InputError: a normalizer is a function call or of no known kind, the kind that was asked for does not fit
            somewhere, or the twin does not run; the message says where and why, and what to do.

    Example:
        >>> import torch, normscope as ns
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
        >>> twin = ns.twin(model, torch.randn(4, 1, 8, 8), normalizer="group")
        >>> twin.changes[0].path, twin.changes[0].was, twin.changes[0].now
        ('1', 'BatchNorm2d(32)', 'GroupNorm(2, 32)')
        >>> back = ns.twin(twin.model, normalizer="batch").model
        >>> torch.equal(back.eval()(torch.ones(1, 1, 8, 8)), model.eval()(torch.ones(1, 1, 8, 8)))
        True

    Reference: the comparisons of Than (appendix E), Akbar (section 9) and Wu and He (2018).
    """
    mode_of(model, None)
    if normalizer is not None and normalizer not in NORMALIZER_KINDS:
        raise InputError(f"normalizer is one of {', '.join(NORMALIZER_KINDS)} or None, not {normalizer!r}")
    if fold and normalizer is not None:
        raise InputError("fold=True takes BatchNorms into the layers before them: it needs normalizer=None")
    if fold and data is None:
        raise InputError("fold=True needs a batch, to see which layer feeds which normalizer: twin(model, data, ...)")
    model = unwrapped(model)
    batches = None if data is None else Batches(model, data, labels=labels)
    batch = None if batches is None else batches.first
    call = None if batches is None else arguments(model, batch)
    builder = _TwinBuilder(copied(model), batch, call, normalizer, groups)
    builder.notes += () if batches is None else batches.notes
    builder.apply(where, fold=fold)
    return builder.finished()


class _TwinBuilder:
    """A copy of a model that is turned into a twin, change by change.

    Attributes:
        model, batch, call: the copy, an input of it, and how it is called with that input.
        normalizer, groups: what was asked for.
        changes, notes: what was changed, and what the reader must know.
        new_norms: the new BatchNorms.
        replacements: the replacement of every replaced module by its id, as a module may be known by several names.
    """

    def __init__(
        self, model: nn.Module, batch: Any, call: Call | None, normalizer: NormalizerKind | None, groups: int | None
    ) -> None:
        self.model, self.batch, self.call, self.normalizer, self.groups = model, batch, call, normalizer, groups
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.new_norms: list[_BatchNorm] = []
        self.replacements: dict[int, nn.Module] = {}

    def apply(self, where: Where, *, fold: bool) -> None:
        """Make every change that was asked for."""
        places = dict(self._places())
        asked = {path: item for path, item in places.items() if chosen(where, path, item[0])}
        shapes: dict[int, tuple[int, ...]] = {}
        if self.call is not None:
            shapes, functions = module_shapes(self.model, self.call, [module for module, _ in places.values()])
            if functions and where is None:
                raise InputError(
                    f"the model calls {', '.join(functions)} as a function, which no twin can replace: use the module "
                    "(torch.nn.LayerNorm and so on) in the model, or name the places to change with where="
                )
        into = foldable(self._graph("fold", "eval"), self.model) if fold else {}
        for path, (module, place) in asked.items():
            try:
                self._change(path, module, place, shapes.get(id(module)), fold=fold, into=into.get(path))
            except InputError as error:
                raise InputError(f"`{path or type(module).__name__}`: {error}") from error
        if not asked:
            self._insert_all(where)

    def _insert_all(self, where: Where) -> None:
        """Insert normalizers behind the weight layers that are named, or behind those that feed an activation."""
        if self.normalizer is None:
            self.notes.append("no normalizer that is a module was found: the twin is a plain copy")
            return
        if where is None:
            graph = self._graph("find the places for normalizers (or name them with where=)")
            paths = hidden_layers(graph, self.model)
        else:
            paths = [path for path, layer in weight_layers(self.model) if chosen(where, path, layer)]
        if not paths:
            raise InputError(f"where={where!r} names no normalizer and no weight layer of the model")
        for path in paths:
            self._insert(path)

    def finished(self) -> Twin:
        """Check the twin and return it."""
        _without_fast_path(self.model)
        if self.call is not None and self.changes:
            self.notes += calibrate_batch_norms(self.model, self.call, self.new_norms)
            self.notes += check_run(self.model, self.call, self.replacements.values())
        return Twin(
            model=self.model,
            normalizer=self.normalizer,
            changes=tuple(self.changes),
            checked=self.call is not None,
            notes=tuple(self.notes),
        )

    def _places(self) -> Iterator[tuple[str, tuple[nn.Module, NormalizerPlace]]]:
        """Yield every normalizer, and every module that replaces one that was taken out, by path."""
        normalizers: set[str] = set()
        for path, module in self.model.named_modules(remove_duplicate=False):
            if any(path.startswith(f"{outer}.") for outer in normalizers):
                continue
            try:
                place = place_of(module)
            except InputError as error:
                raise InputError(f"`{path}`: {error}: a twin cannot be built") from error
            if place is not None:
                normalizers.add(path)
                yield path, (module, place)

    def _graph(self, purpose: str, mode: str | None = None) -> Graph:
        """Return the graph of the copy; errors name the purpose."""
        if self.batch is None:
            raise InputError(f"the model must be traced to {purpose}: pass a batch, twin(model, batch, ...)")
        try:
            return trace_model(self.model, self.batch, mode=mode)
        except CaptureError as error:
            raise InputError(f"the model cannot be traced to {purpose}: {error}") from error

    def _change(
        self,
        path: str,
        module: nn.Module,
        place: NormalizerPlace,
        shape: tuple[int, ...] | None,
        *,
        fold: bool,
        into: str | None,
    ) -> None:
        """Change one normalizer as was asked; `into` is the layer into which it can be folded."""
        if place.kind == self.normalizer and not fold:
            return
        parent = self.model.get_submodule(path.rpartition(".")[0]) if path else None
        if isinstance(parent, Normalized) and self.normalizer is None:
            outer = path.rpartition(".")[0]
            self._put(outer, parent.layer)
            self._record(outer, module, "nothing", "it had been put in; the layer is as it was")
        elif fold:
            self._fold(path, module, into)
        elif id(module) in self.replacements:
            self._put(path, self.replacements[id(module)])
        elif self.normalizer is None:
            self._put(path, remember(Absent(), original_of(module) or module), module)
            self._record(path, module, "nothing", "its scale and shift go with it" if place.scale is not None else "")
        else:
            self._replace(path, module, place, shape)

    def _replace(self, path: str, module: nn.Module, place: NormalizerPlace, shape: tuple[int, ...] | None) -> None:
        """Replace a normalizer: by the original of the model if that is of the kind asked for, else by a new one."""
        assert self.normalizer is not None
        original = original_of(module)
        before = None if original is None else place_of(original)
        if original is not None and before is not None and before.kind == self.normalizer:
            new = copy.deepcopy(original)
            note = "as it was in the model, statistics included"
            if place.kind is not None:
                _carry(place, new)
                note += "; its scale and shift are those of the twin"
        else:
            self._check_samples(shape)
            new = remember(build(self.normalizer, place, shape, self.groups), original or module)
            self.new_norms += [part for part in new.modules() if isinstance(part, _BatchNorm)]
            dropped = place.shift is not None and not any(name.endswith("bias") for name, _ in new.named_parameters())
            kept = "scale kept, shift dropped" if dropped else "scale and shift kept" if place.scale is not None else ""
            note = "; ".join(filter(None, (kept, place.note)))
        like = next(self.model.parameters(), None)
        new = new if like is None else new.to(device=like.device)
        self._put(path, new.train(module.training), module)
        self._record(path, module, _described(new), note)

    def _fold(self, path: str, module: nn.Module, into: str | None) -> None:
        """Fold a BatchNorm into the layer before it; where no layer can take it, keep it as an affine map."""
        if into is None:
            scale, shift = coefficients(module)
            like = next((value for value in (module.weight, module.running_mean) if isinstance(value, Tensor)), scale)
            self._put(path, remember(ChannelAffine(scale.to(like), shift.to(like)), module), module)
            self._record(path, module, "ChannelAffine", "no layer feeds it alone: its affine map stays, in its place")
            return
        layer = folded(self.model.get_submodule(into), module)
        self._put(into, layer)
        self._put(path, remember(Absent(), module), module)
        self._record(path, module, "nothing", f"folded into `{into}`, with its running statistics")

    def _insert(self, path: str) -> None:
        """Insert a normalizer behind a weight layer."""
        assert self.normalizer is not None
        layer: Any = self.model.get_submodule(path)
        last = isinstance(layer, nn.Linear)
        features = layer.out_features if last else layer.out_channels
        ranks = (2, 3, 4, 5) if last else (layer.weight.ndim,)
        place = NormalizerPlace(kind=None, features=features, last=last, ranks=ranks)
        shape = None
        if self.call is not None:
            shape = module_shapes(self.model, self.call, [layer], outputs=True)[0].get(id(layer))
        try:
            self._check_samples(shape)
            norm = build(self.normalizer, place, shape, self.groups).to(layer.weight).train(layer.training)
        except InputError as error:
            raise InputError(f"behind `{path}`: {error}") from error
        self.new_norms += [part for part in norm.modules() if isinstance(part, _BatchNorm)]
        self.replacements[id(norm)] = norm
        self._put(path, Normalized(layer, norm))
        self.changes.append(Change(path=path, was="nothing behind it", now=_described(norm), note="put in, scale 1"))

    def _check_samples(self, shape: tuple[int, ...] | None) -> None:
        """Refuse InstanceNorm where the first axis does not count the samples: it would mix them."""
        if self.normalizer != "instance":
            return
        sequence_first = any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in self.model.modules())
        if sequence_first or (shape is not None and self.call is not None and shape[0] != self.call.count):
            raise InputError(
                "its tensor does not have the samples on the first axis, so that instance normalization would mix them"
            )

    def _put(self, path: str, new: nn.Module, old: nn.Module | None = None) -> None:
        """Set the module at a path; `old` is the module that it replaces everywhere."""
        if old is not None:
            self.replacements[id(old)] = new
        if not path:
            self.model = new
            return
        parent, _, name = path.rpartition(".")
        self.model.get_submodule(parent)._modules[name] = new

    def _record(self, path: str, was: nn.Module, now: str, note: str) -> None:
        """Add a change to the list."""
        described = "nothing" if isinstance(was, Absent) else _described(was)
        self.changes.append(Change(path=path, was=described, now=now, note=note))


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a model, with tensors of its own."""
    refuse_sharded_weights(model)
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise InputError(
            f"the model cannot be copied ({describe_error(error)}): replace torch.nn.utils.weight_norm by "
            "torch.nn.utils.parametrizations.weight_norm, and keep only modules and parameters in it"
        ) from error


def chosen(where: Where, path: str, module: nn.Module) -> bool:
    """Whether `where` names a module."""
    if where is None:
        return True
    if callable(where):
        return bool(where(path, module))
    patterns = [where] if isinstance(where, str) else where
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def weight_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield linear layers and convolutions, except the one in a MultiheadAttention, which is read and never run."""
    for path, module in model.named_modules():
        only_read = isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)
        if isinstance(module, nn.Linear | _ConvNd | _ConvTransposeNd) and not only_read:
            yield path, module


def _carry(place: NormalizerPlace, new: nn.Module) -> None:
    """Give a normalizer the scale and shift of a place, where the shapes fit and the values differ."""
    target = new.norm if isinstance(new, FeaturesLast) else new
    own = place_of(target)
    for name, value, current in (
        ("weight", place.scale, None if own is None else own.scale),
        ("bias", place.shift, None if own is None else own.shift),
    ):
        parameter = getattr(target, name, None)
        if not isinstance(parameter, Tensor) or value is None or current is None or parameter.shape != value.shape:
            continue
        with torch.no_grad():
            if not torch.equal(value, current.to(value)):
                parameter.add_(value.to(current) - current)  # The scale may be 1 + weight.


def _described(module: nn.Module) -> str:
    """Return a normalizer in words, as `BatchNorm2d(32)`."""
    inner = module.norm if isinstance(module, FeaturesLast) else module
    name = type(inner).__name__
    if isinstance(inner, nn.GroupNorm):
        return f"{name}({inner.num_groups}, {inner.num_channels})"
    place = place_of(inner)
    return name if place is None else f"{name}({place.features})"


def _without_fast_path(model: nn.Module) -> None:
    """Keep torch's encoder from its fused kernel, which takes `norm1` for a LayerNorm and reads its weights."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            plain = all(type(norm) is nn.LayerNorm for norm in (module.norm1, module.norm2))
            if not plain:
                module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = module.use_nested_tensor and all(
                getattr(layer, "activation_relu_or_gelu", 0) for layer in module.layers
            )


def hidden_layers(graph: Graph, model: nn.Module) -> list[str]:
    """Return the paths of linear layers and convolutions whose output an activation reads, in order."""
    readers: dict[str, list[str]] = {}
    for node in graph:
        for name in node.refs:
            readers.setdefault(name, []).append(node.name)
    nodes = {node.name: node for node in graph}

    def activated(name: str) -> bool:
        for reader in (nodes[other] for other in readers.get(name, ())):
            if reader.operator.rstrip("_") in ACTIVATIONS or (moves_all(reader) and activated(reader.name)):
                return True
        return False

    modules = dict(model.named_modules())
    activated_paths = [node.path for node in graph if weight_layer(node) is not None and activated(node.name)]
    paths = [path for path in dict.fromkeys(activated_paths) if isinstance(modules.get(path), nn.Linear | _ConvNd)]
    if not paths:
        raise InputError("no linear layer or convolution of the model feeds an activation: name the places with where=")
    return paths


def coefficients(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the scale and shift per channel, in float64, that a BatchNorm applies in eval mode."""
    if not isinstance(norm, _BatchNorm):
        kind = getattr(place_of(norm), "kind", None)
        raise InputError(f"only BatchNorm folds: {kind or type(norm).__name__} normalization divides by what it sees")
    if norm.running_mean is None or norm.running_var is None:
        raise InputError("it has no running statistics (track_running_stats=False), so that it is no affine map")
    with torch.no_grad():
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight.double()
        shift = -norm.running_mean.double() * scale
        return scale, shift if norm.bias is None else shift + norm.bias.double()


def foldable(graph: Graph, model: nn.Module) -> dict[str, str]:
    """Return the path of every BatchNorm that can be folded, with the path of the layer into which it can be.

    The layer must feed the BatchNorm and nothing else, run once, and share its tensors with no other layer.
    """
    modules = dict(model.named_modules())
    uses = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    runs = Counter((node.path, node.op) for node in graph)
    into = {}
    for feed in feeds(graph):
        weight, norm = feed.weight, feed.normalizer
        layer = modules.get(weight.path)
        if not isinstance(layer, nn.Linear | _ConvNd) or hasattr(layer, "parametrizations") or not feed.exclusive:
            continue
        single = runs[weight.path, weight.op] == 1 == runs[norm.path, norm.op]
        if single and all(uses[id(tensor)] == 1 for tensor in layer.parameters()):
            into[norm.path] = weight.path
    return into


def folded(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """Return a copy of a layer that computes what the layer and the BatchNorm behind it compute in eval mode."""
    assert isinstance(layer, nn.Linear | _ConvNd)
    scale, shift = coefficients(norm)
    new: Any = copy.deepcopy(layer)
    with torch.no_grad():
        weight = layer.weight.double()
        if isinstance(layer, _ConvTransposeNd):  # Its weight is [inputs, outputs of a group, ...].
            parts = weight.reshape(layer.groups, -1, *weight.shape[1:])
            factors = scale.reshape(layer.groups, 1, -1, *(1,) * (weight.ndim - 2))
            weight = (parts * factors).reshape(weight.shape)
        else:
            weight = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
        bias = shift if layer.bias is None else layer.bias.double() * scale + shift
        new.weight.copy_(weight)
        new.bias = nn.Parameter(bias.to(layer.weight), requires_grad=layer.weight.requires_grad)
    return new


def module_shapes(
    model: nn.Module, call: Call, modules: Sequence[nn.Module], *, outputs: bool = False
) -> tuple[dict[int, tuple[int, ...]], tuple[str, ...]]:
    """Run a model once; return the shape of each module's input, and the normalizing functions that are called."""
    shapes: dict[int, tuple[int, ...]] = {}
    functions = _NormalizingCalls()

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        functions.depth += 1
        values = [*args, *kwargs.values()]
        if not outputs and values and isinstance(values[0], Tensor):
            shapes[id(module)] = tuple(values[0].shape)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        functions.depth -= 1
        if outputs and isinstance(output, Tensor):
            shapes[id(module)] = tuple(output.shape)

    hooks: list[Any] = []
    try:
        with untouched(model), torch.no_grad(), functions:
            hooks += [module.register_forward_pre_hook(before, with_kwargs=True) for module in dict.fromkeys(modules)]
            hooks += [module.register_forward_hook(after) for module in dict.fromkeys(modules)]
            run(model, call)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes, tuple(sorted(functions.called))


class _NormalizingCalls(TorchFunctionMode):
    """Notes which normalizing functions are called outside of some modules; `depth` counts the modules that run."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.called: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in NORMALIZERS and not self.depth:
            self.called.add(name)
        return func(*args, **(kwargs or {}))


def calibrate_batch_norms(model: nn.Module, call: Call, norms: Sequence[_BatchNorm]) -> list[str]:
    """Set the running statistics of new BatchNorms to those of the batch; return notes for the reader."""
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms:
        return []
    momenta = [(norm, norm.momentum) for norm in norms]
    statistics: list[tuple[Tensor, Tensor]] = []
    try:
        with untouched(model, "eval"), torch.no_grad():
            for norm in norms:
                norm.training, norm.momentum = True, None
                norm.reset_running_stats()
            run(model, call)
            statistics = [(b, b.clone()) for norm in norms for b in norm.buffers()]
    except InputError as error:
        return [f"the new BatchNorms could not take their running statistics from the batch: {error}"]
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
    with torch.no_grad():
        for buffer, value in statistics:
            buffer.copy_(value)
    return [f"the running statistics of {len(norms)} new BatchNorms are those of the batch: pass one that is large"]


def check_run(model: nn.Module, call: Call, used: Iterable[nn.Module]) -> list[str]:
    """Run a twin in eval mode without gradients, as users do; return notes for the reader."""
    not_run = {id(module) for module in used if not isinstance(module, nn.Identity)}
    # A global hook: a hook on a module would keep torch from its fused kernels.
    hook = register_module_forward_hook(lambda module, args, output: not_run.discard(id(module)))
    try:
        with untouched(model, "eval"), torch.no_grad():
            outputs = run(model, call)
    finally:
        hook.remove()
    if not_run:
        raise InputError(f"{len(not_run)} of the new normalizers never run: the model passes its modules by")
    finite = bool(torch.isfinite(outputs).all())
    return [] if finite else ["the twin gives infinite values or NaN on the batch in eval mode"]


def run(model: nn.Module, call: Call) -> Tensor:
    """Run a model on copies of its inputs; return all floats of its outputs in one row."""
    args, kwargs = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, (call.args, call.kwargs))
    try:
        outputs = tree_leaves(model(*args, **kwargs))
    except Exception as error:
        raise InputError(f"it raises {describe_error(error)} on the batch") from error
    floats = [leaf.reshape(-1) for leaf in outputs if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([leaf.to(floats[0].dtype) for leaf in floats]) if floats else torch.zeros(0)
