"""The cheap way to listen to a forward: hooks on a few modules, for networks made of torch's own layers.

The variances of a BatchNorm are read off the running variance that the forward moves: no pass over its input. Other
normalizers are hooked. What a `FunctionListener` found on the first forward says whether that is enough.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..listening.calls import Site
from ..listening.normalizer_seen import NormalizerSeen, row_variance
from ..theory.normalizers import rms_epsilon
from .distributed import is_sharded
from .forward_record import ForwardRecord
from .probes.running import SLOWEST, BatchNorms

ROWS = {"layer_norm": nn.LayerNorm, "group_norm": nn.GroupNorm, "rms_norm": nn.RMSNorm}


class ModuleListener:
    """Listens to forwards of a model that a `FunctionListener` has seen.

    Args:
        model: the model whose modules are hooked.
        seen: what its first forward showed.
    """

    def __init__(self, model: nn.Module, seen: ForwardRecord) -> None:
        self._modules = dict(model.named_modules())
        self._tree = [(m._modules, name, child) for m in self._modules.values() for name, child in m._modules.items()]
        self._held = [(m._parameters, name) for m in self._modules.values() for name in m._parameters]
        self._weights = {site: replace(weight, made=None) for site, weight in seen.weights.items()}
        batch = {site: n for site, n in seen.normalizers.items() if n.family == "batch_norm"}
        self._sites = list(batch)
        held = [self._modules[site[0]] for site in batch]
        self._norms = BatchNorms(held, list(batch.values())) if batch else None
        self._rows = {site: n for site, n in seen.normalizers.items() if n.family != "batch_norm"}

    @staticmethod
    def fits(model: nn.Module, seen: ForwardRecord) -> bool:
        """Whether a network can be listened to in this way."""
        modules = dict(model.named_modules())
        places = {n.variance.device for n in seen.normalizers.values()}
        layers = not is_sharded(model.parameters()) and all(weight.made is None for weight in seen.weights.values())
        fit = len(places) <= 1 and all(_fits(modules, site, n) for site, n in seen.normalizers.items())
        return layers and fit and not seen.lost

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
        seen = ForwardRecord(weights=self._weights)
        with torch.no_grad():
            before = None if self._norms is None else self._norms.now()
        hooks = [
            self._modules[site[0]].register_forward_pre_hook(self._hook(seen, site, normalizer), with_kwargs=True)
            for site, normalizer in self._rows.items()
        ]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()
        if self._norms is not None and before is not None:
            with torch.no_grad():
                seen.batch_norms = (self._sites, self._norms.moved(before))

    @staticmethod
    def _hook(seen: ForwardRecord, site: Site, known: NormalizerSeen) -> Any:
        def before(module: Any, args: Any, kwargs: Any) -> None:
            began = time.perf_counter()
            with contextlib.suppress(Exception), torch.no_grad():  # what cannot be measured never stops the model
                x = (args[0] if args else kwargs["input"]).detach()
                sets = x.numel() // known.entries
                variance = row_variance(x, sets=sets, groups=known.groups, centred=known.centred)
                eps = rms_epsilon(module.eps, x.dtype) if known.family == "rms_norm" else known.eps
                gamma = None if module.weight is None else module.weight.detach().clone()
                seen.normalizers[site] = replace(known, variance=variance, samples=len(x), eps=eps, gamma=gamma)
            seen.seconds += time.perf_counter() - began

        return before


def _fits(modules: dict[str, nn.Module], site: Site, seen: NormalizerSeen) -> bool:
    module = modules.get(site[0])
    if site[2] or module is None:
        return False
    if seen.family == "batch_norm":
        if not isinstance(module, _BatchNorm) or module.running_var is None or seen.stored:
            return False
        if module.num_batches_tracked is None or not module.track_running_stats:
            return False
        exact = module.running_var.dtype in (torch.float32, torch.float64)
        return exact and (module.momentum or 0.0) >= SLOWEST and seen.entries > 1
    return seen.family in ROWS and type(module) is ROWS[seen.family]
