"""Files forged by someone who knows the format: nothing below the truth is verified, whatever the numbers are.

The true constants are computed here, by dense singular values, in fractions or by hand.
"""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest

from .forging import Forger, exactly, never
from .proofs import checker, proving

VERIFIED = checker.VERIFIED
SIZES = [1e-300, 1e-200, 1e-170, 1e-150, 1e-40, 1.0, 1e40, 1e150, 1e160, 1e200, 1e300]
TINIEST = 5e-324
real = math.prod


def norm(matrix) -> float:
    return float(np.linalg.norm(np.array(matrix, float), 2))


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def written_out(weight, size, stride=1, dilation=1, left=0, right=0, groups=1):
    """A convolution of one axis as a matrix, entry by entry."""
    out, inner, taps = weight.shape
    count = (size + left + right - dilation * (taps - 1) - 1) // stride + 1
    matrix = np.zeros((out, count, inner * groups, size))
    for o in range(out):
        for c in range(inner):
            for p in range(count):
                for t in range(taps):
                    place = p * stride - left + t * dilation
                    if 0 <= place < size:
                        matrix[o, p, o // (out // groups) * inner + c, place] += weight[o, c, t]
    return matrix.reshape(out * count, -1)


# ------------------------------------------------------------------------------------- sizes of numbers, in every map


@pytest.mark.parametrize("size", SIZES)
def test_matrices_of_any_size(size):
    matrix = drawn(4, 3)
    file = Forger((3,))
    file.dense("y", matrix * size)
    exactly(file, math.log10(norm(matrix)) + math.log10(size))


def scaled(scales, kind):
    """Layers that multiply by these numbers, one after the other."""
    file = Forger((1, 3))
    for k, scale in enumerate(scales):
        if kind == "chain":
            continue
        maps = {
            "dense": file.matrix(scale * np.eye(3)),
            "diagonal": file.diagonal(scale),
            "convolution": file.convolution([[[scale]]], [3]),
            "mixed": file.diagonal([[scale]]) if k % 2 else file.convolution([[[scale]]], [3]),
        }[kind]
        file.add(f"y{k}", "linear", (1, 3), [file.output], maps=[maps])
    if kind == "chain":
        parts = [file.diagonal([[s]]) if k % 2 else file.convolution([[[s]]], [3]) for k, s in enumerate(scales)]
        file.add("y", "linear", (1, 3), ["x0"], maps=[{"map": "chain", "parts": parts}])
    return file


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["dense", "diagonal", "convolution", "mixed", "chain"])
@pytest.mark.parametrize(
    "scales", [(1e-200, 1e-200, 1e200, 1e200), (1e200, 1e200, 1e-200, 1e-200), (1e-162,) * 3, (TINIEST, 1e-5, 1e300)]
)
def test_products_that_under_or_overflow_in_between(kind, scales):
    true = sum(math.log10(scale) for scale in scales)
    for by in ("operands", "segments", "slopes"):
        file = scaled(scales, kind)
        steps = [step for step in file.steps() if step["by"] == by]
        never(file, true - 0.05, steps)
        never(file, true - 100.0, steps)


def test_zero_times_infinity_is_no_bound():
    """0 elu(x) of unlimited slope beside 20 x: whatever 0 inf is taken for, the constant is 20 and no less."""
    huge = {"alpha": 1e300, "scale": 1e300, "input_scale": 1e9}
    file = Forger((1,))
    file.bent("e", "elu", **huge)
    file.add("y", "linear", (1,), ["e", "x0"], maps=[file.diagonal(0.0), file.diagonal(20.0)])
    steps = [*file.steps(), file.certificate({"x0": 1e-300}, 1.0, multipliers={"e": 1e-300})]
    for log10 in (-300.0, 1.3):
        never(file, log10, steps)
    never(file, -300.0, steps[1:])
    file.upper(-300.0, steps, scope="ball", centre=file.put([0.0]), radius=1e300)
    assert file.told() != VERIFIED


# ------------------------------------------------------------------------------------- certificates


def two_layers(first, second, function="relu", **parameters):
    file = Forger((len(first[0]),))
    file.dense("v", first)
    file.bent("u", function, **parameters)
    file.dense("y", second)
    return file


