"""`normscope demo`: train a few small networks and bracket them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
import typer
from torch import nn

from ..bounds.ladder import Ladder, ladder
from ..experiments import models
from ..experiments.data import digits
from ..experiments.train import accuracy, train
from ..report.brackets import bracket_table
from ..report.cells import format_cell
from ..report.document import Column, Document, Table, Text
from ..report.terminal import print_document

if TYPE_CHECKING:
    from rich.console import Console

EPOCHS = 15
SAMPLES = 32
SECONDS = 6.0
"""Budget for the bounds of one network."""

NETWORKS: dict[str, Callable[[torch.Generator], nn.Module]] = {
    "MLP": lambda generator: models.mlp(generator=generator),
    "MLP + BatchNorm": lambda generator: models.mlp(generator=generator, normalizer="batch"),
    "MLP + LayerNorm": lambda generator: models.mlp(generator=generator, normalizer="layer"),
    "CNN + BatchNorm": lambda generator: models.cnn(generator=generator),
}

READING = (
    "Every figure is an exponent of ten. An upper side bounds how much the trained network can amplify a change of "
    "its input: 'printed' is the product of layer norms as papers print it, the rows below it are tighter. A lower "
    "side is attained by a pair of inputs that was found. 'observed' is the largest Jacobian norm at the "
    f"{SAMPLES} test images: a fact about them, no bound for others."
)


def demo(seed: int = typer.Option(0, help="Draws the weights and shuffles the data.")) -> None:
    """Train four small networks on scikit-learn's digits and print their layers and bounds. Takes under a minute.

    Three of them are the same but for their normalizer, so the tables show what BatchNorm and LayerNorm do to the
    Lipschitz constant, and how far apart the bounds of one network can lie.
    """
    from rich.console import Console

    console = Console()
    measured = measure(seed=seed, console=console)
    for name, (score, rungs) in measured.items():
        print_document(_part(name, score, rungs), console=console)
    print_document(Document(blocks=(_summary(measured), Text(body=READING))), console=console)


def measure(*, seed: int, console: Console) -> dict[str, tuple[float, Ladder]]:
    """Train the demo's networks under a progress bar and return each one's test accuracy and ladder."""
    from rich.progress import Progress

    measured: dict[str, tuple[float, Ladder]] = {}
    data = digits(generator=torch.Generator().manual_seed(seed))
    batch = data.test_images[:SAMPLES]
    with _one_thread(), Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(NETWORKS) * (EPOCHS + 1))

        def advance() -> None:
            progress.advance(task)

        for name, build in NETWORKS.items():
            generator = torch.Generator().manual_seed(seed)
            model = build(generator)
            progress.update(task, description=f"training {name}")
            train(model, data.train_images, data.train_labels, generator=generator, epochs=EPOCHS, on_epoch=advance)
            progress.update(task, description=f"bracketing {name}")
            score = accuracy(model, data.test_images, data.test_labels)
            measured[name] = (score, ladder(model, batch, max_seconds=SECONDS, seed=seed))
            advance()
    return measured


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # Networks this small gain nothing from threads, and on a busy machine waiting for them is most of the time.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _part(name: str, score: float, rungs: Ladder) -> Document:
    heading = Text(heading=f"{name}, test accuracy {format_cell(score, 'percent')}")
    return Document(blocks=(heading, _layers(name, rungs), bracket_table(rungs, title=f"{name}: ladder (log10)")))


def _layers(name: str, rungs: Ladder) -> Table:
    return Table(
        title=f"{name}: layers (log10)",
        columns=(
            Column(title="layer", kind="name"),
            Column(title="module", kind="name"),
            Column(title="input", kind="name"),
            Column(title="output", kind="name"),
            Column(title="upper", kind="log10"),
            Column(title="evidence", kind="name"),
        ),
        rows=tuple(
            (
                layer.path,
                layer.kind or layer.operator,
                _shape(layer.input_shape),
                _shape(layer.output_shape),
                layer.log10_upper,
                layer.evidence.name,
            )
            for layer in rungs.layers
        ),
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _summary(measured: dict[str, tuple[float, Ladder]]) -> Table:
    shown = ("printed", "product", "folded", "best", "observed")
    return Table(
        title="all networks: log10 of the upper sides",
        columns=(
            Column(title="network", kind="name"),
            Column(title="accuracy", kind="percent"),
            *(Column(title=rung, kind="log10") for rung in shown),
        ),
        rows=tuple(
            (name, score, *(rungs[rung].log10_upper for rung in shown)) for name, (score, rungs) in measured.items()
        ),
    )
