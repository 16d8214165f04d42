"""The cases of the golden file: a name, and a call without arguments whose result becomes JSON."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from golden_networks import BUILD, SHARED, Case, demo, digits, family, small, stored_weights, trained
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import normscope as ns
import normscope_lab as lab
from normscope.doctor.monitor.schedule import TimeBudget

CASES: dict[str, Callable[[], Any]] = {}
SKIPPED: dict[str, str] = {}
"""Cases that cannot be computed here, and why."""

Call = Callable[[Case], Any]


def add(name: str, build: Callable[[], Case], call: Call, why_not: str = "") -> None:
    """Enter one call on one network, or say why it cannot be made here."""
    if why_not:
        SKIPPED[name] = why_not
    else:
        CASES[name] = lambda: call(build())


def loader(case: Case, count: int = 12) -> list[Any]:
    """Return some batches like the case's own."""
    generator = torch.Generator().manual_seed(1)
    if not isinstance(case.batch, Tensor) or not case.batch.is_floating_point():
        return [case.batch]
    return [case.batch + 0.1 * torch.randn(case.batch.shape, generator=generator) for _ in range(count)]


def given(case: Case) -> dict[str, Any]:
    """Return what every measurement of the case is told."""
    return {} if case.output is None else {"output": case.output}


def saved(case: Case) -> Any:
    """Return what the checker says of a saved bracket; it knows nothing of Normscope."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.npz"
        bracket = ns.lipschitz(case.model, case.batch, effort="tight")
        bracket.save(path)
        command = [sys.executable, "-m", "normscope", "bound", "verify", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=_environment(), check=False)
        return {"exit": done.returncode, "lines": [line.replace(folder, "") for line in done.stdout.splitlines()]}


@contextlib.contextmanager
def steady_clock() -> Iterator[None]:
    """Let one second pass at each step of an optimizer and none elsewhere.

    A watcher spends a share of the run's time, so that the clock decides when alarms are looked for.
    """
    seconds = 0.0

    def read() -> float:
        return seconds

    def pass_one(*_: Any) -> None:
        nonlocal seconds
        seconds += 1.0

    hook = register_optimizer_step_post_hook(pass_one)
    try:
        with (
            mock.patch("time.perf_counter", read),
            mock.patch("time.monotonic", read),
            mock.patch.object(TimeBudget.__init__, "__defaults__", (None, lambda: round(1e9 * read()))),
        ):
            yield
    finally:
        hook.remove()


def page(result: Any) -> list[str]:
    """Return what a result prints, line by line, without versions and times."""
    lines = [
        re.sub(r"\b\d+(\.\d+)? ?(s|ms|seconds|minutes)\b", "(time)", line.rstrip()) for line in str(result).splitlines()
    ]
    return [line for line in lines if "torch" not in line.lower() and "normscope" not in line.lower()]


def shown(result: Any) -> Any:
    """Return a result with what it prints."""
    return {"result": result, "printed": page(result)}


def captured(case: Case) -> Any:
    """Return the operators of the graph, where they come from, and the notes."""
    graph = ns.capture(case.model, case.batch, **given(case))
    return {"nodes": [f"{node.path}: {node.op!s} {list(node.shape)}" for node in graph], "notes": list(graph.notes)}


def twin(case: Case) -> Any:
    """Return the changes that make a LayerNorm twin."""
    return ns.twin(case.model, case.batch, normalizer="layer")


def initialised(case: Case) -> Any:
    """Return the factors by which layers are rescaled."""
    found = ns.initialise(case.model, case.batch)
    return {"factors": found.factors, "notes": list(found.notes)}


def labelled(case: Case) -> tuple[Tensor, Tensor]:
    """Return a batch and labels, some of them wrong."""
    assert case.labels is not None
    labels = case.labels.clone()
    labels[0] = (labels[0] + 1) % 3
    return case.batch, labels


EVERY: dict[str, Call] = {
    "capture": captured,
    "ladder": lambda c: ns.ladder(c.model, c.batch, effort="tight", **given(c)),
    "lipschitz point": lambda c: ns.lipschitz(c.model, c.batch, scope="point", **given(c)),
    "lipschitz ball": lambda c: ns.lipschitz(c.model, c.batch, scope="ball", radius=0.05, **given(c)),
    "lipschitz data": lambda c: ns.lipschitz(c.model, loader(c), scope="data", share=0.9, **given(c)),
    "audit": lambda c: shown(ns.audit(c.model, c.batch, loader=loader(c), name="model", **given(c))),
    "check": lambda c: shown(ns.check(c.model, c.batch, loader=loader(c), name="model", **given(c))),
    "symmetries": lambda c: ns.symmetries(c.model, c.batch, mode="train", **given(c)),
}
"""What is computed for every small network."""

CLASSIFIERS: dict[str, Call] = {
    "radius": lambda c: shown(ns.certified_radius(c.model, tuple(part[:3] for part in labelled(c)))),
    "margins": lambda c: ns.margins(c.model, [labelled(c)]),
    "weights": lambda c: ns.weight_sensitivity(c.model, c.batch, loss="cross_entropy"),
    "hessian": lambda c: ns.hessian(
        c.model, labelled(c), loss="cross_entropy", bottom=2, probes=2, blocks=True, mode="train"
    ),
    "smoothness": lambda c: ns.smoothness(c.model, labelled(c), loss="cross_entropy", mode="train"),
    "flow": lambda c: lab.flow(c.model, labelled(c), loss="cross_entropy", time=0.2, mode="train"),
    "flatness": lambda c: ns.flatness(c.model, labelled(c), loss="cross_entropy", draws=3),
}
"""What is computed for small networks that have classes."""

SMALLEST_ALONE: dict[str, Call] = {
    "lipschitz per output": lambda c: ns.lipschitz(c.model, c.batch, per="output", effort="tight"),
    "lipschitz per difference": lambda c: ns.lipschitz(c.model, c.batch, per="difference", effort="tight"),
    "lipschitz ball tight": lambda c: ns.lipschitz(c.model, c.batch, scope="ball", radius=0.1, effort="tight"),
    "radius tight": lambda c: ns.certified_radius(c.model, labelled(c), effort="tight"),
    "audit thorough": lambda c: shown(ns.audit(c.model, c.batch, effort="thorough", name="model")),
    "saved": saved,
    "gauss-newton": lambda c: ns.hessian(c.model, labelled(c), loss="cross_entropy", matrix="gauss-newton"),
    "quotient": lambda c: ns.hessian(c.model, labelled(c), loss="cross_entropy", metric="quotient"),
}
"""What is computed for the smallest network alone."""


CLASSES = ("tiny", "convolutions", "layernorm", "residual", "rmsnorm")
"""Networks whose outputs are logits."""
MORE: dict[str, dict[str, Call]] = {
    "tiny": SMALLEST_ALONE,
    "convolutions": {"twin": twin, "initialise": initialised},
    "residual": {"twin": twin, "initialise": initialised},
}
FEWER: dict[str, tuple[str, ...]] = {
    "convolutions": ("flow", "smoothness"),
    "residual": ("flow", "smoothness", "margins", "radius"),
    "lstm": ("lipschitz ball",),
    "circular": ("lipschitz data", "check"),
}
"""What takes long and is covered by another network."""

LARGER: dict[str, Call] = {
    "ladder": lambda c: ns.ladder(c.model, c.batch, **given(c)),
    "point": lambda c: ns.lipschitz(c.model, c.batch, scope="point", **given(c)),
    "check": lambda c: ns.check(c.model, c.batch, name="model", **given(c)),
}
"""What is computed for real architectures; ladders search from below, which takes seconds."""
FAMILIES = {
    "resnet_basic": ("ladder", "check"),
    "convnext": ("point", "check"),
    "regnet_y": ("point", "check"),
    "efficientnet": ("point", "check"),
    "vit": ("point", "check"),
    "swin": ("point", "check"),
    "bert_padded": ("ladder", "check"),
    "t5_encoder": ("point", "check"),
    "gpt2": ("ladder", "check"),
    "llama": ("check",),
    "torch_encoder_pre_gelu": ("point", "check"),
}
"""Of tests/real_models: one of each kind of operators."""
TRAINED = {
    "mlp10_bn_cifar10": ("point", "check"),
    "resnet18_cifar10": ("check",),
    "vit_cifar10": ("check",),
    "gpt_text": ("check",),
}
"""Of the shared folder."""
NOT_HERE = "the shared folder does not lie beside this checkout"


def bounds_on_fresh_data(case: Case) -> Any:
    """Return every generalization bound of a network on the digits."""
    images, labels = digits()
    train, test = (images[:200], labels[:200]), (images[1400:1500], labels[1400:1500])
    return shown(ns.generalization(case.model, train, test, input_range=(0.0, 1.0), steps=20))


def chosen() -> Any:
    """Return a choice between two normalizers after a few steps."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    inputs = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    classes = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    with steady_clock():
        choice = ns.choose(
            build, (inputs, classes), loss="cross_entropy", normalizers=("none", "batch", "layer"), batch_sizes=(4, 32),
            learning_rates=(0.1,), seeds=1, steps=20, workers=0, name="model",
        )  # fmt: skip
    return {"choice": choice, "recommendation": str(choice.recommendation), "printed": page(choice)}


