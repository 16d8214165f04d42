"""The verbs that bound: `lipschitz`, `radius`, and `verify` and `ops`, which say what to trust."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch.utils._pytree import tree_map

from ..bounds.data.quantile import DataBracket
from ..bounds.lipschitz import lipschitz as measure_lipschitz
from ..bounds.operators.registry import Operator, operators
from ..bounds.pages.radii import radii_document
from ..bounds.radius.radius import certified_radius
from ..core.bracket import Bracket
from ..core.errors import InputError
from ..report.brackets import bracket_table
from ..report.document import Document, ReadColumn, read_from, tabulate
from .data_forms import open_data, open_labelled
from .messages import PlainResult, check_targets, measuring, one_line, show_result
from .model_forms import GivenModel, open_runnable
from .options import (
    DataOrNoise,
    Device,
    Html,
    Json,
    MaxSeconds,
    Model,
    Output,
    Seed,
    Trust,
    options_of,
    output_of,
)

LIPSCHITZ_EXAMPLES = """
normscope bound lipschitz normscope.networks:mlp --data digits --scope global

normscope bound lipschitz mypackage.models:cnn --data mypackage.data:test_loader --share 0.999 --samples 5000
normscope bound lipschitz mypackage.models:cnn --data cifar10:~/data --scope data --per class
normscope bound lipschitz mypackage.models:cnn --data mnist:~/data --scope global --json bound.json
"""
RADIUS_EXAMPLES = """
normscope bound radius normscope.networks:mlp --data digits --samples 20 --html radii.html

normscope bound radius mypackage.models:cnn --data mnist:~/data --effort tight --at 0.5 --at 1
normscope bound radius mypackage.models:cnn --data mypackage.data:test_loader --json radii.json
"""
VERIFY_EXAMPLES = """
python -c "import torch, normscope as ns; ns.spectral_norm(torch.randn(8, 8)).save('norm.npz')"
normscope bound verify norm.npz

python tools/verify norm.npz           # the same, from a checkout, where Normscope is not installed
"""
OPS_EXAMPLES = """
normscope bound ops
"""
NAMED = ("digits", "mnist", "cifar10", "npz")
"""Data sets from which samples are drawn at random, since their order may have a meaning."""
MANY = 1_000_000
"""How many samples of such a data set are read at most, to draw from."""


@options_of(measure_lipschitz)
def lipschitz(
    model: Model,
    data: DataOrNoise = None,
    *,
    scope: Literal["data", "point", "global"] = "data",
    share: float,
    confidence: float,
    samples: Annotated[int | None, typer.Option(min=1)],
    per: Annotated[
        Literal["class"] | None, typer.Option(help="With --scope data: also by class (of all samples).")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples that go through the model at a time.")] = 32,
    html: Html = None,
    json: Json = None,
    mode: Annotated[
        Literal["train", "eval"], typer.Option(help="Which of the model's two functions; train: of whole batches.")
    ] = "eval",
    output: Output,
    max_seconds: MaxSeconds,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Measure how much a network can amplify a small change of its input.

    `--scope` chooses the inputs:

    - `data`: the factor that a share of the data does not exceed, with a confidence, from the Jacobian norm at
      independent samples, as many as the confidence needs (299 for 99 % at 95 %). It holds for fresh draws of the same
      data, not for shifted or adversarial inputs. The samples with the largest factors are listed: look at those first.
    - `point`: the Jacobian norm at each sample of one batch
    - `global`: a certified bound over all inputs

    MODEL is anything that `normscope audit` takes but weights alone.

    DATA is one of `digits`, `mnist:FOLDER`, `cifar10:FOLDER` (images kept for testing) and `npz:FILE`, of which samples
    are drawn at random, or `package.module:loader` (let it shuffle: its samples count as independent draws).
    """
    if per is not None and scope != "data":
        raise InputError("--per is for --scope data")
    with measuring(model, data, html, json):
        subject = open_runnable(model, trust=trust, device=device, mode=mode)
        samples_in_scope = _samples(subject, data, scope, batch_size, seed, labels=per == "class")
        bracket = measure_lipschitz(
            subject.module,
            samples_in_scope.batches,
            scope=scope,
            share=share,
            confidence=confidence,
            samples=samples,
            per=per,
            mode=mode,
            output=output_of(output),
            max_seconds=max_seconds,
            seed=seed,
        )
    bracket = samples_in_scope.described(bracket, subject)
    if isinstance(bracket, DataBracket):
        show_result(bracket, html, json)
    else:
        title = f"How much a change of the input of {subject.name} can grow (Lipschitz constant)"
        page = Document(title=title, blocks=(bracket_table({bracket.scope.value: bracket}),))
        show_result(PlainResult(page, bracket.to_json()), html, json)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesInScope:
    """The samples that a scope needs."""

    batches: Any  # batches for `--scope data`, else one batch
    notes: tuple[str, ...]  # notes for the report
    # the numbers of the samples in the data set, if they were drawn from it at random; else None
    order: list[int] | None = None

    def described(self, bracket: Bracket, subject: GivenModel) -> Bracket:
        """Return a bracket with the notes, and with samples numbered as in the data set."""
        bracket = dataclasses.replace(bracket, notes=(*self.notes, *subject.notes, *bracket.notes))
        if isinstance(bracket, DataBracket) and self.order is not None:
            return bracket.renumbered(self.order)
        return bracket


