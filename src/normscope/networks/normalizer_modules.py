"""Normalizers as modules of a model: what each one normalizes, and how to build one of another kind for its place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..core.errors import InputError

NormalizerKind = Literal["batch", "layer", "group", "instance", "rms"]
NORMALIZER_KINDS: tuple[str, ...] = get_args(NormalizerKind)
CHANNELS_A_GROUP = 16
"""The channels per group of a GroupNorm whose number of groups is not given (Wu and He 2018, table 3)."""
LEAST_SET = 3
"""The fewest entries that may be normalized together: two become their signs and one becomes zero."""
EPS = 1e-5
RESET = "its scale or shift differs between positions and is reset"
UNKNOWN = (2, 3, 4, 5)
"""The numbers of axes that a tensor may have where its shape is not known."""
BATCH_NORMS: dict[int, type[nn.Module]] = {
    2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d,
}  # fmt: skip
INSTANCE_NORMS: dict[int, type[nn.Module]] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
RANKS: dict[type[nn.Module], tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,), nn.InstanceNorm1d: (3,),
    nn.InstanceNorm2d: (4,), nn.InstanceNorm3d: (5,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormalizerPlace:
    """A place for a normalizer in a model: how many features there are, and on which axis.

    Attributes:
        kind: the kind of normalizer at that place; None where it was taken out.
        features: how many channels or features there are.
        last: whether they are on the last axis (as behind a Linear) or on the second (as behind a convolution).
        eps: the eps of that normalizer.
        scale, shift: its scale and shift, one per feature; None where it has none.
        ranks: how many axes the normalized tensor may have.
        note: what a replacement does not keep.
    """

    kind: NormalizerKind | None
    features: int
    last: bool
    eps: float = EPS
    scale: Tensor | None = None
    shift: Tensor | None = None
    ranks: tuple[int, ...] = UNKNOWN
    note: str = ""


class FeaturesLast(nn.Module):
    """A normalizer of channels on the second axis, applied to a tensor with its features on the last.

    Attributes:
        norm: the normalizer.
        tokens: whether every position is a sample of its own (GroupNorm); otherwise positions are normalized together
            like those of an image (BatchNorm, InstanceNorm).
    """

    norm: nn.Module

    def __init__(self, norm: nn.Module, *, tokens: bool) -> None:
        super().__init__()
        self.norm, self.tokens = norm, tokens

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a tensor `[samples, ..., features]`."""
        if self.tokens:
            tokens: Tensor = self.norm(x.reshape(-1, x.shape[-1]))
            return tokens.reshape(x.shape)
        channels: Tensor = self.norm(x.reshape(x.shape[0], -1, x.shape[-1]).transpose(1, 2))
        return channels.transpose(1, 2).reshape(x.shape).contiguous()  # Some models take a view of the result.


