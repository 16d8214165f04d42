"""Does the checker's suite bite? Bugs are planted one by one; each must be caught by a test that passes without it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flint import arb

from . import test_forged as forged
from .proofs import arithmetic, checker, convolution, functions, maps, network, reading

from normscope_verify import steps  # isort: skip

Patch = pytest.MonkeyPatch


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """Plant a change in what a function or a method returns: `change(result, *arguments)`."""

    def plant(patch: Patch) -> None:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **more: change(real(*given, **more), *given))

    return plant


def placed(owner: Any, name: str, value: Any) -> Callable[[Patch], None]:
    """Plant another value or function."""
    return lambda patch: patch.setattr(owner, name, value)


def squares_that_are_lost(patch: Patch) -> None:
    real = steps.Quadratic._squares

    def squares(self: Any, form: Any, weights: Any) -> None:
        if weights.mid.any():
            real(self, form, weights)

    patch.setattr(steps.Quadratic, "_squares", squares)


def nan_let_through(patch: Patch) -> None:
    patch.setattr(reading.np, "isfinite", lambda value: np.full(np.shape(value), True))


def one_wrong_function(name: str, slopes: Any) -> Callable[[Patch], None]:
    found = dataclasses.replace(functions.FUNCTIONS[name], slopes=slopes)
    return lambda patch: patch.setitem(functions.FUNCTIONS, name, found)


def narrow_slopes(patch: Patch) -> None:
    real = steps.Quadratic.activation

    def activation(self: Any, node: Any, low: Any, high: Any, multipliers: Any) -> None:
        real(self, node, np.maximum(low, 0.0), np.minimum(high, 1.0), multipliers)

    patch.setattr(steps.Quadratic, "activation", activation)


def lower_triangle(patch: Patch) -> None:
    real = maps.Dense.matrix
    patch.setattr(maps.Dense, "matrix", lambda self: arithmetic.Enclosure.exact(np.tril(real(self).mid)))


def smaller_torus(patch: Patch) -> None:
    real = convolution.Convolution._on_torus

    def on_torus(self: Any, extra: int, twist: int) -> arb:
        axes = [dataclasses.replace(axis, left=0, right=0, kernel=1) for axis in self.axes]
        weight = self.weight[:, :, :1]
        return real(convolution.Convolution(weight, axes, self.groups), extra, twist)

    patch.setattr(convolution.Convolution, "_on_torus", on_torus)


def geometry(number: int) -> Callable[[], None]:
    def trial() -> None:
        with pytest.MonkeyPatch.context() as patch:
            forged.test_convolutions_of_any_geometry(forged.GEOMETRIES[number], patch)

    return trial


def fold_that_underflows(patch: Patch) -> None:
    def scaled(self: Any, scale: Any, *, outputs: bool) -> Any:
        return convolution.Convolution(self.weight * scale.reshape(-1, 1, 1), self.axes, self.groups)

    patch.setattr(convolution.Convolution, "scaled", scaled)


def digest_not_looked_at(patch: Patch) -> None:
    patch.setattr(reading, "fingerprint", lambda header, arrays: "0" * 64)


def torn_digest() -> None:
    """A digest of zeros is refused."""
    with pytest.MonkeyPatch.context() as patch:
        real = reading.fingerprint
        file = forged.Forger((1,))
        file.dense("y", [[1.0]])
        seen: list[str] = []

        def wrong(header: Any, arrays: Any) -> str:
            seen.append("written")
            return "0" * 64 if len(seen) == 1 else real(header, arrays)

        patch.setattr(reading, "fingerprint", wrong)
        assert file.upper(1.0).told() == "REFUSED"


ONE = arb(1)
BUGS: dict[str, tuple[Callable[[Patch], None], Callable[[], None]]] = {
    "squares that underflow are left out": (
        squares_that_are_lost,
        forged.test_constants_whose_squares_underflow,
    ),
    "every matrix is positive": (
        placed(arithmetic, "positive", lambda blocks, count: True),
        lambda: forged.test_multipliers_of_any_size_prove_nothing_false(1.0),
    ),
    "the remainder is not looked at": (
        placed(arithmetic, "_factored", lambda blocks, count, shift: True),
        forged.test_a_certificate_of_a_linear_value_is_exact,
    ),
    "the root of a norm is forgotten": (
        changed(arithmetic, "matrix_norm", lambda found, matrix: found * found),
        lambda: forged.test_matrices_of_any_size(1e-40),
    ),
    "a norm a little too small": (
        changed(arithmetic, "matrix_norm", lambda found, matrix: found * (1 - 1e-5)),
        lambda: forged.test_matrices_of_any_size(1.0),
    ),
    "a norm of the lower triangle": (lower_triangle, lambda: forged.test_matrices_of_any_size(1.0)),
    "a norm on tori too small": (changed(arithmetic, "stack_norm", lambda found, matrices: found * 0.9), geometry(4)),
    "a torus for the first tap alone": (smaller_torus, geometry(0)),
    "the stride is ignored": (
        changed(convolution.Convolution, "_on_torus", lambda found, self, *rest: found / self.axes[0].stride),
        geometry(1),
    ),
    "a fold that underflows": (
        fold_that_underflows,
        forged.test_a_batch_norm_folded_into_a_large_convolution_does_not_underflow,
    ),
    "the largest in place of the root of squares": (
        placed(arithmetic, "root_of_squares", lambda bounds: max(bounds, key=float, default=ONE * 0)),
        forged.test_several_inputs_are_one_vector,
    ),
    "squares of what meets are added up": (
        placed(network.Linear, "apart", True),
        forged.test_concatenations_that_overlap_are_not_apart,
    ),
    "a window counts once": (
        placed(network.Extreme, "gains", lambda self: [ONE]),
        forged.test_windows_with_repeated_entries,
    ),
    "the softmax of a logarithm": (placed(network.Softmax, "gains", lambda self: [ONE / 2]), forged.test_softmax),
    "eps without its root": (
        placed(network.Normalize, "gains", lambda self: [ONE / arb(self.eps)]),
        lambda: forged.test_normalizers(1e300),
    ),
    "slopes of a positive side alone": (
        one_wrong_function("leaky_relu", (0.0, 1.0)),
        lambda: forged.test_slopes_of_any_size(-3.0),
    ),
    "the value is not subtracted": (
        placed(steps.Quadratic, "end", lambda self, node, scale: None),
        lambda: forged.test_multipliers_of_any_size_prove_nothing_false(1.0),
    ),
    "slopes are cut off": (narrow_slopes, forged.test_slopes_narrower_than_true_are_ignored),
    "NaN is let through": (
        nan_let_through,
        lambda: forged.test_arrays_with_nan_or_infinity_are_refused(math.nan, "constant"),
    ),
    "numbers may be anything": (
        placed(reading.Reader, "number", staticmethod(lambda value: float(value))),
        lambda: forged.test_numbers_that_are_none_are_refused(True, "scale"),
    ),
    "a pair may lie anywhere": (placed(checker, "LOWER_TOLERANCE", 1.0), forged.test_a_pair_outside_its_ball),
    "the radius of balls is dropped": (
        changed(arithmetic, "norm_of", lambda found, values: found.mid()),
        lambda: forged.test_lower_sides_that_rounding_made((), 0),
    ),
    "a tolerance too wide": (placed(checker, "UPPER_TOLERANCE", 1e-5), lambda: forged.test_matrices_of_any_size(1.0)),
    "the digest is not checked": (digest_not_looked_at, torn_digest),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name, monkeypatch):
    plant, trial = BUGS[name]
    trial()
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        trial()
