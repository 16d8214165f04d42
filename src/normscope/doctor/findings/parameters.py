"""Findings about parameters: not used, out of reach of gradients, all alike, of rank one, at a scale of their own."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ...core.finding import Finding, Severity, figure, figures, percent
from ...listening.calls import NORMALIZERS
from ...report.words import listed, pluralise
from ..checking.examined import Examined
from ..checking.loss_facts import is_fresh, looks_fresh
from ..checking.signal import RANDOM, DropoutCall, ParameterRow, Signal, find_discriminator_layers
from .depth import WEIGHTS, without_numbers
from .samples import input_ignored

STANDS_OUT = 18.0
"""A factor between the scale of one layer and that of the others; trained networks stay within 10."""
FAR_FROM_ONE = 30.0
"""The same for a layer that is alone, whose scale nobody can compare."""
LEAST_USUAL, MOST_USUAL = 0.3, 1.5
"""Root mean square times root of the width: torch's default gives 0.58, He's initialisation 1.4."""
RANK_ONE = 0.98
"""The share of squared weights along one direction; a random matrix of four rows has about 0.4."""
RECURRENT = ("lstm", "gru", "rnn")
MOST_GAIN = {"lstm": 4.0, "gru": 4.0, "rnn": 2.0}
LEAST_GAIN = 0.05
"""Root mean square times root of the width: torch's default gives 0.58, an orthogonal matrix 1; gates allow more."""
LEAST_STEP_FACTOR = 0.2
"""Of the gradient from a step to the one before: gates at their start keep half."""
MOST_GROWTH = 1e4
"""Of the state of ReLUs over a whole sequence."""
DECAYED = 1e-3
"""The same figure; no training but a weight decay makes a layer so small."""
LARGE_EMBEDDING = 30.0
"""Root mean square: torch starts at 1, transformers at 0.02."""
BRANCH = 50.0
"""A factor between a branch and what it is added to; fresh transformers stay within 10."""
STRONG_DROPOUT = 0.8
"""Beyond it; some published classifiers drop as much as this before their last layer."""
FEWEST_WEIGHTS = 16
"""Of one unit: the size of fewer says little."""
FEW_RANDOM = 3
"""Frozen random layers from which on a network of them is no map to random features."""
FEWEST_ROWS = 6
"""A matrix with fewer rows or columns has next to no rank to lose."""


def unused_parameters(examined: Examined) -> Iterator[Finding]:
    """Trainable parameters that the forward never reads."""
    parameters = _parameters(examined)
    used = {row.module for row in parameters if row.used}
    siblings = {without_numbers(path) for path in used}
    layers = () if examined.signal is None else examined.signal.layers
    for module, rows in _by_module([row for row in parameters if row.trainable and not row.used]):
        whole = module not in used and any(_is_matrix(row) for row in rows)
        drawn = examined.signal is not None and examined.signal.draws and without_numbers(module) in siblings
        ran = {row.shape[:1] for row in layers if without_numbers(row.path) == without_numbers(module)}
        chosen = (
            "expert" in module or drawn or len(ran) > 1
        )  # one of several that the samples, or random numbers, choose from
        yield Finding(
            code="unused-parameter",
            severity=Severity.WARNING if whole and not chosen else Severity.INFO,
            where=module or rows[0].name,
            seen=f"The forward never uses {listed([f'`{row.name}`' for row in rows])} "
            f"({pluralise(sum(math.prod(row.shape) for row in rows), 'value')}).",
            why="What is not used gets no gradient and never learns: either the layer was forgotten in `forward`, or "
            "it is not needed.",
            advice="Call it in `forward`, or remove it. If it is used only for some inputs, there is nothing to do.",
            numbers=figures(parameters=len(rows), size=sum(math.prod(row.shape) for row in rows)),
        )


