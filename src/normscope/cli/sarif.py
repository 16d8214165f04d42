"""Findings as SARIF 2.1.0, the form in which code hosts and editors show what a tool found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.codec import encode
from ..core.files import write_text
from ..core.finding import Finding, Severity
from ..core.markup import visible
from ..core.version import __version__
from .messages import read_from

LEVELS = {Severity.INFO: "note", Severity.WARNING: "warning", Severity.ERROR: "error"}


def write_sarif(path: Path, findings: Sequence[Finding], model: str) -> None:
    """Write findings to a file.

    A result names the layer as its logical location, and the source file of the model, where MODEL names one, as its
    physical location: code hosts refuse results without one.
    """
    file = next((source for source in read_from(model) if source.suffix == ".py"), None)
    rules = [{"id": code} for code in dict.fromkeys(finding.code for finding in findings)]
    driver = {"name": "Normscope", "version": __version__, "rules": rules}
    results = [_result(finding, file) for finding in findings]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    write_text(path, json.dumps(log, indent=1, allow_nan=False) + "\n")


def _result(finding: Finding, file: Path | None) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": visible(finding.where), "kind": "module"}]}
    if file is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": file.as_posix()},
            "region": {"startLine": 1},
        }
    return {
        "ruleId": finding.code,
        "level": LEVELS[finding.severity],
        "message": {"text": visible(f"{finding.seen} {finding.why} {finding.advice}")},
        "locations": [location],
        "properties": {"numbers": encode(finding.numbers)},
    }
