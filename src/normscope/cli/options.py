"""Options that several verbs have."""

from __future__ import annotations

from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of every random choice.")]
