"""One pass over the data: every normalizer, weight layer and ReLU is watched where it runs, module or function.

The calls are seen by a `TorchFunctionMode`, so that functional layers count too; the module they belong to is known
from global hooks, which leave the user's modules alone. Everything is kept as running statistics.
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..core.errors import InputError, said
from ..core.progress import Progress
from ..core.untouched import untouched
from ..graph.call import arguments
from ..graph.ir import Node
from ..theory.normalizers import rms_epsilon
from .examined import DataSeen, Site
from .tallies import ChannelTally, SetTally, UnitsTally, WeightTally

NORMALIZERS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
WEIGHTS = {
    "linear": "linear", "addmm": "linear", "conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution",
    "conv_transpose1d": "convolution", "conv_transpose2d": "convolution", "conv_transpose3d": "convolution",
}  # fmt: skip
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
DROPOUTS = ("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
            "feature_dropout")  # fmt: skip
PRODUCTS = ("matmul", "__matmul__", "mm")
RELUS = ("relu", "relu_", "relu6")
FAMILIES = {  # how the operators of a graph are called in a `Site`
    "linear": "linear", "addmm": "linear", "mm": "linear", "matmul": "linear", "layer_norm": "layer_norm",
    "group_norm": "group_norm", "instance_norm": "instance_norm", "rms_norm": "rms_norm", "rms": "rms",
    "padded_convolution": "convolution",
}  # fmt: skip


def family(node: Node) -> str:
    """Return the family of a node, as a `Site` names it."""
    if "batch_norm" in node.operator:
        return "batch_norm"
    if node.operator in RECURRENT:
        return "recurrent"
    return "convolution" if node.operator.startswith("conv") else FAMILIES.get(node.operator, node.operator)


def first_names(model: nn.Module) -> dict[str, str]:
    """Return, for every name of a module, the first one it has."""
    first = {id(module): name for name, module in model.named_modules()}
    return {name: first[id(module)] for name, module in model.named_modules(remove_duplicate=False)}


def once(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes with one for each run of a recurrent layer, which hands out several values."""
    found: dict[Any, Node] = {}
    for node in nodes:
        key = (node.path, node.operator, node.refs, node.call) if node.operator in RECURRENT else node.name
        found.setdefault(key, node)
    return list(found.values())


def sites(model: nn.Module, nodes: Iterable[Node], seen: Iterable[Site]) -> dict[str, Site]:
    """Return where nodes ran, by their names: the module's path, the family, and a count of its runs.

    A module with several names goes by the first. Nodes of a module that ran more or less often than the graph knows
    (on constants, or beside the path to the output) are left out: which run is which cannot be told.
    """
    known = first_names(model)
    ran = Counter(site[:2] for site in seen)
    placed: dict[tuple[str, str], list[str]] = {}
    for node in once(nodes):
        placed.setdefault((known.get(node.path, node.path), family(node)), []).append(node.name)
    return {
        name: (*key, run) for key, group in placed.items() if len(group) == ran[key] for run, name in enumerate(group)
    }


@torch.no_grad()
def watch_data(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    mode: str | None = None,
    written: Mapping[str, float] | None = None,
) -> DataSeen:
    """Run a model over batches and summarise what its layers saw.

    Args:
        model: the user's model; left as found.
        batches: what the model takes, one by one (tensors, tuples, dicts; pairs with labels).
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        written: modules that compute an RMSNorm of their input over its last dimension in operators of their own, each
            with its eps.

    Returns:
        The summary; a model that raises gives one with an `error`.

    Raises:
        InputError: there is no batch, or a batch cannot be an input.
    """
    total = operator.length_hint(batches) or None
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    samples = count = 0
    error: str | None = None
    watcher = _Watcher(model, written or {})
    with ExitStack() as stack:
        stack.enter_context(untouched(model, mode))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        progress = stack.enter_context(Progress("reading data", total=total))
        for batch in batches:
            call = arguments(model, tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, batch))
            try:
                with watcher.watching():
                    model(*call.args, **call.kwargs)
            except Exception as raised:
                error = f"the model raises {said(raised)}, on batch {count + 1}"
                break
            samples += next(
                (len(v) for v in tree_leaves((call.args, call.kwargs)) if isinstance(v, Tensor) and v.ndim), 1
            )
            count += 1
            progress.step(f"batch {count}")
    if not count and error is None:
        raise InputError("the loader yields no batch: there is nothing to measure")
    return DataSeen(
        samples=samples,
        batches=count,
        order=tuple(watcher.order),
        normalizers=_summaries(watcher.normalizers, watcher.lost),
        weights=_summaries(watcher.weights, watcher.lost),
        units=_summaries(watcher.units, watcher.lost),
        not_finite=watcher.not_finite,
        error=error,
    )


