"""Does the checker's suite bite? Bugs are planted one by one; each must be caught by a test that passes without it."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..soundness.planting import replacing
from . import test_forged as forged
from .proofs import arithmetic, checker, functions, nodes, proving, reading

Patch = pytest.MonkeyPatch


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """Plant a change in what a function or a method returns: `change(result, *arguments)`."""

    def plant(patch: Patch) -> None:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **more: change(real(*given, **more), *given))

    return plant


def squares_that_are_lost(patch: Patch) -> None:
    """A block whose numbers all underflow is left out, and with it what it may hold."""
    real = arithmetic.positive

    def positive(blocks: Any, count: int) -> bool:
        exact = {place: arithmetic.Enclosure.exact(block.mid) for place, block in blocks.items()}
        return real(exact, count)

    patch.setattr(arithmetic, "positive", positive)
    patch.setattr(arithmetic, "TINY", 0.0)


nan_let_through = replacing(reading.np, "isfinite", lambda value: np.full(np.shape(value), True))


def one_wrong_function(name: str, slopes: Any) -> Callable[[Patch], None]:
    found = dataclasses.replace(functions.FUNCTIONS[name], slopes=slopes)
    return lambda patch: patch.setitem(functions.FUNCTIONS, name, found)


def changed_nodes(kind: str, change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """Plant a change in all nodes of a kind: `change(node)` returns what to replace."""

    def plant(patch: Patch) -> None:
        real = nodes.KINDS[kind]
        patch.setitem(nodes.KINDS, kind, lambda *given: dataclasses_replaced(real(*given), change))

    return plant


def dataclasses_replaced(node: Any, change: Callable[[Any], Any]) -> Any:
    for name, value in change(node).items():
        setattr(node, name, value)
    return node


def narrow_slopes(patch: Patch) -> None:
    def change(node: Any) -> Any:
        return {"slopes": lambda: (np.zeros(1), np.ones(1))}

    changed_nodes("entrywise", change)(patch)


def first_operand_alone(node: Any) -> Any:
    return {"value": lambda *chunks, absolute=False: chunks[0]}


def walk_kept(patch: Patch) -> None:
    """What folds share is never forgotten."""

    def keep(prover: Any, walk: Any) -> None:
        prover.kept = walk or getattr(prover, "kept", None)

    patch.setattr(proving.Prover, "walk", property(lambda prover: prover.kept, keep), raising=False)


work_not_counted = replacing(arithmetic.Work, "spend", lambda self, amount: None)


def little_work() -> None:
    file = forged.Forger((300,))
    file.dense("y", np.ones((300, 300)))
    with tempfile.TemporaryDirectory() as folder:
        written = file.upper(3.0).write(Path(folder) / "forged.npz")
        assert checker.check(str(written))[-1].status == checker.VERIFIED
        assert checker.check(str(written), 1e7)[-1].status == checker.UNVERIFIED


def geometry(number: int) -> Callable[[], None]:
    def trial() -> None:
        with pytest.MonkeyPatch.context() as patch:
            forged.test_convolutions_of_any_geometry(forged.GEOMETRIES[number], patch)

    return trial


digest_not_looked_at = replacing(reading, "fingerprint", lambda header, arrays: "0" * 64)


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


BUGS: dict[str, tuple[Callable[[Patch], None], Callable[[], None]]] = {
    "what underflows is left out": (squares_that_are_lost, forged.test_constants_whose_squares_underflow),
    "every matrix is positive": (
        replacing(arithmetic, "positive", lambda blocks, count: True),
        lambda: forged.test_multipliers_of_any_size_prove_nothing_false(1.0),
    ),
    "the remainder is not looked at": (
        replacing(arithmetic, "factored", lambda blocks, count, shift: True),
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
    "a norm of the lower triangle": (
        changed(arithmetic, "dot", lambda found, *_: np.tril(found)),
        lambda: forged.test_matrices_of_any_size(1.0),
    ),
    "an index without its padding": (
        changed_nodes("gather", lambda node: {"bound": lambda given: given}),
        forged.test_indices_with_duplicates_and_out_of_place,
    ),
    "copies counted once": (
        changed_nodes("gather", lambda node: {"bound": lambda given: given * node.outside**-0.5}),
        geometry(4),
    ),
    "a sum is its first term": (changed_nodes("add", first_operand_alone), forged.test_several_inputs_are_one_vector),
    "a sum is its largest term": (
        changed_nodes("add", lambda node: {"bound": lambda *bounds: max(bounds, key=float)}),
        forged.test_concatenations_that_overlap_are_not_apart,
    ),
    "sides of a concatenation are not added up": (
        changed_nodes("concat", lambda node: {"bound": lambda *bounds: max(bounds, key=float)}),
        forged.test_pairs_of_values_in_a_certificate_are_added_up,
    ),
    "a window counts once": (
        changed_nodes("extreme", lambda node: {"bound": lambda given: given}),
        forged.test_windows_with_repeated_entries,
    ),
    "the softmax of a logarithm": (
        changed_nodes("log_softmax", lambda node: {"bound": lambda given: given / 2}),
        forged.test_softmax,
    ),
    "eps without its root": (
        changed_nodes("normalize", lambda node: {"bound": lambda given: given * 1e-300}),
        lambda: forged.test_normalizers(1e300),
    ),
    "slopes of a positive side alone": (
        one_wrong_function("leaky_relu", (0.0, 1.0)),
        lambda: forged.test_slopes_of_any_size(-3.0),
    ),
    "the value is not subtracted": (
        replacing(proving.np, "full", lambda size, value: np.zeros(size)),
        lambda: forged.test_multipliers_of_any_size_prove_nothing_false(1e-3),
    ),
    "a walk that broke off goes on": (walk_kept, forged.test_a_fold_that_breaks_off_leaves_nothing_behind),
    "slopes are cut off": (narrow_slopes, forged.test_slopes_narrower_than_true_are_ignored),
    "NaN is let through": (
        nan_let_through,
        lambda: forged.test_arrays_with_nan_or_infinity_are_refused(math.nan, "constant"),
    ),
    "numbers may be anything": (
        replacing(reading.Reader, "number", staticmethod(lambda value: float(value))),
        lambda: forged.test_numbers_that_are_none_are_refused(True, "scale"),
    ),
    "a pair may lie anywhere": (replacing(checker, "LOWER_TOLERANCE", 1.0), forged.test_a_pair_outside_its_ball),
    "the radius of balls is dropped": (
        changed(arithmetic, "norm_of", lambda found, values: found.mid()),
        lambda: forged.test_lower_sides_that_rounding_made((), 0),
    ),
    "a tolerance too wide": (
        replacing(checker, "UPPER_TOLERANCE", 1e-5),
        lambda: forged.test_matrices_of_any_size(1.0),
    ),
    "the digest is not checked": (digest_not_looked_at, torn_digest),
    "work is not counted": (work_not_counted, little_work),
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name, monkeypatch):
    plant, trial = BUGS[name]
    trial()
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        trial()
