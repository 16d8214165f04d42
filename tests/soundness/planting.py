"""Bugs that tests plant, to see that they would be seen: a name is replaced, or a function is called in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


def replacing(where: Any, name: str, value: Any) -> Plant:
    """Return what puts a value in the place of what a module or a class has under a name."""
    return lambda patch: patch.setattr(where, name, value)


def around(where: Any, name: str) -> Callable[[Callable[..., Any]], Plant]:
    """Make a bug of a function that takes the place of another: it gets the real one, and then what that is given."""

    def plant_by(function: Callable[..., Any]) -> Plant:
        def plant(patch: pytest.MonkeyPatch) -> None:
            real = getattr(where, name)
            patch.setattr(where, name, lambda *given, **named: function(real, *given, **named))

        return plant

    return plant_by