def _summaries(tallies: Mapping[Site, Any], lost: set[Site]) -> dict[Site, Any]:
    """Return what each tally saw, without those that saw nothing or could not be kept."""
    seen = {site: tally.seen() for site, tally in tallies.items() if site not in lost}
    return {site: summary for site, summary in seen.items() if summary is not None}


class _Watcher(TorchFunctionMode):
    """Sees every call of a layer's function and hands it to the layer's tally."""

    def __init__(self, model: nn.Module, written: Mapping[str, float]) -> None:
        super().__init__()
        self.model, self.written = model, written
        self.names = {id(module): name for name, module in model.named_modules()}  # by its first name
        self.normalizers: dict[Site, SetTally | ChannelTally] = {}
        self.weights: dict[Site, WeightTally] = {}
        self.units: dict[Site, UnitsTally] = {}
        self.order: dict[Site, None] = {}
        self.lost: set[Site] = set()
        self.not_finite: tuple[str, str] | None = None
        self._begin()

    def _begin(self) -> None:
        self._stack: list[str] = []
        self._runs: Counter[tuple[str, str]] = Counter()
        self._flags: list[tuple[str, Tensor]] = []
        self._channel_last = False
        self._width: int | None = None

    @contextmanager
    def watching(self) -> Any:
        """Watch one forward."""
        self._begin()
        hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()
        self._look_for_nan()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, then tally its input and output."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]  # operators are called relu.default
        if name in NORMALIZERS:  # before the run: in train mode it moves the running statistics
            with self._tallying(name) as site:
                self._normalizer(site, name, bound_arguments(func, args, kwargs))
        given = args[0] if args else kwargs.get("input")
        if name in DROPOUTS:  # dropout counts as off, also where no module holds it
            return given
        if func is F.multi_head_attention_forward:
            args, kwargs = (), {**bound_arguments(func, args, kwargs), "dropout_p": 0.0}
        elif func is F.scaled_dot_product_attention:
            args, kwargs = (*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:]), {**kwargs}
            kwargs |= {} if len(args) > 4 else {"dropout_p": 0.0}
        result = func(*args, **kwargs)
        if name in WEIGHTS or (name in PRODUCTS and len(args) == 2 and isinstance(args[1], nn.Parameter)):
            given = args[1] if name == "addmm" and len(args) > 1 else given
            with self._tallying(WEIGHTS.get(name, "linear")) as site:
                self._weight(site, given, result)
        elif name in RECURRENT:
            with self._tallying("recurrent") as site:
                self._weight(site, given, result if isinstance(result, Tensor) else result[0])
        elif name in RELUS and isinstance(result, Tensor) and result.ndim > 1:
            with self._tallying("relu") as site:
                self._relu(site, result)
        return result

    @contextmanager
    def _tallying(self, family: str) -> Any:
        """Count one run of a layer; what cannot be tallied is left out and never stops the model."""
        site = self._site(family)
        try:
            yield site
        except Exception:
            self.lost.add(site)

    def _site(self, family: str) -> Site:
        key = (self._stack[-1] if self._stack else "", family)
        self._runs[key] += 1
        site = (*key, self._runs[key] - 1)
        if family != "relu":
            self.order.setdefault(site)
        return site

    def _normalizer(self, site: Site, family: str, given: Mapping[str, Any]) -> None:
        x, eps, weight = given["input"].detach(), given["eps"], given.get("weight")
        if family == "batch_norm" or (family == "instance_norm" and not given["use_input_stats"]):
            self._channels(site, x, given)
            return
        eps = rms_epsilon(eps, x.dtype) if family == "rms_norm" else eps
        kind, positions = family.removesuffix("_norm"), set_positions(family, given, x)
        tally = self.normalizers.setdefault(site, SetTally(site, kind, float(eps), weight, positions))
        if isinstance(tally, SetTally) and x.numel():
            tally.add(x.reshape(set_count(family, given, x), -1), len(x))

    def _channels(self, site: Site, x: Tensor, given: Mapping[str, Any]) -> None:
        training = given.get("training", False)
        tally = self.normalizers.get(site)
        if tally is None:
            tally = self.normalizers[site] = ChannelTally(
                site,
                float(given["eps"]),
                given["weight"],
                (given["running_mean"], given["running_var"]),
                uses_running=not training,
            )
        if isinstance(tally, ChannelTally):
            tally.add(x)

    def _weight(self, site: Site, given: Any, made: Any) -> None:
        last = site[1] != "convolution"
        self._width = made.shape[-1 if last else 1] if isinstance(made, Tensor) and made.ndim > 1 else None
        self._channel_last = last
        if not (isinstance(given, Tensor) and isinstance(made, Tensor) and made.is_floating_point()):
            return
        given, made = given.detach(), made.detach()
        tally = self.weights.setdefault(site, WeightTally(site, given, made))
        tally.add(given, made)

    def _relu(self, site: Site, made: Tensor) -> None:
        axis = unit_axis(made, self._width, last=self._channel_last)
        self.units.setdefault(site, UnitsTally(site, axis)).add(made.detach())

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        path = self.names.get(id(module))
        self._stack.append(path if path is not None else (self._stack[-1] if self._stack else ""))
        if path is not None and path in self.written and args and isinstance(args[0], Tensor):
            with self._tallying("rms") as site:
                tally = self.normalizers.setdefault(site, SetTally(site, "rms", self.written[path], None))
                assert isinstance(tally, SetTally)
                tally.add(args[0].detach().reshape(-1, args[0].shape[-1]), len(args[0]))

    def _leave_module(self, module: nn.Module, args: Any, made: Any) -> None:
        path = self._stack.pop() if self._stack else ""
        tensors = tree_leaves(vars(made) if hasattr(made, "__dict__") and not isinstance(made, Tensor) else made)
        floats = [t.detach() for t in tensors if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]
        self._flags += [(path, torch.isfinite(t).all()) for t in floats]

    def _look_for_nan(self) -> None:
        """Name the first module whose output was not finite, if the model's own output was not either."""
        if self.not_finite is None and self._flags:
            last = self._flags[-1][0]
            fine = torch.stack([flag.cpu() for _, flag in self._flags]).tolist()
            spoiled = [path for (path, _), flag in zip(self._flags, fine, strict=True) if not flag]
            if spoiled and last in spoiled:
                self.not_finite = (spoiled[0], "NaN or infinite values in its output")


