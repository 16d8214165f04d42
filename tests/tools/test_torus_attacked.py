"""False claims on tori: files that were tampered with, and checkers that make one mistake."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.bounds.segments import Segments
from normscope.bounds.torus.torus import torus_certificate
from normscope.bounds.work import Work
from normscope.graph.ir import Ref, Unit

from ..bounds.torus_cases import Net, aten, bounds, case
from .proofs import File, bracket_of, checker, drawn, seeded
from .tori import certified, claimed, forged, mutated, reached, secants, status


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(80, 6), nn.GELU()),
        nn.Linear(6, 3),
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> File:
    """The file of a bracket on a torus that is verified."""
    path = tmp_path_factory.mktemp("torus") / "proof.npz"
    work = Work(seeded(network), drawn(1, 2, 8, 8, seed=3))
    found = torus_certificate(work.segments, bounds(work.segments), steps=12, widest=16)
    assert found is not None
    bracket_of(work, found.log10 + 1e-10, found.runs, method="tight").save(path)
    assert checker.main([str(path)]) == 0
    assert reached(path)[0] <= found.log10 + 1e-9
    return File.of(path)


def multipliers(file: File, name: str) -> np.ndarray:
    """The multipliers of a node, to be changed in place."""
    array = file.claim("upper")["steps"][0]["sigma"][name]
    file.arrays[array] = file.arrays[array].astype(np.float64)
    return file.arrays[array]


def kernel(file: File, name: str) -> np.ndarray:
    array = file.node(name=name)["maps"][0]["inner"]["weight"]
    file.arrays[array] = file.arrays[array].astype(np.float64)
    return file.arrays[array]


def lower_the_claim(file: File) -> None:
    file.claim("upper")["log10"] += math.log10(1.0 - 1e-4)


def raise_the_multipliers_of_a_field(file: File) -> None:
    multipliers(file, "leaky_relu")[:] *= 2.0


def lower_the_multipliers_of_a_field(file: File) -> None:
    multipliers(file, "leaky_relu")[:] *= 0.5


def raise_one_multiplier(file: File) -> None:
    multipliers(file, "relu")[0] *= 30.0


def lower_one_multiplier(file: File) -> None:
    multipliers(file, "relu")[0] /= 30.0


def set_a_multiplier_to_zero(file: File) -> None:
    multipliers(file, "relu")[0] = 0.0


def raise_the_multipliers_of_the_tail(file: File) -> None:
    multipliers(file, "gelu")[:] *= 3.0


def take_the_multipliers_of_a_field_away(file: File) -> None:
    del file.claim("upper")["steps"][0]["sigma"]["relu"]


def take_the_multipliers_of_the_tail_away(file: File) -> None:
    del file.claim("upper")["steps"][0]["sigma"]["gelu"]


def give_too_few_multipliers(file: File) -> None:
    name = file.claim("upper")["steps"][0]["sigma"]["leaky_relu"]
    file.arrays[name] = file.arrays[name][:2].copy()


def take_the_steps_away(file: File) -> None:
    file.claim("upper")["steps"] = []


def shrink_the_torus(file: File) -> None:
    file.claim("upper")["steps"][0]["torus"] = [8, 8]


def shrink_the_torus_below_the_grid(file: File) -> None:
    file.claim("upper")["steps"][0]["torus"] = [2, 2]


def take_an_odd_torus(file: File) -> None:
    file.claim("upper")["steps"][0]["torus"] = [11, 11]


def take_a_torus_of_one_axis(file: File) -> None:
    file.claim("upper")["steps"][0]["torus"] = [10]


def grow_a_kernel(file: File) -> None:
    kernel(file, "conv2d_1")[:] *= 1.01


def grow_a_weight(file: File) -> None:
    found = kernel(file, "conv2d")
    found.flat[np.abs(found).argmax()] *= 1.01


def change_a_slope(file: File) -> None:
    file.node(function="leaky_relu")["parameters"]["slope"] = -0.4


def rename_an_activation(file: File) -> None:
    file.node(function="relu")["function"] = "gelu"


def end_elsewhere(file: File) -> None:
    file.claim("upper")["steps"][0]["at"] = "conv2d_1"


def start_elsewhere(file: File) -> None:
    file.claim("upper")["steps"][0]["start"] = {"relu": -9.0}


def negate_a_multiplier(file: File) -> None:
    multipliers(file, "relu")[0] *= -1.0


def plant_a_nan(file: File) -> None:
    multipliers(file, "relu")[0] = math.nan


def take_a_huge_torus(file: File) -> None:
    file.claim("upper")["steps"][0]["torus"] = [10**6, 10**6]


def take_a_torus_of_no_entries(file: File) -> None:
    file.claim("upper")["steps"][0]["torus"] = [0, 10]


def take_a_torus_that_is_no_list(file: File) -> None:
    file.claim("upper")["steps"][0]["torus"] = 10.5


TAMPERED = [
    *(lower_the_claim, raise_the_multipliers_of_a_field, lower_the_multipliers_of_a_field, raise_one_multiplier),
    *(lower_one_multiplier, set_a_multiplier_to_zero, raise_the_multipliers_of_the_tail, give_too_few_multipliers),
    *(take_the_multipliers_of_a_field_away, take_the_multipliers_of_the_tail_away, take_the_steps_away),
    *(shrink_the_torus, shrink_the_torus_below_the_grid, take_an_odd_torus, take_a_torus_of_one_axis, grow_a_kernel),
    *(grow_a_weight, change_a_slope, rename_an_activation, end_elsewhere, start_elsewhere),
]
MALFORMED = [
    *(negate_a_multiplier, plant_a_nan, take_a_huge_torus, take_a_torus_of_no_entries, take_a_torus_that_is_no_list),
]


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda tamper: tamper.__name__)
def test_a_file_that_was_tampered_with_is_not_verified(tamper: Callable[[File], None], sound, tmp_path):
    file = sound.copy()
    file.header["probe"] = None  # which would see changed weights at once
    file.header["claims"] = [file.claim("upper")]
    tamper(file)
    assert status(file.write(tmp_path / "proof.npz")) in (checker.REJECTED, checker.UNVERIFIED)


@pytest.mark.parametrize("tamper", MALFORMED, ids=lambda tamper: tamper.__name__)
def test_a_malformed_file_is_refused(tamper: Callable[[File], None], sound, tmp_path, capsys):
    file = sound.copy()
    tamper(file)
    assert checker.main([str(file.write(tmp_path / "proof.npz"))]) == 2
    assert capsys.readouterr().out == ""


def test_a_larger_torus_that_fits_is_as_good_a_proof(sound, tmp_path):
    file = sound.copy()
    file.claim("upper")["steps"][0]["torus"] = [14, 16]
    assert reached(file.write(tmp_path / "proof.npz"))[0] == pytest.approx(file.claim("upper")["log10"], abs=0.05)


# ---- checkers with one mistake: each verifies a claim that is false, which the checker does not


def line(net: Net, x: Ref, taps: Sequence[float], *, stride: int = 1, mode: str = "zeros") -> Ref:
    """A convolution along one axis with a kernel of three taps, padded by one."""
    weight = torch.tensor([[list(taps)]], dtype=torch.float64)
    if mode == "zeros":
        return net.call(aten.conv1d.default, x, weight, None, [stride], [1], [1], 1)
    data = {"padding": ((1, 1),), "mode": mode, "stride": [stride], "dilation": [1], "groups": 1}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return aten.conv1d.default(F.pad(x, [1, 1], mode), weight, bias, [stride], [0], [1], 1)

    return net.call(Unit("padded_convolution", function, data), x, weight, torch.zeros(1, dtype=torch.float64))


def rising_and_falling(between: str) -> Segments:
    """One place: 1 with zeros around it. On a torus of two places the two kernels cancel, if nothing is cut off."""
    net = Net(1, 1)
    x = line(net, net.x, (0.0, 1.0, 1.0))
    x = net.call(aten.leaky_relu.default, x, 0.9) if between else x
    return net.segments(line(net, x, (0.0, 1.0, -1.0)))


def around(mode: str, taps: Sequence[float], places: int) -> Segments:
    net = Net(1, places)
    return net.segments(line(net, net.x, taps, mode=mode))


def strided() -> Segments:
    net = Net(2, 9, 9, seed=5)
    return net.segments(net.conv(net.x, 24, stride=2))


def flat() -> Segments:
    net = Net(2, 5, 6, seed=5)
    return net.segments(net.head(net.conv(net.x, 3), 4))


LINEAR = {
    "no mask": (
        lambda: rising_and_falling("leaky"),
        (2,),
        {"n1": 0.2},
        ("            low, high = min(low, 0.0), max(high, 0.0)\n", "            pass\n"),
    ),
    "a field that is not clean": (
        lambda: rising_and_falling(""),
        (2,),
        {},
        ("if reach and not stencil.wraps and not field.clean:", "if False:"),
    ),
    "all outputs clean": (
        lambda: rising_and_falling(""),
        (2,),
        {},
        ("clean = field.clean and all(stencil.covers(axis, n) for axis, n in enumerate(entries))", "clean = True"),
    ),
    "any torus": (lambda: around("zeros", (-1.0, 1.0, 0.0), 1), (1,), {}, ("else n < size + reach)", "else False)")),
    "any torus under circular padding": (
        lambda: around("circular", (0.0, 1.0, -1.0), 2),
        (3,),
        {},
        ("(n != size if stencil.wraps", "(False if stencil.wraps"),
    ),
    "one alias": (strided, (10, 10), {}, ("_turned(form)).sum(1)", "_turned(form))[:, 0]")),
    "the stride twice": (
        strided,
        (10, 10),
        {},
        ("/ math.sqrt(math.prod(self.stride))", "/ math.prod(self.stride)"),
    ),
    "half of the frequencies": (flat, (6, 7), {}, ("np.where(alone, 1.0, 2.0)", "np.where(alone, 1.0, 1.0)")),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_checker_with_a_mistake_verifies_a_false_claim(name, tmp_path):
    build, sizes, sigma, (old, new) = LINEAR[name]
    segments = build()
    false = secants(segments) - 0.02
    path = tmp_path / "proof.npz"
    forged(segments, false, sizes, sigma).save(path)
    assert status(path) != checker.VERIFIED
    assert reached(path)[0] > false
    assert status(path, mutated(old, new, "torus")) == checker.VERIFIED


@pytest.mark.parametrize("scale", [1e-200, 1e-170, 1e-90, 1e-30, 1e30, 1e90, 1e170])
def test_products_that_underflow_prove_nothing(scale, tmp_path):
    """The kernels undo each other's scale: the constant is 1, whatever squares were lost on the way."""
    net, around = Net(1, 3), {"mode": "circular"}
    x = net.call(aten.leaky_relu.default, line(net, net.x, (0.0, scale, 0.0), **around), 1.0)
    x = net.call(aten.leaky_relu.default, line(net, x, (0.0, 1.0, 0.0), **around), 1.0)
    segments, path = net.segments(line(net, x, (0.0, 1.0 / scale, 0.0), **around)), tmp_path / "proof.npz"
    forged(segments, -0.01, (3,), {"n1": 0.0, "n3": 0.0}).save(path)
    assert reached(path)[0] > -1e-9
    if 1e-45 < scale < 1e45:
        assert reached(path)[0] < 1e-9
    elif scale < 1e-160:
        assert (
            reached(
                path, mutated("LOST, STEEPEST, WIDEST = 1e-150, 1e45", "LOST, STEEPEST, WIDEST = 0.0, 1e300", "lost")
            )[0]
            < -1.0
        )


CONJUGATES = {
    "of a flipped frequency": ("np.where(flip[..., None, None], np.conj(q), q)", "q + 0.0"),
    "of the transform": ("rows = np.conj(np.moveaxis(waves", "rows = (np.moveaxis(waves"),
    "of a transpose": ("return np.conj(np.swapaxes(matrices, -1, -2))", "return np.swapaxes(matrices, -1, -2)"),
}


@pytest.mark.parametrize("name", CONJUGATES)
def test_a_conjugate_that_is_missing_shows(name, tmp_path):
    """The tori of the mistaken checker prove what those of the checker do not, for one network or another."""
    script = mutated(*CONJUGATES[name], "conjugate")
    path, bitten = tmp_path / "proof.npz", 0
    for seed in range(2):
        segments = case("stride 2", seed=seed)
        found = certified(segments)
        claimed(segments, found.log10 + 1e-10, found.runs).save(path)
        wrong, right = reached(path, script)[0], reached(path)[0]
        assert abs(right - found.log10) < 1e-9
        if wrong < right - 1e-5:
            claimed(segments, wrong, found.runs).save(path)
            assert status(path, script) == checker.VERIFIED
            bitten += 1
    assert bitten
