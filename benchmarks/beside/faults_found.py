"""Which planted faults weightwatcher, and a careful person with torchinfo and histograms, would find beside `ns.check`.

Each tool looks at a faulty model and at its mended twin, and each complaint names a kind and a layer. A fault counts as
*pointed at* if there is a complaint that names one of the layers at fault (any layer, where no one layer is) and that
the mended twin does not get: what a tool says of every fresh model points at nothing. A healthy model that gets any
complaint is a false alarm. Causes are asked of `ns.check` alone, since the others do not name them.

What counts as a complaint was written down before any of this was run, in favour of the peers where in doubt:

- weightwatcher: every layer that `analyze()` calls over-trained or under-trained, or whose fit fails. It is made for
  trained models; these are mostly fresh ones. Its correlation traps (`randomize=True`) take 24 to 80 times as long on
  these models and are left out.
- the careful person: torchinfo's summary of one batch and histograms of inputs, activations, weights and gradients of
  one forward and backward pass, looked at by `complaints_of_a_person`: what is not finite, constant, saturated, mostly
  zero, or a hundred times too large or small; layers that do not run, do not train or get no gradient.

The rules of `ns.check` were set with these parts of the catalogue in view, so its score here is no forecast: what it
finds of faults that nobody had seen is in docs/results/faults.txt.
"""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope_faults import Case, Fault, Healthy
from normscope_faults.models import PARTS
from normscope_faults.score import name_agrees

from ..faults import diagnose
from .turns import Row, quartiles

TUNED = ("open", "first", "second", "third")
"""Parts of the catalogue on which rules are tuned; the held-out part is for scoring alone."""
LARGE_SPREAD, SMALL_SPREAD = 100.0, 0.01
"""Standard deviations of activations above and below which a person notices."""
UNUSUAL_RATIO = 10.0
"""Factor on the usual size of weights, or of inputs, from which a person notices."""
UNUSUAL_GRADIENT_RATIO = 1000.0
"""Factor between a layer's gradient over its weight and the median of the layers, from which a person notices."""
MOSTLY_SHARE = 0.9
"""Share of an activation that is zero or saturated above which a person notices."""
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}
"""Losses that cases name."""

Complaint = tuple[str, str]
"""A kind and a layer, empty where none is named."""


def complaints_of_check(case: Case) -> set[Complaint]:
    """Return the warnings and errors of `ns.check`."""
    return {(finding.code, finding.where) for finding in diagnose(case)}


def complaints_of_weightwatcher(case: Case) -> set[Complaint]:
    """Return what weightwatcher flags."""
    import weightwatcher

    logging.getLogger("weightwatcher").setLevel(logging.CRITICAL)
    quiet = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        warnings.simplefilter("ignore")
        details = weightwatcher.WeightWatcher(model=case.model).analyze()
    complaints = set[Complaint]()
    for row in details.to_dict("records"):
        where = str(row.get("longname", ""))
        complaints |= {(row["warning"], where)} if row.get("warning") else set()
        complaints |= {("fit failed", where)} if row.get("status") == "failed" else set()
    return complaints


def spread(values: Tensor) -> float:
    """Return the standard deviation of the entries."""
    return float(values.double().std(correction=0)) if values.numel() else 0.0


def complaints_of_inputs(data: Any) -> Iterator[Complaint]:
    """Yield what a histogram of the inputs shows."""
    inputs = data if isinstance(data, dict) else {"input": data[0] if isinstance(data, tuple | list) else data}
    for value in inputs.values():
        if isinstance(value, Tensor) and value.is_floating_point():
            if not value.isfinite().all():
                yield "inputs not finite", ""
            elif spread(value) == 0.0:
                yield "inputs constant", ""
            elif not 1 / UNUSUAL_RATIO <= float(value.double().square().mean().sqrt()) <= UNUSUAL_RATIO:
                yield "inputs far from 1", ""


