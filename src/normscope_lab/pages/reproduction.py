"""Reproductions and the ledger of claims as the reports a person reads: verdicts first, then each experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from normscope.report import Block, Column, Document, Table, Text, pluralise

from ..experiments.base import Verdict
from ..experiments.claims import Claims
from ..experiments.reproduction import JudgedClaim, Reproduction, Reproductions

ABOUT = (
    "Every verdict is computed: the program compares the figures of its own run with what the claim says, and other "
    "figures would give another verdict. `holds with correction` means that the statement is true once a condition or "
    "a constant that it lacks is added, or for most of what was tried; `depends on convention` that it is true for one "
    "reading of its words (which norm, which kind of weight decay, which mode) and false for another. Where a claim "
    "holds, no computed case contradicts it; theorems are not proved here. `on this task` stands where networks learnt "
    "one task, which the source may not mean. What no source claims is called a measurement and has no verdict."
)
FEW = 3
"""Up to this many claims are shown in a terminal in whole sentences instead of a table."""
ONE = "`normscope lab claims ID` says of one claim what it is, where it stands and what computes it again."
QUICK = (
    "Quick settings show that an experiment runs: its networks are small and its data are digits. What the papers' own "
    "settings come to is in `normscope lab claims`."
)


def reproduction_document(one: Reproduction, *, brief: bool = False) -> Document:
    """Return the report of one experiment that was run."""
    return reproductions_document(Reproductions(items=(one,)), brief=brief)


def reproductions_document(reproductions: Reproductions, *, brief: bool = False) -> Document:
    """Return the report of experiments that were run."""
    items, rows = reproductions.items, reproductions.claims
    title = f"Reproduction of {items[0].experiment.title}" if len(items) == 1 else "Reproduction of the papers"
    blocks: list[Block] = [Text(heading="" if brief else "What held", body=tally(rows), lead=True)]
    if not brief:
        blocks.append(Text(body=ABOUT))
    if rows:
        blocks.append(claims_table(rows, brief=brief))
    if any(one.experiment.stored and not one.full for one in items):
        blocks.append(Text(body=QUICK))
    blocks += [Text(body=f"Note: {note}.") for note in reproductions.notes]
    if brief:
        blocks += [block for one in items for block in _unfinished(one)]
    else:
        blocks += _papers(items, rows) if len(items) > 1 else [block for one in items for block in _section(one)]
    return Document(title=title, blocks=tuple(blocks))


def ledger_document(claims: Claims, *, brief: bool = False) -> Document:
    """Return the ledger of claims and, on a page, the results behind it."""
    rows = claims.rows
    blocks: list[Block] = [Text(heading="" if brief else "What held", body=tally(rows), lead=True)]
    if not brief:
        blocks.append(Text(body=ABOUT))
    if brief and len(rows) <= FEW:
        blocks += [block for row in rows for block in _whole(row)]
    else:
        blocks.append(claims_table(rows, brief=brief, commands=not brief))
    if brief:
        blocks += [Text(body=ONE)] if len(rows) > FEW else []
    else:
        blocks += _papers(claims.items, rows)
    return Document(title="Claims of the papers", blocks=tuple(blocks))


def tally(rows: Sequence[JudgedClaim]) -> str:
    """Return how many claims have each verdict, in a sentence."""
    if not rows:
        return "These experiments judge no claim."
    counts = Counter(row.verdict for row in rows)
    parts = [pluralise(counts[verdict], *_SAID[verdict]) for verdict in Verdict if counts[verdict]]
    return f"Of {pluralise(len(rows), 'claim')}: {', '.join(parts)}."


_SAID = {
    Verdict.HOLDS: ("holds as written", "hold as written"),
    Verdict.CORRECTED: ("holds with a correction", "hold with a correction"),
    Verdict.FAILS: ("fails", "fail"),
    Verdict.CONVENTION: ("depends on the convention", "depend on the convention"),
    Verdict.NOT_TESTABLE: ("could not be tested", "could not be tested"),
    Verdict.MEASURED: ("is a measurement without a verdict", "are measurements without a verdict"),
}
"""How a verdict is written of one claim, and of several."""


def _whole(row: JudgedClaim) -> list[Block]:
    """Return all that is known of one claim, in sentences."""
    origin = origin_text(row.origin)
    return [
        Text(heading=f"{row.id}: {row.verdict_in_words}", body=f"{row.source}, {row.where}: {quoted(row)}"),
        Text(body=f"Our reading: {row.reading}"),
        Text(body=_with_correction(row, row.evidence)),
        *([evidence_table(row)] if row.table else []),
        Text(body=f"Computed again by `{row.command}`" + (f"; these figures are of {origin}." if origin else ".")),
    ]


def quoted(row: JudgedClaim) -> str:
    """Return the source's own words between quotation marks, or why there are none."""
    if row.quotation:
        return f'"{row.quotation}"'
    return "no source says this." if row.verdict is Verdict.MEASURED else "the paper's text is not at hand to quote."


