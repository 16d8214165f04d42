"""What is watched in a model: its layers, which weights feed which normalizer, its blocks."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..core.errors import InputError
from ..core.provenance import provenance
from ..listening.calls import Site
from .forward_record import AppliedWeight, ForwardRecord
from .log import SCHEMA_VERSION
from .record import LayerRecord
from .schedule import Schedule

ADAPTIVE = ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "SparseAdam")
"""Optimizers that rescale gradients: with `weight_decay` most of them rescale the decay too."""
DECOUPLED = ("AdamW", "Adafactor")
"""Optimizers that rescale gradients but not the decay."""
ROTATING = (*ADAPTIVE, *DECOUPLED, "Lion", "Muon", "SphereAdam")
"""Optimizers whose step does not shrink with the gradient: the effective learning rate is lr/norm."""
SPHERES = ("SphereSGD", "SphereAdam")
"""Optimizers that keep the weights of some groups on spheres."""

UNCHAINED = ("recurrent", "embedding")
"""Families whose norms are no factors of a product along the network: applied many times over, or to tokens."""

ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingPair:
    """A weight layer that feeds a normalizer: where that is, what of the weight can be rescaled, in how many groups."""

    normalizer: Site
    unit: str
    groups: int
    invariant: bool


@dataclass(slots=True)
class Subject:
    """The watched layers, in the order they run.

    Attributes:
        layers: what the log says of each of them.
        places: where each of them runs, by kind.
        rows: for the scale-invariant weights: the parameters to be read as rows, how many groups, along which axis.
        feeds: where a weight layer's normalizer runs, if it feeds one.
        made: weight layers whose weight is made of parameters.
        notes: what could not be measured.
    """

    layers: tuple[LayerRecord, ...] = ()
    places: dict[str, list[Any]] = field(default_factory=dict)
    rows: dict[Site, tuple[tuple[str, ...], int, int]] = field(default_factory=dict)
    feeds: dict[Site, Site] = field(default_factory=dict)
    made: set[Site] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def of(self, kind: str) -> list[LayerRecord]:
        """Return the layers of a kind."""
        return [layer for layer in self.layers if layer.kind == kind]


def blocks(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of the parts a network is made of: entries of its containers, or else its children.

    Example:
        >>> blocks(nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 4)))
        ('0', '1')
    """
    found: list[str] = []
    most = parameter_count(model) / 2

    def walk(module: nn.Module, path: str) -> None:
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            row = isinstance(child, nn.Sequential) and not isinstance(module, nn.Sequential)
            whole = parameter_count(child) > most and any(True for _ in child.children())
            if row or whole or isinstance(child, nn.ModuleList):
                walk(child, inner)
            elif parameter_count(child):
                found.append(inner)

    walk(model, "")
    return tuple(found)


def parameter_count(module: nn.Module) -> int:
    """Return how many parameters a module has; those without a size yet count as none."""
    return sum(0 if is_lazy(parameter) else parameter.numel() for parameter in module.parameters())


def describe(model: nn.Module, seen: ForwardRecord, optimizer: Optimizer) -> Subject:
    """Return what a first forward showed.

    Args:
        model: the user's model, unwrapped.
        seen: what a `FunctionListener` saw.
        optimizer: the optimizer of the run.
    """
    owned, pairs = _owned(model, seen), _pairs(seen)
    notes = [f"{_title(site)} ({site[1]}) could not be measured" for site in sorted(seen.lost)]
    notes += _unfollowed(model, {name for names in owned.values() for name in names})
    groups = {
        site: _groups(model, pairs[site], weight) if site in pairs else 0 for site, weight in seen.weights.items()
    }
    normalizers = _normalizer_layers(seen)
    weights = _weight_layers(seen, owned, pairs, groups, normalizers, _decay(model, optimizer))
    units = _titles(dict.fromkeys(seen.dead, ()))
    modules = dict(model.named_modules())
    return Subject(
        layers=(
            *weights,
            *normalizers.values(),
            *(LayerRecord(name=name, kind="units", family=site[1]) for site, name in units.items()),
            *(LayerRecord(name=path, kind="block", family=type(modules[path]).__name__) for path in blocks(model)),
        ),
        places={
            "weight": list(seen.weights),
            "normalizer": list(seen.normalizers),
            "units": list(seen.dead),
            "block": list(blocks(model)),
        },
        rows={site: (w.parameters, groups[site], w.axis) for site, w in seen.weights.items() if groups[site]},
        feeds={weight: pair.normalizer for weight, pair in pairs.items()},
        made={site for site, weight in seen.weights.items() if weight.made is not None},
        notes=notes,
    )