def cut_gradient(examined: Examined) -> Iterator[Finding]:
    """Trainable parameters that the forward uses and that no gradient can reach."""
    signal = examined.signal
    if signal is None:
        return
    without_graph = signal.detached_at is not None and signal.gradient_of == RANDOM
    if not signal.backwards and not (without_graph and examined.mode == "train"):  # it is meant so in eval mode
        return
    learning = {row.module for row in signal.parameters if row.reached}  # a bias may drop out where its weight counts
    starved = set() if signal.steps is None else set(signal.steps.starved)
    cut = [row for row in signal.parameters if row.trainable and row.used and (not row.reached or row.name in starved)]
    cut = [row for row in cut if row.name not in signal.beside_loss]
    cut = [row for row in cut if row.module not in learning or not row.name.endswith("bias")]
    order = {row.path: number for number, row in enumerate(signal.rows)}
    names = {row.name: row.module or row.name for row in cut}
    for lost in signal.lost:
        modules = [names[name] for name in lost.names if name in names]
        if not modules:
            continue
        inside = any(_is_inside(path, lost.path) for path in modules)
        where = lost.path if inside else max(modules, key=lambda path: order.get(path, -1))
        yield Finding(
            code="unused-parameter",
            severity=Severity.WARNING  # in eval mode it may be read in training
            if examined.mode == "train" and not lost.offered
            else Severity.INFO,
            where=where,
            seen=f"`{where}` runs, and nothing reads what it returns."
            if inside
            else f"`{where}` runs, and nothing reads what `{lost.path}` makes of it.",
            why="What it computes is lost, and it never learns: the forward goes on with something else.",
            advice=f"Use the result of `{lost.path}` in `forward`, or remove it.",
            numbers={},
        )
    cut = [row for row in cut if not any(row.name in lost.names for lost in signal.lost)]
    if not cut:
        return
    modules = list(dict.fromkeys(row.module or row.name for row in cut))
    last = max(modules, key=lambda path: order.get(path, -1))
    share = len(cut) / sum(row.trainable for row in signal.parameters)
    # A lone optimizer is to train what it holds with this loss; of several each has a loss of its own.
    is_to_learn = (
        signal.steps is not None
        and signal.steps.optimizers == 1
        and any(r.name not in signal.steps.outside for r in cut)
    )
    if signal.discriminator and not is_to_learn:
        yield Finding(
            code="gradient-cut",
            severity=Severity.INFO,
            where=last,
            seen=f"No gradient reaches {pluralise(len(cut), 'trainable parameter')} of "
            f"{listed([f'`{path}`' for path in modules], most=3)}: `{signal.discriminator}` reads inputs of the "
            f"model, and beside them the values of `{last}`, cut off from autograd's graph.",
            why="In the step of a discriminator it is meant so: the generator learns in a step of its own.",
            advice=f"Nothing to do if another loss trains `{last}`; otherwise remove the detach() or torch.no_grad() "
            f"behind it.",
            numbers=figures(parameters=len(cut), share=share),
        )
        return
    yield Finding(
        code="gradient-cut",
        severity=Severity.WARNING,
        where=last,
        seen=f"No gradient can reach {pluralise(len(cut), 'trainable parameter')} of "
        f"{listed([f'`{path}`' for path in modules], most=3)}: autograd's graph ends behind `{last}`.",
        why="What no gradient reaches never learns, however long the training is.",
        advice=f"Remove what cuts it behind `{last}`: detach(), .data, .item(), torch.no_grad(), a tensor built anew "
        "from values; checkpoint(..., use_reentrant=True) of inputs without a gradient (use False); for argmax or "
        "rounding use a softmax or a straight-through estimator. If these layers are frozen on purpose, set "
        "requires_grad_(False).",
        numbers=figures(parameters=len(cut), share=share),
    )


KEEP_GRAPH = (
    "Remove .data, detach() and torch.no_grad() behind them, and draw with rsample() in place of sample(), or as mean "
    "+ deviation * torch.randn_like(deviation), so that the draw stays in the graph"
)


def lost_draws(examined: Examined) -> Iterator[Finding]:
    """Layers whose values go on without their graph, by `.data`, a draw or a detach, into layers that learn."""
    signal = examined.signal
    if signal is None or signal.gradient_of == RANDOM or examined.mode != "train":
        return
    learning = {row.module for row in signal.parameters if row.trainable}
    cuts = [cut for cut in signal.cut_values if cut.path in learning and cut.reader in learning]
    untaught = () if signal.divergence is None else signal.divergence.untaught
    paths = list(dict.fromkeys(cut.path for cut in cuts)) or untaught[-1:]
    if not paths or (not cuts and any(input_ignored(examined))):
        return  # a code that no output depends on has no gradient to lose
    yield Finding(
        code="gradient-cut",
        severity=Severity.WARNING,
        where=paths[0],
        seen=f"What {listed([f'`{path}`' for path in paths], most=3)} made goes on to `{cuts[0].reader}` without its "
        "graph: no gradient comes back from there."
        if cuts
        else f"All of the gradient of {listed([f'`{path}`' for path in untaught], most=3)} comes from one part of the "
        "loss, the divergence from a standard normal code: none comes back from the error of the output.",
        why="What is read of these values does not teach the layers that make them: other terms of the loss alone do.",
        advice=f"{KEEP_GRAPH}; of draws of zeros and ones use the straight-through estimator.",
        numbers=figures(layers=len(paths) if cuts else len(untaught)),
    )