def evidence_table(row: JudgedClaim) -> Table:
    """Return the table of a claim's evidence."""
    heading, *body = row.table
    columns = tuple(Column(title=title, kind="name" if not place else "text") for place, title in enumerate(heading))
    return Table(columns=columns, rows=tuple(body))


def evidence_in_line(row: JudgedClaim) -> str:
    """Return a claim's evidence in one line, also where it is a table."""
    if not row.table:
        return _with_correction(row, row.evidence)
    heading, *body = row.table
    cells = (
        (what, ", ".join(f"{key} {value}" for key, value in zip(heading[1:], rest) if value)) for what, *rest in body
    )
    listed = "; ".join(f"{what} ({values})" for what, values in cells)
    return _with_correction(row, f"{row.evidence} In full: {listed}.")


def _with_correction(row: JudgedClaim, evidence: str) -> str:
    return f"{evidence} Corrected statement: {row.corrected}" if row.corrected else evidence


def claims_table(rows: Sequence[JudgedClaim], *, brief: bool = False, commands: bool = False) -> Table:
    """Return claims as a table."""
    columns = [
        Column(title="claim" if brief else "id", kind="name"),
        *(
            []
            if brief
            else [
                Column(title="where"),
                Column(title="in the source's words", kind="sentence"),
                Column(title="our reading", kind="sentence"),
            ]
        ),
        Column(title="verdict", kind="name" if brief else "text"),
        Column(title="evidence", kind="sentence"),
        *([Column(title="computed again by", kind="name"), Column(title="from")] if commands else []),
    ]
    body = tuple(
        (
            row.id,
            *(() if brief else (f"{row.source}, {row.where}", quoted(row), row.reading)),
            row.verdict_in_words,
            evidence_in_line(row),
            *((row.command, origin_text(row.origin)) if commands else ()),
        )
        for row in rows
    )
    return Table(columns=tuple(columns), rows=body)


def origin_text(origin: object) -> str:
    """Return the origin of a stored result; empty for a result that was computed just now."""
    held = dict(origin) if isinstance(origin, dict) else {}
    named = {"commit": f"commit {held.get('commit')}", "torch": f"torch {held.get('torch')}"}
    return ", ".join(named.get(key, held[key]) for key in ("date", "commit", "machine", "torch", "time") if key in held)


def _papers(items: Sequence[Reproduction], rows: Sequence[JudgedClaim]) -> list[Block]:
    """Return the experiments of each paper, folded away, under the paper's name and the tally of its claims."""
    papers: dict[str, list[Reproduction]] = {}
    for one in items:
        papers.setdefault(one.name.partition(".")[0], []).append(one)
    blocks: list[Block] = []
    for paper, those in papers.items():
        ids = {claim.id for one in those for claim in one.experiment.claims}
        blocks.append(Text(heading=paper.capitalize(), body=tally([row for row in rows if row.id in ids])))
        blocks += [block for one in those for block in _section(one, inner=True)]
    return blocks


def _section(one: Reproduction, *, inner: bool = False) -> list[Block]:
    kind = "with the settings of the paper" if one.full else "with quick settings"
    origin = origin_text(dict(one.origin))
    blocks: list[Block] = [
        Text(heading=one.experiment.title, body=one.experiment.about, folded=inner, inner=inner),
        Text(body=f"`{one.command}`, {kind}" + (f" ({origin})." if origin else ".")),
        *one.drawn(),
        Table(
            title="Figures that the verdicts are computed from",
            columns=(Column(title="figure", kind="name"), Column(title="value", kind="number")),
            rows=tuple(one.figures.items()),
        ),
        Table(
            title="Settings",
            columns=(Column(title="setting", kind="name"), Column(title="value")),
            rows=tuple((name, str(value)) for name, value in one.settings.items()),
        ),
    ]
    return blocks + _unfinished(one)


def _unfinished(one: Reproduction) -> list[Block]:
    columns = (Column(title="job", kind="name"), Column(title="why"))
    rows = tuple(one.failed.items())
    return [Table(title=f"What did not finish of {one.name}", columns=columns, rows=rows)] if rows else []
