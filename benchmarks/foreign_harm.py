"""Measure which mutants of `foreign_faults.py` change anything, and which of them harm a training or leak the future.

    python benchmarks/foreign_faults.py --harm [--processes N]      writes docs/results/foreign_harm.txt

A mutant changes something if on the weights it starts with an output in eval mode, a gradient of the loss in train mode
or the output of decoding with a cache differs from that of the healthy model. It leaks if outputs at early tokens of a
decoder move with later tokens. It harms if the loss on unseen data after 150 steps of AdamW on data that healthy models
learn is above that of the healthy model, in the mean over two seeds, by more than the range of the healthy losses of
four seeds plus a twentieth of what the healthy model has learned; decoders are also asked with a cache. The tasks need
positions and attention: in text the first token says how the sequence goes on, in another way in its second half, and
half of the classes of images are the others upside down.
"""

import math
import statistics
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import foreign_faults as faults
import torch
from torch import Tensor, nn
from torch.nn import functional as F

PATH = Path(__file__).parents[1] / "docs" / "results" / "foreign_harm.txt"
STEPS, WARM_UP_STEPS, RATE = 150, 20, 1e-3
SEEDS, HEALTHY_SEEDS = 2, 4
LEARNED_SHARE = 0.05
"""A harmful mutant falls behind by the range of healthy seeds and by this share of what a healthy model learns."""
ROUNDING, MOVED_SHARE = 1e-5, 1e-3
"""Differences as shares of the largest value: rounding stays below the first, and a leak lies above the second."""
TOKENS, SYMBOLS, EVALUATED = 16, 16, 128
TITLE = (
    "python benchmarks/foreign_faults.py --harm: what mutants do, and their losses on unseen data after a training of "
    f"{STEPS} steps (benchmarks/foreign_harm.py)."
)
HEADER = "# operator | form | model | changes, leaks, harms, - | mean final loss | that of the healthy model"