@pytest.mark.parametrize("scale", [1.5e-162, 1e-170, 1e-300])
@pytest.mark.parametrize("weight", [TINIEST, 1e-320, 1e-300])
def test_a_scale_whose_square_underflows(scale, weight):
    """Were norm(scale dy)^2 lost, the form would be positive for every network: 7 x is claimed to have 2."""
    file = Forger((2,))
    file.dense("y", [[7.0, 0.0], [0.0, 7.0]])
    bound = math.log10(weight) / 2.0 - math.log10(scale)
    if bound < math.log10(7.0):
        never(file, bound + 0.1, [file.certificate({"x0": weight}, scale)])


def test_constants_whose_squares_underflow():
    """x/sqrt(x^2 + 1e40) has constant 1e-20; between factors of 1e100 and 1e80 that is 1e160."""
    file = Forger((1,))
    file.dense("v", [[1e100]])
    file.add("u", "normalize", (1,), ["v"], of=1, eps=1e40)
    file.dense("y", [[1e80]])
    for multiplier in (TINIEST, 1e-310, 1e-300):
        for weight in (TINIEST, 1e-310, 1e-200):
            for bound in (1e-5, 1.0, 1e100, 1e150):
                step = file.certificate({"x0": weight}, weight**0.5 / bound, multipliers={"u": multiplier})
                never(file, math.log10(bound), [step])
    exactly(file, 160.0)


@pytest.mark.parametrize("multiplier", [-1.0, -1e-3, 0.0, TINIEST, 1e-300, 1e-3, 1.0, 1e3, 1e300])
def test_multipliers_of_any_size_prove_nothing_false(multiplier):
    first, second = drawn(3, 2, seed=1), drawn(2, 3, seed=2)
    file = two_layers(first, second)
    true = max(norm(second @ np.diag(on) @ first) for on in np.ndindex(2, 2, 2))
    for scale in (1e-300, 1e-3, 1.0 / (true * (1 - 1e-5)), 1e3, 1e300):
        step = file.certificate({"x0": 1.0}, scale, multipliers={"u": multiplier})
        never(file, math.log10(true * (1 - 2e-6)), [step])
        assert multiplier >= 0.0 or file.told() == "REFUSED"


def test_slopes_narrower_than_true_are_ignored():
    file = two_layers([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]], "leaky_relu", slope=-2.0)
    for slopes in ([0.0, 0.0], [0.5, 0.5], [1.0, -2.0], [0.9, 1.0], [1e300, -1e300]):
        for multiplier in (1e-2, 1.0, 1e2):
            step = file.certificate({"x0": 1.0}, 1.0 / 2.8, multipliers={"u": multiplier}, slopes={"u": slopes})
            never(file, math.log10(8.0**0.5) - 1e-3, [step])


def test_a_certificate_of_a_linear_value_is_exact():
    matrix = drawn(3, 4, seed=3)
    file = Forger((4,))
    file.dense("y", matrix)
    good = file.certificate({"x0": 1.0}, 1.0 / (norm(matrix) * (1 + 1e-8)))
    exactly(file, math.log10(norm(matrix)), [good])
    never(
        file, math.log10(norm(matrix) * (1 - 5e-6)), [file.certificate({"x0": 1.0}, 1.0 / (norm(matrix) * (1 - 5e-6)))]
    )


def test_a_fold_that_breaks_off_leaves_nothing_behind():
    """Folds from the input go on where the last one ended; not where it broke off, wherever that was."""
    file = Forger((2,))
    for k, factor in enumerate((2.0, 3.0)):
        file.dense(f"v{k}", factor * np.eye(2))
        file.bent(f"u{k}", "leaky_relu", slope=0.5)
    file.dense("y", [[1.0, 1.0]])
    folds = [{"do": "sum", "at": at, "by": "slopes"} for at in ("v0", "v1", "v1", "y", "y")]
    real = proving.Forms.hold
    for broken in range(16):
        count = iter(range(100))

        def hold(self, rows, columns, broken=broken, count=count):
            real(self, rows, columns)
            if next(count) == broken:
                raise proving.Unproven("here it breaks off")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proving.Forms, "hold", hold)
            never(file, math.log10(72.0**0.5) - 1e-3, folds)
    exactly(file, math.log10(72.0**0.5), folds)


