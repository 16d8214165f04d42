"""`PopulationWork`: the jobs of a population; each builds a cohort of networks, trains it together and measures it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.networks import cnn, mlp
from normscope.toolkit import describe_error, ignore_warnings

from .measures import MEASURES, MemberFigures, measured
from .member import Member
from .noisy import NoisyData
from .recipes import Cohort, Recipe
from .stacked_training import AT_ONCE, Stop, TrainedMember, train_together

Builder = Callable[[Recipe, tuple[int, ...], int, torch.Generator], nn.Module]
"""Builds a network from its recipe, the shape of an image, the number of classes and a generator."""


def _mlp(recipe: Recipe, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
    options = {"width": recipe.width, "depth": recipe.depth, "inputs": math.prod(shape)}
    return mlp(generator=generator, normalizer=recipe.normalizer, classes=classes, **options)


def _cnn(recipe: Recipe, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> nn.Module:
    options = {"width": recipe.width, "depth": recipe.depth, "channels": shape[0]}
    return cnn(generator=generator, normalizer=recipe.normalizer, classes=classes, **options)


NETWORKS: dict[str, Builder] = {"mlp": _mlp, "cnn": _cnn}
"""The builders of networks by the name of their kind."""


@dataclass(frozen=True, slots=True)
class PopulationWork:
    """The data and settings that all cohorts share.

    Attributes:
        data: the samples.
        network: the kind of network, a name in `NETWORKS`.
        stop: when a training ends.
        momentum: the momentum of SGD.
        measures: the names of the measures to take.
    """

    data: NoisyData
    network: str
    stop: Stop
    momentum: float
    measures: Sequence[str] = tuple(MEASURES)

    @property
    def local(self) -> bool:
        """Whether the samples are on a GPU, which processes do not share."""
        return self.data.train_images.is_cuda

    def do(self, job: Cohort) -> tuple[Member, ...]:
        """Return the outcome of each network of a cohort; if training them together fails, each is trained alone."""
        with ignore_warnings():
            try:
                trained = self.train(job)
            except Exception as error:
                if len(job) == 1:
                    return self.failed(job, describe_error(error))
                return tuple(member for recipe in job for member in self.do((recipe,)))
            summary = {one.recipe: self.member(one) for one in trained}
        return tuple(summary[recipe] for recipe in job)

    def failed(self, job: Cohort, reason: str) -> tuple[Member, ...]:
        """Return the members that stand for a cohort that could not be done."""
        return tuple(Member(recipe=recipe, status="failed", reason=reason) for recipe in job)

    def train(self, job: Cohort) -> list[TrainedMember]:
        """Return the networks of a cohort after their training."""
        generators = [torch.Generator().manual_seed(recipe.seed) for recipe in job]
        shape, device = tuple(self.data.train_images.shape[1:]), self.data.train_images.device
        build = NETWORKS[self.network]
        models = [build(one, shape, self.data.classes, drawn).to(device) for one, drawn in zip(job, generators)]
        options = {"stop": self.stop, "momentum": self.momentum, "generators": generators}
        return list(train_together(models, job, self.data, **options))  # type: ignore[arg-type]

    def member(self, trained: TrainedMember) -> Member:
        """Measure a network that reached the loss; one that raises an error counts as failed."""
        figures: dict[str, Any] = {"recipe": trained.recipe, "steps": trained.steps, "train_loss": trained.loss}
        if trained.status == "diverged":
            return Member(status="diverged", **figures)
        try:
            data = self.data
            figures["train_error"] = _error(trained.model, data.train_images, data.train_labels)
            figures["test_error"] = data.test_error(_error(trained.model, data.test_images, data.test_labels))
            if trained.status == "reached":
                figures["measures"], figures["notes"] = measured(MemberFigures(trained, data), self.measures)
        except Exception as error:
            return Member(status="failed", reason=describe_error(error), **figures)
        return Member(status=trained.status, **figures)


@torch.no_grad()
def _error(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that a model in eval mode classifies otherwise than their label."""
    parts = zip(images.split(AT_ONCE), labels.split(AT_ONCE))
    return sum(int((model(some).argmax(1) != targets).sum()) for some, targets in parts) / len(images)
