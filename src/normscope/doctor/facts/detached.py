"""`GraphCuts`: values and parameters that no gradient comes back to, though they take part in the forward."""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ...core.codec import JsonForm, Part
from ...listening.calls import FunctionCall
from .activations import ACTIVATIONS
from .autograd_graph import Reached, find_readers, reached_leaves
from .collector import Collector
from .layers import INPUT, LAYER_KINDS, Layers, fetch_all, norm_of

DETACHING_FUNCTIONS = ("item", "tolist", "numpy")
"""Functions that hand values on as no tensors, and so without their graph."""
CONCATENATIONS = ("cat", "concat", "concatenate", "vstack", "row_stack")
"""Functions that set tensors side by side: along the first dimension these are the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutValue(Part):
    """A layer whose values go on without their graph (`.data`, a random draw), and the first layer that reads them."""

    path: str
    reader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostParameters(Part):
    """Parameters that nothing but one unread output is made of.

    Attributes:
        path: the module that returned it.
        names: the parameters.
        offered: whether the module returned it beside other tensors; its caller may be free to use only some of them.
    """

    path: str
    names: tuple[str, ...]
    offered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCuts(Part):
    """Where autograd's graph ends before it has reached all that the forward computed.

    Attributes:
        unread: modules that ran and whose output nothing read.
        lost: the parameters that nothing but such an output is made of.
        cut_values: layers whose values go on without their graph.
        detached_at: where the model's outputs have no graph though it holds parameters that learn: the last module
            with such parameters that ran.
        discriminator: the layer that reads inputs and, beside them, values without their autograd graph, as a
            discriminator reads data and what a generator made; empty if there is none.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    unread: tuple[str, ...] = ()
    lost: tuple[LostParameters, ...] = ()
    cut_values: tuple[CutValue, ...] = ()
    detached_at: str | None = None
    discriminator: str = ""


class CutValues(Collector):
    """Lets values that go on without the graph of the layer that made them show the gradient that is lost."""

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self._values = list[tuple[str, Tensor]]()  # by the layer that made them
        self._readers = list[tuple[str, str, int]]()  # with the layer that reads them, and the id of the values
        self._gradients: dict[int, Tensor] = {}

    @property
    def has_values(self) -> bool:
        """Whether a gradient was asked for where the model goes on without one."""
        return bool(self._values)

    def replace(self, leaves: Sequence[Any], result: Tensor) -> Tensor:
        """Return values that the model shall get in place of those of a function which cuts the graph."""
        sites = (self.layers.site_of_graph(leaf) for leaf in leaves if isinstance(leaf, Tensor))
        site = next((own for own in sites if own is not None), None)
        if site is None or not result.is_floating_point():
            return result
        result = (result.detach() if result.requires_grad else result).requires_grad_(True)  # that of a draw is zero
        self.layers.leaves.append(result)
        self._values.append((site[0], result))
        result.register_hook(functools.partial(self._returned, id(result)))
        return result

    def _returned(self, key: int, gradient: Tensor) -> None:
        self._gradients[key] = norm_of(gradient)

    def read_graph(self, reached: Reached) -> None:
        """Note the first layers that read such values."""
        weights = {k for k, layer in enumerate(self.layers.heard) if layer.kind in LAYER_KINDS}
        for path, leaf in self._values:
            reader = next((k for k in find_readers(leaf, self.layers.functions) if k in weights), None)
            if reader is not None:
                self._readers.append((path, self.layers.heard[reader].path, id(leaf)))

    def facts(self) -> tuple[CutValue, ...]:
        """Return the layers whose values go on without their graph, into layers that a gradient comes back from."""
        readers = [own for own in self._readers if own[2] in self._gradients]
        norms = fetch_all([self._gradients[key].reshape(1) for *_, key in readers])
        return tuple(
            CutValue(path=path, reader=reader)
            for (path, reader, _), (norm,) in zip(readers, norms, strict=True)
            if norm > 0.0
        )


def cuts_graph(call: FunctionCall) -> bool:
    """Whether a call hands values on without their graph: `.data`, or a draw from a distribution that they describe."""
    return call.name in ("normal", "bernoulli") or (
        call.name == "__get__" and getattr(getattr(call.func, "__self__", None), "__name__", "") == "data"
    )


