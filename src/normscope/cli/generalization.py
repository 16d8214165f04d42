"""The verb `generalization`; what it measures stands in the lab, and a lab that is not installed is an error here."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import typer

from .. import load_from_lab
from .data_forms import open_split, open_with_labels
from .messages import measuring, show_result
from .model_forms import open_runnable
from .options import Count, Data, Device, Html, Json, MaxSeconds, Model, Seed, Trust, options_of

bound_generalization = load_from_lab("generalization")

GENERALIZATION_EXAMPLES = """
normscope generalization normscope.networks:mlp --data digits --samples 500 --steps 20 --html bounds.html

normscope generalization net.py:trained --data mnist:raw:~/data --input-range 0 1 --samples 10000 --steps 5000
normscope generalization mypackage.models:cnn --data mypackage.data:train --test mypackage.data:test --device cuda
"""


@options_of(bound_generalization)
def generalization(
    model: Model,
    data: Data,
    *,
    test: Annotated[str | None, typer.Option("--test", metavar="DATA")],
    held_out: Annotated[str | None, typer.Option("--held-out", metavar="DATA")],
    samples: Annotated[int, typer.Option(min=10, help="How many samples of each part to use at most.")] = 60_000,
    delta: float,
    loss: Literal["probability", "ramp", "clipped_cross_entropy"],
    cells: Annotated[list[int], typer.Option(min=1)],
    radius: Annotated[float | None, typer.Option(min=0.0)],
    input_range: Annotated[tuple[float, float] | None, typer.Option("--input-range", metavar="LOW HIGH")],
    steps: Count,
    fixed: Annotated[list[str] | None, typer.Option("--fixed", metavar="NAME")],
    sharpness: Annotated[bool, typer.Option("--sharpness")],
    html: Html = None,
    json: Json = None,
    max_seconds: MaxSeconds,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Bound the loss of a trained classifier on fresh data in every known way, with the conditions of each bound.

    The bounds are Theorem 20 of Than 2025 with its corollaries, VC, the norms and margins of Bartlett 2017, Neyshabur
    2018 and Golowich 2020, PAC-Bayes with an optimised posterior, and the rates that the papers quote. Each row has a
    value, its terms, its conditions and whether they hold here, and its evidence: certified, estimated, or a rate
    without constants. A bound that is no smaller than the largest possible loss is called vacuous: most are. The bounds
    stand in the lab (pip install 'normscope[lab]').

    MODEL is what `normscope audit` takes, trained on the training part of DATA; it is measured in eval mode. `digits`,
    `mnist:FOLDER` and `cifar10:FOLDER` have a test part of their own; for `npz:FILE` and `package.module:loader` name
    one with --test. Samples for distances come from --held-out, or one in five of DATA is set aside.
    """
    with measuring(model, data, html, json):
        subject = open_runnable(model, trust=trust, device=device, mode="eval")
        train, fresh, notes = open_split(data, subject, samples=samples, seed=seed)
        if test is not None:
            fresh, more = open_with_labels(test, subject, samples=samples, seed=seed)
            notes += more
        held, more = (None, ()) if held_out is None else open_with_labels(held_out, subject, samples=samples, seed=seed)
        result = bound_generalization(
            subject.module,
            train,
            fresh,
            held,
            delta=delta,
            cells=tuple(cells),
            loss=loss,
            radius=radius,
            input_range=input_range,
            steps=steps,
            fixed=tuple(fixed or ()),
            sharpness=sharpness,
            max_seconds=max_seconds,
            seed=seed,
        )
    result = dataclasses.replace(result, name=subject.name, notes=(*notes, *more, *subject.notes, *result.notes))
    show_result(result, html, json)
