"""`check_document`: a check as the report a person reads."""

from __future__ import annotations

from ..diagnosis.checked import Check
from ..report.document import Block, Column, Document, Table, Text
from ..report.words import counted
from .cards import next_steps, notices, steps
from .signal import signal_chart, signal_table


def check_document(check: Check, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    went = f"{counted(check.samples, 'sample')} in {counted(check.batches, 'batch', 'batches')}"
    about = (
        f"{check.name} holds {counted(check.parameters, 'parameter')}. It was checked in {check.mode} mode on {went}, "
        f"with {counted(check.cost.forwards, 'forward pass', 'forward passes')} and "
        f"{counted(check.cost.backwards, 'backward pass', 'backward passes')}. No bounds were taken: "
        "normscope.audit takes them."
    )
    skipped = Table(columns=(Column(title="not measured"), Column(title="why")), rows=check.skipped)
    notes = [Text(body=f"Note: {note}") for note in check.notes]
    rest: list[Block] = [*([skipped] if check.skipped else []), *notes]
    table = signal_table(check.signal, brief=brief, title="values and gradients by depth")
    chart = None if brief else signal_chart(check.signal)
    shown: list[Block] = [block for block in (chart, table) if block is not None]
    opening = Text(heading="" if brief else "Verdict", body=check.verdict, lead=True)
    found: list[Block] = [*notices(check.findings), *([] if brief else steps(next_steps(check.findings)))]
    depth = [] if brief or not shown else [Text(heading="Signal by depth")]
    blocks: tuple[Block, ...] = (opening, Text(body=about), *found, *depth, *shown, *rest)
    return Document(title=f"Check of {check.name}", blocks=blocks)
