"""Rules: all that is known of each operator. One registry; one file per family."""

import torch

with torch.random.fork_rng(devices=[]):  # examples hold layers, whose weights are drawn: leave the user's numbers alone
    from . import (  # noqa: F401
        activation,
        arithmetic,
        attention,
        comparison,
        convolution,
        elementary,
        linear,
        losses,
        normalization,
        pooling,
        recurrent,
        reduction,
        scatter,
        shape,
        softmax,
        units,
    )
