"""Would training on one batch find faults that `check` misses? It trains a copy of every case.

    python benchmarks/overfit.py [--parts open first second third held-out]

A copy of the model is trained on its batch for 100 steps of Adam (rate 0.01, dropout off), and for 60 steps of the
optimizer of the case, if it has one. Four signs need no rule for any one fault: training raises or gives NaN; a matrix
does not move; the loss that Adam reaches, as a share of the lesser of the first loss and the loss of the best constant
output, lies above that of every healthy model of the parts that are not held out; the optimizer of the case ends above
the first loss. Of each it prints how many show it: of the faults that `check` finds, of those that it misses, of those
of the second and the third part that it missed while they were held out, and of the healthy models. Of the held-out
part it prints totals alone.
"""

import argparse
import copy
import math
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from benchmarks.faults import diagnose
from normscope.calls.call import arguments, labels_of
from normscope.calls.data_reader import Batches
from normscope.core.untouched import drops
from normscope.doctor.facts.loss import resolve_loss
from normscope.doctor.facts.objective import differentiated_outputs, take_loss
from normscope_faults import Case
from normscope_faults.models import PARTS
from normscope_faults.score import ask

STEPS, OWN_STEPS, CONSTANT_STEPS, RATE = 100, 60, 200, 0.01
SIGNS = ("raises or NaN", "a matrix does not move", "the loss does not fall", "its optimizer ends above")
MUCH_LEFT = 0.9
"""A share of the loss: healthy models in which Adam leaves as much are named."""


def train(case: Case, batch: Any, steps: int, *, own: bool) -> tuple[list[float], bool]:
    """Train a copy on one batch; return the losses, and whether every matrix has moved."""
    model, optimizer = copy.deepcopy((case.model, case.optimizer))  # the copy of the optimizer holds the copied weights
    for module in filter(drops, model.modules()):
        module.training = False
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    optimizer = optimizer if own else torch.optim.Adam(trained, lr=RATE)
    call, losses = arguments(model, batch), list[float]()
    for step in range(steps + 1):
        torch.manual_seed(step)
        value = take_loss(resolve_loss(case.loss), model(*call.args, **call.kwargs), None, labels_of(batch, call))
        losses.append(float(value.detach()))
        if step < steps:
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return losses, all(p.ndim < 2 or bool((p != own).any()) for p, own in zip(trained, before, strict=True))


def best_constant(case: Case, batch: Any) -> float:
    """Return the least loss of an output that is the same for every sample, or infinity where there is none."""
    model = copy.deepcopy(case.model)
    call = arguments(model, batch)
    with torch.no_grad():
        outputs = differentiated_outputs(model(*call.args, **call.kwargs), None)
    if len(outputs) != 1:
        return math.inf
    constant = outputs[0].mean(0, keepdim=True).clone().requires_grad_(True)
    optimizer, best = torch.optim.Adam([constant], lr=0.05), math.inf
    for _ in range(CONSTANT_STEPS):
        value: Tensor = resolve_loss(case.loss)(constant.expand_as(outputs[0]), *labels_of(batch, call))
        best = min(best, float(value.detach())) if math.isfinite(value) else best
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return best


def measure(case: Case) -> tuple[set[str], float]:
    """Return the signs of a case, but for the third, and the share of the loss that Adam leaves."""
    try:
        batch = Batches(case.model, case.data, with_loss=True).first
        losses, moves = train(case, batch, STEPS, own=False)
        own = [] if case.optimizer is None else train(case, batch, OWN_STEPS, own=True)[0]
    except Exception:
        losses = [math.nan]
    if not all(map(math.isfinite, losses)):
        return {SIGNS[0]}, 0.0
    try:
        constant = best_constant(case, batch)
    except Exception:  # a loss that takes no such output
        constant = math.inf
    signs = ({SIGNS[1]} if not moves else set()) | ({SIGNS[3]} if own and not own[-1] < own[0] else set())
    return signs, min(losses) / max(min(losses[0], constant), 1e-12)


def missed_once() -> set[str]:
    """Return the faults that were missed while their part was held out."""
    stored = Path(__file__).parent.parent / "docs/results"
    texts = [stored.joinpath(f"faults_{part}_part.txt").read_text() for part in ("second", "third")]
    return {name for text in texts for name in re.findall(r"^missed\s+(\S+) ", text, re.MULTILINE)}


def main() -> None:
    """Measure all cases and print how many show which sign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    begun, worst, without = time.perf_counter(), 0.0, Counter[str]()
    groups, once = defaultdict[str, list[tuple[str, set[str], float]]](list), missed_once()
    for part in parser.parse_args().parts:
        where = "held-out part" if part == "held-out" else "other parts"
        for kind, entries in zip(("fault", "healthy"), PARTS[part], strict=True):
            for entry in entries:
                case = entry.build()
                found = ask(diagnose, entry).found
                signs, share = (set[str](), 0.0) if case.loss is None else measure(case)
                without[kind] += case.loss is None
                if kind == "healthy" and part != "held-out":
                    worst = max(worst, share)
                    if share > MUCH_LEFT:
                        print(f"Adam leaves {share:.3f} of the loss of the healthy model {entry.name}", flush=True)
                row = entry.name, signs, share
                told = "healthy models" if kind == "healthy" else f"faults {'found' if found else 'missed'} by check"
                groups[f"{where}, {told}"].append(row)
                if entry.name in once:
                    groups[f"{where}, faults missed while their part was held out"].append(row)
    print(f"Most of the loss that Adam leaves in a healthy model: {worst:.3f}. Without a loss: {dict(without)}.")
    for name, group in sorted(groups.items()):
        shown = [(who, signs | ({SIGNS[2]} if share > worst else set())) for who, signs, share in group]
        counts = [f"{sign}: {sum(sign in signs for _, signs in shown)}" for sign in SIGNS]
        any_sign = [who for who, signs in shown if signs]
        print(f"{name}, {len(group)}: any sign {len(any_sign)}; {'; '.join(counts)}")
        if "held-out part" not in name and "found" not in name:
            print("    " + ", ".join(any_sign))
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