def test_several_inputs_are_one_vector():
    one, two = drawn(3, 2, seed=4), drawn(3, 4, seed=5)
    file = Forger((2,), (4,))
    file.add("y", "linear", (3,), ["x0", "x1"], maps=[file.matrix(one), file.matrix(two)])
    true = norm(np.hstack([one, two]))
    never(file, math.log10(true) - 1e-6)
    assert file.upper(math.log10(true) + 1e-7).told() == VERIFIED
    step = file.certificate({"x": 1.0}, 1.0 / (true * (1 + 1e-8)))
    exactly(file, math.log10(true), [step])
    for weights in ((1.0, 1e-9), (1e-9, 1.0), (0.3, 0.3)):
        start = dict(zip(("x0", "x1"), weights, strict=True))
        for scale in (1e-3, 0.1, 0.9 / true, 1.0):
            never(file, math.log10(true) - 1e-5, [file.certificate(start, scale)])


def test_a_start_in_the_middle_or_at_the_output():
    file = two_layers([[3.0]], [[5.0]])
    everything = file.steps()
    known = [step for step in everything if step["at"] in ("v", "u")]
    for start in ("v", "u", "y"):
        for weight in (1e-12, 1.0, 1e12):
            step = file.certificate({start: weight}, 1.0, multipliers={"u": 30.0})
            never(file, math.log10(14.9), [step])
            never(file, math.log10(14.9), [*known, step])
            never(file, math.log10(14.9), [*everything, step])
    exactly(file, math.log10(15.0), [*known, file.certificate({"u": 1.0}, 1.0 / (5.0 * (1 + 1e-8)))])
    exactly(file, math.log10(15.0), [*known, file.certificate({"u": 1.0, "x0": 1e-9}, 1.0 / (5.0 * (1 + 1e-8)))])


def test_steps_in_odd_order_or_at_wrong_nodes():
    file = two_layers([[3.0]], [[5.0]])
    steps = file.steps()
    never(file, math.log10(15.0), steps[::-1])
    never(file, math.log10(15.0), [step for step in steps if step["at"] == "y" and step["by"] == "operands"])
    exactly(file, math.log10(15.0), steps[::-1] * 3)
    for do, at in (("gain", "x0"), ("gain", "y"), ("sum", "u"), ("sum", "x0"), ("certificate", "x0")):
        step = {"do": do, "at": at}
        if do == "certificate":
            step = file.certificate({"x0": 1e-9}, 1e9, at=at)
        assert file.upper(math.log10(14.9), [step] * 2 + steps).told() != VERIFIED


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("at", "start"), [("x0", "x0"), ("v", "v"), ("y", "y"), ("y", "u")])
@pytest.mark.parametrize("multipliers", [{"u": 0.0}, {"u": 1.0}, {"u": [1.0, 1.0]}])
def test_multipliers_of_nodes_off_the_way_do_not_empty_a_certificate(at, start, multipliers):
    """A node of 16 entries with one multiplier stands for 16 slices, which values of 3 and 4 entries do not have."""
    first, second = drawn(16, 4, seed=1), drawn(3, 16, seed=2)
    file = two_layers(first, second)
    true = norm(second @ first)
    for scale in (1.0 + 1e-6, 10.0, 1e9):
        step = file.certificate({start: 1.0}, scale, at=at, multipliers=multipliers)
        never(file, math.log10(0.99 * true / 2), [*file.steps(), step, *file.steps()])


@pytest.mark.parametrize("start", ["x0", "y", "y/c"])
def test_a_certificate_of_a_constant_proves_nothing(start):
    file = Forger((3,))
    file.dense("y", np.eye(3), constant=1.0)
    never(file, -1e-6, [file.certificate({start: 1.0}, 10.0, at="y/c"), *file.steps()])
    exactly(file, 0.0, [file.certificate({start: 1.0}, 10.0, at="y/c"), *file.steps()])


def test_pairs_of_values_in_a_certificate_are_added_up():
    """max(x, -x) as a node with two operands: norm(du)^2 <= norm(dv)^2 + norm(dw)^2, not less."""
    file = Forger((2,))
    file.dense("w", -np.eye(2), "x0")
    file.add("m", "pairwise", (2,), ["x0", "w"], lowest=False)
    for scale in (1.0 / 0.99, 1.0 / 0.5):
        for multiplier in (1e-3, 0.5, 1.0, 2.0, 1e3):
            never(file, math.log10(1.0 / scale), [file.certificate({"x0": 1.0}, scale, multipliers={"m": multiplier})])
    exactly(file, math.log10(2.0) / 2.0)