class SampleRMSNorm(nn.Module):
    """RMSNorm over all channels and positions of a sample, with one scale per channel (uncentred `GroupNorm(1, C)`)."""

    def __init__(self, channels: int, *, eps: float, affine: bool) -> None:
        super().__init__()
        self.num_channels, self.eps = channels, eps
        self.weight: nn.Parameter | None
        self.register_parameter("weight", nn.Parameter(torch.ones(channels)) if affine else None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a tensor `[samples, channels, ...]`."""
        rows = F.rms_norm(x.flatten(1), (math.prod(x.shape[1:]),), eps=self.eps).reshape(x.shape)
        return rows if self.weight is None else rows * self.weight.reshape(-1, *(1,) * (x.ndim - 2))


class ChannelAffine(nn.Module):
    """`scale * x + shift` on the second axis: a BatchNorm in eval mode that cannot be folded into a layer."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(scale), nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift a tensor `[samples, channels, ...]`."""
        sizes = (-1, *(1,) * (x.ndim - 2))
        return x * self.scale.reshape(sizes) + self.shift.reshape(sizes)


class Absent(nn.Identity):
    """Replaces a normalizer that was taken out, so that the names of modules stay and it can be put back."""


class Normalized(nn.Module):
    """A weight layer and the normalizer that was inserted behind it."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    @property
    def weight(self) -> Any:
        """The weight of the layer, for code that reads it."""
        return self.layer.weight

    @property
    def bias(self) -> Any:
        """The bias of the layer, for code that reads it."""
        return self.layer.bias

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the layer and normalize its output."""
        output: Tensor = self.norm(self.layer(*args, **kwargs))
        return output


def remember(new: nn.Module, original: nn.Module) -> nn.Module:
    """Let a module remember which normalizer it replaces; the tensors of that normalizer do not become its own."""
    new.normscope_original = (original,)  # type: ignore[assignment]  # A tuple keeps it from becoming a submodule.
    return new


def original_of(module: nn.Module) -> nn.Module | None:
    """Return the normalizer that a module replaces, if it replaces one."""
    original = module.__dict__.get("normscope_original")
    return original[0] if original else None


def place_of(module: nn.Module) -> NormalizerPlace | None:
    """Return what a module normalizes; None if it is no normalizer."""
    if isinstance(module, Absent):
        original = original_of(module)
        place = None if original is None else place_of(original)
        return None if place is None else dataclasses.replace(place, kind=None)
    if isinstance(module, FeaturesLast):
        place = place_of(module.norm)
        return None if place is None else dataclasses.replace(place, last=True, ranks=UNKNOWN)
    for base, known_place in KNOWN_PLACES.items():
        # A subclass may do more, such as an activation. A SyncBatchNorm has a forward of its own and does no more.
        if isinstance(module, base) and (type(module).forward is base.forward or type(module) is nn.SyncBatchNorm):
            return known_place(module)
    called_norm = "norm" in type(module).__name__.lower() and not type(module).__module__.startswith("torch.nn.utils")
    single = not any(module.children()) and next(module.parameters(), None) is not None
    return _written(module) if called_norm and single else None


def _place(
    module: Any, kind: NormalizerKind, features: int, *, last: bool, eps: float | None = None
) -> NormalizerPlace:
    """Return the place of a normalizer, with its own eps, scale and shift."""
    return NormalizerPlace(
        kind=kind,
        features=features,
        last=last,
        eps=float(module.eps or EPS) if eps is None else eps,
        scale=getattr(module, "weight", None),
        shift=getattr(module, "bias", None),
        ranks=next((ranks for cls, ranks in RANKS.items() if isinstance(module, cls)), UNKNOWN),
    )


def _trailing(module: Any, kind: NormalizerKind) -> NormalizerPlace:
    """Return the place of a normalizer over the last axes; if there are several, the first one counts channels."""
    shape = module.normalized_shape
    if len(shape) == 1:
        return _place(module, kind, shape[0], last=True)
    place = _place(module, kind, shape[0], last=False)
    scale, shift = (_per_channel(value, plain) for value, plain in ((place.scale, 1.0), (place.shift, 0.0)))
    kept = all(
        one is None or other is None or bool((one.flatten(1) == other[:, None]).all())
        for one, other in ((place.scale, scale), (place.shift, shift))
    )
    return dataclasses.replace(place, scale=scale, shift=shift, ranks=(1 + len(shape),), note="" if kept else RESET)


def _per_channel(value: Tensor | None, plain: float) -> Tensor | None:
    """Return one value per channel: the given one where it is the same at every position, else `plain`."""
    if value is None:
        return None
    rows = value.detach().flatten(1)
    return rows[:, 0].clone() if bool((rows == rows[:, :1]).all()) else torch.full_like(rows[:, 0], plain)


KNOWN_PLACES: dict[type[nn.Module], Callable[[Any], NormalizerPlace]] = {
    SampleRMSNorm: lambda module: _place(module, "rms", module.num_channels, last=False),
    _BatchNorm: lambda module: _place(module, "batch", module.num_features, last=False),
    _InstanceNorm: lambda module: _place(module, "instance", module.num_features, last=False),
    nn.GroupNorm: lambda module: _place(
        module, "layer" if module.num_groups == 1 else "group", module.num_channels, last=False
    ),
    nn.LayerNorm: lambda module: _trailing(module, "layer"),
    nn.RMSNorm: lambda module: _trailing(module, "rms"),
}
"""The known classes of normalizers, each with a function that returns the place of such a module."""


def _written(module: nn.Module) -> NormalizerPlace:
    """Return the place of a normalizer with a forward of its own, if it computes what a known one computes."""
    weight = getattr(module, "weight", None)
    eps = next((float(value) for name in ("eps", "variance_epsilon") if (value := getattr(module, name, None))), EPS)
    if isinstance(weight, Tensor) and weight.ndim == 1 and len(weight) > 1:
        bias = getattr(module, "bias", None)
        size, raised = (len(weight),), 1.0 + weight.detach()  # In Gemma the scale is 1 + weight.
        forms: list[tuple[NormalizerKind, bool, Tensor, Callable[[Tensor], Tensor]]] = [
            ("rms", True, weight, lambda x: F.rms_norm(x, size, weight, eps)),
            ("rms", True, raised, lambda x: F.rms_norm(x, size, raised, eps)),
            ("layer", True, weight, lambda x: F.layer_norm(x, size, weight, bias, eps)),
            ("layer", False, weight, lambda x: F.layer_norm(x.movedim(1, -1), size, weight, bias, eps).movedim(-1, 1)),
        ]
        for kind, last, scale, form in forms:
            if _agrees(module, form, (2, 3, len(weight)) if last else (2, len(weight), 3, 3), weight):
                place = _place(module, kind, len(weight), last=last, eps=eps)
                return dataclasses.replace(place, scale=scale)
    raise InputError(f"a {type(module).__name__} has a forward of its own and gives what no known normalizer gives")


@torch.no_grad()
def _agrees(module: nn.Module, form: Callable[[Tensor], Tensor], shape: tuple[int, ...], like: Tensor) -> bool:
    """Whether a module computes what a formula computes, on a random tensor of some shape."""
    x = 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like) + 0.5
    try:
        computed, expected = module(x), form(x)
    except Exception:  # The module takes other shapes.
        return False
    return computed.shape == expected.shape and torch.allclose(computed, expected, rtol=1e-3, atol=1e-5)