class GraphEnds(Collector):
    """Notes where autograd's graph ends, and which values are made of what it leaves out.

    Attributes:
        tensors: those that a detach, a block without gradients or a cast to integers reads.
        first_detach: the module in which the first value is detached that has a graph.
        outputs_detached_at: the last module with parameters that learn, if the outputs have no graph.
        discriminator: the first layer that reads inputs of the model and, beside them, values without their graph.
    """

    def __init__(self, layers: Layers, model: nn.Module) -> None:
        super().__init__(layers)
        self._model = model
        self.tensors = list[Tensor]()
        self.first_detach: str | None = None
        self.outputs_detached_at: str | None = None
        self.discriminator = ""
        # Values made of these until a layer reads them, and the rows of such layers: are other samples beside them?
        self._values, self._rows = WeakIdKeyDictionary(), dict[int, bool]()
        self._beside: bool | None = None  # of the last call: None where it reads no such values

    def before_call(self, call: FunctionCall, leaves: Sequence[Any], path: str) -> None:
        """Note the first detach."""
        if call.name == "detach" and self.first_detach is None and getattr(call.args[0], "requires_grad", False):
            self.first_detach = path or self.layers.heard[-1].path

    def after_call(self, call: FunctionCall, leaves: Sequence[Any], result: Any, path: str) -> None:
        """Note what a call reads that has a graph and returns without one, and what is made of such values."""
        sources = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        made = [result] if isinstance(result, Tensor) else [v for v in tree_leaves(result) if isinstance(v, Tensor)]
        values = [leaf for leaf in made if leaf.dtype != torch.bool]  # a comparison hands no values on
        ends = (values or call.name in DETACHING_FUNCTIONS) and not any(leaf.requires_grad for leaf in made)
        ending = [leaf for leaf in sources if leaf.requires_grad and ends]
        self.tensors += ending
        read = [leaf for leaf in sources if leaf in self._values]
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
        beside = call.name in CONCATENATIONS and dim == 0 and len(read) < len(sources)
        beside = beside or any(self._values[leaf] for leaf in read)
        if read or ending:
            for leaf in values:
                self._values[leaf] = beside
        self._beside = beside if read else None

    def after_layer(self, number: int, call: FunctionCall, result: Any, made: Tensor) -> None:
        """Note a layer that reads such values."""
        if self._beside is not None and made.requires_grad and self.layers.heard[number].kind in LAYER_KINDS:
            self._rows[number] = self._beside

    def follow_outputs(self, outputs: Sequence[Tensor]) -> None:
        """Note where outputs without a graph lost it."""
        if not any(output.requires_grad for output in outputs):
            trained = {n.rpartition(".")[0] for n, p in self._model.named_parameters() if p.requires_grad}
            paths = (layer.path for layer in reversed(self.layers.heard))
            self.outputs_detached_at = next((path for path in paths if path in trained), None)

    def read_graph(self, reached: Reached) -> None:
        """Look for a discriminator."""
        inputs = {number for number, layer in enumerate(self.layers.heard) if layer.kind == INPUT}
        for number, beside in self._rows.items():
            site = self.layers.heard[number].site
            others = (k for k, own in enumerate(self.layers.heard) if own.site[:2] == site[:2] and k not in self._rows)
            if beside or any(self._comes_from(k, inputs) for k in others):
                self.discriminator = self.discriminator or site[0]

    def _comes_from(self, number: int, inputs: Set[int]) -> bool:
        """Whether a row reads inputs of the model, with modules that hold no weights between at most."""
        feeds = [feed.layer for feed in self.layers.feeds[number]]
        return any(
            feed in inputs or (self.layers.heard[feed].kind not in LAYER_KINDS and self._comes_from(feed, inputs))
            for feed in feeds
        )


class UnreadOutputs(Collector):
    """Notes what a module or an activation returned and no function has read since."""

    def __init__(self, layers: Layers, ends: GraphEnds, model: nn.Module) -> None:
        super().__init__(layers)
        self._ends, self._model = ends, model
        self._unread = dict[int, tuple[Tensor, str]]()
        self._offered = WeakIdKeyDictionary()  # what modules return beside other tensors: some may be left unread
        self._lost = dict[str, tuple[set[int], bool]]()  # leaves by module, and whether it is such an offer

    def before_call(self, call: FunctionCall, leaves: Sequence[Any], path: str) -> None:
        """Note what is read."""
        for leaf in leaves:
            self._unread.pop(id(leaf), None)

    def after_layer(self, number: int, call: FunctionCall, result: Any, made: Tensor) -> None:
        """Note what an activation returns."""
        if self.layers.heard[number].kind in ("relu", *ACTIVATIONS) and made is result:
            self._unread[id(made)] = made, ""

    def module_returned(self, path: str, made: Sequence[Tensor]) -> None:
        """Note what a module returns."""
        for leaf in made if len(made) > 1 else ():
            self._offered[leaf] = None
        if made:
            self._unread[id(made[0])] = made[0], path

    def forward_ended(self, returned: Sequence[Tensor]) -> None:
        """Note that the caller reads what the model returns."""
        for leaf in returned:
            self._unread.pop(id(leaf), None)

    def read_graph(self, reached: Reached) -> None:
        """Note the leaves that only what nobody reads is made of: no gradient comes back to them from anywhere."""
        self._unread = {key: (made, path or self.layers.maker(made)) for key, (made, path) in self._unread.items()}
        modules = dict(self._model.named_modules())
        elsewhere = reached.by_objective.keys() | reached.by_outputs | reached_leaves(self._ends.tensors).keys()
        for made, path in self._unread.values():
            inside = modules[path].parameters() if path in modules else ()
            leaves = (reached_leaves([made]).keys() | {id(own) for own in inside}) - elsewhere
            if path and leaves:
                self._lost[path] = leaves, made in self._offered

    def paths(self) -> tuple[str, ...]:
        """Return the modules whose output was thrown away, by themselves or behind an activation."""
        return tuple(dict.fromkeys(path for _, path in self._unread.values() if path))

    def lost(self) -> tuple[LostParameters, ...]:
        """Return the parameters of what ran and what nothing reads, by the module that returned it."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return tuple(
            LostParameters(
                path=path, names=tuple(name for key, name in names.items() if key in leaves), offered=offered
            )
            for path, (leaves, offered) in self._lost.items()
            if not leaves.isdisjoint(names)
        )
