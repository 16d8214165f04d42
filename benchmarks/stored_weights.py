"""Norms of stored matrices beside power iteration: what an audit of bare weights takes.

    OMP_NUM_THREADS=1 python benchmarks/stored_weights.py              processor seconds, a Llama of 1.1B parameters
    python benchmarks/stored_weights.py --cuda                         a Llama of 8B parameters in shards, on a GPU
    python benchmarks/stored_weights.py --cuda --device cpu --layers 2 --divisor 8    a tiny one, to test this

On a CPU one random bfloat16 matrix of each shape is measured on one thread; the total counts each as often as the model
has it. On a GPU the shards are written to a temporary folder first; each part then runs in a process of its own, which
says its seconds and its peak memory. The part `resident` reads all tensors to the GPU before the clock, to tell
computing from reading: power iteration and audit by turns, and some norms by dense SVD in float64. Power iteration
takes 30 steps in bfloat16, as stored; it ends below the norm and proves nothing above it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from machine import header
from torch import Tensor

from normscope.auditing.bare_weights import audit_weights
from normscope.auditing.reading_ahead import Stored
from normscope.bounds.linalg.weight_norms import matrix_norm
from normscope.cli.stored import INDEX, stored_weights
from normscope.core.bracket import Bracket
from normscope.products.lanczos import MISSED

SHAPES = {(256, 2048): 44, (2048, 2048): 44, (5632, 2048): 66, (32000, 2048): 2}
"""Rows and columns, and how often a Llama of 1.1B parameters has such a matrix (or its transpose)."""

PARTS = {"audit": 40, "resident": 40, "certify": 60, "power": 20, "read": 20}
"""What is measured over shards, and the seconds after which it is given up."""

NARROW = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 1) for name in "kv"]
"""Matrices whose norms are compared with a dense SVD."""


def llama_8b(layers: int, divisor: int = 1) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of a Llama of 8B parameters; with a divisor of one that is so much narrower."""
    width, inner, keys, vocabulary = (size // divisor for size in (4096, 14336, 1024, 128256))
    yield "model.embed_tokens.weight", (vocabulary, width)
    for layer in range(layers):
        stem = f"model.layers.{layer}"
        for name, rows in (("q", width), ("k", keys), ("v", keys), ("o", width)):
            yield f"{stem}.self_attn.{name}_proj.weight", (rows, width)
        yield f"{stem}.mlp.gate_proj.weight", (inner, width)
        yield f"{stem}.mlp.up_proj.weight", (inner, width)
        yield f"{stem}.mlp.down_proj.weight", (width, inner)
        yield f"{stem}.input_layernorm.weight", (width,)
        yield f"{stem}.post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (vocabulary, width)


def write_shards(folder: Path, layers: int, divisor: int, device: str, shard_bytes: float = 2e9) -> None:
    """Write random weights in bfloat16 as shards with an index."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    places: dict[str, str] = {}

    def flush() -> None:
        name = f"model-{len(set(places.values())):05}.safetensors"
        save_file(tensors, folder / name)
        places.update(dict.fromkeys(tensors, name))
        tensors.clear()

    for name, shape in llama_8b(layers, divisor):
        tensors[name] = torch.randn(shape, dtype=torch.bfloat16, device=device).mul_(0.02).cpu()
        if sum(2 * tensor.numel() for tensor in tensors.values()) > shard_bytes:
            flush()
    if tensors:
        flush()
    (folder / f"model{INDEX}").write_text(json.dumps({"weight_map": places}))


def power_iteration(weight: Tensor, steps: int = 30) -> float:
    """Return the gain after some steps of power iteration."""
    x = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    for _ in range(steps):
        x = weight.T @ (weight @ (x / x.norm()))
    return float((weight @ (x / x.norm())).norm())


def read(folder: Path, part: str, device: str) -> None:
    """Do one part over stored weights, and print its seconds and its peak memory."""
    torch.zeros(1, device=device)
    matrix_norm(torch.randn(700, 600, device=device), missed=MISSED)  # start the libraries before the clock
    matrix_norm(torch.randn(1100, 1000, device=device))
    power_iteration(torch.randn(700, 600, device=device).bfloat16())
    weights = stored_weights(folder)
    if part != "resident":
        timed(part, weights, device)
        return
    held = {name: tensor.to(device) for name, read in weights.items() for tensor in [read()]}
    resident: Stored = {name: lambda tensor=tensor: tensor for name, tensor in held.items()}  # type: ignore[misc]
    for part in ("power", "audit", "power", "audit"):
        timed(part, resident, device)
    few = {f"{name}.weight": resident[f"{name}.weight"] for name in NARROW}
    for row in audit_weights(few, device=device).layers:
        norm = float(torch.linalg.svdvals(held[f"{row.path}.weight"].double())[0])
        assert row.norm is not None
        holds = row.norm.lower <= norm <= row.norm.upper
        print(f"  {row.path}: [{row.norm.lower:.5f}, {row.norm.upper:.5f}], dense SVD {norm:.5f}, holds {holds}")


def timed(part: str, weights: Stored, device: str) -> None:
    """Do one part, and print its seconds and the peak memory since this process began."""
    begun = time.perf_counter()
    if part in ("audit", "certify"):
        audit = audit_weights(weights, certify=part == "certify", device=device)
        norms = [row.norm for row in audit.layers if row.norm is not None]
        kinds = Counter((norm.evidence.name, "closed" if norm.converged else "not closed") for norm in norms)
        largest = max(norms, key=lambda norm: norm.upper)
        gap = max(norm.gap for norm in norms)
        said = f"largest norm [{largest.lower:.4f}, {largest.upper:.4f}], largest gap {gap:.3%}, {dict(kinds)}"
    else:
        matrices = 0
        for tensor in (read().to(device) for read in weights.values()):
            matrices += tensor.ndim > 1
            if tensor.ndim > 1 and part == "power":
                power_iteration(tensor)
        said = f"{matrices} matrices"
    if device == "cuda":
        torch.cuda.synchronize()
        said += f", GPU peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
    seconds, status = time.perf_counter() - begun, Path("/proc/self/status").read_text().splitlines()
    kept = next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{part:8} {seconds:6.2f} s, host peak {peak:.2f} GiB with mapped files, anonymous {kept:.2f} GiB; {said}",
        flush=True,
    )


def sharded(layers: int, divisor: int, device: str) -> None:
    """Write the shards, and measure each part in a process of its own."""
    print(header(device), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        write_shards(Path(folder), layers, divisor, device)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(f"{size / 2e9:.2f} billion parameters written in {time.perf_counter() - begun:.0f} s", flush=True)
        for part, limit in PARTS.items():
            print(f"{part}:", flush=True)
            command = [sys.executable, __file__, "--part", part, "--folder", folder, "--device", device]
            try:
                subprocess.run(command, timeout=limit)
            except subprocess.TimeoutExpired:
                print(f"  not done after {limit} s", flush=True)


def spent(function: Callable[[Tensor], float | Bracket], weight: Tensor) -> tuple[float | Bracket, float]:
    """Return a function's result and the processor seconds it took."""
    begun = time.process_time()
    result = function(weight)
    return result, time.process_time() - begun


def by_shape(certify: bool) -> None:
    """Print the table of a CPU."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    missed = 0.0 if certify else MISSED / sum(SHAPES.values())
    norm = partial(matrix_norm, rtol=5e-2, missed=missed)
    norm(torch.randn(700, 600, generator=generator))  # start the libraries before the clock
    total = peers = 0.0
    for shape, count in SHAPES.items():
        weight = (0.02 * torch.randn(shape, generator=generator)).bfloat16()
        found, ours = spent(norm, weight)
        value, theirs = spent(power_iteration, weight)
        assert isinstance(found, Bracket)
        total, peers = total + count * ours, peers + count * theirs
        print(
            f"{shape[0]}x{shape[1]}  [{found.lower:.5f}, {found.upper:.5f}] gap {found.gap:.3%} "
            f"{found.evidence.name}  {ours:.2f} s",
            end="",
        )
        print(f"   power iteration {value:.5f}  {theirs:.2f} s", flush=True)
    print(f"1.1B parameters: {total:.0f} s, power iteration {peers:.0f} s, ratio {total / peers:.1f}")


@torch.no_grad()
def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="shards of 8B parameters on a GPU")
    parser.add_argument("--certify", action="store_true", help="on a CPU: prove the upper sides")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--divisor", type=int, default=1, help="by how much narrower the sharded model is")
    parser.add_argument("--device", default="cuda", help="for the sharded model")
    parser.add_argument("--part", choices=list(PARTS))
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.part:
        read(options.folder, options.part, options.device)
    elif options.cuda:
        sharded(options.layers, options.divisor, options.device)
    else:
        by_shape(options.certify)


if __name__ == "__main__":
    main()
