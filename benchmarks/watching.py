"""What watching costs: a training step alone and watched, side by side in one run.

    python benchmarks/watching.py               a convolutional network with BatchNorm, an MLP and a small GPT
    python benchmarks/watching.py --cuda        ResNet18 at batch 128 and a GPT of 12 blocks of width 768, on one GPU

Variants take turns of fifty steps from the first step on, on models that start from the same weights, until the one
without watching has run for so many seconds (a minute: over that the share of the time is promised). Without a GPU all
seconds are those of the processor, so that what else a machine does changes little. `whole` is the
time of all turns over that without watching, the start with it; `later` the median over the turns of the second half,
turn by turn, with its quartiles. `says` is what the run says of its own cost, in the same steps. `calm` is the same as
`whole` without the tenth of the turns that took longest, which a busy machine disturbs less.
`foreach` takes the norms of all parameters
and gradients at every step; `wandb` is wandb.watch(log="all") in a run that is never sent, `tensorboard` a histogram of
every parameter and gradient, both at their interval. Those that are not installed are left out.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import normscope as ns
from normscope.doctor.monitor import watching
from normscope.doctor.monitor.schedule import TimeBudget


class Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a skip (He et al. 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the skip."""
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.skip(x))


def resnet18() -> nn.Module:
    """ResNet18 for 32x32 images: 11.2 million parameters."""
    blocks: list[nn.Module] = []
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(before, after, stride), Block(after, after, 1)]
        before = after
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def convolutions() -> nn.Module:
    """Three blocks of convolution, BatchNorm, ReLU."""
    widths = (3, 32, 64, 64)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * 16, 10))


def mlp() -> nn.Module:
    """2.1 million parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.BatchNorm1d(512),
        nn.ReLU(), nn.Linear(512, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


class GPT(nn.Module):
    """A causal language model with LayerNorm in front of each branch."""

    def __init__(self, blocks: int, width: int, vocabulary: int = 4096, length: int = 512) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GPTBlock(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next token at every place, as classes of one long batch."""
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        made: Tensor = self.head(self.norm(x)).flatten(0, 1)
        return made