# ------------------------------------------------------------------------------------- sums and indices


def test_concatenations_that_overlap_are_not_apart():
    for places, true in ((([0, 1, -1, -1], [-1, -1, 0, 1]), 2.0**0.5), (([0, 1, -1], [-1, 0, 1]), None)):
        file = Forger((2,))
        file.bent("u", "relu")
        file.bent("t", "tanh", "x0")
        file.add("y", "linear", (len(places[0]),), ["u", "t"], maps=[file.index(index) for index in places])
        if true is not None:
            exactly(file, math.log10(true))
        else:  # du = dt = (1, 1)/sqrt(2): (1, 2, 1)/sqrt(2)
            never(file, math.log10(3.0**0.5) - 1e-6)
    file = Forger((2,))
    file.bent("u", "relu")
    file.bent("t", "tanh", "x0")
    file.add("y", "linear", (2,), ["u", "t"], maps=[file.index([0, 1]), file.index([0, 1])])
    never(file, math.log10(2.0) - 1e-6)
    spread = {"map": "chain", "parts": [file.index([0, -1]), file.matrix(np.ones((2, 2)))]}
    file.nodes[-1]["maps"] = [spread, file.index([-1, 0])]
    never(file, math.log10(2.0))


def test_indices_with_duplicates_and_out_of_place():
    file = Forger((2,))
    file.add("y", "linear", (5,), ["x0"], maps=[file.index([0, 0, 0, 1, -1])])
    exactly(file, math.log10(3.0) / 2.0)
    for index in ([0, 2], [-2, 0], [2**62, 0], [-(2**62), 1]):
        file = Forger((2,))
        file.add("y", "linear", (2,), ["x0"], maps=[file.index(index)])
        assert file.upper(9.0).told() == "REFUSED"


@pytest.mark.parametrize("size", [0, -1, 10**9, 2.0, True, "2", None, [2], 10**400])
def test_sizes_that_are_none(size, monkeypatch):
    file = Forger((2,))
    file.bent("y", "relu")
    file.add("c", "opaque", (2,), ["y"], what="anything")
    monkeypatch.setattr("math.prod", lambda shape: size if list(shape) == [2] else real(shape))
    assert file.upper(9.0).told() == "REFUSED"


@pytest.mark.parametrize("of", [0, -1, 4, 5, 10**9, 2.0, True, "2", None, [2]])
@pytest.mark.parametrize("kind", ["center", "normalize", "softmax", "log_softmax", "gather", "extreme", "concat"])
def test_chunks_that_are_none(of, kind):
    """Of six entries: a chunk has one to six of them, and six are so many chunks."""
    file = Forger((6,))
    index = file.put([[0]] if kind == "extreme" else [0], np.int64)
    given = {"index": index} if kind in ("gather", "extreme") else {}
    given |= {"eps": 1.0} if kind == "normalize" else {"lowest": False} if kind == "extreme" else {}
    file.nodes = [{"name": "y", "kind": kind, "shape": [6], "from": ["x0"], "of": [of] if kind == "concat" else of}]
    file.nodes[0] |= given | ({"leading": 0} if kind == "extreme" else {})
    file.output = "y"
    assert file.upper(9.0, []).told() == "REFUSED"


# ------------------------------------------------------------------------------------- constants of nodes


def test_windows_with_repeated_entries():
    """x0 twice in one window counts once; in two windows it counts twice."""
    file = Forger((3,))
    file.add("y", "extreme", (2,), ["x0"], index=file.put([[0, 0, 1], [2, 2, -1]], np.int64), leading=0, lowest=False)
    exactly(file, 0.0)
    file.arrays["a0"] = np.array([[0, 0, 1], [0, 2, -1]])
    exactly(file, math.log10(2.0) / 2.0)
    file.arrays["a0"] = np.array([[-1, -1, -1], [0, 2, -1]])
    assert file.upper(9.0).told() == "REFUSED"


