"""Rules: what each operator does. One registry; one file per family."""

import torch

with torch.random.fork_rng(devices=[]):  # examples hold layers, whose weights are drawn: leave the user's numbers alone
    from . import (  # noqa: F401
        activation,
        arithmetic,
        attention,
        convolution,
        linear,
        normalization,
        pooling,
        recurrent,
        scatter,
        shape,
    )