def unit_axis(made: Tensor, width: int | None, *, last: bool) -> int:
    """Return the dimension of an activation that counts its units: where the weight layer before it has its channels.

    Args:
        made: its output, with a batch.
        width: channels of that layer's output.
        last: whether they were along its last dimension.
    """
    first, final = made.shape[1] == width, made.shape[-1] == width
    return made.ndim - 1 if made.ndim == 2 or (final if first != final else last) else 1


def bound_arguments(func: Any, args: Any, kwargs: Any) -> Mapping[str, Any]:
    """Return the arguments of a call by name, defaults filled in: of a Python function, or of torch's operator."""
    if inspect.isfunction(func):
        found = inspect.signature(func).bind(*args, **kwargs)
        found.apply_defaults()
        return found.arguments
    packet = getattr(torch.ops.aten, func.__name__.split(".")[0])
    kinds = packet.overloads()
    schema = getattr(packet, "default" if "default" in kinds else kinds[0])._schema
    given = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    return given | dict(zip((argument.name for argument in schema.arguments), args)) | kwargs


def set_positions(family: str, given: Mapping[str, Any], x: Tensor) -> int:
    """Return how many sets of one sample have scales of their own: groups, channels, or one."""
    if family == "group_norm":
        return int(given["num_groups"])
    return int(x.shape[-2] if x.ndim == 2 else x.shape[1]) if family == "instance_norm" else 1


def set_count(family: str, given: Mapping[str, Any], x: Tensor) -> int:
    """Return how many sets a normalizer has; each is a run of consecutive entries."""
    if family == "group_norm":
        return int(x.shape[0] * given["num_groups"])
    if family == "instance_norm":
        return x.shape[:-1].numel() if x.ndim == 2 else int(x.shape[0] * x.shape[1])
    return x.shape[: x.ndim - len(given["normalized_shape"])].numel()
