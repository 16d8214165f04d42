"""The operator norms of weights, of the layers alone and folded with their normalizers; nothing waits for the device.

Layers of one shape are measured together, as a `LayerStack`. A search takes a fixed number of Lanczos steps from a
random start: what it found, and how far that may be off, is read on the host once its coefficients have arrived. Later
a step from the vectors that were found does, for they have moved little: the best in their span, and the images of
those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..listening.calls import LayerGeometry
from .lanczos import MISSED, Krylov, largest_ritz_values

SEARCH_STEPS, MAX_SEARCH_STEPS = 24, 64
"""Lanczos steps of a search, and of one after others that were not enough."""
FOLLOWING_ROUNDS = 2
"""How often the best of a span is taken where norms are followed."""
SEARCH_MEMORY_BYTES = 1 << 28
"""The vectors of a search may take this many bytes."""
MAX_FOLLOWED_ENTRIES = 1 << 19
"""How many entries the vectors of one layer may have together; a layer with a larger input has as few as possible."""
MAX_STACKED_BYTES = {"cpu": 1 << 18, "cuda": 1 << 26}
"""The weights of layers that are measured together may take this many bytes, by device: they are copied for that."""
MATRIX_POWER = 32
"""The power of a small matrix that is taken, twice: eigenvalues within a thousandth of the largest count as largest."""
MIN_REMAINDER = 1e-5
"""What others leave of a unit vector counts as nothing new below this length."""
MIN_DIVISOR = 1e-37
"""Lengths below this are raised to it before anything is divided by them."""


class LayerStack:
    """Layers of one shape, applied to vectors of their own, each group of each layer to its own vectors.

    Args:
        geometry: how each of them is called.
        weights: the weight of each, in float32 or float64.
        scales: factors of the output channels `[layers, channels]`, or one for all `[layers, 1]`; None without them.

    Attributes:
        groups: groups of channels of all layers together.
        norms: 2 where channels are scaled: the norm without scales and that with them.
        size: entries of a vector.
        log10_sizes: log10 of what the layers and their scales are divided by, `[layers, norms]`: squares of extreme
            weights would leave the range of float32.
    """

    def __init__(self, geometry: LayerGeometry, weights: Sequence[Tensor], scales: Tensor | None) -> None:
        self.count, self.norms = len(weights), 1 if scales is None else 2
        self.groups = self.count * geometry.groups
        self.size = math.prod(geometry.shape[1:]) // geometry.groups
        self.geometry = geometry
        largest = torch.stack(torch._foreach_norm(list(weights), math.inf)).clamp(min=MIN_DIVISOR)
        self._root = largest.rsqrt().repeat_interleave(geometry.groups)[:, None, None]
        self._scales: Tensor | None = None
        self._output_shape: tuple[int, ...] = ()
        logs = [largest.log10()]
        if scales is not None:
            most = scales.amax(1).clamp(min=MIN_DIVISOR).to(largest)
            logs.append(logs[0] + most.log10())
            relative = (scales.to(largest) / most[:, None]).expand(-1, geometry.channels)
            self._scales = relative.reshape(self.groups, 1, -1, 1)
        self.log10_sizes = torch.stack(logs, dim=1)
        if self.count == 1:
            self.weight = weights[0]
        elif geometry.kind == "convolution":  # as groups of one layer
            *settings, groups = geometry.settings
            shape = (1, self.count * geometry.shape[1], *geometry.shape[2:])
            self.geometry = replace(geometry, shape=shape, settings=(*settings, groups * self.count))
            self.weight = torch.cat(list(weights))
        else:
            self.weight = torch.stack(list(weights))

    def keep_weights(self) -> None:
        """Keep the weights as they are now, whatever becomes of the layers."""
        if self.count == 1:  # others are copies
            self.weight = self.weight.clone()

    @property
    def like(self) -> Tensor:
        """A tensor of the device and dtype that is computed in."""
        return self._root

    @property
    def followed_shape(self) -> tuple[int, int, int]:
        """The shape of the vectors that are followed: the best two for each norm, two residuals, and a new one."""
        most = max(self.norms + 1, min(2 * self.norms + 3, MAX_FOLLOWED_ENTRIES // self.size))
        return self.groups, max(self.norms, min(self.size, most)), self.size

    def image(self, vectors: Tensor) -> Tensor:
        """Return A v for every group and each of its vectors `[groups, several, size]`."""
        vectors = vectors * self._root
        if self.geometry.kind in ("linear", "matrix"):
            images = self.geometry.image(vectors, self.weight)
        else:
            together = vectors.transpose(0, 1).reshape(-1, *self.geometry.shape[1:])
            made = self.geometry.image(together, self.weight)
            self._output_shape = made.shape[1:]
            images = made.reshape(len(together), self.groups, -1).transpose(0, 1)
        return images * self._root

    def back(self, images: Tensor) -> Tensor:
        """Return A^T w for every group and each of its images; their shape is that of the last ones made."""
        images = images * self._root
        if self.geometry.kind in ("linear", "matrix"):
            vectors = self.geometry.back(images, self.weight)
        else:
            together = images.transpose(0, 1).reshape(-1, *self._output_shape)
            vectors = self.geometry.back(together, self.weight).reshape(len(together), self.groups, -1).transpose(0, 1)
        return vectors * self._root

    def scaled(self, images: Tensor, power: int = 1) -> Tensor:
        """Return images with their channels scaled."""
        assert self._scales is not None, "layers without scales have one norm"
        factors = self._scales if power == 1 else self._scales.square()
        return (images.reshape(*images.shape[:2], factors.shape[2], -1) * factors).reshape(images.shape)

    def take_largest(self, values: Tensor) -> Tensor:
        """Return the largest of all groups of a layer `[layers, norms]`, of values `[groups, norms]`."""
        return values.reshape(self.count, -1, self.norms).amax(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormEstimates:
    """What was measured of the norms of some layers, on the device.

    Attributes:
        numbers: what the host reads norms from, with `read_norms`.
        steps: Lanczos steps of a search; 0 for norms that were followed.
        vectors: the vectors that either norm stretches most, `[groups, several, size]`.
    """

    numbers: Tensor
    steps: int
    vectors: Tensor


class NormSearch:
    """A search for norms from a random start, by a fixed number of Lanczos steps that can be taken in several parts.

    Args:
        layers: the layers; a search that goes on while they are trained needs one of copies of their weights.
        generator: draws the start.
        steps: how many steps, if there is memory for them.
    """

    def __init__(self, layers: LayerStack, generator: torch.Generator, steps: int = SEARCH_STEPS) -> None:
        self.layers, self._generator = layers, generator
        start = _draw_vectors((layers.groups * layers.norms, layers.size), layers.like, generator)
        self._krylov = Krylov(start, invariant_rtol=8.0 * torch.finfo(start.dtype).eps)
        affordable = SEARCH_MEMORY_BYTES // max(start.numel() * start.element_size(), 1)
        self.steps_left = min(max(8, min(steps, affordable)), layers.size)

    def advance(self, steps: int) -> None:
        """Take some of the steps that are left."""
        with torch.no_grad(), torch.autocast(self.layers.like.device.type, enabled=False):
            for _ in range(min(steps, self.steps_left)):
                self._krylov.extend(self._apply)
                self.steps_left -= 1

    def _apply(self, vectors: Tensor) -> Tensor:
        """Return A^T A v for every norm, A with scales for the second."""
        layers = self.layers
        images = layers.image(vectors.reshape(layers.groups, layers.norms, layers.size))
        if layers.norms == 2:
            images = torch.cat([images[:, :1], layers.scaled(images[:, 1:], power=2)], dim=1)
        return layers.back(images).reshape(vectors.shape)

    @torch.no_grad()
    def finish(self) -> NormEstimates:
        """Take all steps that are left, and return what was found."""
        self.advance(self.steps_left)
        layers, krylov, draw = self.layers, self._krylov, self._generator
        groups, norms, size = layers.groups, layers.norms, layers.size
        several = layers.followed_shape[1]
        kept = min(several // norms, 3, krylov.steps)  # one of those that come next may be the largest soon
        with torch.autocast(layers.like.device.type, enabled=False):
            ritz = _top_coordinates(krylov, kept).mT @ krylov.basis[:, : krylov.steps]
        drawn = _draw_vectors((groups * norms, kept, size), layers.like, draw)
        best = _replace_useless(_unit(ritz), drawn).reshape(groups, norms, kept, size)
        fresh = _draw_vectors((groups, several - kept * norms, size), layers.like, draw)
        vectors = torch.cat([best.transpose(1, 2).reshape(groups, kept * norms, size), fresh], dim=1)
        numbers = torch.cat([layers.log10_sizes.reshape(-1), krylov.alpha.reshape(-1), krylov.beta.reshape(-1)])
        return NormEstimates(numbers=numbers, steps=krylov.steps, vectors=vectors)


def follow_norms(layers: LayerStack, warm: Tensor, generator: torch.Generator) -> NormEstimates:
    """Measure norms by a few steps from vectors that were good a while ago.

    The last vector is drawn anew: what grows where no vector looks is met by and by.

    Args:
        layers: the layers.
        warm: the vectors of the last time.
        generator: draws the new vector.
    """
    with torch.no_grad(), torch.autocast(layers.like.device.type, enabled=False):
        if warm.shape[1] > layers.norms:
            fresh = _draw_vectors((len(warm), 1, warm.shape[2]), layers.like, generator)
            warm = torch.cat([warm[:, :-1], fresh], dim=1)
        vectors = warm
        for _ in range(FOLLOWING_ROUNDS):
            values, errors, vectors = _advance(layers, vectors)
        values = values.clamp(min=0.0)
        most = layers.take_largest(values)
        # a group that is smaller may be the largest if it is off by its error
        off = torch.where(most > 0, layers.take_largest(values * (1.0 + errors.clamp(min=0.0))) / most, 1.0)
        norms = most.log10() / 2.0 + layers.log10_sizes
        numbers = torch.cat([norms.reshape(-1), torch.log10(off).reshape(-1) / 2.0])
    return NormEstimates(numbers=numbers, steps=0, vectors=vectors)


def read_norms(numbers: np.ndarray, *, layers: int, norms: int, steps: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log10 of the norms and their errors in decades, each `[layers, norms]`, from what has arrived.

    The error of a search is the distance to Hochstenbach's bound, which fails for one start in a thousand.

    Args:
        numbers: those of a `NormEstimates`.
        layers: how many layers they are of.
        norms: how many norms of each.
        steps: the steps of the search; 0 for norms that were followed.
        size: entries of a vector.
    """
    if not steps:
        values, errors = numbers.reshape(2, layers, norms)
        return values, errors
    count = layers * norms
    logs, coefficients = numbers[:count].reshape(layers, norms), torch.from_numpy(numbers[count:]).double()
    alpha, beta = coefficients.reshape(2, -1, steps)
    finite = torch.isfinite(alpha).all(1) & torch.isfinite(beta).all(1)
    alpha, beta = (diagonal.where(finite[:, None], 0.0) for diagonal in (alpha, beta))
    most, above = (
        values.clamp(min=0.0).where(finite, math.nan).reshape(layers, -1, norms).amax(1).numpy()
        for values in largest_ritz_values(alpha, beta, size, missed=MISSED)
    )
    with np.errstate(all="ignore"):
        return np.log10(most) / 2.0 + logs, np.where(most == 0.0, 0.0, np.log10(above / most) / 2.0)


