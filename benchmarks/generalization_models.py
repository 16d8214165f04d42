"""Every generalization bound for the trained networks on CIFAR-10: the table that `docs/generalization.md` discusses.

    python benchmarks/generalization_models.py --device cuda --write      all 50,000 training and 10,000 test images
    python benchmarks/generalization_models.py --samples 1000 --steps 20 --models mlp10_bn_cifar10      on a CPU

The shared folder, beside the checkout or in it, holds `models/networks.py` with `load(name)` and `data/unpack.py` with
`cifar10(split)`; `--images FILE` takes an npz with `train`, `train_labels`, `test` and `test_labels` instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from machine import header
from torch import Tensor, nn

import normscope as ns
import normscope_lab as lab

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("mlp10_bn_cifar10", "resnet18_cifar10", "vit_cifar10")
LEFT_OUT = "gpt_text takes token ids: bounds that need a distance between inputs do not speak of it, and it is refused."
RESULT = ROOT / "docs" / "results" / "generalization_models"


def shared_folder(given: Path | None) -> Path:
    """Return the folder that holds networks and data."""
    tried = [given] if given is not None else [ROOT.parent / "shared", ROOT / "shared"]
    found = next((path for path in tried if (path / "models" / "networks.py").is_file()), None)
    if found is None:
        raise SystemExit(f"no models/networks.py in {', '.join(map(str, tried))}: give --shared FOLDER")
    return found


def images(folder: Path, file: Path | None, samples: int | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Return uint8 images and labels by part, the first so many of each."""
    if file is not None:
        archive = np.load(file)
        parts = {split: (archive[split], archive[f"{split}_labels"]) for split in ("train", "test")}
    else:
        sys.path.insert(0, str(folder / "data"))
        from unpack import cifar10  # type: ignore[import-not-found]

        parts = {split: cifar10(split) for split in ("train", "test")}
    return {
        split: (torch.from_numpy(np.ascontiguousarray(x[:samples])), torch.from_numpy(y[:samples].astype(np.int64)))
        for split, (x, y) in parts.items()
    }


class Batches:
    """Batches of uint8 images as a network takes them; they can be read many times."""

    def __init__(self, x: Tensor, y: Tensor, shift: Tensor, scale: Tensor, batch: int) -> None:
        self.parts = list(zip(x.split(batch), y.split(batch)))
        self.shift, self.scale = shift, scale

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self):  # type: ignore[no-untyped-def]
        for x, y in self.parts:
            yield (x.float() / 255.0 - self.shift) / self.scale, y


def scale_of(name: str, networks: object) -> tuple[Tensor, Tensor]:
    """Return shift and scale of the pixels from 0 to 1, by channel."""
    if name.startswith("mlp"):
        return torch.zeros(3, 1, 1), torch.full((3, 1, 1), 3072.0**0.5)
    return tuple(torch.tensor(getattr(networks, key)).view(3, 1, 1) for key in ("MEAN", "STD"))  # type: ignore[return-value]


def table(found: lab.Generalization, seconds: float) -> str:
    """Return the rows as text."""
    lines = [
        f"## {found.name}",
        f"{found.samples:,} samples of D, {found.held_out:,} set aside, {found.tested:,} test samples; delta "
        f"{found.delta:g}; {seconds:.0f} s",
        f"{found.loss}: {found.train_loss:.4g} on D, {found.test_loss:.4g} on test, gap {found.gap:.4g}; error "
        f"{found.train_error:.4g} on D, {found.test_error:.4g} on test",
        "",
        f"{'bound':<36}{'log10 value':>12}{'value':>12}  {'evidence':<24}{'vacuous':<9}{'as printed':>10}  terms",
    ]
    for row in found.rows:
        terms = ", ".join(f"{term.name} {term.value:.3g}" for term in row.terms)
        value = f"{row.value:.4g}" if row.log10_value < 4 else "-"
        lines.append(
            f"{row.name:<36}{row.log10_value:>12.3f}{value:>12}  {row.evidence:<24}{'yes' if row.vacuous else 'no':<9}"
            f"{'' if row.log10_as_printed is None else f'{row.log10_as_printed:.3f}':>10}  {terms}"
        )
    lines += ["", "Conditions that are not met, or not known to be:"]
    for row in found.rows:
        lines += [f"  {row.name}: {one.what}: {one.status} ({one.why})" for one in row.missing]
    lines += ["", *(f"  {row.name}: {row.note}" for row in found.rows if row.note)]
    lines += [f"  note: {note}" for note in found.notes]
    return "\n".join(line.rstrip() for line in lines)


def main() -> None:
    """Print a table per network, and write all of them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, help="of either part; all of them if absent")
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--steps", type=int, default=2000, help="of the PAC-Bayes search")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument(
        "--sharpness", action="store_true", help="measure the sharpness too, for the bound of Lyu et al."
    )
    parser.add_argument(
        "--duplicates", type=int, default=0, help="test images that may also stand among the training ones"
    )
    parser.add_argument("--write", action="store_true", help="write docs/results/generalization_models_*.txt")
    given = parser.parse_args()
    folder = shared_folder(given.shared)
    sys.path.insert(0, str(folder / "models"))
    import networks  # type: ignore[import-not-found]

    parts = images(folder, given.images, given.samples)
    options = " ".join(sys.argv[1:])
    texts = [f"python benchmarks/generalization_models.py {options}".rstrip(), "", header(given.device)]
    print("\n".join(texts), flush=True)
    for name in given.models:
        model: nn.Module = networks.load(name)[0].to(given.device)
        shift, scale = scale_of(name, networks)
        loaders = {split: Batches(x, y, shift, scale, given.batch) for split, (x, y) in parts.items()}
        ends = (float(((0.0 - shift) / scale).min()) - 1e-6, float(((1.0 - shift) / scale).max()) + 1e-6)
        began = time.monotonic()
        found = ns.generalization(
            model,
            loaders["train"],
            loaders["test"],
            input_range=ends,
            steps=given.steps,
            sharpness=given.sharpness,
            duplicates=given.duplicates,
        )
        text = table(found, time.monotonic() - began).replace(f"## {found.name}", f"## {name}")
        print(f"\n{text}", flush=True)
        texts += ["", text]
    texts += ["", LEFT_OUT]
    print(f"\n{LEFT_OUT}")
    if given.write:
        path = RESULT.with_name(f"{RESULT.name}_{'h200' if given.device == 'cuda' else '2cores'}.txt")
        path.write_text("\n".join(texts) + "\n")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
