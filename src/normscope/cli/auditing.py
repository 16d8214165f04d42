"""`normscope audit` and `normscope check`: examine a model, or weights alone, from the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from torch import Tensor

from ..auditing.audit_result import Audit
from ..auditing.auditing import PARTS, THOROUGH
from ..auditing.auditing import audit as audit_model
from ..auditing.bare_weights import audit_weights
from ..core.budget import Parts
from ..core.codec import encode
from ..core.errors import InputError, visible
from ..core.files import write_text
from ..core.finding import Finding, Severity
from ..core.version import __version__
from ..doctor.checking.check_result import Check
from ..doctor.checking.checking import check as check_model
from .data_forms import Batches, open_data, open_with_labels
from .messages import measuring, read_from, show_result
from .model_forms import GivenModel, known_device, open_model, open_runnable, place_model
from .options import (
    BatchSize,
    DataOrNoise,
    Device,
    FailOn,
    Html,
    Json,
    Loss,
    MaxSeconds,
    Mode,
    Model,
    Output,
    Sarif,
    Seed,
    Trust,
    options_of,
    output_of,
)

AUDIT_EXAMPLES = """
normscope audit normscope.networks:mlp --data digits --html report.html

normscope audit net.py:build --data digits --html report.html
normscope audit mypackage.models:resnet --data cifar10:~/data --mode train --fail-on warning
normscope audit mypackage.models:resnet --data mypackage.data:train_loader --json audit.json
normscope audit google/vit-base-patch16-224 --html vit.html
normscope audit model.safetensors --fail-on error
normscope audit llama/model.safetensors.index.json --device cuda --certify
normscope audit model.pt2 --trust --data npz:samples.npz
"""
CHECK_EXAMPLES = """
normscope check normscope.networks:mlp --data digits

normscope check net.py:build --data digits
normscope check mypackage.models:resnet --data mypackage.data:train_loader --mode train --fail-on warning
normscope check google/vit-base-patch16-224 --html check.html
normscope check net.py:build --data digits --fail-on error --sarif findings.sarif
normscope check net.py:build --data digits --json - | jq .findings
"""


@options_of(audit_model)
def audit(
    model: Model,
    data: DataOrNoise = None,
    *,
    html: Html = None,
    json: Json = None,
    sarif: Sarif = None,
    fail_on: FailOn = None,
    mode: Mode,
    output: Output,
    loss: Loss = None,
    batch_size: BatchSize = None,
    effort: Literal["fast", "thorough"],
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="For weights alone: prove the upper sides of the norms of large matrices, instead of sampling them.",
        ),
    ] = False,
    max_seconds: MaxSeconds,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Audit a model: what each layer and normalizer does, how far the network can amplify its input, what is wrong.

    MODEL is one of

    - `package.module:function`, a function without arguments that returns the model, or the model itself; looked for in
      the current folder first. `path/to/file.py:function` works too.
    - a Hugging Face folder or id, from its config and safetensors; code that comes with a model is never run.
    - a `.pt2` file of torch.export, with `--trust`.
    - a `*.safetensors` file or its `*.safetensors.index.json`, or a folder of such without a `config.json`: its weights
      alone, one tensor in memory at a time. So are `.pt`, `.pth` and `.bin` files that hold nothing but tensors.

    DATA is one of

    - `digits` (comes with scikit-learn, values from 0 to 1), `mnist:FOLDER`, `cifar10:FOLDER`: standardised by channel,
      as networks for them usually take it; `mnist:raw:FOLDER`, `cifar10:raw:FOLDER`: values from 0 to 1
    - `npz:FILE` with the inputs in an array called x, images or data (bytes are divided by 255)
    - `package.module:loader`: a DataLoader, a Dataset, a list of batches, a tensor, or a function that returns one.

    Of a data set the first 64 batches are read, a loader of yours to its end.

    Exit codes: 0 fine, 1 a finding reaches --fail-on, 2 the audit could not be made.
    """
    with measuring(model, data, html, json, sarif):
        subject = open_model(model, trust=trust)
        needs_model = {
            "--data": data,
            "--mode": mode,
            "--output": output,
            "--loss": loss,
            "--batch-size": batch_size,
        }
        if subject.weights is not None:
            for option in (option for option, value in needs_model.items() if value is not None):
                raise InputError(
                    f"{subject.name} holds weights and no model to run: leave {option} out, or name a function that "
                    "builds the model (package.module:function)"
                )
            result = audit_weights(
                subject.weights,
                name=subject.name,
                certify=certify,
                device=known_device(device or "cpu"),
                max_seconds=max_seconds,
            )
        else:
            if certify:
                raise InputError("--certify is for files of weights alone: an audit of a model proves the norms anyway")
            batches = _open_data(data, place_model(subject, device, mode), loss, batch_size, seed)
            with Parts("auditing", [part for part in PARTS if effort == "thorough" or part not in THOROUGH]):
                result = audit_model(
                    subject.module,
                    batches.first,
                    loader=batches.loader,
                    mode=mode,
                    output=output_of(output),
                    loss=loss,
                    effort=effort,
                    max_seconds=max_seconds,
                    seed=seed,
                    name=subject.name,
                )
            result = dataclasses.replace(result, notes=(*batches.notes, *subject.notes, *result.notes))
    _hand_over(result, model, html, json, sarif, fail_on)


