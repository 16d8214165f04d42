"""`Examined`: everything known about a model when the findings are looked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from ...core.bracket import Bracket
from ...listening.calls import NORMALIZERS, Site
from .data import DataSeen
from .divergence import Divergence
from .layers import INPUT
from .layers_over_data import NormalizerOverData, WeightOverData
from .pass_facts import PassFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedRow:
    """One weight layer or normalizer that ran over the data, and what an audit knows of it besides.

    Attributes:
        module: the module's path, empty for the model as a whole.
        kind: its class.
        operator: what it runs (`conv2d`, `layer_norm`, ...).
        role: `"weight"` or `"normalizer"`.
        normalizer, weight: what the data showed.
        norm: the operator norm of a weight layer; like all that follows, None where no audit measured it.
        log10_folded: the gain of a normalizer together with the linear map before it.
        folded_with: the path of that linear map.
        fed_by: the position of the weight layer that feeds a normalizer.
        feeds_normalizer: whether the graph has a normalizer right behind it.
        dead_filters: which filters of a weight layer are negligible.
    """

    module: str
    kind: str
    operator: str
    role: str
    normalizer: NormalizerOverData | None = None
    weight: WeightOverData | None = None
    norm: Bracket | None = None
    log10_folded: float | None = None
    folded_with: str | None = None
    fed_by: int | None = None
    feeds_normalizer: bool = False
    dead_filters: Tensor | None = None

    @property
    def path(self) -> str:
        """Where it is, in words: the module's path, or the model as a whole."""
        return self.module or "the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A model, its layers and its data.

    Attributes:
        model: the user's model, to look at and not to touch.
        mode: the mode that was examined.
        places: one per layer, in the order they run.
        data: the pass over the data.
        signal: values and gradients by depth; `None` if they were not taken.
        divergence: how a divergence in the loss counts, of a model with broken weights; otherwise the signal has it.
    """

    model: nn.Module
    mode: str
    places: tuple[ExaminedRow, ...]
    data: DataSeen
    signal: PassFacts | None = None
    divergence: Divergence | None = None

    def name_place(self, path: str, before: Collection[str]) -> str:
        """Return the module to name for a function: where a module of several parts called it, the layer before it."""
        module = dict(self.model.named_modules()).get(path)
        called = module is None or any(True for _ in module.children())
        return next(iter(before)) if called and len(before) == 1 else path

    def reads_input(self, place: ExaminedRow) -> bool:
        """Whether a layer reads the inputs of the model and nothing else."""
        if self.signal is None:
            return False
        rows = self.signal.rows
        own = [number for number, row in enumerate(rows) if (row.path, row.kind) == (place.path, place.operator)]
        before = frozenset[int]().union(*map(self.signal.sources, own))
        return bool(before) and all(rows[number].kind == INPUT for number in before)

    def normalizers(self) -> Iterator[tuple[ExaminedRow, NormalizerOverData]]:
        """Yield the normalizers that saw data."""
        for place in self.places:
            if place.normalizer is not None:
                yield place, place.normalizer


def layer_seen(model: nn.Module, data: DataSeen, site: Site) -> ExaminedRow:
    """Return what the data alone tell of the layer that ran at a site."""
    path, operator, _ = site
    return ExaminedRow(
        module=path,
        kind=type(model.get_submodule(path)).__name__,
        operator=operator,
        role="normalizer" if operator in (*NORMALIZERS, "rms") else "weight",
        normalizer=data.normalizers.get(site),
        weight=data.weights.get(site),
    )
