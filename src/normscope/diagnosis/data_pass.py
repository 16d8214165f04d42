"""One pass over the data: every normalizer, weight layer and ReLU is watched where it runs, module or function.

`calls.py` sees the calls. Everything is kept as running statistics.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..core.budget import Budget
from ..core.cost import count
from ..core.errors import InputError, said
from ..core.progress import Progress
from ..core.untouched import untouched
from ..graph.call import arguments
from ..graph.ir import Node
from ..theory.normalizers import rms_epsilon
from .calls import NORMALIZERS, RECURRENT, RELUS, CallWatcher, bound_arguments, float_tensors, weight_family
from .examined import DataSeen, Site
from .tallies import ChannelTally, SetTally, UnitsTally, WeightTally

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
    budget: Budget | None = None,
) -> DataSeen:
    """Run a model over batches and summarise what its layers saw.

    Args:
        model: the user's model; left as found.
        batches: what the model takes, one by one (tensors, tuples, dicts; pairs with labels).
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        written: modules that compute an RMSNorm of their input over its last dimension in operators of their own, each
            with its eps.
        budget: no batch is begun once it is over, but the first.

    Returns:
        The summary; a model that raises gives one with an `error`.

    Raises:
        InputError: there is no batch, or a batch cannot be an input.
    """
    total = operator.length_hint(batches) or None
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    samples = done = 0
    error: str | None = None
    watcher = _Watcher(model, written or {})
    reading = (budget or Budget()).search("the pass over the data")
    with ExitStack() as stack:
        stack.enter_context(untouched(model, mode))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        progress = stack.enter_context(Progress("reading data", total=total))
        for batch in batches:
            if done and reading.over:
                break
            call = arguments(model, tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, batch))
            try:
                with watcher.watching():
                    model(*call.args, **call.kwargs)
            except Exception as raised:
                error = f"the model raises {said(raised)}, on batch {done + 1}"
                break
            samples += call.count
            done += 1
            count("passes", call.count)
            progress.step(f"batch {done}")
    if not done and error is None:
        raise InputError("the loader yields no batch: there is nothing to measure")
    return DataSeen(
        samples=samples,
        batches=done,
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


class _Watcher(CallWatcher):
    """Sees every call of a layer's function and hands it to the layer's tally."""

    def __init__(self, model: nn.Module, written: Mapping[str, float]) -> None:
        super().__init__(model)
        self.written = written
        self.normalizers: dict[Site, SetTally | ChannelTally] = {}
        self.weights: dict[Site, WeightTally] = {}
        self.units: dict[Site, UnitsTally] = {}
        self.order: dict[Site, None] = {}
        self.lost: set[Site] = set()
        self.not_finite: tuple[str, str] | None = None

    @contextmanager
    def watching(self) -> Any:
        """Watch one forward."""
        self._flags: list[tuple[str, Tensor]] = []
        self._channel_last = False
        self._width: int | None = None
        with super().watching():
            yield
        self._look_for_nan()

    def calling(self, name: str, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Tally a normalizer before it runs: in train mode the run moves its running statistics."""
        if name in NORMALIZERS:
            with self._tallying(name) as site:
                self._normalizer(site, name, bound_arguments(func, args, kwargs))

    def called(self, name: str, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
        """Tally the input and output of a weight layer, and the output of a ReLU."""
        family = weight_family(name, args)
        if family is not None:
            given = args[0] if args else kwargs.get("input")
            given = args[1] if name == "addmm" and len(args) > 1 else given
            with self._tallying(family) as site:
                self._weight(site, given, result)
        elif name in RECURRENT:
            given = args[0] if args else kwargs.get("input")
            with self._tallying("recurrent") as site:
                self._weight(site, given, result if isinstance(result, Tensor) else result[0])
        elif name in RELUS and isinstance(result, Tensor) and result.ndim > 1:
            with self._tallying("relu") as site:
                self._relu(site, result)
        return result

    @contextmanager
    def _tallying(self, family: str) -> Any:
        """Count one run of a layer; what cannot be tallied is left out and never stops the model."""
        site = self.site(family)
        if family != "relu":
            self.order.setdefault(site)
        try:
            yield site
        except Exception:
            self.lost.add(site)

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

    def entered(self, path: str, args: Any) -> None:
        """Tally the input of an RMSNorm that is written out in operators."""
        if path in self.written and args and isinstance(args[0], Tensor):
            with self._tallying("rms") as site:
                tally = self.normalizers.setdefault(site, SetTally(site, "rms", self.written[path], None))
                assert isinstance(tally, SetTally)
                tally.add(args[0].detach().reshape(-1, args[0].shape[-1]), len(args[0]))

    def left(self, path: str, made: Any) -> None:
        """Note whether what a module returned is finite."""
        self._flags += [(path, torch.isfinite(t.detach()).all()) for t in float_tensors(made)]

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
