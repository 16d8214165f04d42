"""Bracket every linear map of ResNet-50 (224 px) and ViT-B/16: gap, seconds and memory per layer, and the totals.

    python benchmarks/linear_maps.py --device cuda --rtol 1e-3 --threads 2

The architectures come from `transformers` configs with random weights (no download).
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator

import torch
from torch import nn

from normscope.bounds.linalg.layer_norms import spectral_norm
from normscope.core.bracket import Bracket

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def resnet50() -> nn.Module:
    """Return ResNet-50 with random weights."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000))


def vit_b16() -> nn.Module:
    """Return ViT-B/16 with random weights."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000, patch_size=16))


MODELS = {"resnet50": resnet50, "vit_b16": vit_b16}


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Yield every linear layer and the shape of one of its inputs, read off one forward pass."""
    shapes: dict[str, tuple[int, ...]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, LINEAR):

            def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], name: str = name) -> None:
                shapes[name] = tuple(inputs[0].shape[1:])

            handles.append(module.register_forward_pre_hook(note))
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, 224, 224, device=next(model.parameters()).device))
    for handle in handles:
        handle.remove()
    modules = dict(model.named_modules())
    for name, shape in shapes.items():
        yield name, modules[name], shape


def describe(module: nn.Module, shape: tuple[int, ...]) -> str:
    """Say in a few characters what a layer is."""
    if isinstance(module, nn.Linear):
        return f"linear {module.in_features}->{module.out_features}"
    kernel = "x".join(map(str, module.kernel_size))  # type: ignore[arg-type]
    stride = max(module.stride)  # type: ignore[type-var]
    size = "x".join(map(str, shape[1:]))
    return f"{kernel} {module.in_channels}->{module.out_channels} /{stride} at {size}"


def measure(name: str, device: str, rtol: float, quiet: bool) -> None:
    """Bracket every linear map of one model and print what it took."""
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    found = list(layers(model))
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results: list[tuple[tuple[int, ...], Bracket, float]] = []
    start, processor = time.perf_counter(), time.process_time()
    for path, module, shape in found:
        begun = time.perf_counter()
        bracket = spectral_norm(module, shape if not isinstance(module, nn.Linear) else None, rtol=rtol)
        seconds = time.perf_counter() - begun
        results.append((shape, bracket, seconds))
        if not quiet:
            print(
                f"{describe(module, shape):34s} [{bracket.lower:.6f}, {bracket.upper:.6f}]  gap {bracket.gap:8.4%}  "
                f"{seconds:6.2f} s  {bracket.evidence.name} {bracket.method}  {path}",
                flush=True,
            )
    total, processor = time.perf_counter() - start, time.process_time() - processor
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gaps = [bracket.gap for _, bracket, _ in results]
    large = [bracket.gap for shape, bracket, _ in results if len(shape) == 3 and min(shape[1:]) >= 28]
    closed = sum(gap <= rtol for gap in gaps)
    print(f"{name}: {len(results)} maps in {total:.1f} s ({processor:.1f} s of processor time), rtol {rtol:g}", end="")
    print(f", {closed} closed, largest gap {max(gaps):.3%}", end="")
    print(f", of convolutions from 28x28 up {max(large):.3%}" if large else "")
    print(f"host memory grew from {before / 1024:.0f} to {after / 1024:.0f} MiB at its peak", end="")
    print(f", device peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB" if device == "cuda" else "")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--quiet", action="store_true", help="totals only")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.device == "cuda":  # start the libraries before the clock
        warm = torch.eye(64, device="cuda", dtype=torch.complex128)
        torch.linalg.cholesky_ex(warm[None].expand(2, -1, -1) @ warm)
        torch.linalg.eigh(warm[None])
    for name in arguments.models:
        measure(name, arguments.device, arguments.rtol, arguments.quiet)


if __name__ == "__main__":
    main()