def _advance(layers: LayerStack, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest Ritz values `[groups, norms]` in a span, their residuals, and the next vectors."""
    # The next vectors of a group are its best ones, their residuals and the second best, or where few are followed the
    # images of the best. Both norms share a span: the layer is applied to it once, its adjoint to two images alone.
    groups, several, size = vectors.shape
    basis = _orthonormalise(vectors)
    images = layers.image(basis)
    norms = layers.norms
    both = images[None] if norms == 1 else torch.stack([images, layers.scaled(images)])
    small = both @ both.mT  # norms, groups, several, several
    best = eigenvectors_by_powers(small.flatten(0, 1), min(2, several)).reshape(norms, groups, several, -1)
    first = best[..., :1]
    chosen = best.mT @ basis  # norms, groups, 1 or 2, entries
    rises = (best if norms == 1 else first).mT @ both  # of two vectors of each group
    if norms == 2:
        rises = torch.stack([rises[0], layers.scaled(rises[1])])
    taken = rises.shape[2]
    backs = layers.back(rises.transpose(0, 1).reshape(groups, norms * taken, -1))
    backs = backs.reshape(groups, norms, taken, size).transpose(0, 1)
    levels = torch.diagonal(best.mT @ small @ best, dim1=2, dim2=3)[..., :taken]
    residuals = backs - levels[..., None] * chosen[:, :, :taken]
    values = levels[..., 0].T
    errors = torch.where(values > 0, torch.linalg.vector_norm(residuals[:, :, 0], dim=2).T / values, 0.0)
    if several > 2 * norms:  # the best of their span and of that of their images
        ordered = [*_list_vectors(chosen[:, :, :1]), *_list_vectors(residuals), *_list_vectors(chosen[:, :, 1:])]
    else:
        ordered = _list_vectors(_replace_useless(backs, chosen[:, :, :taken]))
    ordered = ordered[:several]
    following = torch.cat([torch.stack(ordered, dim=1), basis[:, len(ordered) :]], dim=1)
    return values, errors, _replace_useless(following, vectors)


def _list_vectors(of_norms: Tensor) -> list[Tensor]:
    """Return each of several vectors of every norm, the first of all norms first."""
    return [of_norms[norm, :, index] for index in range(of_norms.shape[2]) for norm in range(len(of_norms))]


def _top_coordinates(krylov: Krylov, count: int) -> Tensor:
    """Return the coordinates of the top Ritz vectors `[rows, steps, count]`."""
    small = torch.diag_embed(krylov.alpha)
    if krylov.steps > 1:
        beside = torch.diag_embed(krylov.beta[:, :-1], offset=1)
        small = small + beside + beside.mT
    return eigenvectors_by_powers(small, count)


def eigenvectors_by_powers(matrices: Tensor, count: int) -> Tensor:
    """Return the top eigenvectors of small symmetric matrices by high powers of them, which wait for no device."""
    vectors: list[Tensor] = []
    for _ in range(count):
        share = torch.linalg.matrix_power(matrices / _trace(matrices), MATRIX_POWER)
        share = torch.linalg.matrix_power(share / _trace(share), MATRIX_POWER)
        most = torch.diagonal(share, dim1=1, dim2=2).argmax(1)
        top = _unit(torch.take_along_dim(share, most[:, None, None].expand(-1, share.shape[1], 1), 2).mT).mT
        vectors.append(top)
        away = matrices @ top
        matrices = matrices - away @ top.mT - top @ away.mT + (top.mT @ away) * (top @ top.mT)
    return torch.cat(vectors, dim=2)


def _orthonormalise(rows: Tensor) -> Tensor:
    """Return rows that span the same, by Gram and Schmidt; rows that add nothing come out short."""
    # no factorisation of a library: the first one on a GPU takes a second, to load that library
    rows = _unit(rows)
    basis = rows[:, :1]
    for index in range(1, rows.shape[1]):
        row = rows[:, index : index + 1]
        row = torch.baddbmm(row, row @ basis.mT, basis, alpha=-1.0)
        row = row / torch.linalg.vector_norm(row, dim=-1, keepdim=True).clamp(min=MIN_REMAINDER)
        basis = torch.cat([basis, torch.baddbmm(row, row @ basis.mT, basis, alpha=-1.0)], dim=1)
    return basis


def _unit(rows: Tensor) -> Tensor:
    return rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp(min=MIN_DIVISOR)


def _replace_useless(rows: Tensor, others: Tensor) -> Tensor:
    """Return rows, with others in the place of those that are zero or not finite."""
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return torch.where((length > 0) & length.isfinite(), rows, others)


def _trace(matrices: Tensor) -> Tensor:
    return torch.diagonal(matrices, dim1=1, dim2=2).sum(1).clamp(min=MIN_DIVISOR)[:, None, None]


def _draw_vectors(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random vectors; the generator of the user is left alone."""
    return torch.randn(shape, generator=generator, device=generator.device).to(like)