def _samples(
    subject: GivenModel, data: str | None, scope: str, size: int, seed: int, *, labels: bool
) -> SamplesInScope:
    """Return the samples that a scope needs, in batches of some size."""
    size = subject.batch_size or size
    if scope != "data":
        opened = open_data(data, subject, batch_size=size, seed=seed)
        device = next((p.device for p in subject.module.parameters()), torch.device("cpu"))
        first = tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, opened.first)
        return SamplesInScope(batches=first, notes=opened.notes)
    if data is None:
        raise InputError("--scope data is measured on data: give --data")
    if data.partition(":")[0] in NAMED:
        return _drawn(subject, data, size, seed, labels=labels)
    opened = open_data(data, subject, batch_size=size, seed=seed)
    return SamplesInScope(batches=[opened.first] if opened.loader is None else opened.loader, notes=opened.notes)


def _drawn(subject: GivenModel, data: str, size: int, seed: int, *, labels: bool) -> SamplesInScope:
    """Return the samples of a named data set in a random order, with their labels if they are asked for."""
    labelled = open_labelled(data, subject, samples=MANY, seed=seed)
    read = list(labelled.batches)
    inputs = torch.cat([inputs for inputs, _ in read])
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    batches: list[Any] = list(inputs[order].split(size))
    if labels and all(isinstance(classes, torch.Tensor) for _, classes in read):
        batches = list(zip(batches, torch.cat([classes for _, classes in read])[order].split(size), strict=True))
    notes = (*labelled.notes, "samples are drawn from these at random")
    return SamplesInScope(batches=batches, notes=notes, order=order.tolist())


