"""Adversaries in one module, blocks used twice, outputs that nobody reads, and models that take their own labels."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, Healthy, fault, healthy
from .. import parts

FAULTS: list[Fault] = []
HEALTHY: list[Healthy] = []
plant = partial(fault, FAULTS)
sound = partial(healthy, HEALTHY)
LOGISTIC = F.binary_cross_entropy_with_logits


# ------------------------------------------------------------------------------------------------------- adversaries


class Adversaries(nn.Module):
    """A generator and the discriminator that judges it: scores of data and of what was generated."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.generator, self.discriminator, self.detached = parts.Generator(), parts.discriminator(), detached

    def forward(self, noise: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(noise)
        return self.discriminator(images), self.discriminator(made.detach() if self.detached else made)


class OwnLosses(Adversaries):
    """Adversaries that compute the loss of one of them themselves."""

    def forward(self, noise: Tensor, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        real, made = super().forward(noise, images)
        return {"loss": of_discriminator((real, made)) if self.detached else of_generator((real, made))}


def of_discriminator(scores: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of telling data from what was generated."""
    real, made = scores
    return LOGISTIC(real, torch.ones_like(real)) + LOGISTIC(made, torch.zeros_like(made))


def of_generator(scores: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of being taken for data."""
    return LOGISTIC(scores[1], torch.ones_like(scores[1]))


def noise_and_images() -> dict[str, Tensor]:
    """Return what adversaries read."""
    return {"noise": torch.randn(32, 16), "images": parts.blob_images(32)[0].clamp(-1, 1)}


def adam(module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of one of the two."""
    return torch.optim.Adam(module.parameters(), lr=2e-3, betas=(0.5, 0.999))


@plant(
    "GAN", causes="no-gradient", remedies="keep-gradient",
    layers="generator generator.layers generator.layers.0 generator.layers.1 generator.layers.3 generator.layers.4 "
    "generator.layers.6",
)  # fmt: skip
def both_steps_with_the_detach_of_one(broken: bool) -> Case:
    """One forward for both steps: the detach that the discriminator needs leaves the generator without a gradient."""
    torch.manual_seed(2201)
    model = Adversaries(detached=broken)
    return Case(
        model=model, data=noise_and_images(), loss=of_generator, objective=of_generator,
        optimizer=adam(model.generator), judge=lambda scores: torch.sigmoid(scores[1]).mean().item(),
    )  # fmt: skip


@sound(family="GAN")
def step_of_a_discriminator() -> Case:
    torch.manual_seed(2202)
    model = Adversaries(detached=True)
    return Case(
        model=model, data=noise_and_images(), loss=of_discriminator, objective=of_discriminator,
        optimizer=adam(model.discriminator),
    )  # fmt: skip


@sound(family="GAN")
def step_of_a_discriminator_that_takes_its_own_loss() -> Case:
    torch.manual_seed(2203)
    return Case(model=OwnLosses(detached=True), data=noise_and_images(), objective=lambda output: output["loss"])


@sound(family="GAN")
def step_of_a_generator_that_takes_its_own_loss() -> Case:
    torch.manual_seed(2204)
    return Case(model=OwnLosses(detached=False), data=noise_and_images(), objective=lambda output: output["loss"])


# --------------------------------------------------------------------------------- blocks used twice, outputs unread


class Rounds(nn.Module):
    """A stem, one block that runs twice, and a head; the stem may be cut off."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.stem, self.rounds, self.head = nn.Linear(12, 32), nn.Sequential(block, block), nn.Linear(32, 3)
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        stem = F.relu(self.stem(x))
        return self.head(self.rounds(stem.detach() if self.detached else stem))


@plant("MLP", layers="stem", causes="no-gradient", remedies="keep-gradient")
def stem_detached_before_a_block_that_runs_twice(broken: bool) -> Case:
    """A detach that was to keep the block from being differentiated twice."""
    torch.manual_seed(2205)
    return Case(model=Rounds(detached=broken), data=parts.table(), loss="cross_entropy")


class Body(nn.Module):
    """A transformer that offers its states and a summary of them, as BERT does with its pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(50, 32), parts.TransformerBlock(32, 4, causal=False)
        self.pooler, self.activation = nn.Linear(32, 32), nn.Tanh()
        self.register_buffer("places", torch.randn(16, 32))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        states = self.block(self.words(ids) + self.places)
        return states, self.activation(self.pooler(states[:, 0]))


class OnBody(nn.Module):
    """Classes from the states of a body, or from its summary, which may be detached."""

    def __init__(self, reads_summary: bool, detached: bool = False) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(32, 2)
        self.reads_summary, self.detached = reads_summary, detached

    def forward(self, ids: Tensor) -> Tensor:
        states, summary = self.body(ids)
        if not self.reads_summary:
            return self.head(states.mean(1))
        return self.head(summary.detach() if self.detached else summary)


@plant("transformer", layers="body.pooler body.words body.block.feed.2", causes="no-gradient", remedies="keep-gradient")
def summary_of_a_body_detached(broken: bool) -> Case:
    """The summary is taken for a fixed feature."""
    torch.manual_seed(2206)
    return Case(model=OnBody(True, detached=broken), data=parts.sentences(), loss="cross_entropy")


@sound(family="transformer")
def summary_of_a_body_that_nobody_reads() -> Case:
    torch.manual_seed(2207)
    return Case(model=OnBody(False), data=parts.sentences(), loss="cross_entropy")


# --------------------------------------------------------------------------------------- models that take their labels


class Speaker(parts.GPT):
    """A language model that takes its labels and shifts them itself, as those of transformers do."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        for block in self.blocks:
            block.attention.causal = causal

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(input_ids)
        return {"loss": parts.over_tokens(logits[:, :-1], labels[:, 1:]), "logits": logits}


def speaker_case(causal: bool, prompt: int) -> Case:
    """Return a language model with labels for all but the first words."""
    ids, _ = parts.text()
    labels = ids.clone()
    labels[:, :prompt] = -100
    return Case(
        model=Speaker(causal), data={"input_ids": ids, "labels": labels}, objective=lambda output: output["loss"]
    )


ATTENTION = "blocks.0.attention blocks.0.attention.qkv blocks.0.attention.out"


@plant("GPT", layers=ATTENTION, causes="future-visible attention-mask-wrong", remedies="fix-mask")
def labels_among_the_arguments_and_no_mask(broken: bool) -> Case:
    """A body that was made for masked words is trained to foretell the next one."""
    torch.manual_seed(2208)
    return speaker_case(causal=not broken, prompt=0)


@plant("GPT", layers=ATTENTION, causes="future-visible attention-mask-wrong", remedies="fix-mask")
def prompts_without_labels_and_no_mask(broken: bool) -> Case:
    """The same where the words of the prompt have no label."""
    torch.manual_seed(2209)
    return speaker_case(causal=not broken, prompt=8)


class Interpreter(nn.Module):
    """From one sequence to another: the decoder is given the labels that it takes, a step late or as they are."""

    def __init__(self, shifted: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(20, 32), nn.Embedding(21, 32)
        self.places = nn.Parameter(0.3 * torch.randn(8, 32))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head, self.shifted = nn.Linear(32, 20), shifted

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        given = labels.masked_fill(labels < 0, 20)
        given = torch.cat([torch.full_like(given[:, :1], 20), given[:, :-1]], 1) if self.shifted else given
        memory = self.encoder(self.source(input_ids) + self.places)
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        logits = self.head(self.decoder(self.target(given) + self.places, memory, tgt_mask=mask))
        return {"loss": parts.over_tokens(logits, labels), "logits": logits}


@plant("encoder-decoder", causes="future-visible labels-wrong", remedies="shift-targets")
def decoder_given_the_labels_that_it_is_to_foretell(broken: bool) -> Case:
    """The step that moves the labels to the right was left out."""
    torch.manual_seed(2210)
    source = torch.randint(20, (64, 8))
    labels = (source + source.flip(1)) % 20
    labels[::2, 6:] = -100
    return Case(
        model=Interpreter(shifted=not broken), data={"input_ids": source, "labels": labels},
        objective=lambda output: output["loss"],
    )  # fmt: skip
