"""Audit ResNet-50 (224 px), ViT-B/16 and GPT-2 small: seconds, memory, findings, and the size of the report.

    python benchmarks/audit_models.py --device cuda --batch 8 --models resnet50 vit_b16 gpt2

The architectures come from `transformers` configs with random weights (no download); the data is random. The seconds
of one forward pass over the same data stand beside the seconds of the audit, as a ratio.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections import Counter
from typing import Any

import torch
from torch import nn

import normscope as ns

Case = tuple[nn.Module, Any, list[Any]]


def resnet50(batch: int, device: str) -> Case:
    """Return ResNet-50 with random weights and images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(device)
    return model.eval(), *_images(batch, device)


def vit_b16(batch: int, device: str) -> Case:
    """Return ViT-B/16 with random weights and images."""
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000, patch_size=16)).to(device)
    return model.eval(), *_images(batch, device)


def gpt2(batch: int, device: str) -> Case:
    """Return GPT-2 small with random weights and tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).to(device)
    rows = [{"input_ids": torch.randint(0, 50257, (batch, 64), device=device)} for _ in range(4)]
    return model.eval(), rows[0], rows


def _images(batch: int, device: str) -> tuple[Any, list[Any]]:
    rows = [torch.randn(batch, 3, 224, 224, device=device) for _ in range(4)]
    return rows[0], rows


MODELS = {"resnet50": resnet50, "vit_b16": vit_b16, "gpt2": gpt2}


def measure(name: str, batch: int, device: str, max_seconds: float | None) -> None:
    """Audit one model and print what it took."""
    torch.manual_seed(0)
    model, first, rows = MODELS[name](batch, device)
    began = time.perf_counter()
    with torch.no_grad():
        for row in rows:
            model(**row) if isinstance(row, dict) else model(row)
    if device == "cuda":
        torch.cuda.synchronize()
    forward = time.perf_counter() - began
    audit = ns.audit(model, first, loader=rows, max_seconds=max_seconds)
    began = time.perf_counter()
    page = audit.to_html()
    drawn = time.perf_counter() - began
    data = len(str(audit.to_json()))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: {audit.parameters / 1e6:.1f} M parameters, {len(audit.layers)} rows")
    ratio = audit.seconds / forward
    print(f"  audit {audit.seconds:.1f} s, {ratio:.0f} times one pass over its data ({forward:.2f} s)")
    size = len(page.encode()) / 1e6
    print(f"  report {size:.2f} MB in {drawn:.2f} s, JSON {data / 1e6:.2f} MB, peak {memory:.2f} GiB")
    if device == "cuda":
        print(f"  GPU peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    for rung, bracket in audit.ladder.items():
        print(f"  {rung:<14} log10 {bracket.log10_lower:8.2f} .. {bracket.log10_upper:8.2f}")
    counts = Counter((finding.severity.value, finding.code) for finding in audit.findings)
    print("  findings: " + (", ".join(f"{n} {code} ({level})" for (level, code), n in counts.items()) or "none"))
    for what, why in audit.skipped:
        print(f"  skipped {what}: {why}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--max-seconds", type=float)
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {where}, batch {options.batch}")
    for name in options.models:
        measure(name, options.batch, options.device, options.max_seconds)


if __name__ == "__main__":
    main()
