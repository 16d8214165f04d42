"""The vector that a linear map stretches most, by Lanczos with restarts on the transpose times the map."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ...core.budget import Budget, count
from ...products.lanczos import STEPS_BETWEEN_TESTS
from ...products.spectrum_ends import RestartedSpace
from .linear_map import LinearMap


@dataclass(slots=True)
class SingularSearch:
    """The outcome of a search for the largest singular value: its vector, and how many steps it took.

    Attributes:
        vector: the best vector found, `[*in_shape]`.
        value: its gain, as computed in the working dtype (an estimate).
        steps: the number of steps, each one application of the map and of its transpose.
        settled: whether the value has converged; False where the map overflows, and the vector is the start then.
    """

    vector: Tensor
    value: float
    steps: int
    settled: bool


def largest_singular_vector(
    linear: LinearMap,
    start: Tensor,
    *,
    rtol: float = 1e-4,
    steps: int = 200,
    enough: float = math.inf,
    budget: Budget | None = None,
    memory: float = 4e8,
    scale: float = 1.0,
) -> SingularSearch:
    """Search for the unit vector that a map stretches most: thick-restart Lanczos on the transpose times the map.

    It works in the dtype of `start`, ends once the gain reaches `enough`, and restarts when the basis takes `memory`
    bytes. The map is divided by `scale`, about its gain, so that its square neither overflows nor vanishes.
    """
    size = linear.in_size
    room = int(max(8, min(64, steps + 1, size, memory // (start.element_size() * max(size, 1)))))
    vector = start.reshape(-1)
    norm = float(vector.norm())
    if norm == 0.0 or size == 0:
        return SingularSearch(start, 0.0, 0, True)
    vector = vector / norm
    space = RestartedSpace(start.reshape(-1), room)
    taken = 0
    while True:
        count("products", 2)
        image = linear.adjoint(linear.apply(vector.reshape(1, *linear.in_shape)) / scale).reshape(-1) / scale
        extended = space.extend(vector, image)
        if extended is None:  # the map overflows, and no vector of this search can be trusted
            return SingularSearch(start, 0.0, taken, False)
        image, rest = extended
        taken += 1
        exhausted = rest <= 1e-7 * space.scale or space.filled >= size  # invariant, as far as float32 can tell
        late = budget is not None and not budget.spend()
        last = late or taken >= steps
        if last or exhausted or space.full or taken % STEPS_BETWEEN_TESTS == 0:
            top, coordinates, error = space.largest(rest)
            gain, settled = math.sqrt(top) * scale, error <= rtol or exhausted
            if settled or last or gain >= enough:
                best = (coordinates.to(space.known) @ space.known).reshape(linear.in_shape)
                return SingularSearch(best / best.norm(), gain, taken, settled)
            if space.full:
                space.restart(top=max(2, room // 4))
        vector = image / rest