def build_task(kind: str, generator: torch.Generator, count: int) -> dict[str, Tensor]:
    """Return samples that a healthy model of this kind learns within the steps."""
    if kind == "vit":
        patterns = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(5))
        labels = torch.randint(10, (count,), generator=generator)
        images = F.interpolate(torch.cat([patterns, patterns.flip(2)]), size=24)[labels]
        return {"pixel_values": images + 0.3 * torch.randn(images.shape, generator=generator), "labels": labels}
    topic, steps = torch.randint(2, (count, 1), generator=generator), torch.arange(TOKENS)
    if kind == "bert":
        noise = torch.randint(SYMBOLS, (count, TOKENS), generator=generator)
        is_noise = torch.rand(noise.shape, generator=generator) < 0.15
        symbols = torch.where(is_noise, noise, (4 * topic + steps // 4) % SYMBOLS)
    else:
        walk = torch.randint(12, (count, 1), generator=generator)
        walk = walk + (1 + 2 * topic) * steps + 5 * (steps - TOKENS // 2 + 1).clamp(min=0)
        symbols = torch.where(steps == 0, topic, 4 + walk % 12)
    tokens = torch.linspace(8, 157, SYMBOLS).round().long()[symbols]
    if kind == "gpt2":
        return {"input_ids": tokens, "labels": tokens.clone()}
    words = steps < torch.randint(TOKENS // 2 + 1, TOKENS + 1, (count, 1), generator=generator)
    tokens, mask = torch.where(words, tokens, 0), words.long()
    if kind == "llama":
        return {"input_ids": tokens, "attention_mask": mask, "labels": torch.where(words, tokens, -100)}
    hidden = (torch.rand(tokens.shape, generator=generator) < 0.25) & words
    labels = torch.where(hidden, tokens, -100)
    return {"input_ids": torch.where(hidden, 5, tokens), "attention_mask": mask, "labels": labels}


@torch.no_grad()
def decode(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the logits of a decoder that is given the second half of each sequence with the cache of the first.

    A mutant that raises returns nothing.
    """
    tokens, half = batch["input_ids"], batch["input_ids"].shape[1] // 2
    mask = batch.get("attention_mask", torch.ones_like(tokens))
    try:
        model(input_ids=tokens.roll(1, 0)[:, :half], attention_mask=mask.roll(1, 0)[:, :half], use_cache=True)
        first = model(input_ids=tokens[:, :half], attention_mask=mask[:, :half], use_cache=True)
        rest = {"input_ids": tokens[:, half:], "attention_mask": mask, "past_key_values": first.past_key_values}
        return torch.cat([first.logits, model(**rest, use_cache=True).logits], 1)
    except (RuntimeError, IndexError):
        return torch.empty(0, 0, 0)


def outputs_and_gradients(model: Any, kind: str) -> list[Tensor]:
    """Return the logits, then, of decoders, those of decoding with a cache and those with other later tokens.

    Behind them stand the gradients of all parameters.
    """
    batch, outputs = faults.build_batch(kind), []
    torch.manual_seed(1)
    model(**batch).loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.eval()
    torch.manual_seed(1)
    with torch.no_grad():
        outputs.append(model(**batch).logits)
    if kind in faults.DECODERS:
        outputs.append(decode(model, batch))
        later = {**batch, "input_ids": batch["input_ids"].clone()}
        later["input_ids"][:, 12:] = later["input_ids"][:, 12:].flip(0)
        torch.manual_seed(1)
        with torch.no_grad():
            outputs.append(model(**later).logits)
    return outputs + gradients


def differ(one: Tensor, other: Tensor, share: float) -> bool:
    return one.shape != other.shape or not bool((one - other).abs().amax() <= share * other.abs().amax())


def train(row: int, kind: str, seed: int) -> tuple[float, float]:
    """Return the first and the final loss of a mutant on unseen data; the final one is the worse of two ways to ask."""
    model, generator = faults.build_mutant(row, kind, seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    unseen = build_task(kind, torch.Generator().manual_seed(99), EVALUATED)

    def evaluate() -> float:
        with torch.no_grad():
            return float(model.eval()(**unseen).loss)

    first = evaluate()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP_STEPS)
        loss = model.train()(**build_task(kind, generator, 32 if kind == "vit" else 16)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    final = evaluate()
    if kind in faults.DECODERS:
        scores, labels = decode(model, unseen)[:, :-1], unseen["labels"][:, 1:]
        if scores.shape[1] != labels.shape[1]:
            return first, math.inf
        final = max(final, float(F.cross_entropy(scores.flatten(0, 1), labels.flatten())), key=nan_as_infinite)
    return first, final


def nan_as_infinite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def measure(row: int, kind: str) -> tuple[bool, bool, list[tuple[float, float]]]:
    """Return whether a mutant changes anything, whether it leaks, and its losses by seed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faults.transformers.logging.set_verbosity_error()
    healthy = faults.build_model(kind, "sdpa" if faults.FAULTS[row][1] == "sdpa" else "with_faults")
    mutant = faults.build_mutant(row, kind)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        as_it_is, changed = outputs_and_gradients(healthy, kind), outputs_and_gradients(mutant, kind)
    changes = len(as_it_is) != len(changed) or any(differ(b, a, ROUNDING) for a, b in zip(as_it_is, changed))
    leaks = kind in faults.DECODERS and differ(changed[2][:, :12], changed[0][:, :12], MOVED_SHARE)
    seeds = HEALTHY_SEEDS if row == 0 else SEEDS if changes else 0
    return changes, leaks, [train(row, kind, seed) for seed in range(seeds)]


def write_harm(executor: Executor, mutants: list[tuple[int, str]]) -> None:
    """Measure all mutants, and write a line of each."""
    measured = dict(zip(mutants, executor.map(measure, *zip(*mutants))))
    lines = [TITLE, "", HEADER]
    for (row, kind), (changes, leaks, losses) in measured.items():
        operator, form, *_ = faults.FAULTS[row]
        healthy = measured[0, kind][2]
        finals = [final for _, final in healthy]
        usual = statistics.fmean(finals[:SEEDS])
        margin = max(finals) - min(finals) + LEARNED_SHARE * (statistics.fmean(first for first, _ in healthy) - usual)
        final = statistics.fmean(nan_as_infinite(final) for _, final in losses) if losses else usual
        words = {"changes": changes, "leaks": leaks, "harms": row > 0 and final > usual + margin}
        said = ", ".join(word for word, holds in words.items() if holds) or "-"
        lines.append(f"{operator} | {form} | {kind} | {said} | {final:.3f} | {usual:.3f}")
    PATH.write_text("\n".join(lines) + "\n")


def read_harm() -> Iterator[tuple[tuple[str, str, str], set[str]]]:
    """Yield operator, form and model of each mutant, and what it does: `changes`, `leaks`, `harms`."""
    _, _, rows = PATH.read_text().partition(HEADER)
    for line in rows.strip().splitlines():
        operator, form, kind, said, *_ = (part.strip() for part in line.split("|"))
        yield (operator, form, kind), set(said.split(", ")) - {"-"}
