"""Audits made by hand, for what shows them."""

import math

from normscope.auditing.audit_result import Audit, Row
from normscope.core.bracket import Bracket, Evidence, Scope
from normscope.core.finding import Finding, Severity
from normscope.doctor.facts.layers_over_data import Variance


def bracket(lower, upper, *, method="folded", evidence=Evidence.PROVEN, **more):
    if upper == math.inf:
        more.setdefault("reason", "'gate' multiplies two unbounded values")
    return Bracket(log10_lower=lower, log10_upper=upper, evidence=evidence, method=method, mode="eval", **more)


def weight(path, *, norm=(0.2, 0.25), **more):
    given = {"kind": "Linear", "operator": "linear", "parameters": 4160, "input_shape": (32, 64), "channels": 64}
    given |= {"output_shape": (32, 64), "dead_channels": 0} | more
    return Row(path=path, role="weight", norm=None if norm is None else bracket(*norm, method="gram"), **given)


def normalizer(path, *, variance=(-1.0, -0.2, 0.4), **more):
    seen = None
    if variance is not None:
        logs = dict(zip(("log10_min", "log10_median", "log10_max"), variance, strict=True))
        seen = Variance(**logs, share_below_one=0.75, share_eps=0.0, sets=64, entries=3200, eps=1e-5)
    given = {"kind": "BatchNorm1d", "operator": "batch_norm", "parameters": 128, "log10_exact": 2.5} | more
    return Row(path=path, role="normalizer", variance=seen, **given)


def finding(code="variance-collapse", where="net.1", severity=Severity.WARNING, seen="The variance is 3e-6.", **more):
    given = {"why": "Below eps the normalizer no longer normalizes.", "advice": "Lower the weight decay."} | more
    return Finding(code=code, severity=severity, where=where, seen=seen, **given)


SKIPPED = "it skips the residual sums"


def ladder(*, best=(0.9, 2.25), observed=(0.8, 0.8)):
    return {
        "printed": bracket(best[0], 7.5, method="printed", evidence=Evidence.NUMERICAL, holds=False, reason=SKIPPED),
        "product": bracket(best[0], 4.0, method="product"),
        "folded": bracket(best[0], 2.25, method="folded"),
        "best": bracket(*best, method="folded"),
        "observed": bracket(*observed, method="jacobian", evidence=Evidence.NUMERICAL, scope=Scope.POINT),
    }


LAYERS = (
    weight("net.0", log10_cumulative=0.25, log10_observed=0.1),
    normalizer(
        "net.1", log10_printed=3.0, log10_at_data=0.6, log10_folded=0.4, folded_with="net.0", log10_cumulative=1.1,
        log10_observed=0.5,
    ),
    weight("net.3", norm=(0.5, 0.5), log10_cumulative=2.25, log10_observed=0.8, dead_channels=3),
)  # fmt: skip


def audit(**more):
    rungs = more.pop("ladder", ladder())
    given = {
        "name": "Net", "mode": "eval", "parameters": 8448, "samples": 640, "batches": 20, "input_shape": (32, 64),
        "output_shape": (32, 64), "lipschitz": rungs.get("best"), "observed": rungs.get("observed"), "ladder": rungs,
        "layers": LAYERS, "findings": (finding(),), "seconds": 3.21,
        "provenance": {"normscope": "0.1.0", "torch": "2.13.0", "device": "cpu"},
    }  # fmt: skip
    return Audit(**(given | more))


def deep(count=107):
    """An audit the size of ResNet-50, with what makes drawing hard: infinite values, gaps, long names."""
    rows = []
    for index in range(count):
        path = f"layer{1 + index // 30}.{index // 6 % 6}.{'conv' if index % 2 == 0 else 'bn'}{1 + index // 2 % 3}"
        wave = math.sin(index / 5)
        common = {"log10_cumulative": 0.11 * index + 0.3 * wave, "log10_observed": 0.012 * index + 0.1 * wave}
        if index % 2 == 0:
            side = 0.4 + 0.5 * wave
            norm = side, side + 0.002 + 0.2 * (index % 14 == 0)
            sensitivity = bracket(1.0 + wave, math.inf if index == 52 else 3.0 + wave, scope=Scope.POINT)
            rows.append(weight(path, norm=norm, kind="Conv2d", operator="conv2d", sensitivity=sensitivity, **common))
        else:
            low = -math.inf if index == 51 else -3.0 + wave
            constants = {"log10_printed": 3.4, "log10_exact": math.inf if index == 81 else 2.5 + 0.3 * wave}
            at_data = None if index % 10 == 3 else 1.2 + 0.5 * wave
            rows.append(normalizer(
                path, variance=(low, -1 + wave, 0.8 + wave), kind="BatchNorm2d", log10_at_data=at_data, **constants,
                log10_folded=0.5 + 0.4 * wave, folded_with=rows[-1].path, **common,
            ))  # fmt: skip
    places = [row.path for row in rows if row.role == "normalizer"]
    findings = (
        finding(
            "dead-layer", "layer2.3.conv2", Severity.ERROR, "All 256 output channels are zero for all 640 samples."
        ),
        *(
            finding(where=path, seen=f"The variance of {n + 2} channels is below 10 eps.")
            for n, path in enumerate(places[:9])
        ),
        finding("redundant-bias", "fc", Severity.INFO, "The bias is undone by the normalizer behind it."),
    )
    above = {"printed": bracket(0.9, 41.0, method="printed"), "product": bracket(0.9, math.inf)}
    return audit(
        name="ResNet-50", parameters=25557032, layers=tuple(rows), findings=findings,
        ladder=ladder(best=(0.9, 14.2)) | above, notes=("Dropout counted as off.",),
        skipped=(("sensitivity to the weights of layer4.2.conv3", "the budget of 60 s ran out"),),
    )  # fmt: skip