def _open_data(data: str | None, subject: GivenModel, loss: str | None, batch_size: int | None, seed: int) -> Batches:
    """Return the data; for a loss, with a first batch that has labels."""
    batches = open_data(data, subject, batch_size=batch_size, seed=seed)
    if loss is None or data is None or not isinstance(batches.first, Tensor):
        return batches
    pairs, notes = open_with_labels(data, subject, samples=len(batches.first), seed=seed)
    return dataclasses.replace(batches, first=pairs[0], notes=(*batches.notes, *notes))


@options_of(check_model)
def check(
    model: Model,
    data: DataOrNoise = None,
    *,
    html: Html = None,
    json: Json = None,
    sarif: Sarif = None,
    fail_on: FailOn = None,
    mode: Mode,
    output: Output,
    loss: Loss = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Check a model in seconds: is anything wrong, and do values and gradients keep their scale with depth?

    The model runs forward over the first 8 batches, and once forward and backward over the first. Nothing is traced and
    no bound is computed: almost every model that runs can be checked; `normscope audit` measures more and takes longer.
    The result is a verdict in one sentence, the findings with what to do about each, and one line per layer: its type,
    output shape and parameters, mean and deviation of its output, how much of the gradient comes back to it, and how
    many of its units are saturated or dead; then the totals of parameters and their memory. The page (--html) adds the
    range of the values and how far they are from the limits of float16.

    How to read the column `gradient`: it is a multiple of the gradient at the output. A healthy network stays between a
    thousandth and a thousand; 1e-10 in the first layer means that it gets a ten-billionth and does not learn.

    MODEL and DATA are those of `normscope audit` (see its help); weights alone cannot be checked, they cannot run.

    Exit codes: 0 fine, 1 a finding reaches --fail-on, 2 the check could not be made.
    """
    with measuring(model, data, html, json, sarif):
        alone = "normscope audit reads weights alone, or "
        subject = open_runnable(model, trust=trust, device=device, mode=mode, weights=alone)
        batches = _open_data(data, subject, loss, batch_size, seed)
        result = check_model(
            subject.module,
            batches.first,
            loader=batches.loader,
            mode=mode,
            output=output_of(output),
            loss=loss,
            name=subject.name,
        )
    result = dataclasses.replace(result, notes=(*batches.notes, *subject.notes, *result.notes))
    _hand_over(result, model, html, json, sarif, fail_on)


def _hand_over(
    result: Audit | Check,
    model: str,
    html: Path | None,
    json: Path | None,
    sarif: Path | None,
    fail_on: Severity | None,
) -> None:
    """Write and print a result; end with exit code 1 if a finding is as serious as `fail_on`, or more."""
    if sarif is not None:
        write_sarif(sarif, result.findings, model)
    show_result(result, html, json, sarif)
    if fail_on is None:
        return
    reached = sum(finding.severity >= fail_on for finding in result.findings)
    if reached:
        noun = "finding reaches" if reached == 1 else "findings reach"
        typer.echo(f"normscope: {reached} {noun} --fail-on {fail_on.value}", err=True)
        raise typer.Exit(1)


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