def test_softmax():
    for entries in (1, 2, 5):
        for kind, true in (("softmax", 0.5), ("log_softmax", entries**0.5)):
            file = Forger((2, entries))
            file.add("y", kind, (2, entries), ["x0"], of=entries)
            if entries > 1:
                exactly(file, math.log10(true))
            else:
                assert file.upper(-1e6).told() == VERIFIED  # always 1, or 0
    file = Forger((1, 5))
    file.add("y", "softmax", (1, 5), ["x0"], of=1)
    assert file.upper(-1e6).told() == VERIFIED
    file.nodes[0]["of"] = 5
    never(file, math.log10(0.49))


@pytest.mark.parametrize("eps", [TINIEST, 1e-320, 1e-300, 1e-5, 1.0, 1e300])
def test_normalizers(eps):
    for of in (3, 1):
        file = Forger((3,))
        file.add("y", "normalize", (3,), ["x0"], of=of, eps=eps)
        exactly(file, -math.log10(eps) / 2.0)
    file.nodes[0]["eps"] = 0.0
    assert file.upper(9.0).told() == "REFUSED"


@pytest.mark.parametrize("slope", [-1e300, -3.0, 0.0, 1.0, 7.0, TINIEST, 1e300])
def test_slopes_of_any_size(slope):
    file = two_layers([[2.0]], [[0.5]], "leaky_relu", slope=slope)
    exactly(file, math.log10(max(abs(slope), 1.0)))
    file = Forger((2,))
    file.add("y", "entrywise", (2,), ["x0"], function="leaky_relu", parameters={"slope": file.put([0.1, slope])})
    exactly(file, math.log10(max(abs(slope), 1.0)))


# ------------------------------------------------------------------------------------- convolutions of any geometry


