"""Normalizers as modules of a model: what each one is, and a module of another kind for the same place."""

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

Kind = Literal["batch", "layer", "group", "instance", "rms"]
KINDS: tuple[str, ...] = get_args(Kind)
CHANNELS_A_GROUP = 16
"""Of a GroupNorm whose number of groups nobody gave (Wu and He 2018, table 3)."""
LEAST_SET = 3
"""Entries: LayerNorm turns 2 into their signs and 1 into zero (`normscope.theory.normalizers`)."""
EPS = 1e-5
RESET = "its scale or shift differs between positions and is reset"
UNKNOWN = (2, 3, 4, 5)
"""Numbers of axes that a tensor may have."""
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
    """A place for a normalizer: how many features there are, and on which axis.

    Attributes:
        kind: what stands there; None for nothing.
        features: how many channels or features there are.
        last: whether they are on the last axis (as behind a Linear) or on the second (as behind a convolution).
        eps: of what stands there.
        scale, shift: one per feature; None where it has none.
        ranks: how many axes the tensor that is normalized may have.
        note: what a replacement does not keep.
    """

    kind: Kind | None
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
        tokens: every position is a sample of its own (GroupNorm); otherwise positions count as those of an image
            (BatchNorm, InstanceNorm).
    """

    norm: nn.Module

    def __init__(self, norm: nn.Module, *, tokens: bool) -> None:
        super().__init__()
        self.norm, self.tokens = norm, tokens

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a tensor `[samples, ..., features]`."""
        if self.tokens:
            found: Tensor = self.norm(x.reshape(-1, x.shape[-1]))
            return found.reshape(x.shape)
        rows = x.reshape(x.shape[0], -1, x.shape[-1]).transpose(1, 2)
        found = self.norm(rows)
        return found.transpose(1, 2).reshape(x.shape).contiguous()  # some models view it


class SampleRMSNorm(nn.Module):
    """RMSNorm over all channels and positions of a sample, with one scale per channel: `GroupNorm(1, C)` uncentred."""

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
    """`scale * x + shift` on the second axis: what an eval-mode BatchNorm is that no layer can take in."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(scale), nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift a tensor `[samples, channels, ...]`."""
        sizes = (-1, *(1,) * (x.ndim - 2))
        return x * self.scale.reshape(sizes) + self.shift.reshape(sizes)


class Absent(nn.Identity):
    """Stands where a normalizer was taken out, so that names stay and it can be put back."""


class Normalized(nn.Module):
    """A weight layer and the normalizer that was put behind it."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    @property
    def weight(self) -> Any:
        """That of the layer, for code that reads it."""
        return self.layer.weight

    @property
    def bias(self) -> Any:
        """That of the layer, for code that reads it."""
        return self.layer.bias

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the layer and normalize what it gives."""
        made: Tensor = self.norm(self.layer(*args, **kwargs))
        return made


def remember(new: nn.Module, original: nn.Module) -> nn.Module:
    """Let a module remember which normalizer it stands for; that one's tensors do not become its own."""
    new.normscope_original = (original,)  # type: ignore[assignment]  # a tuple, so that it is no submodule
    return new


def original_of(module: nn.Module) -> nn.Module | None:
    """Return the normalizer that a module stands for, if it stands for one."""
    held = module.__dict__.get("normscope_original")
    return held[0] if held else None


