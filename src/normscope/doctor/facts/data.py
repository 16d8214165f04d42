"""One pass over the data: every normalizer, weight layer and ReLU is watched where it runs, module or function.

`listening/` sees the calls. Everything is kept as running statistics.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...calls.call import Call, arguments, described
from ...core.budget import Budget, Progress, count
from ...core.errors import describe_error
from ...core.threads import uncompiled
from ...core.untouched import untouched
from ...listening.calls import FunctionCall, NormalizerSeen, Site, WeightSeen, as_floats, normalizer_seen, rows_seen
from ...listening.listener import LayerListener
from ...listening.not_finite import Origin, OriginFinder
from .batch import WidestColumn, fetch_columns, widest_column
from .layers import name_input
from .layers_over_data import (
    ChannelTally,
    NormalizerOverData,
    SetTally,
    UnitsOverData,
    UnitsTally,
    WeightOverData,
    WeightTally,
    send_to_host,
)
from .loss import find_labels_outside

LOSSES_OF_CLASSES = ("cross_entropy", "nll_loss")

WRONG_BATCH = (
    "Pass batches the model accepts: model(batch) must work. Several arguments and labels are a pair of a dict and the "
    "labels: ({'x': x, 'mask': mask}, labels)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSeen:
    """What one pass over the data showed.

    Attributes:
        samples, batches: how much data.
        order: the sites of weight layers and normalizers, in the order they ran.
        normalizers, weights, units: by site; a normalizer whose input was not finite is left out.
        not_finite: where the first values that are not finite were made, if the output of the model holds some.
        error: why the model could not be run, if it could not.
        raised: what it raised then, with the place in the user's code.
        other: whether these are other data than the batch that is differentiated.
        columns: the widest column of each input of the first batch that is a table, by the name of the input.
    """

    samples: int
    batches: int
    order: tuple[Site, ...] = ()
    normalizers: Mapping[Site, NormalizerOverData] = field(default_factory=dict)
    weights: Mapping[Site, WeightOverData] = field(default_factory=dict)
    units: Mapping[Site, UnitsOverData] = field(default_factory=dict)
    not_finite: Origin | None = None
    error: str | None = None
    raised: Exception | None = None
    other: bool = False
    columns: Mapping[str, WidestColumn] = field(default_factory=dict)


@torch.no_grad()
def run_over_data(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    mode: str | None = None,
    written: Mapping[str, float] | None = None,
    budget: Budget | None = None,
) -> DataSeen:
    """Run a model over batches and summarise what its layers saw.

    Args:
        model: the user's model; left as found.
        batches: what the model takes, one by one (tensors, tuples, dicts; pairs with labels).
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        written: modules that compute an RMSNorm of their input over its last dimension in operators of their own, each
            with its eps.
        budget: no batch is begun once it is over, but the first.

    Returns:
        The summary; a model that raises gives one with an `error`.

    Raises:
        InputError: a batch cannot be an input.
    """
    total = operator.length_hint(batches) or None
    samples = done = 0
    error: str | None = None
    cause: Exception | None = None
    origin: Origin | None = None
    columns: dict[str, WidestColumn] = {}
    listener = _DataListener(model, written or {})
    reading = (budget or Budget()).search("the pass over the data")
    with ExitStack() as stack:
        stack.enter_context(untouched(model, mode))
        stack.enter_context(uncompiled())
        progress = stack.enter_context(Progress("reading data", total=total))
        for batch in batches:
            if done and reading.over:
                break
            call = arguments(model, batch)
            try:
                try:
                    with listener.listening():
                        made = model(*call.args, **call.kwargs)
                except Exception:
                    if done:
                        raise
                    listener = _DataListener(model, written or {})
                    stack.enter_context(torch.enable_grad())  # a model may differentiate in its forward
                    with listener.listening():
                        made = model(*call.args, **call.kwargs)
            except Exception as raised:
                cause = raised
                error = f"the model raises {describe_error(raised)}, on batch {done + 1} ({described(call)})"
                break
            if origin is None and not all(bool(torch.isfinite(tensor).all()) for tensor in as_floats(made)):
                finder = OriginFinder(model, dropout=False)
                with finder.listening():
                    origin = finder.find_origin(model(*call.args, **call.kwargs)) or Origin(where="")
                count("passes", call.count)
            columns = columns if done else _find_columns(call)
            samples += call.count
            done += 1
            count("passes", call.count)
            progress.step(f"batch {done}")
    return DataSeen(
        samples=samples,
        batches=done,
        order=tuple(listener.order),
        normalizers=_summaries(listener.normalizers, listener.lost),
        weights=_summaries(listener.weights, listener.lost),
        units=_summaries(listener.relus, listener.lost),
        not_finite=origin,
        error=error,
        raised=cause,
        columns=columns,
    )


def _find_columns(call: Call) -> dict[str, WidestColumn]:
    """Return the widest column of each input that is a table, by the name of the input."""
    names, tables = zip(*call.variables, strict=True) if call.variables else ((), ())
    columns = zip(names, fetch_columns([widest_column(table) for table in tables]), strict=True)
    return {name_input(name, len(names)): column for name, column in columns if column is not None}


def _summaries(tallies: Mapping[Site, Any], lost: set[Site]) -> dict[Site, Any]:
    """Return what each tally saw, without those that saw nothing or could not be kept."""
    send_to_host(tallies.values())
    seen = {site: tally.seen() for site, tally in tallies.items() if site not in lost}
    return {site: summary for site, summary in seen.items() if summary is not None}


class _DataListener(LayerListener):
    """Hands every layer that runs to its tally."""

    def __init__(self, model: nn.Module, written: Mapping[str, float]) -> None:
        super().__init__(model, dropout=False)
        self.written = written
        self.normalizers: dict[Site, SetTally | ChannelTally] = {}
        self.weights: dict[Site, WeightTally] = {}
        self.relus: dict[Site, UnitsTally] = {}
        self.order: dict[Site, None] = {}

    def before_call(self, call: FunctionCall) -> None:
        """Refuse labels and ids that are outside of their range: on a GPU they would end every later call as well."""
        super().before_call(call)
        if call.name in LOSSES_OF_CLASSES:
            outside = find_labels_outside(call.named())
            if outside is not None:
                raise IndexError(outside.mismatch)
        elif call.name == "embedding" and call.func is nn.functional.embedding:
            ids, table = call.named()["input"], call.named()["weight"]
            if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(table):
                raise IndexError(
                    f"the ids run from {int(ids.min())} to {int(ids.max())}, and the table of `{self.path}` has rows "
                    f"from 0 to {len(table) - 1}"
                )

    def site(self, family: str, path: str | None = None) -> Site:
        """Return where a call runs, and note in which order the layers with a row of their own do."""
        found = super().site(family, path)
        if family != "relu":
            self.order.setdefault(found)
        return found

    def normalizer(self, site: Site, call: FunctionCall) -> None:
        """Tally what a normalizer is given."""
        if call.input.numel():
            self._tally(site, normalizer_seen(call, exact=True))

    def weight(self, site: Site, seen: WeightSeen) -> None:
        """Tally the input and output of a weight layer."""
        self._tally_sizes(site, seen.input, seen.output)

    def recurrent(self, call: FunctionCall, made: Any) -> None:
        """Tally the input of a recurrent layer, and its output at every step."""
        with self.measuring("recurrent") as site:
            self._tally_sizes(site, call.input, made)

    def units(self, site: Site, made: Tensor, axis: int) -> None:
        """Tally which units of a ReLU are ever positive."""
        if site not in self.relus:
            self.relus[site] = UnitsTally(site, axis)
        self.relus[site].add(made)

    def entered(self, path: str | None, args: Any) -> None:
        """Tally the input of an RMSNorm that is written out in operators."""
        eps = None if path is None else self.written.get(path)
        if eps is not None and args and isinstance(args[0], Tensor):
            with self.measuring("rms") as site:
                x = args[0].detach()
                if x.numel():
                    sets = x.shape[:-1].numel()
                    self._tally(site, rows_seen("rms", x, sets=sets, eps=eps, exact=True))

    def _tally(self, site: Site, seen: NormalizerSeen) -> None:
        tally = self.normalizers.get(site)
        if tally is None:
            tally = self.normalizers[site] = ChannelTally(site, seen) if seen.by_channel else SetTally(site, seen)
        if isinstance(tally, ChannelTally) == seen.by_channel:
            tally.add(seen)

    def _tally_sizes(self, site: Site, given: Any, made: Any) -> None:
        if isinstance(given, Tensor) and isinstance(made, Tensor) and made.is_floating_point():
            if site not in self.weights:
                self.weights[site] = WeightTally(site, given, made)
            self.weights[site].add(given.detach(), made.detach())
