"""Parameters that nothing trains: frozen, unknown to the model or the optimizer, or with a rate of next to nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...core.finding import Finding, Severity, figure, figures
from ...report.words import listed, pluralise
from ..facts.examined import Examined
from ..facts.freshness import choose_unmeant, has_new_gains, looks_drawn, looks_fresh
from ..facts.pass_facts import find_discriminator_layers
from ..monitor.history import History
from ..monitor.parameter_state import FAINT_ENTRIES, SLOW_GROUP_SHARE
from .check_readings import is_matrix, step_facts_of
from .run_readings import find_lasting, name_parameters
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "not-in-optimizer": FindingWords("the optimizer does not hold {where}"),
    "frozen-layer": FindingWords("{where} does not train"),
    "not-trained": FindingWords("no optimizer trains {where}", "no optimizer trains {count} layers"),
}


def check_unregistered_weights(examined: Examined) -> Iterator[Finding]:
    """Weights that the forward uses and that are no parameters of the model."""
    signal = examined.signal
    if signal is None or not signal.weights.unregistered:
        return
    where, steps = signal.weights.unregistered[0], signal.steps
    held = steps is not None and steps.foreign > 0
    named = listed([f"`{name}`" for name in signal.weights.unregistered], most=3)
    yield finding(
        "frozen-layer",
        where,
        f"{named} {'hold' if len(signal.weights.unregistered) > 1 else 'holds'} weights that the forward uses and that "
        "are no parameters of the model.",
        "model.parameters() does not list them: an optimizer built over it never trains them, and state_dict() and "
        "to(device) leave them out.",
        "Keep layers in nn.ModuleList or nn.ModuleDict in place of a list or dict, and single tensors as "
        "nn.Parameter(tensor, requires_grad=True), before the optimizer is built. Layers that are made in `forward` "
        "are drawn anew at each call: make them in `__init__`.",
        figures(attributes=len(signal.weights.unregistered)),
        severity=Severity.INFO
        if held
        else Severity.WARNING
        if any(row.trainable for row in signal.parameters)
        else Severity.ERROR,
    )


def check_frozen_layer(examined: Examined) -> Iterator[Finding]:
    """`frozen-layer` (error, warning, info): a model of which nothing trains, with a loss (error); weights that are no
    parameters of the model (error: it has no others); a layer that does not train though its weights are those of a
    random start (info: one that does not train behind layers that do); weights that are made anew inside of
    `forward`, or that belong to no module of the model (such as layers in a Python list)
    """
    signal = examined.signal
    if signal is None:
        return
    paths = list(dict.fromkeys(row.path for row in signal.layers))
    weights = [row for row in signal.parameters if is_matrix(row)]
    trains = {
        path: [row.trainable or path in signal.weights.replaced for row in weights if row.module == path]
        for path in paths
    }
    held = [path for path in paths if trains[path]]
    frozen = [
        path
        for number, path in enumerate(held)
        if not any(trains[path]) and any(any(trains[before]) for before in held[:number])
    ]
    modules = dict(examined.model.named_modules())
    if held and not any(row.trainable for row in signal.parameters) and _is_to_learn(examined):
        yield finding(
            "frozen-layer",
            held[-1],
            "No parameter of the model trains: requires_grad is False for all of them.",
            "No step changes anything, however long the training is.",
            f"Call requires_grad_(True) on the layers that are to learn, such as `{held[-1]}`, after the others "
            "were frozen.",
            figures(layers=len(held)),
            severity=Severity.ERROR,
        )
    followed = {row.path for row in signal.layers if row.log10_gradient is not None or row.kind == "embedding"}
    still = [path for path in held if not any(trains[path])]
    fresh = {path for path in still if looks_fresh(modules[path])}
    if _has_new_gain_before(examined, still):
        fresh.update(path for path in still if looks_drawn(modules[path]))
    candidates = {path: modules[path] for path in still if path in followed and path in fresh}
    inner = [path for path in frozen if any(any(trains[behind]) for behind in held[held.index(path) :])]
    unmeant = choose_unmeant(candidates)
    random = [path for path in candidates if path in unmeant or path in inner]
    if find_discriminator_layers(signal) and (signal.loss is None or signal.loss.is_constant):
        random = []  # a generator, and the discriminator that judges it
    if not fresh.issuperset(still):
        random = []  # a trained network that is being adapted
    if random and any(row.trainable for row in signal.parameters):
        yield describe_frozen_random(random)
    elif frozen and any(any(trains[path]) for path in held):
        yield describe_frozen_behind(frozen, len(held))


def _has_new_gain_before(examined: Examined, frozen: Sequence[str]) -> bool:
    """Whether all normalizers of a model are new, and one of them runs before the last of the frozen layers.

    A trained network without normalizers may be frozen in front of a new part that has some.
    """
    signal = examined.signal
    if signal is None or not frozen or not has_new_gains(examined.model):
        return False
    paths = [row.path for row in signal.layers]
    gains = {row.module for row in signal.parameters if len(row.shape) == 1 and row.name.endswith("weight")}
    return not gains.isdisjoint(paths[: paths.index(frozen[-1])])


def describe_frozen_random(paths: Sequence[str]) -> Finding:
    """Return the finding of layers that are frozen with the weights of a random start, hardly on purpose."""
    return finding(
        "frozen-layer",
        paths[0],
        f"{listed([f'`{path}`' for path in paths], most=3)} {'does' if len(paths) == 1 else 'do'} not train "
        "(requires_grad is False), and the weights are still those of a random start.",
        "A layer that is frozen before it was trained hands on random features, and the others have to make do "
        "with them.",
        "Call requires_grad_(True) on it and give it to the optimizer, or load the trained weights that were to "
        "be frozen.",
        figures(layers=len(paths)),
    )


def describe_frozen_behind(paths: Sequence[str], layers: int) -> Finding:
    """Return the note of layers that are frozen behind others that train, of so many: a fixed classifier, perhaps."""
    return finding(
        "frozen-layer",
        paths[0],
        f"{listed([f'`{path}`' for path in paths], most=3)} {'does' if len(paths) == 1 else 'do'} not train "
        f"(requires_grad is False), while layers before do: {len(paths):,} of {layers:,} weight layers.",
        "Fine-tuning freezes the first layers; a frozen layer behind layers that train is rarely meant.",
        "If it is frozen on purpose, there is nothing to do; otherwise call requires_grad_(True) on it.",
        figures(layers=len(paths)),
        severity=Severity.INFO,
    )


def _is_to_learn(examined: Examined) -> bool:
    """Whether a model is about to be trained: there is a loss, and an optimizer or train mode."""
    signal = examined.signal
    handed = signal is not None and signal.steps is not None and signal.steps.optimizer is not None
    return signal is not None and signal.objective.loss_value is not None and (handed or examined.mode == "train")


FROZEN_FAINT = Symptom(
    code="frozen-layer",
    seen="The table of {where} is frozen (requires_grad=False), all of its entries are below {entry:figure}, and the "
    "loss is where it began.",
    why="Vectors that were trained are larger: these were drawn to be trained, and carry hardly any signal.",
    advice="Unfreeze it: nn.Embedding.from_pretrained(..., freeze=False), and give it to the optimizer; or load "
    "vectors that were trained.",
)
FAINT_STEPS = 100
"""Steps in which nothing is learned before a frozen table is said to be the cause."""


def watch_frozen_layer(history: History) -> Iterator[Finding]:
    """`frozen-layer` (warning, info): a layer behind trained ones, or all of two or more in front of them, requires no
    gradient and has the random values of a new layer (info: of one or two without a bias, behind all trained ones: a
    fixed classifier, perhaps; in front they are random features, and nothing is said); or all layers do, where other
    parameters are trained; or a table of embeddings with entries below 0.03 is frozen, and after 100 steps nothing
    is learned
    """
    names = find_lasting(history, history.parameter_state.frozen)
    unmeant = [name for name in names if name in history.parameter_state.unmeant]
    if unmeant:
        yield replace(describe_frozen_random(unmeant), step=history.step)
    elif names:
        yield replace(describe_frozen_behind(names, len(history.of("weight"))), step=history.step)
    elif (table := history.parameter_state.faint) and history.step >= FAINT_STEPS and history.is_unlearned:
        yield FROZEN_FAINT.at(table, entry=FAINT_ENTRIES)


def check_wrong_parameters(examined: Examined) -> Iterator[Finding]:
    """`not-in-optimizer` (error, warning, info): with `optimizer=`: trainable parameters that a gradient of the loss
    reaches and it does not hold (error: it holds none; info: those of a discriminator behind a generator, as targets
    that are all alike show)
    """
    signal, steps = examined.signal, step_facts_of(examined)
    if signal is None or steps is None or steps.optimizer is None or not steps.outside:
        return
    trained = sum(parameter.requires_grad for parameter in examined.model.parameters())
    every = len(steps.outside) == trained
    learning = {row.name for row in signal.parameters if row.gradient is not None}
    outside = [name for name in steps.outside if every or name in learning]  # no step of this loss moves the others
    if not outside:
        return
    named = listed([f"`{name}`" for name in outside], most=3)
    layers = {row.module for row in signal.parameters if row.name in outside and len(row.shape) > 1}
    in_discriminator = (
        bool(layers)
        and layers <= find_discriminator_layers(signal)
        and (signal.loss is None or signal.loss.is_constant)
    )
    yield finding(
        "not-in-optimizer",
        outside[0],
        f"The optimizer ({steps.optimizer}) holds none of the model's trainable parameters"
        + (f", and {steps.foreign} of something else." if steps.foreign else ".")
        if every
        else f"{len(outside)} of {trained} trainable parameters are not in the optimizer: {named}.",
        "A parameter that no optimizer holds keeps its first values.",
        "Build the optimizer over model.parameters(), after the last layer was replaced or added and after the "
        "model was copied or loaded. If they are to stay as they are, freeze them with requires_grad_(False); if "
        "another optimizer trains them, there is nothing to do.",
        figures(outside=len(outside), foreign=steps.foreign),
        severity=Severity.ERROR if every else Severity.INFO if in_discriminator else Severity.WARNING,
    )


NOT_TRAINED = Symptom(
    code="not-trained",
    seen="For {steps} steps {names} got gradients, but did not change: it is in no optimizer.",
    why="These layers keep the values they were initialised with, and their gradients are taken for nothing.",
    advice="Pass the optimizer model.parameters(), also of layers that were added after it was made. Freeze what is "
    "not to be trained with requires_grad_(False).",
)


def watch_not_trained(history: History) -> Iterator[Finding]:
    """`not-trained` (warning): a parameter gets gradients in three records, is in no optimizer, and nobody changes
    it
    """
    names = find_lasting(history, history.parameter_state.unmoved)
    if names:
        yield name_parameters(NOT_TRAINED, history, names, names[0], history.parameter_state.unmoved[names[0]].step)


RESTING_WHY = "No step moves these parameters until their rate is larger."
RESTING_ADVICE = (
    "Nothing to do if a schedule raises it; otherwise set the rate of their parameter group. If they are to stay as "
    "they are, freeze them with requires_grad_(False), which spares their gradients."
)


def check_resting_group(examined: Examined) -> Iterator[Finding]:
    """A group of the optimizer whose learning rate is 0, while others have one."""
    steps = step_facts_of(examined)
    if steps is None or not steps.at_rest:
        return
    named = listed([f"`{name}`" for name in steps.at_rest], most=3)
    yield finding(
        "step-too-short",
        steps.at_rest[0].rpartition(".")[0],
        f"The learning rate of {named} is 0 in the optimizer ({steps.optimizer}), and {figure(steps.rate or 0.0)} "
        "elsewhere.",
        RESTING_WHY,
        RESTING_ADVICE,
        figures(at_rest=len(steps.at_rest), rate=steps.rate),
        severity=Severity.INFO,
    )


SLOW_GROUP = Symptom(
    code="weights-still",
    seen="The learning rate of {names} is less than {share:figure} of the largest one ({lr:figure}), for {steps} "
    "steps.",
    why="At a rate that is this much too low these layers hardly move: they keep the values they were initialised "
    "with.",
    advice="Raise the learning rate of their parameter group; look how rates are made from layer to layer. Freeze what "
    "is not to be trained with requires_grad_(False).",
)
RESTING_GROUP = replace(
    SLOW_GROUP,
    seen="The learning rate of {names} is 0, for {steps} steps, while the largest one is {lr:figure}.",
    why=RESTING_WHY,
    advice=RESTING_ADVICE,
    severity=Severity.INFO,
)


def watch_slow_groups(history: History) -> Iterator[Finding]:
    """Parameters whose group has no learning rate, or next to none, while others have one."""
    standing = history.parameter_state
    for alarm, since in ((SLOW_GROUP, standing.slow), (RESTING_GROUP, standing.resting)):
        names = find_lasting(history, since)
        if not names or (alarm is SLOW_GROUP and history.beats_constant):
            continue
        others = f" (and of {pluralise(len(names) - 1, 'other parameter')})" if len(names) > 1 else ""
        words = {"steps": history.step - since[names[0]].step, "names": f"`{names[0]}`{others}"}
        rate = max(history.records[-1].lr, default=math.nan)
        where = names[0].rpartition(".")[0]
        yield alarm.at(where, words, share=SLOW_GROUP_SHARE, lr=rate, parameters=len(names))