def complaints_of_weights(model: nn.Module) -> Iterator[Complaint]:
    """Yield what histograms of the parameters show."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            yield "weights not finite", name
        elif weight.ndim > 1 and weight.numel() > 1:
            usual = weight[0].numel() ** -0.5
            if spread(weight) == 0.0:
                yield "weights constant", name
            elif not usual / UNUSUAL_RATIO <= spread(weight) <= 2 * UNUSUAL_RATIO * usual:
                yield "weights of unusual size", name


def complaints_of_activations(
    outputs: dict[str, Tensor], kinds: dict[str, nn.Module], samples: int
) -> Iterator[Complaint]:
    """Yield what histograms of the outputs of every layer show."""
    for name, values in outputs.items():
        if not values.isfinite().all():
            yield "activations not finite", name
            continue
        size = spread(values)
        if size == 0.0:
            yield "activations constant", name
        elif not SMALL_SPREAD <= size <= LARGE_SPREAD:
            yield "activations of unusual size", name
        if float((values == 0).double().mean()) > MOSTLY_SHARE:
            yield "activations mostly zero", name
        bounds = {nn.Tanh: (-1.0, 1.0), nn.Sigmoid: (0.0, 1.0)}.get(type(kinds[name]))
        if bounds is not None:
            near = torch.minimum(values - bounds[0], bounds[1] - values) < 0.01 * (bounds[1] - bounds[0])
            if float(near.double().mean()) > MOSTLY_SHARE:
                yield "saturated", name
    output = outputs.get("")
    if output is not None and output.ndim > 1 and len(output) == samples > 1 and spread(output) > 0.0:
        across = float(output.double().std(dim=0, correction=0).mean())
        if across < 1e-4 * spread(output):
            yield "output the same for all samples", ""


def complaints_of_gradients(model: nn.Module) -> Iterator[Complaint]:
    """Yield what histograms of the gradients show."""
    sizes = {}
    for name, weight in model.named_parameters():
        gradient = weight.grad
        if not weight.requires_grad:
            yield "not trained", name
        elif gradient is None or not gradient.any():
            yield "no gradient", name
        elif not gradient.isfinite().all():
            yield "gradient not finite", name
        elif weight.ndim > 1 and weight.detach().any():
            sizes[name] = float(gradient.double().norm() / weight.detach().double().norm())
    middle = statistics.median(sizes.values()) if sizes else 0.0
    least, largest = middle / UNUSUAL_GRADIENT_RATIO, middle * UNUSUAL_GRADIENT_RATIO
    yield from (("gradient of unusual size", name) for name, size in sizes.items() if not least <= size <= largest)


def complaints_of_a_person(case: Case) -> set[Complaint]:
    """Return what a careful person sees in torchinfo's summary and in histograms of one step."""
    import torchinfo

    model, data = case.model, case.data
    inputs, target = (data, None) if isinstance(data, dict | Tensor) else (data[0], data[1])
    samples = len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)
    complaints = set(complaints_of_inputs(data)) | set(complaints_of_weights(model))
    kinds, outputs = dict(model.named_modules()), dict[str, Tensor]()

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(value, Tensor) and value.is_floating_point() and (name == "" or not any(module.children())):
                outputs[name] = value.detach()

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in kinds.items()]
    try:
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    complaints |= set(complaints_of_activations(outputs, kinds, samples))
    loss = case.objective or (LOSSES.get(case.loss) if isinstance(case.loss, str) else case.loss)
    if loss is not None and not (target is None and case.objective is None):
        value = loss(output) if loss is case.objective else loss(output, target)
        complaints |= set() if value.isfinite() else {("loss not finite", "")}
        if value.requires_grad:
            value.backward()
            complaints |= set(complaints_of_gradients(model))
        else:
            complaints.add(("loss without a graph", ""))
    names = {id(module): name for name, module in kinds.items()}
    summary = torchinfo.summary(model, input_data=inputs, verbose=0, mode="train" if model.training else "eval")
    for layer in summary.summary_list:
        if not layer.executed and any(True for _ in layer.module.parameters(recurse=False)):
            complaints.add(("does not run", names.get(id(layer.module), "")))
    return complaints


TOOLS: dict[str, tuple[str, Callable[[Case], set[Complaint]]]] = {
    "ns.check": ("normscope", complaints_of_check),
    "weightwatcher": ("weightwatcher", complaints_of_weightwatcher),
    "torchinfo and histograms": ("torchinfo", complaints_of_a_person),
}


def points_at(fault: Fault, new: set[Complaint]) -> bool:
    """Return whether one of the new complaints, which the mended twin does not get, names a layer at fault."""
    return bool(new) and (
        not fault.layers or any(name_agrees(where, layer) for _, where in new for layer in fault.layers)
    )


def faults_found(stride: int = 2) -> Iterator[Row]:
    """Yield a row per tool, over every second case (`stride`) of the parts on which rules are tuned."""
    faults = [fault for part in TUNED for fault in PARTS[part][0]][::stride]
    return score_tools(faults, [model for part in TUNED for model in PARTS[part][1]][::stride], list(TOOLS))


def faults_unseen() -> Iterator[Row]:
    """Yield a row per peer over the held-out part, on which benchmarks/faults.py scores `ns.check`."""
    return score_tools(*PARTS["held-out"], [name for name in TOOLS if name != "ns.check"])


def score_tools(faults: list[Fault], healthy: list[Healthy], tools: list[str]) -> Iterator[Row]:
    """Yield a row per tool, in totals; of one that is not among `tools`, or not installed, with the reason."""
    title = f"{len(faults)} planted faults, {len(healthy)} healthy models"
    seconds: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, dict[str, int]] = {name: defaultdict(int) for name in TOOLS}

    def ask(name: str, case: Case) -> set[Complaint] | None:
        began = time.process_time()
        try:
            return TOOLS[name][1](case)
        except Exception:
            return None
        finally:
            seconds[name].append(time.process_time() - began)

    installed = [name for name in tools if find_spec(TOOLS[name][0])]
    for fault in faults:
        for name in installed:
            of_fault, of_mended = ask(name, fault.build()), ask(name, fault.mend())
            counts[name]["refused"] += of_fault is None
            counts[name]["complained"] += bool(of_fault)
            counts[name]["pointed"] += points_at(fault, (of_fault or set()) - (of_mended or set()))
        if "ns.check" in installed:
            counts["ns.check"]["cause"] += ask(diagnose, fault).cause
    for model in healthy:
        for name in installed:
            counts[name]["alarms"] += bool(ask(name, model.build()))
    for name, count in counts.items():
        if name not in installed:
            why_not = "not installed" if name in tools else "scored by benchmarks/faults.py: docs/results/faults.txt"
            yield {"case": title, "way": name, "why_not": why_not}
            continue
        says = f"complained of {count['complained']}, pointed at {count['pointed']} faults of {len(faults)}"
        says += f", its cause too {count['cause']}" if name == "ns.check" else ""
        says += f", refused {count['refused']}, false alarms at {count['alarms']} of {len(healthy)} healthy models"
        yield {
            "case": title, "way": name, "turns": len(seconds[name]), "seconds": quartiles(seconds[name]),
            "quality": [100.0 * count["pointed"] / len(faults)] * 3, "alarms": 100.0 * count["alarms"] / len(healthy),
            "says": says,
        }  # fmt: skip