def unregistered_weights(examined: Examined) -> Iterator[Finding]:
    """Weights that the forward uses and that are no parameters of the model."""
    signal = examined.signal
    if signal is None or not signal.unregistered:
        return
    where, steps = signal.unregistered[0], signal.steps
    held = steps is not None and steps.foreign > 0
    named = listed([f"`{name}`" for name in signal.unregistered], most=3)
    yield Finding(
        code="frozen-layer",
        severity=Severity.INFO
        if held
        else Severity.WARNING
        if any(row.trainable for row in signal.parameters)
        else Severity.ERROR,
        where=where,
        seen=f"{named} {'hold' if len(signal.unregistered) > 1 else 'holds'} weights that the forward uses and that "
        "are no parameters of the model.",
        why="model.parameters() does not list them: an optimizer built over it never trains them, and state_dict() and "
        "to(device) leave them out.",
        advice="Keep layers in nn.ModuleList or nn.ModuleDict in place of a list or dict, and single tensors as "
        "nn.Parameter(tensor, requires_grad=True), before the optimizer is built. Layers that are made in `forward` "
        "are drawn anew at each call: make them in `__init__`.",
        numbers=figures(attributes=len(signal.unregistered)),
    )


def frozen_layer(examined: Examined) -> Iterator[Finding]:
    """Layers that do not train between layers that do."""
    signal = examined.signal
    if signal is None:
        return
    paths = list(dict.fromkeys(row.path for row in signal.layers))
    weights = [row for row in signal.parameters if _is_matrix(row)]
    trains = {
        path: [row.trainable or path in signal.replaced for row in weights if row.module == path] for path in paths
    }
    held = [path for path in paths if trains[path]]
    frozen = [
        path
        for number, path in enumerate(held)
        if not any(trains[path]) and any(any(trains[before]) for before in held[:number])
    ]
    modules = dict(examined.model.named_modules())
    if held and not any(row.trainable for row in signal.parameters) and _is_to_learn(examined):
        yield Finding(
            code="frozen-layer",
            severity=Severity.ERROR,
            where=held[-1],
            seen="No parameter of the model trains: requires_grad is False for all of them.",
            why="No step changes anything, however long the training is.",
            advice=f"Call requires_grad_(True) on the layers that are to learn, such as `{held[-1]}`, after the others "
            "were frozen.",
            numbers=figures(layers=len(held)),
        )
    followed = {row.path for row in signal.layers if row.log10_gradient is not None or row.kind == "embedding"}
    random = choose_unmeant(
        {
            path: modules[path]
            for path in held
            if path in followed and not any(trains[path]) and looks_fresh(modules[path])
        }
    )
    if find_discriminator_layers(signal) and (signal.loss is None or signal.loss.is_constant):
        random = []  # a generator, and the discriminator that judges it
    if any(not any(trains[path]) and not looks_fresh(modules[path]) for path in held):
        random = []  # a trained network that is being adapted
    if random and any(row.trainable for row in signal.parameters):
        yield describe_frozen_random(random)
    elif frozen and any(any(trains[path]) for path in held):
        yield describe_frozen_behind(frozen, len(held))


def describe_frozen_random(paths: Sequence[str]) -> Finding:
    """Return the finding of layers that are frozen with the weights of a random start, hardly on purpose."""
    return Finding(
        code="frozen-layer",
        severity=Severity.WARNING,
        where=paths[0],
        seen=f"{listed([f'`{path}`' for path in paths], most=3)} {'does' if len(paths) == 1 else 'do'} not train "
        "(requires_grad is False), and the weights are still those of a random start.",
        why="A layer that is frozen before it was trained hands on random features, and the others have to make do "
        "with them.",
        advice="Call requires_grad_(True) on it and give it to the optimizer, or load the trained weights that were to "
        "be frozen.",
        numbers=figures(layers=len(paths)),
    )


def describe_frozen_behind(paths: Sequence[str], layers: int) -> Finding:
    """Return the note of layers that are frozen behind others that train, of so many: a fixed classifier, perhaps."""
    return Finding(
        code="frozen-layer",
        severity=Severity.INFO,
        where=paths[0],
        seen=f"{listed([f'`{path}`' for path in paths], most=3)} {'does' if len(paths) == 1 else 'do'} not train "
        f"(requires_grad is False), while layers before do: {len(paths):,} of {layers:,} weight layers.",
        why="Fine-tuning freezes the first layers; a frozen layer behind layers that train is rarely meant.",
        advice="If it is frozen on purpose, there is nothing to do; otherwise call requires_grad_(True) on it.",
        numbers=figures(layers=len(paths)),
    )


def choose_unmeant(random: Mapping[str, nn.Module]) -> list[str]:
    """Return the frozen random layers, by path, that are hardly meant to be so.

    Random features and fixed classifiers are frozen maps without a bias, and there are one or two of them.
    """
    return [path for path, module in random.items() if len(random) >= FEW_RANDOM or _is_hardly_meant(module)]


def _is_to_learn(examined: Examined) -> bool:
    """Whether a model is about to be trained: there is a loss, and an optimizer or train mode."""
    signal = examined.signal
    handed = signal is not None and signal.steps is not None and signal.steps.optimizer is not None
    return signal is not None and signal.loss_value is not None and (handed or examined.mode == "train")