def build(kind: NormalizerKind, place: NormalizerPlace, shape: tuple[int, ...] | None, groups: int | None) -> nn.Module:
    """Return a normalizer of a kind for a place, with the scale and shift of the normalizer at that place."""
    number = groups_of(place.features, groups) if kind == "group" else 1
    if shape is not None:
        _check_sets(kind, place, shape, number)
        place = dataclasses.replace(place, ranks=(len(shape),))
    new = _built(kind, place, number)
    if place.scale is not None:
        new.to(device=place.scale.device, dtype=place.scale.dtype)
    inner = new.norm if isinstance(new, FeaturesLast) else new
    for name, value in (("weight", place.scale), ("bias", place.shift)):
        own = getattr(inner, name, None)
        if isinstance(own, Tensor) and value is not None:
            with torch.no_grad():
                own.copy_(value)
            own.requires_grad_(value.requires_grad or not isinstance(value, nn.Parameter))
    return new


def groups_of(features: int, groups: int | None) -> int:
    """Return the number of groups of a GroupNorm."""
    if groups is None:
        least = min(CHANNELS_A_GROUP, -(-features // 2))
        return features // next(size for size in range(least, features + 1) if features % size == 0)
    if groups < 1 or features % groups:
        raise InputError(f"{features} features do not fall into {groups} groups: pass groups that divide them")
    return groups


def _check_sets(kind: NormalizerKind, place: NormalizerPlace, shape: tuple[int, ...], groups: int) -> None:
    """Refuse a kind that would normalize sets of too few entries, for an input of this shape."""
    positions = math.prod(shape[1:-1] if place.last else shape[2:])
    entries = {
        "batch": math.inf,  # The number depends on the batch.
        "layer": place.features * (1 if place.last else positions),
        "group": place.features // groups * (1 if place.last else positions),
        "instance": positions,
        "rms": math.inf,  # RMSNorm is not centred, so that no set is too small.
    }[kind]
    if entries < LEAST_SET:
        what = "turned into zero" if entries == 1 else "turned into their signs"
        raise InputError(
            f"{kind} normalization there would see sets of {entries:g} {'entry' if entries == 1 else 'entries'} (a "
            f"tensor of shape {shape}), which are {what}"
        )


def _built(kind: NormalizerKind, place: NormalizerPlace, groups: int) -> nn.Module:
    """Return a normalizer of a kind with scale 1 and shift 0; `place.ranks` says which class fits."""
    features, eps = place.features, place.eps
    affine = place.scale is not None or place.kind is None
    flat = place.ranks == (2,)
    if kind in ("layer", "rms") and (place.last or flat):
        over_features = nn.LayerNorm if kind == "layer" else nn.RMSNorm
        return over_features(features, elementwise_affine=affine, eps=eps)
    if kind == "rms":
        return SampleRMSNorm(features, affine=affine, eps=eps)
    norm: nn.Module
    if kind in ("layer", "group"):
        norm = nn.GroupNorm(groups, features, affine=affine, eps=eps)
    else:
        by_rank = BATCH_NORMS if kind == "batch" else INSTANCE_NORMS
        classes: set[Any] = {by_rank.get(rank) for rank in ((3,) if place.last else place.ranks)}
        if len(classes) > 1 or None in classes:
            raise InputError(
                f"how many axes its tensor has is not known, which {kind} normalization needs: pass a batch"
            )
        norm = classes.pop()(features, affine=affine, eps=eps)
    return FeaturesLast(norm, tokens=kind == "group") if place.last and not flat else norm