GEOMETRIES = [
    {"size": 7, "left": 1, "right": 1},
    {"size": 7, "left": 0, "right": 3, "stride": 2},
    {"size": 8, "left": 3, "right": 0, "stride": 3, "dilation": 2},
    {"size": 2, "left": 4, "right": 4},
    {"size": 1, "left": 2, "right": 2},
    {"size": 5, "left": 6, "right": 0, "stride": 4},
    {"size": 6, "stride": 5, "left": 2, "right": 2},
    {"size": 6, "dilation": 3, "left": 1, "right": 4, "groups": 2},
    {"size": 3, "left": 9, "right": 9, "dilation": 4, "stride": 2},
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("about", GEOMETRIES, ids=str)
def test_convolutions_of_any_geometry(about, monkeypatch):
    for seed, out in ((0, 2), (1, 4)):
        weight = drawn(out, 2, 3, seed=seed)
        matrix = written_out(weight, **about)
        rest = {key: value for key, value in about.items() if key != "size"}
        inner = 2 * about.get("groups", 1)
        for whole in (True, False):  # written out, and too large for it
            monkeypatch.setattr("normscope_verify.arithmetic.MOST_SIDE", 2000 if whole else 8)
            file = Forger((inner, about["size"]))
            conv = file.convolution(weight, [about["size"]], **rest)
            file.add("y", "linear", (out, matrix.shape[0] // out), ["x0"], maps=[conv])
            if whole:
                exactly(file, math.log10(norm(matrix)))
            else:
                never(file, math.log10(norm(matrix) * (1 - 2e-6)))
                assert file.upper(math.log10(norm(matrix) * 6)).told() == VERIFIED


# ------------------------------------------------------------------------------------- lower sides


def cancelled(behind=(), work=0):
    """The identity as (x + 2^104) - 2^104, with more nodes behind and work that has nothing to do with it."""
    file = Forger((1,))
    for k in range(work):
        file.dense(f"w{k}", np.ones((60, 1 if k == 0 else 60)))
    file.output = "x0"
    one = {"map": "identity", "shape": [1]}
    file.add("a", "linear", (1,), ["x0"], maps=[one], constant=file.put([2.0**104]))
    file.add("b", "linear", (1,), ["a"], maps=[one], constant=file.put([-(2.0**104)]))
    for kind in behind:
        if kind == "extreme":
            file.add("m", kind, (1,), [file.output], index=file.put([[0, 0]], np.int64), leading=0, lowest=False)
        elif kind == "pairwise":
            file.add("n", kind, (1,), [file.output, file.output], lowest=True)
        else:
            file.bent(f"f{kind}", kind)
    return file


@pytest.mark.one_in(2)
@pytest.mark.parametrize("behind", [(), ("extreme",), ("pairwise",), ("relu",), ("extreme", "pairwise", "abs")])
@pytest.mark.parametrize("work", [0, 4])
def test_lower_sides_that_rounding_made(behind, work):
    for apart in (2.0**-30, 2.0**-60, 1e-300):
        for claim in (100.0, 1.001):
            assert cancelled(behind, work).lower(claim, [apart], [0.0]).told() != VERIFIED
    assert cancelled(behind, work).lower(0.999, [1.0], [0.0]).told() == VERIFIED


def test_lower_sides_just_above_the_truth():
    file = Forger((2,))
    file.dense("y", [[3.0, 0.0], [0.0, 1.0]])
    assert file.lower(3.0 * (1 + 1e-12), [1.0, 0.0], [0.0, 0.0]).told() == checker.REJECTED
    assert file.lower(3.0 * (1 - 1e-12), [1.0, 0.0], [0.0, 0.0]).told() == VERIFIED
    for size in (1e-300, 1e300, TINIEST):
        assert file.lower(3.0 * (1 + 1e-12), [size, 0.0], [0.0, 0.0]).told() == checker.REJECTED
        assert file.lower(3.0 * (1 - 1e-12), [size, 0.0], [0.0, 0.0]).told() == VERIFIED


@pytest.mark.parametrize("below", [1e-3, 9e-7, 1e-9, 1e-14])
def test_an_upper_side_below_what_a_pair_attains_is_refused_by_however_little(below):
    """The gain is 2; the claim lies below it by less than rounding of single precision."""
    file = Forger((1,))
    file.dense("y", [[2.0]])
    attained = file.lower(1.9, [1.0], [0.0]).claims
    file.upper(math.log10(2.0 * (1.0 - below)))
    assert file.told() == checker.REJECTED  # nothing below 2 is proven by the steps
    file.claims = attained + file.claims
    with tempfile.TemporaryDirectory() as folder:
        verdict = checker.check(str(file.write(Path(folder) / "forged.npz")))[-1]
    assert (verdict.status, verdict.why) == (checker.REJECTED, "a pair attains 2.00000000")


def test_a_claim_that_is_exactly_the_constant_is_verified():
    file = Forger((1,))
    file.add("y", "linear", [1], ["x0"], maps=[file.diagonal([1.0])])
    assert file.upper(0.0).told() == file.lower(1.0, [1.0], [0.0]).told() == VERIFIED
    assert file.upper(-1e-16).told() == checker.REJECTED


def test_a_pair_outside_its_ball():
    file = Forger((2,))
    file.dense("y", np.eye(2))
    about = {"scope": "ball", "centre": file.put([0.0, 0.0]), "radius": 1.0}
    assert file.lower(0.9, [1.0, 0.0], [0.0, 0.0], **about).told() == VERIFIED
    for first, second in (([1.0 + 1e-12, 0.0], [0.0, 0.0]), ([0.0, 0.0], [0.9, 0.9]), ([1e300, 0], [1e300, 1])):
        assert file.lower(0.9, first, second, **about).told() == checker.REJECTED
    for radius in (-1.0, 1e309, "1", None):
        assert file.lower(0.9, [1.0, 0.0], [0.0, 0.0], **about | {"radius": radius}).told() == "REFUSED"


# ------------------------------------------------------------------------------------- no number, no end


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["entries", "scale", "constant", "multipliers", "witness", "centre", "slope"])
def test_arrays_with_nan_or_infinity_are_refused(value, where):
    file = two_layers([[1.0]], [[1.0]], "leaky_relu", slope=0.5)
    bad = file.put([value])
    file.upper(9.0)
    if where in ("entries", "scale"):
        matrix = {"map": "dense", "shape": [1], "entries": file.put([[value]])}
        file.nodes[0]["maps"] = [matrix if where == "entries" else {"map": "diagonal", "scale": bad}]
    elif where == "constant":
        file.nodes[0]["constant"] = bad
    elif where == "slope":
        file.nodes[1]["parameters"]["slope"] = bad
    elif where == "multipliers":
        file.upper(9.0, [file.certificate({"x0": 1.0}, multipliers={"u": bad})])
    elif where == "witness":
        file.lower(1.0, [value], [0.0])
    else:
        file.upper(9.0, scope="ball", centre=bad, radius=1.0)
    assert file.told() == "REFUSED"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e309, True, None, "1", [1.0], 10**400])
