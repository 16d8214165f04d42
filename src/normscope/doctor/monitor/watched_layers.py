"""What is watched in a model: its layers, which weights feed which normalizer, its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...core.errors import InputError
from ...core.untouched import check_is_module
from ...listening.calls import NormalizerSeen, Site
from .blocks import find_blocks
from .forward_record import AppliedWeight, ForwardRecord
from .layer_record import LayerRecord

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


def describe_layers(model: nn.Module, forward: ForwardRecord, optimizer: Optimizer, *, part: str = "") -> Subject:
    """Return what a first forward showed.

    Args:
        model: the user's model, unwrapped.
        forward: what a `FunctionListener` heard.
        optimizer: the optimizer of the run.
        part: the path of the model inside of the one that the user has, where it is a part of that.
    """
    parameters, feeds = _parameters_of_layers(model, forward), _find_feeds(forward)
    notes = [f"{_name_site(site)} ({site[1]}) could not be measured" for site in sorted(forward.lost)]
    notes += _note_unfollowed(model, {name for names in parameters.values() for name in names})
    groups = {
        site: _count_invariant_groups(model, weight, forward.normalizers[feeds[site]]) if site in feeds else 0
        for site, weight in forward.weights.items()
    }
    normalizers = _normalizer_layers(forward)
    weights = _weight_layers(forward, parameters, feeds, groups, normalizers, _weight_decays(model, optimizer))
    units = _name_sites(dict.fromkeys(forward.dead, ()))
    modules, blocks = dict(model.named_modules()), find_blocks(model)
    layers = (
        *weights,
        *normalizers.values(),
        *(LayerRecord(name=name, kind="units", family=site[1]) for site, name in units.items()),
        *(LayerRecord(name=path, kind="block", family=type(modules[path]).__name__) for path in blocks),
    )
    return Subject(
        layers=tuple(_name_inside(layer, part) for layer in layers) if part else layers,
        places={
            "weight": list(forward.weights),
            "normalizer": list(forward.normalizers),
            "units": list(forward.dead),
            "block": list(blocks),
        },
        rows={site: (w.parameters, groups[site], w.axis) for site, w in forward.weights.items() if groups[site]},
        feeds=feeds,
        made={site for site, weight in forward.weights.items() if weight.made is not None},
        notes=notes,
    )


def _name_inside(layer: LayerRecord, part: str) -> LayerRecord:
    """Return a layer of a part of the user's model with the names that it has in that."""
    normalizer = None if layer.normalizer is None else f"{part}.{layer.normalizer}"
    return replace(layer, name=f"{part}.{layer.name}" if layer.name else part, normalizer=normalizer)


def _weight_layers(
    forward: ForwardRecord,
    parameters: Mapping[Site, tuple[str, ...]],
    feeds: Mapping[Site, Site],
    groups: Mapping[Site, int],
    normalizers: Mapping[Site, LayerRecord],
    decay: Mapping[str, tuple[float, bool]],
) -> list[LayerRecord]:
    """Return the weight layers, as the log has them."""
    names = _name_sites({site: weight.parameters for site, weight in forward.weights.items()})
    layers = []
    for site in forward.weights:
        normalizer = feeds.get(site)
        value, coupled = next((decay[name] for name in parameters[site][:1] if name in decay), (None, False))
        layers.append(
            LayerRecord(
                name=names[site],
                kind="weight",
                family=site[1],
                parameters=parameters[site],
                normalizer=None if normalizer is None else normalizers[normalizer].name,
                invariant=_rescaled_unit(forward.normalizers[normalizer]) if normalizer and groups[site] else None,
                groups=groups[site],
                weight_decay=value,
                coupled=coupled,
            )
        )
    return layers


def _normalizer_layers(forward: ForwardRecord) -> dict[Site, LayerRecord]:
    """Return the normalizers, as the log has them; what it calls samples are sets where those are not channels."""
    names = _name_sites(dict.fromkeys(forward.normalizers, ()))
    return {
        site: LayerRecord(
            name=names[site],
            kind="normalizer",
            family=one.family,
            groups=one.groups,
            eps=one.eps,
            entries=None if one.stored else one.entries,  # statistics of eval mode are of no batch
            samples=one.samples if one.by_channel else one.variance.numel(),
        )
        for site, one in forward.normalizers.items()
    }


def _find_feeds(forward: ForwardRecord) -> dict[Site, Site]:
    """Return the normalizer of each weight layer whose output went into one, moved at most, and nowhere else."""
    used = Counter(name for weight in forward.weights.values() for name in weight.parameters)
    feeds = {}
    for site, readers in forward.readers.items():
        weight, [reader] = forward.weights[site], readers if len(readers) == 1 else [None]
        if reader is None or reader not in forward.normalizers or any(used[name] > 1 for name in weight.parameters):
            continue
        whole = _rescaled_unit(forward.normalizers[reader]) == "layer"
        if whole or (site not in forward.moved and weight.channels == 1):  # otherwise it has other channels
            feeds[site] = reader
    return feeds


