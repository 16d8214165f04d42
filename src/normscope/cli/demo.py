"""`normscope demo`: train four networks that differ only in their normalizer, audit them and write a report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from torch import nn

from ..auditing.audit_result import Audit
from ..auditing.auditing import audit
from ..bounds.radius.radii import Radii
from ..bounds.radius.radius import certified_radius
from ..choosing.comparison_page import compare_document
from ..core.budget import Parts, begin, telling_lines
from ..core.errors import InputError
from ..core.files import write_text
from ..data import digits
from ..networks import small as models
from ..networks.small import accuracy, train
from ..report.document import Document
from ..report.html import to_html
from ..report.terminal import print_document
from .messages import one_line
from .options import Seed

DEMO_EXAMPLES = """
normscope demo --out normscope-demo
"""
OUT = Path("normscope-demo")
EPOCHS = 15
SAMPLES = 32
"""How many test images bounds and Jacobians are computed for."""
BATCH_SIZE = 64
CERTIFIED = 16
"""How many test images radii are certified for."""

NETWORKS: dict[str, tuple[str, Callable[[torch.Generator], nn.Module]]] = {
    "plain": ("MLP", lambda generator: models.mlp(generator=generator)),
    "batchnorm": ("MLP + BatchNorm", lambda generator: models.mlp(generator=generator, normalizer="batch")),
    "layernorm": ("MLP + LayerNorm", lambda generator: models.mlp(generator=generator, normalizer="layer")),
    "groupnorm": ("MLP + GroupNorm", lambda generator: models.mlp(generator=generator, normalizer="group")),
}
"""The networks by the name of their file: the name in the report, and a function that builds the network."""


class DemoNetwork(NamedTuple):
    """Test accuracy, audit and certified radii of one network."""

    accuracy: float
    audit: Audit
    radii: Radii


ABOUT = (
    "Four networks of the same shape were trained on scikit-learn's 8x8 digits from the same weights; only the "
    "normalizer between each linear layer and its ReLU differs. Statistics come from the training images, bounds and "
    f"Jacobians from {SAMPLES} test images, certified radii from {CERTIFIED} of them, the accuracy from all. Each "
    "network's own report lies beside this one."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report and the audits as JSON.")] = OUT,
    seed: Seed = 0,
) -> None:
    """Train four small networks on scikit-learn's digits, audit them and write a report. Takes about a minute.

    The networks differ only in their normalizer: none, BatchNorm, LayerNorm, GroupNorm. The report compares them. In
    the same folder are the report of each network and its audit as JSON, for normscope compare.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror or error}") from error
    measured = measure(seed=seed)
    for name, network in measured.items():
        network.audit.to_json(out / f"{name}.json")
        network.audit.to_html(out / f"{name}.html")
    report = out / "report.html"
    write_text(report, to_html(_comparison(measured, brief=False)))
    print_document(_comparison(measured, brief=True))
    typer.echo(one_line(f"report: {report}"))


def measure(*, seed: int) -> dict[str, DemoNetwork]:
    """Train, audit and certify the demo's networks, and show which part runs."""
    measured: dict[str, DemoNetwork] = {}
    data = digits(generator=torch.Generator().manual_seed(seed))
    loader = data.train_images.split(BATCH_SIZE)
    with _one_thread(), telling_lines(), Parts("training and auditing", tuple(NETWORKS)):
        for name, (title, build) in NETWORKS.items():
            generator = torch.Generator().manual_seed(seed)
            model = build(generator)
            begin(name)
            train(model, data.train_images, data.train_labels, generator=generator, epochs=EPOCHS)
            audited = audit(model, data.test_images[:SAMPLES], loader=loader, seed=seed, name=title)
            images, labels = data.test_images[:CERTIFIED], data.test_labels[:CERTIFIED]
            radii = certified_radius(model, images, labels=labels, seed=seed)
            measured[name] = DemoNetwork(accuracy(model, data.test_images, data.test_labels), audited, radii)
    return measured


def _comparison(measured: Mapping[str, DemoNetwork], *, brief: bool) -> Document:
    return compare_document(
        {network.audit.name: network.audit for network in measured.values()},
        brief=brief,
        accuracy={network.audit.name: network.accuracy for network in measured.values()},
        radii={network.audit.name: network.radii for network in measured.values()},
        about=ABOUT,
        title="Normscope demo: what normalizers do",
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run a block with one thread: small networks gain nothing from more, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
