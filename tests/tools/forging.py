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

BELOW, ABOVE = math.log10(1.0 - 1e-12), math.log10(1.0 + 1e-7)
"""Just below the truth, and just above it."""


class Forger:
    """A file in the making; values are named, arrays are numbered.

    What is added is lowered to the checker's kinds of nodes and steps when the file is written: nodes may be "linear",
    with maps that are matrices, factors, indices, convolutions or chains of them, and steps may be sums by operands,
    by segments or by slopes.

    Args:
        inputs: shape of each input, which are called x0, x1, ...; of several, all together are x.
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
        about = {"do": "certificate", "at": at or self.output, "scale": scale, "start": start, "slopes": {}}
        return about | multipliers | more

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
        lowered = Lowered(self)
        claims = [
            claim | {"steps": lowered.steps(claim["steps"])} if "steps" in claim else claim for claim in self.claims
        ]
        network = {"input": lowered.input, "nodes": lowered.nodes, "output": self.output}
        header = {"format": "normscope-proof", "version": 4, "network": network, "claims": claims}
        header = json.loads(json.dumps(header))
        arrays = self.arrays | lowered.arrays
        text = json.dumps({**header, "digest": reading.fingerprint(header, arrays)})
        buffer = io.BytesIO()
        (np.savez_compressed if compress else np.savez)(buffer, header=np.frombuffer(text.encode(), np.uint8),
                                                        **arrays)  # fmt: skip
        path.write_bytes(buffer.getvalue())
        return path

    def told(self) -> str:
        """Return what the checker says of the last claim; REFUSED if it cannot use the file."""
        with tempfile.TemporaryDirectory() as folder:
            path = self.write(Path(folder) / "forged.npz")
            try:
                return checker.check(str(path))[-1].status
            except (reading.BadFile, checker.Unproven):
                return "REFUSED"


class Lowered:
    """What a forger has added, in the checker's kinds of nodes and steps."""

    def __init__(self, file: Forger) -> None:
        self.file, self.arrays, self.nodes = file, dict[str, np.ndarray](), list[dict[str, Any]]()
        self.inner: dict[str, list[str]] = {}
        self.shapes = {item["name"]: item["shape"] for item in (*file.inputs, *file.nodes)}
        sizes = [math.prod(item["shape"]) for item in file.inputs]
        self.input = {"name": "x0", "size": sizes[0]}
        if len(sizes) > 1:
            self.input = {"name": "x", "size": sum(sizes)}
            for item, size, start in zip(file.inputs, sizes, np.cumsum([0, *sizes]), strict=False):
                self.add(item["name"], "gather", ["x"], of=sum(sizes), index=self.put(np.arange(start, start + size)))
        for node in file.nodes:
            before = len(self.nodes)
            self.lower(**{{"from": "read"}.get(key, key): value for key, value in node.items()})
            self.inner[node["name"]] = [item["name"] for item in self.nodes[before:]]

    def put(self, values: Any) -> str:
        self.arrays[f"b{len(self.arrays)}"] = np.asarray(values)
        return f"b{len(self.arrays) - 1}"

    def add(self, name: str, kind: str, read: list[str], **data: Any) -> str:
        self.nodes.append({"name": name, "kind": kind, "from": read, **data})
        return name

    def lower(self, name: str, kind: str, shape: Any, read: list[str], **data: Any) -> None:
        if kind == "linear":
            terms = [self.map(f"{name}/{k}", item, self.shapes[one], one)[0]
                     for k, (item, one) in enumerate(zip(data["maps"], read, strict=True))]  # fmt: skip
            if "constant" in data or not terms:
                size = math.prod(shape)
                terms.append(self.add(f"{name}/c", "constant", [], size=size, value=data.get("constant", 0.0)))
            self.add(name, "add", terms)
        elif kind == "extreme":
            of = math.prod(self.shapes[read[0]][data.pop("leading") :])
            self.add(name, kind, read, **{"of": of} | data)
        elif kind == "pairwise":
            both = self.add(f"{name}/both", "concat", read, of=[1, 1])
            self.add(name, "extreme", [both], of=2, index=self.put([[0, 1]]), lowest=data["lowest"])
        elif kind == "opaque":
            self.add(name, kind, read, size=math.prod(shape), **data)
        else:
            self.add(name, kind, read, **data)

    def map(self, name: str, item: dict[str, Any], shape: Any, read: str) -> tuple[str, Any]:
        """Add the nodes of a map; return the name of the last and the shape of its value."""
        kind, arrays = item["map"], self.file.arrays
        if kind == "identity":
            return read, item["shape"]
        if kind == "diagonal":
            factors = np.broadcast_to(arrays[item["scale"]], shape).reshape(-1)
            factors = float(factors[0]) if arrays[item["scale"]].size == 1 else self.put(factors)
            return self.add(name, "scale", [read], factors=factors), shape
        if kind == "index":
            index = arrays[item["index"]]
            return self.add(name, "gather", [read], of=math.prod(shape), index=self.put(index.reshape(-1))), index.shape
        if kind == "dense":
            matrix = arrays[item["entries"]]
            return self.add(name, "dense", [read], matrix=self.put(matrix[None]), columns=1), item["shape"]
        if kind == "chain":
            for k, part in enumerate(item["parts"]):
                read, shape = self.map(f"{name}/{k}", part, shape, read)
            return read, shape
        assert kind == "convolution"
        weight, index = arrays[item["weight"]], np.zeros((1, 1), np.int64)
        for axis in item["axes"]:
            extent = axis["dilation"] * (axis["kernel"] - 1) + 1
            outputs = (axis["size"] + axis["left"] + axis["right"] - extent) // axis["stride"] + 1
            place = np.arange(axis["kernel"])[:, None] * axis["dilation"] - axis["left"]
            place = place + np.arange(outputs)[None] * axis["stride"]
            place = np.where((place >= 0) & (place < axis["size"]), place, -1)
            wide, near = index[:, None, :, None], place[None, :, None, :]
            index = np.where((wide < 0) | (near < 0), -1, wide * axis["size"] + near)
            index = index.reshape(index.shape[0] * index.shape[1], -1)
            shape = [*shape[:1], *shape[2:], outputs]
        of = math.prod(axis["size"] for axis in item["axes"])
        read = self.add(f"{name}/read", "gather", [read], of=of, index=self.put(index.reshape(-1)))
        matrix = self.put(weight.reshape(item["groups"], weight.shape[0] // item["groups"], -1))
        self.add(name, "dense", [read], matrix=matrix, columns=index.shape[1])
        return name, [len(weight), *shape[1:]]

    def steps(self, steps: Any) -> Any:
        """Lower sums; the parts of several inputs are known from the beginning."""
        found = [{"do": "gain", "at": item["name"]} for item in self.file.inputs if len(self.file.inputs) > 1]
        nodes = {node["name"]: node for node in self.nodes}
        for step in steps:
            if step.get("do") == "gain" and step.get("at") in self.inner:
                found += [{"do": "gain", "at": name} for name in self.inner[step["at"]]]
            elif step.get("do") != "sum" or step.get("at") not in nodes or "by" not in step:
                found.append(step)
            elif step["by"] == "operands":
                found += [{"do": "gain", "at": name} for name in self.inner.get(step["at"], [])]
                read = next(node for node in self.file.nodes if node["name"] == step["at"])["from"]
                found.append({"do": "fold", "at": step["at"], "from": read})
            else:
                through = {"add", "scale", "gather", "dense", "center", "constant", "concat"}
                through |= {"entrywise"} if step["by"] == "slopes" else set()
                sources, stack = set(), [*nodes[step["at"]]["from"]]
                while stack:
                    name = stack.pop()
                    inside = name in nodes and nodes[name]["kind"] in through
                    stack += nodes[name]["from"] if inside else []
                    sources |= set() if inside else {name}
                found.append({"do": "fold", "at": step["at"], "from": sorted(sources)})
        return found


def exactly(file: Forger, log10: float, steps: list[dict[str, Any]] | None = None) -> None:
    """The true constant is proven, and nothing below it."""
    never(file, log10 + BELOW, steps)
    assert file.upper(log10 + ABOVE, steps).told() == checker.VERIFIED


def never(file: Forger, log10: float, steps: list[dict[str, Any]] | None = None) -> None:
    """A false upper side is not verified."""
    assert file.upper(log10, steps).told() != checker.VERIFIED
