"""What has been worked out about a linear map is kept by the map itself, and goes when it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from .linear_map import LinearMap

Found = TypeVar("Found")


def kept(function: Callable[[LinearMap], Found]) -> Callable[[LinearMap], Found]:
    """Let every map keep what a function finds out about it, so that this is worked out once.

    Example:
        >>> from normscope.linalg.linear_map import Identity
        >>> entries, here = kept(lambda linear: [linear.in_size]), Identity((2, 3))
        >>> entries(here), entries(here) is entries(here), entries(here) is entries(Identity((2, 3)))
        ([6], True, False)
    """

    @wraps(function)
    def found(linear: LinearMap) -> Found:
        if function not in linear.worked_out:
            linear.worked_out[function] = function(linear)
        known: Found = linear.worked_out[function]
        return known

    return found