@options_of(certified_radius)
def radius(
    model: Model,
    data: DataOrNoise = None,
    *,
    samples: Annotated[int, typer.Option(min=1, help="How many samples to certify.")] = 100,
    effort: Literal["fast", "tight"],
    at: Annotated[
        list[float] | None, typer.Option(min=0.0, help="A radius to show the accuracy at; may be given several times.")
    ] = None,
    attack: bool,
    html: Html = None,
    json: Json = None,
    output: Output,
    max_seconds: MaxSeconds,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Certify how far samples can be changed before their class can change, and attack them for comparison.

    For each sample: the largest l2 radius found within which the class provably cannot change, and the length of the
    smallest change that an attack found. Then the accuracy by radius: certified, and under attack.

    MODEL is a classifier, in any form that `normscope audit` takes but weights alone; it is measured in eval mode.

    DATA is one of

    - `digits` (comes with scikit-learn), `mnist:FOLDER`, `cifar10:FOLDER`: images kept for testing, with their classes;
      `mnist:raw:FOLDER`, `cifar10:raw:FOLDER`: with values from 0 to 1
    - `npz:FILE` with the inputs in an array called x, images or data, and the classes in y, labels or targets
    - `package.module:loader`: a DataLoader, a Dataset or a list of `(x, y)` batches; without y the predicted classes
      count.

    Radii are l2 distances in the units of the data: MNIST and CIFAR-10 are standardised, so a distance of 1 is one
    standard deviation of the pixels there; with `raw:` it is the step from black to white of one pixel.
    """
    with measuring(model, data, html, json):
        subject = open_runnable(model, trust=trust, device=device)
        if subject.fixed_mode and subject.module.training:
            raise InputError(f"{subject.name} was exported in train mode, where samples have no class of their own")
        labelled = open_labelled(data, subject, samples=samples, seed=seed)
        radii = certified_radius(
            subject.module,
            labelled.batches,
            effort=effort,
            attack=attack,
            mode="eval",
            output=output_of(output),
            max_seconds=max_seconds,
            seed=seed,
        )
    radii = dataclasses.replace(radii, name=subject.name, notes=(*labelled.notes, *subject.notes, *radii.notes))
    show_result(radii, html, json, page=radii_document(radii, brief=True, at=at))


def verify(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files that bracket.save('proof.npz') wrote.", show_default=False),
    ],
    work: Annotated[
        float, typer.Option("--work", metavar="N", help="How many multiplications checking one file may take.")
    ] = 1e12,
) -> None:
    """Check saved bounds without trusting Normscope.

    A file that `bracket.save(path)` wrote holds the network, both sides of the bracket, the steps that prove the upper
    side and the pair of inputs that attains the lower one. `tools/verify`, a small program that needs NumPy and
    python-flint and imports nothing of Normscope or torch, evaluates the network with its own code and checks every
    step; this command runs it in a process of its own. It prints one line per claim: VERIFIED, NOT RE-VERIFIED (why) or
    REJECTED (why).

    Exit codes: 0 all verified, 1 something rejected, 2 a file cannot be used, 3 something not re-verified.
    """
    for path in files:
        if not path.exists():
            raise InputError(f"no file {path}")
        if path.suffix == ".json":
            raise InputError(
                f"{path} is a result as JSON, which holds no proof: normscope show {path} shows it. What is verified "
                "are files that bracket.save('proof.npz') wrote, for a bracket of ns.lipschitz or ns.spectral_norm"
            )
    command = [sys.executable, str(checker_folder()), "--work", str(work), "--", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    for line in done.stdout.splitlines():
        typer.echo(one_line(line))
    for line in done.stderr.splitlines()[-len(files) :]:
        typer.echo(one_line(f"normscope: {line}"), err=True)
    raise typer.Exit(done.returncode if done.returncode in (0, 1, 3) else 2)


def checker_folder() -> Path:
    """Return the folder of the checker: in the installed package, or in the checkout that the package runs from."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "tools" / "verify", package.parents[1] / "tools" / "verify"):
        if (folder / "__main__.py").is_file():
            return folder
    raise InputError("tools/verify is missing from this installation: take it from the source of Normscope")


def ops(html: Html = None, json: Json = None) -> None:
    """List the operators Normscope can bound, and what it knows of each.

    A model can be bounded if every operator between its input and its output is in this list. The error names an
    operator that is not, with its module and source line; add it with @normscope.rule, or give a constant for its
    module with known={...}.

    Near a point (bounds over balls, certified radii) an operator is known by its map, by steps with slopes of their
    own, or by its gain alone, which is looser. In a saved proof it is known by its map or by a word; one that is
    opaque is not followed by the checker, which says so.
    """
    check_targets(html, json)
    rows = [
        {KEYS.get(column.title, column.title): read_from(one, column.read) for column in COLUMNS} for one in operators()
    ]
    caption = "Every example of every rule runs through the same soundness tests."
    page = Document(title="Operators that have a rule", blocks=(tabulate(operators(), COLUMNS, caption=caption),))
    show_result(PlainResult(page, rows), html, json)


COLUMNS: tuple[ReadColumn[Operator], ...] = (
    ReadColumn("operator", "text", "name"),
    ReadColumn("family", "text", "family"),
    ReadColumn("what it gives", "text", "summary"),
    ReadColumn("near a point", "text", "near"),
    ReadColumn("in a proof", "text", "proof"),
    ReadColumn("examples", "count", lambda one: len(one.examples)),
)
KEYS = {"what it gives": "gives", "near a point": "near", "in a proof": "proof"}
"""Names of columns in JSON, where they differ."""
