"""Akbar, section 9: advice for practice, tried on small networks that learn digits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.data import Split, digits
from normscope.networks import mlp
from normscope.report import Block, Cell, Column, Table

from ..base import Figures, Job, Judgement, Measured, Settings, Verdict, experiment_of
from ..judging import Judge, SeedSpread, decided, of_all, read, spread, with_seeds
from .shared import remark

QUICK: Settings = {"seeds": 1, "steps": 30, "loss": 1.5}
FULL: Settings = {"seeds": 6, "steps": 600, "loss": 0.1}
SAMPLES, WIDTH, DEPTH = 400, 32, 3
RATES = {"sgd": (0.03, 0.1, 0.3, 1.0), "adam": (0.001, 0.003, 0.01, 0.03)}
DECAYS = (0.0, 0.003, 0.01, 0.03, 0.1)
NORMS = {"none": "no normalizer", "batch": "BatchNorm", "layer": "LayerNorm", "group": "GroupNorm"}
NOISE, ATTACK = 0.2, 0.05
"""The deviation of noise in the inputs, whose values lie between 0 and 1, and the size of an attack's step."""
HELD_OUT = 500
"""The fresh images by which a decay is chosen; errors are those on the others."""


class Recipe(NamedTuple):
    """One way to train a network."""

    norm: str
    optimizer: str = "sgd"
    rate: float = 0.1
    decay: float = 0.0
    size: int = 50
    batches: str = "mixed"
    dropout: float = 0.0
    until: str = "the end"

    @property
    def job(self) -> str:
        """The name of the recipe's jobs."""
        return " ".join(map(str, self))

    @classmethod
    def of_job(cls, name: str) -> Recipe:
        """Return the recipe of a job's name."""
        norm, optimizer, rate, decay, size, batches, dropout, until = name.split(" ", 7)
        return cls(norm, optimizer, float(rate), float(decay), int(size), batches, float(dropout), until)


def _to_loss(norm: str, optimizer: str, rate: float) -> Recipe:
    return Recipe(norm, optimizer, rate, until="the loss")


def _decayed(norm: str, decay: float) -> Recipe:
    return Recipe(norm, decay=decay)


PAIRS = {norm: Recipe(norm, rate=0.02, size=2) for norm in NORMS}
"""Training with batches of two samples."""
CLASSES = {norm: Recipe(norm, batches="two-classes") for norm in ("none", "batch", "layer")}
"""Training with batches that hold two classes each."""
DROPPED = {norm: Recipe(norm, dropout=0.3) for norm in ("none", "batch")}
RECIPES = (
    *(_to_loss(norm, name, rate) for norm in ("none", "batch", "layer") for name in RATES for rate in RATES[name]),
    *(_decayed(norm, decay) for norm in ("none", "batch") for decay in DECAYS),
    *PAIRS.values(),
    *CLASSES.values(),
    *DROPPED.values(),
)


def jobs(settings: Settings) -> Sequence[Job]:
    """Return one job for each recipe and seed."""
    return tuple(Job(recipe.job, seed) for recipe in RECIPES for seed in range(settings["seeds"]))


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network by a recipe, and measure it in eval mode."""
    recipe, seed = Recipe.of_job(job.kind), job.seed
    split = digits(generator=torch.Generator().manual_seed(seed))
    x, y = split.train_images[:SAMPLES], split.train_labels[:SAMPLES]
    generator = torch.Generator().manual_seed(90_000 + seed)
    network = mlp(generator=generator, normalizer=recipe.norm, width=WIDTH, depth=DEPTH)  # type: ignore[arg-type]
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[recipe.optimizer]
    optimizer = make(network.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    reached = None
    for step in range(1, settings["steps"] + 1):
        rows = _rows(recipe, y, generator)
        network.train()
        optimizer.zero_grad()
        F.cross_entropy(_outputs(network, x[rows], recipe.dropout, generator), y[rows]).backward()
        optimizer.step()
        if recipe.until == "the loss" and step % 3 == 0:
            with torch.no_grad():
                if float(F.cross_entropy(network.eval()(x), y)) <= settings["loss"]:
                    reached = float(step)
                    break
    return {"step": reached, **_tested(network.eval(), split, generator)}


def _rows(recipe: Recipe, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the samples of a step: any, or those of two classes."""
    order = torch.randperm(SAMPLES, generator=generator)
    if recipe.batches == "two-classes":
        two = torch.randperm(10, generator=generator)[:2]
        order = order[torch.isin(labels[order], two)]
    return order[: recipe.size]


