"""`normscope verify`: check saved brackets with a program that uses nothing of Normscope."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from .messages import one_line

HELP = """Check saved brackets without trusting Normscope.

A file that `bracket.save(path)` wrote holds the network, both sides of the bracket, the steps that prove the upper side
and the pair of inputs that attains the lower one. `tools/verify`, a small program that needs NumPy and python-flint
and imports nothing of Normscope or torch, evaluates the network with its own code and checks every step; this command
runs it in a process of its own. It prints one line per claim: VERIFIED, NOT RE-VERIFIED (why) or REJECTED (why).

Exit codes: 0 all verified, 1 something rejected, 2 a file cannot be used, 3 something not re-verified.
"""

EXAMPLES = """**Examples**

```
python -c "import torch, normscope as ns; ns.spectral_norm(torch.randn(8, 8)).save('norm.npz')"
normscope verify norm.npz
python tools/verify norm.npz           # the same, from a checkout, where Normscope is not installed
```
"""


def verify(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Brackets that bracket.save(path) wrote.", show_default=False),
    ],
    work: Annotated[
        float, typer.Option("--work", metavar="N", help="How many multiplications checking one file may take.")
    ] = 1e12,
) -> None:
    """Check saved brackets (the help of the command is HELP)."""
    for path in files:
        if not path.exists():
            raise InputError(f"no file {path}")
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
