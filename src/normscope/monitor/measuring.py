"""One measured step: what was seen of its forward, its gradients and its update, on the way to a `Record`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .distributed import norms, whole
from .parcel import Parcel
from .probes import normalizers, updates
from .record import Record, summed
from .schedule import Tier
from .subject import Subject, effective_power
from .tap import Seen

OPTIONAL = (*normalizers.OPTIONAL, *updates.OPTIONAL)


class Measurement:
    """Collects small tensors of one step; nothing is read from the device before `record`.

    Args:
        step: steps the optimizer has taken before.
        tier: how much is measured.
        subject: what is watched.
        optimizer: of the run.
    """

    def __init__(self, step: int, tier: Tier, subject: Subject, optimizer: Optimizer) -> None:
        self.step, self.tier, self.subject, self.optimizer = step, tier, subject, optimizer
        self.seen: Seen | None = None
        self.loss: Tensor | None = None
        self.lr: list[float | Tensor] = []
        self.sizes: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.updates: dict[Any, Tensor] = {}
        self.moved: dict[str, Tensor] = {}
        self._before: dict[Any, Tensor] = {}
        self._copies: dict[str, Tensor] = {}
        self._parcel: Parcel | None = None
        self._seconds = 0.0

    @torch.no_grad()
    def before(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Measure gradients and weights in front of the optimizer's step."""
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        graded = {name: p.grad for name, p in trained.items() if p.grad is not None and not p.grad.is_sparse}
        self.sizes = norms(trained)
        self.gradients = norms(graded)
        scale = getattr(self.optimizer, "grad_scale", None)  # a GradScaler that leaves unscaling to the optimizer
        if scale is not None:
            self.gradients = {name: value / scale.to(value) for name, value in self.gradients.items()}
        self.lr = [group["lr"] for group in self.optimizer.param_groups]
        for site, (names, groups, axis) in self.subject.rows.items():
            self._before[site] = updates.grouped(_tensors(parameters, names), groups, axis).clone()
        if self.tier is not Tier.ECONOMY:
            self._copies = {name: p.detach().clone() for name, p in trained.items()}

    @torch.no_grad()
    def after(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Measure what the optimizer's step did."""
        power = effective_power(self.optimizer)
        rates = {id(p): group["lr"] for group in self.optimizer.param_groups for p in group["params"]}
        for site, before in self._before.items():
            names, groups, axis = self.subject.rows[site]
            rows = updates.grouped(_tensors(parameters, names), groups, axis)
            rate = rates.get(id(parameters[names[0]]), math.nan)
            log10_lr = torch.as_tensor(rate, dtype=torch.float64, device="cpu" if isinstance(rate, float) else None)
            self.updates[site] = updates.measure(before, rows, log10_lr=log10_lr.log10().to(rows.device), power=power)
        if self._copies:
            self.moved = norms({name: parameters[name].detach() - copy for name, copy in self._copies.items()})
        self._before, self._copies = {}, {}

    def send(self, seconds: float) -> None:
        """Send everything to the host."""
        self._seconds = seconds
        contents: dict[str, Tensor] = {}
        if self.loss is not None:
            contents["loss"] = self.loss
        contents |= {f"lr {i}": rate for i, rate in enumerate(self.lr) if isinstance(rate, Tensor)}
        contents |= {f"size {name}": value for name, value in self.sizes.items()}
        contents |= {f"gradient {name}": value for name, value in self.gradients.items()}
        contents |= {f"moved {name}": value for name, value in self.moved.items()}
        contents |= {f"update {site}": value for site, value in self.updates.items()}
        if self.seen is not None:
            for site, weight in self.seen.weights.items():
                contents[f"norm {site}"] = weight.log10_norm
                if weight.log10_folded is not None:
                    contents[f"folded {site}"] = weight.log10_folded
            contents |= {f"normalizer {site}": seen.values for site, seen in self.seen.normalizers.items()}
            contents |= {f"activation {path}": value for path, value in self.seen.activations.items()}
            for path, (out, inner) in ((p, pair) for p, pair in self.seen.gradients.items()):
                if out is not None and inner is not None:
                    contents[f"backward {path}"] = inner / out
            contents |= {f"dead {site}": value for site, value in self.seen.dead.items()}
        self.seen = None
        self._parcel = Parcel(contents)

    def arrived(self) -> bool:
        """Say whether `record` would not wait."""
        return self._parcel is not None and self._parcel.arrived()

    def record(self) -> Record:
        """Return what was measured, as numbers."""
        assert self._parcel is not None, "it was never sent"
        found = self._parcel.open()

        def one(key: str) -> float | None:
            return found[key][0] if key in found else None

        def table(prefix: str, places: Sequence[Any], names: Sequence[str]) -> dict[str, tuple[float | None, ...]]:
            columns: dict[str, tuple[float | None, ...]] = {}
            for index, name in enumerate(names):
                column = [found[f"{prefix} {p}"][index] if f"{prefix} {p}" in found else None for p in places]
                columns[name] = tuple(_known(value) for value in column) if name in OPTIONAL else tuple(column)
            return columns

        places = self.subject.places
        weights = self.subject.of("weight")
        values: dict[str, dict[str, tuple[float | None, ...]]] = {
            "weight": {
                "log10_norm": tuple(one(f"norm {site}") for site in places["weight"]),
                "log10_folded": tuple(one(f"folded {site}") for site in places["weight"]),
                "log10_size": tuple(_joined("size", layer.parameters, found) for layer in weights),
                "log10_gradient": tuple(_joined("gradient", layer.parameters, found) for layer in weights),
                **table("update", places["weight"], updates.QUANTITIES),
            },
            "normalizer": table("normalizer", places["normalizer"], normalizers.QUANTITIES),
        }
        if self.tier is not Tier.ECONOMY:
            values["weight"]["log10_moved"] = tuple(_joined("moved", layer.parameters, found) for layer in weights)
            values["units"] = {"dead": tuple(one(f"dead {site}") for site in places["units"])}
            values["block"] = {
                "log10_activation": tuple(_log(one(f"activation {path}")) for path in places["block"]),
                "log10_backward": tuple(_log(one(f"backward {path}")) for path in places["block"]),
            }
        return Record(
            step=self.step,
            seconds=self._seconds,
            tier=self.tier.value,
            loss=one("loss"),
            lr=tuple(
                float(one(f"lr {i}") or 0.0) if isinstance(r, Tensor) else float(r) for i, r in enumerate(self.lr)
            ),
            values={
                kind: {q: n for q, n in columns.items() if any(v is not None for v in n)}
                for kind, columns in values.items()
            },
            total=self._total(values, found),
        )

    def _total(self, values: Mapping[str, Any], found: Mapping[str, list[float]]) -> dict[str, float | None]:
        """Return the sums over the network."""
        weight, normalizer = values["weight"], values["normalizer"]
        fed = {layer.normalizer for layer in self.subject.of("weight")}
        folded = [f if f is not None else n for f, n in zip(weight["log10_folded"], weight["log10_norm"], strict=True)]
        free = [
            gain
            for layer, gain in zip(self.subject.of("normalizer"), normalizer.get("log10_gain", ()))
            if layer.name not in fed
        ]
        return {
            "log10_printed": summed(weight["log10_norm"]),
            "log10_constants": summed(normalizer.get("log10_constant", ())),
            "log10_folded": summed([*folded, *free]),
            "log10_gradient": _root(found, "gradient"),
            "log10_weight": _root(found, "size"),
        }


def _tensors(parameters: Mapping[str, nn.Parameter], names: Sequence[str]) -> list[Tensor]:
    return [whole(parameters[name]) for name in names]


def _joined(prefix: str, names: Sequence[str], found: Mapping[str, list[float]]) -> float | None:
    """Return log10 of the norm of several parameters together."""
    known = [found[f"{prefix} {name}"][0] for name in names if f"{prefix} {name}" in found]
    return _log(math.hypot(*known)) if known else None


def _root(found: Mapping[str, list[float]], prefix: str) -> float | None:
    known = [values[0] for key, values in found.items() if key.startswith(f"{prefix} ")]
    return _log(math.hypot(*known)) if known else None


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _log(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return value
    return math.log10(value) if value > 0 else -math.inf