def _outputs(network: nn.Module, x: Tensor, dropout: float, generator: torch.Generator) -> Tensor:
    """Return the outputs, with dropout behind each activation."""
    for layer in network.children():
        x = layer(x)
        if dropout and isinstance(layer, nn.ReLU):
            x = x * (torch.rand(x.shape, generator=generator) >= dropout) / (1.0 - dropout)
    return x


def _tested(network: nn.Module, split: Split, generator: torch.Generator) -> dict[str, float]:
    """Return test errors: to choose by, plain, under noise, and under one step against each image."""
    fresh = torch.cat((split.test_images, split.train_images[SAMPLES:]))
    classes = torch.cat((split.test_labels, split.train_labels[SAMPLES:]))
    x, labels = fresh[HELD_OUT:].clone().requires_grad_(True), classes[HELD_OUT:]
    (slopes,) = torch.autograd.grad(F.cross_entropy(network(x), labels), [x])
    x = x.detach()
    noisy = x + NOISE * torch.randn(x.shape, generator=generator)

    def error(images: Tensor, expected: Tensor) -> float:
        with torch.no_grad():
            return float((network(images).argmax(1) != expected).double().mean())

    return {
        "chosen by": error(fresh[:HELD_OUT], classes[:HELD_OUT]),
        "error": error(x, labels),
        "noisy": error(noisy, labels) - error(x, labels),
        "attacked": error(x + ATTACK * slopes.sign(), labels) - error(x, labels),
    }