def _is_hardly_meant(module: nn.Module) -> bool:
    """Whether a frozen random layer is hardly meant, whatever others there are: it has a bias, or a state."""
    return isinstance(module, nn.Embedding | nn.RNNBase) or module._parameters.get("bias") is not None


def equal_units(examined: Examined) -> Iterator[Finding]:
    """Weight layers whose units are all the same."""
    alike = [
        row for row in _parameters(examined) if _is_matrix(row) and row.used and row.row_deviation == 0.0 and row.least
    ]
    for row in alike:
        one = row.least == row.greatest
        yield Finding(
            code="equal-units",
            severity=Severity.WARNING,
            where=row.module or row.name,
            seen=f"All {row.shape[0]:,} units of `{row.name}` have the same weights"
            + (f": every entry is {figure(row.least)}." if one else "."),
            why="Units that start alike get the same gradient and stay alike: the layer computes one feature, however "
            "wide it is.",
            advice="Initialise the weights at random: torch.nn.init.kaiming_normal_(weight) or "
            "xavier_uniform_(weight).",
            numbers=figures(units=row.shape[0], value=row.least if one else None),
        )


def zero_weights(examined: Examined) -> Iterator[Finding]:
    """Weight layers that are zero as a whole: a start, unless the network depends on its input through them alone."""
    signal = examined.signal
    if signal is None:
        return
    ranks = _ranks(signal)
    layers = sorted((row for row in signal.parameters if len(row.shape) > 1 and row.used), key=lambda r: ranks[r.name])
    for number, row in enumerate(layers):
        if not row.is_zero:
            continue
        before = [other.gradient for other in layers[:number] if other.trainable]
        behind = any(not other.is_zero for other in layers[number + 1 :])
        closed = (bool(before) and not any(before) and behind) or not is_fresh(examined.model)
        later = any(other.is_zero for other in layers[number + 1 :])
        opening = any(other.is_zero and other.gradient for other in _factors(signal.parameters, after=row))
        closed = closed and not later and not (signal.layers and signal.layers[-1].varies)
        other = any(own.is_zero and own is not row and own.module == row.module for own in layers)
        stuck = row.trainable and row.gradient == 0.0 and (other or is_fresh(examined.model)) and not closed
        stuck = stuck and not opening
        frozen = not row.trainable and any(other.trainable for other in signal.parameters)
        closed = closed or stuck or frozen
        nothing_learns = closed and number == 0 and len(layers) > 1 and all(other.is_zero for other in layers)
        where = row.module or row.name
        yield Finding(
            code="zero-weights",
            severity=Severity.ERROR if nothing_learns else Severity.WARNING if closed else Severity.INFO,
            where=where,
            seen=f"All {math.prod(row.shape):,} weights of `{where}` are exactly zero"
            + (
                ", and they do not train (requires_grad is False)."
                if frozen
                else ", and so are those of all other layers, and their gradients."
                if nothing_learns
                else ", and so is their gradient."
                if stuck
                else ", and no gradient gets past it to the layers before." * closed
            )
            + ("" if closed else "."),
            why="What it is given has no influence on the output, and no training changes that."
            if frozen
            else "It is zero because another factor is zero as well: neither of them can open."
            if stuck
            else "The output does not depend on the input, and the layers before do not learn."
            if closed
            else "This is how residual branches and last layers are often initialised: the branch adds nothing at "
            "first and opens with the first steps.",
            advice="Initialise it at random: torch.nn.init.kaiming_normal_(weight)"
            + (", and call requires_grad_(True) on it." if frozen else ".")
            if closed
            else "Nothing to do for a fresh model. After training it means that the layer got no gradient.",
            numbers={},
        )


def _ranks(signal: Signal) -> dict[str, int]:
    """Return when each parameter is used first: by the rows of its module, or else after the one declared before."""
    first: dict[str, int] = {}
    for number, row in enumerate(signal.rows):
        first.setdefault(row.path, number)
    ranks: dict[str, int] = {}
    last = 0
    for parameter in signal.parameters:
        last = ranks[parameter.name] = first.get(parameter.module, last)
    return ranks


def _factors(rows: Sequence[ParameterRow], *, after: ParameterRow) -> Iterator[ParameterRow]:
    """Yield the parameters behind one that are multiplied with what comes before: all but biases."""
    return (
        row for row in rows[rows.index(after) + 1 :] if row.used and row.trainable and not row.name.endswith("bias")
    )


