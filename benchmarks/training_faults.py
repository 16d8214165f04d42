"""Plant training faults that other tools define into real networks; count those that `check` and `watch` name.

    python benchmarks/training_faults.py [--processes N] [--only NAME ...] [--half tuned|scoring]
                                         [--with check|watch] [--misses]

The problem types are those of AutoTrainer (2021), DeepDiagnosis (2022), TrainCheck (2025) and DynFault's taxonomy,
planted anew into networks of torchvision, timm and transformers from their definitions, with none of their code. With
each stand the codes that are a right cause, and the layers at fault where there are some, as they follow from the
definition. A fault is found if there is a warning or an error whose code the healthy network does not show; its cause
is right if the first of them has a right code, and its place if that one names a layer at fault. What only a run can
show is planted into runs of 100 steps of six networks. A network belongs to the half that rules may be tuned on or to
the half for scoring by the hash of the name of its family. `--misses` names what is not right in the tuned half alone.
Needs torchvision, timm and transformers.
"""

import argparse
import copy
import itertools
import re
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch
from population.networks import LISTINGS, Network
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import normscope as ns
from normscope.doctor.monitor import watching
from normscope.doctor.monitor.schedule import TimeBudget

CHECKED = (
    "torchvision googlenet", "timm test_efficientnet_gn", "timm test_vit", "transformers gpt2 causal 96x4",
    "transformers bert masked 96x4", "transformers llama causal 96x4",
    "torchvision squeezenet1_1", "timm test_resnet", "timm test_nfnet",
    "transformers roberta masked 96x4", "transformers mamba causal 96x4", "transformers gpt_neox causal 96x4",
)  # fmt: skip
WATCHED = (
    "timm test_vit", "transformers gpt2 causal 96x4", "transformers bert masked 96x4",
    "torchvision squeezenet1_1", "transformers roberta masked 96x4", "transformers gpt_neox causal 96x4",
)  # fmt: skip
STEPS, BATCH_SIZE = 100, 8
ACTIVATION = re.compile(r"(ReLU6?|SiLU|Hardswish|\w*GELU\w*|SiLUActivation)$")


@cache
def list_networks() -> dict[str, Network]:
    """Return the networks of the three packages by package and name."""
    import vision  # noqa: F401  (defines what torchvision needs beside a torch without CUDA)

    listings = (LISTINGS[package]() for package in ("torchvision", "timm", "transformers"))
    return {f"{network.package} {network.name}": network for network in itertools.chain(*listings)}


