"""Figure 2 of Than over seeds: the product of input variances under three kinds of weight decay.

One run of each network cannot tell the kind of decay from the seed. Here only the totals over the layers are kept, and
nothing is watched, so that many trainings fit onto one GPU (`benchmarks/decay_seeds.py`): there one step of a training
is recorded once as a CUDA graph and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.data import Split
from normscope.report import Block, Curve, Curves, thinned

from ..base import Claim, Figures, Job, Judgement, Measured, Settings, experiment_of
from ..judging import read, readings, spread
from . import figures as paper
from .pictures import POINTS
from .watched_training import DECAYS, JPEG, NETWORKS, TITLES, VARIANCES, input_variances, load, network

QUICK: Settings = {**paper.QUICK, "networks": ("resnet18",), "seeds": 1, "epochs": 2, "images": 256}
FULL: Settings = {**paper.FULL, "networks": ("resnet18",), "seeds": 6}
LATER = 5
"""The later part of a training begins after one epoch in so many."""
TEST_EVERY = 5
"""The test accuracy is taken after every so many epochs."""


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job per network, kind of decay and seed; all decays of a seed begin from the same weights."""
    kinds = [f"{name} {decay}" for name in settings["networks"] for decay in settings["decays"]]
    return tuple(Job(kind, seed) for kind in kinds for seed in range(settings["seeds"]))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network and return the totals of its input variances after every epoch."""
    training = Training(settings, job, load(settings)[0])
    for _ in range(settings["epochs"]):
        training.begin_epoch()
        for _ in range(training.steps):
            training.step()
        training.end_epoch()
    return training.curves


class Training:
    """One training run, whose steps read their samples through tensors alone, so that a step can be replayed.

    Args:
        settings: the settings.
        job: the network, the kind of decay and the seed.
        split: the data.
        compiled: what calls the model, if it is not called itself.
    """

    def __init__(self, settings: Settings, job: Job, split: Split, compiled: Any = None) -> None:
        name, decay = job.kind.split()
        self.seed, self.device = job.seed, split.train_images.device
        on_gpu, size = self.device.type == "cuda", settings["batch_size"]
        narrow = on_gpu and name in settings["autocast"]
        cast = partial(torch.autocast, "cuda", dtype=torch.bfloat16, cache_enabled=False)
        self.cast: Any = cast if narrow else nullcontext
        generator = torch.Generator().manual_seed(job.seed)
        shape: Any = tuple(split.train_images[0].shape)
        self.model = network(settings, name, shape, generator).to(self.device).train()
        if name == "resnet18":  # this layout would make EfficientNet-B3 slower
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.call = compiled or call_model
        self.split, self.size, self.steps = split, size, len(split.train_images) // size
        options = {} if decay == "none" else {"weight_decay": settings["weight_decay"]}
        options |= {"fused": True, "capturable": True} if on_gpu else {}
        self.optimizer = DECAYS[decay](self.model.parameters(), lr=settings["learning_rate"], **options)
        self.order = torch.zeros(self.steps, size, dtype=torch.long, device=self.device)
        self.at = torch.zeros(1, dtype=torch.long, device=self.device)
        self.losses, self.right = torch.zeros(2, 1, device=self.device)
        precision = "bfloat16 autocast" if narrow else "float32"
        self.curves: dict[str, Any] = {"network": name, "decay": decay, "precision": precision}
        self.curves |= {key: [] for key in (*VARIANCES, "loss", "train_accuracy", "test_accuracy")}
        self._probe()

    @property
    def done(self) -> int:
        """The number of finished epochs."""
        return len(self.curves["loss"])

    def begin_epoch(self) -> None:
        """Draw the order of the samples."""
        generator = torch.Generator().manual_seed(1000 * self.seed + self.done)
        rows = torch.randperm(len(self.split.train_images), generator=generator)[: self.order.numel()]
        self.order.copy_(rows.reshape(self.order.shape))
        for total in (self.at, self.losses, self.right):
            total.zero_()

    def step(self) -> None:
        """Take the next step of the epoch."""
        rows = self.order[self.at][0]
        labels = self.split.train_labels[rows]
        self.optimizer.zero_grad()
        with self.cast():
            output = self.call(self.model, self.split.train_images[rows])
            loss = nn.functional.cross_entropy(output, labels)
        loss.backward()
        self.optimizer.step()
        self.losses += loss.detach()
        self.right += (output.detach().argmax(1) == labels).sum()
        self.at += 1

    def end_epoch(self) -> None:
        """Add the loss, the accuracy and the totals of the input variances to the curves."""
        self.curves["loss"].append(round(float(self.losses) / self.steps, 5))
        self.curves["train_accuracy"].append(round(float(self.right) / (self.steps * self.size), 5))
        self._probe()
        if self.done % TEST_EVERY == 0:
            self.curves["test_accuracy"].append([self.done, self._accuracy()])

    def _probe(self) -> None:
        for name, values in input_variances(self.model, self.split.train_images[: self.size]).items():
            self.curves[name].append(round(math.fsum(values), 3))

    @torch.no_grad()
    def _accuracy(self) -> float:
        self.model.eval()
        right = 0
        for part, answers in zip(self.split.test_images.split(1000), self.split.test_labels.split(1000)):
            with self.cast():
                right += int((self.model(part).argmax(1) == answers).sum())
        self.model.train()
        return right / len(self.split.test_labels)


def call_model(model: nn.Module, images: Tensor) -> Tensor:
    """Return the output of a model; compiled, it serves all models of one shape."""
    output: Tensor = model(images)
    return output


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return the figures of each network and decay over its seeds, after as many epochs as all of its runs have."""
    summary = {"decoupled_shrinkage": paper.decoupled_shrinkage(settings)}
    for name in dict.fromkeys(curves["network"] for curves in measured.values()):
        runs = [curves for curves in measured.values() if curves["network"] == name]
        last = min(len(curves["loss"]) for curves in runs)
        later = math.ceil(last / LATER)
        summary |= {f"{name}.epochs": float(last), f"{name}.later": float(later)}
        for decay in dict.fromkeys(curves["decay"] for curves in runs):
            same = [curves for curves in runs if curves["decay"] == decay]
            variances = [curves["variance"] for curves in same]
            key = f"{name}.{decay}"
            summary |= spread(f"{key}.log10_growth", [course[last] - course[later] for course in variances])
            summary |= spread(f"{key}.log10_reduction", [-course[last] / 2.0 for course in variances])
            summary |= spread(f"{key}.log10_least", [-max(course[: last + 1]) / 2.0 for course in variances])
            summary |= spread(f"{key}.train_accuracy", [curves["train_accuracy"][last - 1] for curves in same])
    return summary


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the product of 1/sigma of every run by epoch, one picture per network."""
    pictures = []
    for name in dict.fromkeys(curves["network"] for curves in measured.values()):
        runs = {job: curves for job, curves in measured.items() if curves["network"] == name}
        curves = tuple(
            Curve(
                name=f"{TITLES[one['decay']]}, seed {job.seed}",
                points=thinned([(float(at), -total / 2.0) for at, total in enumerate(one["variance"])], POINTS),
                depth=list(TITLES).index(one["decay"]) / (len(TITLES) - 1),
            )
            for job, one in runs.items()
        )
        pictures.append(
            Curves(
                title=f"Product of 1/sigma over seeds: {NETWORKS[name]}",
                curves=curves,
                axis="log10 of the product",
                along="epoch",
                rules=(("no change", 0.0),),
            )
        )
    return tuple(pictures)


def goes_on(figures: Figures, name: str = "resnet18") -> Judgement:
    """Judge whether the product of variances goes on growing after the first epochs; decays are the readings."""
    table: list[tuple[str, ...]] = [("", *TITLES.values())]
    words = {
        "log10_growth": "log10 of the factor by which the product of variances grows in the later part",
        "log10_least": "log10 of the product of 1/sigma where it is least",
        "log10_reduction": "log10 of the product of 1/sigma after the last epoch",
        "train_accuracy": "accuracy in training",
    }
    for key, title in words.items():
        spreads = (read(figures, f"{name}.{decay}.{key}") for decay in TITLES)
        table.append((title, *(f"{one.median:.3g} ({one.low:.3g} to {one.high:.3g})" for one in spreads)))
    judgement = readings(
        [[read(figures, f"{name}.{decay}.log10_growth")] for decay in TITLES],
        above=0.0,
        evidence=f"{figures[f'{name}.epochs']:g} epochs, of which the later part begins after "
        f"{figures[f'{name}.later']:g}; medians over {figures[f'{name}.coupled.log10_growth.seeds']:g} seeds with 95 % "
        f"intervals. AdamW's decay by itself shortens the weights by {100 * figures['decoupled_shrinkage']:.2g} % in a "
        "whole run, so that its arm is next to one without decay: these arms do not separate the strength of a decay "
        "from the place where it acts.",
    )
    return judgement._replace(table=tuple(table))


DECAY_SEEDS = experiment_of(
    __name__,
    name="than.decays",
    title="Than, figure 2 over seeds: three kinds of weight decay",
    about=f"{paper.ABOUT} Here each training has six seeds, which decide weights and order of the samples; how many "
    "epochs all of them came to is part of the result. ResNet18 is trained in bfloat16. Totals over the layers alone "
    f"are kept. Data: {JPEG}.",
    claims=(
        Claim(
            id="than.figure2.later",
            where="Figure 2, caption",
            text="After the first epochs the product of the input variances of ResNet18 goes on growing.",
            quotation="Consequently, the cumulative product of layer-wise variances grows approximately exponentially.",
            corrected="Without decay it goes on growing, and with AdamW's, which is next to none at these settings; "
            "with 1e-4 in the gradient, as torch's Adam does, it grows in the first epochs and then falls.",
            judge=goes_on,
        ),
    ),
    stored=True,
    task="CIFAR-10",
)
"""The experiment."""