def decayed_weights(examined: Examined) -> Iterator[Finding]:
    """Weights of a trained network that are next to nothing, though no normalizer undoes their scale.

    A fresh network has biases of zero, or of the size of torch's default: tiny ones are those of a trained one.
    """
    signal = examined.signal
    if signal is None:
        return
    normalized = _normalized(signal)
    biases = {row.module: row.root_mean_square for row in signal.parameters if row.name.endswith(".bias")}
    trained = not is_fresh(examined.model) or any(0.0 < size < DECAYED for size in biases.values())
    ran = {row.path for row in signal.layers if row.kind in WEIGHTS and trained}
    sizes = {
        row.name: (row.module, row.root_mean_square * math.sqrt(math.prod(row.shape[1:])))
        for row in signal.parameters
        if _is_matrix(row) and row.used and row.module in ran and row.module not in normalized and not row.is_zero
    }
    small = [(size, module) for module, size in sizes.values() if size < DECAYED]
    if small:
        size, where = min(small)
        yield Finding(
            code="zero-weights",
            severity=Severity.WARNING,
            where=where,
            seen=f"The weights of {listed([f'`{module}`' for _, module in small], most=3)} are next to nothing: those "
            f"of `{where}` multiply values by about {figure(size)}.",
            why="What they hand on hardly depends on the input, and the layers before get no gradient.",
            advice="Lower the weight decay, which most likely took them away, and restore the weights of an earlier "
            "checkpoint or initialise them again.",
            numbers=figures(gain=size),
        )


def _normalized(signal: Signal) -> set[str]:
    """Return the layers that a normalizer reads, which undoes their scale."""
    return {
        signal.rows[feed].path
        for row, feeds in zip(signal.rows, signal.feeds, strict=False)
        for feed in feeds
        if row.kind in NORMALIZERS
    }


def rank_one(examined: Examined) -> Iterator[Finding]:
    """Weight matrices that hand on a single direction of their input."""
    for row in _parameters(examined):
        share = row.leading_share
        if not row.used or share is None or share < RANK_ONE or not row.row_deviation or _least_side(row) < FEWEST_ROWS:
            continue
        yield Finding(
            code="rank-one-weights",
            severity=Severity.WARNING,
            where=row.module or row.name,
            seen=f"`{row.name}`, {' x '.join(map(str, row.shape))}, is nearly of rank one: one direction carries "
            f"{percent(share)} of its squared weights.",
            why="The layer hands on one number per input: everything else about the input is lost behind it.",
            advice="Initialise the weights again at random (torch.nn.init.kaiming_normal_ or orthogonal_); after "
            "training, lower the learning rate or the weight decay that made them collapse.",
            numbers=figures(share=share),
        )


def scale_stands_out(examined: Examined) -> Iterator[Finding]:
    """A weight layer whose weights are far larger or smaller than those of the other layers, for its width."""
    signal = examined.signal
    if signal is None:
        return
    ran = {row.path for row in signal.layers if row.kind in (*WEIGHTS, *RECURRENT)}
    layers = [
        row
        for row in signal.parameters
        if len(row.shape) > 1 and row.used and row.module in ran
        if _is_matrix(row) or math.prod(row.shape) >= FEWEST_WEIGHTS
    ]
    sizes = {row.name: row.root_mean_square * math.sqrt(math.prod(row.shape[1:])) for row in layers}
    if not sizes:
        return
    usual, ends = median(sizes.values()), _last_layers(signal)
    if len(sizes) < 3:
        usual = min(max(min(sizes.values()), LEAST_USUAL), MOST_USUAL) if len(sizes) > 1 else 1.0
    most = STANDS_OUT if len(sizes) > 1 else FAR_FROM_ONE
    fresh = is_fresh(examined.model)
    normalized = _normalized(signal)
    for row in layers:
        if not sizes[row.name] or not usual:
            continue
        factor = sizes[row.name] / usual
        harmless = factor < 1.0 and ((fresh and row.module in ends) or row.module in normalized)
        if most > factor > 1.0 / most or harmless:
            continue  # a small last layer is a common start, and a normalizer undoes a small scale
        yield Finding(
            code="layer-scale",
            severity=Severity.WARNING,
            where=row.module or row.name,
            seen=f"The weights of `{row.name}` are {figure(factor)} times as large as those of the other layers, for "
            f"their width (root mean square {figure(row.root_mean_square)}).",
            why="One layer at another scale makes all values and gradients behind and before it too large or too small "
            "for the learning rate of the others.",
            advice="Initialise this layer as the others, torch.nn.init.kaiming_normal_(weight), or find what scaled "
            "it: a factor in its initialisation, a wrong fan, a unit of measurement.",
            numbers=figures(factor=factor, root_mean_square=row.root_mean_square),
        )


def _last_layers(signal: Signal) -> set[str]:
    """Return the modules with no weight layer, recurrence or normalizer behind them."""
    read: set[int] = set()
    for number, feeds in reversed(list(enumerate(signal.feeds))):
        if number in read or signal.rows[number].kind in (*WEIGHTS, *RECURRENT, *NORMALIZERS):
            read.update(feeds)
    return {row.path for number, row in enumerate(signal.rows) if number not in read}


