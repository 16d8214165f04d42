"""`ladder`: every method's bracket of a network's Lipschitz constant, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

from ..calls.data_reader import Batches
from ..calls.stand_ins import accepts_graph
from ..core.bracket import HELD_CONSTANT, Bracket, Evidence
from ..core.codec import JsonForm, Part, encode, save_json
from ..core.effort import SEARCHING, Effort
from ..core.errors import InputError, visible
from ..core.shown import Shown
from ..core.untouched import Mode, outside_inference_mode
from .bounds_by_method import bound_by_all_methods, is_normalizer, is_weight, upper_sides
from .graph.ir import Graph, Shape
from .lower import observed_if_any
from .operators.effects import Linear
from .traced_network import BoundSettings, OnMissing, TracedNetwork, check_option


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder(Part, Shown, Mapping[str, Bracket]):
    """Every method's bracket by name, over one captured graph.

    Names: `printed`, `printed-exact` (formulas of the paper; `holds` says whether they bound this network), `product`,
    `folded`, `closed-form`, `tight` (with `effort="tight"`), `best`, and `observed` (POINT, at the given batch) where
    it could be measured.

    Attributes:
        rungs: the brackets by name.
        layers: the weight layers and normalizers, each with its own constant.
        graph: what was captured; None where the ladder was read from a file.
    """

    page = "normscope.bounds.pages.bounds:ladder_document"
    JSON: ClassVar[JsonForm] = JsonForm(left_out=("graph",))

    rungs: dict[str, Bracket]
    layers: tuple[LayerConstant, ...]
    graph: Graph | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Bracket:
        return self.rungs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rungs)

    def __len__(self) -> int:
        return len(self.rungs)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return plain data without the graph, and write it to a file if a path is given."""
        return save_json({"schema_version": self.JSON.version, **encode(self)}, path)

    def _rendered(self, width: int, color: bool = False) -> str:
        """Return one line per method."""
        lines = [f"{'method':<14}{'log10 upper':>12}{'log10 lower':>12}  evidence   note"]
        for name, bracket in self.items():
            note = "" if bracket.reason is None else ("not a bound: " if not bracket.holds else "") + bracket.reason
            sides = f"{bracket.log10_upper:>12.4f}{bracket.log10_lower:>12.4f}"
            lines.append(f"{name:<14}{sides}  {bracket.evidence.name:<9}  {note}".rstrip())
        lines += dict.fromkeys(note for bracket in self.values() for note in bracket.notes if HELD_CONSTANT in note)
        return visible("\n".join(lines))


@accepts_graph
@outside_inference_mode
def ladder(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    effort: Literal["fast", "tight"] = "fast",
    sides: Literal["both", "upper"] = "both",
    mode: Mode | None = None,
    output: str | int | None = None,
    on_missing: OnMissing = "error",
    known: Mapping[str, float] | None = None,
    rtol: float = 1e-3,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Ladder:
    """Return every method's bracket of the Lipschitz constant by name, and the constants of single layers.

    The lower side is searched once and shared by all GLOBAL rungs.

    Args:
        model: any `torch.nn.Module` (or its captured graph).
        data: as for `lipschitz`, and so are all options that are not explained here; the first batch is measured.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        effort: `"fast"`, or `"tight"`, which adds the rung of the optimised certificate.
        sides: `"both"`, or `"upper"` to save the search from below: the lower sides are then 0, and there is no rung
            `observed`.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output to measure.
        on_missing: `"error"` or `"inf"`.
        known: constants of modules by path.
        rtol: tolerance of single norms.
        max_seconds: cuts short what takes longer, closed forms last (see `lipschitz`); every rung says what was cut.
        seed: of the search from below.

    Returns:
        A mapping from method name to `Bracket` (see `Ladder`); prints as a table.

    Raises:
        NormscopeError: as `lipschitz` does.
        InputError: `sides` is something else.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> rungs = ns.ladder(model, torch.randn(3, 4))
        >>> rungs["best"].log10_upper <= rungs["product"].log10_upper
        True
    """
    check_option(on_missing)
    asked = Effort.of(effort, *SEARCHING)
    if sides not in ("both", "upper"):
        raise InputError(f'sides is "both" or "upper", not {sides!r}')
    bounding = BoundSettings.within(max_seconds, rtol=rtol)
    batches = Batches(model, data, labels=labels)
    captured = TracedNetwork.of(
        model, batches.first, bounding, mode=mode, output=output, on_missing=on_missing, known=known
    )
    if sides == "upper":
        rungs = upper_sides(captured, bounding, asked)
    else:
        rungs = bound_by_all_methods(captured, bounding, observed_if_any(captured, bounding, seed), seed, asked)
    return Ladder(rungs=dict(rungs), layers=layer_constants(captured), graph=batches.noted(captured.graph))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConstant:
    """One weight layer or normalizer: its own constant, at its real input size.

    Attributes:
        path, operator, kind: where it stands, its operator and its module's class.
        input_shape, output_shape: of the captured graph.
        log10_upper, evidence, method: the bound on its constant.
        normalizer: whether it normalizes.
    """

    path: str
    operator: str
    kind: str
    input_shape: Shape
    output_shape: Shape
    log10_upper: float
    evidence: Evidence
    method: str
    normalizer: bool


def layer_constants(captured: TracedNetwork) -> tuple[LayerConstant, ...]:
    """Return the weight layers and normalizers with their own constants."""
    rows = []
    for node in captured.graph:
        effect = captured.segments.effects[node.name]
        normalizer = is_normalizer(node)
        if normalizer:
            bound = effect.constant(captured.norm)
        elif is_weight(node) and isinstance(effect, Linear):
            bound = captured.norm(effect.maps[0])
        else:
            continue
        rows.append(
            LayerConstant(
                path=node.path,
                operator=node.operator,
                kind=node.kind,
                input_shape=node.operands[0].shape,
                output_shape=node.shape,
                log10_upper=bound.log10,
                evidence=bound.evidence,
                method=bound.method,
                normalizer=normalizer,
            )
        )
    return tuple(rows)
