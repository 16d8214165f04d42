"""Check the catalogue itself: every case builds and runs, every name in it exists; with --harm, faults do harm.

    python -m normscope_faults.models.check_cases [--part NAME] [--harm] [--only NAME ...]

`--harm` trains each faulty model and its mended twin on their batch, once with Adam and once with SGD (or with the
optimizer that the case hands over), and prints how good both are, on average over the steps in `MARKS` (before any step
where the model is handed over in eval mode): accuracy where the targets are classes, explained variance where they are
numbers, and what the case itself says elsewhere. The batch is shuffled for the judgement, so that a model that mixes
its samples gains nothing by it.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..case import LOSSES_BY_NAME, Case, Fault, Healthy
from ..causes import CAUSES
from ..remedies import REMEDIES
from . import PARTS

MARKS = (20, 60, 120)  # steps after which the quality is taken
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
}


def inputs_and_targets(case: Case) -> tuple[Any, Tensor | None]:
    """Split the batch of a case."""
    if isinstance(case.data, tuple):
        return case.data
    return case.data, None


def run_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model as its batch asks for."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def loss_of(case: Case, output: Any) -> Tensor | None:
    """Return what training minimises, None for a case without a loss."""
    _, targets = inputs_and_targets(case)
    if case.objective is not None:
        return case.objective(output)
    if targets is None or case.loss is None:
        return None
    loss = LOSSES_BY_NAME[case.loss] if isinstance(case.loss, str) else case.loss
    return loss(output, targets)


def describe_problem(entry: Fault | Healthy) -> str | None:
    """Build and run a case; return what is wrong with the catalogue's entry."""
    case = entry.build()
    inputs, _ = inputs_and_targets(case)
    if case.model.training is not case.train:
        return "the model is not in the mode of its case"
    output = run_model(case.model, inputs)
    value = loss_of(case, output)
    if value is not None and value.ndim != 0:
        return f"the loss has shape {tuple(value.shape)}"
    if isinstance(entry, Healthy):
        tensors = [leaf for leaf in tree_leaves((output, value)) if isinstance(leaf, Tensor)]
        return None if all(tensor.isfinite().all() for tensor in tensors) else "a healthy model is not finite"
    names = {name for name, _ in case.model.named_modules()}
    names |= {name for name, _ in case.model.named_parameters()} | {name for name, _ in case.model.named_buffers()}
    unknown = [*(entry.causes - CAUSES.keys()), *(entry.remedies - REMEDIES.keys()), *(set(entry.layers) - names)]
    if unknown:
        return f"unknown causes, remedies or layers: {', '.join(unknown)}"
    return None if entry.causes and entry.remedies else "no cause or no remedy"


def quality(case: Case) -> float:
    """Return how good the model is on its batch, in the mode of the case; minus infinity if not finite."""
    inputs, targets = inputs_and_targets(case)
    with torch.no_grad():
        if case.judge is not None:
            score = case.judge(run_model(case.model, inputs))
        elif case.objective is not None:
            score = -case.objective(run_model(case.model, inputs)).item()
        else:
            assert targets is not None
            order = torch.randperm(len(targets))
            output, targets = run_model(case.model, inputs[order]), targets[order]
            if not torch.isfinite(output).all():
                return -math.inf
            if targets.is_floating_point():
                wrong = output.reshape(targets.shape).float() - targets.float()
                score = (1 - wrong.square().mean() / targets.float().var(correction=0)).item()
            else:
                classes = 1 if output.ndim != targets.ndim + 1 or output.shape[:-1] != targets.shape else -1
                score = (output.argmax(classes) == targets).float().mean().item()
    return score if math.isfinite(score) else -math.inf


def train_and_judge(build: Callable[[], Case], optimizer: str) -> float:
    """Return the mean quality of a case while it is trained on its batch."""
    case = build()
    if not case.train:
        return quality(case)
    inputs, _ = inputs_and_targets(case)
    chosen = case.optimizer or OPTIMIZERS[optimizer]([p for p in case.model.parameters() if p.requires_grad])
    qualities = []
    for step in range(1, MARKS[-1] + 1):
        chosen.zero_grad()
        loss = loss_of(case, run_model(case.model, inputs))
        assert loss is not None
        if loss.requires_grad:
            loss.backward()
            chosen.step()
        if step in MARKS:
            qualities.append(quality(case))
    return sum(qualities) / len(qualities)


def main() -> None:
    """Check every entry, print what is wrong, and with --harm what each fault costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="open")
    parser.add_argument("--harm", action="store_true")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    faults, healthy_models = PARTS[options.part]
    print(f"{len(faults)} faults, {len(healthy_models)} healthy models")
    for entry in [*faults, *healthy_models]:
        if options.only and not any(word in entry.name for word in options.only):
            continue
        begin = time.perf_counter()
        problem = describe_problem(entry)
        line = f"{entry.name:48s} {time.perf_counter() - begin:5.2f} s  {problem or ''}"
        if options.harm and isinstance(entry, Fault):
            for optimizer in OPTIMIZERS:
                broken, mended = (train_and_judge(build, optimizer) for build in (entry.build, entry.mend))
                line += f"  {optimizer}: {broken:.3g} faulty, {mended:.3g} mended"
        print(line, flush=True)


if __name__ == "__main__":
    main()