def embedding_scale(examined: Examined) -> Iterator[Finding]:
    """Embeddings far larger than networks start with, or than another embedding that they are added to."""
    signal = examined.signal
    if signal is None:
        return
    yield from _large_tables(signal)
    sizes = {number: row.root_mean_square for number, row in enumerate(signal.rows) if row.kind == "embedding"}
    pairs = [
        (large, small)
        for feeds in signal.feeds
        for large in feeds
        for small in feeds
        if (sizes.get(large) or 0.0) > STANDS_OUT * (sizes.get(small) or math.inf)
    ]
    for number, size in sizes.items():
        beside = next((signal.rows[small].path for large, small in pairs if large == number), None)
        if beside is None and not (size or 0.0) > LARGE_EMBEDDING:
            continue
        where = signal.rows[number].path
        yield Finding(
            code="layer-scale",
            severity=Severity.WARNING,
            where=where,
            seen=f"The vectors of the embedding `{where}` have entries of size {figure(size or 0.0)}"
            + (f", far beyond those of `{beside}`, which they are added to." if beside else "."),
            why="What is so much larger than the rest decides everything behind it: attention looks at one place, "
            "normalizers leave nothing of the other summand, and gradients to it are tiny.",
            advice="Initialise this embedding as the others, torch.nn.init.normal_(weight, std=0.02), or rescale it: "
            "divide its weights by this size.",
            numbers=figures(root_mean_square=size),
        )


def _large_tables(signal: Signal) -> Iterator[Finding]:
    """Parameters that are added or looked up as they are, such as positions and tokens, and that are far too large."""
    layers = {row.path for row in signal.layers if row.kind in (*WEIGHTS, *RECURRENT, "attention", "embedding")}
    for row in signal.parameters:
        large = row.root_mean_square > LARGE_EMBEDDING and len(row.shape) > 1 and math.prod(row.shape) >= FEWEST_WEIGHTS
        if not large or not row.used or row.module in layers:
            continue
        yield Finding(
            code="layer-scale",
            severity=Severity.WARNING,
            where=row.name,
            seen=f"The values of `{row.name}` have a size of {figure(row.root_mean_square)}.",
            why="What is so much larger than the rest decides everything behind it, and gradients to it are tiny.",
            advice="Initialise it, torch.nn.init.normal_(weight, std=0.02): torch.empty holds what lay in memory; or "
            "rescale it: divide it by this size.",
            numbers=figures(root_mean_square=row.root_mean_square),
        )


def branch_dominates(examined: Examined) -> Iterator[Finding]:
    """A block whose branch is far larger than what it is added to."""
    signal = examined.signal
    if signal is None:
        return
    for place, seen in examined.normalizers():
        before = [
            feed
            for row, feeds in zip(signal.rows, signal.feeds, strict=False)
            if row.path == place.path
            for feed in feeds
        ]
        size = math.hypot(*(signal.rows[feed].root_mean_square or 0.0 for feed in before))
        if (
            seen.uses_running
            or not size
            or len(set(before)) < 2
            or not seen.log10_median / 2.0 > math.log10(BRANCH * size)
        ):
            continue
        yield _multiplied_branch(signal, place.path, before, 10.0 ** (seen.log10_median / 2.0) / size)
        return
    for number, (row, feeds) in enumerate(zip(signal.rows, signal.feeds, strict=False)):
        summands = math.hypot(*(signal.rows[feed].root_mean_square or 0.0 for feed in feeds))
        mixes = row.kind == "attention" or (row.kind == "relu" and len(feeds) > 1)
        if mixes and (row.root_mean_square or 0.0) > BRANCH * summands > 0.0:
            yield _multiplied_branch(signal, row.path, feeds, (row.root_mean_square or 0.0) / summands)
            return
        normalizer = row.kind in NORMALIZERS
        if not (row.kind[:1].isupper() or normalizer) or len(feeds) < 2:
            continue
        sizes = [(signal.rows[feed].root_mean_square or 0.0, feed) for feed in feeds]
        (small, stream), (large, branch) = min(sizes), max(sizes)
        if not stream < branch < number or not 0.0 < small * BRANCH < large:
            continue
        if not normalizer and not (row.root_mean_square or 0.0) > 0.5 * large:
            continue
        yield Finding(
            code="branch-dominates",
            severity=Severity.WARNING,
            where=row.path,
            seen=f"In `{row.path}` the branch through `{signal.rows[branch].path}` (size {figure(large)}) is "
            f"{figure(large / small)} times as large as what it is added to (`{signal.rows[stream].path}`, "
            f"{figure(small)}).",
            why="The sum is the branch: what came before is lost beside it, and the skip connection carries nothing.",
            advice="Scale the branch: a factor of 1/sqrt(number of blocks) or a learned one that starts small, a "
            "smaller initialisation of its last layer, or a normalizer before it.",
            numbers=figures(ratio=large / small),
        )
        return


