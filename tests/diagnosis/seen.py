"""`Examined` objects made by hand, and audits of one finding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import normscope as ns
from normscope.auditing.audit_result import Row
from normscope.auditing.audited import Audited, AuditedRow, examined_rows
from normscope.auditing.findings import look_at_audit
from normscope.core.bracket import Bracket, Evidence
from normscope.core.finding import Finding, Severity
from normscope.doctor.facts.data import DataSeen
from normscope.doctor.facts.layers_over_data import NormalizerOverData, Variance

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


def variance(eps: float, log10: float = 0.0, **known: float) -> Variance:
    shares = {"share_below_one": 0.0, "share_eps": 0.0, **known}
    return Variance(log10_min=log10, log10_median=log10, log10_max=log10, sets=64, entries=64, eps=eps, **shares)


def normalizer(
    path: str = "norm", kind: str = "layer", *, log10: float = 0.0, row: dict | None = None, **known
) -> AuditedRow:
    shares = {name: known.pop(name) for name in ("share_below_one", "share_eps") if name in known}
    eps = known.pop("eps", 1e-5)
    seen = NormalizerOverData(
        site=(path, f"{kind}_norm", 0), kind=kind, eps=eps, entries=known.pop("entries", 64),
        samples=known.pop("samples", 64), variance=variance(eps, log10, **shares), **known,
    )  # fmt: skip
    line = Row(path=path, kind="Norm", operator=f"{kind}_norm", role="normalizer", parameters=0, **(row or {}))
    return AuditedRow(row=line, normalizer=seen)


def weight(path: str, log10_norm: float) -> AuditedRow:
    norm = Bracket(log10_lower=log10_norm, log10_upper=log10_norm, evidence=Evidence.PROVEN, method="given")
    return AuditedRow(row=Row(path=path, kind="Linear", operator="linear", role="weight", parameters=1, norm=norm))


def examined(*rows: AuditedRow, model: nn.Module | None = None, mode: str = "eval", **data) -> Audited:
    seen = DataSeen(**{"samples": 256, "batches": 4, **data})
    return Audited(model=model or nn.Identity(), mode=mode, places=examined_rows(rows), rows=rows, data=seen)


def codes(*places: AuditedRow, **known) -> list[tuple[str, str, Severity]]:
    return [(finding.code, finding.where, finding.severity) for finding in look_at_audit(examined(*places, **known))]


def audited(model: nn.Module, batch: Tensor, code: str, **known) -> list[Finding]:
    audit = ns.audit(model, batch[:4], loader=[batch], rtol=0.1, **known)
    return [finding for finding in audit.findings if finding.code == code]


class Untraced(nn.Sequential):
    """Layers whose path hangs on the values: torch.export cannot trace it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if float(x.detach().sum()) > 1e9 else 2 * x)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