def collapsing(model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam with a decay that is added to the gradient."""
    return torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-2)


def steady(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that trains well."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def watched(choose: Callable[[nn.Module], torch.optim.Optimizer], tier: str, *, steps: int, every: int) -> Any:
    """Return the log of a short training of a network with BatchNorm on two of the digits."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2),
    )  # fmt: skip
    images, labels = digits()
    images, labels = images[labels < 2], labels[labels < 2]

    def batch() -> tuple[Tensor, Tensor]:
        picked = torch.randint(len(images), (32,))
        return images[picked], labels[picked]

    return logged(model, choose(model), batch, steps=steps, every=every, tier=tier)


FAULTS = (
    "diverges", "gradients are not cleared", "all samples are the same", "a layer is not trained", "two samples",
    "units die", "weights grow", "eval mode", "a layer is scaled to nothing",
)  # fmt: skip
"""Of trainings that must raise an alarm."""


def faulty(fault: str) -> Any:
    """Return the log of a training with one fault."""
    norm = [nn.BatchNorm1d(8)] if fault in ("two samples", "a layer is scaled to nothing") else []
    model = nn.Sequential(nn.Linear(6, 8), *norm, nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    trained_ones = model[:-1].parameters() if fault == "a layer is not trained" else model.parameters()
    optimizer = torch.optim.SGD(trained_ones, lr=1e3 if fault == "diverges" else 0.05)
    centre = torch.randn(3, 6)

    def batch() -> tuple[Tensor, Tensor]:
        labels = torch.randint(3, (2 if fault == "two samples" else 16,))
        inputs = centre[labels] + 0.3 * torch.randn(len(labels), 6)
        return (inputs[:1].expand(16, 6), labels) if fault == "all samples are the same" else (inputs, labels)

    def after(step: int) -> None:
        with torch.no_grad():
            if fault == "units die" and step == 20:
                model[0].bias.fill_(-100.0)
            if fault == "weights grow":
                model[-3].weight.mul_(1.15)
            if fault == "a layer is scaled to nothing":
                model[0].weight.mul_(0.8)

    if fault == "eval mode":
        model.insert(1, nn.Dropout(0.1))
        model.eval()
    clear = fault != "gradients are not cleared"
    return logged(model, optimizer, batch, steps=80, every=4, tier="standard", clear=clear, after=after)


def logged(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[], tuple[Tensor, Tensor]],
    *,
    steps: int,
    every: int,
    tier: str,
    clear: bool = True,
    after: Callable[[int], None] = lambda step: None,
) -> Any:
    """Train under `ns.watch` and return what the log says."""
    with tempfile.TemporaryDirectory() as folder, steady_clock():
        place = Path(folder) / "run"
        with ns.watch(model, optimizer, every=every, tier=tier, overhead=None, log=place, panel=False) as run:
            for step in range(steps):
                if clear:
                    optimizer.zero_grad()
                inputs, labels = batch()
                loss = F.cross_entropy(model(inputs), labels)
                run.observe(loss=loss)
                loss.backward()
                optimizer.step()
                after(step)
        read = ns.Run(place)
        return {
            "layers": read.layers,
            "records": read.records,
            "findings": read.findings,
            "ended": None if read.ended is None else read.ended.how,
            "notes": read.metadata.get("notes"),
            "printed": page(read),
        }


