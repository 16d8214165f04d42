"""`normscope demo`: train four networks that differ in their normalizer alone, audit them and write a report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from torch import nn

from ..core.errors import InputError
from ..core.files import write_text
from ..diagnosis.auditing import audit
from ..diagnosis.comparing import compare_document
from ..diagnosis.page import audit_document
from ..diagnosis.result import Audit
from ..experiments import models
from ..experiments.data import digits
from ..experiments.train import accuracy, train
from ..report.document import Block, Document, Text
from ..report.html import to_html
from ..report.terminal import print_document
from .lines import one_line
from .options import Seed

if TYPE_CHECKING:
    from rich.console import Console

OUT = Path("normscope-demo")
EPOCHS = 15
SAMPLES = 32
"""Test images that bounds and Jacobians are taken at."""
BATCH_SIZE = 64
SECONDS = 6.0
"""Budget for the bounds of one network."""

NETWORKS: dict[str, tuple[str, Callable[[torch.Generator], nn.Module]]] = {
    "plain": ("MLP", lambda generator: models.mlp(generator=generator)),
    "batchnorm": ("MLP + BatchNorm", lambda generator: models.mlp(generator=generator, normalizer="batch")),
    "layernorm": ("MLP + LayerNorm", lambda generator: models.mlp(generator=generator, normalizer="layer")),
    "groupnorm": ("MLP + GroupNorm", lambda generator: models.mlp(generator=generator, normalizer="group")),
}
"""By the name of their file: how the report calls them, and what builds them."""

Measured = Mapping[str, tuple[float, Audit]]
"""Test accuracy and audit by the name of a network's file."""

ABOUT = (
    "Four networks of the same shape were trained on scikit-learn's 8x8 digits from the same weights; only the "
    "normalizer between each linear layer and its ReLU differs. Statistics come from the training images, bounds and "
    f"Jacobians from {SAMPLES} test images, the accuracy from all of them."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report and the audits as JSON.")] = OUT,
    seed: Seed = 0,
) -> None:
    """Train four small networks on scikit-learn's digits, audit them and write a report. Takes under a minute.

    The networks are the same but for their normalizer: none, BatchNorm, LayerNorm, GroupNorm. The report compares
    them and shows each one's audit; the JSON files beside it go into normscope compare.
    """
    from rich.console import Console

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror or error}") from error
    console = Console()
    measured = measure(seed=seed, console=console)
    print_document(_comparison(measured, brief=True), console=console)
    for name, (_, found) in measured.items():
        found.to_json(out / f"{name}.json")
    report = out / "report.html"
    write_text(report, to_html(_report(measured)))
    typer.echo(one_line(f"report: {report}"))


def measure(*, seed: int, console: Console) -> dict[str, tuple[float, Audit]]:
    """Train and audit the demo's networks under a progress bar.

    Args:
        seed: of weights, data and searches.
        console: shows the progress.

    Returns:
        Test accuracy and audit by the name of the network's file.
    """
    from rich.progress import Progress

    measured: dict[str, tuple[float, Audit]] = {}
    data = digits(generator=torch.Generator().manual_seed(seed))
    loader = data.train_images.split(BATCH_SIZE)
    with _one_thread(), Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(NETWORKS) * (EPOCHS + 5))
        for name, (title, build) in NETWORKS.items():
            generator = torch.Generator().manual_seed(seed)
            model = build(generator)
            progress.update(task, description=f"training {name}")
            train(
                model,
                data.train_images,
                data.train_labels,
                generator=generator,
                epochs=EPOCHS,
                on_epoch=lambda: progress.advance(task),
            )
            progress.update(task, description=f"auditing {name}")
            found = audit(model, data.test_images[:SAMPLES], loader=loader, max_seconds=SECONDS, seed=seed, name=title)
            measured[name] = (accuracy(model, data.test_images, data.test_labels), found)
            progress.advance(task, 5)
    return measured


def _comparison(measured: Measured, *, brief: bool) -> Document:
    audits = {found.name: found for _, found in measured.values()}
    scores = {found.name: score for score, found in measured.values()}
    return compare_document(audits, brief=brief, accuracy=scores)


def _report(measured: Measured) -> Document:
    """Join the comparison and the audits to one document."""
    blocks: list[Block] = [Text(heading="What this is", body=ABOUT), *_comparison(measured, brief=False).blocks]
    for _, found in measured.values():
        page = audit_document(found)
        blocks += [Text(heading=page.title), *page.blocks]
    return Document(title="Normscope demo: what normalizers do", blocks=tuple(blocks))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # Networks this small gain nothing from threads, and on a busy machine waiting for them is most of the time.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
