"""Small files that ask for much: no file below 10 kB takes a gigabyte."""

import subprocess
import sys

import numpy as np
import pytest

from .forging import Forger
from .proofs import SCRIPT

MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, timeout=40)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
sys.stderr.write((done.stdout + done.stderr).decode()[-400:])
"""
SIZE = 300_000


def taken(path) -> tuple[int, int, str]:
    """Return the exit code, the peak memory in MB, and what was said."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, sys.executable, SCRIPT, path], capture_output=True, text=True, check=True
    )
    code, peak = done.stdout.split()
    return int(code), int(peak), done.stderr


def identity(size):
    return {"map": "identity", "shape": [size]}


def fan():
    """A certificate whose elimination fills in all pairs of a hundred activations."""
    file = Forger((200,))
    names = [file.bent(f"u{k}", "relu", "x0") for k in range(80)]
    file.add("y", "linear", (200,), names, maps=[identity(200)] * 80)
    return file.upper(9.0, [file.certificate({"x0": 1.0}, 1e-4, multipliers=dict.fromkeys(names, 1e-3))])


def columns():
    """One matrix for millions of columns."""
    file = Forger((10**6,))
    for k in range(8):
        file.add(f"y{k}", "dense", (10**6,), [file.output], matrix=file.put([[[1.0]]]), columns=10**6)
    return file.upper(9.0, [*file.steps(), {"do": "fold", "at": "y7", "from": ["x0"]}])


def repeated():
    """A constant, factors and slopes of millions of entries each, from one number."""
    file = Forger((4 * 10**6,))
    each = {"array": file.put([0.5]), "each": 10**6}
    for k in range(9):
        file.add(f"y{k}", "scale", (4 * 10**6,), [file.output], factors=each)
    return file.upper(9.0)


def windows():
    """Few windows that read everything, in each of many chunks."""
    file = Forger((10**6,))
    index = file.put(np.zeros((100, 10)), np.int64)
    file.nodes.append({"name": "y", "kind": "extreme", "shape": [10**8], "from": ["x0"], "of": 1, "index": index,
                       "lowest": False, "leading": 1})  # fmt: skip
    file.output = "y"
    return file.upper(9.0, [])


def turns():
    """The same expensive certificate, many times."""
    file = Forger((400,))
    file.bent("u", "relu")
    file.add("y", "add", (400,), ["u", "x0"])
    step = file.certificate({"x0": 1.0}, 0.1, multipliers={"u": file.put(np.linspace(1.0, 2.0, 400))})
    return file.upper(-9.0, [step] * 60)


def many_values():
    """Thousands of large values, evaluated at a pair."""
    file = Forger((SIZE,))
    for k in range(200):
        file.add(f"y{k}", "linear", (SIZE,), [file.output], maps=[identity(SIZE)])
    file.arrays["noise"] = np.random.default_rng(0).integers(0, 2**62, 900)
    return file.lower(0.5, np.zeros(SIZE), np.ones(SIZE))


def doubled():
    """y + y, 25 times: 2^25 ways from the input to the output."""
    file = Forger((2,))
    for k in range(25):
        file.add(f"y{k}", "linear", (2,), [file.output] * 2, maps=[file.diagonal(0.5), file.diagonal([0.5, 0.5])])
    return file.upper(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [fan, columns, repeated, windows, turns, many_values, doubled], ids=lambda build: build.__name__
)
def test_small_files_take_little_memory(build, tmp_path):
    path = build().write(tmp_path / "bomb.npz", compress=True)
    assert path.stat().st_size < 60_000
    code, peak, said = taken(path)
    assert code in (0, 1, 2, 3)
    assert peak < 1000, (peak, said)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("text", [b"[" + b"[]," * 10**6 + b"[]]", b'{"a":' * 9 * 10**5, b'"' + b"a" * 4 * 10**6 + b'"'])
def test_json_that_grows(text, tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", header=np.frombuffer(text, np.uint8))
    code, peak, said = taken(tmp_path / "bomb.npz")
    assert (code, peak < 500) == (2, True), (peak, said)