def judged() -> Any:
    """Return the ledger of claims, and the figures of those that were computed just now."""
    ledger = lab.claims(workers=0)
    live = [item for item in ledger.items if not item.experiment.stored]
    return {"rows": {row.id: row for row in ledger.rows}, "live": {item.experiment.name: item for item in live}}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(ns.__file__).resolve().parents[1])}


for network in BUILD:
    calls = {**EVERY, **(CLASSIFIERS if network in CLASSES else {}), **MORE.get(network, {})}
    for what, call in calls.items():
        if what not in FEWER.get(network, ()):
            add(f"{network}: {what}", functools.partial(small, network), call)

for normalizer in ("plain", "batchnorm", "layernorm", "groupnorm"):
    build = functools.cache(functools.partial(demo, normalizer))
    add(f"demo {normalizer}: audit", build, EVERY["audit"])
    add(f"demo {normalizer}: radius", build, CLASSIFIERS["radius"])
add("demo batchnorm: generalization", functools.partial(demo, "batchnorm"), bounds_on_fresh_data)
add("demo plain: generalization", functools.partial(demo, "plain"), bounds_on_fresh_data)

for name, calls in FAMILIES.items():
    why = "" if importlib.util.find_spec("transformers") else "transformers is not installed"
    for what in calls:
        add(f"family {name}: {what}", functools.partial(family, name), LARGER[what], why)

for name, calls in TRAINED.items():
    here = (SHARED / "models" / f"{name}.safetensors").is_file()
    for what in calls:
        add(f"trained {name}: {what}", functools.partial(trained, name), LARGER[what], "" if here else NOT_HERE)
here = (SHARED / "bench" / "lipsdp_random_weights.mat").is_file()
build = functools.partial(stored_weights, "lipsdp_random_weights")
add("bench lipsdp_random_weights: ladder", build, EVERY["ladder"], "" if here else NOT_HERE)

CASES["watch: Adam with decay, standard tier"] = lambda: watched(collapsing, "standard", steps=120, every=5)
CASES["watch: SGD with momentum, full tier"] = lambda: watched(steady, "full", steps=30, every=3)
CASES["watch: SGD with momentum, economy tier"] = lambda: watched(steady, "economy", steps=12, every=2)
for fault in FAULTS:
    CASES[f"alarm: {fault}"] = functools.partial(faulty, fault)
CASES["choose"] = chosen
CASES["claims"] = judged
CASES["spectral norm: matrix"] = lambda: ns.spectral_norm(
    torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
)
CASES["spectral norm: convolution"] = lambda: ns.spectral_norm(small("convolutions").model[4], (4, 8, 8))
