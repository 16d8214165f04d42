"""`normscope lipschitz`: how much a network can amplify a change of its input, from the command line."""

from __future__ import annotations

import dataclasses
import json as json_text
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
from .data_forms import open_data
from .labelled import open_labelled
from .messages import say_written
from .model_forms import FORMS, GivenModel, open_model, placed
from .objects import staying
from .options import Device, Json, MaxSeconds, Seed, Trust
from .targets import check_targets, read_from

HELP = """Measure how much a network can amplify a small change of its input.

What is asked is chosen by `--scope`:

- `data`: the factor that a share of the data does not exceed, with confidence: the Jacobian norm at independent
  samples, as many as the confidence takes (299 for 99 % at 95 %). It speaks of fresh draws of the same data, not of
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
"""Data that are held whole: samples are drawn from them at random, since their order may have a meaning."""
MANY = 1_000_000
"""Samples of a data set that are opened at most, to draw from."""


def lipschitz(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DATA", help="digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader."
        ),
    ] = None,
    scope: Annotated[
        Literal["data", "point", "global"], typer.Option(help="Over which inputs the figure speaks.")
    ] = "data",
    share: Annotated[float, typer.Option(help="With --scope data: of the data, between 0 and 1.")] = 0.99,
    confidence: Annotated[float, typer.Option(help="With --scope data: of the statement, between 0 and 1.")] = 0.95,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="With --scope data: how many to read; left out, as many as the confidence takes."),
    ] = None,
    per: Annotated[
        Literal["class", "layer"] | None,
        typer.Option(help="With --scope data: also by class (of all samples), or by layer (some 150 passes a sample)."),
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
    """Measure a Lipschitz constant (its help is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    if html is not None and scope != "data":
        raise InputError(f"--html is for --scope data: the bracket of --scope {scope} is one line")
    if per is not None and scope != "data":
        raise InputError("--per is for --scope data")
    with staying():
        given = open_model(model, trust=trust)
        if given.model is None:
            raise InputError(f"{given.name} holds weights and no model to run: name a function that builds the model")
        given = placed(given, device, None)
        batches, notes, order = _batches(given, data, scope, batch_size, seed, labels=per == "class")
        found = measured(
            given.module,
            batches,
            scope=scope,
            share=share,
            confidence=confidence,
            samples=samples,
            per=per,
            mode="eval",
            output=int(output) if output is not None and output.isdecimal() else output,
            max_seconds=max_seconds,
            seed=seed,
        )
        found = dataclasses.replace(found, notes=(*notes, *given.notes, *found.notes))
        if isinstance(found, DataBracket) and order is not None:
            found = found.renumbered(order)
    print_document(_document(found, given.name))
    if html is not None and isinstance(found, DataBracket):
        found.to_html(html)
        say_written(html)
    if json is not None:
        write_text(json, json_text.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
        say_written(json)


def _batches(
    given: GivenModel, data: str | None, scope: str, size: int, seed: int, *, labels: bool
) -> tuple[Any, tuple[str, ...], list[int] | None]:
    """Return the first batch, or for `--scope data` batches; notes for the report; where drawn samples stand."""
    size = given.batch_size or size
    if scope != "data":
        opened = open_data(data, given, batch_size=size, seed=seed)
        device = next((p.device for p in given.module.parameters()), torch.device("cpu"))
        first = tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, opened.first)
        return first, opened.notes, None
    if data is None:
        raise InputError("--scope data speaks of data: give --data")
    if data.partition(":")[0] not in NAMED:
        opened = open_data(data, given, batch_size=size, seed=seed)
        return [opened.first] if opened.loader is None else opened.loader, opened.notes, None
    labelled = open_labelled(data, given, samples=MANY, seed=seed)
    read = list(labelled.batches)
    inputs = torch.cat([inputs for inputs, _ in read])
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    notes = (*labelled.notes, "samples are drawn from these at random")
    drawn: list[Any] = list(inputs[order].split(size))
    if labels and all(isinstance(classes, torch.Tensor) for _, classes in read):
        drawn = list(zip(drawn, torch.cat([classes for _, classes in read])[order].split(size), strict=True))
    return drawn, notes, order.tolist()


def _document(found: Bracket, name: str) -> Document:
    if isinstance(found, DataBracket):
        return found.document(brief=True)
    return Document(title=f"Lipschitz constant of {name}", blocks=(bracket_table({found.scope.value: found}),))
