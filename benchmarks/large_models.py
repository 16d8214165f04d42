"""What large models take on one GPU: a default audit, and a check; each in a process of its own with a time limit.

    python benchmarks/large_models.py                                GPT of 1.3B (audit) and of 7B (check), bfloat16
    python benchmarks/large_models.py --device cpu --divisor 16      tiny ones, to test this file

The transformers are plain torch, causal, with random weights and random tokens.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import subprocess
import sys
import time

import torch
from machine import header
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns

SIZES = {"audit": (2048, 24, 16, 50304), "check": (4096, 32, 32, 50304)}
"""Width, depth, heads and vocabulary of the model of each part: 1.3B and 6.9B parameters."""


class Block(nn.Module):
    """Causal attention and an MLP, each behind a LayerNorm and beside a skip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then think."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads).unbind(2)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder with learned positions."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for table in (self.tokens, self.positions, self.head):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token everywhere."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def measure(part: str, device: str, divisor: int, batch: int, length: int) -> None:
    """Build the model, do the part, and print what it took."""
    width, depth, heads, vocabulary = SIZES[part]
    before, torch_default = time.perf_counter(), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = GPT(width // divisor, max(2, depth // divisor), max(1, heads // divisor), vocabulary // divisor).eval()
    torch.set_default_dtype(torch_default)
    ids = torch.randint(0, vocabulary // divisor, (batch, length), device=device)
    with torch.no_grad():
        model(ids)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{part}: {parameters / 1e9:.3f} billion parameters, built and run in {time.perf_counter() - before:.1f} s",
        flush=True,
    )
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    result = ns.audit(model, ids) if part == "audit" else ns.check(model, ids)
    faulthandler.cancel_dump_traceback_later()
    print(f"  {part} {time.perf_counter() - begun:.1f} s, batch {batch}x{length}, {len(result.findings)} findings")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    gpu = f", GPU peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if device == "cuda" else ""
    print(f"  host peak {peak:.2f} GiB{gpu}")
    print(f"  {result.verdict}")
    if isinstance(result, ns.Audit):
        print("  by part: " + ", ".join(f"{name} {taken:.1f} s" for name, taken in result.cost.seconds.items()))
        for what, why in result.skipped:
            print(f"  skipped {what}: {why}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--divisor", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each part")
    parser.add_argument("--alone", action="store_true", help="measure in this process")
    options = parser.parse_args()
    if options.alone:
        for part in options.parts:
            faulthandler.dump_traceback_later(max(options.limit - 3.0, 1.0))  # says where the time went, if it ends
            measure(part, options.device, options.divisor, options.batch, options.length)
        return
    print(header(options.device), flush=True)
    for part in options.parts:
        try:
            subprocess.run([sys.executable, *sys.argv, "--alone", "--parts", part], timeout=options.limit)
        except subprocess.TimeoutExpired:
            print(f"{part}: not done after {options.limit:g} s", flush=True)


if __name__ == "__main__":
    main()
