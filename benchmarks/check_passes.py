"""What `check` costs on real networks with a loss and an optimizer, in passes and memory of a training step.

    python benchmarks/check_passes.py [--device cpu|cuda] [--models resnet18 gpt-12x768 ...]

A pass is one forward and backward of the same batch in train mode: the least of five. `check` is the least of two calls
after a first, whose time stands apart. "ms beyond 8" is by how much a check takes longer than eight passes. Memory is
the peak of the device beyond what stood there before, as a multiple of that of one step of AdamW with a forward and
backward. On a CPU the time is that of one thread. Vision models are left out where torchvision is not installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from machine import header
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns


class Gpt(nn.Module):
    """A causal transformer with learned positions."""

    def __init__(self, depth: int, width: int, length: int, words: int = 8192) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score the next token at each place, the classes in the second axis."""
        x = 0.02 * (self.words(tokens) + self.places.weight)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(x, mask=mask, is_causal=True)).mT


def build_transformer(depth: int, width: int, batch: int, length: int) -> tuple[nn.Module, Any]:
    """Return a transformer and its batch."""
    tokens = torch.randint(8192, (batch, length + 1))
    return Gpt(depth, width, length), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def build_classifier(name: str, batch: int, size: int) -> tuple[nn.Module, Any]:
    """Return a classifier of torchvision and its batch."""
    from torchvision import models

    options = {"image_size": size} if name.startswith("vit") else {}
    model = models.get_model(name, weights=None, num_classes=100, **options)
    return model, (torch.randn(batch, 3, size, size), torch.randint(100, (batch,)))


CASES = {
    "cpu": {
        "resnet18": partial(build_classifier, "resnet18", 16, 64),
        "resnet50": partial(build_classifier, "resnet50", 8, 96),
        "efficientnet_b0": partial(build_classifier, "efficientnet_b0", 8, 96),
        "vit_b_16": partial(build_classifier, "vit_b_16", 2, 96),
        "gpt-4x128": partial(build_transformer, 4, 128, 8, 64),
        "gpt-12x256": partial(build_transformer, 12, 256, 8, 128),
    },
    "cuda": {
        "resnet18": partial(build_classifier, "resnet18", 128, 224),
        "resnet50": partial(build_classifier, "resnet50", 64, 224),
        "efficientnet_b0": partial(build_classifier, "efficientnet_b0", 64, 224),
        "vit_b_16": partial(build_classifier, "vit_b_16", 32, 224),
        "vit_l_16": partial(build_classifier, "vit_l_16", 16, 224),
        "gpt-12x768": partial(build_transformer, 12, 768, 16, 512),
        "gpt-1b": partial(build_transformer, 20, 2048, 4, 512),
    },
}


def read_clock(device: str) -> float:
    """Return the seconds so far: of the processor, or, on a GPU, of the wall after all that was asked of it."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def time_calls(call: Callable[[], Any], times: int, device: str) -> float:
    """Return the least seconds of some calls."""
    seconds = list[float]()
    for _ in range(times):
        began = read_clock(device)
        call()
        seconds.append(read_clock(device) - began)
    return min(seconds)


def peak_memory(call: Callable[[], Any]) -> int:
    """Return the peak memory of the GPU during a call, beyond what stood there before."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def measure_row(name: str, device: str) -> str:
    """Measure one model and return its line of the table."""
    torch.manual_seed(0)
    model, (x, y) = CASES[device][name]()
    model, x, y = model.to(device).train(), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run_pass() -> None:
        F.cross_entropy(model(x), y).backward()

    def train() -> None:
        run_pass()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def check() -> Any:
        return ns.check(model, (x, y), loss="cross_entropy", optimizer=optimizer)

    run_pass()
    unit = time_calls(run_pass, 5, device)
    model.zero_grad(set_to_none=True)
    first = time_calls(check, 1, device)
    seconds = time_calls(check, 2, device)
    memory = f"{peak_memory(check) / peak_memory(train):8.2f}" if device == "cuda" else ""
    count = sum(parameter.numel() for parameter in model.parameters())
    beyond = 1e3 * (seconds - 8.0 * unit)
    line = f"{name:18}{count:14,}{1e3 * unit:10.1f}{1e3 * first:10.0f}{1e3 * seconds:10.0f}{seconds / unit:8.1f}"
    return f"{line}{beyond:14.0f}{memory}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--models", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"# python benchmarks/check_passes.py --device {options.device}\n{header(options.device)}")
    heads = f"{'pass ms':>10}{'first ms':>10}{'check ms':>10}{'passes':>8}{'ms beyond 8':>14}{'memory':>8}"
    print(f"{'model':18}{'parameters':>14}{heads}")
    for name in options.models or CASES[options.device]:
        try:
            print(measure_row(name, options.device), flush=True)
        except (ImportError, torch.OutOfMemoryError) as error:
            print(f"{name:18} left out: {error}", flush=True)


if __name__ == "__main__":
    main()
