#!/usr/bin/env python3
"""Check what Normscope claims, without Normscope: `python tools/verify.py FILE...`. Needs NumPy and nothing else.

A proof file (`bracket.save(path)`) holds a network, node by node, claims about its Lipschitz constant, and what is
needed to check them. This script trusts nothing but the network itself. It evaluates the network in float64 with its
own code, takes slopes of activations from its own table, norms of linear maps by its own singular values (convolutions
too large to be written out: by the largest singular value on a torus), and runs certificates with its own Cholesky
factorizations.

What a claim says, for a network f with input x (all inputs as one vector) and all norms l2:
  upper   norm(f(x) - f(y)) <= 10^log10 norm(x - y), for all x, y (global) or all x, y in the ball
  lower   some pair (x, y), which the file holds, attains at least 10^log10

How an upper side is proven here. L(v) bounds the map from the input to a value v.
  product    L(sum A_j v_j) <= sum norm(A_j) L(v_j); nonlinear nodes by their constants
  folded     a value written as sum A_s s over sources s (inputs and nonlinear nodes): the norms of these A_s
  loop       the same with every activation split into its mean slope and a remainder (LipLT)
  ellipsoid  Q with dg dg^T <= Q over the live values g. Linear values v = F g: F Q F^T. An activation with slopes in
             [a, b], m = (a+b)/2, e = (b-a)/2, and any sigma >= 0 from the file that leaves I - S Q_vv S positive
             definite, S = diag(sigma)^(1/2): with Qhat = Q + Q_gv S (I - S Q_vv S)^-1 S Q_vg it has
             Q_uu = m Qhat_vv m + diag(e^2/sigma) and Q_gu = Qhat_gv m. The result is lambda_max of the output's Q.
  torus      the same for fields of convolutional networks, each part of a torus whose size is the file's, with one
             sigma per channel: then Q is one Hermitian matrix per frequency. Which values are fields, that the torus
             is large enough for them, where they are zero outside of their grids and the slopes of the masks that
             make them so are found out here. A dense end is carried as above, a field has its largest lambda_max.

A softplus whose threshold torch cuts it off at is only smooth beside it. Where an operand may meet a jump that float64
can see, the claim is not re-verified.

Each claim gets one line: VERIFIED, NOT RE-VERIFIED (why) or REJECTED (why). "Verified" means up to a relative
1e-6 for upper and 1e-9 for lower sides; rounding on the way is covered by small allowances, not by interval
arithmetic. Exit code: 0 all verified, 1 something rejected, 2 a file cannot be used, 3 nothing rejected but
something not re-verified.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import math
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]

FORMAT, VERSION = "normscope-proof", 1
UPPER_TOLERANCE, LOWER_TOLERANCE, PROBE_TOLERANCE = 1e-6, 1e-9, 1e-7
UNIT = 2.0**-53
MOST_BYTES, MOST_HEADER, MOST_NODES, MOST_ENTRIES, MOST_DEPTH = 4 << 30, 64 << 20, 100_000, 10**8, 40
"""Limits on a file: bytes unpacked, bytes of JSON, nodes, entries of one value, maps inside maps."""
DENSE_SIDE, DENSE_ENTRIES, DENSE_WORK = 3000, 3 * 10**7, 1e11
"""Maps are written out up to this short side, this many entries and multiplications."""
STATE_SIDE, TORUS_WORK, FINER = 5000, 2e11, 3e7
"""Largest ellipsoid, multiplications spent on the torus of one convolution, and in extended precision."""
WAVE_WORK, WAVE_BYTES, WAVE_PIECE, WAVE_POINTS, SMALL_FIELD = 1e12, 1e9, 1e8, 10**6, 512
"""Multiplications on the tori of one step, bytes of a state and of a piece of it, frequencies, outputs written out."""
LOST, STEEPEST, WIDEST = 1e-150, 1e45, 1e100
"""Added to ellipsoids: products that underflow, of maps and ellipsoids up to these sizes, come to less."""
LOOSEST = 1e140
"""Multipliers are cut down to it: where an ellipsoid vanishes they have no limit of their own."""
RANGE, GROWTH, FLOOR = -290.0, 100.0, -150.0
"""Maps are multiplied out if no product of their entries gets below 10^RANGE, where it could underflow, or if what is
lost there grows by no more than 10^GROWTH behind it: their norms are then at least 10^FLOOR."""


class BadFile(Exception):
    """The file is damaged, or says something that cannot be read as a network and claims."""


class Refuted(Exception):
    """A claim is wrong, or what the file brings for it does not prove it."""


class Unproven(Exception):
    """A claim could not be checked; nothing speaks against it."""


def require(condition: bool, text: str) -> None:
    """Raise `BadFile` unless the condition holds."""
    if not condition:
        raise BadFile(text)


# ------------------------------------------------------------------------------------------------ reading a file


def read(path: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the arrays of a proof file; no pickles, nothing run, sizes limited."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            require(len(names) == len(set(names)), "two members of one name")
            require(sum(member.file_size for member in members) <= MOST_BYTES, "too large")
            require("header.npy" in names, "no header: not a proof file")
            arrays = {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
    except BadFile:
        raise
    except OSError as error:
        raise BadFile(error.strerror or str(error)) from None
    except Exception as error:  # zipfile, zlib and numpy raise many kinds for a damaged file
        raise BadFile(f"damaged: {type(error).__name__}: {error}") from None
    raw = arrays.pop("header").tobytes()
    require(len(raw) <= MOST_HEADER, "the header is too large")
    try:
        header = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"the header is no JSON: {error}") from None
    require(isinstance(header, dict) and header.get("format") == FORMAT, "not a proof file of Normscope")
    require(header.get("version") == VERSION, f"version {header.get('version')!r}: this script reads {VERSION}")
    digest = header.pop("digest", None)
    require(digest == fingerprint(header, arrays), "damaged: the digest does not fit the content")
    return header, arrays


def fingerprint(header: dict[str, Any], arrays: dict[str, Array]) -> str:
    """Return the digest of a file's content: it catches accidents, not forgers."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Read one array, after checking that its bytes are all there."""
    with archive.open(member) as stream:
        require(np.lib.format.read_magic(stream) == (1, 0), "an array of an unknown version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        require(dtype.str in ("<f8", "<f4", "<i8", "|u1") and not fortran, f"an array of {dtype}")
        content = stream.read()
    require(len(content) == math.prod(shape) * dtype.itemsize, "an array is cut off")
    value = np.frombuffer(content, dtype).reshape(shape)
    require(dtype.kind != "f" or bool(np.isfinite(value).all()), f"{member.filename} holds NaN or infinite values")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


@dataclass(frozen=True)
class Reader:
    """Checked access to JSON that refers to arrays."""

    arrays: dict[str, Array]

    def array(self, name: Any, dtype: str = "f") -> Array:
        """Return an array by its reference, in float64 or int64."""
        require(isinstance(name, str) and name in self.arrays, f"no array {name!r}")
        value = self.arrays[name]
        require(value.dtype.kind == dtype, f"array {name} has dtype {value.dtype}")
        return value.astype(np.float64 if dtype == "f" else np.int64)

    @staticmethod
    def shape(value: Any, most: int = MOST_ENTRIES) -> Shape:
        """Return a list of sizes as a shape."""
        require(isinstance(value, list) and len(value) <= 16, f"{value!r} is no shape")
        require(all(type(n) is int and 0 < n <= most for n in value), f"{value!r} is no shape")
        require(math.prod(value) <= most, f"a value of {value!r} entries is too large")
        return tuple(value)

    @staticmethod
    def listed(value: Any, what: str) -> list[Any]:
        """Return a list."""
        require(isinstance(value, list), f"{what} are no list")
        return list(value)

    @staticmethod
    def number(value: Any) -> float:
        """Return a finite number."""
        require(type(value) in (int, float) and math.isfinite(value), f"{value!r} is no number")
        return float(value)

    @staticmethod
    def whole(value: Any, low: int, high: int) -> int:
        """Return an integer between two others."""
        require(type(value) is int and low <= value <= high, f"{value!r} is no integer from {low} to {high}")
        return int(value)

    def numbers(self, value: Any) -> float | Array:
        """Return a number, or the array it refers to."""
        return self.array(value) if isinstance(value, str) else self.number(value)


# ------------------------------------------------------------------------------------------------ activations

# Where the second derivative vanishes: between these points the first one is monotone.
GELU_BEND, GELU_TANH_BEND = math.sqrt(2.0), 1.418504008790828355548
SILU_BEND, MISH_BENDS = 2.399357280515467667833, (-2.256376396360793120006, 1.490571179485428459294)
GELU_TANH = math.sqrt(2.0 / math.pi), 0.044715
FAR = 1e3
"""x times a bell or a step has reached its limit, in float64, long before this; at infinity it would be 0 * inf."""


def sigmoid(x: Array) -> Array:
    """Return 1/(1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)) without overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu_slope(x: Array) -> Array:
    x = np.clip(x, -FAR, FAR)
    return 0.5 * (1.0 + erf(x / math.sqrt(2.0))) + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _gelu_tanh_slope(x: Array) -> Array:
    scale, cubic = GELU_TANH
    x = np.clip(x, -FAR, FAR)
    inner = scale * (x + cubic * x**3)
    bell = 4.0 * sigmoid(2.0 * inner) * sigmoid(-2.0 * inner)
    return sigmoid(2.0 * inner) + 0.5 * x * bell * scale * (1.0 + 3.0 * cubic * x * x)


def _silu_slope(x: Array) -> Array:
    x = np.clip(x, -FAR, FAR)
    return sigmoid(x) * (1.0 + x * sigmoid(-x))


def _mish_slope(x: Array) -> Array:
    x = np.clip(x, -FAR, FAR)
    inner = softplus(x)
    return np.tanh(inner) + x * 4.0 * sigmoid(2.0 * inner) * sigmoid(-2.0 * inner) * sigmoid(x)


Slope = Callable[[Array], Array] | float | Array
Piece = tuple[float | Array, float | Array, Slope]
"""From, to, and the derivative there: a number if constant, else a function that is monotone on the piece."""


def _smooth(slope: Callable[[Array], Array], *bends: float) -> list[Piece]:
    ends = [-math.inf, *bends, math.inf]
    return [(a, b, slope) for a, b in itertools.pairwise(ends)]


def _elu(p: dict[str, Any]) -> list[Piece]:
    steep = p["scale"] * p["alpha"] * p["input_scale"]
    return [(-math.inf, 0.0, lambda x: steep * np.exp(p["input_scale"] * x)), (0.0, math.inf, p["scale"])]


def _elu_value(x: Array, p: dict[str, Any]) -> Array:
    low = p["alpha"] * np.expm1(p["input_scale"] * np.minimum(x, 0.0))
    return p["scale"] * np.where(x > 0, x, low)


def _softplus_value(x: Array, p: dict[str, Any]) -> Array:
    scaled = p["beta"] * x
    return np.where(scaled > p["threshold"], x, softplus(scaled) / p["beta"])


@dataclass(frozen=True)
class Function:
    """An activation: its value, the pieces of its derivative, and its parameters (each must lie in its range)."""

    value: Callable[[Array, dict[str, Any]], Array]
    pieces: Callable[[dict[str, Any]], list[Piece]]
    parameters: dict[str, tuple[float, float]] = field(default_factory=dict)


INF, ANY = math.inf, (-1e300, 1e300)
FUNCTIONS: dict[str, Function] = {
    "relu": Function(lambda x, p: np.maximum(x, 0.0), lambda p: [(-INF, 0.0, 0.0), (0.0, INF, 1.0)]),
    "leaky_relu": Function(
        lambda x, p: np.where(x > 0, x, p["slope"] * x),
        lambda p: [(-INF, 0.0, p["slope"]), (0.0, INF, 1.0)],
        {"slope": ANY},
    ),
    "clamp": Function(
        lambda x, p: np.minimum(np.maximum(x, p["low"]), p["high"]),
        lambda p: [(-INF, p["low"], 0.0), (p["low"], p["high"], 1.0), (p["high"], INF, 0.0)],
        {"low": ANY, "high": ANY},
    ),
    "abs": Function(lambda x, p: np.abs(x), lambda p: [(-INF, 0.0, -1.0), (0.0, INF, 1.0)]),
    "softshrink": Function(
        lambda x, p: np.sign(x) * np.maximum(np.abs(x) - p["by"], 0.0),
        lambda p: [(-INF, -p["by"], 1.0), (-p["by"], p["by"], 0.0), (p["by"], INF, 1.0)],
        {"by": (0.0, 1e300)},
    ),
    "hardsigmoid": Function(
        lambda x, p: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
        lambda p: [(-INF, -3.0, 0.0), (-3.0, 3.0, 1.0 / 6.0), (3.0, INF, 0.0)],
    ),
    "hardswish": Function(
        lambda x, p: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
        lambda p: [(-INF, -3.0, 0.0), (-3.0, 3.0, lambda x: x / 3.0 + 0.5), (3.0, INF, 1.0)],
    ),
    "elu": Function(_elu_value, _elu, {"alpha": ANY, "scale": ANY, "input_scale": (1e-9, 1e9)}),
    "gelu": Function(
        lambda x, p: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0))), lambda p: _smooth(_gelu_slope, -GELU_BEND, GELU_BEND)
    ),
    "gelu_tanh": Function(
        lambda x, p: 0.5 * x * (1.0 + np.tanh(GELU_TANH[0] * (x + GELU_TANH[1] * x**3))),
        lambda p: _smooth(_gelu_tanh_slope, -GELU_TANH_BEND, GELU_TANH_BEND),
    ),
    "silu": Function(
        lambda x, p: x * sigmoid(p["beta"] * x),
        lambda p: _smooth(lambda x: _silu_slope(p["beta"] * x), -SILU_BEND / p["beta"], SILU_BEND / p["beta"]),
        {"beta": (1e-9, 1e9)},
    ),
    "mish": Function(lambda x, p: x * np.tanh(softplus(x)), lambda p: _smooth(_mish_slope, *MISH_BENDS)),
    "softplus": Function(
        _softplus_value,
        lambda p: _smooth(lambda x: sigmoid(p["beta"] * x)),
        # above the threshold the function is x: a jump of log(1 + exp(-threshold))/beta (`Prover.jumps`)
        {"beta": (1e-9, 1e9), "threshold": (20.0, 1e300)},
    ),
    "sigmoid": Function(lambda x, p: sigmoid(x), lambda p: _smooth(lambda x: sigmoid(x) * sigmoid(-x), 0.0)),
    "logsigmoid": Function(lambda x, p: -softplus(-x), lambda p: _smooth(lambda x: sigmoid(-x))),
    "tanh": Function(
        lambda x, p: np.tanh(x), lambda p: _smooth(lambda x: 4.0 * sigmoid(2.0 * x) * sigmoid(-2.0 * x), 0.0)
    ),
    "tanhshrink": Function(lambda x, p: x - np.tanh(x), lambda p: _smooth(lambda x: np.tanh(x) ** 2, 0.0)),
    "softsign": Function(
        lambda x, p: x / (1.0 + np.abs(x)), lambda p: _smooth(lambda x: (1.0 + np.abs(x)) ** -2.0, 0.0)
    ),
    "erf": Function(lambda x, p: erf(x), lambda p: _smooth(lambda x: 2.0 / math.sqrt(math.pi) * np.exp(-x * x), 0.0)),
    "atan": Function(lambda x, p: np.arctan(x), lambda p: _smooth(lambda x: 1.0 / (1.0 + x * x), 0.0)),
    "exp": Function(lambda x, p: np.exp(x), lambda p: _smooth(np.exp)),
    "power": Function(
        lambda x, p: x ** int(p["exponent"]),
        lambda p: _smooth(lambda x: p["exponent"] * x ** (int(p["exponent"]) - 1), 0.0),
        {"exponent": (2.0, 64.0)},
    ),
    "sin": Function(lambda x, p: np.sin(x), lambda p: []),
    "cos": Function(lambda x, p: np.cos(x), lambda p: []),
}
"""`leaky_relu` is PReLU too (one slope per entry), `clamp` ReLU6 and hardtanh, `elu` CELU and SELU."""
RISING = {
    *("relu", "clamp", "hardsigmoid", "softshrink", "softplus", "sigmoid", "logsigmoid", "tanh", "tanhshrink"),
    *("softsign", "erf", "atan", "exp"),
}
"""Functions that never fall."""


def slopes(name: str, parameters: dict[str, Any], low: Array, high: Array) -> tuple[Array, Array]:
    """Return the least and the largest slope of a function between any two points of [low, high], entry by entry."""
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    if name in ("sin", "cos"):
        return _wave_slopes(low + (0.5 * math.pi if name == "sin" else math.pi), high - low)
    least, most = np.full(low.shape, INF), np.full(low.shape, -INF)
    for start, end, slope in FUNCTIONS[name].pieces(parameters):
        first, last = np.maximum(low, start), np.minimum(high, end)
        met = (first < last) | ((first == last) & (low == high))
        if callable(slope):
            with np.errstate(all="ignore"):
                ends = [slope(np.where(met, x, 0.0)) for x in (first, last)]
            first, last = np.minimum(*ends), np.maximum(*ends)
            first, last = first - 1e-13 * (1.0 + np.abs(first)), last + 1e-13 * (1.0 + np.abs(last))
        else:
            first = last = np.broadcast_to(slope, low.shape)
        least, most = np.where(met, np.minimum(least, first), least), np.where(met, np.maximum(most, last), most)
    return least, most


def _wave_slopes(low: Array, length: Array) -> tuple[Array, Array]:
    """Return the range of sin, the derivative of sin and cos up to a shift, over [low, low + length]."""
    turn = 2.0 * math.pi
    with np.errstate(all="ignore"):
        start = np.where(np.isfinite(low), np.mod(low, turn), 0.0)
        end = start + np.where(np.isfinite(low), length, INF)
    ends = np.sin(start), np.sin(np.where(np.isfinite(end), end, start))

    def meets(place: float) -> Array:
        return (start <= place + 1e-9) & (end >= place - 1e-9) | (end >= place + turn - 1e-9)

    most = np.where(meets(0.5 * math.pi), 1.0, np.maximum(*ends) + 1e-9)
    return np.where(meets(1.5 * math.pi), -1.0, np.minimum(*ends) - 1e-9), most


# ------------------------------------------------------------------------------------------------ linear maps


class Map:
    """A linear map from arrays of shape `inside` to arrays of shape `outside`; `apply` takes a leading batch."""

    inside: Shape
    outside: Shape

    def apply(self, x: Array) -> Array:
        """Map `[b, *inside]` to `[b, *outside]`."""
        raise NotImplementedError

    def absolute(self) -> Map:
        """Return a map whose entries are at least the absolute values of this one's."""
        return Dense(np.abs(self.matrix()), self.inside, self.outside)

    def slice(self) -> Map | None:
        """Return what the map does to each slice of the first dimension, if it does the same to each."""
        return None

    @property
    def work(self) -> float:
        """About how many multiplications one application takes."""
        return float(math.prod(self.inside) + math.prod(self.outside))

    @functools.cached_property
    def least(self) -> float:
        """Log10 of a lower bound, at most 1, on the products of nonzero entries that a column or a sum is made of."""
        return 0.0

    @functools.cached_property
    def most(self) -> float:
        """Log10 of an upper bound, at least 1, on the sums of absolute entries of its rows."""
        return 0.0

    @property
    def safe(self) -> bool:
        """Whether no product that underflows matters when the map is written out."""
        return True

    @property
    def sizes(self) -> tuple[int, int]:
        """Entries of the output and of the input."""
        return math.prod(self.outside), math.prod(self.inside)

    @property
    def small(self) -> bool:
        """Whether the map may be written out."""
        rows, columns = self.sizes
        short = min(rows, columns)
        heavy = columns * self.work + float(short) * short * max(rows, columns)
        return short <= DENSE_SIDE and rows * columns <= DENSE_ENTRIES and heavy <= DENSE_WORK and self.safe

    def matrix(self) -> Array:
        """Write the map out."""
        rows, columns = self.sizes
        step = max(1, 2 * 10**7 // max(1, rows, columns))
        found = np.empty((rows, columns))
        for start in range(0, columns, step):
            basis = np.zeros((min(step, columns - start), columns))
            basis[np.arange(len(basis)), start + np.arange(len(basis))] = 1.0
            found[:, start : start + len(basis)] = self.apply(basis.reshape(-1, *self.inside)).reshape(len(basis), -1).T
        return found

    def rows(self, mask: Array) -> Array:
        """Return which output entries can change when the masked input entries do."""
        return np.full(self.outside, bool(mask.any()))


class Identity(Map):
    """The same entries in the same order, perhaps in another shape."""

    def __init__(self, inside: Shape, outside: Shape) -> None:
        require(math.prod(inside) == math.prod(outside), f"no identity from {inside} to {outside}")
        self.inside, self.outside = inside, outside

    def apply(self, x: Array) -> Array:
        """Reshape."""
        return x.reshape(len(x), *self.outside)

    def absolute(self) -> Map:
        """Return itself."""
        return self

    def slice(self) -> Map | None:
        """Return the reshaping of a slice."""
        return Identity(self.inside[1:], self.outside[1:]) if self.inside[:1] == self.outside[:1] else None

    def rows(self, mask: Array) -> Array:
        """Reshape the mask."""
        return mask.reshape(self.outside)


class Dense(Map):
    """A matrix between two shapes."""

    def __init__(self, entries: Array, inside: Shape, outside: Shape) -> None:
        require(entries.shape == (math.prod(outside), math.prod(inside)), "a matrix does not fit its shapes")
        self.entries, self.inside, self.outside = entries, inside, outside

    @functools.cached_property
    def least(self) -> float:
        """Look at the entries."""
        return _smallest(self.entries)

    @functools.cached_property
    def most(self) -> float:
        """Add up the rows."""
        return max(0.0, log10(float(np.abs(self.entries).sum(1).max(initial=0.0))))

    def apply(self, x: Array) -> Array:
        """Multiply."""
        return (x.reshape(len(x), -1) @ self.entries.T).reshape(len(x), *self.outside)

    def slice(self) -> Map | None:
        """Drop a first dimension of 1."""
        if self.inside[:1] == self.outside[:1] == (1,):
            return Dense(self.entries, self.inside[1:], self.outside[1:])
        return None

    @property
    def work(self) -> float:
        """Count the entries."""
        return float(self.entries.size)

    def matrix(self) -> Array:
        """Return the entries."""
        return self.entries


class Sparse(Map):
    """A matrix with few entries, listed by row."""

    def __init__(self, row: Array, column: Array, entry: Array, inside: Shape, outside: Shape) -> None:
        require(row.ndim == 1 and row.shape == column.shape == entry.shape, "a sparse matrix does not fit itself")
        good = row.size == 0 or (
            row.min() >= 0 and row.max() < math.prod(outside) and column.min() >= 0 and column.max() < math.prod(inside)
        )
        require(bool(good) and bool((np.diff(row) >= 0).all()), "a sparse matrix has entries out of place")
        self.row, self.column, self.entry, self.inside, self.outside = row, column, entry, inside, outside
        self.filled, self.starts = np.unique(row, return_index=True)

    @functools.cached_property
    def least(self) -> float:
        """Look at the entries."""
        return _smallest(self.entry)

    @functools.cached_property
    def most(self) -> float:
        """Add up the rows."""
        return max(0.0, log10(float(np.bincount(self.row, np.abs(self.entry)).max(initial=0.0))))

    def apply(self, x: Array) -> Array:
        """Multiply and add up by row."""
        found = np.zeros((len(x), math.prod(self.outside)), x.dtype)
        if self.row.size:
            found[:, self.filled] = np.add.reduceat(
                x.reshape(len(x), -1)[:, self.column] * self.entry, self.starts, axis=1
            )
        return found.reshape(len(x), *self.outside)

    def absolute(self) -> Map:
        """Return the absolute entries."""
        if len(set(zip(self.row.tolist(), self.column.tolist()))) < self.row.size:
            return super().absolute()
        return Sparse(self.row, self.column, np.abs(self.entry), self.inside, self.outside)


class Rows(Map):
    """A matrix on the last dimension."""

    def __init__(self, weight: Array, inside: Shape) -> None:
        require(weight.ndim == 2 and inside[-1:] == weight.shape[1:], f"a {weight.shape} matrix on {inside}")
        self.weight, self.inside, self.outside = weight, inside, (*inside[:-1], weight.shape[0])

    @functools.cached_property
    def least(self) -> float:
        """Look at the entries."""
        return _smallest(self.weight)

    @functools.cached_property
    def most(self) -> float:
        """Add up the rows."""
        return max(0.0, log10(float(np.abs(self.weight).sum(1).max(initial=0.0))))

    def apply(self, x: Array) -> Array:
        """Multiply every row."""
        return x @ self.weight.T

    def absolute(self) -> Map:
        """Return the absolute weights."""
        return Rows(np.abs(self.weight), self.inside)

    def slice(self) -> Map | None:
        """Drop the first of the leading dimensions."""
        return Rows(self.weight, self.inside[1:]) if len(self.inside) > 1 else None

    @property
    def work(self) -> float:
        """Count the products."""
        return float(self.weight.size) * math.prod(self.inside[:-1])


class Diagonal(Map):
    """Entrywise multiplication."""

    def __init__(self, scale: Array, shape: Shape) -> None:
        require(_broadcasts(scale.shape, shape), f"a scale of shape {scale.shape} on {shape}")
        self.scale, self.inside, self.outside = scale, shape, shape

    @functools.cached_property
    def least(self) -> float:
        """Look at the entries."""
        return _smallest(self.scale)

    @functools.cached_property
    def most(self) -> float:
        """Look at the factors."""
        return max(0.0, log10(float(np.abs(self.scale).max(initial=0.0))))

    def apply(self, x: Array) -> Array:
        """Multiply."""
        return x * self.scale

    def absolute(self) -> Map:
        """Return the absolute factors."""
        return Diagonal(np.abs(self.scale), self.inside)

    def slice(self) -> Map | None:
        """Return the factors of a slice, if they do not depend on it."""
        same = self.scale.ndim < len(self.inside) or self.scale.shape[0] == 1
        scale = self.scale[0] if same and self.scale.ndim == len(self.inside) else self.scale
        return Diagonal(scale, self.inside[1:]) if same and self.inside else None

    def rows(self, mask: Array) -> Array:
        """Drop what is multiplied by zero."""
        return mask & np.broadcast_to(self.scale != 0, self.inside)


class Index(Map):
    """Every output entry copies one input entry, or is zero (-1)."""

    def __init__(self, index: Array, inside: Shape) -> None:
        require(
            bool(index.size) and index.min() >= -1 and index.max() < math.prod(inside), f"an index outside of {inside}"
        )
        self.index, self.inside, self.outside = index, inside, index.shape

    def apply(self, x: Array) -> Array:
        """Gather."""
        return x.reshape(len(x), -1)[:, self.index] * (self.index >= 0)

    def absolute(self) -> Map:
        """Return itself."""
        return self

    def slice(self) -> Map | None:
        """Return the index within a slice, if all slices have the same."""
        if not self.inside or self.inside[:1] != self.outside[:1]:
            return None
        size = math.prod(self.inside[1:])
        within = np.where(
            self.index >= 0,
            self.index - size * np.arange(self.inside[0]).reshape(-1, *(1,) * (self.index.ndim - 1)),
            -1,
        )
        outside = (self.index >= 0) & ((within < 0) | (within >= size))
        if outside.any() or not (within == within[:1]).all():
            return None
        return Index(within[0], self.inside[1:]) if within[0].size else None

    def rows(self, mask: Array) -> Array:
        """Gather the mask."""
        return mask.reshape(-1)[self.index] & (self.index >= 0)


class Centering(Map):
    """Subtract the mean over some axes of a view of the value."""

    def __init__(self, shape: Shape, view: Shape, axes: tuple[int, ...]) -> None:
        require(math.prod(shape) == math.prod(view), f"no view of {shape} as {view}")
        self.inside = self.outside = shape
        self.view, self.axes = view, axes

    @functools.cached_property
    def least(self) -> float:
        """A mean divides by no more than the number of entries."""
        return -log10(float(MOST_ENTRIES))

    @functools.cached_property
    def most(self) -> float:
        """A row has 1 - 1/n and n - 1 times 1/n."""
        return log10(2.0)

    def apply(self, x: Array) -> Array:
        """Subtract the mean."""
        seen = x.reshape(len(x), *self.view)
        return (seen - seen.mean(tuple(a + 1 for a in self.axes), keepdims=True)).reshape(x.shape)

    def absolute(self) -> Map:
        """Return I + 11^T/n, which is at least (1 - 1/n) and 1/n."""
        return Total([Identity(self.inside, self.inside), Chain([_Mean(self)])])

    def slice(self) -> Map | None:
        """Return the centring of a slice, unless the mean is taken over slices."""
        if not self.inside or self.view[:1] != self.inside[:1] or 0 in self.axes:
            return None
        return Centering(self.inside[1:], self.view[1:], tuple(a - 1 for a in self.axes))


class _Mean(Map):
    """The means that a centring subtracts."""

    def __init__(self, centering: Centering) -> None:
        self.inside = self.outside = centering.inside
        self.centering = centering

    @functools.cached_property
    def least(self) -> float:
        """A mean divides by no more than the number of entries."""
        return -log10(float(MOST_ENTRIES))

    @functools.cached_property
    def most(self) -> float:
        """A row has n times 1/n."""
        return 0.0

    def apply(self, x: Array) -> Array:
        """Return the means in place of the entries."""
        return x - self.centering.apply(x)


@dataclass(frozen=True)
class Axis:
    """One axis of a convolution: output o reads the entries o stride - left + tap dilation."""

    size: int
    kernel: int
    stride: int
    dilation: int
    left: int
    right: int

    @property
    def extent(self) -> int:
        """Width of the dilated kernel."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return (self.size + self.left + self.right - self.extent) // self.stride + 1

    def source(self, mode: str) -> tuple[Array, Array]:
        """Return which input each padded position holds, and whether it holds one."""
        place = np.arange(-self.left, self.size + self.right)
        if mode == "zeros":
            return np.clip(place, 0, self.size - 1), (place >= 0) & (place < self.size)
        if mode == "circular":
            place = place % self.size
        elif mode == "replicate":
            place = np.clip(place, 0, self.size - 1)
        else:
            place = (self.size - 1) - np.abs((self.size - 1) - np.abs(place))
        return place, np.full(place.shape, True)


class Convolution(Map):
    """A convolution with its stride, padding, dilation and groups, or the transpose of one."""

    def __init__(self, weight: Array, axes: Sequence[Axis], groups: int, mode: str, transposed: bool) -> None:
        require(weight.ndim == len(axes) + 2 and len(axes) >= 1, "a kernel does not fit its axes")
        require(weight.shape[0] % groups == 0, "channels do not divide into groups")
        require(mode == "zeros" or not transposed, "a transposed convolution pads with zeros")
        for axis, taps in zip(axes, weight.shape[2:]):
            padded = axis.size + axis.left + axis.right
            require(
                axis.kernel == taps and axis.extent <= padded <= 4 * MOST_ENTRIES, "a kernel does not fit its input"
            )
            require(mode != "reflect" or max(axis.left, axis.right) < axis.size, "a reflection beyond the input")
        self.weight, self.axes, self.groups, self.mode, self.transposed = weight, tuple(axes), groups, mode, transposed
        self.small_shape = (weight.shape[0], *(axis.outputs for axis in axes))
        self.large_shape = (weight.shape[1] * groups, *(axis.size for axis in axes))
        self.inside, self.outside = self.large_shape, self.small_shape
        if transposed:
            self.inside, self.outside = self.outside, self.inside
        entries = math.prod(axis.size + axis.left + axis.right for axis in axes) * weight.shape[1] * groups
        require(max(entries, *self.sizes) <= MOST_ENTRIES, "a convolution is too large")

    @functools.cached_property
    def least(self) -> float:
        """Look at the taps."""
        return _smallest(self.weight)

    @functools.cached_property
    def most(self) -> float:
        """Add up all taps."""
        return max(0.0, log10(float(np.abs(self.weight).sum())))

    def taps(self) -> Iterable[tuple[tuple[slice, ...], Array]]:
        """Yield where each tap reads the padded input, and its matrix by group."""
        rows = self.weight.shape[0] // self.groups
        for place in np.ndindex(*self.weight.shape[2:]):
            read = tuple(
                slice(t * axis.dilation, t * axis.dilation + (axis.outputs - 1) * axis.stride + 1, axis.stride)
                for t, axis in zip(place, self.axes)
            )
            yield read, self.weight[(slice(None), slice(None), *place)].reshape(self.groups, rows, -1)

    def apply(self, x: Array) -> Array:
        """Convolve, or run the transpose."""
        return self._backward(x) if self.transposed else self._forward(x)

    def _forward(self, x: Array) -> Array:
        for number, axis in enumerate(self.axes, start=2):
            source, held = axis.source(self.mode)
            x = np.take(x, source, axis=number) * held.reshape(-1, *(1,) * (x.ndim - number - 1))
        batch, outputs = len(x), self.small_shape[1:]
        found = np.zeros((batch, self.groups, self.weight.shape[0] // self.groups, math.prod(outputs)), x.dtype)
        for read, matrix in self.taps():
            part = x[(slice(None), slice(None), *read)].reshape(batch, self.groups, -1, math.prod(outputs))
            found += matrix @ part
        return found.reshape(batch, *self.small_shape)

    def _backward(self, y: Array) -> Array:
        batch, padded = len(y), tuple(axis.size + axis.left + axis.right for axis in self.axes)
        found = np.zeros((batch, self.large_shape[0], *padded), y.dtype)
        parts = y.reshape(batch, self.groups, self.weight.shape[0] // self.groups, -1)
        for read, matrix in self.taps():
            moved = np.swapaxes(matrix, 1, 2) @ parts
            found[(slice(None), slice(None), *read)] += moved.reshape(batch, -1, *self.small_shape[1:])
        for number, axis in enumerate(self.axes, start=2):
            source, held = axis.source(self.mode)
            sums = np.zeros((*found.shape[:number], axis.size, *found.shape[number + 1 :]), y.dtype)
            moved = np.moveaxis(found * held.reshape(-1, *(1,) * (found.ndim - number - 1)), number, 0)
            np.add.at(np.moveaxis(sums, number, 0), source, moved)
            found = sums
        return found

    def absolute(self) -> Map:
        """Return the absolute kernel."""
        return self.with_weight(np.abs(self.weight))

    def with_weight(self, weight: Array) -> Convolution:
        """Return the same geometry with another kernel."""
        return Convolution(weight, self.axes, self.groups, self.mode, self.transposed)

    def scaled(self, scale: Array, *, outputs: bool) -> Convolution:
        """Return the convolution with one factor per output (or input) channel."""
        ones = (1,) * len(self.axes)
        if outputs != self.transposed:
            return self.with_weight(self.weight * scale.reshape(-1, 1, *ones))
        rows = self.weight.shape[0] // self.groups
        factor = np.repeat(scale.reshape(self.groups, 1, -1), rows, axis=1).reshape(*self.weight.shape[:2], *ones)
        return self.with_weight(self.weight * factor)

    @property
    def work(self) -> float:
        """Count the products."""
        return float(self.weight.size) * math.prod(self.small_shape[1:])


class Repeated(Map):
    """One map on every slice of some leading dimensions."""

    def __init__(self, inner: Map, leading: Shape) -> None:
        self.inner, self.leading = inner, leading
        self.inside, self.outside = (*leading, *inner.inside), (*leading, *inner.outside)

    @functools.cached_property
    def least(self) -> float:
        """Look at one slice."""
        return self.inner.least

    @functools.cached_property
    def most(self) -> float:
        """Look at one slice."""
        return self.inner.most

    @property
    def safe(self) -> bool:
        """Look at one slice."""
        return self.inner.safe

    def apply(self, x: Array) -> Array:
        """Apply to every slice."""
        return self.inner.apply(x.reshape(-1, *self.inner.inside)).reshape(len(x), *self.outside)

    def absolute(self) -> Map:
        """Repeat the absolute map."""
        return Repeated(self.inner.absolute(), self.leading)

    def slice(self) -> Map | None:
        """Drop the first leading dimension."""
        if not self.leading:
            return self.inner.slice()
        return Repeated(self.inner, self.leading[1:]) if len(self.leading) > 1 else self.inner

    @property
    def work(self) -> float:
        """Count the slices."""
        return self.inner.work * math.prod(self.leading)


class Chain(Map):
    """Maps one after the other, the first one first."""

    parts: tuple[Map, ...]

    def __init__(self, parts: Sequence[Map]) -> None:
        flat: list[Map] = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, Chain) else (part,))
        for first, second in itertools.pairwise(flat):
            require(first.outside == second.inside, f"a map to {first.outside} before one from {second.inside}")
        kept = [part for part in flat if not (isinstance(part, Identity) and part.inside == part.outside)]
        self.parts = tuple(kept or flat[:1])
        self.inside, self.outside = flat[0].inside, flat[-1].outside

    @functools.cached_property
    def least(self) -> float:
        """Multiply the parts'."""
        return sum(part.least for part in self.parts)

    @functools.cached_property
    def most(self) -> float:
        """Multiply the parts'."""
        return sum(part.most for part in self.parts)

    @property
    def safe(self) -> bool:
        """Say whether no product of entries underflows, or what is lost stays small."""
        return self.least >= RANGE or self.most <= GROWTH

    def apply(self, x: Array) -> Array:
        """Apply one after the other."""
        for part in self.parts:
            x = part.apply(x)
        return x

    def absolute(self) -> Map:
        """Take absolute values of the whole where it is small, else of the parts."""
        return super().absolute() if self.small else Chain([part.absolute() for part in self.parts])

    def slice(self) -> Map | None:
        """Slice every part."""
        parts = [part.slice() for part in self.parts]
        return None if any(part is None for part in parts) else Chain([part for part in parts if part is not None])

    @property
    def work(self) -> float:
        """Add the parts up."""
        return sum(part.work for part in self.parts)

    def rows(self, mask: Array) -> Array:
        """Follow the mask."""
        for part in self.parts:
            mask = part.rows(mask)
        return mask


class Total(Map):
    """Maps whose outputs are added."""

    def __init__(self, terms: Sequence[Map]) -> None:
        self.terms = tuple(terms)
        self.inside, self.outside = self.terms[0].inside, self.terms[0].outside
        for term in self.terms:
            require((term.inside, term.outside) == (self.inside, self.outside), "a sum of maps of different shapes")

    @functools.cached_property
    def least(self) -> float:
        """Look at every term."""
        return min(term.least for term in self.terms)

    @functools.cached_property
    def most(self) -> float:
        """Add the terms up."""
        return log10_sum([term.most for term in self.terms])

    @property
    def safe(self) -> bool:
        """Say whether no product of entries underflows, or what is lost stays small."""
        return self.least >= RANGE or self.most <= GROWTH

    def apply(self, x: Array) -> Array:
        """Add up."""
        return sum((term.apply(x) for term in self.terms[1:]), self.terms[0].apply(x))

    def absolute(self) -> Map:
        """Take absolute values of the whole where it is small, else of the terms."""
        return super().absolute() if self.small else Total([term.absolute() for term in self.terms])

    def slice(self) -> Map | None:
        """Slice every term."""
        terms = [term.slice() for term in self.terms]
        return None if any(term is None for term in terms) else Total([term for term in terms if term is not None])

    @property
    def work(self) -> float:
        """Add the terms up."""
        return sum(term.work for term in self.terms)

    def rows(self, mask: Array) -> Array:
        """Unite the terms' masks."""
        return functools.reduce(np.logical_or, [term.rows(mask) for term in self.terms])


def _smallest(values: Array) -> float:
    """Return log10 of the smallest nonzero entry, at most 0."""
    size = np.abs(values)
    return min(0.0, log10(float(size.min(where=size > 0.0, initial=1.0))))


def _broadcasts(small: Shape, large: Shape) -> bool:
    try:
        return np.broadcast_shapes(small, large) == large
    except ValueError:
        return False


MODES = ("zeros", "circular", "reflect", "replicate")


def parse_map(data: Any, inside: Shape, reader: Reader, depth: int = 0) -> Map:
    """Read a linear map that takes values of shape `inside`."""
    require(isinstance(data, dict) and depth <= MOST_DEPTH, "a map is no object, or maps are nested too deeply")
    again = functools.partial(parse_map, reader=reader, depth=depth + 1)
    kind = data.get("map")
    if kind == "identity":
        return Identity(inside, reader.shape(data.get("shape")))
    if kind == "matrix":
        return Rows(reader.array(data.get("weight")), inside)
    if kind == "diagonal":
        return Diagonal(reader.array(data.get("scale")), inside)
    if kind == "index":
        return Index(reader.array(data.get("index"), "i"), inside)
    if kind == "dense":
        return Dense(reader.array(data.get("entries")), inside, reader.shape(data.get("shape")))
    if kind == "sparse":
        rows, columns = reader.array(data.get("rows"), "i"), reader.array(data.get("columns"), "i")
        return Sparse(rows, columns, reader.array(data.get("entries")), inside, reader.shape(data.get("shape")))
    if kind == "centering":
        view = reader.shape(data.get("view"))
        return Centering(inside, view, parse_axes(data.get("axes"), view, reader))
    if kind == "convolution":
        return parse_convolution(data, inside, reader)
    if kind == "repeated":
        leading = reader.shape(data.get("leading"))
        require(inside[: len(leading)] == leading, "a repeated map does not fit its input")
        return Repeated(again(data.get("inner"), inside[len(leading) :]), leading)
    if kind in ("chain", "total"):
        listed = data.get("parts")
        require(isinstance(listed, list) and 0 < len(listed) <= 1000, f"a {kind} without parts")
        if kind == "total":
            return Total([again(item, inside) for item in listed])
        parts: list[Map] = []
        for item in listed:
            parts.append(again(item, parts[-1].outside if parts else inside))
        return Chain(parts)
    raise BadFile(f"a map of unknown kind {kind!r}")


def parse_axes(value: Any, view: Shape, reader: Reader) -> tuple[int, ...]:
    """Read a list of different axes."""
    require(isinstance(value, list) and 0 < len(value) == len(set(map(str, value))), f"{value!r} is no list of axes")
    return tuple(reader.whole(axis, 0, len(view) - 1) for axis in value)


def parse_convolution(data: dict[str, Any], inside: Shape, reader: Reader) -> Convolution:
    """Read a convolution; sizes are those of the plain one, also where it is transposed."""
    weight = reader.array(data.get("weight"))
    listed = reader.listed(data.get("axes"), "the axes of a convolution")
    require(1 <= len(listed) <= 3, "a convolution without axes")
    least = {"size": 1, "kernel": 1, "stride": 1, "dilation": 1, "left": -(10**6), "right": -(10**6)}
    axes = []
    for item in listed:
        require(isinstance(item, dict) and set(item) == set(least), "an axis of a convolution is incomplete")
        axes.append(Axis(**{name: reader.whole(item[name], low, 10**6) for name, low in least.items()}))
    require(data.get("padding") in MODES, "a convolution of unknown padding")
    require(type(data.get("transposed")) is bool, "a convolution of unknown direction")
    groups = reader.whole(data.get("groups"), 1, 10**6)
    found = Convolution(weight, axes, groups, str(data["padding"]), data["transposed"])
    require(found.inside == inside, f"a convolution from {found.inside} on {inside}")
    return found


# ------------------------------------------------------------------------------------------------ norms of linear maps


def log10(value: float) -> float:
    """Return log10, -inf for zero."""
    return math.log10(value) if value > 0 else -INF


def power10(exponent: float) -> float:
    """Return 10^exponent, which may be inf."""
    return 10.0**exponent if exponent < 308 else INF


def log10_sum(exponents: Sequence[float]) -> float:
    """Return log10 of the sum of 10^e."""
    top = max(exponents, default=-INF)
    return top if math.isinf(top) else top + math.log10(math.fsum(10.0 ** (e - top) for e in exponents))


def log10_root(exponents: Sequence[float]) -> float:
    """Return log10 of the root of the sum of squares of 10^e."""
    return log10_sum([2.0 * e for e in exponents]) / 2.0


def length(vector: Array) -> float:
    """Return the l2 norm, also of very small and very large entries."""
    top = float(np.max(np.abs(vector), initial=0.0))
    return top * float(np.linalg.norm(vector / top)) if 0.0 < top < INF else top


def matrix_norm(matrix: Array) -> float:
    """Return log10 of the largest singular value, rounded up."""
    top = float(np.abs(matrix).max()) if matrix.size else 0.0
    if not 0.0 < top < INF:
        return -INF if top == 0.0 else INF
    scaled = matrix / top
    gram = scaled @ scaled.T if scaled.shape[0] <= scaled.shape[1] else scaled.T @ scaled
    largest = float(np.linalg.eigvalsh(gram)[-1]) + 8.0 * UNIT * max(matrix.shape) * float(np.trace(gram))
    return log10(top) + log10(largest) / 2.0 + 1e-12


class Norms:
    """Upper bounds on norms of linear maps, each taken once; `loose` says where size kept them from being exact."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Map, float]] = {}
        self.loose: dict[str, None] = {}

    def __call__(self, linear: Map) -> float:
        """Return log10 of a bound."""
        if id(linear) not in self.known:
            self.known[id(linear)] = (linear, self._fresh(linear))
        return self.known[id(linear)][1]

    def _fresh(self, linear: Map) -> float:
        while linear.inside[:1] == linear.outside[:1] != ():
            inner = linear.slice()  # the norm of one of several equal blocks
            if inner is None:
                break
            linear = inner
        if isinstance(linear, Chain) and linear.least >= RANGE:
            linear = Chain(_scales_folded(linear.parts))
            linear = linear.parts[0] if len(linear.parts) == 1 else linear
        if isinstance(linear, Repeated):
            return self(linear.inner)
        if isinstance(linear, Identity):
            return 0.0
        if isinstance(linear, Diagonal):
            return log10(float(np.abs(linear.scale).max())) + 1e-15
        if isinstance(linear, Index):
            most = np.bincount(linear.index[linear.index >= 0], minlength=1).max()
            return log10(float(most)) / 2.0
        if isinstance(linear, Centering):
            return 0.0 if math.prod(linear.view[a] for a in linear.axes) > 1 else -INF
        if isinstance(linear, Rows):
            linear = Dense(linear.weight, linear.weight.shape[1:], linear.weight.shape[:1])
        if linear.small:
            return max(matrix_norm(linear.matrix()), -INF if linear.least >= RANGE else FLOOR)
        if isinstance(linear, Convolution):
            return self._convolution(linear)
        why = "is too large to be written out" if linear.safe else "leaves the range of float64"
        what = f"a map from {list(linear.inside)} to {list(linear.outside)} {why}"
        self.loose[what] = None
        if isinstance(linear, Chain):
            return sum(self(part) for part in linear.parts)
        if isinstance(linear, Total):
            return log10_sum([self(term) for term in linear.terms])
        if isinstance(linear, Sparse):
            sums = [np.bincount(place, np.abs(linear.entry)).max(initial=0.0) for place in (linear.row, linear.column)]
            return log10(math.sqrt(sums[0]) * math.sqrt(sums[1])) + 1e-12
        if isinstance(linear, Dense):
            size = np.abs(linear.entries)
            schur = math.sqrt(float(size.sum(0).max())) * math.sqrt(float(size.sum(1).max()))
            return log10(min(schur, float(np.linalg.norm(linear.entries)))) + 1e-12
        raise Unproven(what)

    def _convolution(self, conv: Convolution) -> float:
        """Bound a large convolution by the norm on a torus, the least of a few."""
        where = f"a convolution from {list(conv.inside)} to {list(conv.outside)}"
        copies = [np.bincount(axis.source(conv.mode)[0][axis.source(conv.mode)[1]]).max() for axis in conv.axes]
        taps = conv.weight.reshape(*conv.weight.shape[:2], -1)
        cheap = log10(float(np.linalg.norm(taps, axis=(0, 1)).sum())) + log10(float(math.prod(copies))) / 2 + 1e-12
        rows, columns = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
        exact = conv.mode == "circular" and all(
            axis.size % axis.stride == 0 and axis.outputs == axis.size // axis.stride for axis in conv.axes
        )
        tori = []
        for extra in (0,) if exact else (0, 1):
            if exact:
                sizes = [axis.size for axis in conv.axes]
            elif conv.mode == "zeros":
                sizes = [max(axis.size + max(axis.left, axis.right, 0), axis.extent) for axis in conv.axes]
            else:  # the padded input under a convolution without padding
                sizes = [axis.size + axis.left + axis.right for axis in conv.axes]
            sizes = [n + (-n % axis.stride) + extra * axis.stride for n, axis in zip(sizes, conv.axes)]
            work = 60.0 * math.prod(sizes) * conv.groups * min(rows, columns) ** 2 * max(rows, columns)
            if work > TORUS_WORK / 4:
                break
            tori += [(sizes, twist) for twist in ((0.0,) if exact else (0.0, 0.5))]
        if not exact:
            self.loose[f"{where} is bounded on a torus"] = None
        if not tori:
            self.loose[f"{where} is too large for a torus: taps are added up"] = None
            return cheap
        lost = 0.0 if exact or conv.mode == "zeros" else log10(float(math.prod(copies))) / 2
        return min(cheap, min(_torus(conv, sizes, twist) for sizes, twist in tori) + lost)


def _scales_folded(parts: Sequence[Map]) -> list[Map]:
    """Multiply one factor per channel (a BatchNorm) into the convolution beside it."""
    found: list[Map] = []
    for part in parts:
        before = found[-1] if found else None
        if isinstance(part, Diagonal) and isinstance(before, Convolution):
            channels = _channels(part)
            if channels is not None:
                found[-1] = before.scaled(channels, outputs=True)
                continue
        if isinstance(part, Convolution) and isinstance(before, Diagonal):
            channels = _channels(before)
            if channels is not None:
                found[-1] = part.scaled(channels, outputs=False)
                continue
        found.append(part)
    return found


def _channels(diagonal: Diagonal) -> Array | None:
    """Return the factors by channel (the first dimension), or None if they vary within one."""
    scale = diagonal.scale.reshape((1,) * (len(diagonal.inside) - diagonal.scale.ndim) + diagonal.scale.shape)
    if math.prod(scale.shape[1:]) != 1:
        return None
    return np.broadcast_to(scale.reshape(-1), diagonal.inside[:1])


def _torus(conv: Convolution, sizes: Sequence[int], twist: float) -> float:
    """Return log10 of the norm of the convolution on a torus, whose turns may multiply by -1 (twist 1/2).

    The stride folds the frequencies nu + a N/s onto one another: their matrices stand side by side, over sqrt(s).
    """
    rows, columns = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
    symbol = conv.weight.astype(complex)
    for number, (axis, size) in enumerate(zip(conv.axes, sizes), start=2):
        tap, frequency = np.arange(axis.kernel) * axis.dilation, np.arange(size) + twist
        wave = np.exp(-2j * math.pi * (np.outer(tap, frequency) / size % 1.0))
        symbol = np.moveaxis(np.tensordot(symbol, wave, axes=([number], [0])), -1, number)
    shape: list[int] = [conv.groups, rows, columns]
    for axis, size in zip(conv.axes, sizes):
        shape += [axis.stride, size // axis.stride]
    aliases, grid = list(range(3, len(shape), 2)), list(range(4, len(shape), 2))
    symbol = symbol.reshape(shape).transpose([0, *grid, 1, 2, *aliases])
    symbol = symbol.reshape(-1, rows, columns * math.prod(axis.stride for axis in conv.axes))
    step, top = max(1, 10**7 // max(1, symbol[0].size)), 0.0
    for start in range(0, len(symbol), step):
        part = symbol[start : start + step]
        turned = np.conj(np.swapaxes(part, 1, 2))
        gram = part @ turned if part.shape[1] <= part.shape[2] else turned @ part
        top = max(top, float(np.linalg.eigvalsh(gram)[:, -1].max()))
    return log10(top / math.prod(axis.stride for axis in conv.axes)) / 2.0 + 1e-11


# ------------------------------------------------------------------------------------------------ the network


@dataclass(frozen=True)
class Node:
    """One value: an input, or an operation on earlier values.

    Attributes:
        name, kind, shape: of the value.
        operands: names of the values it reads.
        maps, constant: of a linear node, sum of maps[j](operand j) + constant.
        data: what the other kinds need.
    """

    name: str
    kind: str
    shape: Shape
    operands: tuple[str, ...] = ()
    maps: tuple[Map, ...] = ()
    constant: Array | None = None
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


LINEAR = ("linear", "constant")
OPERANDS = {"product": 2, "matmul": 2, "pairwise": 2, "attention": 3}
"""How many values a kind reads, where it is not one."""


class Network:
    """The function that claims speak of: nodes in order, inputs first."""

    def __init__(self, data: Any, reader: Reader) -> None:
        require(isinstance(data, dict), "no network")
        inputs, nodes = data.get("inputs"), data.get("nodes")
        require(isinstance(inputs, list) and isinstance(nodes, list) and len(inputs) > 0, "a network without inputs")
        require(len(inputs) + len(nodes) <= MOST_NODES, "a network of too many nodes")
        self.nodes: dict[str, Node] = {}
        for item in inputs:
            require(isinstance(item, dict), "an input is no object")
            self._add(Node(self._name(item), "input", reader.shape(item.get("shape"))))
        self.inputs = tuple(self.nodes.values())
        for item in nodes:
            require(isinstance(item, dict), "a node is no object")
            self._add(self._node(item, reader))
        self.output = self.node(data.get("output"))
        needed, stack = set(), [self.output.name]
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                stack.extend(self.nodes[name].operands)
        self.order = [node for node in self.nodes.values() if node.name in needed or node.kind == "input"]
        self.input_size = sum(node.size for node in self.inputs)
        self.work = sum(linear.work for node in self.order for linear in node.maps)

    def node(self, name: Any) -> Node:
        """Return the node of that name."""
        require(isinstance(name, str) and name in self.nodes, f"{name!r} is no node")
        return self.nodes[name]

    def _name(self, item: dict[str, Any]) -> str:
        name = item.get("name")
        require(isinstance(name, str) and 0 < len(name) <= 1000 and name[0] != "~", f"{name!r} is no name")
        require(name not in self.nodes, f"two nodes are called {name!r}")
        return str(name)

    def _add(self, node: Node) -> None:
        self.nodes[node.name] = node

    def _node(self, item: dict[str, Any], reader: Reader) -> Node:
        name, kind, shape = self._name(item), str(item.get("kind")), reader.shape(item.get("shape"))
        read = [self.node(operand) for operand in reader.listed(item.get("from"), "operands")]
        make = functools.partial(Node, name, kind, shape, tuple(node.name for node in read))
        if kind == "linear":
            listed = reader.listed(item.get("maps"), "maps")
            require(len(listed) == len(read) > 0, f"{name} has not one map per operand")
            maps = tuple(parse_map(data, node.shape, reader) for data, node in zip(listed, read))
            require(all(linear.outside == shape for linear in maps), f"a map of {name} does not end in {shape}")
            constant = None if item.get("constant") is None else reader.array(item["constant"])
            require(constant is None or _broadcasts(constant.shape, shape), f"the constant of {name} does not fit")
            return make(maps=maps, constant=constant)
        if kind == "constant":
            value = reader.array(item.get("value"))
            require(not read and value.shape == shape, f"the constant {name} does not fit")
            return make(constant=value)
        if kind == "opaque":
            gains = item.get("log10_gains")
            known = gains is None or (isinstance(gains, list) and len(gains) == len(read) > 0)
            require(known and type(item.get("joint")) is bool, f"{name} has not one gain per operand")
            gains = None if gains is None else [-INF if g is None else reader.number(g) for g in gains]
            return make(data={"what": str(item.get("what"))[:200], "gains": gains, "joint": item["joint"]})
        require(len(read) == OPERANDS.get(kind, 1), f"{name} reads {len(read)} values")
        return make(data=self._data(item, kind, shape, read, reader))

    def _data(self, item: dict[str, Any], kind: str, shape: Shape, read: list[Node], reader: Reader) -> dict[str, Any]:
        """Read what a nonlinear node needs, and check that its shapes fit."""
        name, first = item["name"], read[0].shape
        if kind == "entrywise":
            require(first == shape, f"{name} changes the shape")
            return _parse_function(item, shape, reader)
        if kind == "normalize":
            view = reader.shape(item.get("view"))
            eps = reader.number(item.get("eps"))
            require(first == shape and math.prod(view) == read[0].size and eps > 0, f"{name} normalizes nothing")
            return {"view": view, "axes": parse_axes(item.get("axes"), view, reader), "eps": eps}
        if kind == "extreme":
            index, lead = reader.array(item.get("index"), "i"), reader.whole(item.get("leading"), 0, len(shape))
            inner = math.prod(first[lead:])
            fits = index.ndim == 2 and index.size and index.min() >= -1 and index.max() < inner
            fits = fits and first[:lead] == shape[:lead] and len(index) == math.prod(shape[lead:])
            require(bool(fits) and bool((index >= 0).any(1).all()), f"the windows of {name} do not fit")
            require(type(item.get("lowest")) is bool, f"{name} takes neither the highest nor the lowest")
            return {"index": index, "leading": lead, "lowest": item["lowest"]}
        if kind == "pairwise":
            require(first == read[1].shape == shape and type(item.get("lowest")) is bool, f"{name} does not fit")
            return {"lowest": item["lowest"]}
        if kind in ("softmax", "log_softmax"):
            require(first == shape, f"{name} changes the shape")
            return {"axis": reader.whole(item.get("axis"), 0, len(shape) - 1)}
        if kind == "product":
            require(first == read[1].shape == shape, f"the factors of {name} do not fit")
            return {}
        if kind == "matmul":
            second = read[1].shape
            fits = len(first) >= 2 and len(second) >= 2 and first[:-2] == second[:-2] and first[-1] == second[-2]
            require(fits and shape == (*first[:-1], second[-1]), f"the factors of {name} do not fit")
            return {}
        if kind == "glu":
            axis = reader.whole(item.get("axis"), 0, len(shape) - 1)
            require(first == (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]), f"the halves of {name} do not fit")
            return {"axis": axis}
        if kind == "attention":
            q, k, v = (node.shape for node in read)
            fits = 2 <= len(q) == len(k) == len(v) and q[:-2] == k[:-2] == v[:-2] and q[-1] == k[-1]
            require(fits and k[-2] == v[-2] and shape == (*q[:-1], v[-1]), f"the operands of {name} do not fit")
            mask = None if item.get("mask") is None else reader.array(item["mask"])
            require(mask is None or _broadcasts(mask.shape, (*q[:-1], k[-2])), f"the mask of {name} does not fit")
            return {"scale": reader.number(item.get("scale")), "mask": mask}
        raise BadFile(f"{name} is of unknown kind {kind!r}")

    def values(self, flat: Array) -> dict[str, Array]:
        """Run the network on one flat input; return every value by name."""
        found, start = {}, 0
        for node in self.inputs:
            found[node.name] = flat[start : start + node.size].reshape(node.shape)
            start += node.size
        with np.errstate(all="ignore"):
            for node in self.order:
                if node.kind != "input":
                    found[node.name] = evaluate(node, [found[name] for name in node.operands])
        return found


def _parse_function(item: dict[str, Any], shape: Shape, reader: Reader) -> dict[str, Any]:
    """Read an activation and its parameters, each a number or one per entry."""
    name, given = str(item.get("function")), item.get("parameters")
    require(name in FUNCTIONS, f"unknown function {name!r}")
    known = FUNCTIONS[name].parameters
    given = given if isinstance(given, dict) else {}
    require(set(given) == set(known), f"{name} has not the parameters {sorted(known)}")
    parameters = {}
    for key, (low, high) in known.items():
        value = parameters[key] = reader.numbers(given[key])
        require(_broadcasts(np.shape(value), shape), f"parameter {key} of {name} does not fit")
        require(bool(np.all((np.asarray(value) >= low) & (np.asarray(value) <= high))), f"{key} of {name} out of range")
    exponent = parameters.get("exponent", 2.0)
    require(type(exponent) is float and exponent == int(exponent), "a power that is no integer")
    return {"function": name, "parameters": parameters}


def evaluate(node: Node, operands: list[Array]) -> Array:
    """Compute the value of a node."""
    data = node.data
    if node.kind == "linear":
        total = sum(linear.apply(x[None])[0] for linear, x in zip(node.maps, operands))
        return total if node.constant is None else total + node.constant
    if node.kind == "constant":
        assert node.constant is not None
        return node.constant
    if node.kind == "opaque":
        raise Unproven(f"{node.name} ({data['what']}) cannot be evaluated here")
    x = operands[0]
    if node.kind == "entrywise":
        return FUNCTIONS[data["function"]].value(x, data["parameters"])
    if node.kind == "normalize":
        seen = x.reshape(data["view"])
        return (seen / np.sqrt((seen * seen).mean(data["axes"], keepdims=True) + data["eps"])).reshape(node.shape)
    if node.kind == "extreme":
        flat = x.reshape(*x.shape[: data["leading"]], -1)
        empty = INF if data["lowest"] else -INF
        read = np.where(data["index"] >= 0, flat[..., data["index"]], empty)
        return (read.min(-1) if data["lowest"] else read.max(-1)).reshape(node.shape)
    if node.kind == "pairwise":
        return np.minimum(x, operands[1]) if data["lowest"] else np.maximum(x, operands[1])
    if node.kind in ("softmax", "log_softmax"):
        shifted = x - x.max(data["axis"], keepdims=True)
        total = np.exp(shifted).sum(data["axis"], keepdims=True)
        return np.exp(shifted) / total if node.kind == "softmax" else shifted - np.log(total)
    if node.kind == "product":
        return x * operands[1]
    if node.kind == "matmul":
        return x @ operands[1]
    if node.kind == "glu":
        first, second = np.split(x, 2, axis=data["axis"])
        return first * sigmoid(second)
    scores = data["scale"] * (x @ np.swapaxes(operands[1], -2, -1))
    scores = scores if data["mask"] is None else scores + data["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ operands[2]


# ------------------------------------------------------------------------------------------------ upper sides


@dataclass(frozen=True)
class Ball:
    """All inputs within `radius` of `centre`."""

    centre: Array
    radius: float


@dataclass(frozen=True)
class Step:
    """What an ellipsoid needs: where it starts (log10 constants), the multipliers by node, and where it ends.

    `weights` are the shares of the operands of nodes that read several. An `auto` step chooses its own multipliers. On
    a `torus` (entries per axis) multipliers are those of channels, in units of the change of the start.
    """

    at: str
    start: dict[str, float]
    sigma: dict[str, Array]
    weights: dict[str, tuple[float, ...]]
    auto: bool = False
    torus: Shape | None = None


def times(*exponents: float) -> float:
    """Return log10 of a product; infinity wins over zero."""
    return INF if INF in exponents else sum(exponents)


class Prover:
    """Bounds the map from the input to every value: `best` holds log10 of the least bound proven so far."""

    def __init__(self, network: Network, norms: Norms) -> None:
        self.network, self.norms = network, norms
        self.best = {node.name: 0.0 if node.kind == "input" else INF for node in network.order}
        self.rests: dict[str, None] = {}
        self.loose: dict[str, None] = {}
        self.forms: dict[bool, dict[str, dict[str, Map]]] = {False: {}, True: {}}
        self.spreads: dict[str, Array] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.done: set[int] = set()
        # operands of a concatenation are bounded one by one, and their squares added up: each has a form of its own
        self.apart = {node.name for node in network.order if node.kind == "linear" and self._apart(node)}
        readers = [node for node in network.order if node.kind not in LINEAR or node.name in self.apart]
        self.ends = {network.output.name, *(name for node in readers for name in node.operands)}

    # ---- one node at a time

    def sweep(self, *, fold: bool, loop: bool = False, steps: Sequence[Step] = ()) -> float:
        """Go through the network once; return log10 of the bound on the output."""
        place = {node.name: index for index, node in enumerate(self.network.order)}
        ready = {id(step): max((place[name] for name in self.cone(step)[1]), default=-1) for step in steps}
        for index, node in enumerate(self.network.order):
            for step in steps:
                if ready[id(step)] < index and id(step) not in self.done:
                    self.done.add(id(step))
                    self._run(step)
            found = [self.best[node.name]]
            if node.kind == "constant":
                found.append(-INF)
            elif node.kind == "linear":
                found.append(self._sum(node))
                if fold and node.name in self.ends:
                    found += [self._form_bound(node, which) for which in ((False, True) if loop else (False,))]
            elif node.kind != "input":
                gains, joint = self.gains(node)
                moved = [times(gain, self.best[name]) for gain, name in zip(gains, node.operands)]
                found.append(log10_root(moved) if joint else log10_sum(moved))
            self.best[node.name] = min(found)
            self.settle(node)
        return self.best[self.network.output.name]

    def _run(self, step: Step) -> None:
        """Run an ellipsoid; over a ball, whose slopes multipliers may not be made for, it may come to nothing."""
        if step.torus is not None:
            self._run_torus(step)
            return
        try:
            Ellipsoid(self, step).run()
        except (Refuted, Unproven):
            if not isinstance(self, BallProver):
                raise

    def _run_torus(self, step: Step) -> None:
        """Run an ellipsoid on a torus, for all inputs; what cannot be followed is said to be."""
        try:
            if not isinstance(self, BallProver):
                Waves(self, step).run()
        except Unproven as error:
            self.loose[str(error)] = None

    def tori(self, steps: Sequence[Step]) -> float:
        """Run the ellipsoids on tori whose starts are bounded without a norm; return log10 of the output's bound."""
        for step in steps:
            sources = [self.network.nodes[name] for name in self.cone(step)[1]] if step.torus is not None else []
            for node in sources:
                if node.kind not in ("input", *LINEAR) and all(self.best[name] < INF for name in node.operands):
                    gains, joint = self.gains(node)
                    moved = [times(gain, self.best[name]) for gain, name in zip(gains, node.operands)]
                    self.best[node.name] = min(self.best[node.name], log10_root(moved) if joint else log10_sum(moved))
            if sources and all(self.best[node.name] < INF for node in sources):
                self.done.add(id(step))
                self._run(step)
        return self.best[self.network.output.name]

    def settle(self, node: Node) -> None:
        """Draw what follows from a new bound on a value: nothing, if it speaks of all inputs."""

    def confine(self, name: str, constants: Array) -> None:
        """Take note of constants of single entries: nothing follows, if they speak of all inputs."""

    def _sum(self, node: Node) -> float:
        """Add up the operands; where they land on different entries, or are different inputs, their squares."""
        moved = [times(self.norms(linear), self.best[name]) for linear, name in zip(node.maps, node.operands)]
        return log10_root(moved) if node.name in self.apart else log10_sum(moved)

    def _apart(self, node: Node) -> bool:
        """Say whether the operands of a linear node land on different entries, or are different inputs."""
        if len(node.operands) < 2:
            return False
        kinds = {self.network.nodes[name].kind for name in node.operands}
        if kinds == {"input"} and len(set(node.operands)) == len(node.operands):
            return True
        masks = [linear.rows(np.full(linear.inside, True)) for linear in node.maps]
        return bool((np.add.reduce([mask.astype(int) for mask in masks]) <= 1).all())

    # ---- folded

    def form(self, node: Node, loop: bool) -> dict[str, Map]:
        """Write a value as linear maps of sources: inputs, nonlinear nodes and (`loop`) operands of activations.

        With `loop` an activation is its mean slope plus a remainder: "~name" stands for the operand it is made from.
        """
        forms = self.forms[loop]
        for other in self.network.order if node.name not in forms else ():
            if other.name not in forms:
                forms[other.name] = self._form(other, loop, forms)
        return forms[node.name]

    def _form(self, node: Node, loop: bool, forms: dict[str, dict[str, Map]]) -> dict[str, Map]:
        found: dict[str, list[Map]] = {}
        split = self.split(node) if loop else None
        if node.kind == "linear":
            for linear, name in zip(node.maps, node.operands):
                for source, earlier in forms[name].items():
                    found.setdefault(source, []).append(Chain([earlier, linear]))
        elif split is not None:
            middle, spread = split
            for source, earlier in forms[node.operands[0]].items():
                found[source] = [Chain([earlier, middle])]
            found["~" + node.name] = [Diagonal(_compact(spread), node.shape)]
            self.spreads[node.name] = spread
        elif node.kind != "constant":
            found[node.name] = [Identity(node.shape, node.shape)]
        return {source: _added(terms) for source, terms in found.items()}

    def split(self, node: Node) -> tuple[Map, Array] | None:
        """Return a map M and, per entry, w with du = M dv + dw and norm(dw/w) <= norm(dv); None if there is none."""
        if node.kind != "entrywise":
            return None
        low, high = self.slopes(node)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return None
        return Diagonal(_compact((low + high) / 2.0), node.shape), (high - low) / 2.0 * (1.0 + 4.0 * UNIT)

    def _form_bound(self, node: Node, loop: bool) -> float:
        """Bound a value by its form: the terms added up, or their maps side by side."""
        form = self.form(node, loop)
        moved = {source: self.term(source, linear) for source, linear in form.items()}
        inputs = [value for source, value in moved.items() if self._is_input(source)]
        others = [value for source, value in moved.items() if not self._is_input(source)]
        plain = log10_sum([log10_root(inputs), *others])
        width = sum(linear.sizes[1] for linear in form.values())
        if len(form) < 2 or not math.isfinite(plain) or not 0 < node.size * width <= DENSE_ENTRIES / 4:
            return plain
        if min(node.size, width) > DENSE_SIDE or not all(linear.small for linear in form.values()):
            return plain
        # norm([A_j/t_j]) (sum t_j^2 L_j^2)^(1/2) with t_j^2 = norm(A_j)/L_j, relative to the largest term: each term
        # must be norm(A_j) L_j here, and nothing smaller
        whole = {source: times(self.norms(linear), self.moves(source)) for source, linear in form.items()}
        top = max(whole.values())
        if not math.isfinite(top):
            return plain
        blocks = [
            linear.matrix() * 10.0 ** ((whole[source] - top) / 2.0 - self.norms(linear))
            for source, linear in form.items()
            if whole[source] > -INF
        ]
        spread = log10_sum([value - top for value in whole.values()])
        return min(plain, top + matrix_norm(np.concatenate(blocks, axis=1)) + spread / 2.0)

    def moves(self, source: str) -> float:
        """Return log10 of a constant L of a source: how far it moves as one vector, per unit of the input."""
        return self.best[self.network.nodes[source[1:]].operands[0] if source[0] == "~" else source]

    def term(self, source: str, linear: Map) -> float:
        """Bound one term of a form."""
        return times(self.norms(linear), self.moves(source))

    def _is_input(self, source: str) -> bool:
        return source[0] != "~" and self.network.nodes[source].kind == "input"

    # ---- what single nodes do

    def reach(self, name: str) -> tuple[Array, Array]:
        """Return the least and the most the entries of a value can be."""
        return np.full((), -INF), np.full((), INF)

    def jumps(self) -> dict[str, None]:
        """Return the nodes that are taken for smooth where their values jump, by more than float64 rounds them."""
        found: dict[str, None] = {}
        for node in self.network.order:
            if node.kind == "entrywise" and node.data["function"] == "softplus":
                beta, threshold = (np.asarray(node.data["parameters"][key]) for key in ("beta", "threshold"))
                low, high = self.reach(node.operands[0])
                size = np.log1p(np.exp(-threshold))
                seen = (size > UNIT * threshold) & (low <= threshold / beta) & (high >= threshold / beta)
                if seen.any():
                    jump = float((np.broadcast_to(size / beta, seen.shape)[seen]).max())
                    found[f"{node.name} (softplus without its jump of {jump:.2g} at the threshold)"] = None
        return found

    def slopes(self, node: Node) -> tuple[Array, Array]:
        """Return the least and the largest slope of an activation, per entry: over all numbers, or over its range.

        Multipliers are made for the slopes over all numbers; narrower ones would not suit them.
        """
        for reach in (INF, self.range(node.operands[0])[0]):
            found = self.slopes_between(node, np.full((), -reach), np.full((), reach))
            if np.isfinite(found).all():
                break
        return found

    def slopes_between(self, node: Node, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the least and the largest slope of an activation over intervals."""
        data = node.data
        least, most = slopes(data["function"], data["parameters"], np.broadcast_to(low, node.shape), high)
        return np.broadcast_to(least, node.shape), np.broadcast_to(most, node.shape)

    def gains(self, node: Node) -> tuple[list[float], bool]:
        """Return log10 of a nonlinear node's constant in each operand, and whether their squares add up."""
        kind, data = node.kind, node.data
        if kind == "entrywise":
            low, high = self.slopes(node)
            size = float(np.maximum(np.abs(low), np.abs(high)).max())
            return [log10(size) if math.isfinite(size) else INF], False
        if kind == "normalize":
            return [self.normalizer(node)], False
        if kind == "extreme":
            rows = np.sort(data["index"], axis=1)
            fresh = np.concatenate([np.full((len(rows), 1), True), rows[:, 1:] != rows[:, :-1]], axis=1) & (rows >= 0)
            return [log10(float(np.bincount(rows[fresh]).max())) / 2.0], False
        if kind == "pairwise":
            return [0.0, 0.0], True
        if kind in ("softmax", "log_softmax"):
            entries = node.shape[data["axis"]]
            size = 0.5 if kind == "softmax" else math.sqrt(entries)
            return [log10(size) if entries > 1 else -INF], False
        if kind == "opaque":
            self.rests[f"{node.name} ({data['what']})"] = None
            return (data["gains"] or [INF] * len(node.operands)), data["joint"]
        ranges = [self.range(name) for name in node.operands]
        if kind == "product":
            return [_log10_range(ranges[1][0]), _log10_range(ranges[0][0])], False
        if kind == "matmul":
            counts = [self.network.nodes[name].shape[-2] for name in node.operands]
            sides = [_log10_range(row) + log10(count) / 2.0 for (_, row), count in zip(ranges, counts)]
            return [sides[1], sides[0]], False
        if kind == "glu":
            return [_glu_gain(ranges[0][0])], False
        # attention on rows of norm at most q, k, v: in q it is scale times a covariance, at most k v; in k at most
        # scale q norm(J V) per query with norm(J V) <= v/sqrt(2); in v the weights of each query add up to 1
        queries = log10(node.shape[-2]) / 2.0
        q, k, v = (_log10_range(row) for _, row in ranges)
        scale = log10(abs(data["scale"]))
        return [times(scale, k, v), times(scale, q, v, queries - log10(2.0) / 2.0), queries], False

    def normalizer(self, node: Node) -> float:
        """Return log10 of 1/sqrt(eps), the steepest a division by sqrt(mean square + eps) gets, at zero."""
        return -log10(node.data["eps"]) / 2.0 + 1e-14

    # ---- how large values can get

    def range(self, name: str) -> tuple[float, float]:
        """Return bounds on the size of every entry and on the norm of every row of a value."""
        node = self.network.nodes[name]
        width = node.shape[-1] if node.shape else 1
        if name not in self.ranges:
            entry, row = self._range(node)
            entry, row = min(entry, row), min(row, math.sqrt(width) * entry)
            self.ranges[name] = entry * (1.0 + 1e-12), row * (1.0 + 1e-12)
        return self.ranges[name]

    def _range(self, node: Node) -> tuple[float, float]:
        kind, data = node.kind, node.data
        before = [self.range(name) for name in node.operands]
        if kind in ("input", "opaque", "log_softmax"):
            return INF, INF
        if kind in LINEAR:
            entry, row = (0.0, 0.0) if node.constant is None else _measure(node.constant, node.shape)
            for linear, name, given in zip(node.maps, node.operands, before):
                moved = through(self._trimmed(linear, name), *given)
                entry, row = entry + moved[0], row + moved[1]
            return entry, row
        if kind == "entrywise":
            reach, row = before[0]
            function = FUNCTIONS[data["function"]]
            if data["function"] in ("sin", "cos"):
                return 1.0, INF
            low, high = self.slopes(node)
            with np.errstate(all="ignore"):
                ends = [np.abs(function.value(np.asarray(x), data["parameters"])).max() for x in (-reach, reach)]
                rest = np.abs(function.value(np.zeros(()), data["parameters"])).max()
            if data["function"] in RISING and not np.isnan(ends).any():
                return float(max(ends)), INF
            gain = float(np.maximum(np.abs(low), np.abs(high)).max())
            return float(rest) + gain * reach, float(rest) * math.sqrt(node.shape[-1] if node.shape else 1) + gain * row
        if kind == "normalize":
            view, axes = data["view"], data["axes"]
            reach = math.sqrt(math.prod(view[axis] for axis in axes))
            return reach, reach if view == node.shape and len(view) - 1 in axes else INF
        if kind == "softmax":
            return 1.0, 1.0 if data["axis"] == len(node.shape) - 1 else INF
        if kind == "extreme":
            return before[0][0], INF
        if kind == "pairwise":
            return max(before[0][0], before[1][0]), INF
        if kind == "product":
            (a, a_row), (b, b_row) = before
            return a * b if a and b else 0.0, min(a_row * b if b else 0.0, b_row * a if a else 0.0)
        if kind == "matmul":
            rows = self.network.nodes[node.operands[1]].shape[-2]
            return INF, before[0][1] * before[1][1] * math.sqrt(rows)
        if kind == "glu":
            return before[0][0], INF
        return before[2][0], before[2][1]  # attention: averages of the rows of v

    def _trimmed(self, linear: Map, operand: str) -> Map:
        """Leave out a centring that changes nothing: that of a normalized value which was centred before."""
        node = self.network.nodes[operand]
        if node.kind != "normalize":
            return linear
        source = self.network.nodes[node.operands[0]]
        parts = linear.parts if isinstance(linear, Chain) else (linear,)
        sets = (node.data["view"], node.data["axes"])

        def centres(part: Map) -> bool:
            return isinstance(part, Centering) and (part.view, part.axes) == sets

        last = source.maps[0].parts[-1:] if source.maps and isinstance(source.maps[0], Chain) else source.maps[:1]
        if source.constant is not None or len(source.maps) != 1 or not (centres(parts[0]) and centres(last[0])):
            return linear
        return Chain([Identity(linear.inside, linear.inside), *parts[1:]])

    # ---- ellipsoids

    def cone(self, step: Step) -> tuple[set[str], list[str]]:
        """Return the nodes between the start of an ellipsoid and its end, and the values it starts from."""
        cone, sources, stack = set(), [], [step.at]
        while stack:
            name = stack.pop()
            node = self.network.nodes[name]
            if name in cone or name in sources:
                continue
            starts = name in step.start or node.kind == "input"
            if starts or (node.kind not in LINEAR and name not in step.sigma and not step.auto):
                sources.append(name)
            else:
                cone.add(name)
                stack.extend(node.operands)
        return cone, sources


class BallProver(Prover):
    """The same over a ball: every value is enclosed, and slopes are those over what an operand can be there.

    Attributes:
        ball, centre: the ball, and every value at its centre.
        boxes: the least and the most each entry of a value can be over the ball.
        entries: a constant for each entry of a value.
    """

    def __init__(self, network: Network, norms: Norms, ball: Ball) -> None:
        super().__init__(network, norms)
        self.ball, self.centre = ball, network.values(ball.centre)
        if not all(np.isfinite(value).all() for value in self.centre.values()):
            raise Unproven("a value at the centre of the ball is not finite")
        self.boxes = {name: (np.full(v.shape, -INF), np.full(v.shape, INF)) for name, v in self.centre.items()}
        self.entries = {name: np.full(value.shape, INF) for name, value in self.centre.items()}
        self.magnitudes: dict[str, list[Map]] = {}
        self.rounding = {name: np.zeros(value.shape) for name, value in self.centre.items()}
        self.kinds: list[bool] = []

    def sweep(self, *, fold: bool, loop: bool = False, steps: Sequence[Step] = ()) -> float:
        """Go through the network once, with the slopes of the boxes found so far."""
        self.forms[True].clear()
        self.done.clear()
        self.kinds = [False] * fold + [True] * loop
        return super().sweep(fold=fold, loop=loop, steps=steps)

    def slopes(self, node: Node) -> tuple[Array, Array]:
        """Return the least and the largest slope of an activation, per entry, over the box of its operand."""
        return self.slopes_between(node, *self.boxes[node.operands[0]])

    def range(self, name: str) -> tuple[float, float]:
        """Return bounds on the size of every entry and on the norm of every row of a value over the ball."""
        low, high = self.boxes[name]
        size = np.maximum(np.abs(low), np.abs(high)).reshape(-1, low.shape[-1] if low.shape else 1)
        return float(size.max()), float(np.sqrt((size * size).sum(1)).max()) * (1.0 + 1e-12)

    def reach(self, name: str) -> tuple[Array, Array]:
        """Return the least and the most the entries of a value can be over the ball."""
        return self.boxes[name]

    def normalizer(self, node: Node) -> float:
        """Return log10 of the constant over the ball: the mean square cannot fall far below its value at the centre."""
        return -log10(float(self._reach(node)[1].min()))

    def moves(self, source: str) -> float:
        """Return log10 of a constant of a source; of a remainder only the entries count whose slope is open."""
        bound, moving = super().moves(source), self._moving(source)
        if moving is None or self.network.nodes[source[1:]].kind != "entrywise":
            return bound
        return min(bound, log10(length(moving) + 1e-200) + 1e-12)

    def term(self, source: str, linear: Map) -> float:
        """Bound one term of a form: by the norm of its map, or entry by entry."""
        bound, moving = super().term(source, linear), self._moving(source)
        if moving is not None and linear.small:
            bound = min(bound, log10(length(np.abs(linear.matrix()) @ moving.reshape(-1)) + 1e-200) + 1e-12)
        return bound

    def _moving(self, source: str) -> Array | None:
        """Return how fast each entry behind a remainder can move; None if the source is none, or that is not known."""
        node = self.network.nodes[source.removeprefix("~")]
        if source[0] != "~" or node.kind == "extreme":
            return None
        moving = self.entries[node.operands[0]]
        if node.kind == "entrywise":  # open are the slopes that were open when the form was made
            moving = np.where(self.spreads[node.name] > 0.0, moving, 0.0)
        else:  # a set moves as a whole
            view, axes = node.data["view"], node.data["axes"]
            sets = np.sqrt((moving.reshape(view) ** 2).sum(axes, keepdims=True)) * (1.0 + 1e-12)
            sets = np.minimum(sets, power10(self.best[node.operands[0]]))
            moving = np.broadcast_to(sets, view).reshape(node.shape)
        return moving if np.isfinite(moving).all() else None

    def split(self, node: Node) -> tuple[Map, Array] | None:
        """Return a map M and, per entry, w with du = M dv + dw and norm(dw/w) <= norm(dv); None if there is none."""
        if node.kind == "normalize":
            return self._split_sets(node)
        return self._split_windows(node) if node.kind == "extreme" else super().split(node)

    def _reach(self, node: Node) -> tuple[Array, Array]:
        """Return by set of a normalizer how far it can move over the ball, and the least its divisor can get."""
        view, axes, operand = node.data["view"], node.data["axes"], node.operands[0]
        count = math.prod(view[axis] for axis in axes)
        size = np.sqrt((self.centre[operand].reshape(view) ** 2).sum(axes, keepdims=True))
        low, high = self.boxes[operand]
        reach = np.maximum(high - self.centre[operand], self.centre[operand] - low).reshape(view)
        moved = np.sqrt((reach**2).sum(axes, keepdims=True)) * (1.0 + 1e-12)
        moved = np.minimum(moved, self.ball.radius * power10(self.best[operand]))
        inside = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high))).reshape(view)
        nearest = np.sqrt((inside**2).sum(axes, keepdims=True)) * (1.0 - 1e-12)
        nearest = np.maximum(nearest, size * (1.0 - 1e-12) - moved)
        return moved, np.sqrt(nearest**2 / count + node.data["eps"]) * (1.0 - 1e-12)

    def _split_sets(self, node: Node) -> tuple[Map, Array] | None:
        """Split a division by the root mean square into its Jacobian at the centre and the rest, set by set.

        y/s is the gradient of a convex function, so its Jacobian lies between 0 and 1/s, and half of that is never
        further away than half. The third derivative of that function is largest along one direction, where it is
        3 t (1 - t^2)/(sqrt(n) s^2) <= 2/(sqrt(3 n) s^2): the Jacobian moves by no more than that per unit of y.
        """
        view, axes = node.data["view"], node.data["axes"]
        count = math.prod(view[axis] for axis in axes)
        moved, least = self._reach(node)
        if node.size * count > DENSE_ENTRIES or not np.isfinite(moved).all():
            return None
        far = 2.0 / math.sqrt(3.0 * count) * moved / least**2
        near = far <= 0.5 / least
        value = self.centre[node.operands[0]].reshape(view)
        middle = np.sqrt((value**2).mean(axes, keepdims=True) + node.data["eps"])
        spread = np.where(near, far, 0.5 / least) * (1.0 + 1e-12)
        scale, along = np.where(near, 1.0 / middle, 0.5 / least), np.where(near, value / middle / math.sqrt(count), 0.0)
        return _Projection(node.shape, view, axes, scale, along), np.broadcast_to(spread, view).reshape(node.shape)

    def _split_windows(self, node: Node) -> tuple[Map, Array]:
        """Split a maximum over windows into the mean of the k entries that can win, and the rest.

        The change of a maximum is an average of the changes of these entries; its weights differ from 1/k each by at
        most sqrt(1 - 1/k) in l2, and an entry counts once per window that it may win but need not.
        """
        index, leading = node.data["index"], node.data["leading"]
        operand = self.network.nodes[node.operands[0]]
        inner = math.prod(operand.shape[leading:])
        places = np.where(index >= 0, index, -1)[None] + inner * np.arange(operand.size // inner)[:, None, None]
        places = np.where((index >= 0)[None], places, -1).reshape(-1, index.shape[1])
        racing = self._racing(node, places)
        count = racing.sum(1)
        rows, taps = np.nonzero(racing)
        entries = places[rows, taps]
        share = Sparse(rows, entries, 1.0 / count[rows], operand.shape, node.shape)
        disputed = np.bincount(entries[count[rows] > 1], minlength=1).max()
        spread = np.sqrt(1.0 - 1.0 / count) * math.sqrt(disputed) * (1.0 + 1e-12)
        return share, spread.reshape(node.shape)

    def _racing(self, node: Node, places: Array) -> Array:
        """Return which entries of each window can be the extreme over the ball."""
        low, high = (side.reshape(-1)[places] for side in self.boxes[node.operands[0]])
        if node.data["lowest"]:
            low, high = -high, -low
        low, high = (np.where(places >= 0, side, -INF) for side in (low, high))
        ordered = np.sort(places, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise Unproven(f"a window of {node.name} names an entry twice")
        return (high >= low.max(1, keepdims=True)) & (places >= 0)

    def confine(self, name: str, constants: Array) -> None:
        """Take note of constants of single entries, and of the box that follows."""
        centre = self.centre[name]
        fresh = constants.reshape(centre.shape) * (1.0 + 1e-10) + 1e-200  # for products that underflow
        self.entries[name] = np.minimum(self.entries[name], fresh)
        reach = self.ball.radius * self.entries[name] if self.ball.radius else np.zeros(centre.shape)
        self._intersect(name, centre - reach, centre + reach)

    def _intersect(self, name: str, low: Array, high: Array) -> None:
        centre, old = self.centre[name], self.boxes[name]
        slack = 1e-11 * np.abs(centre) + self.rounding[name]
        low, high = np.maximum(low - slack, old[0]), np.minimum(high + slack, old[1])
        self.boxes[name] = np.minimum(low, centre), np.maximum(high, centre)

    def settle(self, node: Node) -> None:
        """Enclose a value: by its constant, by constants of its entries, by intervals."""
        pairs: list[tuple[Map, str]] = []
        if node.kind == "linear":
            if node.name not in self.magnitudes:
                self.magnitudes[node.name] = [linear.absolute() for linear in node.maps]
            pairs = list(zip(self.magnitudes[node.name], node.operands))
            noise = [linear.apply((1e-13 * np.abs(self.centre[x]) + self.rounding[x])[None])[0] for linear, x in pairs]
            self.rounding[node.name] = sum(noise, np.zeros(node.shape))
        elif node.kind == "entrywise":
            low, high = self.slopes(node)
            steep = np.minimum(np.maximum(np.abs(low), np.abs(high)), 1e300)
            self.rounding[node.name] = steep * self.rounding[node.operands[0]] + 1e-13 * np.abs(self.centre[node.name])
        self.confine(node.name, np.full(node.shape, power10(self.best[node.name])))
        if node.kind == "linear":
            if all(np.isfinite(self.entries[name]).all() for name in node.operands):
                self.confine(node.name, sum(linear.apply(self.entries[name][None])[0] for linear, name in pairs))
            for loop in self.kinds if node.name in self.ends else ():
                self._confine_rows(node, loop)
        elif node.kind == "entrywise":
            with np.errstate(invalid="ignore"):
                moved = np.maximum(np.abs(low), np.abs(high)) * self.entries[node.operands[0]]
            self.confine(node.name, np.where(np.isnan(moved), INF, moved))
        elif node.kind == "extreme":
            lead, index = node.data["leading"], node.data["index"]
            entries = self.entries[node.operands[0]].reshape(*node.shape[:lead], -1)
            self.confine(node.name, np.where(index >= 0, entries[..., index], 0.0).max(-1))
        found = None if node.kind == "input" else self._interval(node)
        if found is not None:
            self._intersect(node.name, *found)
        total = length(self.entries[node.name]) if np.isfinite(self.entries[node.name]).all() else INF
        if node.kind == "input":
            return
        self.best[node.name] = min(self.best[node.name], log10(total) + 1e-12 if total < INF else INF)

    def _confine_rows(self, node: Node, loop: bool) -> None:
        """Bound every entry by the rows of the value's form."""
        form = self.form(node, loop)
        if not all(linear.small for linear in form.values()):
            return
        squares, total = np.zeros(node.size), np.zeros(node.size)
        for source, linear in form.items():
            matrix = linear.matrix()
            side = np.linalg.norm(matrix, axis=1)
            if self._is_input(source):
                squares = squares + side**2
                continue
            origin = self.network.nodes[source[1:]].operands[0] if source[0] == "~" else source
            moved, moving = np.where(side > 0, side * power10(self.best[origin]), 0.0), self._moving(source)
            if moving is not None:
                moved = np.minimum(moved, np.minimum(side * length(moving), np.abs(matrix) @ moving.reshape(-1)))
            total = total + moved
        self.confine(node.name, (np.sqrt(squares) + total) * (1.0 + 1e-12))

    def _interval(self, node: Node) -> tuple[Array, Array] | None:
        """Return an interval around every entry from the intervals of the operands, where that is easily had."""
        if node.kind == "linear":
            boxes = [self.boxes[name] for name in node.operands]
            if not all(np.isfinite(high - low).all() for low, high in boxes):
                return None
            middle = evaluate(node, [(low + high) / 2.0 for low, high in boxes])
            halves = [(high - low) / 2.0 for low, high in boxes]
            spread = sum(linear.apply(half[None])[0] for linear, half in zip(self.magnitudes[node.name], halves))
            return middle - spread, middle + spread
        if node.kind == "entrywise":
            low, high = self.boxes[node.operands[0]]
            centre, (least, most) = self.centre[node.operands[0]], self.slopes(node)
            with np.errstate(all="ignore"):
                ends = [evaluate(node, [x]) for x in (low, high)]
                corners = [slope * (x - centre) for slope in (least, most) for x in (low, high)]
            value = self.centre[node.name]
            lowest, highest = value + np.minimum.reduce(corners), value + np.maximum.reduce(corners)
            rising = (least >= 0) | (node.data["function"] in RISING)
            lowest = np.where(rising, ends[0], np.where(most <= 0, ends[1], lowest))
            highest = np.where(rising, ends[1], np.where(most <= 0, ends[0], highest))
            return np.where(np.isnan(lowest), -INF, lowest), np.where(np.isnan(highest), INF, highest)
        if node.kind == "normalize":
            reach = math.sqrt(math.prod(node.data["view"][axis] for axis in node.data["axes"]))
            return np.full(node.shape, -reach), np.full(node.shape, reach)
        if node.kind == "softmax":
            return np.zeros(node.shape), np.ones(node.shape)
        if node.kind == "extreme":
            low, high = (evaluate(node, [side]) for side in self.boxes[node.operands[0]])
            return low, high
        return None


class _Projection(Map):
    """`scale (x - along <along, x>)` on every set of a view."""

    def __init__(self, shape: Shape, view: Shape, axes: tuple[int, ...], scale: Array, along: Array) -> None:
        self.inside = self.outside = shape
        self.view, self.axes, self.scale, self.along = view, axes, scale, along

    @functools.cached_property
    def least(self) -> float:
        """Look at the factors."""
        return _smallest(self.scale) + 2.0 * _smallest(self.along)

    @functools.cached_property
    def most(self) -> float:
        """Add up the rows."""
        return max(0.0, log10(float(np.abs(self.scale).max(initial=0.0) * (1.0 + np.abs(self.along).sum()))))

    def apply(self, x: Array) -> Array:
        """Take the part along out and scale."""
        seen = x.reshape(len(x), *self.view)
        part = (seen * self.along).sum(tuple(axis + 1 for axis in self.axes), keepdims=True)
        return ((seen - part * self.along) * self.scale).reshape(x.shape)


def _compact(values: Array) -> Array:
    """Return one number where all entries are the same."""
    return values if np.ptp(values) else values.reshape(-1)[:1].reshape(())


def _added(terms: list[Map]) -> Map:
    """Return the sum of maps, written out where small: a sum of sums would be walked through again and again."""
    if len(terms) == 1:
        return terms[0]
    total = Total(terms)
    written = total.small and total.least >= RANGE  # a matrix does not tell what was lost
    return Dense(total.matrix(), total.inside, total.outside) if written else total


def _log10_range(value: float) -> float:
    return INF if math.isinf(value) else log10(value)


def _glu_gain(reach: float) -> float:
    """Return log10 of sup over t of t sqrt(1 + reach^2 (1 - t)^2), the constant of a sigmoid(b) for abs(a) <= reach."""
    if math.isinf(reach):
        return INF
    size = 1.0
    if reach * reach > 8.0:
        t = (3.0 - math.sqrt(1.0 - 8.0 / reach / reach)) / 4.0
        size = max(1.0, t * math.hypot(1.0, reach * (1.0 - t)))
    return log10(size) + 1e-12


def _measure(value: Array, shape: Shape) -> tuple[float, float]:
    """Return the largest entry and the largest norm of a row."""
    rows = np.broadcast_to(value, shape).reshape(-1, shape[-1] if shape else 1)
    return float(np.abs(rows).max()), float(np.linalg.norm(rows, axis=1).max())


def through(linear: Map, entry: float, row: float) -> tuple[float, float]:
    """Return bounds on entries and rows of a map's output from those of its input."""
    if math.isinf(entry):
        return INF, INF
    wide, width = (shape[-1] if shape else 1 for shape in (linear.inside, linear.outside))
    if isinstance(linear, Chain):
        for part in linear.parts:
            entry, row = through(part, entry, row)
    elif isinstance(linear, Repeated) and linear.inner.inside and linear.inner.outside:
        entry, row = through(linear.inner, entry, row)
    elif isinstance(linear, Total):
        parts = [through(term, entry, row) for term in linear.terms]
        entry, row = sum(part[0] for part in parts), sum(part[1] for part in parts)
    elif isinstance(linear, Identity):
        row = row if wide % width == 0 else row * math.sqrt(-(-width // wide) + (1 if width % wide else 0))
    elif isinstance(linear, Diagonal):
        top = float(np.abs(linear.scale).max())
        entry, row = entry * top, row * top
    elif isinstance(linear, Rows):
        sums = float(np.abs(linear.weight).sum(1).max()), float(np.linalg.norm(linear.weight, axis=1).max())
        entry, row = min(sums[0] * entry, sums[1] * row), power10(matrix_norm(linear.weight)) * row
    elif isinstance(linear, Centering):
        inside = linear.view == linear.inside and linear.axes == (len(linear.view) - 1,)
        entry, row = 2.0 * entry, row if inside else INF
    elif isinstance(linear, Index):
        entry, row = entry, row * math.sqrt(_rows_met(linear.index.reshape(-1, width), wide))
    elif isinstance(linear, Convolution | Dense | Sparse):
        ones = np.full((1, *linear.inside), entry)
        entry, row = float(linear.absolute().apply(ones).max()), INF
    else:
        return INF, INF
    return min(entry, row) * (1.0 + 1e-13), min(row, math.sqrt(width) * entry) * (1.0 + 1e-13)


def _rows_met(index: Array, wide: int) -> int:
    """Return how many rows of the input one row of the output gathers from, at most, counting repeated entries."""
    most = 0
    for row in index:
        entries, repeats = np.unique(row[row >= 0], return_counts=True)
        if entries.size:
            most = max(most, len(np.unique(entries // wide)) * int(repeats.max()))
    return most


@dataclass(frozen=True)
class _Known:
    """A nonlinear node: du = M dv + dw with norm(dw/spread) <= norm(dv) on every block.

    Attributes:
        form: the operands, stacked, over the state.
        middle: multiplies by M; None for zero.
        spread: per entry of u.
        inner, outer: the block of every entry of v and of u.
        steep: about the size of M, per entry of u.
    """

    form: Array
    middle: Callable[[Array], Array] | None
    spread: Array
    inner: Array
    outer: Array
    steep: Array


class Ellipsoid:
    """Runs the recursion of the header over the live values between the start of a step and its end."""

    def __init__(self, prover: Prover, step: Step) -> None:
        self.prover, self.step, self.network = prover, step, prover.network
        self.cone, sources = prover.cone(step)
        self.order = [node for node in self.network.order if node.name in self.cone]
        self.sources = [node for node in self.network.order if node.name in sources]
        self.maps = {node.name: node.maps for node in self.order}
        self.shapes = {node.name: node.shape for node in (*self.order, *self.sources)}
        self.leasts: dict[str, float] = {}
        self.last: dict[str, int] = {step.at: len(self.order)}
        for index, node in enumerate(self.order):
            for name in node.operands:
                self.last[name] = max(self.last.get(name, -1), index)

    def run(self) -> None:
        """Bound every linear value on the way and the end; keep what is better than what was known."""
        self._slice()
        size = {name: math.prod(shape) for name, shape in self.shapes.items()}
        biggest = max([*(size[node.name] for node in self.order), 1])
        if biggest > STATE_SIDE or sum(size[node.name] for node in self.sources) * biggest > 4 * DENSE_ENTRIES:
            self.prover.loose[f"the ellipsoid up to {self.step.at} is too large"] = None
            return
        constants = self._constants()
        if constants is None:
            return
        self.claimed, self.base, scales = constants
        self.bases = {node.name: size[node.name] for node in self.sources}
        self.forms: dict[str, dict[str, Array | None]] = {name: {name: None} for name in self.bases}
        self.q: Array | None = None
        self.diagonal = np.concatenate([np.full(n, scales[name]) for name, n in self.bases.items()] or [np.zeros(0)])
        self._walk()

    def _walk(self) -> None:
        """Go through the nodes up to the end."""
        for index, node in enumerate(self.order):
            if node.kind in LINEAR:
                self.forms[node.name] = self._linear(node)
                self._keep(index)
                if node.name in self.prover.ends or node.name == self.step.at:
                    self._record(node)
            else:
                if not self._advance(index, node):
                    return
                if node.name == self.step.at:
                    self._record(node)

    def _slice(self) -> None:
        """Go over to one slice of the first dimension while every node does the same to all of them."""
        while self._slice_once():
            pass

    def _slice_once(self) -> bool:
        """Go over to one slice of the first dimension, if every node does the same to all of them."""
        if len({shape[:1] for shape in self.shapes.values()}) != 1 or min(map(len, self.shapes.values())) < 2:
            return False
        maps: dict[str, tuple[Map, ...]] = {}
        for node in self.order:
            sliced = [linear.slice() for linear in self.maps[node.name]]
            if node.kind not in ("linear", "entrywise") or any(linear is None for linear in sliced):
                return False
            maps[node.name] = tuple(linear for linear in sliced if linear is not None)
            if node.kind == "entrywise" and self.step.auto:
                return False
            if node.kind == "entrywise":
                count = node.size // math.prod(self.shapes[node.name][1:])
                sides = [side.reshape(count, -1) for side in (*self.prover.slopes(node), self._sigma(node))]
                if not all((side == side[:1]).all() for side in sides):
                    return False
        self.maps, self.shapes = maps, {name: shape[1:] for name, shape in self.shapes.items()}
        return True

    def _sigma(self, node: Node) -> Array:
        """Return the multipliers of a node, one per entry: spread out like a tensor, or a list that is repeated."""
        sigma = self.step.sigma[node.name]
        if sigma.ndim == len(node.shape) > 1 and _broadcasts(sigma.shape, node.shape):
            return np.broadcast_to(sigma, node.shape).reshape(-1)
        return np.tile(sigma.reshape(-1), node.size // sigma.size)

    def _here(self, node: Node, values: Array) -> Array:
        """Return the entries of the slice that is looked at."""
        return values.reshape(-1)[: math.prod(self.shapes[node.name])]

    def _constants(self) -> tuple[float, float, dict[str, float]] | None:
        """Return log10 of the scale the file means, of the one that holds, and Q's diagonal on each source in it.

        sum_j (L_j/C_j)^2 <= 1 must hold for the constants C_j of the file; where it does not they are all raised.
        """
        best, start, inputs = self.prover.best, self.step.start, []
        claimed: dict[str, float] = {}
        for node in self.sources:
            if node.kind == "input":
                inputs.append(node.name)
            claimed[node.name] = start.get(node.name, best[node.name])
        if inputs:
            together = max(claimed[name] for name in inputs)
            claimed.update(dict.fromkeys(inputs, together))
        groups = [name for name in claimed if name not in inputs[1:] and best[name] > -INF]
        if any(not math.isfinite(best[name]) or claimed[name] == -INF for name in groups):
            return None
        excess = log10_root([best[name] - claimed[name] for name in groups]) if groups else 0.0
        top = max([claimed[name] for name in groups], default=0.0)
        factor = max(excess, 0.0)
        moving = {name: best[name] > -INF for name in claimed}
        return (
            top,
            top + factor,
            {name: power10(2.0 * (claimed[name] - top)) + LOST if moving[name] else 0.0 for name in claimed},
        )

    def _linear(self, node: Node) -> dict[str, Array | None]:
        """Write a linear value as matrices over the state's values."""
        found: dict[str, Array | None] = {}
        pairs = list(zip(self.maps[node.name], node.operands))
        self.leasts[node.name] = (
            min(linear.least + self.leasts.get(name, 0.0) for linear, name in pairs) if pairs else 0.0
        )
        if self.leasts[node.name] < RANGE:
            raise Unproven(f"the map to {node.name} leaves the range of float64")
        for linear, name in pairs:
            for base, earlier in self.forms[name].items():
                if earlier is None:
                    moved = linear.matrix()
                else:
                    columns = earlier.T.reshape(-1, *linear.inside)
                    moved = linear.apply(columns).reshape(len(columns), -1).T
                old = found.get(base)
                found[base] = moved if old is None else old + moved
        return found

    def _full(self, form: dict[str, Array | None], rows: int) -> Array:
        """Write a form out over the whole state."""
        blocks = []
        for base, width in self.bases.items():
            block = form.get(base, np.zeros((rows, width)))
            blocks.append(np.eye(width) if block is None else block)
        return np.concatenate(blocks, axis=1) if blocks else np.zeros((rows, 0))

    def _times(self, matrix: Array) -> Array:
        """Return F Q."""
        return matrix * self.diagonal if self.q is None else matrix @ self.q

    def _sure(self, q: Array, form: Array, where: str) -> Array:
        """Add an allowance for products that underflow; raises where nothing is known of them."""
        if not (np.abs(form).max(initial=0.0) <= STEEPEST and np.abs(q).max(initial=0.0) <= WIDEST):
            raise Unproven(f"the ellipsoid of {where} leaves the range of float64")
        q[np.diag_indices_from(q)] += LOST
        return q

    def _live(self, index: int) -> list[str]:
        return [name for name in self.forms if self.last.get(name, -1) > index]

    def _keep(self, index: int) -> None:
        """Forget values nobody reads any more; go over to the live ones where they are fewer than the state's."""
        live = self._live(index)
        sizes = {name: math.prod(self.shapes[name]) for name in live}
        if sum(sizes.values()) < sum(self.bases.values()):
            matrix = np.concatenate([self._full(self.forms[name], sizes[name]) for name in live])
            self.q, self.bases = self._sure(_symmetric(self._times(matrix) @ matrix.T), matrix, live[0]), sizes
            self.forms, self.leasts = {name: {name: None} for name in live}, {}
        else:
            self.forms = {name: self.forms[name] for name in live}

    def _record(self, node: Node) -> None:
        """Note the bound on a value: the largest eigenvalue of its ellipsoid, confirmed by a factorization."""
        size = math.prod(self.shapes[node.name])
        form = self._full(self.forms.get(node.name, {}), size)
        moved = self._sure(_symmetric(self._times(form) @ form.T), form, node.name)
        top = float(np.linalg.eigvalsh(moved)[-1])
        rho = max(top, 0.0) * (1.0 + 1e-10 + 8.0 * (size + 4.0) ** 2 * UNIT)
        if rho > 0.0 and factor(np.eye(size) - moved / rho) is None:
            raise Unproven(f"the largest eigenvalue of the ellipsoid of {node.name} is not confirmed")
        value = log10(rho) / 2.0 + self.base
        self.prover.best[node.name] = min(self.prover.best[node.name], value)
        if size == node.size:
            self.prover.confine(node.name, power10(self.base) * np.sqrt(np.maximum(np.diagonal(moved), 0.0)))

    def _advance(self, index: int, node: Node) -> bool:
        """Go through a nonlinear node; False if it cannot be carried."""
        known = self._known(node)
        live = [name for name in self._live(index) if name != node.name]
        kept = {base for name in live for base in self.forms[name]}
        places = np.concatenate([np.full(n, base in kept) for base, n in self.bases.items()] or [np.zeros(0, bool)])
        count, size = int(places.sum()), math.prod(self.shapes[node.name])
        if known is None:
            return False
        if count + size > STATE_SIDE:
            self.prover.loose[f"the ellipsoid behind {node.name} is too large"] = None
            return False
        crossed = self._times(known.form)
        own = self._sure(_symmetric(crossed @ known.form.T), known.form, node.name)
        lower, sigma = self._factor(own, self._multipliers(node, known, own, alone=count == 0), known, node)
        state = np.zeros((count + size, count + size))
        if count or known.middle is not None:
            root = np.sqrt(sigma[known.inner])[:, None]
            pushed = np.linalg.solve(lower, root * np.concatenate([crossed[:, places], own], axis=1))
            # rounding: the solution's error grows with the condition of the factor
            blur = 16.0 * UNIT * len(own) / max(float(np.diagonal(lower).min()) ** 2, 1e-300)
            left, right = pushed[:, :count], pushed[:, count:]
            old = np.diag(self.diagonal[places]) if self.q is None else self.q[np.ix_(places, places)]
            state[:count, :count] = old + left.T @ left
            if known.middle is not None:
                state[count:, count:] = _symmetric(known.middle(known.middle(own + right.T @ right).T))
            if known.middle is not None and count:
                state[count:, :count] = known.middle(crossed[:, places] + right.T @ left)
                state[:count, count:] = state[count:, :count].T
            state[np.diag_indices_from(state)] += blur * np.diagonal(state)
        with np.errstate(divide="ignore", invalid="ignore"):
            fresh = np.where(known.spread > 0.0, known.spread**2 / sigma[known.outer], 0.0)
        inner = np.arange(count, len(state))
        state[inner, inner] += fresh
        self.q = self._sure(state, known.form, node.name)
        self.bases = {base: n for base, n in self.bases.items() if base in kept} | {node.name: size}
        self.forms = {name: self.forms[name] for name in live} | {node.name: {node.name: None}}
        return True

    def _known(self, node: Node) -> _Known | None:
        """Return what a nonlinear node does; None if it has no finite constant."""
        size = math.prod(self.shapes[node.name])
        sizes = [math.prod(self.shapes[name]) for name in node.operands]
        blocks = [self._full(self.forms[name], n) for name, n in zip(node.operands, sizes)]
        if node.kind == "entrywise":
            if size == node.size:
                own = np.sqrt(np.maximum((self._times(blocks[0]) * blocks[0]).sum(1), 0.0))
                self.prover.confine(node.operands[0], power10(self.base) * own)
            low, high = (self._here(node, side) for side in self.prover.slopes(node))
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                return None
            middle, spread = (low + high) / 2.0, (high - low) / 2.0 * (1.0 + 4.0 * UNIT)
            each = np.arange(size)
            pushed = (lambda x: middle[:, None] * x) if middle.any() else None
            return _Known(blocks[0], pushed, spread, each, each, np.abs(middle))
        gains, joint = self.prover.gains(node)
        if not all(math.isfinite(gain) or gain == -INF for gain in gains):
            return None
        once = np.zeros(size, int)
        split = self.prover.split(node)
        if split is not None and self.step.auto:
            linear, spread = split

            def applied(x: Array) -> Array:
                return linear.apply(x.T.reshape(x.shape[1], *linear.inside)).reshape(x.shape[1], size).T

            steep = np.full(size, power10(gains[0]))
            return _Known(blocks[0], applied, spread.reshape(-1), np.zeros(sizes[0], int), once, steep)
        spread = np.full(size, power10(gains[0]))
        if len(gains) > 1:  # the operands side by side, their gains multiplied in
            factors = self._shares(node, gains, joint)
            blocks = [block * power10(f) for block, f in zip(blocks, factors)]
            spread = np.full(size, 1.0 if max(factors) > -INF else 0.0)
        return _Known(np.concatenate(blocks), None, spread, np.zeros(sum(sizes), int), once, np.zeros(size))

    def _multipliers(self, node: Node, known: _Known, own: Array, *, alone: bool) -> Array:
        """Return one multiplier per block: those of the file, or good ones."""
        blocks = int(known.outer.max()) + 1
        if not self.step.auto:
            sigma = self._here(node, self._sigma(node)) * power10(2.0 * self.claimed)
            if (sigma != sigma[0]).any() and blocks == 1:
                raise Refuted(f"{node.name} takes one multiplier")
            sigma = sigma[:blocks]
            if known.middle is None and blocks == 1:  # the largest that is feasible is the best
                sigma = np.minimum(sigma, (1.0 - 1e-9) / max(float(np.linalg.eigvalsh(own)[-1]), 1e-300))
        else:
            # one open block of variance q: spread/(spread + slope)/q is best; several share their correlation
            ratio = np.zeros(blocks)
            np.maximum.at(ratio, known.outer, known.spread / np.maximum(known.spread + known.steep, 1e-300))
            variance = np.zeros(blocks)
            np.maximum.at(variance, known.inner, np.diagonal(own))
            scale = np.where((ratio > 0) & (variance > 0), 1.0 / np.maximum(variance, 1e-300), 0.0)
            root = np.sqrt(scale[known.inner])
            top = float(np.linalg.eigvalsh(root[:, None] * own * root)[-1])
            sigma = np.minimum(ratio, 1.0 if alone else 0.5) * scale / max(top, 1e-300)
            sigma = np.where((ratio > 0) & (variance == 0), 1e12 / max(float(variance.max()), 1e-12), sigma)
        lost = np.zeros(blocks)
        np.maximum.at(lost, known.outer, known.spread)
        if ((sigma == 0.0) & (lost > 0.0)).any():
            raise Refuted(f"{node.name} has a multiplier of zero where its slope is not known")
        return sigma

    def _shares(self, node: Node, gains: list[float], joint: bool) -> list[float]:
        """Return log10 factors of the operands: norm(dw)^2 <= sum (gain_j^2/p_j) norm(dv_j)^2 with sum p_j <= 1."""
        if len(gains) == 1 or joint:
            return gains
        weights = self.step.weights.get(node.name)
        if weights is None:
            reach = [power10(min(times(g, self.prover.best[n]), 300.0)) for g, n in zip(gains, node.operands)]
            weights = tuple(r / sum(reach) if sum(reach) > 0 else 1.0 / len(reach) for r in reach)
        if len(weights) != len(gains) or min(weights) < 0 or sum(weights) > 1.0 + 1e-9:
            raise Refuted(f"the shares of the operands of {node.name} do not add up")
        if any(w == 0.0 and times(g, self.prover.best[n]) > -INF for w, g, n in zip(weights, gains, node.operands)):
            raise Refuted(f"an operand of {node.name} has no share")
        return [gain - log10(w) / 2.0 if w > 0 else -INF for gain, w in zip(gains, weights)]

    def _factor(self, own: Array, sigma: Array, known: _Known, node: Node) -> tuple[Array, Array]:
        """Return the Cholesky factor of I - S Q S, and sigma, which is shrunk a little if it lies at the very edge."""
        root = np.sqrt(sigma)[known.inner]
        reduced = root[:, None] * own * root
        found = factor(np.eye(len(own)) - reduced)
        if found is not None:
            return found, sigma
        top = float(np.linalg.eigvalsh(reduced)[-1]) if np.isfinite(reduced).all() else INF
        shrink = (1.0 - 1e-9 - 8.0 * (len(own) + 4.0) ** 2 * UNIT) / top
        found = factor(np.eye(len(own)) - shrink * reduced) if top <= 1.0 + 1e-5 else None
        if found is None:
            raise Refuted(f"I - S Q S is not positive definite at {node.name}: its multipliers prove nothing")
        return found, shrink * sigma


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2.0


def factor(matrix: Array) -> Array | None:
    """Return the Cholesky factor of a matrix less its rounding allowance; None if that is not positive definite.

    A factorization that runs to completion proves lambda_min > -c, c about n u trace (Rump 2006, theorem 2.3).
    """
    if not np.isfinite(matrix).all():
        return None
    size = len(matrix)
    allowance = 4.0 * (size + 4.0) * UNIT * float(np.abs(np.diagonal(matrix)).sum())
    try:
        found = np.linalg.cholesky(matrix - allowance * np.eye(size))
    except np.linalg.LinAlgError:
        return None
    return found if np.isfinite(found).all() else None


# ------------------------------------------------------------------------------------------------ on tori


@dataclass(frozen=True)
class Stencil:
    """Output o of every channel is the sum over taps t of weight[t] times the inputs at o stride + offsets[t].

    Attributes:
        weight: [taps, outputs, inputs/groups] of channels.
        offsets: [taps, axes].
        stride, size, outputs: steps, and entries of the two grids, per axis.
        groups: of channels.
        wraps: positions outside the grid are taken modulo its size; otherwise they hold zeros.
    """

    weight: Array
    offsets: Array
    stride: Shape
    size: Shape
    outputs: Shape
    groups: int
    wraps: bool = False

    def reach(self, axis: int) -> int:
        """Return how far windows go beyond the grid, on the side where they go further."""
        last = (self.outputs[axis] - 1) * self.stride[axis] + int(self.offsets[:, axis].max())
        return max(0, -int(self.offsets[:, axis].min()), last - (self.size[axis] - 1))

    @property
    def least(self) -> float:
        """Log10 of a lower bound on the parts, other than zero, that its matrices are sums of: sin(2 pi/n) w."""
        return _smallest(self.weight) - log10(float(WAVE_POINTS)) - log10(math.prod(self.stride)) / 2.0

    def covers(self, axis: int, entries: int) -> bool:
        """Say whether no window of an output outside its grid meets the grid of the input, on a torus."""
        outside = np.arange(self.outputs[axis], entries // self.stride[axis]) * self.stride[axis]
        offsets = np.unique(self.offsets[:, axis])
        return not any(((outside + offset) % entries < self.size[axis]).any() for offset in offsets)

    def at(self, points: Array, level: Shape, sizes: Shape) -> Array:
        """Return its matrices [points, outputs, inputs] at frequencies of a torus, on unitary transforms.

        Of the frequencies that the stride folds onto one another, each gives its own part.
        """
        turns = np.zeros((len(points), len(self.offsets)))
        for axis, (step, size) in enumerate(zip(level, sizes)):
            place = self.offsets[:, axis] % (size // step) * step
            turns += (points[:, axis, None] % size) * place % size / size
        flat = np.exp(2j * math.pi * turns) @ self.weight.reshape(len(self.offsets), -1).astype(complex)
        rows, width = self.weight.shape[1:]
        flat = flat.reshape(-1, self.groups, rows // self.groups, width) / math.sqrt(math.prod(self.stride))
        found = np.zeros((len(flat), self.groups, rows // self.groups, self.groups, width), complex)
        each = np.arange(self.groups)
        found[:, each, :, each] = np.moveaxis(flat, 1, 0)
        return found.reshape(len(flat), rows, self.groups * width)


def stencil_of(linear: Map, axes: int) -> Stencil | None:
    """Return a map between fields [channels, *grid] as a stencil, or None if it is not known to be one."""
    if len(linear.inside) != axes + 1 or len(linear.outside) != axes + 1:
        return None
    if isinstance(linear, Chain) and len(linear.parts) == 1:
        linear = linear.parts[0]
    size, outputs, here, once = linear.inside[1:], linear.outside[1:], np.zeros((1, axes), int), (1,) * axes
    if isinstance(linear, Convolution) and not linear.transposed and len(linear.axes) == axes:
        shape = linear.weight.shape
        weight = np.moveaxis(linear.weight.reshape(*shape[:2], -1), 2, 0)
        ends = zip(np.indices(shape[2:]).reshape(axes, -1), linear.axes)
        offsets = np.stack([tap * axis.dilation - axis.left for tap, axis in ends], axis=1)
        stride = tuple(axis.stride for axis in linear.axes)
        found = Stencil(weight, offsets, stride, size, outputs, linear.groups, linear.mode == "circular")
        padded = any(found.reach(axis) for axis in range(axes))
        return found if linear.mode in ("zeros", "circular") or not padded else None
    if isinstance(linear, Identity) and linear.inside == linear.outside:
        return Stencil(np.ones((1, linear.inside[0], 1)), here, once, size, outputs, linear.inside[0])
    if isinstance(linear, Diagonal):
        channels = _channels(linear)
        return (
            None if channels is None else Stencil(channels.reshape(1, -1, 1), here, once, size, outputs, len(channels))
        )
    if isinstance(linear, Repeated) and linear.leading == linear.inside[:1] and max(outputs) > 1:
        return _pooling(linear.inner, linear.leading[0])
    return None


def _pooling(inner: Map, channels: int) -> Stencil | None:
    """Return a map that every channel goes through on its own as a stencil: its entries must be those of one."""
    size, outputs = inner.inside, inner.outside
    if isinstance(inner, Sparse):
        row, column, entry = inner.row, inner.column, inner.entry
    elif isinstance(inner, Dense):
        row, column = np.nonzero(inner.entries)
        entry = inner.entries[row, column]
    else:
        return None
    if not len(row) or len(np.unique(row * math.prod(size) + column)) < len(row):
        return None
    to, read = np.stack(np.unravel_index(row, outputs), axis=1), np.stack(np.unravel_index(column, size), axis=1)
    stride = []
    for axis, count in enumerate(outputs):
        last = [int(read[to[:, axis] == place, axis].max(initial=-1)) for place in range(min(count, 2))]
        stride.append(last[1] - last[0] if count > 1 else last[0] - int(read[:, axis].min()) + 1)
    if min(stride) < 1:
        return None
    offsets, which = np.unique(read - to * np.array(stride), axis=0, return_inverse=True)
    which = which.reshape(-1)
    weight = np.zeros(len(offsets))
    weight[which] = entry
    if len(offsets) > 10_000 or (weight[which] != entry).any():
        return None
    expected = 0
    for offset in offsets:
        places = [np.arange(n) * s + int(o) for n, s, o in zip(outputs, stride, offset)]
        expected += math.prod(int(((p >= 0) & (p < n)).sum()) for p, n in zip(places, size))
    if expected != len(row):
        return None
    shared = np.broadcast_to(weight[:, None, None], (len(offsets), channels, 1))
    return Stencil(shared, offsets, tuple(stride), size, outputs, channels)


@dataclass(frozen=True)
class Field:
    """A value on a grid: entry o lies at o level of the finest torus. A clean one is zero outside its grid there."""

    channels: int
    grid: Shape
    level: Shape
    clean: bool


class Torus:
    """Frequencies of a torus: of every conjugate pair at least one, the last axis going up to half of its entries."""

    def __init__(self, sizes: Shape) -> None:
        self.sizes, self.half = sizes, (*sizes[:-1], sizes[-1] // 2 + 1)
        self.points = np.indices(self.half).reshape(len(sizes), -1).T
        alone = (self.points[:, -1] == 0) | (2 * self.points[:, -1] == sizes[-1])
        self.weights = np.where(alone, 1.0, 2.0)

    def find(self, points: Array) -> tuple[Array, Array]:
        """Return where any frequencies are found, and whether as their conjugate."""
        sizes = np.array(self.sizes)
        points = points % sizes
        flip = points[..., -1] >= self.half[-1]
        points = np.where(flip[..., None], -points % sizes, points)
        return np.ravel_multi_index(tuple(np.moveaxis(points, -1, 0)), self.half), flip


Entry = dict[str, tuple[Map | None, Map]]
"""A value as a sum of maps of fields: for each what every channel goes through first, if anything, and the rest."""


class Waves:
    """Runs the recursion on tori: fields of a convolutional network as one Hermitian matrix per frequency.

    A change of the start is zero outside its grid. A stencil that reads a field beyond its grid needs it to be clean,
    and the torus so large that no window meets the grid from the other side. Activations make a field clean: their
    slopes are those of a mask too, 0 outside of the grid, unless the grid is the whole torus. Multipliers are shared by
    all places of a channel, so the state stays block circulant. What follows the last field is carried by `Tail`.
    """

    def __init__(self, prover: Prover, step: Step) -> None:
        assert step.torus is not None
        self.prover, self.step, self.network, self.sizes = prover, step, prover.network, step.torus
        self.axes, self.done, self.taps, self.widest = len(step.torus), 0.0, 1, 1
        cone, names = prover.cone(step)
        self.order = _linear_first([node for node in self.network.order if node.name in cone])
        sources = [node for node in self.network.order if node.name in names]
        if not sources or (len(sources) > 1 and any(node.kind != "input" for node in sources)):
            raise Unproven(f"a torus up to {step.at} starts from several values: {_listed(names)}")
        self.base = max(prover.best[node.name] for node in sources)
        self.front = sources[0].shape[: -self.axes - 1]
        self.slices = len(self.front) if math.prod(self.front) > 1 else 0
        self.torus = Torus(self.sizes)
        self.fields: dict[str, Field] = {}
        self.readings: dict[str, list[tuple[Stencil, str]]] = {}
        self.leasts: dict[str, float] = {}
        self.reasons: dict[str, None] = {}
        for node in sources:
            shape = node.shape[len(self.front) :]
            fits = len(shape) == self.axes + 1 and node.shape[: len(self.front)] == self.front
            if not fits or any(n > size for n, size in zip(shape[1:], self.sizes)):
                raise Unproven(f"{node.name} does not lie on a torus of {list(self.sizes)} entries")
            self.fields[node.name] = Field(shape[0], shape[1:], (1,) * self.axes, clean=True)
        self.bases = [node.name for node in sources]
        width = self._width(self.bases)
        self._spend(0.0, width)
        self.q = np.broadcast_to(np.eye(width, dtype=complex), (len(self.torus.points), width, width))

    def run(self) -> None:
        """Carry the state over all fields, and record the bound on the end."""
        if not math.isfinite(self.base):
            raise Unproven(f"the start of the torus up to {self.step.at} has no bound")
        for node in self.order:
            masked = node.kind == "linear" and node.name in self.step.sigma
            if node.kind == "linear":
                self._linear(node)
            if masked and node.name in self.fields:
                self._bend(node, node.name, 0.0, 1.0)
            elif masked or (node.kind not in LINEAR and not self._activation(node)):
                break
        best, end = self.prover.best, self.step.at
        if end in self.fields:
            best[end] = min(best[end], self._peak())
            if self._entries(end) > SMALL_FIELD:
                return
        head = self._head()
        if head is not None:
            self._enter(*head)
        elif end not in self.fields:
            why = _listed(self.reasons) or f"it is no chain of convolutions up to {end}"
            raise Unproven(f"a torus is not followed to its end: {why}")

    def _spend(self, work: float, width: int) -> None:
        """Count multiplications of real numbers, and the memory of a state, before they are spent."""
        self.done += 4.0 * work
        if self.done > WAVE_WORK or 16.0 * len(self.torus.points) * width**2 > WAVE_BYTES:
            raise Unproven(f"the ellipsoid on a torus up to {self.step.at} is too large")

    def _width(self, names: Iterable[str]) -> int:
        return sum(self.fields[name].channels for name in names)

    def _linear(self, node: Node) -> None:
        """Note a linear value as a field, if it is one on this torus."""
        found, results = [], []
        for linear, name in zip(node.maps, node.operands):
            field, inner = self.fields.get(name), _sliced(linear, len(self.front))
            stencil = None if inner is None or field is None else stencil_of(inner, self.axes)
            if field is None:
                return
            if stencil is None or stencil.size != field.grid or max(stencil.weight.shape) > STATE_SIDE:
                self.reasons[f"{node.name} is not known to do the same everywhere"] = None
                return
            entries = [size // step for size, step in zip(self.sizes, field.level)]
            if any(n % s or n // s < m for n, s, m in zip(entries, stencil.stride, stencil.outputs)):
                self.reasons[f"the torus of {list(self.sizes)} entries does not fit the outputs of {node.name}"] = None
                return
            for axis, (n, size) in enumerate(zip(entries, field.grid)):
                reach = stencil.reach(axis)
                if reach and (n != size if stencil.wraps else n < size + reach):
                    self.reasons[f"the torus of {list(self.sizes)} entries is too small for {node.name}"] = None
                    return
                if reach and not stencil.wraps and not field.clean:
                    self.reasons[f"{node.name} reads {name} beyond its grid, where no mask is"] = None
                    return
            self.leasts[node.name] = min(self.leasts.get(node.name, 0.0), stencil.least + self.leasts.get(name, 0.0))
            if self.leasts[node.name] < RANGE:
                self.reasons[f"the map to {node.name} leaves the range of float64"] = None
                return
            level = tuple(step * s for step, s in zip(field.level, stencil.stride))
            clean = field.clean and all(stencil.covers(axis, n) for axis, n in enumerate(entries))
            results.append(Field(len(stencil.weight[0]), stencil.outputs, level, clean))
            found.append((stencil, name))
        if len({(result.channels, result.grid, result.level) for result in results}) == 1:
            first = results[0]
            clean = all(result.clean for result in results)
            self.fields[node.name] = Field(first.channels, first.grid, first.level, clean)
            self.readings[node.name] = found
            self.taps = max([self.taps, *(len(stencil.offsets) for stencil, _ in found)])
            self.widest = max([self.widest, first.channels, *(self.fields[name].channels for name in node.operands)])

    def _activation(self, node: Node) -> bool:
        """Carry the state over an activation; False if it is none, or of no field."""
        if node.kind != "entrywise" or node.operands[0] not in self.fields:
            return False
        low, high = (float(side) for side in (self.prover.slopes(node)[0].min(), self.prover.slopes(node)[1].max()))
        field = self.fields[node.operands[0]]
        if any(n * step != size for n, step, size in zip(field.grid, field.level, self.sizes)):
            low, high = min(low, 0.0), max(high, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):
            return False
        self._bend(node, node.operands[0], low, high)
        return True

    # ---- fields as maps of the state's

    def _cone(self, name: str, found: set[str], seen: set[str]) -> set[str]:
        """Add the bases that a field is a linear map of."""
        if name in self.bases:
            found.add(name)
        elif name not in seen:
            seen.add(name)
            for _, operand in self.readings[name]:
                self._cone(operand, found, seen)
        return found

    def _load(self, names: Sequence[str]) -> float:
        """Return the entries, at one frequency, of all maps between the state and some fields."""
        seen: set[str] = set()
        for name in names:
            self._cone(name, set(), seen)
        return float(self._width(seen)) * self._width(self.bases)

    def _spanned(self, name: str, given: Sequence[str], known: dict[str, bool]) -> bool:
        """Say whether a field is a linear map of the given ones."""
        if name not in known:
            read = [] if name in self.bases else self.readings.get(name, [])
            known[name] = name in given or (bool(read) and all(self._spanned(x, given, known) for _, x in read))
        return known[name]

    def _paths(self, name: str, points: Array, found: dict[str, dict[str, Array]]) -> dict[str, Array]:
        if name in self.bases:
            return {name: np.eye(self.fields[name].channels, dtype=complex)[None]}
        if name not in found:
            paths: dict[str, Array] = {}
            for stencil, operand in self.readings[name]:
                matrix = stencil.at(points, self.fields[operand].level, self.sizes)
                for base, earlier in self._paths(operand, points, found).items():
                    moved = matrix @ earlier
                    paths[base] = paths[base] + moved if base in paths else moved
                    if not max(float(np.abs(moved).max()), float(np.abs(paths[base]).max())) <= STEEPEST:
                        raise Unproven(f"the map to {name} leaves the range of float64")
            found[name] = paths
        return found[name]

    def _rows(self, names: Sequence[str], points: Array) -> Array:
        """Return fields as maps of the state at frequencies of the finest torus, [points, channels, state]."""
        found: dict[str, dict[str, Array]] = {}
        blocks = []
        for name in names:
            paths = self._paths(name, points, found)
            shape = len(points), self.fields[name].channels
            parts = [paths.get(base, np.zeros((1, 1, 1))) for base in self.bases]
            wide = [np.broadcast_to(p, (*shape, self.fields[base].channels)) for p, base in zip(parts, self.bases)]
            blocks.append(np.concatenate(wide, axis=2))
        return np.concatenate(blocks, axis=1)

    def _image(self, names: Sequence[str]) -> tuple[Torus, Array]:
        """Return the ellipsoids of fields of one level, and the torus they lie on."""
        if list(names) == self.bases:
            return self.torus, self.q
        there = Torus(tuple(size // step for size, step in zip(self.sizes, self.fields[names[0]].level)))
        ratios = [fine // coarse for fine, coarse in zip(self.torus.sizes, there.sizes)]
        aliases = np.indices(ratios).reshape(self.axes, -1).T * np.array(there.sizes)
        rows, width = self._width(names), self._width(self.bases)
        load = self._load(names)
        each = rows * width * (rows + width + self.taps) + load * (self.widest + self.taps)
        self._spend(float(len(there.points)) * len(aliases) * each, rows)
        found = np.empty((len(there.points), rows, rows), complex)
        for part in _pieces(len(found), len(aliases) * ((rows + width + self.widest) ** 2 + self.taps + load)):
            points = there.points[part, None] + aliases
            index, flip = self.torus.find(points)
            q = self.q[index]
            q = np.where(flip[..., None, None], np.conj(q), q)
            form = self._rows(names, points.reshape(-1, self.axes)).reshape(*points.shape[:2], rows, width)
            found[part] = (form @ q @ _turned(form)).sum(1)
        # rounding: of sums over the state, taps and aliases
        return there, self._blurred(found, 16.0 * UNIT * rows * (width + self.taps + len(aliases)), names[0])

    def _blurred(self, q: Array, blur: float, where: str) -> Array:
        """Make matrices Hermitian and add an allowance for rounding, relative to the largest of each channel."""
        q = (q + _turned(q)) / 2.0
        sizes = np.diagonal(q, axis1=1, axis2=2).real.max(0)
        if not np.isfinite(q).all() or sizes.max() > WIDEST:
            raise Unproven(f"the ellipsoid of {where} leaves the range of float64")
        index = np.arange(q.shape[1])
        q[:, index, index] += blur * sizes + LOST
        return q

    # ---- activations

    def _bend(self, node: Node, operand: str, low: float, high: float) -> None:
        """Carry the state over an activation with these slopes; a mask has 0 and 1."""
        field = self.fields[operand]
        waiting = [other for other in self.order if other.name not in self.fields and other.name != node.name]
        needed = {name for other in waiting for name in other.operands if name in self.fields}
        needed |= {self.step.at} & set(self.fields)
        needed = self._gathered(needed - {node.name}, field.level, node)
        wanted = [name for name in self.fields if name in needed or name == operand]
        chosen: list[str] = []
        for name in wanted:
            chosen += [] if self._spanned(name, chosen, {}) else [name]
        if field.level != self.fields[self.bases[0]].level or self._width(chosen) < self._width(self.bases):
            self.torus, self.q = self._image(chosen)
            self.bases = chosen
        kept: set[str] = set()
        for name in needed:
            self._cone(name, kept, set())
        keeping = [base for base in self.bases if base in kept]
        places = np.concatenate([np.full(self.fields[base].channels, base in kept) for base in self.bases])
        # where Q vanishes multipliers may be as large as one likes; any other choice is sound, too
        sigma = np.minimum(self._sigma(node, field.channels, low, high), LOOSEST)
        found = self._advanced(node, operand, places, sigma, low, high)
        if found is None:
            found = self._advanced(node, operand, places, self._shrunk(node, operand, sigma), low, high)
        if found is None:
            raise Refuted(f"I - S Q S is not positive definite at {node.name}: its multipliers prove nothing")
        self.q, self.bases = found, [*keeping, node.name]
        self.leasts |= dict.fromkeys(self.bases, 0.0)
        self.fields[node.name] = Field(field.channels, field.grid, field.level, clean=True)
        self.readings.pop(node.name, None)

    def _gathered(self, names: set[str], level: Shape, node: Node) -> set[str]:
        """Return fields of one level that others are linear maps of."""
        found, stack, seen = set(), list(names), set(names)
        while stack:
            name = stack.pop()
            if self.fields[name].level == level:
                found.add(name)
            elif name in self.readings and name not in self.bases:
                fresh = {operand for _, operand in self.readings[name]} - seen
                seen |= fresh
                stack.extend(fresh)
            else:
                reasons = _listed([*self.reasons, f"fields on different tori are needed behind {node.name}"])
                raise Unproven(f"a torus is not followed to its end: {reasons}")
        return found

    def _sigma(self, node: Node, channels: int, low: float, high: float) -> Array:
        """Return the multipliers of a node, one per channel."""
        sigma = self.step.sigma[node.name].reshape(-1)
        if sigma.size != channels:
            raise Refuted(f"{node.name} has {sigma.size} multipliers for {channels} channels")
        if high > low and (sigma == 0.0).any():
            raise Refuted(f"{node.name} has a multiplier of zero where its slope is not known")
        return sigma

    def _reduced(self, part: slice, operand: str, root: Array) -> tuple[Array, Array, Array]:
        """Return F Q, F Q F^H and S F Q F^H S at some frequencies."""
        q = self.q[part]
        if self.bases == [operand]:
            crossed, own = q, q
        else:
            form = self._rows([operand], self.torus.points[part])
            crossed = form @ q
            own = crossed @ _turned(form)
            own = (own + _turned(own)) / 2.0
        return crossed, own, root[:, None] * own * root

    def _advanced(self, node: Node, operand: str, places: Array, sigma: Array, low: float, high: float) -> Array | None:
        """Return the state over the kept values and the new one; None unless all factorizations go through."""
        rows, width, count = len(sigma), len(places), int(places.sum())
        middle, spread = (low + high) / 2.0, (high - low) / 2.0 * (1.0 + 4.0 * UNIT)
        load = self._load([operand])
        forms = rows * width * (rows + width + self.taps) + load * (self.widest + self.taps)
        self._spend(len(self.q) * (forms + 2.0 * rows**2 * (rows + count)), rows + count)
        root, each = np.sqrt(sigma), np.arange(rows)
        state, least = np.zeros((len(self.q), count + rows, count + rows), complex), 1.0
        for part in _pieces(len(self.q), (width + rows + self.widest) ** 2 + self.taps + load):
            crossed, own, reduced = self._reduced(part, operand, root)
            rest = -reduced
            rest[:, each, each] += 1.0
            trace = np.abs(np.diagonal(rest, axis1=1, axis2=2)).sum(1)
            rest[:, each, each] -= 16.0 * (rows + 4.0) * UNIT * trace[:, None]
            try:
                lower = np.linalg.cholesky(rest)
            except np.linalg.LinAlgError:
                return None
            least = min(least, float(np.diagonal(lower, axis1=1, axis2=2).real.min()))
            if not np.isfinite(lower).all() or least <= 0.0:
                return None
            pushed = np.linalg.solve(lower, root[:, None] * np.concatenate([crossed[:, :, places], own], axis=2))
            left, right = pushed[:, :, :count], pushed[:, :, count:]
            state[part, :count, :count] = self.q[part][:, places][:, :, places] + _turned(left) @ left
            state[part, count:, count:] = middle**2 * (own + _turned(right) @ right)
            state[part, count:, :count] = middle * (crossed[:, :, places] + _turned(right) @ left)
            state[part, :count, count:] = _turned(state[part, count:, :count])
        if spread > 0.0:
            state[:, count + each, count + each] += spread**2 / sigma
        blur = 16.0 * UNIT * (rows + count) * (rows + width + self.taps) / least**2
        return self._blurred(state, blur, node.name)

    def _shrunk(self, node: Node, operand: str, sigma: Array) -> Array:
        """Return multipliers that lie at the very edge, shrunk a little."""
        top, root = 0.0, np.sqrt(sigma)
        each = (len(sigma) + self.q.shape[1] + self.widest) ** 2 + self.taps + self._load([operand])
        for part in _pieces(len(self.q), each):
            reduced = self._reduced(part, operand, root)[2]
            top = max(top, float(np.linalg.eigvalsh(reduced)[:, -1].max())) if np.isfinite(reduced).all() else INF
        if not top <= 1.0 + 1e-5:
            raise Refuted(f"I - S Q S is not positive definite at {node.name}: its multipliers prove nothing")
        return sigma * ((1.0 - 1e-9 - 32.0 * (len(sigma) + 4.0) ** 2 * UNIT) / max(top, 1.0))

    # ---- the end

    def _peak(self) -> float:
        """Return log10 of the bound on a field at the end: the largest eigenvalue over all frequencies."""
        _, q = self._image([self.step.at])
        size = q.shape[1]
        self._spend(10.0 * len(q) * size**3, size)
        top = max(float(np.linalg.eigvalsh(q[part])[:, -1].max()) for part in _pieces(len(q), 4.0 * size**2))
        return log10(max(top, 0.0) * (1.0 + 1e-10 + 32.0 * (size + 4.0) ** 2 * UNIT)) / 2.0 + self.base

    def _head(self) -> tuple[str, Entry] | None:
        """Return a value that all that is left goes through, the last there is, as maps of fields."""
        heads = [node.name for node in self.order if node.name not in self.fields and self._cuts(node.name)]
        heads = [self.step.at] if self.step.at in self.fields else heads
        for head in reversed(heads):
            found = self._traced(head)
            if found:
                return head, found
        if heads:
            self.reasons[f"the map from the last field to {heads[-1]} is too large"] = None
        return None

    def _traced(self, head: str) -> Entry:
        """Return a value as a map of the state's fields, or of a later field; nothing if it is none, or too large."""
        name, found = head, Entry()
        maps: list[Map] = []
        while True:
            written = self._written(name, maps[::-1]) if self._carried(name) else None
            found |= {} if written is None else {name: written}
            node = self.network.nodes[name]
            linear = _sliced(node.maps[0], self.slices) if node.kind == "linear" else None
            if name in self.bases or linear is None or len(node.maps) != 1:
                break
            maps.append(linear)
            name = node.operands[0]
        if name in found and name in self.bases:
            return {name: found[name]}
        spread = self._spread(head, {})
        fits = [linear.small and linear.sizes[1] == self._entries(base) for base, linear in (spread or {}).items()]
        if spread and all(fits) and min(linear.least for linear in spread.values()) >= RANGE:
            return {base: (None, linear) for base, linear in spread.items()}
        return dict(list(found.items())[-1:])

    def _entries(self, name: str) -> int:
        return self.fields[name].channels * math.prod(self.fields[name].grid)

    def _carried(self, name: str) -> bool:
        return name in self.fields and self._spanned(name, self.bases, {})

    def _spread(self, name: str, known: dict[str, dict[str, Map] | None]) -> dict[str, Map] | None:
        """Return a value as maps of the state's fields; None if it is not linear in them."""
        if name in known:
            return known[name]
        node = self.network.nodes[name]
        if name in self.bases:
            shape = self.fields[name].channels, *self.fields[name].grid
            shape = shape if self.slices else node.shape
            known[name] = {name: Identity(shape, shape)}
            return known[name]
        known[name] = None
        found: dict[str, list[Map]] = {}
        for linear, operand in zip(node.maps, node.operands) if node.kind == "linear" else ():
            inner, earlier = _sliced(linear, self.slices), self._spread(operand, known)
            if inner is None or earlier is None:
                return None
            for base, before in earlier.items():
                found.setdefault(base, []).append(Chain([before, inner]))
        known[name] = {base: _added(terms) for base, terms in found.items()} or None
        return known[name]

    def _cuts(self, name: str) -> bool:
        """Say whether the end depends on fields through this value alone."""
        seen, stack = {name}, [self.step.at]
        while stack:
            other = stack.pop()
            if other in self.fields or (other not in seen and self.network.nodes[other].kind == "input"):
                return False
            if other not in seen:
                seen.add(other)
                stack.extend(self.network.nodes[other].operands)
        return True

    def _written(self, name: str, parts: list[Map]) -> tuple[Map | None, Map] | None:
        """Return a map from a field as what every channel goes through first, and the rest; None if too large."""
        field = self.fields[name]
        count, size = field.channels, math.prod(field.grid)
        inner = _sliced(parts[0], 1 if self.slices else len(self.front) + 1) if parts else None
        whole: Map = Chain(parts) if parts else Identity((count, *field.grid), (count, *field.grid))
        if inner is not None and inner.inside == field.grid and inner.small:
            rest = Chain([Identity(parts[0].outside, parts[0].outside), *parts[1:]])
            if rest.small and rest.sizes[1] == count * inner.sizes[0] and inner.least + rest.least >= RANGE:
                return inner, rest
        fits = whole.small and whole.sizes[1] == count * size and whole.least >= RANGE
        return (None, whole) if fits else None

    def _enter(self, head: str, entry: Entry) -> None:
        """Leave the torus: sum the frequencies up to the ellipsoid of a value, and carry that to the end."""
        names = [base for base in self.bases if base in entry] or list(entry)
        torus, q = self._image(names)
        channels, size = self._width(names), entry[names[0]][1].sizes[0]
        if size > STATE_SIDE or 16.0 * size * channels * len(q) > WAVE_BYTES:
            raise Unproven(f"the ellipsoid of {head} is too large")
        self._spend(float(len(q)) * size * channels * (size + channels), channels)
        waves = np.concatenate([self._waves(self.fields[name], *entry[name], torus) for name in names], axis=1)
        total = np.zeros((size, size))
        for part in _pieces(len(q), float(size) * channels + channels**2):
            rows = np.conj(np.moveaxis(waves[:, :, part], 2, 0))
            left = np.moveaxis((rows @ q[part]) * torus.weights[part, None, None], 0, 1).reshape(size, -1)
            total += (left @ np.conj(np.moveaxis(rows, 0, 1).reshape(size, -1)).T).real
        total = _symmetric(total)
        total[np.diag_indices(size)] *= 1.0 + 16.0 * UNIT * size * (channels + math.log2(len(q) + 1.0) + 16.0)
        total[np.diag_indices(size)] += LOST
        if not (float(np.abs(waves).max()) <= STEEPEST and float(np.abs(total).max()) <= WIDEST):
            raise Unproven(f"the ellipsoid of {head} leaves the range of float64")
        if names[0] not in self.bases:
            self.prover.loose[f"the end of the torus is taken from {names[0]}"] = None
        Tail(self, head, total).run()

    def _waves(self, field: Field, inner: Map | None, rest: Map, torus: Torus) -> Array:
        """Return the transform of a map from a field, zero outside of its grid: [outputs, channels, frequencies]."""
        matrix, axes = rest.matrix(), tuple(range(-self.axes, 0))
        transform = functools.partial(np.fft.rfftn, s=torus.sizes, axes=axes, norm="ortho")
        if inner is None:
            return transform(matrix.reshape(-1, field.channels, *field.grid)).reshape(len(matrix), field.channels, -1)
        seen = transform(inner.matrix().reshape(-1, *field.grid))
        return matrix.reshape(len(matrix), field.channels, -1) @ seen.reshape(len(seen), -1)


class Tail(Ellipsoid):
    """Carries the ellipsoid of a value behind the fields to the end of a step."""

    def __init__(self, waves: Waves, head: str, q: Array) -> None:
        super().__init__(waves.prover, Step(waves.step.at, {head: 0.0}, waves.step.sigma, waves.step.weights))
        if [node.name for node in self.sources] != [head]:
            raise Unproven(f"the end of a torus depends on more than {head}")
        self.head, self.start, self.above = head, q, waves.base
        self.slices = waves.slices

    def run(self) -> None:
        """Bound the end."""
        for _ in range(self.slices):
            if not self._slice_once():
                raise Unproven(f"what follows {self.head} does not do the same to every sample")
        size = {name: math.prod(shape) for name, shape in self.shapes.items()}
        if size[self.head] != len(self.start) or max(size.values()) > STATE_SIDE:
            raise Unproven(f"the ellipsoid from {self.head} to {self.step.at} is too large")
        for node in self.order:
            if node.kind == "entrywise" and self.step.sigma[node.name].size != size[node.name]:
                raise Unproven(f"{node.name} has multipliers of channels, but is reached as no field")
        self.claimed, self.base, self.q = 0.0, self.above, self.start
        self.bases, self.forms = {self.head: size[self.head]}, {self.head: {self.head: None}}
        if self.step.at == self.head:
            self._record(self.network.nodes[self.head])
        else:
            self._walk()


def _linear_first(nodes: list[Node]) -> list[Node]:
    """Return nodes in an order that takes linear ones as soon as their operands are there."""
    names = {node.name for node in nodes}
    waiting = {node.name: names.intersection(node.operands) for node in nodes}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in waiting[node.name]:
            readers.setdefault(name, []).append(node)
    found: dict[str, Node] = {}
    queue = [node for node in nodes if node.kind in LINEAR and not waiting[node.name]]
    for node in nodes:  # in an order in which operands come first
        while queue or node.name not in found:
            taken = queue.pop(0) if queue else node
            found[taken.name] = taken
            for reader in readers.get(taken.name, ()):
                waiting[reader.name].discard(taken.name)
                if reader.kind in LINEAR and not waiting[reader.name]:
                    queue.append(reader)
    return list(found.values())


def _sliced(linear: Map, times: int) -> Map | None:
    """Return what a map does to each slice of its first dimensions, if it does the same to each."""
    inner: Map | None = linear
    for _ in range(times):
        same = inner is not None and inner.inside[:1] == inner.outside[:1] != ()
        inner = inner.slice() if inner is not None and same else None
    return inner


def _turned(matrices: Array) -> Array:
    return np.conj(np.swapaxes(matrices, -1, -2))


def _pieces(count: int, entries: float) -> list[slice]:
    """Cut frequencies into pieces of bounded memory."""
    size = max(1, int(WAVE_PIECE / (16.0 * max(entries, 1.0))))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


# ------------------------------------------------------------------------------------------------ claims

VERIFIED, UNVERIFIED, REJECTED = "VERIFIED", "NOT RE-VERIFIED", "REJECTED"


@dataclass(frozen=True)
class Verdict:
    """What became of one claim."""

    what: str
    status: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.status}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Claim:
    """One side of a bracket; `given` names what the file brings no proof for."""

    side: str
    log10: float
    ball: Ball | None
    words: str
    steps: tuple[Step, ...]
    witness: tuple[Array, Array] | None
    given: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The claim in words."""
        sign = "<=" if self.side == "upper" else ">="
        size = f"{power10(self.log10):.6g}" if -4 < self.log10 < 6 else f"10^{self.log10:.4f}"
        return f"constant {sign} {size}{self.words}"


def parse_claim(data: Any, network: Network, reader: Reader) -> Claim:
    """Read one claim and check that everything in it fits the network."""
    require(isinstance(data, dict) and data.get("side") in ("upper", "lower"), "a claim of no side")
    scope, ball = data.get("scope"), None
    require(scope in ("global", "ball"), f"a claim of scope {scope!r}")
    if scope == "ball":
        centre, radius = reader.array(data.get("centre")).reshape(-1), reader.number(data.get("radius"))
        require(centre.size == network.input_size and radius >= 0, "a ball that does not fit the input")
        ball = Ball(centre, radius)
    words = f", {scope}" + (f" of radius {ball.radius:g}" if ball else "")
    for key in ("mode", "method"):
        words += f", {str(data[key])[:80]}" if data.get(key) else ""
    witness = None
    if data["side"] == "lower":
        pair = data.get("witness")
        require(isinstance(pair, list) and len(pair) == 2, "a lower side without its pair")
        witness = (reader.array(pair[0]).reshape(-1), reader.array(pair[1]).reshape(-1))
        require(all(point.size == network.input_size for point in witness), "a witness does not fit the input")
    listed = data.get("steps", [])
    require(isinstance(listed, list) and len(listed) <= 10_000, "steps are no list")
    steps = tuple(parse_step(item, network, reader) for item in listed)
    given = data.get("given", [])
    require(isinstance(given, list) and all(isinstance(word, str) for word in given), "what is given is no list")
    return Claim(data["side"], reader.number(data.get("log10")), ball, words, steps, witness, tuple(given))


def parse_step(data: Any, network: Network, reader: Reader) -> Step:
    """Read what an ellipsoid needs."""
    require(isinstance(data, dict), "a step of unknown form")
    parts = {key: data.get(key, {}) for key in ("start", "sigma", "weights")}
    require(all(isinstance(part, dict) for part in parts.values()), "a step of unknown form")
    for part in parts.values():
        require(all(name in network.nodes for name in part), "a step speaks of unknown nodes")
    start = {name: reader.number(value) for name, value in parts["start"].items()}
    sigma = {name: reader.array(value) for name, value in parts["sigma"].items()}
    torus = None if data.get("torus") is None else reader.shape(data["torus"], WAVE_POINTS)
    require(torus is None or len(torus) >= 1, "a torus without axes")
    idle = ("input", "constant", "linear") if torus is None else ("input", "constant")
    for name, value in sigma.items():
        require(network.nodes[name].kind not in idle, f"{name} takes no multipliers")
        shape = network.nodes[name].shape
        fits = bool(value.size) and network.nodes[name].size % value.size == 0
        require(fits or _broadcasts(value.shape, shape), f"the multipliers of {name} do not fit")
        require(bool((value >= 0.0).all()), f"a multiplier of {name} is negative")
    weights = {}
    for name, value in parts["weights"].items():
        require(isinstance(value, list), f"the weights of {name} are no list")
        weights[name] = tuple(reader.number(item) for item in value)
    return Step(network.node(data.get("at")).name, start, sigma, weights, torus=torus)


def check_upper(claim: Claim, network: Network, norms: Norms) -> Verdict:
    """Prove an upper side anew, by ever more work."""
    allowed = claim.log10 + math.log10(1.0 + UPPER_TOLERANCE)
    plans: list[dict[str, Any]] = [{"fold": False}, {"fold": True, "steps": claim.steps}]
    plans.append({"fold": True, "loop": True, "steps": claim.steps})
    try:
        prover = Prover(network, norms)  # what holds for all inputs holds in a ball
        own = prover.tori(claim.steps)
        if own > allowed:
            own = _least(prover, plans if claim.ball is None or claim.steps else plans[:1], allowed)
        if claim.ball is not None and (own > allowed or prover.jumps()):
            prover = BallProver(network, norms, claim.ball)
            more = {"fold": True, "loop": True, "steps": (*claim.steps, Step(network.output.name, {}, {}, {}, True))}
            # narrower boxes narrow the slopes of the next round
            own = min(own, _least(prover, [plans[0], plans[1], plans[2], plans[2], more, more], allowed))
    except Refuted as error:
        return Verdict(claim.what, REJECTED, str(error))
    except Unproven as error:
        return Verdict(claim.what, UNVERIFIED, str(error))
    here = f"{power10(own):.6g} proven here" if -4 < own < 6 else f"10^{own:.4f} proven here"
    rests = prover.rests | prover.jumps()
    if rests:
        return Verdict(claim.what, UNVERIFIED, f"rests on the constant of {_listed(rests)}, taken as given")
    if own <= allowed:
        return Verdict(claim.what, VERIFIED, here)
    if claim.given:
        return Verdict(claim.what, UNVERIFIED, f"{here}; the rest is due to {_listed(claim.given)}")
    if claim.ball is not None:
        return Verdict(claim.what, UNVERIFIED, f"{here}: enclosures over the ball may be wider than those claimed")
    if prover.loose or norms.loose:
        return Verdict(claim.what, UNVERIFIED, f"{here}; {_listed([*prover.loose, *norms.loose])}")
    return Verdict(claim.what, REJECTED, f"only {here}")


def _least(prover: Prover, plans: Iterable[dict[str, Any]], enough: float) -> float:
    """Return the bound on the output after the first sweep that suffices, or after the last."""
    own = INF
    for plan in plans:
        own = prover.sweep(**plan)
        if own <= enough:
            break
    return own


def check_lower(claim: Claim, network: Network) -> tuple[Verdict, float]:
    """Evaluate the pair of a lower side; return the verdict and log10 of the slope it attains for certain."""
    assert claim.witness is not None
    u, v = claim.witness
    if claim.ball is not None:
        far = max(length(point - claim.ball.centre) for point in (u, v))
        if far > claim.ball.radius * (1.0 + 1e-9):
            return Verdict(claim.what, REJECTED, f"the pair leaves the ball: {far:.6g} from its centre"), -INF
    distance = length(u - v)
    if distance == 0.0:
        return Verdict(claim.what, REJECTED, "the pair is one point"), -INF
    try:
        values = network.values(u)
        first = values[network.output.name].reshape(-1)
        second, nudged = (network.values(x)[network.output.name].reshape(-1) for x in (v, u * (1.0 + 2.0**-51)))
        exact = [network.values(x.astype(np.longdouble))[network.output.name] for x in (u, v) if network.work <= FINER]
    except Unproven as error:
        return Verdict(claim.what, UNVERIFIED, str(error)), -INF
    change = length(first - second)
    # what rounding can fake: seen in longer arithmetic, and when the input moves in its last bits
    largest = max(float(np.max(np.abs(x), where=np.abs(x) < 1e30, initial=0.0)) for x in values.values())
    noise = 2.0 * length(nudged - first) + 2.0**-50 * largest
    noise += 2.0**-46 * (length(first) + length(second))
    for fine, coarse in zip(exact, (first, second)):
        noise = max(noise, 4.0 * length(np.asarray(fine.reshape(-1) - coarse, np.float64)))
    slope = log10(change / distance) if math.isfinite(change) else -INF
    certain = log10(max(change - noise, 0.0) / distance) if math.isfinite(change) else -INF
    shown = f"the pair attains {power10(slope):.9g}" if slope < 300 else f"the pair attains 10^{slope:.6f}"
    if certain < claim.log10 + math.log10(1.0 - LOWER_TOLERANCE):
        if slope >= claim.log10 + math.log10(1.0 - LOWER_TOLERANCE):
            return Verdict(claim.what, UNVERIFIED, f"{shown}, which rounding could fake"), certain
        return Verdict(claim.what, REJECTED, shown), certain
    return Verdict(claim.what, VERIFIED, shown), certain


def check_probe(data: Any, network: Network, reader: Reader) -> Verdict | None:
    """Compare the network's value at one point with the one the file gives; None if it gives none."""
    if data is None:
        return None
    what = "the network's value at a sample"
    require(isinstance(data, dict), "a probe of unknown form")
    point, value = reader.array(data.get("input")).reshape(-1), reader.array(data.get("output")).reshape(-1)
    require(point.size == network.input_size and value.size == network.output.size, "a probe does not fit the network")
    try:
        own = network.values(point)[network.output.name].reshape(-1)
    except Unproven as error:
        return Verdict(what, UNVERIFIED, str(error))
    apart = length(own - value)
    size = length(value) + 1e-30
    if not apart <= PROBE_TOLERANCE * size:
        return Verdict(what, REJECTED, f"it is off by {apart / size:.3g}: these are not the claimed weights")
    return Verdict(what, VERIFIED)


def check(path: str) -> list[Verdict]:
    """Check every claim of a file."""
    header, arrays = read(path)
    reader = Reader(arrays)
    network = Network(header.get("network"), reader)
    listed = reader.listed(header.get("claims"), "claims")
    require(0 < len(listed) <= 100_000, "no claims")
    claims = [parse_claim(item, network, reader) for item in listed]
    probe, norms = check_probe(header.get("probe"), network, reader), Norms()
    lowers = [(claim, check_lower(claim, network)) for claim in claims if claim.side == "lower"]
    attained = {id(claim): value for claim, (_, value) in lowers}
    verdicts = [probe] if probe is not None else []
    for claim in claims:
        if claim.side == "lower":
            verdicts += [verdict for other, (verdict, _) in lowers if other is claim]
            continue
        inside = [attained[id(other)] for other, _ in lowers if claim.ball is None or _same(claim.ball, other.ball)]
        if max(inside, default=-INF) > claim.log10 + math.log10(1.0 + UPPER_TOLERANCE):
            verdicts.append(Verdict(claim.what, REJECTED, f"a pair attains 10^{max(inside):.6f}"))
        else:
            verdicts.append(check_upper(claim, network, norms))
    return verdicts


def _same(one: Ball, other: Ball | None) -> bool:
    return other is not None and other.radius <= one.radius and bool((one.centre == other.centre).all())


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    return "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def shown(text: str) -> str:
    """Return a line that no terminal acts on."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:2000])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check files and print one line per claim; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Check what Normscope claims, without Normscope.",
        epilog="Exit code: 0 all verified, 1 something rejected, 2 a file cannot be used, 3 something not re-verified.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a proof that bracket.save(path) wrote")
    seen: set[str] = set()
    bad = False
    for path in parser.parse_args(arguments).files:
        try:
            verdicts = check(path)
        except BadFile as error:
            print(shown(f"{path}: {error}"), file=sys.stderr)
            bad = True
            continue
        except Exception as error:  # a file that nobody foresaw must not pass for one that was checked
            print(shown(f"{path}: cannot be checked: {type(error).__name__}: {error}"), file=sys.stderr)
            bad = True
            continue
        for verdict in verdicts:
            print(shown(f"{path}: {verdict}"))
            seen.add(verdict.status)
    if bad:
        return 2
    return 1 if REJECTED in seen else 3 if UNVERIFIED in seen else 0


if __name__ == "__main__":
    sys.exit(main())
