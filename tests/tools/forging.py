"""A network and claims written down by hand, as a forger who knows the format would."""

from __future__ import annotations

import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .proofs import checker, reading

BELOW, ABOVE = math.log10(1.0 - 2e-6), math.log10(1.0 + 1e-7)
"""Just below the truth, by more than the checker's tolerance, and just above it."""


class Forger:
    """A file in the making; values are named, arrays are numbered.

    Args:
        inputs: shape of each input, which are called x0, x1, ...
    """

    def __init__(self, *inputs: tuple[int, ...]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.inputs = [{"name": f"x{k}", "shape": list(shape)} for k, shape in enumerate(inputs)]
        self.nodes: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []
        self.output = "x0"

    def put(self, values: Any, dtype: Any = np.float64) -> str:
        """Keep an array."""
        self.arrays[f"a{len(self.arrays)}"] = np.array(values, dtype)
        return f"a{len(self.arrays) - 1}"

    def add(self, name: str, kind: str, shape: Any, read: list[str], **data: Any) -> str:
        """Add a node, which is the output until another one is added."""
        self.nodes.append({"name": name, "kind": kind, "shape": list(shape), "from": read, **data})
        self.output = name
        return name

    def dense(self, name: str, matrix: Any, read: str = "", **data: Any) -> str:
        """Add a node that multiplies a vector, the last value, by a matrix."""
        matrix = np.array(matrix, float)
        return self.add(name, "linear", matrix.shape[:1], [read or self.output], maps=[self.matrix(matrix)], **data)

    def matrix(self, matrix: Any) -> dict[str, Any]:
        """Return a matrix as a map."""
        return {"map": "dense", "shape": [len(matrix)], "entries": self.put(matrix)}

    def diagonal(self, scale: Any) -> dict[str, Any]:
        """Return factors as a map."""
        return {"map": "diagonal", "scale": self.put(scale)}

    def index(self, index: Any) -> dict[str, Any]:
        """Return a copy of entries as a map."""
        return {"map": "index", "index": self.put(index, np.int64)}

    def convolution(self, weight: Any, sizes: Any, groups: int = 1, **about: int) -> dict[str, Any]:
        """Return a convolution as a map, with the same stride and so on along each axis."""
        weight = np.array(weight, float)
        usual = {"stride": 1, "dilation": 1, "left": 0, "right": 0} | about
        axes = [{"size": size, "kernel": taps} | usual for size, taps in zip(sizes, weight.shape[2:], strict=True)]
        return {"map": "convolution", "weight": self.put(weight), "axes": axes, "groups": groups}

    def bent(self, name: str, function: str, read: str = "", **parameters: Any) -> str:
        """Add an activation of the last value."""
        read = read or self.output
        shape = next(item["shape"] for item in (*self.inputs, *self.nodes) if item["name"] == read)
        return self.add(name, "entrywise", shape, [read], function=function, parameters=parameters)

    def steps(self) -> list[dict[str, Any]]:
        """Return all steps that need no numbers."""
        found: list[dict[str, Any]] = []
        for node in self.nodes:
            if node["kind"] == "linear":
                found += [{"do": "sum", "at": node["name"], "by": by} for by in ("operands", "segments", "slopes")]
            else:
                found.append({"do": "gain", "at": node["name"]})
        return found

    def certificate(self, start: dict[str, float], scale: float = 1.0, at: str = "", **more: Any) -> dict[str, Any]:
        """Return the step of a certificate."""
        multipliers = {"multipliers": more.pop("multipliers", {})}
        return {"do": "certificate", "at": at or self.output, "scale": scale, "start": start, **multipliers, **more}

    def upper(self, log10: float, steps: list[dict[str, Any]] | None = None, **more: Any) -> Forger:
        """Claim an upper side alone."""
        steps = self.steps() if steps is None else steps
        self.claims = [{"side": "upper", "log10": log10, "scope": "global", "steps": steps, **more}]
        return self

    def lower(self, value: float, first: Any, second: Any, **more: Any) -> Forger:
        """Claim a lower side alone."""
        witness = [self.put(first), self.put(second)]
        claim = {"side": "lower", "log10": math.log10(value), "scope": "global", "witness": witness}
        self.claims = [claim | more]
        return self

    def write(self, path: Path, compress: bool = False) -> Path:
        """Write the file, with a digest that fits."""
        network = {"inputs": self.inputs, "nodes": self.nodes, "output": self.output}
        header = {"format": "normscope-proof", "version": 2, "network": network, "claims": self.claims}
        header = json.loads(json.dumps(header))
        text = json.dumps({**header, "digest": reading.fingerprint(header, self.arrays)})
        buffer = io.BytesIO()
        (np.savez_compressed if compress else np.savez)(buffer, header=np.frombuffer(text.encode(), np.uint8),
                                                        **self.arrays)  # fmt: skip
        path.write_bytes(buffer.getvalue())
        return path

    def told(self) -> str:
        """Return what the checker says of the last claim; REFUSED if it cannot use the file."""
        with tempfile.TemporaryDirectory() as folder:
            path = self.write(Path(folder) / "forged.npz")
            try:
                return checker.check(str(path))[-1].status
            except reading.BadFile:
                return "REFUSED"


def exactly(file: Forger, log10: float, steps: list[dict[str, Any]] | None = None) -> None:
    """The true constant is proven, and nothing below it."""
    never(file, log10 + BELOW, steps)
    assert file.upper(log10 + ABOVE, steps).told() == checker.VERIFIED


def never(file: Forger, log10: float, steps: list[dict[str, Any]] | None = None) -> None:
    """A false upper side is not verified."""
    assert file.upper(log10, steps).told() != checker.VERIFIED
