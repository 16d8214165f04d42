"""A first look at a model, watching its training, and optimizers on spheres: what each costs, by turns."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import normscope as ns

from .. import sphere_optimizers
from .. import watching as watched
from .turns import Row, Way, by_turns, describe_failure, seconds_with_children

EVERY = 50
"""Steps from one record, or histogram, to the next; a turn is as many steps, so that each turn has one."""
BATCH = 16  # images


def spheres() -> Iterator[Row]:
    """Yield rows for one step over the convolutions of a ResNet18."""
    weights = sphere_optimizers.kernels("cpu")
    steps: dict[str, Callable[[], Any]] = {
        "normscope SphereSGD": ns.optim.SphereSGD(weights, lr=1e-4, units="channel").step,
        "normscope SphereAdam": ns.optim.SphereAdam(weights, lr=1e-4, units="channel").step,
        "torch SGD, momentum 0.9": torch.optim.SGD(weights, lr=1e-4, momentum=0.9, foreach=True).step,
        "torch Adam": torch.optim.Adam(weights, lr=1e-5, foreach=True).step,
    }
    ways: dict[str, Way | str] = {name: partial(_call, step) for name, step in steps.items()}
    name = "geoopt RiemannianSGD"
    ways[name] = partial(_call, sphere_optimizers.riemannian(weights).step) if find_spec("geoopt") else "not installed"
    for way in ways.values():
        if callable(way):
            way(0), way(0)  # an optimizer makes its state in the first step
    yield from by_turns("one step, 11.2 million weights in 20 tensors", ways, 12)


def _call(function: Callable[[], Any], turn: int) -> dict[str, Any]:
    function()
    return {}


def first_look() -> Iterator[Row]:
    """Yield rows for what a user may run first on a model and a batch."""
    torch.manual_seed(0)
    labels = torch.randint(10, (8,))
    yield from by_turns(
        "ResNet18, 8 images of 32x32", look_ways(watched.resnet18(), torch.randn(8, 3, 32, 32), labels), 3
    )
    yield from by_turns(
        "MLP of 2.1 million weights, batch 8", look_ways(watched.mlp(), torch.randn(8, 3, 32, 32), labels), 3
    )


def look_ways(model: nn.Module, x: Tensor, labels: Tensor) -> dict[str, Way | str]:
    """Return every way to look at a model."""

    def normscope_check(turn: int) -> dict[str, Any]:
        check = ns.check(model, (x, labels), loss="cross_entropy")
        return {"says": f"verdict, {len(check.findings)} findings and notes, values and gradients by depth"}

    def torchinfo(turn: int) -> dict[str, Any]:
        import torchinfo

        summary = torchinfo.summary(model, input_data=x, verbose=0)
        return {"says": f"shapes, parameters and multiplications of {len(summary.summary_list)} modules"}

    def weightwatcher(turn: int) -> dict[str, Any]:
        import weightwatcher

        logging.getLogger("weightwatcher").setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(io.StringIO()):
            details = weightwatcher.WeightWatcher(model=model).analyze()
        flagged = int((details["warning"] != "").sum())
        return {"says": f"spectra of {len(details)} layers, {flagged} of them flagged"}

    peers = {"torchinfo": torchinfo, "weightwatcher": weightwatcher}
    return {"normscope check": normscope_check} | {
        name: way if find_spec(name) else "not installed" for name, way in peers.items()
    }


class CockpitLoop(watched.Loop):
    """Steps under Cockpit's economy configuration, as its documentation has them."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(build, BATCH, "cpu", watched.alone)
        from backpack import extend
        from cockpit import Cockpit
        from cockpit.utils import schedules
        from cockpit.utils.configuration import configuration

        self.model = extend(self.model)
        self.loss, self.each_loss = extend(nn.CrossEntropyLoss()), extend(nn.CrossEntropyLoss(reduction="none"))
        quantities = configuration("economy", track_schedule=schedules.linear(interval=EVERY))
        self.cockpit = Cockpit(self.model.parameters(), quantities=quantities)

    def run(self, steps: int) -> float:
        """Train."""
        for _ in range(steps):
            x, labels = self.data[self.count % 4], self.labels[self.count % 4]
            self.optimizer.zero_grad()
            loss, losses = self.loss(self.model(x), labels), self.each_loss(self.model(x), labels)
            info = {"batch_size": BATCH, "individual_losses": losses, "loss": loss, "optimizer": self.optimizer}
            with self.cockpit(self.count, info=info):
                loss.backward(create_graph=self.cockpit.create_graph(self.count))
            self.optimizer.step()
            self.count += 1
        return 0.0


def plain_convolutions() -> nn.Module:
    """Three convolutions without a normalizer, which Cockpit's BackPACK can follow in train mode."""
    return nn.Sequential(*(part for part in watched.convolutions() if not isinstance(part, nn.BatchNorm2d)))


def watching() -> Iterator[Row]:
    """Yield rows for fifty training steps, watched and not."""
    for case, build in (("with BatchNorm", watched.convolutions), ("without a normalizer", plain_convolutions)):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            ways = watching_ways(build, Path(folder), stack)
            yield from by_turns(f"{EVERY} steps of three convolutions {case}", ways, 6, clock=seconds_with_children)
            watched.LOGS.clear()


def watching_ways(build: Callable[[], nn.Module], folder: Path, stack: ExitStack) -> dict[str, Way | str]:
    """Return a loop per tool; each has run its first steps."""
    tools: dict[str, tuple[str, Any]] = {
        "alone": ("torch", watched.alone),
        "alone, again": ("torch", watched.alone),
        "normscope, every 50": ("normscope", watched.watched(EVERY, folder)),
        "wandb.watch, every 50": ("wandb", watched.wandb_watch(EVERY, folder)),
        "TensorBoard histograms, every 50": ("tensorboard", watched.tensorboard(EVERY, folder)),
    }
    ways: dict[str, Way | str] = {}
    for name, (package, attach) in tools.items():
        if not find_spec(package):
            ways[name] = "not installed"
            continue
        loop = watched.Loop(build, BATCH, "cpu", attach)
        stack.callback(loop.stack.close)
        ways[name] = warm_up(loop)
    try:
        ways["Cockpit, economy, every 50"] = warm_up(CockpitLoop(build))
    except Exception as error:
        ways["Cockpit, economy, every 50"] = describe_failure(error)
    return ways


def warm_up(loop: watched.Loop) -> Way:
    """Run the first steps of a loop, and return what runs the next."""
    loop.run(EVERY)
    return lambda turn: _call(partial(loop.run, EVERY), turn)
