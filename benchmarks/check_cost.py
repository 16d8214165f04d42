"""What `check` and `audit` cost, counted: forwards of the model, arithmetic, and processor time.

    python benchmarks/check_cost.py [--models mlp gnn ...] [--only-check]

Forwards are counted by a hook on the model: whole batches, and samples of smaller ones as shares of a batch. Arithmetic
is that of matrix products, convolutions and attention that torch really computes, forward and backward, in the model or
in what was captured of it, as a multiple of one forward and backward pass of the same batch. Processor time is that of
one thread, of a second call; that of a first call in a fresh process stands behind.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from audit_models import BATCH, MODELS, Case, output
from machine import header
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import normscope as ns

FIRST = (
    "import time, torch, normscope as ns; from torch import nn; check = ns.check; x = torch.randn(8, 16); "
    "model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)); before = time.process_time(); "
    "check(model, x); first = time.process_time(); check(model, x); "
    "print(first - before, time.process_time() - first)"
)


class GraphNet(nn.Module):
    """Three rounds of messages along edges, added up with `index_add`."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 3)
        self.register_buffer("edges", torch.randint(BATCH, (2, 4 * BATCH)))

    def forward(self, x: Tensor) -> Tensor:
        """Pass messages, then classify the nodes."""
        for layer in self.rounds:
            messages = layer(x)[self.edges[0]]
            x = torch.zeros_like(x).index_add(0, self.edges[1], messages).relu()
        return self.head(x)


class Recurrent(nn.Module):
    """An LSTM over sequences of 20 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Classify by the last state."""
        return self.head(self.lstm(x)[0][:, -1])


class Gpt(nn.Module):
    """Two causal blocks of width 32 over 16 tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(16, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score the next token at each place."""
        x = self.words(tokens) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(16)
        return self.head(self.norm(self.blocks(x, mask=mask, is_causal=True)))


def cnn() -> Case:
    """Two convolutions with BatchNorm."""
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), torch.randn(
        BATCH, 3, 16, 16
    )


def unet() -> Case:
    """The U-Net, its arguments by name: with a loss two tensors in a tuple are inputs and targets."""
    model, batch = MODELS["unet"]()
    return model, dict(zip(("x", "t"), batch, strict=True))


CASES: dict[str, Callable[[], Case]] = {
    "mlp": MODELS["mlp"],
    "cnn": cnn,
    "gnn": lambda: (GraphNet(), torch.randn(BATCH, 16)),
    "lstm": lambda: (Recurrent(), torch.randn(BATCH, 20, 8)),
    "gpt": lambda: (Gpt(), torch.randint(50, (BATCH, 16))),
    "encoder": MODELS["encoder"],
    "unet": unet,
    "resnet18": MODELS["resnet18"],
}


class Arithmetic(TorchDispatchMode):
    """Adds up what matrix products, convolutions and attention take; shapes that are only traced count nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        made = func(*args, **(kwargs or {}))
        rule = flop_registry.get(func._overloadpacket)
        if rule is not None and not any(
            isinstance(leaf, FakeTensor) or (isinstance(leaf, Tensor) and leaf.is_meta) for leaf in tree_leaves(args)
        ):
            self.total += rule(*args, **(kwargs or {}), out_val=made)
        return made


class Heard:
    """How many samples entered the model: on a class, since a check puts back whatever else a hook changes."""

    samples = 0


def counted(model: nn.Module, batch: Any, call: Callable[[], Any]) -> tuple[float, int, Any]:
    """Return the forwards of a call in batches of this size, its arithmetic, and what it returned."""

    def note(_: nn.Module, args: Any, kwargs: Any) -> None:
        Heard.samples += len(next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)))

    Heard.samples = 0
    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with Arithmetic() as arithmetic, torch.backends.mkldnn.flags(enabled=False):  # it hides an LSTM's products
            result = call()
    finally:
        hook.remove()
    return Heard.samples / len(tree_leaves(batch)[0]), arithmetic.total, result


def processor(call: Callable[[], Any]) -> float:
    """Return the processor time of a second call."""
    call()
    began = time.process_time()
    call()
    return time.process_time() - began


def both_ways(model: nn.Module, batch: Any) -> None:
    """Run one forward and backward pass."""
    output(model, batch).square().sum().backward()
    model.zero_grad(set_to_none=True)


def mean_square(made: Any) -> Tensor:
    """Return a loss that needs no labels."""
    return made.square().mean()


def row(name: str, *, with_audit: bool) -> str:
    """Measure one model and return its line of the table."""
    torch.manual_seed(0)
    model, batch = CASES[name]()
    model.eval()
    _, unit, _ = counted(model, batch, lambda: both_ways(model, batch))
    forwards, arithmetic, check = counted(model, batch, lambda: ns.check(model, batch))
    _, with_loss, _ = counted(model, batch, lambda: ns.check(model, batch, loss=mean_square))
    beyond = processor(lambda: ns.check(model, batch)) - 3 * processor(lambda: both_ways(model, batch))
    line = f"{name:10}{forwards:8.1f}{check.cost.backwards:8}{arithmetic / unit:12.1f}{with_loss / unit:11.1f}"
    line += f"{1e3 * beyond:12.0f} |"
    if with_audit:
        forwards, arithmetic, audit = counted(model, batch, lambda: ns.audit(model, batch))
        cost, size = audit.cost, len(tree_leaves(batch)[0])
        passes, backwards = cost.total("passes") / size, cost.total("backwards") / size
        line += f"{forwards:8.1f}{passes:10.1f}{backwards:11.1f}{arithmetic / unit:12.1f}"
    return line


def main() -> None:
    """Print the table, and what a first call takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--only-check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{header()}, batch {BATCH}")
    print(f"{'':10}{'check:':8}{'':8}{'':12}{'with a':>11}{'ms beyond 3':>12} | audit:")
    print(
        f"{'model':10}{'forwards':>8}{'backw.':>8}{'arithmetic':>12}{'loss':>11}{'fwd+bwd':>12} |"
        f"{'of model':>8}{'forwards':>10}{'backwards':>11}{'arithmetic':>12}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.models:
            print(row(name, with_audit=not options.only_check), flush=True)
    first, second = map(float, subprocess.check_output([sys.executable, "-c", FIRST]).split())
    print(f"a first call of `check` in a fresh process takes {first:.2f} s of the processor, a second {second:.3f} s")


if __name__ == "__main__":
    main()