def place_of(module: nn.Module) -> NormalizerPlace | None:
    """Return what a module normalizes; None if it is no normalizer.

    Raises:
        InputError: it looks like a normalizer and is none that is known.
    """
    if isinstance(module, Absent):
        held = original_of(module)
        place = None if held is None else place_of(held)
        return None if place is None else dataclasses.replace(place, kind=None)
    if isinstance(module, FeaturesLast):
        inner = place_of(module.norm)
        return None if inner is None else dataclasses.replace(inner, last=True, ranks=UNKNOWN)
    if isinstance(module, SampleRMSNorm):
        return _place(module, "rms", module.num_channels, last=False)
    if isinstance(module, _BatchNorm) and (_forward_of(module, _BatchNorm) or type(module) is nn.SyncBatchNorm):
        return _place(module, "batch", module.num_features, last=False)
    if isinstance(module, _InstanceNorm) and _forward_of(module, _InstanceNorm):
        return _place(module, "instance", module.num_features, last=False)
    if isinstance(module, nn.GroupNorm) and _forward_of(module, nn.GroupNorm):
        return _place(module, "layer" if module.num_groups == 1 else "group", module.num_channels, last=False)
    if isinstance(module, nn.LayerNorm) and _forward_of(module, nn.LayerNorm):
        return _trailing(module, "layer")
    if isinstance(module, nn.RMSNorm) and _forward_of(module, nn.RMSNorm):
        return _trailing(module, "rms")
    named = "norm" in type(module).__name__.lower() and not type(module).__module__.startswith("torch.nn.utils")
    if named and not any(module.children()) and next(module.parameters(), None) is not None:
        return _written(module)
    return None


def _forward_of(module: nn.Module, base: type[nn.Module]) -> bool:
    """Whether a class has the forward of its base: a subclass may do more, such as an activation."""
    return type(module).forward is base.forward


def _place(module: Any, kind: Kind, features: int, *, last: bool, eps: float | None = None) -> NormalizerPlace:
    return NormalizerPlace(
        kind=kind,
        features=features,
        last=last,
        eps=float(module.eps or EPS) if eps is None else eps,
        scale=getattr(module, "weight", None),
        shift=getattr(module, "bias", None),
        ranks=next((ranks for cls, ranks in RANKS.items() if isinstance(module, cls)), UNKNOWN),
    )


def _trailing(module: Any, kind: Kind) -> NormalizerPlace:
    """Return the place of a normalizer over the last axes: over several, the first of them counts the channels."""
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
    """Return one value per channel, where they are the same at every position, else a plain one."""
    if value is None:
        return None
    rows = value.detach().flatten(1)
    return rows[:, 0].clone() if bool((rows == rows[:, :1]).all()) else torch.full_like(rows[:, 0], plain)


def _written(module: nn.Module) -> NormalizerPlace:
    """Return the place of a normalizer with a forward of its own, if that gives what a known one gives.

    Raises:
        InputError: it does not.
    """
    weight = getattr(module, "weight", None)
    eps = next((float(value) for name in ("eps", "variance_epsilon") if (value := getattr(module, name, None))), EPS)
    if isinstance(weight, Tensor) and weight.ndim == 1 and len(weight) > 1:
        bias = getattr(module, "bias", None)
        size, raised = (len(weight),), 1.0 + weight.detach()  # Gemma's scale is 1 + weight
        forms: list[tuple[Kind, bool, Tensor, Callable[[Tensor], Tensor]]] = [
            ("rms", True, weight, lambda x: F.rms_norm(x, size, weight, eps)),
            ("rms", True, raised, lambda x: F.rms_norm(x, size, raised, eps)),
            ("layer", True, weight, lambda x: F.layer_norm(x, size, weight, bias, eps)),
            ("layer", False, weight, lambda x: F.layer_norm(x.movedim(1, -1), size, weight, bias, eps).movedim(-1, 1)),
        ]
        for kind, last, scale, form in forms:
            if _alike(module, form, (2, 3, len(weight)) if last else (2, len(weight), 3, 3), weight):
                place = _place(module, kind, len(weight), last=last, eps=eps)
                return dataclasses.replace(place, scale=scale)
    raise InputError(f"a {type(module).__name__} has a forward of its own and gives what no known normalizer gives")


@torch.no_grad()
def _alike(module: nn.Module, form: Callable[[Tensor], Tensor], shape: tuple[int, ...], like: Tensor) -> bool:
    x = 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like) + 0.5
    try:
        found, wanted = module(x), form(x)
    except Exception:  # a forward for other shapes
        return False
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)


