"""One forward, listened to with everything on: every layer is measured where it runs, module or function.

It is active on measured steps alone; nothing is changed, drawn at random or waited for. What comes out are small
tensors on the model's device.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..listening.calls import EMBEDDINGS, NORMALIZERS, PRODUCTS, FunctionCall, Site
from ..listening.layer_geometry import LayerGeometry
from ..listening.listener import LayerListener
from ..listening.naming import Names
from ..listening.normalizer_seen import normalizer_seen
from ..listening.weight_seen import WeightSeen
from .block_gains import BlockGains
from .forward_record import AppliedWeight, ForwardRecord
from .output_readers import OutputReaders
from .schedule import Tier

PROJECTIONS = {"in_proj": "in_proj_weight", "q_proj": "q_proj_weight", "k_proj": "k_proj_weight",
               "v_proj": "v_proj_weight", "out_proj": "out_proj_weight"}  # fmt: skip
"""The weights of torch's attention by the names of its projections."""


class FunctionListener(LayerListener):
    """Listens to forwards of one model, and keeps what they show until the optimizer's step.

    Args:
        model: whose modules give the paths.
        blocks: modules whose gains are measured in the tiers above economy.
        names: the names of the modules; those that they have now if not given.
    """

    def __init__(self, model: nn.Module, blocks: tuple[str, ...] = (), names: Names | None = None) -> None:
        known = names or Names(model)
        super().__init__(model, known.modules(model))
        self._parameters = {id(parameter): name for name, parameter in known.parameters(model).items()}
        self._blocks = frozenset(blocks)

    @contextlib.contextmanager
    def recording(self, tier: Tier, *, readers: bool = False) -> Iterator[ForwardRecord]:
        """Listen to one forward.

        Args:
            tier: how much is measured.
            readers: whether to say who reads the outputs of the weight layers, which are kept until the forward ends.
        """
        seen = self._seen = ForwardRecord()
        self.lost, self._tier = seen.lost, tier
        self._readers = OutputReaders(seen) if readers else None
        self._gains = None if tier is Tier.ECONOMY else BlockGains(seen, self._blocks)
        try:
            with self.listening():
                yield seen
        finally:
            self._seen, self._readers, self._gains = ForwardRecord(), None, None

    def before_call(self, call: FunctionCall) -> None:
        """Measure a normalizer, and the time that this takes."""
        began = time.perf_counter()
        super().before_call(call)
        self._seen.seconds += time.perf_counter() - began

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Measure any other layer, and the time that this takes."""
        began = time.perf_counter()
        if self._readers is not None and call.name not in NORMALIZERS:
            self._readers.follow(call, result)
        super().after_call(call, result)
        if call.name == "multi_head_attention_forward":
            with contextlib.suppress(Exception):  # never stops the model
                self._attention(call.named(), result[0])
        elif call.name in EMBEDDINGS:
            with contextlib.suppress(Exception):
                self._embedding(call)
        self._seen.seconds += time.perf_counter() - began
        return result

    def entered(self, path: str | None, args: Any) -> None:
        """Measure the input of a block."""
        began = time.perf_counter()
        if self._gains is not None:
            self._gains.entered(path, args)
        self._seen.seconds += time.perf_counter() - began

    def left(self, module: nn.Module, path: str, made: Any) -> None:
        """Measure the output of a block."""
        began = time.perf_counter()
        if self._readers is not None and module is self.model:
            with contextlib.suppress(Exception):
                self._readers.returned(made)
        if self._gains is not None:
            self._gains.left(path, made)
        self._seen.seconds += time.perf_counter() - began

    def normalizer(self, site: Site, call: FunctionCall) -> None:
        """Note what a normalizer is about to do, and that it reads its input; scales that it reads keep their size."""
        if self._readers is not None:
            self._readers.read(site, call.input)
            self._readers.read(None, (call.args[1:], {k: v for k, v in call.kwargs.items() if k != "input"}))
        self._seen.normalizers[site] = normalizer_seen(call)

    def watches_weight(self, call: FunctionCall) -> bool:
        """Say whether a call has one operator norm: a product with a stack of matrices, or with a vector, has none."""
        return call.name not in PRODUCTS or call.args[1].ndim == 2

    def weight(self, site: Site, seen: WeightSeen) -> None:
        """Keep which weight a layer applied, and how."""
        if seen.weight.is_complex() or seen.weight.ndim < 2:
            raise TypeError("no matrix of real numbers")
        self._keep(site, seen.geometry(), seen.tensors, seen.axis, seen.channels, seen.output)

    def recurrent(self, call: FunctionCall, made: Any) -> None:
        """Keep the matrices of a recurrent layer, each once however often it runs."""
        with contextlib.suppress(Exception):  # never stops the model
            given = (*call.args, *call.kwargs.values())
            lists = [held for held in given if isinstance(held, list | tuple)]
            tensors = _matrices_and_biases(given[2:] if call.name.endswith("_cell") else lists[-1])
            for number, weight in enumerate(tensor for tensor in tensors if tensor.ndim == 2):
                own = self._name(weight)
                part = f"{number}" if own is None else own.rpartition(".")[2].removeprefix("weight_")
                self._keep_matrix("recurrent", self._inside(part), weight, tensors)

    def units(self, site: Site, made: Tensor, axis: int) -> None:
        """Measure the share of units that fired for no sample."""
        others = [dim for dim in range(made.ndim) if dim != axis]
        self._seen.dead[site] = (made.amax(others) <= 0).float().mean()

    def watches_units(self) -> bool:
        """Say whether dead units are measured in this tier."""
        return self._tier is not Tier.ECONOMY

    def _attention(self, given: Mapping[str, Any], result: Tensor) -> None:
        """Keep the projections of torch's attention, which is one call to those who listen."""
        for part, name in PROJECTIONS.items():
            weight, bias = given.get(name), given.get(name.replace("weight", "bias"))
            if weight is not None:
                with self.measuring("linear", self._inside(part)) as site:
                    tensors = [weight] if bias is None else [weight, bias]
                    output = result if part == "out_proj" else None
                    self._keep(site, _of_matrix(weight), tensors, 0, result.ndim - 1, output)

    def _embedding(self, call: FunctionCall) -> None:
        """Keep the table of an embedding."""
        tensors = _matrices_and_biases((*call.args, *call.kwargs.values()))
        table = next(tensor for tensor in tensors if tensor.ndim == 2)
        self._keep_matrix("embedding", self.path, table, tensors)

    def _keep_matrix(self, family: str, path: str, weight: Tensor, beside: list[Tensor]) -> None:
        """Keep a matrix and its bias among the tensors beside it, unless it was kept in this forward."""
        if self.has_run(family, path):  # a cell runs at every step of a sequence
            return
        own = self._name(weight)
        bias = None if own is None else own.replace("weight", "bias")
        with self.measuring(family, path) as site:
            biases = [t for t in beside if bias is not None and t.ndim == 1 and self._name(t) == bias]
            self._keep(site, _of_matrix(weight), [weight, *biases], 0, 1, None)

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
        named = [self._name(tensor) for tensor in tensors]
        self._seen.weights[site] = AppliedWeight(
            parameters=tuple(found for found in named if found is not None),
            axis=axis,
            channels=channels,
            geometry=geometry,
            made=tensors[0].detach() if named[0] is None else None,
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


def _matrices_and_biases(given: Any) -> list[Tensor]:
    """Return the tensors among some arguments that may be parameters of a layer."""
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _of_matrix(weight: Tensor) -> LayerGeometry:
    """Return how a matrix is applied to vectors."""
    return LayerGeometry(kind="linear", shape=(1, weight.shape[1]), channels=weight.shape[0])
