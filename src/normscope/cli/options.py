"""Options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The seed of every random choice.")]
Html = Annotated[Path | None, typer.Option(help="Write the report to this file.")]
Json = Annotated[Path | None, typer.Option(help="Write the figures to this file.")]
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