class GPTBlock(nn.Module):
    """Attention and a multilayer perceptron, each beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches."""
        parts = self.attention(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Loop:
    """A training loop that can be run a few steps at a time.

    Args:
        build: makes the model.
        batch: samples of a step.
        device: where.
        attach: begins to watch (model, optimizer, stack); returns what is called with the loss after each backward.
    """

    def __init__(self, build: Callable[[], nn.Module], batch: int, device: str, attach: Any) -> None:
        torch.manual_seed(0)
        self.model = build().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if isinstance(self.model, GPT):
            text = torch.randint(len(self.model.tokens.weight), (4, batch, len(self.model.places.weight) + 1))
            self.data, self.labels = text[..., :-1].to(device), text[..., 1:].flatten(1).to(device)
        else:
            self.data = torch.randn(4, batch, 3, 32, 32, device=device)
            self.labels = torch.randint(10, (4, batch), device=device)
        self.stack = ExitStack()
        self.each: Callable[[Tensor], None] | None = attach(self.model, self.optimizer, self.stack)
        self.clock = time.process_time if device == "cpu" else time.perf_counter
        self.count, self.device, self.left = 0, device, self.clock()
        self.total = self.spent = 0.0  # seconds, and what of them the watched run says that it took

    @property
    def watch(self) -> Any:
        """The watched run, if there is one."""
        return next((run for run, model, _ in LOGS.values() if model is self.model), None)

    @property
    def every(self) -> int:
        """The interval at which it is measured at most."""
        return next(int(name.rpartition(" ")[2]) for _, model, name in LOGS.values() if model is self.model)

    def run(self, steps: int) -> float:
        """Return the seconds of so many steps."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        began = self.clock()
        for run, model, _ in LOGS.values():
            if model is self.model:  # while others have their turn this run does not go on
                run.skip(began - self.left)
        for _ in range(steps):
            index = self.count % 4
            self.count += 1
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(self.data[index]), self.labels[index])
            loss.backward()
            if self.each is not None:
                self.each(loss)
            self.optimizer.step()
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.left = self.clock()
        self.total += self.left - began
        self.spent = 0.0 if self.watch is None else self.watch.overhead * self.total
        return self.left - began


def alone(model: nn.Module, optimizer: Any, stack: ExitStack) -> None:
    """Nothing."""


def foreach(model: nn.Module, optimizer: Any, stack: ExitStack) -> Callable[[Tensor], None]:
    """The norms of all parameters and gradients, at every step."""
    parameters = list(model.parameters())

    def each(loss: Tensor) -> None:
        torch._foreach_norm([p.detach() for p in parameters])
        torch._foreach_norm([p.grad for p in parameters if p.grad is not None])

    return each


def watched(every: int, folder: Path, tier: str = "economy") -> Any:
    """Normscope."""

    def attach(model: nn.Module, optimizer: Any, stack: ExitStack) -> Callable[[Tensor], None]:
        log = folder / f"{type(model).__name__}-{id(model)}"
        on_cpu = next(model.parameters()).device.type == "cpu"
        with patch.object(watching, "TimeBudget", PROCESSOR_BUDGET if on_cpu else TimeBudget):
            run = stack.enter_context(ns.watch(model, optimizer, every=every, tier=tier, log=log, panel=False))
        LOGS[log] = (run, model, f"{tier}, every {every}")
        return lambda loss: run.observe(loss=loss)

    return attach


PROCESSOR_BUDGET = partial(TimeBudget, clock=time.process_time_ns)
"""The default overhead, by the time of the processor."""
TURN_STEPS = 50
"""Steps of a variant before the next one has its turn."""
LOGS: dict[Path, tuple[Any, nn.Module, str]] = {}
"""By folder of the log: the run, its model, and how it is called."""


def wandb_watch(every: int, folder: Path) -> Any:
    """W&B, offline."""

    def attach(model: nn.Module, optimizer: Any, stack: ExitStack) -> Callable[[Tensor], None]:
        import wandb

        run = wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(silent=True, console="off"))
        stack.callback(run.finish)
        run.watch(model, log="all", log_freq=every)
        return lambda loss: run.log({"loss": loss.detach()})

    return attach


def tensorboard(every: int, folder: Path) -> Any:
    """Histograms of every parameter and gradient."""

    def attach(model: nn.Module, optimizer: Any, stack: ExitStack) -> Callable[[Tensor], None]:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / f"tensorboard{id(model)}"))
        stack.callback(writer.close)
        count = 0

        def each(loss: Tensor) -> None:
            nonlocal count
            if count % every == 0:
                for name, parameter in model.named_parameters():
                    writer.add_histogram(name, parameter.detach(), count)
                    writer.add_histogram(f"{name}/grad", parameter.grad, count)
                writer.add_scalar("loss", loss.detach(), count)
            count += 1

        return each

    return attach


def variants(folder: Path) -> Iterator[tuple[str, Any]]:
    """Name and attach every variant."""
    yield "alone", alone
    yield "alone again", alone
    yield "foreach norms, every step", foreach
    for every in (10, 50):
        yield f"economy, every {every}", watched(every, folder)
    yield "standard, every 50", watched(50, folder, "standard")
    yield "wandb.watch(all), every 50", wandb_watch(50, folder)
    yield "TensorBoard histograms, every 50", tensorboard(50, folder)


def compare(title: str, build: Callable[[], nn.Module], batch: int, device: str, seconds: float, only: Any) -> None:
    """Print one table."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        loops: dict[str, Loop] = {}
        for name, attach in variants(Path(temporary)):
            if only and not any(word in name for word in ("alone", *only)):
                continue
            try:
                loops[name] = Loop(build, batch, device, attach)
                stack.callback(loops[name].stack.close)
            except ImportError as error:
                print(f"{name}: left out, {error}")
        Loop(build, batch, device, alone).run(TURN_STEPS)  # what torch does once in a process
        times: dict[str, list[float]] = {name: [] for name in loops}
        names = list(loops)
        while sum(times["alone"]) < seconds or len(times["alone"]) < 4:
            turn = len(times["alone"])
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].append(loops[name].run(TURN_STEPS))
        parameters = sum(p.numel() for p in loops["alone"].model.parameters())
        turns, steps = len(times["alone"]), loops["alone"].count
        step_ms = sum(times["alone"]) / steps * 1e3
        print(
            f"\n{title}: {parameters:,} parameters, batch {batch}, {device}, {step_ms:.2f} ms a step, {steps:,} steps"
        )
        for name, own in times.items():
            ratios = [mine / base - 1 for mine, base in zip(own, times["alone"])]
            later, calm = statistics.quantiles(ratios[turns // 2 :]), turns - turns // 10
            whole = sum(own) / sum(times["alone"]) - 1
            undisturbed = sum(sorted(own)[:calm]) / sum(sorted(times["alone"])[:calm]) - 1
            says = "" if loops[name].watch is None else f", says {loops[name].spent / loops[name].total:.2%}"
            print(
                f"  {name:34s} whole {whole:+.2%}, calm {undisturbed:+.2%}, later {later[1]:+.2%} (quartiles "
                f"{later[0]:+.2%} to {later[2]:+.2%}){says}; first turn {own[0]:.2f} s"
            )
        for name, loop in loops.items():
            if loop.watch is not None:
                records, due = len(loop.watch.records), -(-loop.count // loop.every)
                ages = loop.watch.records[-1].of("weight", "norm_age")
                print(
                    f"  {name}: {records} of {due} steps that were due are measured; norms are "
                    f"{max((a for a in ages if a is not None), default=0):.0f} steps old at most"
                )
                describe_record(name, loop)
        stack.close()
        for log, (run, _, name) in LOGS.items():
            size = (log / "log.jsonl").stat().st_size
            print(f"  {name}: {1000 * size / run.step / 1024:.0f} KiB of log per 1,000 steps")
        LOGS.clear()


class Calls(TorchDispatchMode):
    """Counts what torch is asked to compute; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a call."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def describe_record(name: str, loop: Loop) -> None:
    """Print what records cost: calls of torch, and milliseconds of the parts as the run itself expects them."""
    costs: dict[str, list[float]] = {}
    budget = loop.watch._hooks.budget
    for task in budget._costs:
        costs.setdefault(task if isinstance(task, str) else task[0], []).append(budget.expect(task) * 1e3)
    listed = ", ".join(f"{kind} {statistics.median(all_ms):.2f} (of {len(all_ms)})" for kind, all_ms in costs.items())
    counts: dict[bool, list[int]] = {False: [], True: []}
    for _ in range(4 * loop.every):
        due = loop.count % loop.every == 0
        with Calls() as calls:
            loop.run(1)
        counts[due].append(calls.count)
    usual = statistics.median(counts[False])
    print(f"  {name}: calls of torch at steps that are due {[c - usual for c in counts[True]]}; milliseconds {listed}")


def measure_unmeasured() -> None:
    """Print what a step costs that is not measured, of a network so small that this shows."""
    x, times = torch.randn(4, 8), {"alone": [], "watched": [], "watched, with its loss": []}
    for _ in range(40):
        for name, measured in times.items():
            model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            with ExitStack() as stack:
                watch = None
                if name != "alone":
                    watch = stack.enter_context(ns.watch(model, optimizer, every=10**9, panel=False))
                for part in range(6):
                    began = time.perf_counter()
                    for _ in range(25):
                        optimizer.zero_grad()
                        loss = model(x).square().mean()
                        loss.backward()
                        if name.endswith("loss"):
                            watch.observe(loss=loss)
                        optimizer.step()
                    measured += [(time.perf_counter() - began) / 25 * 1e6] if part else []
    base, *others = ((name, statistics.quantiles(measured)[0]) for name, measured in times.items())
    added = ", ".join(f"{name} {quartile - base[1]:+.1f}" for name, quartile in others)
    print(f"\nA step that is not measured, in microseconds (lower quartiles): alone {base[1]:.1f}, {added}")


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="ResNet18 and a large GPT on a GPU instead")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the loop without watching runs")
    parser.add_argument("--only", nargs="*", default=(), help="words of the variants to compare; all without it")
    parser.add_argument("--networks", nargs="*", default=(), help="words of the titles of networks; all without it")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="wandb")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    measure_unmeasured()
    networks: list[tuple[str, Callable[[], nn.Module], int]] = [
        ("3-block convolutions with BatchNorm", convolutions, 64),
        ("MLP", mlp, 128),
        ("GPT of 4 blocks of width 128", partial(GPT, 4, 128, vocabulary=256, length=64), 4),
    ]
    if arguments.cuda:
        torch.set_float32_matmul_precision("high")
        networks = [
            (f"ResNet18, {torch.cuda.get_device_name()}", resnet18, 128),
            ("GPT of 12 blocks of width 768", partial(GPT, 12, 768), 8),
        ]
    only = arguments.only or (("economy",) if arguments.cuda else ())
    for title, build, batch in networks:
        if not arguments.networks or any(word in title for word in arguments.networks):
            compare(title, build, batch, "cuda" if arguments.cuda else "cpu", arguments.seconds, only)


if __name__ == "__main__":
    main()