def _weight_layers(
    seen: ForwardRecord,
    owned: Mapping[Site, tuple[str, ...]],
    pairs: Mapping[Site, FeedingPair],
    groups: Mapping[Site, int],
    normalizers: Mapping[Site, LayerRecord],
    decay: Mapping[str, tuple[float, bool]],
) -> list[LayerRecord]:
    """Return the weight layers, as the log has them."""
    names = _titles({site: weight.parameters for site, weight in seen.weights.items()})
    found = []
    for site in seen.weights:
        pair = pairs.get(site)
        value, coupled = next((decay[name] for name in owned[site][:1] if name in decay), (None, False))
        found.append(
            LayerRecord(
                name=names[site],
                kind="weight",
                family=site[1],
                parameters=owned[site],
                normalizer=None if pair is None else normalizers[pair.normalizer].name,
                invariant=pair.unit if pair is not None and groups[site] else None,
                groups=groups[site],
                weight_decay=value,
                coupled=coupled,
            )
        )
    return found


def _normalizer_layers(seen: ForwardRecord) -> dict[Site, LayerRecord]:
    """Return the normalizers, as the log has them; what it calls samples are sets where those are not channels."""
    names = _titles(dict.fromkeys(seen.normalizers, ()))
    return {
        site: LayerRecord(
            name=names[site],
            kind="normalizer",
            family=one.family,
            groups=one.groups,
            eps=one.eps,
            entries=one.entries,
            samples=one.samples if one.by_channel else one.variance.numel(),
        )
        for site, one in seen.normalizers.items()
    }


def _pairs(seen: ForwardRecord) -> dict[Site, FeedingPair]:
    """Return the weight layers whose output went into a normalizer, only moved on its way, and nowhere else."""
    used = Counter(name for weight in seen.weights.values() for name in weight.parameters)
    pairs = {}
    for site, readers in seen.readers.items():
        [reader] = readers if len(readers) == 1 else [None]
        if reader is None or reader not in seen.normalizers or any(used[n] > 1 for n in seen.weights[site].parameters):
            continue
        normalizer = seen.normalizers[reader]
        whole = normalizer.family in ("layer_norm", "rms_norm")
        if not whole and (site in seen.moved or seen.weights[site].channels != 1):  # other channels
            continue
        unit = "layer" if whole else "group" if normalizer.family == "group_norm" else "channel"
        pairs[site] = FeedingPair(
            normalizer=reader, unit=unit, groups=normalizer.groups, invariant=not normalizer.stored
        )
    return pairs


def _groups(model: nn.Module, pair: FeedingPair, applied: AppliedWeight) -> int:
    """Return how many groups of a weight are scale invariant; 0 if none is, or they are no rows of known parameters."""
    names = applied.parameters
    weight = dict(model.named_parameters()).get(names[0]) if pair.invariant and names else None
    if weight is None or weight.ndim < 2 or len(names) > 2 or not weight.requires_grad:
        return 0
    if weight.shape[applied.axis] != applied.geometry.channels:  # a transposed convolution in groups
        return 0
    return applied.geometry.channels if pair.unit == "channel" else pair.groups


def _owned(model: nn.Module, seen: ForwardRecord) -> dict[Site, tuple[str, ...]]:
    """Return the parameters of every weight layer; of one whose weight is made of others all that its module has."""
    direct = {name for weight in seen.weights.values() for name in weight.parameters}
    paths = Counter(site[0] for site in seen.weights)
    found = {}
    for site, weight in seen.weights.items():
        own = weight.parameters
        if weight.made is not None and site[0] and paths[site[0]] == 1:
            inner = [name for name, _ in model.named_parameters() if name.startswith(f"{site[0]}.")]
            own = (*(name for name in inner if name not in direct), *own)
        found[site] = own
    return found