def build(kind: Kind, place: NormalizerPlace, shape: tuple[int, ...] | None, groups: int | None) -> nn.Module:
    """Return a normalizer of a kind for a place, with the scale and shift that stood there.

    Args:
        kind: of the new one.
        place: where it shall stand.
        shape: of the tensor that it will be given, where that is known.
        groups: of a GroupNorm; None for about sixteen channels each, or two groups of fewer.

    Raises:
        InputError: that kind would normalize sets of one or two entries there, or needs a shape to be built.
    """
    number = groups_of(place.features, groups) if kind == "group" else 1
    if shape is not None:
        _check_sets(kind, place, shape, number)
        place = dataclasses.replace(place, ranks=(len(shape),))
    made = _built(kind, place, number)
    if place.scale is not None:
        made.to(device=place.scale.device, dtype=place.scale.dtype)
    inner = made.norm if isinstance(made, FeaturesLast) else made
    for name, value in (("weight", place.scale), ("bias", place.shift)):
        own = getattr(inner, name, None)
        if isinstance(own, Tensor) and value is not None:
            with torch.no_grad():
                own.copy_(value)
            own.requires_grad_(value.requires_grad or not isinstance(value, nn.Parameter))
    return made


def groups_of(features: int, groups: int | None) -> int:
    """Return the number of groups of a GroupNorm.

    Raises:
        InputError: the number that was asked for does not divide the features.

    Example:
        >>> [groups_of(features, None) for features in (64, 96, 48, 10, 7)]
        [4, 6, 3, 2, 1]
    """
    if groups is None:
        least = min(CHANNELS_A_GROUP, -(-features // 2))
        return features // next(size for size in range(least, features + 1) if features % size == 0)
    if groups < 1 or features % groups:
        raise InputError(f"{features} features do not fall into {groups} groups: pass groups that divide them")
    return groups


def _check_sets(kind: Kind, place: NormalizerPlace, shape: tuple[int, ...], groups: int) -> None:
    """Refuse sets that are too small to be normalized, at the shape that is known."""
    positions = math.prod(shape[1:-1] if place.last else shape[2:])
    entries = {
        "batch": math.inf,  # as many as the batch is large
        "layer": place.features * (1 if place.last else positions),
        "group": place.features // groups * (1 if place.last else positions),
        "instance": positions,
        "rms": math.inf,  # uncentred: never degenerate
    }[kind]
    if entries < LEAST_SET:
        what = "turned into zero" if entries == 1 else "turned into their signs"
        raise InputError(
            f"{kind} normalization there would see sets of {entries:g} {'entry' if entries == 1 else 'entries'} (a "
            f"tensor of shape {shape}), which are {what}"
        )


def _built(kind: Kind, place: NormalizerPlace, groups: int) -> nn.Module:
    """Return the bare module; `place.ranks` says which class fits."""
    features, eps = place.features, place.eps
    affine = place.scale is not None or place.kind is None
    flat, last = place.ranks == (2,), place.last
    wrapped = last and not flat
    if kind == "batch":
        classes = {BATCH_NORMS[rank] for rank in place.ranks}
        cls = nn.BatchNorm1d if last else classes.pop() if len(classes) == 1 else _unknown(kind)
        made: nn.Module = cls(features, affine=affine, eps=eps)
    elif kind == "instance":
        known = len(place.ranks) == 1 and place.ranks[0] in INSTANCE_NORMS
        cls = nn.InstanceNorm1d if last else INSTANCE_NORMS[place.ranks[0]] if known else _unknown(kind)
        made = cls(features, affine=affine, eps=eps)
    elif kind == "group" or (kind == "layer" and not (last or flat)):
        made = nn.GroupNorm(groups, features, affine=affine, eps=eps)
    elif kind == "layer":
        return nn.LayerNorm(features, elementwise_affine=affine, eps=eps)
    elif last or flat:
        return nn.RMSNorm(features, elementwise_affine=affine, eps=eps)
    else:
        return SampleRMSNorm(features, affine=affine, eps=eps)
    return FeaturesLast(made, tokens=kind == "group") if wrapped else made


def _unknown(kind: Kind) -> Any:
    raise InputError(f"how many axes its tensor has is not known, which {kind} normalization needs: pass a batch")