def _multiplied_branch(signal: Signal, path: str, summands: Sequence[int], factor: float) -> Finding:
    """A sum that is far larger than what is added up, so that a factor multiplies one of the summands."""
    rows = [signal.rows[number] for number in summands]
    embedding = rows[0].path if all(row.kind == "embedding" for row in rows) else None
    return Finding(
        code="branch-dominates",
        severity=Severity.WARNING,
        where=embedding or path or rows[-1].path,
        seen=f"What {f'`{path}`' if path else 'the model'} reads is {figure(factor)} times as large as what the layers "
        f"before it hand on ({listed([f'`{row.path}`' for row in rows], most=3)}): a factor multiplies it on the way.",
        why="A branch that is multiplied so drowns what it is added to, and the skip connection carries nothing.",
        advice="Take out the factor, or scale the branch by 1/sqrt(number of blocks) instead.",
        numbers=figures(ratio=factor),
    )


def strong_dropout(examined: Examined) -> Iterator[Finding]:
    """Dropout that takes nearly everything away, or drops in eval mode too."""
    for call in () if examined.signal is None else examined.signal.dropouts:
        where = f"`{call.path}`" if call.path else "the model"
        if call.on_output:
            if examined.signal is not None and examined.signal.gradient_of != RANDOM:
                yield _output_dropout(call)
        elif call.in_eval or call.rate > STRONG_DROPOUT:
            yield Finding(
                code="strong-dropout",
                severity=Severity.WARNING,
                where=call.path,
                seen=f"A dropout in the forward of {where} drops {percent(call.rate)} of the values"
                + (" in eval mode too." if call.in_eval else "."),
                why="What a model says in use is then drawn at random."
                if call.in_eval
                else "What is left is noise: each step trains on a few of the units.",
                advice="Pass training=self.training to F.dropout, so that model.eval() switches it off, or use "
                "nn.Dropout."
                if call.in_eval
                else "Lower the dropout to 0.5 or less.",
                numbers=figures(rate=call.rate),
            )
    for path, module in examined.model.named_modules():
        inside = isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.RNNBase) and module.num_layers > 1)
        rate = vars(module).get("p") if isinstance(module, _DropoutNd) else vars(module).get("dropout") if inside else 0
        if not isinstance(rate, int | float) or rate <= STRONG_DROPOUT:
            continue
        yield Finding(
            code="strong-dropout",
            severity=Severity.WARNING,
            where=path,
            seen=f"`{path}` drops {percent(rate)} of the values in training.",
            why="What is left is noise: each step trains on a few of the units, and their values are multiplied by "
            f"{figure(1.0 / (1.0 - rate)) if rate < 1.0 else 'infinity'}.",
            advice=f"Lower the dropout to 0.5 or less. p is the share that is dropped: to keep {percent(rate)}, set "
            f"p={1.0 - rate:.2g}.",
            numbers=figures(rate=rate),
        )


def _output_dropout(call: DropoutCall) -> Finding:
    """A dropout between the last layer and the loss."""
    return Finding(
        code="strong-dropout",
        severity=Severity.WARNING,
        where=call.path,
        seen=f"A dropout in {f'`{call.path}`' if call.path else 'the model'} sets {percent(call.rate)} of the outputs "
        "themselves to zero in training.",
        why="The loss then compares targets with zeros, and the scores of classes are taken away at random.",
        advice="Remove this dropout: the last one stands before the last layer, not after it.",
        numbers=figures(rate=call.rate),
    )


def gradient_not_finite(examined: Examined) -> Iterator[Finding]:
    """Parameters whose gradient is NaN or infinite though every value of the forward is finite."""
    signal = examined.signal
    if signal is None or examined.data.not_finite is not None:
        return
    broken = [row for row in signal.parameters if row.gradient == math.inf]
    values = (signal.loss_value, None if signal.loss is None else signal.loss.value)
    if not broken or any(value is not None and not math.isfinite(value) for value in values):
        return
    order = {row.path: number for number, row in enumerate(signal.rows)}
    last = max(broken, key=lambda row: order.get(row.module, -1))
    yield Finding(
        code="gradient-not-finite",
        severity=Severity.ERROR,
        where=last.module or last.name,
        seen=f"All values are finite, and the gradient of {pluralise(len(broken), 'parameter')} is NaN or infinite: "
        f"`{last.name}` is the one nearest to the output.",
        why="One step with such a gradient makes the weights NaN.",
        advice="Look behind this layer for a root or a norm of zero, 0/0 hidden by torch.where, or a power below 1: "
        "add a small eps inside the root (torch.sqrt(x + 1e-12)), or clamp before it.",
        numbers=figures(parameters=len(broken)),
    )