def _rescaled_unit(normalizer: NormalizerSeen) -> str:
    """Return what of the weight before a normalizer can be rescaled without changing the output of both."""
    if normalizer.family in ("layer_norm", "rms_norm"):
        return "layer"
    return "group" if normalizer.family == "group_norm" else "channel"


def _count_invariant_groups(model: nn.Module, applied: AppliedWeight, normalizer: NormalizerSeen) -> int:
    """Return how many groups of a weight are scale invariant; 0 if none is, or they are no rows of known parameters."""
    names = applied.parameters
    weight = dict(model.named_parameters()).get(names[0]) if names and not normalizer.stored else None
    if weight is None or weight.ndim < 2 or len(names) > 2 or not weight.requires_grad:
        return 0
    if weight.shape[applied.axis] != applied.geometry.channels:  # a transposed convolution in groups
        return 0
    return applied.geometry.channels if _rescaled_unit(normalizer) == "channel" else normalizer.groups


def _parameters_of_layers(model: nn.Module, forward: ForwardRecord) -> dict[Site, tuple[str, ...]]:
    """Return the parameters of every weight layer; of one whose weight is made of others all that its module has."""
    direct = {name for weight in forward.weights.values() for name in weight.parameters}
    paths = Counter(site[0] for site in forward.weights)
    names_by_site = {}
    for site, weight in forward.weights.items():
        names = weight.parameters
        if weight.made is not None and site[0] and paths[site[0]] == 1:
            inner = [name for name, _ in model.named_parameters() if name.startswith(f"{site[0]}.")]
            names = (*(name for name in inner if name not in direct), *names)
        names_by_site[site] = names
    return names_by_site


def _note_unfollowed(model: nn.Module, used: Container[str]) -> list[str]:
    """Return a note on the matrices that are trained but used by no layer that is followed."""
    left = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not is_lazy(parameter) and parameter.ndim > 1 and name not in used
    ]
    several = f"{', '.join(left[:5])}{f' and {len(left) - 5} more' if len(left) > 5 else ''}"
    return [f"no operator norm, in no product of norms: {several}"] if left else []


def _weight_decays(model: nn.Module, optimizer: Optimizer) -> dict[str, tuple[float, bool]]:
    """Return the weight decay of every parameter, and whether it is rescaled with the gradient."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    adaptive = bool(_class_names(optimizer) & set(ADAPTIVE)) and not _class_names(optimizer) & set(DECOUPLED)
    decays = {}
    for name, parameter in model.named_parameters():
        group = groups.get(id(parameter))
        if group is not None and "weight_decay" in group:
            coupled = adaptive and not group.get("decoupled_weight_decay", False)
            value = float(group["weight_decay"] or 0.0)
            decays[name] = (value, coupled and value > 0)
    return decays


def effective_power(optimizer: Optimizer, group: Mapping[str, Any]) -> int | None:
    """Return the power of the norm in the effective learning rate of a group; None for an unknown optimizer.

    A weight that is kept on a sphere turns by an angle that does not depend on its norm: the power is 0.
    """
    kinds = _class_names(optimizer)
    if kinds & set(SPHERES) and group.get("units") is not None:
        return 0
    return 1 if kinds & set(ROTATING) else 2 if kinds & {"SGD", "SphereSGD"} else None


def _class_names(optimizer: Optimizer) -> set[str]:
    """Return the names of the class of an optimizer and of those it inherits from."""
    return {cls.__name__ for cls in type(optimizer).__mro__}


def _name_sites(sites: Mapping[Site, tuple[str, ...]]) -> dict[Site, str]:
    """Return a name for each place where a layer of one kind runs, given its parameters; no name twice."""
    plain = {site: _name_site(site, parameters) for site, parameters in sites.items()}
    often = Counter(plain.values())
    return {site: name if often[name] == 1 else f"{name} ({site[1]})" for site, name in plain.items()}


def _name_site(site: Site, parameters: tuple[str, ...] = ()) -> str:
    path, family, run = site
    name = path or (parameters[0] if parameters else family)
    return name if run == 0 else f"{name}#{run + 1}"


def innermost_optimizer(model: nn.Module, optimizer: Any) -> Optimizer:
    """Return the optimizer that trains a model: the innermost, for wrappers hand their steps on to it.

    Raises:
        InputError: the model is no module or cannot be hooked; the optimizer is no optimizer or trains another model.
    """
    check_is_module(model)
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