def _unfollowed(model: nn.Module, used: Container[str]) -> list[str]:
    """Return a note on the matrices that are trained but used by no layer that is followed."""
    left = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not is_lazy(parameter) and parameter.ndim > 1 and name not in used
    ]
    several = f"{', '.join(left[:5])}{f' and {len(left) - 5} more' if len(left) > 5 else ''}"
    return [f"no operator norm, in no product of norms: {several}"] if left else []


def _decay(model: nn.Module, optimizer: Optimizer) -> dict[str, tuple[float, bool]]:
    """Return the weight decay of every parameter, and whether it is rescaled with the gradient."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    adaptive = bool(_kinds(optimizer) & set(ADAPTIVE)) and not _kinds(optimizer) & set(DECOUPLED)
    found = {}
    for name, parameter in model.named_parameters():
        group = groups.get(id(parameter))
        if group is not None and "weight_decay" in group:
            coupled = adaptive and not group.get("decoupled_weight_decay", False)
            value = float(group["weight_decay"] or 0.0)
            found[name] = (value, coupled and value > 0)
    return found


def effective_power(optimizer: Optimizer, group: Mapping[str, Any]) -> int | None:
    """Return the power of the norm in the effective learning rate of a group; None for an unknown optimizer.

    A weight that is kept on a sphere turns by an angle that does not depend on its norm: the power is 0.
    """
    kinds = _kinds(optimizer)
    if kinds & set(SPHERES) and group.get("units") is not None:
        return 0
    return 1 if kinds & set(ROTATING) else 2 if kinds & {"SGD", "SphereSGD"} else None


def _kinds(optimizer: Optimizer) -> set[str]:
    """Return the names of the class of an optimizer and of those it inherits from."""
    return {cls.__name__ for cls in type(optimizer).__mro__}


def _titles(sites: Mapping[Site, tuple[str, ...]]) -> dict[Site, str]:
    """Return a name for each place where a layer of one kind runs, given its parameters; no name twice."""
    plain = {site: _title(site, parameters) for site, parameters in sites.items()}
    often = Counter(plain.values())
    return {site: name if often[name] == 1 else f"{name} ({site[1]})" for site, name in plain.items()}


def _title(site: Site, parameters: tuple[str, ...] = ()) -> str:
    path, family, run = site
    name = path or (parameters[0] if parameters else family)
    return name if run == 0 else f"{name}#{run + 1}"


def metadata(subject: Subject, model: nn.Module, optimizer: Optimizer, schedule: Schedule, step: int) -> dict[str, Any]:
    """Return what a log says first of a run that begins, or goes on, at a step."""
    device = next((p.device for p in model.parameters()), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": type(model).__name__,
        "parameters": parameter_count(model),
        "optimizer": type(optimizer).__name__,
        "every": {tier.value: interval for tier, interval in schedule.every.items()},
        "layers": [layer.to_json() for layer in subject.layers],
        "notes": subject.notes,
        "provenance": provenance(device),
    }


def trained_by(model: nn.Module, optimizer: Any) -> Optimizer:
    """Return the optimizer that trains a model: the innermost, for wrappers hand their steps on to it.

    Raises:
        InputError: the model is no module or cannot be hooked; the optimizer is no optimizer or trains another model.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module: pass the model itself")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("model is scripted, and cannot be hooked: pass the module that it was made of, unscripted")
    while not isinstance(optimizer, Optimizer) or isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise InputError(
                f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer: pass the one that trains the "
                "model, or a wrapper that has it as `optimizer`"
            )
        optimizer = inner
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in trained for p in model.parameters()):
        raise InputError("the optimizer trains no parameter of this model: pass the two that belong together")
    return optimizer


def is_delicate(model: nn.Module) -> bool:
    """Whether to listen inside of a forward would change it, or hear nothing.

    A part of the model is compiled, or attention in eval mode, whose fast path torch takes only where nobody listens.
    """
    return any(
        "_orig_mod" in module._modules  # hasattr would take long to say no
        or getattr(module, "_compiled_call_impl", None) is not None
        or (isinstance(module, ATTENTION) and not module.training)
        for module in model.modules()
    )


def compiled_functions() -> bool:
    """Whether this process has functions that torch.compile has made: a model may call them."""
    return any(
        type(held) is FunctionType
        and "_torchdynamo_orig_callable" in held.__dict__
        and not held.__dict__.get("_torchdynamo_disable")
        for held in gc.get_objects()
    )
