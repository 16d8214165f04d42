"""What an audit costs: seconds, as a multiple of one forward and backward pass, by part, and the size of the report.

    python benchmarks/audit_models.py                                   every model, on the CPU
    python benchmarks/audit_models.py --models resnet50 gpt2 --device cuda
    python benchmarks/audit_models.py --models vit_b16 --max-seconds 5 20
    python benchmarks/audit_models.py --models mlp --effort thorough

The architectures have random weights (large ones from `transformers` configs, without a download) and random data,
8 samples of it.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from typing import Any

import torch
from machine import header
from torch import Tensor, nn
from torch.nn import functional as F
from watching import resnet18

import normscope as ns

BATCH = 8
Case = tuple[nn.Module, Any]


def mlp() -> Case:
    """Three layers, 2.5 thousand parameters."""
    parts = [nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*parts), torch.randn(BATCH, 64)


class UNet(nn.Module):
    """A small denoiser: two scales, GroupNorm, SiLU, a skip, and a time embedding."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.norm1 = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(8, 2 * width)
        self.middle, self.norm2 = nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.GroupNorm(8, 2 * width)
        self.up, self.norm3 = nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.GroupNorm(8, width)
        self.register_buffer("frequencies", torch.exp(-torch.arange(width // 2) / 4))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predict the noise of images at times."""
        angles = t[:, None] * self.frequencies
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        wide = F.silu(self.enter(x))
        deep = F.silu(self.norm1(self.down(wide)) + embedding[:, :, None, None])
        deep = deep + F.silu(self.norm2(self.middle(deep)))
        return self.leave(F.silu(self.norm3(self.up(deep))) + wide)


def unet() -> Case:
    """A diffusion U-Net of 53 thousand parameters."""
    return UNet(), (torch.randn(BATCH, 3, 16, 16), torch.rand(BATCH))


def encoder() -> Case:
    """A TransformerEncoder of 25 thousand parameters."""
    layer = nn.TransformerEncoderLayer(32, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(BATCH, 12, 32)


def resnet18_32() -> Case:
    """ResNet18 for 32x32 images."""
    return resnet18(), torch.randn(BATCH, 3, 32, 32)


def resnet50() -> Case:
    """ResNet-50."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000)), torch.randn(BATCH, 3, 224, 224)


def vit_b16() -> Case:
    """ViT-B/16."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000, patch_size=16)), torch.randn(BATCH, 3, 224, 224)


def gpt2() -> Case:
    """GPT-2 small, sequences of 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), {"input_ids": torch.randint(0, 50257, (BATCH, 128))}


MODELS = {
    "mlp": mlp, "unet": unet, "encoder": encoder, "resnet18": resnet18_32, "resnet50": resnet50, "vit_b16": vit_b16,
    "gpt2": gpt2,
}  # fmt: skip


def output(model: nn.Module, batch: Any) -> Tensor:
    """Return the model's output tensor."""
    made = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)
    return made if isinstance(made, Tensor) else made.logits


def unit(model: nn.Module, batch: Any, device: str) -> float:
    """Return the seconds of one forward and backward pass, the faster of two."""

    def once() -> float:
        began = time.perf_counter()
        output(model, batch).square().sum().backward()
        model.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    once()
    return min(once() for _ in range(2))


def peak() -> float:
    """Return the most memory that the process ever held, in GiB: of a model that is not the first also the others'."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(name: str, device: str, effort: str, max_seconds: float | None) -> None:
    """Audit one model and print what it took."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    model = model.to(device).eval()
    batch = torch.utils._pytree.tree_map(lambda v: v.to(device), batch)
    one = unit(model, batch, device)
    before = peak()
    audit = ns.audit(model, batch, effort=effort, max_seconds=max_seconds)
    began = time.perf_counter()
    page = audit.to_html()
    drawn = time.perf_counter() - began
    limit = "" if max_seconds is None else f" (max_seconds={max_seconds:g})"
    print(f"{name}: {audit.parameters:,} parameters, {len(audit.layers)} rows")
    print(f"  audit {audit.seconds:.1f} s{limit} = {audit.seconds / one:.0f} x forward and backward ({one:.3f} s)")
    cost = audit.cost
    print("  by part: " + ", ".join(f"{part} {taken:.1f} s" for part, taken in cost.seconds.items()))
    counted = ", ".join(f"{cost.total(kind):.0f} {kind}" for kind in ("passes", "backwards", "norms", "products"))
    print(f"  counted: {counted}")
    print(f"  report {len(page.encode()) / 1e6:.2f} MB in {drawn:.2f} s, peak {peak():.2f} GiB", end="")
    print(f" ({before:.2f} with forward and backward alone)", end="")
    print(f", GPU peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if device == "cuda" else "")
    for rung in ("best", "observed"):
        if rung in audit.ladder:
            bracket = audit.ladder[rung]
            print(f"  {rung:<9} log10 {bracket.log10_lower:8.2f} .. {bracket.log10_upper:8.2f}")
    counts = Counter((finding.severity.value, finding.code) for finding in audit.findings)
    print("  findings: " + (", ".join(f"{n} {code} ({level})" for (level, code), n in counts.items()) or "none"))
    for what, why in audit.skipped:
        print(f"  skipped {what}: {why}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--effort", default="fast", choices=["fast", "thorough"])
    parser.add_argument("--max-seconds", nargs="+", type=float, default=[None])
    options = parser.parse_args()
    print(f"{header(options.device)}, batch {BATCH}, effort {options.effort}")
    ns.audit(nn.Linear(4, 4).to(options.device), torch.randn(2, 4))  # what is loaded once is not counted
    for name in options.models:
        for seconds in options.max_seconds:
            measure(name, options.device, options.effort, seconds)


if __name__ == "__main__":
    main()
