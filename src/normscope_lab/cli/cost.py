"""`normscope lab cost`: what the papers' rates say about training a model, from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from normscope import audit, weight_sensitivity
from normscope.commands import (
    MODEL_FORMS,
    Device,
    Html,
    Json,
    MaxSeconds,
    Mode,
    Seed,
    Trust,
    check_targets,
    open_data,
    open_runnable,
    options_of,
    place_model,
    read_from,
    refuse_exit,
    show_result,
)
from normscope.toolkit import InputError

from ..rates import training_cost

HELP = """Say what the papers' worst-case rates mean for a model: which layer trains slowest, what normalizers save.

The model is audited. The norms of its weights and the constants of its normalizers give, for every layer, the number of
iterations that is necessary by Than's Corollary 18 and the number that is enough by Corollary 19, with and without the
normalizers. All of these are orders without constants: only their ratio has a meaning. It depends on a convention,
which the report names: weights in front of a normalizer can be rescaled without changing the network.

A second table has every rate that the papers quote, for a constant that does not depend on such a rescaling: how far
the output moves per relative change of a weight, at the data. The rates of Than and of his Slides disagree, and one
differs from its source: the table says where.

MODEL and DATA are those of `normscope audit`.
"""

EXAMPLES = """
normscope lab cost normscope.networks:residual_mlp --data digits --mode eval

normscope lab cost mypackage.models:cnn --data mypackage.data:train_loader --mode train --alpha 0.001 --html cost.html
"""


@options_of(audit, training_cost)
def cost(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{MODEL_FORMS}.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DATA", help="digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader."
        ),
    ] = None,
    *,
    alpha: float,
    mode: Mode,
    html: Html = None,
    json: Json = None,
    seed: Seed = 0,
    max_seconds: MaxSeconds,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Print what training costs (the help of the command is HELP)."""
    if not alpha > 0.0:
        raise InputError(f"--alpha is a number above 0, not {alpha:g}")
    check_targets(html, json, inputs=read_from(model, data))
    with refuse_exit():
        runnable = open_runnable(model, trust=trust)
        batches = open_data(data, place_model(runnable, device, mode), batch_size=None, seed=seed)
        audited = audit(
            runnable.module,
            batches.first,
            loader=batches.loader,
            mode=mode,
            seed=seed,
            max_seconds=max_seconds,
            name=runnable.name,
        )
        sensitivity = weight_sensitivity(runnable.module, batches.first, mode=mode, max_seconds=max_seconds)
        result = training_cost(audited, sensitivity=sensitivity, alpha=alpha)
    show_result(result, html, json)
