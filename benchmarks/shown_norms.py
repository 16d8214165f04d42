"""How far the operator norms that a watched run shows are off, in runs that had no part in choosing the rule.

    python benchmarks/shown_norms.py [--steps 300] [--every 10]

Eight runs on scikit-learn's digits: networks, optimizers and schedules of many kinds, in each tier. At every measured
step each norm that is shown is compared with the largest singular value of the weight as it was, written out as a
matrix. A line has the worst error and the one that 99 % keep below, in decades, the share of the norms that are shown,
and how often an error is larger than what the record says it may be (`norm_error`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import torch
from machine import header
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns

BATCH = 64


class Recurrent(nn.Module):
    """The rows of an image, one after another, through an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(8, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes of images `[b, 1, 8, 8]`."""
        return self.head(self.memory(x[:, 0])[0][:, -1])


class Attention(nn.Module):
    """The rows of an image as tokens of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(3))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes of images `[b, 1, 8, 8]`."""
        return self.head(self.layers(self.embed(x[:, 0])).mean(1))


def dense(*normalizers: Callable[[int], nn.Module], width: int = 96) -> nn.Module:
    """A hidden layer for every normalizer."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, width)]
    for normalizer in normalizers:
        layers += [normalizer(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convolutions() -> nn.Module:
    """Three convolutions with GroupNorm, the last with a stride."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2),
        nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


Make = Callable[[nn.Module], torch.optim.Optimizer]
Schedule = Callable[[int], float]
RUNS: dict[str, tuple[Callable[[], nn.Module], Make, Schedule]] = {
    "LayerNorm, AdamW": (
        lambda: dense(nn.LayerNorm, nn.LayerNorm),
        lambda m: torch.optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.1),
        lambda step: min(1.0, step / 50),
    ),
    "BatchNorm, SGD, steps of the rate": (
        lambda: dense(nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm1d),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.3, momentum=0.9, weight_decay=5e-4, nesterov=True),
        lambda step: 0.1 ** (step // 100),
    ),
    "no normalizer, RMSprop": (
        lambda: dense(nn.Identity, nn.Identity),
        lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3),
        lambda step: 1.0,
    ),
    "RMSNorm, Adagrad": (
        lambda: dense(nn.RMSNorm, nn.RMSNorm),
        lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05),
        lambda step: 1.0,
    ),
    "convolutions, Adam with L2": (
        convolutions,
        lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=1e-3),
        lambda step: 0.5 + 0.5 * math.cos(step / 100 * math.pi),
    ),
    "convolutions, SGD": (convolutions, lambda m: torch.optim.SGD(m.parameters(), lr=0.2), lambda step: 1.0),
    "LSTM, Adam": (Recurrent, lambda m: torch.optim.Adam(m.parameters(), lr=1e-2), lambda step: 1.0),
    "transformer, NAdam": (Attention, lambda m: torch.optim.NAdam(m.parameters(), lr=2e-3), lambda step: 1.0),
}
"""By name a network, its optimizer, and the factor of the learning rate at every step."""


def sizes(model: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shape of one sample at the input of every convolution."""
    found: dict[str, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: found.update({name: tuple(given[0].shape[1:])}))
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d)
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


def exact(model: nn.Module, name: str, shapes: dict[str, tuple[int, ...]]) -> float:
    """Return log10 of the largest singular value of a parameter's map."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    weight = getattr(module, last).detach().double()
    if isinstance(module, nn.Conv2d):
        shape = shapes[path]
        eye = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
        weight = F.conv2d(eye, weight, None, module.stride, module.padding).flatten(1)
        weight = weight.mT @ weight if weight.shape[0] > weight.shape[1] else weight @ weight.mT
        return math.log10(float(torch.linalg.eigvalsh(weight)[-1])) / 2
    return math.log10(float(torch.linalg.matrix_norm(weight, 2)))


def compared(name: str, tier: str, steps: int, every: int) -> Iterator[tuple[float | None, float | None]]:
    """Yield the error of every norm of a run, and what the record says it may be; None where it is not shown."""
    build, make, schedule = RUNS[name]
    torch.manual_seed(1)
    model = build()
    images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images = (images.float() / 8 - 1).reshape(-1, 1, 8, 8)
    shapes = sizes(model.eval(), images[:2])
    optimizer = make(model.train())
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    names = [key for key, parameter in model.named_parameters() if parameter.ndim > 1]
    truth: dict[int, dict[str, float]] = {}
    with ns.watch(model, optimizer, every=every, tier=tier) as run:
        for step in range(steps):
            chosen = torch.randint(len(images), (BATCH,))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            if step % every == 0:
                truth[step] = {key: exact(model, key, shapes) for key in names}
            optimizer.step()
            rate.step()
            run.observe(loss=loss)
    rows = run.history.of("weight")
    for record in run.records:
        if record.step not in truth:
            continue
        shown, errors = record.of("weight", "log10_norm"), record.of("weight", "norm_error")
        for row, value, error in zip(rows, shown, errors, strict=False):
            known = truth[record.step].get(row.parameters[0])
            if known is not None:
                yield (None, None) if value is None else (abs(value - known), error)


def main() -> None:
    """Print a line for each run and tier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(header())
    print(f"{'run':<36}{'tier':<10}{'norms':>7}{'shown':>9}{'worst':>9}{'99 %':>9}{'beyond norm_error':>19}")
    for name in RUNS:
        for tier in ("economy", "standard", "full"):
            found = list(compared(name, tier, given.steps, given.every))
            errors = sorted(error for error, _ in found if error is not None)
            beyond = sum(error > said + 1e-4 for error, said in found if error is not None and said is not None)
            high = errors[min(len(errors) - 1, int(0.99 * len(errors)))] if errors else math.nan
            print(
                f"{name:<36}{tier:<10}{len(found):>7}{len(errors) / max(len(found), 1):>9.1%}"
                f"{errors[-1] if errors else math.nan:>9.4f}{high:>9.4f}{beyond:>19}",
                flush=True,
            )


if __name__ == "__main__":
    main()
