"""`normscope audit`: examine a model, or weights alone, from the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..core.errors import InputError
from ..core.finding import Finding, Severity
from ..core.progress import Parts
from ..diagnosis.audit_result import Audit
from ..diagnosis.auditing import PARTS, THOROUGH
from ..diagnosis.auditing import audit as audit_model
from ..diagnosis.bare_weights import audit_weights
from ..pages.audit import audit_document
from ..report.terminal import print_document
from .data_forms import BATCH_SIZE, NOISE_SAMPLES, open_data
from .messages import say_written, write_result
from .model_forms import FORMS, GivenModel, open_model, place_model
from .objects import refuse_exit
from .options import Device, Html, Seed, Trust, output_of
from .targets import check_targets, read_from

HELP = """Audit a model: what each layer and normalizer does, how far the network can amplify its input, what is wrong.

MODEL is one of

- `package.module:function`, a function without arguments that returns the model, or the model itself; looked for in
  the current folder first. `path/to/file.py:function` works too.
- a Hugging Face folder or id, from its config and safetensors; code that comes with a model is never run.
- a `.pt2` file of torch.export, with `--trust`.
- a `*.safetensors` file or its `*.safetensors.index.json`: its weights alone, one tensor in memory at a time. So are
  `.pt`, `.pth` and `.bin` files that hold nothing but tensors.

DATA is one of

- `digits` (comes with scikit-learn, values from 0 to 1), `mnist:FOLDER`, `cifar10:FOLDER`: standardised by channel, as
  networks for them usually take it; `mnist:raw:FOLDER`, `cifar10:raw:FOLDER`: values from 0 to 1
- `npz:FILE` with the inputs in an array called x, images or data (bytes are divided by 255)
- `package.module:loader`: a DataLoader, a Dataset, a list of batches, a tensor, or a function that returns one.

Of a data set the first 64 batches are read, a loader of yours to its end.

Exit codes: 0 fine, 1 a finding reaches --fail-on, 2 the audit could not be made.
"""

EXAMPLES = """**Examples**

```
normscope audit net.py:build --data digits --html report.html
normscope audit mypackage.models:resnet --data cifar10:~/data --mode train --fail-on warning
normscope audit mypackage.models:resnet --data mypackage.data:train_loader --json audit.json
normscope audit google/vit-base-patch16-224 --html vit.html
normscope audit model.safetensors --fail-on error
normscope audit model.pt2 --trust --data npz:samples.npz
```
"""


def audit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="What to audit with: digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader. Left "
            "out, a Hugging Face model gets random noise of its own sizes, and the report says so.",
        ),
    ] = None,
    html: Html = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, for normscope compare.")] = None,
    fail_on: Annotated[
        Severity | None,
        typer.Option(help="Exit with code 1 if a finding is this serious or more; reports call an info a note."),
    ] = None,
    mode: Annotated[
        Literal["train", "eval"] | None,
        typer.Option(help="Which of the model's two functions to audit; left out, the one it is in when it is built."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="NAME", help="Which output to measure, by name or number, if the model returns several."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help=f"Samples a batch, {BATCH_SIZE} if left out ({NOISE_SAMPLES} of noise).")
    ] = None,
    effort: Annotated[
        Literal["fast", "thorough"],
        typer.Option(
            help="How much to measure: thorough adds the optimised certificate, the search from below, certified radii "
            "and sensitivity to the weights."
        ),
    ] = "fast",
    max_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="For the whole audit; what takes longer is cut short or left out, and the report says what."
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Audit a model (the help of the command is HELP)."""
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        result = _audited(
            open_model(model, trust=trust),
            data=data,
            mode=mode,
            output=output,
            batch_size=batch_size,
            effort=effort,
            max_seconds=max_seconds,
            seed=seed,
            device=device,
        )
    write_result(result, html, json)
    print_document(audit_document(result, brief=True))
    say_written(html, json)
    judge(result.findings, fail_on)


def _audited(
    given: GivenModel,
    *,
    data: str | None,
    mode: Literal["train", "eval"] | None,
    output: str | None,
    batch_size: int | None,
    effort: str,
    max_seconds: float | None,
    seed: int,
    device: str | None,
) -> Audit:
    """Audit a model, or weights alone, with the options of the command."""
    if given.weights is not None:
        options = {"--data": data, "--mode": mode, "--output": output, "--batch-size": batch_size, "--device": device}
        return _weights(given, options, max_seconds)
    batches = open_data(data, place_model(given, device, mode), batch_size=batch_size, seed=seed)
    parts = [part for part in PARTS if effort == "thorough" or part not in THOROUGH]
    with Parts("auditing", parts):
        result = audit_model(
            given.module,
            batches.first,
            loader=batches.loader,
            mode=mode,
            output=output_of(output),
            effort=effort,
            max_seconds=max_seconds,
            seed=seed,
            name=given.name,
        )
    return dataclasses.replace(result, notes=(*batches.notes, *given.notes, *result.notes))


def _weights(given: GivenModel, options: Mapping[str, object], max_seconds: float | None) -> Audit:
    """Audit weights alone; refuse options that need a model to run."""
    for option, value in options.items():
        if value is not None:
            raise InputError(
                f"{given.name} holds weights and no model to run: leave {option} out, or name a function that builds "
                "the model (package.module:function)"
            )
    assert given.weights is not None
    return audit_weights(given.weights, name=given.name, max_seconds=max_seconds)


def judge(findings: Sequence[Finding], fail_on: Severity | None) -> None:
    """End with exit code 1 if a finding is as serious as `fail_on`, or more."""
    if fail_on is None:
        return
    reached = sum(finding.severity >= fail_on for finding in findings)
    if reached:
        noun = "finding reaches" if reached == 1 else "findings reach"
        typer.echo(f"normscope: {reached} {noun} --fail-on {fail_on.value}", err=True)
        raise typer.Exit(1)
