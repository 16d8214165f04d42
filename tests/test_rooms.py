"""The two sides of the house: what a check and a watched run load, in a fresh process."""

from __future__ import annotations

import subprocess
import sys

MAX_LINES = 30_400
"""Lines of the package that a check and a watched run may load."""
BOUNDS = ("bounds", "auditing", "choosing", "generalize")
"""The rooms that the doctor knows nothing of."""

CHECK_AND_WATCH = """
import sys
from pathlib import Path

import torch
from torch import nn
import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
)
x, y = torch.randn(16, 3, 6, 6), torch.arange(16) % 3
ns.check(model, (x, y), loss="cross_entropy", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
optimizer = torch.optim.AdamW(model.parameters())
sharpness = (nn.functional.cross_entropy, (x, y)) if "sharpness" in sys.argv else None
with ns.watch(model, optimizer, every={"full": 1}, overhead=None, panel=False, sharpness=sharpness) as run:
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
assert all(norm is not None for norm in run.records[0].of("weight", "log10_norm"))
assert sharpness is None or any("sharpness" in record.metrics for record in run.records)
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "normscope":
        print(name, Path(module.__file__).read_text(encoding="utf-8").count("\\n"))
"""


def loaded(*arguments: str) -> dict[str, int]:
    """Return the lines of every module of the package that a check and a watched run load, by its name."""
    command = [sys.executable, "-c", CHECK_AND_WATCH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: int(lines) for name, lines in map(str.split, done.stdout.splitlines())}


def test_a_check_and_a_watched_run_load_nothing_of_the_bounds():
    lines = loaded()
    strangers = [name for name in lines if name.split(".")[1:2] in ([room] for room in BOUNDS)]
    told = "\n".join(f"{lines[name]:6,} {name}" for name in sorted(lines, key=lambda name: -lines[name]))
    assert not strangers, f"of the bounds: {', '.join(strangers)}; in all\n{told}"
    assert sum(lines.values()) <= MAX_LINES, f"{sum(lines.values()):,} lines in {len(lines)} files\n{told}"


def test_the_curvature_of_a_run_needs_nothing_of_the_bounds():
    lines = loaded("sharpness")
    assert "normscope.products.curvature" in lines
    assert not [name for name in lines if name.split(".")[1:2] in ([room] for room in BOUNDS)]
