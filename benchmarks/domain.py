"""GLOBAL, DOMAIN, DATA and observed figures of trained networks, and what each costs.

    python benchmarks/domain.py [--models FOLDER] [--cifar FILE] [--text FILE ...] [--samples 1000] [--gains 100]
                                [--norms 299] [--fresh 64] [--margin 0.0] [--only NAME ...] [--effort fast]
                                [--device cpu] [--json FILE]

Without arguments: the four networks of `normscope demo`, trained on scikit-learn's digits. FOLDER holds `networks.py`
with `load(name)`, FILE an npz with uint8 images `train` and `test` of shape (n, 3, 32, 32), the texts are bytes for
the language model. `--samples` inputs define each domain, `--gains` of them the one with the gains of blocks (0 leaves
it out). Every range is widened by `--margin` of its width. Coverage and observed figures are those of `--fresh` other
inputs (test images, other windows of the texts), and Jacobians at `--norms` of these give DATA: 299 are enough for 99
% at a confidence of 95 % (0 leaves it out). A pass is one forward of the model in float64; processor seconds are those
of one thread unless OMP_NUM_THREADS says otherwise.
"""

import argparse
import copy
import importlib
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.data import digits
from normscope.networks import small as models
from normscope.networks.small import train

TRAINED = ("mlp10_bn_cifar10", "resnet18_cifar10", "vit_cifar10", "gpt_text")
BATCH, SHOWN = 64, 8
Case = tuple[str, nn.Module, Tensor, Tensor]


def demo_networks() -> Iterator[Case]:
    """Yield the demo's networks with training and test images."""
    data = digits(generator=torch.Generator().manual_seed(0))
    for kind in ("none", "batch", "layer", "group"):
        model = models.mlp(generator=torch.Generator().manual_seed(0), normalizer=kind)
        train(model, data.train_images, data.train_labels, epochs=15, generator=torch.Generator().manual_seed(0))
        yield f"digits {kind}", model.eval(), data.train_images, data.test_images


def trained_networks(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the trained networks with inputs from their training data and fresh ones."""
    sys.path.insert(0, str(options.models))
    networks = importlib.import_module("networks")
    for name in TRAINED:
        if options.only and name not in options.only:
            continue
        model, _ = networks.load(name)
        if name == "gpt_text":
            yield name, model, *tokens(options.text, options.samples, max(options.fresh, options.norms))
            continue
        archive = np.load(options.cifar)
        parts = [torch.from_numpy(archive[part]).float() / 255 for part in ("train", "test")]
        if name.startswith("mlp"):
            parts = [part / 3072**0.5 for part in parts]
        else:
            mean, std = (torch.tensor(value).view(3, 1, 1) for value in (networks.MEAN, networks.STD))
            parts = [(part - mean) / std for part in parts]
        yield name, model, parts[0], parts[1]


def tokens(files: list[pathlib.Path], samples: int, fresh: int) -> tuple[Tensor, Tensor]:
    """Return windows of 128 bytes: some to record, others as fresh ones."""
    ids = torch.tensor(list(b"".join(file.read_bytes() for file in sorted(files))))
    starts = torch.randint(0, len(ids) - 128, (samples + fresh,), generator=torch.Generator().manual_seed(0))
    windows = torch.stack([ids[start : start + 128] for start in starts])
    return windows[fresh:], windows[:fresh]


def timed(function: Callable[[], object]) -> tuple[object, float]:
    """Return what a function gives and its processor seconds."""
    began = time.process_time()
    result = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.process_time() - began


def pass_seconds(model: nn.Module, batch: Tensor) -> float:
    """Return the processor seconds of one float64 forward, per sample."""
    twin = copy.deepcopy(model).double()
    inputs = batch.double() if batch.is_floating_point() else batch
    with torch.no_grad():
        twin(inputs)
        return timed(lambda: twin(inputs))[1] / len(batch)


def measured(case: Case, options: argparse.Namespace) -> dict[str, object]:
    """Measure one network."""
    name, model, seen, fresh = case
    model = model.to(options.device)
    drawn = fresh[: options.norms].to(options.device)
    seen, fresh = seen[: options.samples].to(options.device), fresh[: options.fresh].to(options.device)
    one = pass_seconds(model, fresh[:BATCH])
    row: dict[str, object] = {"network": name, "samples": len(seen), "seconds per pass": one}
    domain, seconds = timed(lambda: ns.domain(model, list(seen.split(BATCH)), margin=options.margin))
    assert isinstance(domain, ns.Domain)
    row |= {"recording seconds": seconds, "recording passes per sample": seconds / len(seen) / max(one, 1e-9)}
    row["coverage"] = domain.coverage([fresh]).to_json()
    rungs, seconds = timed(lambda: ns.ladder(model, seen[:SHOWN], domain=domain, effort=options.effort))
    assert isinstance(rungs, ns.Ladder)
    row |= {"bounding seconds": seconds, "global": rungs["global"].log10_upper, "domain": rungs["best"].log10_upper}
    row |= {"method": rungs["best"].method, "inside": rungs["best"].log10_lower}
    point = ns.lipschitz(model, fresh if fresh.is_floating_point() else fresh[:1], scope="point")
    row["observed"] = point.log10_upper
    if options.norms:
        found, seconds = timed(lambda: ns.lipschitz(model, list(drawn.split(BATCH)), scope="data"))
        assert isinstance(found, ns.DataBracket)
        row |= {"data 99 %": found.log10_upper, "data samples": found.samples, "data seconds": seconds}
    if options.gains:
        few = seen[: options.gains]
        domain, seconds = timed(lambda: ns.domain(model, list(few.split(BATCH)), margin=options.margin, record="gains"))
        assert isinstance(domain, ns.Domain)
        bracket = ns.ladder(model, seen[:1], domain=domain)["gains"]
        row |= {"gains": bracket.log10_upper, "gains samples": len(few), "gains seconds": seconds}
        row["gains coverage"] = domain.coverage([fresh]).to_json()
        row["gains passes per sample"] = seconds / len(few) / max(one, 1e-9)
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path)
    parser.add_argument("--cifar", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--gains", type=int, default=100)
    parser.add_argument("--norms", type=int, default=299)
    parser.add_argument("--fresh", type=int, default=64)
    parser.add_argument("--margin", type=float, default=0.0)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--effort", default="fast")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    cases = demo_networks() if options.models is None else trained_networks(options)
    print(
        "log10 of           GLOBAL   DOMAIN    gains DATA 99 %  observed  coverage  recording (s, passes/sample)"
        "  bounding (s)"
    )
    rows = []
    for case in cases:
        row = measured(case, options)
        rows.append(row)
        share, gains, norms = row["coverage"], row.get("gains", float("nan")), row.get("data 99 %", float("nan"))
        assert isinstance(share, dict)
        print(
            f"{row['network']:<18}{row['global']:>7.2f}{row['domain']:>9.2f}{gains:>9.2f}{norms:>10.2f}{row['observed']:>10.2f}"
            f"{share['inside']:>6}/{share['samples']}{row['recording seconds']:>14.1f}"
            f"{row['recording passes per sample']:>8.1f}{row['bounding seconds']:>20.1f}",
            flush=True,
        )
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