def recurrent_scale(examined: Examined) -> Iterator[Finding]:
    """Recurrent weights that multiply the state by far more, or far less, than 1 at every step."""
    signal = examined.signal
    if signal is None:
        return
    rows = {row.path: row for row in signal.layers if row.kind in RECURRENT}
    yield from _forgotten_states(signal)
    yield from _steps_of_sequences(signal, set(rows), fresh=is_fresh(examined.model))
    for row in signal.parameters:
        layer = rows.get(row.module)
        if layer is None or "weight_hh" not in row.name:
            continue
        gain, most = row.root_mean_square * math.sqrt(row.shape[-1]), MOST_GAIN[layer.kind]
        module = examined.model.get_submodule(row.module)
        if getattr(module, "mode", "") == "RNN_RELU":  # nothing limits its values
            most = MOST_GROWTH ** (1.0 / layer.shape[-2 if getattr(module, "batch_first", False) else 0])
        if LEAST_GAIN <= gain <= most:
            continue
        grows = gain > 1.0
        yield Finding(
            code="recurrent-scale",
            severity=Severity.WARNING,
            where=row.module,
            seen=f"The recurrent weights `{row.name}` multiply the state by about {figure(gain)} at every step.",
            why="Over a sequence that is a power: values and gradients explode, or saturate the units."
            if grows
            else "Over a sequence that is a power: the state forgets within a step or two, and gradients vanish.",
            advice="Initialise the recurrent weights orthogonally, torch.nn.init.orthogonal_(weight_hh), "
            + ("clip gradients, and use LSTM or GRU for long sequences." if grows else "with gain 1."),
            numbers=figures(gain=gain),
        )


def _forgotten_states(signal: Signal) -> Iterator[Finding]:
    """Recurrent weights without a gradient in a layer that runs several times: each time from a state of zero."""
    runs = Counter(row.path for row in signal.layers)
    learning = {row.module for row in signal.parameters if "weight_ih" in row.name and row.gradient}
    for row in signal.parameters:
        if "weight_hh" in row.name and row.gradient == 0.0 and row.module in learning and runs[row.module] > 1:
            yield Finding(
                code="recurrent-scale",
                severity=Severity.WARNING,
                where=row.module,
                seen=f"`{row.module}` runs {runs[row.module]:,} times, and the gradient of its recurrent weights "
                f"`{row.name}` is exactly zero.",
                why="Each of its steps begins with a state of zero: nothing is remembered, and these weights never "
                "learn.",
                advice=f"Pass the state on from step to step: state = {row.module}(x, state).",
                numbers=figures(runs=runs[row.module]),
            )


def _is_inside(module: str, path: str) -> bool:
    """Whether a module is the one at a path, or a part of it."""
    return module == path or module.startswith(f"{path}.")


def _steps_of_sequences(signal: Signal, layers: set[str], *, fresh: bool) -> Iterator[Finding]:
    """Loops over the steps of a sequence through which gradients grow or fade, as the gradients of the steps show."""
    for row in signal.rows:
        name, factor = row.recurrence or ("", 1.0)
        steps = row.shape[1] if len(row.shape) > 1 else 0
        grows = factor > 1.0
        if name in layers and (grows or not fresh):
            continue  # their weights tell, and a trained layer may have learned to forget
        if not (factor < LEAST_STEP_FACTOR or steps * math.log(factor) > math.log(MOST_GROWTH)):
            continue
        yield Finding(
            code="recurrent-scale",
            severity=Severity.WARNING,
            where=name,
            seen=f"At each step that it goes back through the {steps:,} steps of `{row.path}`, the gradient is "
            f"multiplied by about {figure(factor)}; `{name}` is used at each of them.",
            why="Over a sequence that is a power: values and gradients explode, or saturate the units."
            if grows
            else "Over a sequence that is a power: the state forgets within a step or two, and gradients vanish.",
            advice="Initialise what multiplies the state so that a step keeps its size (a spectral radius of 1, a "
            "decay of 0.9 to 0.999; the bias of an LSTM's forget gate at 1), "
            + ("clip gradients, or use LSTM or GRU." if grows else "or use LSTM or GRU."),
            numbers=figures(gain=factor),
        )


def _parameters(examined: Examined) -> Sequence[ParameterRow]:
    return () if examined.signal is None else examined.signal.parameters


def _is_matrix(row: ParameterRow) -> bool:
    return len(row.shape) > 1 and _least_side(row) > 1


def _least_side(row: ParameterRow) -> int:
    return min(row.shape[0], math.prod(row.shape[1:]))


def _by_module(rows: Sequence[ParameterRow]) -> Iterator[tuple[str, list[ParameterRow]]]:
    for module, members in itertools.groupby(sorted(rows, key=lambda row: row.module), key=lambda row: row.module):
        yield module, list(members)