class Scores(nn.Module):
    """A model of transformers for text that returns its scores alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(input_ids=x).logits


class Training:
    """A network, its batches, its loss and its optimizer, as a user has them; faults are planted into it.

    A model of transformers reads its labels and returns its loss itself, until a fault needs `take_loss_out`.
    """

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        network = list_networks()[name]
        self.name, generator = name, torch.Generator().manual_seed(0)
        self.model, draw = network.build()
        self.model.train()
        self.draw: Callable[[], Any] = lambda: draw(BATCH_SIZE, generator)
        self.loss: Callable[..., Tensor] | None = F.cross_entropy if network.loss else None
        self.build_optimizer: Callable[[nn.Module], Optimizer] = lambda model: AdamW(model.parameters(), lr=1e-3)
        self.factor_of_rate: Callable[[int], float] | None = None
        self.largest_gradient: float | None = None
        self.clears_gradients = True
        self.layers, self.activations = self._record_calls()

    def _record_calls(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the layers with a matrix in the order of their calls, and each activation with what ran before it."""
        called: list[str] = []
        for name, module in self.model.named_modules():
            if not list(module.children()):
                module.register_forward_pre_hook(lambda module, _, name=name: called.append(name))
        with torch.no_grad():
            copied, batch = copy.deepcopy(self.model), self.draw()
            copied(**batch) if self.loss is None else copied(batch[0])
        for module in self.model.modules():
            module._forward_pre_hooks.clear()
        modules = dict(self.model.named_modules())
        leaves = list(dict.fromkeys(called))
        matrices = [
            name
            for name in leaves
            if isinstance(weight := getattr(modules[name], "weight", None), Tensor)
            if weight.ndim > 1 and not isinstance(modules[name], nn.Embedding)
        ]
        pairs = [
            (before, name)
            for before, name in itertools.pairwise(called)
            if ACTIVATION.match(type(modules[name]).__name__)
        ]
        return matrices, list(dict.fromkeys(pairs))

    def module(self, name: str) -> Any:
        return self.model.get_submodule(name)

    @property
    def middle(self) -> str:
        return self.layers[len(self.layers) // 2]

    @property
    def is_causal(self) -> bool:
        return "causal" in self.name

    def take_loss_out(self) -> None:
        """Let the model return its scores, which are compared with the labels outside of it."""
        if self.loss is not None:
            return
        draw, self.model = self.draw, Scores(self.model)

        def draw_pair() -> tuple[Tensor, Tensor]:
            batch = draw()
            labels = batch["labels"]
            if self.is_causal:
                labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
            return batch["input_ids"], labels

        self.draw = draw_pair
        self.loss = lambda scores, labels: F.cross_entropy(scores.transpose(1, -1), labels)

    def set_optimizer(self, kind: type[Optimizer], **settings: Any) -> None:
        self.build_optimizer = lambda model: kind(model.parameters(), **settings)

    def change_batches(self, edit: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        """Edit inputs and labels of each batch."""
        draw = self.draw

        def draw_edited() -> Any:
            batch = draw()
            if isinstance(batch, tuple):
                return edit(*batch)
            inputs, labels = edit(batch["input_ids"], batch["labels"])
            return {**batch, "input_ids": inputs, "labels": labels}

        self.draw = draw_edited


class NoPlace(Exception):
    """A network has no place for a fault."""


Places = Sequence[str] | None
"""The modules at fault, where some are."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A problem as its source defines it.

    Attributes:
        source: who defines it.
        name: what it is.
        plant: plants it, and returns the modules at fault.
        causes: the codes of findings that are a right cause.
        in_run: whether only a run shows it.
    """

    source: str
    name: str
    plant: Callable[[Training], Places]
    causes: str
    in_run: bool = False


def is_image(training: Training) -> bool:
    return training.loss is not None and not isinstance(training.model, Scores)


# ------------------------------------------------------------------------------------------------ weights and layers


def scale_weights(factor: float, training: Training) -> None:
    for name in training.layers:
        training.module(name).weight.data.mul_(factor)


def scale_middle(factor: float, training: Training) -> Places:
    training.module(training.middle).weight.data.mul_(factor)
    return [training.middle]


def fill_weights(value: float, training: Training) -> Places:
    for name in training.layers:
        training.module(name).weight.data.fill_(value)
    return training.layers


def zero_middle(training: Training) -> Places:
    layer = training.module(training.middle)
    layer.weight.data.zero_()
    if getattr(layer, "bias", None) is not None:
        layer.bias.data.zero_()
    return [training.middle]


def shut_activation(training: Training) -> Places:
    """Set the bias in front of an activation in the middle to -10."""
    biased = [pair for pair in training.activations if getattr(training.module(pair[0]), "bias", None) is not None]
    if not biased:
        raise NoPlace
    pair = biased[len(biased) // 2]
    training.module(pair[0]).bias.data.fill_(-10.0)
    return pair


def replace_activations(make: Callable[[], nn.Module], factor: float, training: Training) -> Places:
    """Replace all activations, with larger weights in front of them."""
    if not training.activations:
        raise NoPlace
    for before, name in training.activations:
        parent, _, own = name.rpartition(".")
        setattr(training.module(parent), own, make())
        if isinstance(weight := getattr(training.module(before), "weight", None), Tensor):
            weight.data.mul_(factor)
    return [name for pair in training.activations for name in pair]


def freeze(training: Training, layers: Sequence[str]) -> Places:
    for name in layers:
        training.module(name).requires_grad_(False)
    return layers


def freeze_first_half(training: Training) -> Places:
    return freeze(training, training.layers[: len(training.layers) // 2])


# -------------------------------------------------------------------------------------------------------- optimizers


def keep_optimizer_of_old_model(training: Training) -> None:
    optimizer = training.build_optimizer(copy.deepcopy(training.model))
    training.build_optimizer = lambda model: optimizer


def recreate_last_layer(training: Training) -> Places:
    """Build the last layer anew after the optimizer was built."""
    optimizer, name = training.build_optimizer(training.model), training.layers[-1]
    layer = training.module(name)
    layer.weight = nn.Parameter(torch.empty_like(layer.weight).normal_(std=0.02))
    if getattr(layer, "bias", None) is not None:
        layer.bias = nn.Parameter(torch.zeros_like(layer.bias))
    training.build_optimizer = lambda model: optimizer
    return [name]


def untie_weights(training: Training) -> Places:
    """Copy the weights that the output layer shares with the embedding."""
    if is_image(training):
        raise NoPlace
    last, table = training.module(training.layers[-1]), training.model.get_input_embeddings()
    if last.weight is not table.weight:
        raise NoPlace
    last.weight = nn.Parameter(last.weight.data.clone())
    return [training.layers[-1]]


def use_bfloat16(training: Training) -> None:
    training.model.bfloat16()
    training.set_optimizer(AdamW, lr=1e-5)
    if is_image(training):
        training.change_batches(lambda x, y: (x.bfloat16(), y))


# ------------------------------------------------------------------------------------------------- data and the loss


def feed_bytes(training: Training) -> None:
    if not is_image(training):
        raise NoPlace
    training.change_batches(lambda x, y: (((x - x.min()) / (x.max() - x.min()) * 255.0).round(), y))


def feed_not_a_number(training: Training) -> None:
    if not is_image(training):
        raise NoPlace

    def edit(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[0, 0, 0, 0] = float("nan")
        return x, y

    training.change_batches(edit)


def shift_labels(training: Training) -> None:
    """Count classes from one, or shift the words that the model shifts itself."""
    if is_image(training):
        training.change_batches(lambda x, y: (x, y + 1))
    elif training.is_causal:
        training.change_batches(lambda x, y: (x, torch.cat([y[:, 1:], torch.full_like(y[:, :1], -100)], 1)))
    else:
        raise NoPlace


def shuffle_labels(training: Training) -> None:
    def edit(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.where(y >= 0, torch.randint_like(y, 10 if is_image(training) else 500), y)

    training.change_batches(edit)


def sort_batches(training: Training) -> None:
    """Bring the samples in the order of their classes."""
    if not is_image(training):
        raise NoPlace
    batches = [training.draw() for _ in range(STEPS + 1)]
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    order = y.argsort()
    training.draw = partial(next, zip(x[order].split(BATCH_SIZE), y[order].split(BATCH_SIZE), strict=True))


def repeat_batch(training: Training) -> None:
    batch = training.draw()
    training.draw = lambda: batch


def change_loss(edit: Callable[[Callable[..., Tensor]], Callable[..., Tensor]], training: Training) -> None:
    training.take_loss_out()
    assert training.loss is not None
    training.loss = edit(training.loss)


def apply_before(function: Callable[[Tensor], Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    return lambda loss: lambda scores, labels: loss(function(scores), labels)


def square_class_numbers(scores: Tensor, labels: Tensor) -> Tensor:
    return ((scores - labels.unsqueeze(-1).float()) ** 2).mean()


def sum_losses(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda scores, labels: F.cross_entropy(scores.transpose(1, -1), labels, reduction="sum")


def take_log_likelihood_of_scores(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda scores, labels: F.nll_loss(scores.transpose(1, -1), labels)


class AlwaysDropout(nn.Module):
    """A dropout that forgets the mode of the model."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2)


def keep_dropout_on(training: Training) -> Places:
    dropouts = [name for name, module in training.model.named_modules() if isinstance(module, nn.Dropout)]
    if not dropouts:
        raise NoPlace
    for name in dropouts:
        parent, _, own = name.rpartition(".")
        setattr(training.module(parent), own, AlwaysDropout())
    training.model.eval()
    return dropouts


# -------------------------------------------------------------------------------------------------------------- runs


def leave_in_eval_mode(training: Training) -> None:
    training.model.eval()


def clip_to_nothing(training: Training) -> None:
    training.set_optimizer(SGD, lr=0.01)
    training.largest_gradient = 1e-6


def set_attribute(name: str, value: Any, training: Training) -> None:
    setattr(training, name, value)


def use_optimizer(kind: type[Optimizer], **settings: Any) -> Callable[[Training], None]:
    return lambda training: training.set_optimizer(kind, **settings)


VANISHING = "gradient-vanishing layer-scale output-constant dead-layer eps-dominated zero-weights no-loss-gradient"
EXPLODING = "gradient-explosion exploding-run branch-dominates layer-scale first-loss batch-norm-depth " \
    "non-finite-activations loss-not-finite attention-saturated"  # fmt: skip
DEAD = "dead-relu dead-layer dead-channels"
FAST, SLOW = "step-too-long", "step-too-short"
FAST_RUN, SLOW_RUN = "lr-too-high", "weights-still"
FAULTS: tuple[Fault, ...] = tuple(
    Fault(source=source, name=name, plant=plant, causes=causes, in_run=in_run)
    for source, in_run, rows in (
        ("AutoTrainer", False, (
            ("weights a hundredth of usual", partial(scale_weights, 0.01), VANISHING),
            ("weights ten times usual", partial(scale_weights, 10.0), EXPLODING),
            ("sigmoids as activations", partial(replace_activations, nn.Sigmoid, 1.0), VANISHING + " saturated-units"),
            ("bias of -10 before an activation", shut_activation, DEAD),
            ("SGD at 100", use_optimizer(SGD, lr=100.0), FAST),
            ("SGD at 1e-7", use_optimizer(SGD, lr=1e-7), SLOW),
            ("constant weights", partial(fill_weights, 0.01), "equal-units"),
        )),
        ("AutoTrainer", True, (
            ("SGD at 100 in a run", use_optimizer(SGD, lr=100.0), FAST_RUN),
            ("SGD at 1e-7 in a run", use_optimizer(SGD, lr=1e-7), SLOW_RUN),
        )),
        ("DeepDiagnosis", False, (
            ("tanh at its limits", partial(replace_activations, nn.Tanh, 100.0), "saturated-units layer-scale"),
            ("a layer a thousand times as large", partial(scale_middle, 1000.0), EXPLODING + " attention-saturated"),
            ("a middle layer frozen", lambda t: freeze(t, [t.middle]), "frozen-layer"),
            ("softmax before the loss", partial(change_loss, apply_before(partial(F.softmax, dim=-1))),
             "activation-before-loss"),
            ("ReLU before the loss", partial(change_loss, apply_before(F.relu)), "activation-before-loss"),
            ("likelihood of raw scores", partial(change_loss, take_log_likelihood_of_scores), "loss-does-not-fit"),
            ("not a number in the data", feed_not_a_number, "non-finite-activations loss-not-finite"),
            ("images from 0 to 255", feed_bytes, "input-scale"),
        )),
        ("TrainCheck", False, (
            ("optimizer of a copied model", keep_optimizer_of_old_model, "not-in-optimizer"),
            ("last layer made anew", recreate_last_layer, "not-in-optimizer"),
            ("first half frozen", freeze_first_half, "frozen-layer"),
            ("tied weights copied", untie_weights, "copied-rows not-in-optimizer untied-weights"),
            ("weights in bfloat16", use_bfloat16, "half-precision"),
            ("dropout in eval mode", keep_dropout_on, "eval-differs strong-dropout"),
        )),
        ("TrainCheck", True, (
            ("no zero_grad", partial(set_attribute, "clears_gradients", False), "no-zero-grad"),
            ("optimizer of a copied model, run", keep_optimizer_of_old_model, "not-trained no-step weights-still"),
            ("last layer made anew, run", recreate_last_layer, "not-trained"),
            ("first half frozen, run", freeze_first_half, "frozen-layer"),
            ("eval mode left on", leave_in_eval_mode, "eval-mode"),
            ("schedule down to zero", partial(set_attribute, "factor_of_rate", lambda step: max(0.0, 1.0 - step / 10)),
             "rate-zero rate-decayed"),
            ("warm-up that never rises", partial(set_attribute, "factor_of_rate", lambda step: 0.0), "rate-zero"),
            ("one batch again and again", repeat_batch, "same-batch"),
            ("clipped to nothing", clip_to_nothing, "weights-still"),
        )),
        ("DynFault", False, (
            ("class numbers squared", partial(change_loss, lambda loss: square_class_numbers), "loss-does-not-fit"),
            ("losses added up", partial(change_loss, sum_losses), "loss-does-not-fit step-too-long"),
            ("labels shifted", shift_labels, "targets-out-of-range labels-are-inputs"),
            ("AdamW at 3", use_optimizer(AdamW, lr=3.0), FAST),
            ("AdamW at 1", use_optimizer(AdamW, lr=1.0), FAST),
            ("AdamW at 1e-6", use_optimizer(AdamW, lr=1e-6), SLOW),
            ("betas swapped", use_optimizer(AdamW, lr=1e-3, betas=(0.999, 0.9)), FAST),
            ("momentum of 0.999", use_optimizer(SGD, lr=0.01, momentum=0.999), FAST),
            ("decay of 30", use_optimizer(AdamW, lr=1e-3, weight_decay=30.0), "decay-too-strong"),
            ("a middle layer of zeros", zero_middle, "zero-weights dead-layer"),
        )),
        ("DynFault", True, (
            ("AdamW at 1 in a run", use_optimizer(AdamW, lr=1.0), FAST_RUN),
            ("AdamW at 3 in a run", use_optimizer(AdamW, lr=3.0), FAST_RUN),
            ("labels shuffled", shuffle_labels, "no-better-than-constant"),
            ("data in the order of classes", sort_batches, "sorted-batches"),
        )),
    )
    for name, plant, causes in rows
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was said of one training.

    Attributes:
        told: the codes of warnings and errors in their order, each with the names of modules that it gives.
        places: the modules at fault.
        raised: what `check` or the run raised.
        is_here: whether the network has a place for the fault.
    """

    told: tuple[tuple[str, frozenset[str]], ...] = ()
    places: tuple[str, ...] = ()
    raised: str = ""
    is_here: bool = True


def examine(fault: Fault | None, name: str, in_run: bool) -> Outcome:
    """Plant a fault, or none, and return what `check`, or `watch` over a run, says."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    training = Training(name)
    try:
        places = tuple((fault and fault.plant(training)) or ())
    except NoPlace:
        return Outcome(is_here=False)
    torch.manual_seed(1)
    optimizer = training.build_optimizer(training.model)
    try:
        if in_run:
            findings = watch_run(training, optimizer)
        else:
            findings = ns.check(training.model, training.draw(), loss=training.loss, optimizer=optimizer).findings
    except Exception as error:
        return Outcome(raised=f"{type(error).__name__}: {str(error)[:150]}")
    told = tuple(
        (found.code, frozenset((found.where, *found.others, *re.findall("`([^`]+)`", found.seen))))
        for found in findings
        if found.severity > ns.Severity.INFO
    )
    return Outcome(told=told, places=places)


def watch_run(training: Training, optimizer: Optimizer) -> Sequence[Any]:
    """Train for some steps, as a user does, and return the alarms."""
    schedule = LambdaLR(optimizer, training.factor_of_rate) if training.factor_of_rate else None
    with (
        patch.object(watching, "TimeBudget", partial(TimeBudget, clock=time.process_time_ns)),
        ns.watch(training.model, optimizer, every=10, panel=False) as run,
    ):
        for _ in range(STEPS):
            batch = training.draw()
            if training.loss is None:
                loss = training.model(**batch).loss
            else:
                loss = training.loss(training.model(batch[0]), batch[1])
            if training.clears_gradients:
                optimizer.zero_grad()
            loss.backward()
            if training.largest_gradient is not None:
                nn.utils.clip_grad_norm_(training.model.parameters(), training.largest_gradient)
            optimizer.step()
            if schedule is not None:
                schedule.step()
    return list(run.findings)


def names_layer(names: frozenset[str], places: Sequence[str]) -> bool:
    """Whether a finding names one of some layers, a part of it, or one of its parameters."""
    return any(
        name.removeprefix("net.") == place or name.removeprefix("net.").startswith(f"{place}.")
        for name in names
        for place in places
    )


def examine_row(row: tuple[int | None, str, bool]) -> Outcome:
    number, name, in_run = row
    return examine(None if number is None else FAULTS[number], name, in_run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="parts of names of faults")
    parser.add_argument("--half", choices=("tuned", "scoring"))
    parser.add_argument("--with", dest="way", choices=("check", "watch"))
    parser.add_argument("--misses", action="store_true", help="name what is not right in the tuned half")
    chosen = parser.parse_args()
    begun = time.perf_counter()
    networks = list_networks()
    halves = {name: "tuned" if networks[name].half == "fit" else "scoring" for name in CHECKED}
    rows: list[tuple[int | None, str, bool]] = [
        (number, name, in_run)
        for in_run, names in ((False, CHECKED), (True, WATCHED))
        for name in names
        for number in (None, *range(len(FAULTS)))
        if chosen.half in (None, halves[name]) and chosen.way in (None, "watch" if in_run else "check")
        if number is None or FAULTS[number].in_run == in_run
        if number is None or not chosen.only or any(part in FAULTS[number].name for part in chosen.only)
    ]
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    usual: set[str] = set()
    with ProcessPoolExecutor(chosen.processes, get_context("spawn")) as processes:
        for (number, name, in_run), outcome in zip(rows, processes.map(examine_row, rows), strict=True):
            half, way = halves[name], "watch" if in_run else "check"
            if number is None:  # the healthy network, the first of each
                usual = {code for code, _ in outcome.told}
                print(f"healthy {name}, {way}, {half}: {', '.join(sorted(usual)) or outcome.raised or 'no warning'}")
                continue
            if not outcome.is_here:
                continue
            fault = FAULTS[number]
            told = [(code, names) for code, names in outcome.told if code not in usual]
            cause = bool(told) and told[0][0] in fault.causes.split()
            place = cause and names_layer(told[0][1], outcome.places)
            for key in (fault.source, f"all, {way}", "all", f"  {fault.name}"):
                row = counts[key, half]
                row["faults"] += 1
                row["found"] += bool(told)
                row["cause"] += cause
                row["placed"] += bool(outcome.places)
                row["place"] += place
                row["raised"] += bool(outcome.raised)
            if chosen.misses and half == "tuned" and not (cause and (place or not outcome.places)):
                level = "cause right" if cause else "found" if told else "missed"
                said = outcome.raised or ", ".join(f"{code} in {min(names)}" for code, names in told[:3]) or "nothing"
                print(f"{level}: {fault.name}, {name}: {said}", flush=True)
    for (key, half), row in sorted(counts.items(), key=lambda pair: (pair[0][0].startswith(" "), pair[0][1])):
        print(
            f"{half:8} {key:36} {row['faults']:3} faults: {row['found']:3} found, {row['cause']:3} right cause; "
            f"{row['place']:3} of {row['placed']:3} with a place at it; {row['raised']} raised"
        )
    print(f"{time.perf_counter() - begun:.0f} s.")


if __name__ == "__main__":
    main()
