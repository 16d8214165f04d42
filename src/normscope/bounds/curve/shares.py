"""`ShareCurve`: how much a small change grows, against the share of the data that the figure speaks of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ...core.bracket import Bracket
from ...core.codec import JsonForm, Part, Saved
from ...core.errors import InputError
from ...report.shown import Shown
from ..data.quantile import SHARES, DataBracket, check_shares
from ..domain.domain import Coverage

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPoint(Part):
    """One of several domains that lie inside each other, all from one recording.

    Attributes:
        quantile: the share of the recorded samples that each limit leaves outside.
        margin: by how much every range is wider than what was seen.
        bracket: the bound over all inputs inside; the lower side is the largest Jacobian norm at a recorded sample that
            lies inside for certain, where there is one.
        coverage: of samples that did not define the domain; None where there were none.
    """

    quantile: float
    margin: float
    bracket: Bracket
    coverage: Coverage | None

    @property
    def width(self) -> str:
        """How wide the ranges are, in words."""
        if self.quantile > 0:
            return f"each range without its outer {100 * self.quantile:g} %"
        return f"ranges {100 * self.margin:g} % wider than seen" if self.margin > 0 else "ranges as seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCurve(Saved, Shown):
    """How much a small change of the input grows, against the share of the data that the figure speaks of.

    DATA and DOMAIN answer the same question with different strength. DATA: at a share of the distribution the Jacobian
    norm is at most this. DOMAIN: that share lies in a set, over ALL of which the Jacobian norm is at most this. Both
    hold with `confidence` for each share alone. Both speak of fresh draws from the distribution of the data; what
    DOMAIN says of the inputs inside holds for shifted and adversarial inputs as well, as long as they lie inside.

    Attributes:
        mode: `"train"` or `"eval"`.
        samples: how many samples (in train mode: batches) defined the domains.
        confidence: of every limit.
        data: the quantiles of the Jacobian norm; None where there are none (`skipped` says why).
        domains: from the narrowest to the widest, each inside the next.
        everywhere: the bound over all inputs.
        skipped: what was not measured, and why.
        notes: what the reader must know.
    """

    page = "share_curve:curve_document"
    JSON: ClassVar[JsonForm] = JsonForm(
        kind="share_curve", noun="curve over shares", write="write one with curve.to_json(path)"
    )

    mode: str
    samples: int
    confidence: float
    data: DataBracket | None
    domains: tuple[DomainPoint, ...]
    everywhere: Bracket
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=(), repr=False)

    def limits(self, share: float) -> tuple[float, float]:
        """Return log10 of the growth that a share of the data does not exceed: by DATA, and by DOMAIN.

        The figure of DOMAIN is that of the narrowest domain whose coverage has a lower limit of at least the share. The
        domains lie inside each other, so this choice costs no confidence.

        Args:
            share: of the distribution, between 0 and 1.

        Returns:
            Two exponents of ten; `inf` where there are too few samples to speak of that share.
        """
        check_shares(share, self.confidence)
        data = math.inf if self.data is None else self.data.limits(share, self.confidence)[1]
        inside = (p.bracket.log10_upper for p in self.domains if p.coverage is not None and p.coverage.lower >= share)
        return data, next(inside, math.inf)

    def reach(self, share: float) -> float | None:
        """Return the largest share, up to some, that the samples of DATA are enough to speak of; None for none."""
        shares = [s for s in sorted({*SHARES, share}) if s <= share and self.limits(s)[0] < math.inf]
        return shares[-1] if shares else None

    def domain(self, share: float) -> DomainPoint | None:
        """Return the narrowest domain in which at least a share of the fresh samples lies, otherwise the widest."""
        if not self.domains:
            return None
        covered = (p for p in self.domains if p.coverage is not None and p.coverage.share >= share)
        return next(covered, self.domains[-1])

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per point: `scope`, `share`, `share_seen`, `log10_upper`, and the width of a domain.

        `share` is the share of the distribution that the line speaks of with `confidence`. Of the points of DATA those
        are left out that the samples are too few for.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas") from error
        lines: list[dict[str, Any]] = []
        for share in SHARES:
            if self.data is not None and (high := self.limits(share)[0]) < math.inf:
                lines.append({"scope": "data", "share": share, "log10_upper": high, "evidence": "SAMPLED"})
        for point in self.domains:
            bracket, cover = point.bracket, point.coverage
            line = {"scope": "domain", "share": None if cover is None else cover.lower}
            line |= {"share_seen": None if cover is None else cover.share, "log10_upper": bracket.log10_upper}
            line |= {"quantile": point.quantile, "margin": point.margin, "evidence": bracket.evidence.name}
            lines.append(line)
        whole = {"scope": "global", "share": 1.0, "log10_upper": self.everywhere.log10_upper}
        lines.append(whole | {"evidence": self.everywhere.evidence.name})
        columns = ["scope", "share", "share_seen", "log10_upper", "quantile", "margin", "evidence"]
        return pandas.DataFrame(lines, columns=columns)
