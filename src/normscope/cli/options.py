"""Options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..core.finding import Severity
from ..theory.losses import TRAINING_LOSSES
from .data_forms import BATCH_SIZE, NOISE_SAMPLES
from .messages import STDOUT
from .model_forms import FORMS

_DATA = "digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)]
Data = Annotated[str, typer.Option("--data", metavar="DATA", help=_DATA, show_default=False)]
DataOrNoise = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help=f"{_DATA} Left out, a Hugging Face model gets random noise of its own sizes, and the report says so.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help=f"Samples a batch, {BATCH_SIZE} if left out ({NOISE_SAMPLES} of noise).")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", metavar="NAME", help="Which output to measure, by name or number, if the model returns several."
    ),
]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="NAME",
        help=f"The loss between outputs and labels, which the data must have: {', '.join(TRAINING_LOSSES)}. Gradients "
        "are then its own, and it is looked at whether outputs and labels fit it.",
    ),
]
FailOn = Annotated[
    Severity | None,
    typer.Option(help="Exit with code 1 if a finding is this serious or more; reports call an info a note."),
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The seed of every random choice.")]


def _refuse_stdout(path: Path | None) -> Path | None:
    """Refuse `-` where a file is meant."""
    if path == STDOUT:
        raise typer.BadParameter("a page is written to a file: only --json takes - for standard output")
    return path


Html = Annotated[Path | None, typer.Option(help="Write the report to this file.", callback=_refuse_stdout)]
Json = Annotated[Path | None, typer.Option(help="Write the figures to this file; - prints them instead of the report.")]
Sarif = Annotated[Path | None, typer.Option(help="Write the findings to this file as SARIF, for code hosts.")]
Mode = Annotated[
    Literal["train", "eval"] | None,
    typer.Option(help="Which of the model's two functions; left out, the one it is in when it is built."),
]
MaxSeconds = Annotated[
    float | None, typer.Option(min=0.0, help="Cut short what takes longer; the report says what was cut.")
]
Device = Annotated[str | None, typer.Option(help="Where to run the model, e.g. cuda; left out, where it is built.")]
Trust = Annotated[bool, typer.Option("--trust", help="Load a .pt2 file although that can run code it holds.")]


def output_of(text: str | None) -> str | int | None:
    """Return the output that `--output` names: its number where the text is one, else its name."""
    return int(text) if text is not None and text.isdecimal() else text