def figures(settings: Settings, measured: Mapping[Job, Measured]) -> Figures:
    """Return what each piece of advice compares, seed by seed."""
    seeds = range(settings["seeds"])

    def values(recipe: Recipe, name: str) -> list[float]:
        found = [measured[Job(recipe.job, seed)][name] for seed in seeds]
        return [math.inf if value is None else value for value in found]  # the loss was never reached

    def less(name: str, one: Recipe, other: Recipe) -> list[float]:
        return [a - b for a, b in zip(values(one, name), values(other, name))]

    def best(norm: str, optimizer: str) -> Recipe:
        every = [_to_loss(norm, optimizer, rate) for rate in RATES[optimizer]]
        return min(every, key=lambda recipe: spread("x", values(recipe, "step"))["x.median"])

    fastest = {(norm, name): best(norm, name) for norm in ("none", "batch", "layer") for name in RATES}
    steps = {key: values(recipe, "step") for key, recipe in fastest.items()}
    none, batch = fastest["none", "sgd"], fastest["batch", "sgd"]
    summary: dict[str, float] = {}
    for norm in ("batch", "layer"):
        summary |= spread(f"{norm}.faster", _ratios(steps["none", "sgd"], steps[norm, "sgd"]))
    gained = {norm: _ratios(steps[norm, "sgd"], steps[norm, "adam"]) for norm in ("none", "batch")}
    summary |= spread("none.adam", gained["none"]) | spread("batch.adam", gained["batch"])
    summary |= spread("adam", _ratios(gained["none"], gained["batch"]))
    for name in ("error", "noisy", "attacked"):
        summary |= spread(f"none less batch.{name}", less(name, none, batch))
    chosen = {}
    for norm in ("none", "batch"):
        decays = [_decayed(norm, decay) for decay in DECAYS]
        scores = [values(recipe, "chosen by") for recipe in decays]
        chosen[norm] = [float(min(range(len(DECAYS)), key=lambda place: row[place])) for row in zip(*scores)]
        some = min(decays[1:], key=lambda recipe: sum(values(recipe, "chosen by")))
        summary |= spread(f"{norm}.decay", less("error", decays[0], some)) | {f"{norm}.decay.chosen": some.decay}
        summary |= spread(f"{norm}.dropout", less("error", decays[0], DROPPED[norm]))
    summary |= spread("decay places", [a - b for a, b in zip(chosen["batch"], chosen["none"])])
    pairs = zip(*(less("error", _decayed(norm, 0.0), DROPPED[norm]) for norm in ("none", "batch")))
    summary |= spread("dropout", [a - b for a, b in pairs])
    for norm in ("none", "layer", "group"):
        summary |= spread(f"pairs.batch less {norm}", less("error", PAIRS["batch"], PAIRS[norm]))
    for norm in ("none", "layer"):
        summary |= spread(f"classes.batch less {norm}", less("error", CLASSES["batch"], CLASSES[norm]))
    return summary


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return ratios; NaN, which no interval hides, where neither run came to the loss."""
    return [math.nan if math.isinf(a) and math.isinf(b) else a / b for a, b in zip(above, below)]


def draw(settings: Settings, measured: Mapping[Job, Measured]) -> Sequence[Block]:
    """Return the medians of every recipe."""
    titles = ("normalizer", "optimizer", "rate", "decay", "batch", "batches", "dropout", "until")
    kinds = ("name", "name", "number", "number", "count", "name", "number", "name")
    columns = [Column(title=title, kind=kind) for title, kind in zip(titles, kinds)]  # type: ignore[arg-type]
    columns += [Column(title="steps to the loss", kind="number"), Column(title="test error", kind="percent")]
    rows = []
    for recipe in RECIPES:
        runs = [measured[Job(recipe.job, seed)] for seed in range(settings["seeds"])]
        steps = [math.inf if run["step"] is None else run["step"] for run in runs]
        reached = spread("x", steps)["x.median"] if recipe.until == "the loss" else None
        error = spread("x", [run["error"] for run in runs])["x.median"]
        row: tuple[Cell, ...] = (NORMS[recipe.norm], *recipe[1:], reached, error)
        rows.append(row)
    return (Table(title="Medians over seeds", columns=tuple(columns), rows=tuple(rows)),)


def _layer(f: Figures) -> Judgement:
    ratio = read(f, "layer.faster")
    evidence = f"Without it takes {ratio} times the steps that LayerNorm takes, each at its best rate of descent."
    return decided(ratio, above=1.0, evidence=evidence)


def _batch(f: Figures) -> Judgement:
    ratio, gain = read(f, "batch.faster"), read(f, "none less batch.error")
    parts = [decided(ratio, above=1.0, evidence=""), decided(gain, above=0.0, evidence="")]
    evidence = f"Without it takes {ratio} times the steps, and its test error at that loss is {_points(gain)} higher."
    return Judgement(of_all([one.verdict for one in parts]), evidence)


def _points(one: SeedSpread) -> str:
    low, median, high = (100.0 * value for value in (one.low, one.median, one.high))
    return f"{median:+.2g} points ({low:+.2g} to {high:+.2g}, {one.seeds} seeds)"


def _adam(f: Figures) -> Judgement:
    ratio = read(f, "adam")
    evidence = (
        f"At their best rates descent takes {read(f, 'none.adam')} times the steps of Adam without BatchNorm and "
        f"{read(f, 'batch.adam')} times with it: a ratio of {ratio}."
    )
    return decided(ratio, above=1.0, evidence=evidence)


def _decay(f: Figures) -> Judgement:
    gain, decay = read(f, "batch.decay"), f["batch.decay.chosen"]
    evidence = f"Without decay the test error with BatchNorm is {_points(gain)} higher than with a decay of {decay:g}."
    return decided(gain, above=0.0, evidence=evidence)


def _less_decay(f: Figures) -> Judgement:
    places = read(f, "decay places")
    evidence = f"Of the decays tried, {', '.join(f'{one:g}' for one in DECAYS)}, the best one with BatchNorm stands "
    return decided(places, below=0.0, evidence=f"{evidence}{places} places above the best one without.")


def _worse(key: str, lead: str, others: Sequence[str]) -> Judge:
    """Return the judge of whether the test error with BatchNorm is above that of each of the others."""

    def judge(f: Figures) -> Judgement:
        gains = {norm: read(f, f"{key}.batch less {norm}") for norm in others}
        listed = ", ".join(f"{_points(gain)} above that with {NORMS[norm]}" for norm, gain in gains.items())
        verdicts = [decided(gain, above=0.0, evidence="").verdict for gain in gains.values()]
        seeds = min(one.seeds for one in gains.values())
        return with_seeds(seeds, Judgement(of_all(verdicts), f"{lead} the test error with BatchNorm is {listed}."))

    return judge


def _dropout(f: Figures) -> Judgement:
    evidence = (
        f"Dropout lowers the test error by {_points(read(f, 'none.dropout'))} without BatchNorm and by "
        f"{_points(read(f, 'batch.dropout'))} with it; the difference is {_points(read(f, 'dropout'))}."
    )
    return decided(read(f, "dropout"), above=0.0, evidence=evidence)


def _noise(f: Figures) -> Judgement:
    gain = read(f, "none less batch.noisy")
    evidence = f"At equal loss noise of {NOISE:g} raises the test error without BatchNorm by {_points(gain)} more."
    return decided(gain, above=0.0, evidence=evidence)


def _attack(f: Figures) -> Judgement:
    gain = read(f, "none less batch.attacked")
    evidence = (
        f"At equal loss a step of {ATTACK:g} against each image raises the test error without BatchNorm by "
        f"{_points(gain)} more than with it."
    )
    return Judgement(Verdict.MEASURED, evidence)


PRACTICE = experiment_of(
    __name__,
    name="akbar.practice",
    title="Advice for practice",
    about="What section 9 advises, on networks with two hidden layers of 32 units that learn 400 digits: which "
    "normalizer, optimizer, decay and dropout, very small batches, and batches of two classes each. The paper names no "
    "experiment.",
    stored=True,
    task="digits",
    claims=(
        remark(
            "9.1.layer-norm",
            "9.1",
            "With LayerNorm training takes fewer steps than without.",
            "Our analysis of LN shows that one can expect similar optimization benefits at a layer level",
            _layer,
        ),
        remark(
            "9.1.batch-norm",
            "9.1",
            "With BatchNorm and large enough batches training is faster and accuracy better.",
            "Use BN for feed-forward nets with reasonably large batch sizes (it will yield faster training and often "
            "better accuracy).",
            _batch,
        ),
        remark(
            "9.1.adam",
            "9.1, optimizers",
            "Adam gains less over gradient descent with BatchNorm than without.",
            "simple SGD works extremely well with BN, whereas without BN adaptive methods were more necessary",
            _adam,
        ),
        remark(
            "9.1.decay",
            "9.1, regularization",
            "Without weight decay networks with BatchNorm get worse.",
            "removing weight decay in BN networks often degrades performance",
            _decay,
        ),
        remark(
            "9.1.less-decay",
            "9.1, regularization",
            "Networks with BatchNorm are best with a smaller weight decay than those without.",
            "typically a smaller weight decay is used with BN networks than was needed in pre-BN era",
            _less_decay,
        ),
        remark(
            "9.4.small-batches",
            "9.4, very small batches",
            "With very small batches BatchNorm is worse than none.",
            "Very small batch sizes: BN's estimates are noisy, which can overwhelm the training signal.",
            _worse("pairs", "With batches of two samples", ("none",)),
        ),
        remark(
            "9.4.group-norm",
            "9.4, very small batches",
            "There GroupNorm and LayerNorm are better than BatchNorm.",
            "Techniques like Batch Renormalization or Group Normalization can help here.",
            _worse("pairs", "With batches of two samples", ("group", "layer")),
        ),
        remark(
            "9.4.correlated",
            "9.4, data that are not iid",
            "Where samples of a batch belong together LayerNorm and no normalizer are better than BatchNorm.",
            "One might prefer LN or no normalization in such cases.",
            _worse("classes", "With batches of two classes each", ("layer", "none")),
        ),
        remark(
            "9.5.dropout",
            "9.5, combination with other methods",
            "Dropout gains less with BatchNorm than without.",
            "Some have noted they somewhat reduce each other's effect",
            _dropout,
        ),
        remark(
            "9.5.noise",
            "9.5, adversarial robustness",
            "With BatchNorm noise in the inputs costs less accuracy.",
            "BN's margin increase should help against random noise",
            _noise,
        ),
        remark(
            "9.5.adversarial",
            "9.5, adversarial robustness",
            "How much more an attack costs without BatchNorm than with it.",
            "There's mixed evidence how BN affects adversarial examples.",
            _attack,
        ),
    ),
)
