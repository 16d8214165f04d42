"""Batches that a healthy training reads: real images, Zipf tokens that follow one another, tones, and graphs."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

IMAGES = "NORMSCOPE_IMAGES"
"""The variable with the path of an .npz of real images: `x`, bytes (count, 3, 32, 32), and `y`, their classes."""
CLASSES, WORDS, LENGTH = 10, 500, 48
FIRST_WORD, HIDDEN_WORD, END_OF_TEXT, VOCABULARY = 8, 5, 2, 512


@functools.cache
def _load_images() -> tuple[Tensor, Tensor]:
    """Return the images, standardised, and their classes; smooth noise of ten colours where there is no file."""
    path = os.environ.get(IMAGES)
    if path:
        with np.load(path) as file:
            x, y = torch.from_numpy(file["x"]).float(), torch.from_numpy(file["y"]).long()
    else:
        generator = torch.Generator().manual_seed(0)
        y = torch.randint(CLASSES, (512,), generator=generator)
        colours = torch.randn(CLASSES, 3, 1, 1, generator=generator)
        x = functional.interpolate(torch.randn(512, 3, 8, 8, generator=generator), size=32, mode="bicubic") + colours[y]
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), y


def images(count: int, generator: torch.Generator, *, size: int = 96, channels: int = 3) -> tuple[Tensor, Tensor]:
    """Draw images, half of them mirrored, at a size, and their classes."""
    x, y = _load_images()
    places = torch.randint(len(x), (count,), generator=generator)
    drawn = x[places]
    drawn = torch.where(torch.rand(count, 1, 1, 1, generator=generator) < 0.5, drawn, drawn.flip(3))
    drawn = drawn if channels == 3 else drawn.mean(1, keepdim=True).expand(-1, channels, -1, -1).contiguous()
    return functional.interpolate(drawn, size=size, mode="bilinear", antialias=size < 32), y[places]


def masks(count: int, generator: torch.Generator, *, size: int = 96) -> tuple[Tensor, Tensor]:
    """Draw images and the class of each pixel: how bright it is, in four classes."""
    x, _ = images(count, generator, size=size)
    bright = x.mean(1)
    return x, torch.bucketize(bright, torch.quantile(bright.flatten()[:100_000], torch.tensor([0.25, 0.5, 0.75])))


def videos(count: int, generator: torch.Generator, *, size: int = 64, frames: int = 8) -> tuple[Tensor, Tensor]:
    """Draw images that move to the right, (count, 3, frames, size, size), and their classes."""
    x, y = images(count, generator, size=size)
    return torch.stack([x.roll(2 * frame, dims=3) for frame in range(frames)], dim=2), y


@functools.cache
def _followers() -> Tensor:
    return torch.randperm(WORDS, generator=torch.Generator().manual_seed(1))


def tokens(count: int, generator: torch.Generator, *, length: int = LENGTH) -> Tensor:
    """Draw sequences of words with Zipf's frequencies, half of which say which word comes next."""
    frequencies = 1.0 / torch.arange(1.0, WORDS + 1)
    drawn = torch.multinomial(frequencies, count * length, replacement=True, generator=generator).view(count, length)
    follows = torch.rand(count, length, generator=generator) < 0.5
    for place in range(1, length):
        drawn[:, place] = torch.where(follows[:, place], _followers()[drawn[:, place - 1]], drawn[:, place])
    return drawn + FIRST_WORD


def causal(count: int, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Draw words, each of which is to be predicted from those before."""
    ids = tokens(count, generator)
    return {"input_ids": ids, "labels": ids.clone()}


def causal_shifted(count: int, generator: torch.Generator) -> Mapping[str, Tensor]:
    """The same for models that do not shift the labels themselves."""
    ids = tokens(count, generator, length=LENGTH + 1)
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def masked(count: int, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Draw words, three in ten of which are hidden and to be predicted."""
    ids = tokens(count, generator)
    hidden = torch.rand(ids.shape, generator=generator) < 0.3
    labels = torch.where(hidden, ids, -100)
    labels[:, -1] = END_OF_TEXT
    return {"input_ids": torch.where(hidden, HIDDEN_WORD, ids), "labels": labels}


def translated(count: int, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Draw words and, as their translation, the words that most often follow each of them, and the end of a text."""
    ids = tokens(count, generator)
    labels = _followers()[ids - FIRST_WORD] + FIRST_WORD
    labels[:, -1] = END_OF_TEXT
    return {"input_ids": ids, "labels": labels}


def labelled_text(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw words, and whether the first half of each text has the rarer ones."""
    ids = tokens(count, generator)
    half = ids.shape[1] // 2
    return ids, (ids[:, :half].sum(1) > ids[:, half:].sum(1)).long()


def tones(count: int, generator: torch.Generator, *, length: int = 4000) -> tuple[Tensor, Tensor]:
    """Draw waveforms, (count, length), of one of ten tones with overtones and noise, and which tone it is."""
    y = torch.randint(CLASSES, (count,), generator=generator)
    pitch = 200.0 * 1.3 ** y[:, None] * 2.0 * torch.pi / 16000.0
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    time = torch.arange(length)[None]
    wave = sum(torch.sin(k * pitch * time + k * phase) / k for k in (1, 2, 3))
    wave = wave + 0.3 * torch.randn(count, length, generator=generator)
    return (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True), y


def spectra(count: int, generator: torch.Generator, *, bands: int = 64, frames: int = 100) -> tuple[Tensor, Tensor]:
    """Draw logarithms of spectra of tones, (count, frames, bands), standardised, and which tone it is."""
    wave, y = tones(count, generator, length=160 * (frames - 1))
    windows = torch.hann_window(400)
    power = torch.stft(wave, 400, hop_length=160, window=windows, return_complex=True).abs().square()
    logs = (functional.adaptive_avg_pool1d(power.transpose(1, 2), bands) + 1e-3).log()
    return (logs - logs.mean()) / logs.std(), y


def graph(nodes: int, generator: torch.Generator, *, width: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the nodes of a graph with four communities: their features, their edges, and their communities."""
    y = torch.randint(4, (nodes,), generator=generator)
    x = torch.randn(nodes, width, generator=generator) + 0.5 * functional.one_hot(y, width)
    near = torch.where(y[:, None] == y[None], 8.0 / nodes, 2.0 / nodes)
    edges = (torch.rand(nodes, nodes, generator=generator) < near).triu(1)
    edges = (edges | edges.T).nonzero().T.contiguous()
    return x, edges, y
