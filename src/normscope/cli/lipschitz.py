"""`normscope lipschitz`: how much a network can amplify a change of its input, from the command line."""

from __future__ import annotations

import dataclasses
import json as json_text
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch.utils._pytree import tree_map

from ..bounds.data.quantile import DataBracket
from ..bounds.lipschitz import lipschitz as measured
from ..core.bracket import Bracket
from ..core.errors import InputError
from ..core.files import write_text
from ..report.brackets import bracket_table
from ..report.document import Document
from ..report.terminal import print_document
from .data_forms import open_data, open_labelled
from .messages import say_written
from .model_forms import FORMS, GivenModel, open_runnable, place_model
from .objects import refuse_exit
from .options import Device, Json, MaxSeconds, Seed, Trust, output_of
from .targets import check_targets, read_from

HELP = """Measure how much a network can amplify a small change of its input.

`--scope` chooses the inputs:

- `data`: the factor that a share of the data does not exceed, with a confidence, from the Jacobian norm at independent
  samples, as many as the confidence needs (299 for 99 % at 95 %). It holds for fresh draws of the same data, not for
  shifted or adversarial inputs. The samples with the largest factors are listed: look at those first.
- `point`: the Jacobian norm at each sample of one batch
- `global`: a certified bound over all inputs

MODEL is anything that `normscope audit` takes but weights alone; it is measured in eval mode.

DATA is one of `digits`, `mnist:FOLDER`, `cifar10:FOLDER` (images kept for testing) and `npz:FILE`, of which samples are
drawn at random, or `package.module:loader` (let it shuffle: its samples count as independent draws).
"""

EXAMPLES = """**Examples**

```
normscope lipschitz net.py:build --data digits --scope data
normscope lipschitz mypackage.models:cnn --data mypackage.data:test_loader --scope data --share 0.999 --samples 5000
normscope lipschitz mypackage.models:cnn --data cifar10:~/data --scope data --per class
normscope lipschitz mypackage.models:cnn --data mnist:~/data --scope global --json bound.json
```
"""
NAMED = ("digits", "mnist", "cifar10", "npz")
"""Data sets from which samples are drawn at random, since their order may have a meaning."""
MANY = 1_000_000
"""How many samples of such a data set are read at most, to draw from."""


def lipschitz(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DATA", help="digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader."
        ),
    ] = None,
    scope: Annotated[
        Literal["data", "point", "global"], typer.Option(help="The inputs for which the figure holds.")
    ] = "data",
    share: Annotated[float, typer.Option(help="With --scope data: the share of the data, between 0 and 1.")] = 0.99,
    confidence: Annotated[float, typer.Option(help="With --scope data: the confidence, between 0 and 1.")] = 0.95,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --scope data: how many samples to read; left out, as many as the confidence needs."
        ),
    ] = None,
    per: Annotated[
        Literal["class", "layer"] | None,
        typer.Option(
            help="With --scope data: also by class (of all samples), or by layer (some 150 passes per sample)."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples that go through the model at a time.")] = 32,
    html: Annotated[Path | None, typer.Option(help="Write the report to this file (--scope data).")] = None,
    json: Json = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="NAME", help="Which output to take, by name or number, if the model returns several."
        ),
    ] = None,
    max_seconds: MaxSeconds = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Measure a Lipschitz constant (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    if html is not None and scope != "data":
        raise InputError(f"--html is for --scope data: the bracket of --scope {scope} is one line")
    if per is not None and scope != "data":
        raise InputError("--per is for --scope data")
    with refuse_exit():
        given = place_model(open_runnable(model, trust=trust), device, None)
        samples_in_scope = _samples(given, data, scope, batch_size, seed, labels=per == "class")
        bracket = measured(
            given.module,
            samples_in_scope.batches,
            scope=scope,
            share=share,
            confidence=confidence,
            samples=samples,
            per=per,
            mode="eval",
            output=output_of(output),
            max_seconds=max_seconds,
            seed=seed,
        )
    bracket = samples_in_scope.described(bracket, given)
    print_document(_document(bracket, given.name))
    if html is not None and isinstance(bracket, DataBracket):
        bracket.to_html(html)
        say_written(html)
    if json is not None:
        write_text(json, json_text.dumps(bracket.to_json(), indent=1, allow_nan=False) + "\n")
        say_written(json)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesInScope:
    """The samples that a scope needs.

    Attributes:
        batches: batches for `--scope data`, else one batch.
        notes: notes for the report.
        order: the numbers of the samples in the data set, if they were drawn from it at random; else None.
    """

    batches: Any
    notes: tuple[str, ...]
    order: list[int] | None = None

    def described(self, bracket: Bracket, given: GivenModel) -> Bracket:
        """Return a bracket with the notes, and with samples numbered as in the data set."""
        bracket = dataclasses.replace(bracket, notes=(*self.notes, *given.notes, *bracket.notes))
        if isinstance(bracket, DataBracket) and self.order is not None:
            return bracket.renumbered(self.order)
        return bracket


def _samples(given: GivenModel, data: str | None, scope: str, size: int, seed: int, *, labels: bool) -> SamplesInScope:
    """Return the samples that a scope needs, in batches of some size."""
    size = given.batch_size or size
    if scope != "data":
        opened = open_data(data, given, batch_size=size, seed=seed)
        device = next((p.device for p in given.module.parameters()), torch.device("cpu"))
        first = tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, opened.first)
        return SamplesInScope(batches=first, notes=opened.notes)
    if data is None:
        raise InputError("--scope data is measured on data: give --data")
    if data.partition(":")[0] in NAMED:
        return _drawn(given, data, size, seed, labels=labels)
    opened = open_data(data, given, batch_size=size, seed=seed)
    return SamplesInScope(batches=[opened.first] if opened.loader is None else opened.loader, notes=opened.notes)


def _drawn(given: GivenModel, data: str, size: int, seed: int, *, labels: bool) -> SamplesInScope:
    """Return the samples of a named data set in a random order, with their labels if they are asked for."""
    labelled = open_labelled(data, given, samples=MANY, seed=seed)
    read = list(labelled.batches)
    inputs = torch.cat([inputs for inputs, _ in read])
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    batches: list[Any] = list(inputs[order].split(size))
    if labels and all(isinstance(classes, torch.Tensor) for _, classes in read):
        batches = list(zip(batches, torch.cat([classes for _, classes in read])[order].split(size), strict=True))
    notes = (*labelled.notes, "samples are drawn from these at random")
    return SamplesInScope(batches=batches, notes=notes, order=order.tolist())


def _document(bracket: Bracket, name: str) -> Document:
    """Return what is printed: one line for a bracket, or the report of a DATA bracket."""
    if isinstance(bracket, DataBracket):
        return bracket.document(brief=True)
    return Document(title=f"Lipschitz constant of {name}", blocks=(bracket_table({bracket.scope.value: bracket}),))