@pytest.mark.parametrize("where", ["log10", "radius", "eps", "start", "scale", "multipliers", "slope"])
def test_numbers_that_are_none_are_refused(value, where):
    file = two_layers([[1.0]], [[1.0]], "leaky_relu", slope=value if where == "slope" else 0.5)
    file.upper(9.0)
    if where == "log10":
        file.upper(value)
    elif where == "radius":
        file.upper(9.0, scope="ball", centre=file.put([0.0]), radius=value)
    elif where == "eps":
        file.add("n", "normalize", (1,), ["y"], of=1, eps=value)
        file.upper(9.0)
    elif where != "slope":
        given = {"start": {"x0": value}} if where == "start" else {"start": {"x0": 1.0}}
        given |= {"scale": value} if where == "scale" else {}
        given |= {"multipliers": {"u": value}} if where == "multipliers" else {}
        file.upper(9.0, [file.certificate(**given)])
    assert file.told() == "REFUSED"


@pytest.mark.parametrize(("size", "claim"), [(1e160, 0.0), (1e-170, -250.0)])
def test_a_convolution_whose_squares_leave_the_range(size, claim):
    """Too large to be written out, and its squares over- or underflow."""
    file = Forger((1, 4000))
    file.add("y", "linear", (1, 4000), ["x0"], maps=[file.convolution([[[size] * 3]], [4000], left=1, right=1)])
    never(file, claim)
    never(file, math.log10(2.9) + math.log10(size))
    assert file.upper(math.log10(3.0001) + math.log10(size)).told() == VERIFIED


def test_multipliers_whose_products_underflow():
    """Slopes from 1e-160 to 1 between factors of 1e150: the constant is 1e300, whatever lambda a b has lost."""
    for slope in (1e-160, 1e-200, 1e-290):
        file = two_layers([[1e150]], [[1e150]], "leaky_relu", slope=slope)
        for bound in (1.0, 1e100, 1e290):
            for multiplier in (TINIEST, 1e-310, 1e-300, 1e-150, 1.0):
                for weight in (TINIEST, 1e-300, 1.0):
                    never(file, math.log10(bound), [file.certificate({"x0": weight}, weight**0.5 / bound,
                                                                     multipliers={"u": multiplier})])  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "scale", "inner"), [(1e300, 1e300, 1e9), (1e-300, 1e-300, 1.0), (-2.0, 3.0, 0.5), (1e-200, 1e200, 1.0)]
)
def test_elu_of_any_size(alpha, scale, inner):
    true = max(math.log10(scale), math.log10(abs(alpha)) + math.log10(scale) + math.log10(inner))
    file = Forger((1,))
    file.bent("y", "elu", alpha=alpha, scale=scale, input_scale=inner)
    never(file, true - 1e-6)
    never(file, -300.0 if true > -299 else true - 1.0)


def test_values_that_overflow_are_no_lower_side():
    """exp(1e300) and the like in a ball: no number, or no end, but nothing that is attained."""
    file = Forger((2,))
    file.dense("v", np.eye(2) * 1e300)
    file.add("s", "log_softmax", (2,), ["v"], of=2)
    assert file.lower(1e305, [1e300, -1e300], [0.0, 0.0]).told() != VERIFIED
    file = Forger((1,))
    file.bent("e", "elu", alpha=1e300, scale=1e300, input_scale=1e9)
    assert file.lower(1e305, [-1e300], [-2e300]).told() != VERIFIED


@pytest.mark.parametrize("log10", [1e308, 1e7, -1e308, -1e7])
def test_claims_beyond_all_numbers(log10):
    file = Forger((1,))
    file.add("y", "opaque", (1,), ["x0"], what="anything")
    assert file.upper(log10).told() != VERIFIED
    assert file.upper(log10, []).told() != VERIFIED
    file = Forger((1,))
    file.dense("y", [[2.0]])
    assert file.upper(log10, []).told() != VERIFIED
