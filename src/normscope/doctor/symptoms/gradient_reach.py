"""What no gradient reaches: parameters that are not used, cut off, or behind a layer that passes none."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from torch import nn

from ...core.finding import Finding, Severity, figure, figures
from ...core.untouched import names_in_code
from ...report.words import listed, pluralise
from ..facts.examined import Examined
from ..facts.forward_backward import NO_GRADIENT
from ..facts.freshness import is_fresh
from ..facts.objective import RANDOM
from ..facts.parameters import ParameterRow
from ..monitor.history import History
from ..monitor.series import PLAIN_STEPS
from .check_readings import LOSS, find_last_linear, is_matrix, parameters_of
from .gradient_depth import FADED_DECADES, decades_lost, deep_signal
from .graph_order import WEIGHT_KINDS, without_numbers
from .run_readings import PLAIN_RECORDS, find_lasting, name_parameters
from .samples import check_input_ignored
from .symptom import FindingWords, Symptom, finding

FINDING_WORDS = {
    "backward-raises": FindingWords("the backward raises an error at {where}"),
    "gradient-cut": FindingWords("no gradient can flow back past {where}"),
    "unused-parameter": FindingWords("the forward never uses {where}", "the forward never uses {count} layers"),
    "no-loss-gradient": FindingWords("the loss gives no gradient"),
    "no-gradient": FindingWords("no gradient gets past {where}", "no gradient gets past {count} layers"),
    "no-gradient-at-step": FindingWords("the optimizer steps without gradients"),
}


def check_backward_raises(examined: Examined) -> Iterator[Finding]:
    """`backward-raises` (error, info): a plain forward and backward raises, with the error, the operator and the line
    of code (info: in eval mode without a loss, where nobody may want a gradient)
    """
    signal = examined.signal
    if signal is None or signal.calls.raises is None:
        return
    where, error, line = signal.calls.raises
    trains = examined.mode == "train" or signal.objective.gradient_of != RANDOM
    in_backward = "The backward" if line else "The forward, while gradients are taken,"
    yield finding(
        "backward-raises",
        where,
        f"{in_backward} raises {error}" + (f", at the derivative of {line}." if line else "."),
        "Without a gradient the model cannot be trained, and nothing here could be said of its gradients.",
        "Mend that line: no in-place change (`+=`, `relu_()`) of what the derivative still needs, no `.numpy()` "
        "of a tensor that requires a gradient, and in an `autograd.Function` a `backward` that returns one gradient "
        "for each argument of `forward`.",
        severity=Severity.ERROR if trains else Severity.INFO,  # in eval mode nobody may want a gradient
    )


def check_unused_parameters(examined: Examined) -> Iterator[Finding]:
    """`unused-parameter` (warning, info): a layer that no method of its module names, or whose result nothing reads
    (info: a layer that code names which did not run, a single vector, a result that a module offers beside others, one
    of several experts, or of several blocks that random numbers choose from, attention to an encoder in a decoder that
    runs without one)
    """
    parameters = parameters_of(examined)
    used = {row.module for row in parameters if row.used}
    siblings = {without_numbers(path) for path in used}
    layers = () if examined.signal is None else examined.signal.layers
    for module, rows in _by_module([row for row in parameters if row.trainable and not row.used]):
        whole = module not in used and any(is_matrix(row) for row in rows)
        drawn = examined.signal is not None and examined.signal.calls.draws and without_numbers(module) in siblings
        ran = {row.shape[:1] for row in layers if without_numbers(row.path) == without_numbers(module)}
        chosen = (
            "expert" in module or drawn or len(ran) > 1
        )  # one of several that the samples, or random numbers, choose from
        chosen = chosen or _is_cross_attention(examined, module) or _is_called_somewhere(examined.model, module, used)
        yield finding(
            "unused-parameter",
            module or rows[0].name,
            f"The forward never uses {listed([f'`{row.name}`' for row in rows])} "
            f"({pluralise(sum(math.prod(row.shape) for row in rows), 'value')}).",
            "What is not used gets no gradient and never learns: either the layer was forgotten in `forward`, or "
            "it is not needed.",
            "Call it in `forward`, or remove it. If it is used only for some inputs, there is nothing to do.",
            figures(parameters=len(rows), size=sum(math.prod(row.shape) for row in rows)),
            severity=Severity.WARNING if whole and not chosen else Severity.INFO,
        )


DOES_NOT_RUN = re.compile("init|reset|repr|embeddings|tie|prune")
"""How methods are called that name layers and do not run them."""


def _is_called_somewhere(model: nn.Module, path: str, used: Collection[str]) -> bool:
    """Whether a method of the module that holds a layer names it, and may run it for other inputs or options.

    That a method names a list of layers says nothing of one of them, where others of the list run.
    """
    holder, owner, name, parts = model, type(model), "", path.split(".") if path else []
    for depth, part in enumerate(parts):
        if not isinstance(holder, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            owner, name = type(holder), part
        elif any(other.startswith(".".join(parts[:depth]) + ".") for other in used):
            return False
        holder = holder.get_submodule(part)
    own = {"forward", *dir(owner)} - (set(dir(nn.Module)) - {"forward"})
    methods = (inspect.getattr_static(owner, key, None) for key in own if not DOES_NOT_RUN.search(key))
    return any(name in _names_in(method) for method in methods)


def _names_in(method: Any) -> tuple[str, ...]:
    """Return the names of attributes that the code of a method reads, that of comprehensions inside of it included."""
    plain = type(method) in (FunctionType, staticmethod, classmethod)  # what else a class holds may raise
    code = getattr(inspect.unwrap(method), "__code__", None) if plain else None
    return () if code is None else names_in_code(code)[0]


CROSS_ATTENTION = re.compile(r"cross_?att|enc(oder)?_?(dec(oder)?_?)?att", re.IGNORECASE)
"""How modules that attend to what an encoder made are called."""
ENCODER_ARGUMENT = re.compile("encoder|memory|context|cross")


def _is_cross_attention(examined: Examined, path: str) -> bool:
    """Whether a module attends to an encoder that its block may do without, in a model in which none runs."""
    parts = path.split(".")
    place = next((k for k, part in enumerate(parts) if CROSS_ATTENTION.search(part)), None)
    rows = () if examined.signal is None else examined.signal.layers
    if place is None or any("encoder" in row.path.split(".") for row in rows):
        return False
    block = examined.model.get_submodule(".".join(parts[:place]))
    arguments = inspect.signature(block.forward).parameters.values()
    return any(a.default is None and ENCODER_ARGUMENT.search(a.name) for a in arguments)


def check_cut_gradient(examined: Examined) -> Iterator[Finding]:
    """`gradient-cut` (warning, info): trainable parameters that the forward uses and no gradient can reach (`detach`,
    `.data`, `no_grad`, `argmax`, a reentrant checkpoint), or most places of an input that the output depends on,
    behind a `detach`; values that go on to other layers by `.data` or a random draw (`sample()`); layers that make a
    drawn code and get no gradient but that of its divergence (info: values that a layer reads beside inputs, as a
    discriminator reads what a generator made, unless the one optimizer holds what made them)
    """
    signal = examined.signal
    if signal is None:
        return
    without_graph = signal.cuts.detached_at is not None and signal.objective.gradient_of == RANDOM
    if not signal.backwards and not (without_graph and examined.mode == "train"):  # it is meant so in eval mode
        return
    learning = {row.module for row in signal.parameters if row.reached}  # a bias may drop out where its weight counts
    starved = set() if signal.steps is None else set(signal.steps.starved)
    cut = [row for row in signal.parameters if row.trainable and row.used and (not row.reached or row.name in starved)]
    cut = [row for row in cut if row.name not in signal.weights.beside_loss]
    cut = [row for row in cut if row.module not in learning or not row.name.endswith("bias")]
    order = {row.path: number for number, row in enumerate(signal.rows)}
    names = {row.name: row.module or row.name for row in cut}
    for lost in signal.cuts.lost:
        modules = [names[name] for name in lost.names if name in names]
        if not modules:
            continue
        inside = any(_is_inside(path, lost.path) for path in modules)
        where = lost.path if inside else max(modules, key=lambda path: order.get(path, -1))
        yield finding(
            "unused-parameter",
            where,
            f"`{where}` runs, and nothing reads what it returns."
            if inside
            else f"`{where}` runs, and nothing reads what `{lost.path}` makes of it.",
            "What it computes is lost, and it never learns: the forward goes on with something else.",
            f"Use the result of `{lost.path}` in `forward`, or remove it.",
            severity=Severity.WARNING  # in eval mode it may be read in training
            if examined.mode == "train" and not lost.offered
            else Severity.INFO,
        )
    cut = [row for row in cut if not any(row.name in lost.names for lost in signal.cuts.lost)]
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
    if signal.cuts.discriminator and not is_to_learn:
        yield finding(
            "gradient-cut",
            last,
            f"No gradient reaches {pluralise(len(cut), 'trainable parameter')} of "
            f"{listed([f'`{path}`' for path in modules], most=3)}: `{signal.cuts.discriminator}` reads inputs of the "
            f"model, and beside them the values of `{last}`, cut off from autograd's graph.",
            "In the step of a discriminator it is meant so: the generator learns in a step of its own.",
            f"Nothing to do if another loss trains `{last}`; otherwise remove the detach() or torch.no_grad() "
            f"behind it.",
            figures(parameters=len(cut), share=share),
            severity=Severity.INFO,
        )
        return
    yield finding(
        "gradient-cut",
        last,
        f"No gradient can reach {pluralise(len(cut), 'trainable parameter')} of "
        f"{listed([f'`{path}`' for path in modules], most=3)}: autograd's graph ends behind `{last}`.",
        "What no gradient reaches never learns, however long the training is.",
        f"Remove what cuts it behind `{last}`: detach(), .data, .item(), torch.no_grad(), a tensor built anew "
        "from values; checkpoint(..., use_reentrant=True) of inputs without a gradient (use False); for argmax or "
        "rounding use a softmax or a straight-through estimator. If these layers are frozen on purpose, set "
        "requires_grad_(False).",
        figures(parameters=len(cut), share=share),
    )


CODE_CUT = Symptom(
    code="gradient-cut",
    seen="The gradient of {layers} comes from the divergence of the code from a standard normal one, and from nothing "
    "else in the loss: none comes back from the error of the output.",
    why="The divergence alone teaches these layers, and it is least where the code says nothing of the input, whatever "
    "its weight is.",
    advice="Remove .data, detach() and torch.no_grad() behind them, and draw with rsample() in place of sample(), or "
    "as mean + deviation * torch.randn_like(deviation), so that the draw stays in the graph; of draws of zeros and "
    "ones use the straight-through estimator.",
)
VALUES_CUT = replace(
    CODE_CUT,
    seen="What {layers} made goes on to `{reader}` without its graph: no gradient comes back from there.",
    why="What is read of these values does not teach the layers that make them: other terms of the loss alone do.",
)


def check_lost_draws(examined: Examined) -> Iterator[Finding]:
    """Layers whose values go on without their graph, by `.data`, a draw or a detach, into layers that learn."""
    signal = examined.signal
    if signal is None or signal.objective.gradient_of == RANDOM or examined.mode != "train":
        return
    learning = {row.module for row in signal.parameters if row.trainable}
    cuts = [cut for cut in signal.cuts.cut_values if cut.path in learning and cut.reader in learning]
    untaught = () if signal.divergence is None else signal.divergence.untaught
    paths = list(dict.fromkeys(cut.path for cut in cuts)) or untaught[-1:]
    if not paths or (not cuts and any(check_input_ignored(examined))):
        return  # a code that no output depends on has no gradient to lose
    named = listed([f"`{path}`" for path in (paths if cuts else untaught)], most=3)
    words = {"layers": named, "reader": cuts[0].reader if cuts else ""}
    yield (VALUES_CUT if cuts else CODE_CUT).at(paths[0], words, layers=len(paths) if cuts else len(untaught))


def check_no_gradient(examined: Examined) -> Iterator[Finding]:
    """`no-gradient` (warning, info): the gradient ends at a layer and is exactly zero before it: zero weights, a ReLU
    that is never on, a rounding (info: a last layer that starts at zero); or a layer beside the main path gets none
    """
    signal = examined.signal
    if signal is None or (deep_signal(examined) is not None and decades_lost(signal) >= FADED_DECADES):
        return  # a gradient that fades may well end at zero
    rows = [row for row in signal.layers if row.log10_gradient is not None]
    learning = {row.path for row in rows if row.log10_gradient != -math.inf}  # in another of its runs, at least
    rows = [row for row in rows if row.log10_gradient != -math.inf or row.path not in learning]
    blocked = next((k for k, row in enumerate(rows) if row.log10_gradient != -math.inf), len(rows))
    if not 0 < blocked < len(rows):
        return
    constant = (k for k, row in enumerate(rows[:blocked]) if row.deviation == 0.0)
    place = next(constant, blocked)  # what hands on a constant stops the gradients of ReLUs behind it as well
    if not place:
        return
    row = rows[place]
    zeros = {p.module for p in signal.parameters if len(p.shape) > 1 and p.is_zero}
    cut = place == blocked and row.kind in WEIGHT_KINDS and row.path not in zeros  # then the fault lies before it
    last = not cut and not any(later.kind in WEIGHT_KINDS for later in rows[place + 1 :])
    yield finding(
        "no-gradient",
        (rows[place - 1].path if cut else row.path) or next((r.path for r in rows[place::-1] if r.path), ""),
        f"The gradient ends at `{row.path}` ({row.kind}): it is exactly zero in "
        f"{pluralise(place, 'layer')} before it, from `{rows[place - 1].path}` on.",
        "Nothing before this layer learns, and at this batch the output does not depend on the input.",
        "A last layer that starts at zero opens with the first step: nothing to do for a fresh model."
        if last
        else f"Look between `{rows[place - 1].path}` and `{row.path}` for weights that are all zero, a ReLU that is "
        "never on, or a rounding, sign or argmax (use a straight-through estimator or a softmax instead).",
        figures(layers=place),
        severity=Severity.INFO if last else Severity.WARNING,
    )


def check_starved_layers(examined: Examined) -> Iterator[Finding]:
    """Layers beside the main path to which no gradient comes back, though no layer of zeros holds it up.

    It is a note where the forward draws random numbers, which may drop a branch in one pass and take it in the next.
    """
    signal = examined.signal
    if signal is None or any(row.is_zero and not row.name.endswith("bias") for row in signal.parameters):
        return
    trained = {row.module for row in signal.parameters if row.trainable and row.gradient == 0.0 and len(row.shape) > 1}
    rows = [row for row in signal.layers if row.log10_gradient is not None]
    first = next((k for k, row in enumerate(rows) if row.log10_gradient != -math.inf), len(rows))
    starved = [row for row in rows[first:] if row.log10_gradient == -math.inf and row.path in trained and row.varies]
    if starved and any(row.log10_gradient != -math.inf for row in rows):
        paths = list(dict.fromkeys(row.path for row in starved))
        learning = {without_numbers(row.module) for row in signal.parameters if row.gradient}
        chosen = all(without_numbers(path) in learning for path in paths)  # others of a list of experts learn
        dropped = signal.calls.draws and examined.mode == "train"
        nothing_to_do = CHOSEN_BY_NONE if chosen else DROPPED if dropped else ""
        advice = nothing_to_do or _zero_buffers(examined) + NO_GRADIENT_BESIDE.advice
        yield replace(NO_GRADIENT_BESIDE, advice=advice).at(
            paths[-1],
            seen=f"The gradient of {listed([f'`{path}`' for path in paths], most=3)} is exactly zero, that of other "
            "layers is not.",
            layers=len(paths),
            severity=Severity.INFO if nothing_to_do else Severity.WARNING,
        )


def _zero_buffers(examined: Examined) -> str:
    """Return what to do about buffers of zeros, which no training moves."""
    zeros = [
        f"`{name}`" for name, b in examined.model.named_buffers() if b.is_floating_point() and b.numel() and not b.any()
    ]
    zeros = [name for name in zeros if "running_mean" not in name]
    return f"{listed(zeros, most=3)} is a buffer of zeros: make it an nn.Parameter, or initialise it. " if zeros else ""


NO_GRADIENT_BESIDE = Symptom(
    code="no-gradient",
    seen="For {steps} steps {names} got no gradient at all (`grad` is None), though the optimizer is to train it.",
    why="What these layers compute has no influence on the loss: they keep the values they were initialised with.",
    advice="Remove the detach(), torch.no_grad(), rounding, argmax or conversion to NumPy that cuts the gradient off "
    "behind {where}; or look at what reads it: a branch that the forward does not take, a softmax over "
    "an axis of one entry (check its dim), a factor of zero, a mask that hides everything. Freeze what is not to be "
    "trained with requires_grad_(False).",
)
DROPPED = "Nothing to do for a branch that random numbers drop: the next batch may take it."
CHOSEN_BY_NONE = "Nothing to do for experts that no sample of this batch has chosen; see that all of them get some."


def watch_no_gradient(history: History) -> Iterator[Finding]:
    """`no-gradient` (warning): a parameter that the optimizer has got no gradient (`grad` is None) in two records after
    the first, and all steps in between
    """
    names = find_lasting(history, history.parameter_state.ungraded)
    if names and history.records[-1].total_of("log10_gradient") is not None:
        yield name_parameters(
            NO_GRADIENT_BESIDE, history, names, names[-1], history.parameter_state.ungraded[names[-1]].step
        )


GRADIENT_MISSING = Symptom(
    code="no-gradient-at-step",
    seen="At the measured steps {first:,} to {last:,} {what}, while the loss was {loss}.",
    why="Where the optimizer steps there is no gradient: the step does nothing.",
    advice="Look at the order of the calls: optimizer.zero_grad(), then loss.backward(), then optimizer.step(). If it "
    "is right, the loss does not depend on the parameters: remove the detach(), rounding or argmax between them and "
    "the loss, or look for an output that is constant.",
)


def watch_gradient_missing(history: History) -> Iterator[Finding]:
    """`no-gradient-at-step` (warning): at two measured steps no parameter has a gradient, or all gradients are zero:
    cleared between backward and step
    """
    records = [r for r in history.records if r.values.get("weight")][-PLAIN_RECORDS - 1 :]
    if len(records) < PLAIN_RECORDS or records[-1].step - records[-PLAIN_RECORDS].step < PLAIN_STEPS:
        return
    gradients = [r.total_of("log10_gradient") for r in records[-PLAIN_RECORDS:]]
    loss = records[-1].loss
    if loss == 0.0 or any(value is not None and value != -math.inf for value in gradients):
        return
    part = f" of `{history.parameter_state.part}`" if history.parameter_state.part else ""
    gone = f"the gradients of all parameters{part} were zero"
    gone = f"no parameter{part} had a gradient" if gradients[-1] is None else gone
    words = {
        "first": records[-PLAIN_RECORDS].step,
        "last": records[-1].step,
        "what": gone,
        "loss": "not observed" if loss is None else f"{loss:.3g}",
    }
    yield GRADIENT_MISSING.at(history.parameter_state.part, words)


NOT_FITTED = 1e-3
"""A loss above this is no perfect fit."""


def check_no_loss_gradient(examined: Examined) -> Iterator[Finding]:
    """`no-loss-gradient` (error, warning): no gradient of the loss reaches any parameter, or all of them are exactly
    zero (warning: so small that the weights would have to change by more than their size to lower the loss by a
    hundredth, or that of all samples with one label, in a fresh model)
    """
    signal = examined.signal
    if signal is None or signal.objective.gradient_of == RANDOM:
        return
    trained = [row for row in signal.parameters if row.trainable]
    if not trained or any(row.gradient for row in trained) or signal.reason not in (None, NO_GRADIENT):
        return
    cut = all(row.gradient is None for row in trained)
    ended = signal.cuts.detached_at if cut else None
    inner = 0.0 if signal.loss is None else signal.loss.value
    masked = not cut and signal.objective.loss_value == 0.0 and inner > NOT_FITTED
    half = any(row.dtype == "float16" for row in signal.rows)  # where a small loss becomes zero
    idle = signal.loss is None and signal.objective.loss_value == 0.0 and not half
    idle = idle and is_fresh(examined.model) and not _head_is_biased(examined)
    if (
        not cut
        and not masked
        and not idle
        and (signal.objective.loss_value is None or not signal.objective.loss_value > NOT_FITTED)
    ):
        return  # a loss at its minimum has no gradient either
    yield finding(
        "no-loss-gradient",
        ended or LOSS,
        f"No gradient of the loss reaches any parameter: autograd's graph ends behind `{ended}`."
        if ended
        else "No gradient of the loss reaches any parameter: it is not differentiable, or autograd's graph is cut."
        if cut
        else "The gradient of the loss is exactly zero for every parameter."
        + (f" The loss is 0, and {signal.loss.name} gave {figure(inner)}." if masked and signal.loss else "")
        + (" The loss is 0, though the model looks fresh." if idle else ""),
        "No step changes anything, however long the training is.",
        f"Remove what cuts it behind `{ended}`: detach(), .data, .item(), numpy(), torch.no_grad(), a tensor "
        "built anew from values; for argmax or rounding use a softmax or a straight-through estimator."
        if ended
        else "Train on a loss that is differentiable in the outputs: use cross_entropy or mse in place of a rate of "
        "errors, and avoid argmax, rounding, comparisons, .item() and detach() on its way."
        if cut
        else "Look at the factor that makes the loss zero: a mask that is empty or the wrong way around (invert the "
        "mask), or weights of zero."
        if masked
        else "Look at the loss: a margin with the wrong sign or far too small, a clamp or a ReLU that holds it at "
        "zero, outputs and targets that are the same tensor. Use a loss that is differentiable in the outputs and "
        "above zero for a model that knows nothing."
        if idle
        else "Look at what stands between the last layer and the loss: a clamp that holds every output, a softmax over "
        "one output, a ReLU that is never positive, a rounding or a sign. Remove it, let the last layer be linear, and "
        "use a loss that is differentiable in the outputs.",
        figures(parameters=len(trained)),
        severity=Severity.INFO if cut and examined.mode == "eval" else Severity.ERROR,
    )


def _head_is_biased(examined: Examined) -> bool:
    """Whether the biases of the last linear layer are larger than torch draws them, as those of a solution may be."""
    head = dict(examined.model.named_modules()).get(find_last_linear(examined))
    weight, bias = (None, None) if head is None else (head._parameters.get("weight"), head._parameters.get("bias"))
    if weight is None or bias is None:
        return False
    return float(bias.detach().abs().max()) > (1.0 + 1e-6) / math.sqrt(math.prod(weight.shape[1:]))


def _is_inside(module: str, path: str) -> bool:
    """Whether a module is the one at a path, or a part of it."""
    return module == path or module.startswith(f"{path}.")


def _by_module(rows: Sequence[ParameterRow]) -> Iterator[tuple[str, list[ParameterRow]]]:
    for module, members in itertools.groupby(sorted(rows, key=lambda row: row.module), key=lambda row: row.module):
        yield module, list(members)
