"""`watch_signal`: one forward and one backward on one batch, with the statistics of every layer's output.

They are taken where the values are, and fetched once when both passes are done: no layer waits for the device.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ...calls.batches import LossFunction
from ...calls.call import Call, arguments, labels_of, map_leaves, usual_output
from ...core.budget import count
from ...core.errors import InputError, describe_error
from ...core.threads import ignore_warnings, uncompiled
from ...core.untouched import DROPOUTS, on_copies, random_state, seed_random, untouched
from ...listening.calls import (
    EMBEDDINGS,
    NORMALIZERS,
    RELUS,
    WEIGHTS,
    FunctionCall,
    Site,
    as_floats,
    float_tensors,
    is_dense,
    tensors_in,
)
from ...listening.listener import ForwardListener
from .autograd_flow import (
    LOSS,
    Effect,
    Feed,
    effect_of,
    find_attributes,
    find_feeds,
    find_gates,
    find_kinds,
    find_makers,
    find_readers,
    nodes_before,
    output_limits,
    reached_leaves,
)
from .descent_pass import Optimizers, StepFacts, Trial, try_steps
from .divergence import Divergence, DivergenceTerm, find_divergence, find_untaught
from .examined import UnitsOverData
from .loss_at_output import LossAtOutput
from .loss_facts import BrokenContract, LabelsOutside, LossFacts, LossListener
from .objective import differentiated_outputs, find_raising, own_loss, random_signs, take_loss
from .padding import PaddingListener
from .sample_pass import PlaceChanger, have_moved
from .signal import (
    GATE,
    INPUT,
    MOST_SILENT,
    NO_GRADIENT,
    RANDOM,
    CutValue,
    DropoutCall,
    LostParameters,
    ParameterRow,
    Signal,
    SignalRow,
    name_input,
)
from .signal_statistics import (
    SATURATING,
    fetch_all,
    fetch_columns,
    leaked_share,
    log10_relative,
    norm_of,
    parameter_rows,
    places_of_values,
    saturated_share,
    signal_row,
    statistics_of,
    widest_column,
)

ACTIVATIONS = (*SATURATING, "gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "softplus",
               "hardswish", "glu", "log_softmax", "log_sigmoid", "softsign")  # fmt: skip
OTHERS = {
    "scaled_dot_product_attention": "attention", "multi_head_attention_forward": "attention", "lstm": "lstm",
    "gru": "gru", "rnn_tanh": "rnn", "rnn_relu": "rnn",
}  # fmt: skip
LAYER_KINDS = (*WEIGHTS.values(), *OTHERS.values())
"""Kinds of rows that hold weights, or mix places."""
FEWEST_STEPS, MOST_STEPS = 6, 2048
"""Positions of a sequence over which gradients are compared: fewer show no trend."""
STEADY_SHARE, STEADY_FACTOR = 0.8, 3.0
"""A recurrence changes the gradient at nearly every step by about the same factor."""
CASTS, LOST_DIGITS = ("to", "type", "half", "bfloat16", "float"), 0.3
"""Functions that change the type of values, and the share of their deviation that rounding may take."""
DETACHING_FUNCTIONS = ("item", "tolist", "numpy")
"""Functions that hand values on as no tensors, and so without their graph."""
CONCATENATIONS = ("cat", "concat", "concatenate", "vstack", "row_stack")
"""Functions that set tensors side by side: along the first dimension these are the samples."""
LEAST_STEP = 1e-30
"""A share of the largest gradient of a step; less is lost in rounding."""
NO_LOSS_GIVEN = (
    'optimizer= needs loss=: pass it too, as in check(model, data, loss="cross_entropy"), where data are pairs (x, y) '
    "or dicts with labels"
)


def watch_signal(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    loss: LossFunction | None = None,
    optimizer: Optimizers | None = None,
    units: Mapping[Site, UnitsOverData] | None = None,
) -> Signal:
    """Run a model forward and backward on a batch and summarise the values and gradients of every layer.

    What is differentiated is the loss or, without one, the product of the output with random signs: its gradient is
    that of a typical direction. (The norm of the output would not do: behind a normalizer it is constant.)

    Args:
        model: the user's model; left as found.
        batch: what it takes, on its device.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        output: which output is differentiated; without it the usual one, or all floats that are returned.
        loss: from the output, and the labels where the batch is a pair of inputs and labels, to a scalar.
        optimizer: the user's; with a loss it is looked at what its next step would do.
        units: the ReLUs over the data, for the share of dead channels.

    Returns:
        The summary; without gradients where there is no backward, with the reason.

    Raises:
        InputError: the model does not accept the batch, or the loss cannot be taken.
    """
    call = arguments(model, batch)
    with ExitStack() as stack:
        stack.enter_context(untouched(model, mode))
        stack.enter_context(untouched(_Holder(loss), traced=True))
        stack.enter_context(uncompiled())
        stack.enter_context(ignore_warnings("Converting a tensor with requires_grad=True"))  # a branch on a value
        stack.enter_context(ignore_warnings("Full backward hook is firing"))  # a hook of the user's
        samples, runs = call.count, 0
        for follow_cuts in (True, False):  # what asks for a gradient can be written to or handed to numpy no more
            listener, reason, runs = _SignalListener(model, samples, follow_cuts=follow_cuts), None, runs + 1
            stack.callback(listener.remove_hooks)
            try:
                reason = _both_ways(listener, call, batch, output, loss)
            except Exception as error:  # a forward that cannot be differentiated may still run
                if isinstance(error, InputError) and not listener.has_cuts:
                    raise
                reason = f"autograd cannot follow the model ({describe_error(error)})"
                listener.forget_gradients()
            if reason is None or not listener.has_cuts:
                break
        if loss is None and listener.has_own_loss:
            loss = own_loss
        if optimizer is not None and loss is None:
            raise InputError(NO_LOSS_GIVEN)
        raises = None if reason is None or reason == NO_GRADIENT else find_raising(model, call, batch, output, loss)
        if not listener.complete:
            listener, runs = _SignalListener(model, samples), runs + 1
            stack.callback(listener.remove_hooks)
            _without_gradient(listener, call)
        steps = None
        if loss is not None and listener.of_parameters and listener.loss_value is not None:
            steps = _steps(listener, call, batch, output, loss, float(listener.loss_value), optimizer)
        divergence = None if listener.divergence is None else _read_divergence(listener, listener.divergence, call)
        tried = listener.confirm_silent(call) + (divergence is not None)
        at_output = None if loss is None else listener.loss_at_output(loss, labels_of(batch, call))
        of_loss = {} if at_output is None else at_output.facts(listener.limits)
    rows = listener.rows({} if units is None else units)
    forwards, backwards = runs + tried, int(reason is None) + (divergence is not None)
    count("passes", forwards * call.count)
    count("backwards", backwards * call.count)
    if steps is not None:
        forwards, backwards = forwards + steps.forwards, backwards + steps.backwards
    return Signal(
        rows=rows,
        gradient_of=RANDOM if loss is None or listener.labels_outside is not None else LOSS,
        samples=samples,
        forwards=forwards,
        backwards=backwards,
        reason=reason,
        parameters=listener.parameters(),
        feeds=_feeds_up_to(Effect.ANY, listener.feeds),
        linear_feeds=_feeds_up_to(Effect.REARRANGED, listener.feeds),
        added_feeds=listener.added_feeds,
        loss=listener.loss,
        other_losses=listener.other_losses,
        columns=fetch_columns(listener.columns),
        loss_value=None if listener.loss_value is None else float(listener.loss_value),
        outputs=listener.outputs,
        dropouts=tuple(listener.dropouts),
        steps=steps,
        draws=listener.draws,
        unread=listener.unread(),
        lost=listener.lost(),
        discriminator=listener.discriminator,
        labels_outside=listener.labels_outside,
        broken_contract=listener.broken_contract,
        unregistered=listener.unregistered(),
        cut_values=listener.cut_values(),
        shared=listener.shared(),
        wrong_axis=listener.wrong_axis,
        rounded=listener.rounded,
        bends=listener.bends,
        derives=listener.derives,
        detached_at=listener.detached_at,
        padding=listener.padding.read(),
        raises=raises,
        unheard=listener.unheard,
        beside_loss=listener.beside_loss(),
        replaced=tuple(listener.replaced),
        taken=listener.taken,
        divergence=divergence,
        **of_loss,
    )


def _feeds_up_to(effect: Effect, feeds: Sequence[Sequence[Feed]]) -> tuple[tuple[int, ...], ...]:
    """Return for each row the numbers of those whose outputs it reads after this effect at most."""
    return tuple(tuple(feed.layer for feed in row if feed.effect <= effect) for row in feeds)


class _Holder(nn.Module):
    """Holds a loss, so that what it keeps from call to call (a running centre, a list) is put back as a model's is."""

    def __init__(self, loss: LossFunction | None) -> None:
        super().__init__()
        self.loss = loss


def _steps(
    listener: _SignalListener,
    call: Call,
    batch: Any,
    output: str | int | None,
    loss: LossFunction,
    value: float,
    optimizer: Optimizers | None,
) -> StepFacts:
    """Try steps along the gradients that the backward has left."""

    def loss_of(made: Any, samples: slice) -> Tensor:
        labels = [v[samples] if isinstance(v, Tensor) and v.ndim else v for v in labels_of(batch, call)]
        return take_loss(loss, made, output, labels)

    names = {id(parameter): name for name, parameter in listener.model.named_parameters()}
    gradients = {names[key]: gradient for key, gradient in listener.of_parameters.items()}
    return try_steps(listener.model, call, loss_of, gradients, value, optimizer)


def _read_divergence(listener: _SignalListener, term: DivergenceTerm, call: Call) -> Divergence:
    """Return how a divergence in the loss counts, and which modules nothing else in the loss teaches."""
    try:
        of_term = Trial(listener.model, call, lambda made, _: term.of(made)).gradients()
    except Exception:  # a model may refuse to run with its weights handed to it
        of_term = {}
    named = listener.model.named_parameters()
    whole = {name: listener.of_parameters[id(p)] for name, p in named if id(p) in listener.of_parameters}
    return Divergence(weight=term.factor * call.count, untaught=find_untaught(whole, of_term))


def weigh_divergence(
    model: nn.Module, batch: Any, *, mode: str | None, output: str | int | None, loss: LossFunction
) -> Divergence | None:
    """Return how a divergence in the loss counts, of a model that is not differentiated, as its weights are broken."""
    call = arguments(model, batch)
    with untouched(model, mode), untouched(_Holder(loss), traced=True), uncompiled():
        try:
            with torch.no_grad():
                made = model(*call.args, **call.kwargs)
            count("passes", call.count)
            term = find_divergence(loss, made, output, labels_of(batch, call))
        except Exception:  # nobody knows what a model with such weights does
            return None
    return None if term is None else Divergence(weight=term.factor * call.count)


def _both_ways(
    listener: _SignalListener, call: Call, batch: Any, output: str | int | None, loss: LossFunction | None
) -> str | None:
    """Run one forward and one backward; return why there is no backward, if there is none."""
    with torch.enable_grad(), on_copies(listener.model):
        seed_random(listener.model)
        with LossListener() as losses:
            made = listener.forward(call)
            outputs = differentiated_outputs(made, output)
            listener.has_own_loss = loss is None and getattr(own_loss(made), "requires_grad", False)
            listener.outputs, listener.taken = len(outputs), usual_output(made) if output is None else ""
            listener.limits = output_limits(outputs[0]) if len(outputs) == 1 else None
            listener.returned = [tensor.detach() for tensor in as_floats(made)]
            listener.follow_outputs(outputs)
            losses.in_loss = True
            try:
                named = loss if loss is not None or not listener.has_own_loss else own_loss
                objective = outputs if named is None else [take_loss(named, made, output, labels_of(batch, call))]
            except InputError:
                if losses.outside is None:
                    raise
                listener.labels_outside, loss, objective = losses.outside, None, outputs
            listener.loss_value = None if named is None or objective is outputs else objective[0].detach()
        labels = None if loss is None else labels_of(batch, call)
        listener.loss = losses.facts(labels, listener.maker(losses.output), call.leaves)
        listener.broken_contract = losses.broken_contract(listener.maker)
        if loss is not None:
            listener.other_losses = losses.others(labels_of(batch, call), listener.maker)
        is_loss = listener.loss_value is not None
        listener.read_graph(objective if is_loss else as_floats(made), as_floats(made))
        reason = listener.backward(objective, outputs, random=not is_loss)
        if loss is not None:
            listener.divergence = find_divergence(loss, made, output, labels_of(batch, call))
        if listener.loss is not None and loss is not None:
            rest = losses.rest_of(float(listener.loss_value or 0.0))
            listener.loss = replace(listener.loss, negated=losses.is_negated, rest=rest)
        return reason


def _without_gradient(listener: _SignalListener, call: Call) -> None:
    """Run the forward alone; what it raises now is no fault of autograd's."""
    try:
        with torch.no_grad():
            listener.forward(call)
    except Exception as error:
        raise InputError(
            f"the model raises {describe_error(error)}, on this batch. Pass a batch the model accepts: "
            "model(batch) must work."
        ) from error


class _SignalListener(ForwardListener):
    """Keeps the statistics of every layer's output, and of the gradient that comes back to it, on the device."""

    def __init__(self, model: nn.Module, samples: int, *, follow_cuts: bool = True) -> None:
        super().__init__(model, dropout=False)
        self.follow_cuts, self.complete = follow_cuts, False
        self.feeds, self.added_feeds = list[tuple[Feed, ...]](), tuple[tuple[int, ...], ...]()
        self._hooks: list[Any] = []
        self.loss: LossFacts | None = None
        self.other_losses: tuple[LossFacts, ...] = ()
        self.labels_outside: LabelsOutside | None = None
        self.broken_contract: BrokenContract | None = None
        self.divergence: DivergenceTerm | None = None
        self.limits: tuple[float, float] | None = None
        self.loss_value: Tensor | None = None
        self.outputs, self.taken, self.draws, self.has_own_loss = 1, "", False, False
        self._detached_at: str | None = None
        # What a module or an activation returned and no function has read since; who reads each leaf first.
        self._unread, self._read_at = dict[int, tuple[Tensor, str]](), dict[int, str]()
        # What modules return beside other tensors, of which some may be left unread. Leaves that nothing but an unread
        # output is made of, by the module that returned it, with whether it is such an offer.
        self._offered, self._lost = WeakIdKeyDictionary(), dict[str, tuple[set[int], bool]]()
        # Where autograd's graph ends: tensors that a detach, a block without gradients or a cast to integers reads.
        self._graph_ends, self.discriminator = list[Tensor](), ""
        # Values made of these until a layer reads them, and the rows of such layers: are other samples beside them?
        self._graphless, self._graphless_rows = WeakIdKeyDictionary(), dict[int, bool]()
        self._output_gradients, self.returned = list[Tensor](), list[Tensor]()
        self.bends, self.derives, self.replaced = True, False, dict[str, None]()
        self.detached_at: str | None = None
        self.padding = PaddingListener()
        self._by_step, self._silent = dict[int, Tensor](), dict[int, Tensor]()
        self._held_names: dict[int, tuple[bool, str]] = {}  # of parameters and buffers: do they map states, name
        self._reads = Counter[int]()
        self._row_reads = Counter[int]()  # functions that read what a row handed on, by its id
        self._casts: list[tuple[str, torch.dtype, Tensor]] = []
        self._leaks, self._cut = dict[int, Tensor | None](), dict[int, tuple[str, float]]()
        self.dropouts, self.columns = list[DropoutCall](), list[Tensor | None]()
        self._samples = samples
        self._functions: list[Any] = []  # autograd's node of every row
        self._reached: dict[int, Tensor] = {}
        # Leaves that gradients of the outputs reach; parameters that require one when the forward ends.
        self._of_outputs, self._trained = set[int](), set[int]()
        self.of_parameters: dict[int, Tensor] = {}  # gradients by the parameter's id
        self._heard: list[tuple[Site, tuple[int, ...], torch.dtype, Tensor]] = []
        self._gradients: dict[int, Tensor] = {}
        self._leaves: list[Tensor] = []
        self._softmaxes: dict[int, tuple[Tensor, int]] = {}  # what a softmax returned, and over which axis
        self.wrong_axis: tuple[str, int, int] | None = None
        # What goes on without its graph, by the layer that made it; and who reads it.
        self._cut_values, self._cut_readers = list[tuple[str, Tensor]](), list[tuple[str, str, int]]()
        self._cut_gradients: dict[int, Tensor] = {}
        # What was dropped from, and no function has read since.
        self._dropped, self._end = dict[int, tuple[Tensor, DropoutCall]](), list[Tensor]()
        self._differing: dict[int, list[Tensor]] = {}  # places of inputs and embeddings that differ between samples
        self._silent_places: dict[int, list[Tensor]] = {}
        self._sites: dict[int, Site] = {}  # of what is held, by its id
        self._row_ids: list[int] = []  # of what each row handed on; autograd keeps nearly all of them alive
        self._held: dict[int, tuple[Tensor, int]] = {}  # by address; autograd holds nearly all of them anyway

    def forward(self, call: Call) -> Any:
        """Run the model on a call, its float inputs as the first rows."""
        variables = call.variables
        fed = {id(tensor): self._leaf(tensor) for _, tensor in variables}
        self.padding.find(call.leaves, self._samples)
        for name, tensor in variables:
            self._hear((name_input(name, len(variables)), INPUT, 0), fed[id(tensor)])
        self.columns = [widest_column(tensor) for _, tensor in variables]
        self._held.clear()
        args, kwargs = map_leaves(lambda leaf: fed.get(id(leaf), leaf), (call.args, call.kwargs))
        held = [*self.model.named_parameters(), *self.model.named_buffers()]
        self._held_names = {
            id(value): (len(set(value.shape)) == 1 and not name.endswith("bias"), name) for name, value in held
        }
        before = random_state(self.model)
        with self.listening():
            made = self.model(*args, **kwargs)
        self.draws = before != random_state(self.model)
        self._trained = {id(parameter) for parameter in self.model.parameters() if parameter.requires_grad}
        for leaf in tensors_in(made):
            self._unread.pop(id(leaf), None)
            self._row_reads[id(leaf)] += 1
            if id(leaf) in self._dropped:
                self.dropouts.append(self._dropped[id(leaf)][1])
        self.complete = True
        self._held.clear()
        return made

    def backward(self, objective: Sequence[Tensor], outputs: Sequence[Tensor], *, random: bool) -> str | None:
        """Run one backward; return why there is none."""
        objective = [value for value in objective if value.requires_grad]
        leaves = self._leaves or [p for p in self.model.parameters() if p.requires_grad]
        if not objective or not leaves:
            return NO_GRADIENT
        for tensor in outputs:
            if tensor.requires_grad:
                self._hooks.append(tensor.register_hook(self._ended))
        signs = [random_signs(value) if random else torch.ones_like(value) for value in objective]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if any("CheckpointFunction" in node.name() for node in nodes_before(objective)):  # it refuses `grad`
            for tensor in (*leaves, *trained):
                tensor.grad = None
            torch.autograd.backward(objective, signs)
            gradients = tuple(tensor.grad for tensor in (*leaves, *trained))
        else:
            gradients = torch.autograd.grad(objective, [*leaves, *trained], signs, allow_unused=True)
        for parameter, gradient in zip(trained, gradients[len(leaves) :], strict=True):
            if gradient is not None:
                self.of_parameters[id(parameter)] = gradient.to_dense() if gradient.is_sparse else gradient
        return None

    def remove_hooks(self) -> None:
        """Leave no hook behind: a parameter that the model returns is one of its outputs."""
        for hook in self._hooks:
            hook.remove()

    def _ended(self, gradient: Tensor) -> None:
        """Note the gradient at an output, and its size."""
        self._end.append(norm_of(gradient))
        if gradient.shape[:1] == (self._samples,):
            self._output_gradients.append(gradient.detach())

    def follow_outputs(self, outputs: Sequence[Tensor]) -> None:
        """Note what lies before the outputs: an activation, or a place where the graph of parameters ends."""
        if any(output.requires_grad for output in outputs):
            rows = zip(self._functions, self._heard, strict=True)
            layers = [function for function, (site, *_) in rows if site[1] in WEIGHTS.values()]
            _, self.derives = find_kinds(outputs, layers)
            self.bends, _ = find_kinds([*outputs, *self._graph_ends], layers)
        else:
            trained = {n.rpartition(".")[0] for n, p in self.model.named_parameters() if p.requires_grad}
            self.detached_at = next((site[0] for site, *_ in reversed(self._heard) if site[0] in trained), None)

    @property
    def has_cuts(self) -> bool:
        """Whether a gradient was asked for where the model goes on without one."""
        return bool(self._cut_values)

    def loss_at_output(self, loss: LossFunction, labels: Sequence[Any]) -> LossAtOutput | None:
        """Return the loss with the model's output and its gradient; None without one output for all samples."""
        if len(self._output_gradients) != 1 or len(self.returned) != 1:
            return None
        (gradient,), (output,) = self._output_gradients, self.returned
        same = gradient.shape == output.shape
        return LossAtOutput(loss=loss, labels=labels, output=output, gradient=gradient) if same else None

    def unread(self) -> tuple[str, ...]:
        """Return the modules whose output was thrown away, by themselves or behind an activation."""
        return tuple(dict.fromkeys(path for _, path in self._unread.values() if path))

    def maker(self, made: Tensor | None) -> str:
        """Return the module that made a tensor: of the layers before it the last one that is a module of its own."""
        waiting = [] if made is None else list(find_makers(made, self._functions))
        feeds = find_feeds(self._functions) if waiting else []
        while waiting:
            number = max(waiting)
            if self._heard[number][0][0] and self._heard[number][0][1] != INPUT:
                return self._heard[number][0][0]
            waiting = [k for k in waiting if k != number] + [feed.layer for feed in feeds[number]]
        return ""

    def read_graph(self, objective: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Note which rows read which, and what gradients of the objective, or of any output, can reach."""
        self.feeds = find_feeds(self._functions)
        does_more = [  # for each row: whether it is a module that does more than add what it reads
            function is not None and site[1][:1].isupper() and effect_of(function) is Effect.ANY
            for function, (site, *_) in zip(self._functions, self._heard, strict=True)
        ]
        added = _feeds_up_to(Effect.ADDED, self.feeds)
        self.added_feeds = tuple(() if more else feeds for more, feeds in zip(does_more, added, strict=True))
        self._reached = reached_leaves(objective)
        self._of_outputs = set(reached_leaves(outputs))
        self._unread = {key: (made, path or self.maker(made)) for key, (made, path) in self._unread.items()}
        self._find_lost()
        self._find_discriminator()
        self._graph_ends = []
        weights = {k for k, (site, *_) in enumerate(self._heard) if site[1] in LAYER_KINDS}
        for path, leaf in self._cut_values:
            reader = next((k for k in find_readers(leaf, self._functions) if k in weights), None)
            if reader is not None:
                self._cut_readers.append((path, self._heard[reader][0][0], id(leaf)))
        squashing = {
            function: k
            for k, (function, (site, *_)) in enumerate(zip(self._functions, self._heard, strict=True))
            if site[1] in ("sigmoid", "tanh")
        }
        for k in find_gates(nodes_before(outputs), squashing):
            (path, _, run), shape, dtype, statistics = self._heard[k]
            self._heard[k] = ((path, GATE, run), shape, dtype, statistics)
        self._functions = []

    def _find_lost(self) -> None:
        """Note the leaves that only what nobody reads is made of: no gradient comes back to them from anywhere."""
        elsewhere = self._reached.keys() | self._of_outputs | reached_leaves(self._graph_ends).keys()
        for made, path in self._unread.values():
            inside = () if path not in self.modules else self.modules[path].parameters()
            leaves = (reached_leaves([made]).keys() | {id(own) for own in inside}) - elsewhere
            if path and leaves:
                self._lost[path] = leaves, made in self._offered

    def _find_discriminator(self) -> None:
        """Note the layer that reads inputs of the model and, beside them, values without their graph."""
        inputs = {number for number, (site, *_) in enumerate(self._heard) if site[1] == INPUT}
        for number, beside in self._graphless_rows.items():
            site = self._heard[number][0]
            others = (
                k for k, (own, *_) in enumerate(self._heard) if own[:2] == site[:2] and k not in self._graphless_rows
            )
            if beside or any(self._comes_from(k, inputs) for k in others):
                self.discriminator = self.discriminator or site[0]

    def _comes_from(self, number: int, inputs: Set[int]) -> bool:
        """Whether a row reads inputs of the model, with modules that hold no weights between at most."""
        feeds = [feed.layer for feed in self.feeds[number]]
        return any(
            feed in inputs or (self._heard[feed][0][1] not in LAYER_KINDS and self._comes_from(feed, inputs))
            for feed in feeds
        )

    def lost(self) -> tuple[LostParameters, ...]:
        """Return the parameters of what ran and what nothing reads, by the module that returned it."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return tuple(
            LostParameters(
                path=path, names=tuple(name for key, name in names.items() if key in leaves), offered=offered
            )
            for path, (leaves, offered) in self._lost.items()
            if not leaves.isdisjoint(names)
        )

    def cut_values(self) -> tuple[CutValue, ...]:
        """Return the layers whose values go on without their graph, into layers that a gradient comes back from."""
        fetched = fetch_all(
            [self._cut_gradients[key].reshape(1) for *_, key in self._cut_readers if key in self._cut_gradients]
        )
        readers = [own for own in self._cut_readers if own[2] in self._cut_gradients]
        return tuple(
            CutValue(path=path, reader=reader)
            for (path, reader, _), (norm,) in zip(readers, fetched, strict=True)
            if norm > 0.0
        )

    def beside_loss(self) -> tuple[str, ...]:
        """Return the parameters that gradients of the outputs reach and those of the loss do not."""
        beside = self._of_outputs - self._reached.keys()
        return tuple(name for name, parameter in self.model.named_parameters() if id(parameter) in beside)

    def shared(self) -> tuple[int, ...]:
        """Return the rows that several functions read, or the caller of the model as well."""
        return tuple(number for number, key in enumerate(self._row_ids) if self._row_reads[key] > 1)

    def unregistered(self) -> tuple[str, ...]:
        """Return what holds weights that learn and are no parameters: attributes, or else those that read them."""
        own = {id(parameter) for parameter in self.model.parameters()} | {id(leaf) for leaf in self._leaves}
        foreign = self._reached.keys() - own
        readers = (self._read_at[key] or "the model" for key in sorted(foreign) if key in self._read_at)
        return find_attributes(self.model, foreign) or tuple(dict.fromkeys(readers))

    def forget_gradients(self) -> None:
        """Drop what a backward that did not end has left."""
        self._gradients, self._end, self.of_parameters, self._silent = {}, [], {}, {}

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Hear what a layer's function returns; an embedding starts a graph, as a float input does."""
        for leaf in tree_leaves((call.args, call.kwargs)):
            if isinstance(leaf, nn.Parameter):
                self._read_at.setdefault(id(leaf), self.path)
        if self.follow_cuts and isinstance(result, Tensor) and _cuts(call):
            return self._follow_cut(call, result)
        graphless = self._follow_graphless(call, result)
        if call.name in CASTS and isinstance(result, Tensor) and isinstance(call.args[0], Tensor):
            if result is call.args[0] and id(result) in self._sites:  # it was of that type, or on that device
                self._row_reads[id(result)] -= 1
            self._hear_cast(call.args[0].detach(), result.detach())
        family = _family(call, result)
        if family is None:
            return result
        weights = call.args[0:3:2] if call.name == "addmm" else call.args[1:3]  # `addmm` takes the bias first
        if family in WEIGHTS.values() and any(isinstance(v, Tensor) and v.grad_fn is not None for v in weights):
            self.replaced.setdefault(self.path)
        if family == "embedding" and torch.is_grad_enabled() and not result.requires_grad:
            result = self._leaf(result)
        made = result[0] if isinstance(result, tuple) else result
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1)
        flat = saturated_share(call, family, made.detach(), dim)
        self._hear(self.site(family), made, flat)
        if graphless is not None and made.requires_grad and family in LAYER_KINDS:
            self._graphless_rows[len(self._heard) - 1] = graphless
        if family in ("relu", *ACTIVATIONS) and made is result:
            self._unread[id(made)] = made, ""
        if family == "softmax":
            self._leaks[len(self._heard) - 1] = leaked_share(call, made.detach(), dim)
            if isinstance(dim, int) and made.ndim > 1:
                self._softmaxes[id(made)] = made, dim % made.ndim
        return result

    def _hear_cast(self, given: Tensor, made: Tensor) -> None:
        """Note by how much of their deviation a cast to a narrower float moves values."""
        if (
            given.is_floating_point()
            and made.is_floating_point()
            and made.itemsize < given.itemsize
            and made.numel() > 1
        ):
            wide = given.double()
            self._casts.append(
                (self.path, made.dtype, ((made.double() - wide).square().mean() / wide.var()).reshape(1))
            )

    @property
    def rounded(self) -> tuple[str, str, float] | None:
        """Fetch the cast that loses most of what varies, if one loses much."""
        shares = [share for (share,) in fetch_all([square.sqrt() for *_, square in self._casts])]
        lost = [(share, k) for k, share in enumerate(shares) if LOST_DIGITS < share < math.inf]
        share, k = max(lost, default=(0.0, -1))
        return (self._casts[k][0], str(self._casts[k][1]).removeprefix("torch."), share) if lost else None

    def _follow_cut(self, call: FunctionCall, result: Tensor) -> Tensor:
        """Let values that go on without the graph of the layer that made them show the gradient that is lost."""
        sources = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
        held = (self._held.get(leaf.data_ptr()) for leaf in sources)
        site = next((self._sites[id(row[0])] for row in held if row is not None and row[0].requires_grad), None)
        if site is None or not result.is_floating_point():
            return result
        result = (result.detach() if result.requires_grad else result).requires_grad_(True)  # that of a draw is zero
        self._leaves.append(result)
        self._cut_values.append((site[0], result))
        result.register_hook(lambda gradient: self._cut_gradients.update({id(result): norm_of(gradient)}))
        return result

    def _follow_graphless(self, call: FunctionCall, result: Any) -> bool | None:
        """Note where autograd's graph ends, and which values are made of what it leaves out.

        Returns:
            None where a call reads no such values; else whether they are concatenated with other samples.
        """
        sources = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        values = [leaf for leaf in made if leaf.dtype != torch.bool]  # a comparison hands no values on
        ends = (values or call.name in DETACHING_FUNCTIONS) and not any(leaf.requires_grad for leaf in made)
        ending = [leaf for leaf in sources if leaf.requires_grad and ends]
        self._graph_ends += ending
        read = [leaf for leaf in sources if leaf in self._graphless]
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
        beside = call.name in CONCATENATIONS and dim == 0 and len(read) < len(sources)
        beside = beside or any(self._graphless[leaf] for leaf in read)
        if read or ending:
            for leaf in values:
                self._graphless[leaf] = beside
        return beside if read else None

    def before_call(self, call: FunctionCall) -> None:
        """Note a function of dropout that is switched on, although modules of dropout are off; note a detach."""
        for leaf in tree_leaves((call.args, call.kwargs)):
            self._unread.pop(id(leaf), None)
            self._dropped.pop(id(leaf), None)
            if id(leaf) in self._sites and call.name not in ("__get__", "size", "dim", "__len__", *DROPOUTS):
                self._row_reads[id(leaf)] += 1
            if id(leaf) in self._held_names:
                self._reads[id(leaf)] += 1
        if call.name in ("matmul", "bmm", "__matmul__", "mm") and len(call.args) == 2:
            for operand, from_end in zip(call.args, (1, 2), strict=True):
                softmax, axis = self._softmaxes.get(id(operand), (None, 0))
                if softmax is not None and softmax.ndim >= from_end and axis != softmax.ndim - from_end:
                    self.wrong_axis = self.wrong_axis or (
                        self.path or self.maker(softmax),
                        axis,
                        softmax.ndim - from_end,
                    )
        if call.name == "detach" and self._detached_at is None and getattr(call.args[0], "requires_grad", False):
            self._detached_at = self.path or self._heard[-1][0][0]
        if call.name in DROPOUTS:
            asked = {**dict(zip(("input", "p", "training"), call.args)), **call.kwargs}
            if asked.get("training", asked.get("train", True)) and asked.get("p", 0.5):
                in_eval = not self.modules.get(self.path, self.model).training
                self.dropouts.append(DropoutCall(path=self.path, rate=float(asked.get("p", 0.5)), in_eval=in_eval))
            rate = vars(self.modules.get(self.path, self.model)).get("p", asked.get("p", 0.5))
            if isinstance(rate, int | float) and rate and isinstance(asked.get("input"), Tensor):
                here = DropoutCall(path=self.path, rate=float(rate), in_eval=False, on_output=True)
                self._dropped[id(asked["input"])] = asked["input"], here

    def left(self, module: nn.Module, path: str, made: Any) -> None:
        """Hear what a module returns, unless a layer that was heard returned it."""
        floats = float_tensors(made)
        if len(floats) > 1:
            for leaf in floats:
                self._offered[leaf] = None
        if floats:
            self._unread[id(floats[0])] = floats[0], path
        if floats and not self._is_held(floats[0]):
            self._hear(self.site(type(self.modules[path]).__name__, path), floats[0])

    def _is_held(self, made: Tensor) -> bool:
        """Whether these are the values of a row: in the same memory, and not written to since."""
        held, version = self._held.get(made.data_ptr(), (None, -1))
        return held is not None and made.numel() == held.numel() and _version(made) == version

    def _leaf(self, tensor: Tensor) -> Tensor:
        """Return a copy that has a gradient and may be written to."""
        if not torch.is_grad_enabled():
            return tensor.clone()
        leaf = tensor.detach().requires_grad_(True)
        self._leaves.append(leaf)
        return leaf.clone()

    def _hear(self, site: Site, made: Tensor, saturated: Tensor | None = None) -> None:
        self._heard.append(
            (site, tuple(made.shape), made.dtype, statistics_of(made.detach(), saturated, self._samples))
        )
        self._functions.append(made.grad_fn)
        if not torch.is_grad_enabled():
            self._held.clear()
        self._held[made.data_ptr()] = made, _version(made)
        self._sites[id(made)] = site
        self._row_ids.append(id(made))
        if made.requires_grad:
            if site[1] in (INPUT, "embedding") and made.shape[:1] == (self._samples,):
                self._differing[len(self._heard) - 1] = places_of_values(made.detach() - made.detach()[:1])
                self.padding.hear(site[0], made)
            self._hooks.append(made.register_hook(functools.partial(self._returned, len(self._heard) - 1)))

    def _returned(self, index: int, gradient: Tensor) -> None:
        self._gradients[index] = norm_of(gradient)
        if index in self._differing and gradient.ndim == 3 and FEWEST_STEPS < gradient.shape[1] <= MOST_STEPS:
            self._by_step[index] = gradient.detach().double().square().sum((0, 2)).sqrt()
        if index in self._differing:
            differing = self._differing[index]
            pairs = zip(differing, places_of_values(gradient.detach()), strict=True)
            places = self._silent_places[index] = [differs & ~read for differs, read in pairs]
            shares = [p.sum() / differs.sum().clamp(min=1) for p, differs in zip(places, differing, strict=True)]
            self._silent[index] = torch.stack(shares).amax() if shares else gradient.new_zeros(())

    def confirm_silent(self, call: Call) -> int:
        """Run once more with other values where no gradient came back; return how many forwards that took.

        Places that no gradient comes back to may have an influence all the same. In a model that detaches something
        the gradient is cut; otherwise a maximum passes these places over, or the loss does not read what they move.
        """
        forwards = 0
        shares = fetch_all([share.double().reshape(1) for share in self._silent.values()])
        for index, (share,) in zip(list(self._silent), shares, strict=True):
            if share > MOST_SILENT:
                site = self._heard[index][0]  # the inputs were heard first
                at = call.variables[index][1] if site[1] == INPUT else site
                changer = PlaceChanger(self.model, at, self._silent_places[index])
                try:
                    forwards += 1
                    changed = as_floats(changer.run(call))
                except Exception:  # a model may refuse such values
                    continue
                if any(map(have_moved, self.returned, changed)):
                    self._silent[index] = torch.zeros_like(self._silent[index])
                    if self._detached_at is not None:
                        self._cut[index] = self._detached_at, share
        return forwards

    def parameters(self) -> tuple[ParameterRow, ...]:
        """Fetch what is to be said of the parameters."""
        used = self._read_at.keys() | self._reached.keys()
        return parameter_rows(self.model, self.of_parameters, self._trained, used, self._reached)

    def rows(self, units: Mapping[Site, UnitsOverData]) -> tuple[SignalRow, ...]:
        """Fetch everything and return the rows."""
        indices = list(self._gradients)
        fetched = fetch_all(
            [statistics for *_, statistics in self._heard]
            + [self._gradients[index].reshape(1) for index in indices]
            + [norm.reshape(1) for norm in self._end]
        )
        count = len(self._heard)
        end = math.hypot(*(norm for (norm,) in fetched[count + len(indices) :]))
        gradients = {index: norm for index, (norm,) in zip(indices, fetched[count:])}
        shares = fetch_all([share.double().reshape(1) for share in self._silent.values()])
        silent = {index: share for index, (share,) in zip(self._silent, shares, strict=True)}
        steps = dict(zip(self._by_step, fetch_all(list(self._by_step.values())), strict=True))
        leaks = {index: leak.reshape(1) for index, leak in self._leaks.items() if leak is not None}
        leaking = dict(zip(leaks, fetch_all(list(leaks.values())), strict=True))
        return tuple(
            replace(
                signal_row(site, shape, dtype, fetched[k], log10_relative(gradients.get(k), end), units.get(site)),
                silent=silent.get(k),
                cut=self._cut.get(k),
                recurrence=self._recurrence(steps[k]) if k in steps else None,
                leak=leaking[k][0] if k in leaking else None,
            )
            for k, (site, shape, dtype, _) in enumerate(self._heard)
        )

    def _recurrence(self, sizes: Sequence[float]) -> tuple[str, float] | None:
        """Return what is read at each step of a sequence, and the factor by which each step changes the gradient."""
        least = LEAST_STEP * max(sizes)
        ratios = sorted(math.log(early / late) for early, late in itertools.pairwise(sizes) if min(early, late) > least)
        if len(ratios) < FEWEST_STEPS:
            return None
        middle = ratios[len(ratios) // 2]
        steady = sum(abs(ratio - middle) < math.log(STEADY_FACTOR) for ratio in ratios)
        repeated = [self._held_names[key] for key, reads in self._reads.items() if reads >= len(sizes) - 1]
        paths = [site[0] for site, *_ in self._heard if site[1] in OTHERS.values() and site[1] != "attention"]
        name = next(iter(paths), None) or max(repeated, default=(False, ""))[1]
        return (name, math.exp(middle)) if name and steady >= STEADY_SHARE * len(ratios) else None


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was written to; those of inference mode do not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _cuts(call: FunctionCall) -> bool:
    """Whether a call hands values on without their graph: `.data`, or a draw from a distribution that they describe."""
    return call.name in ("normal", "bernoulli") or (
        call.name == "__get__" and getattr(getattr(call.func, "__self__", None), "__name__", "") == "data"
    )


def _family(call: FunctionCall, result: Any) -> str | None:
    """Return the family that a call's output is heard as; None for calls that are no layer."""
    made = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(made, Tensor) or not made.is_floating_point() or not is_dense(made):
        return None
    name, weight = call.name, call.weight_family
    plain = name.rstrip("_") if not name.startswith("_") else name
    if weight is not None or name in NORMALIZERS:
        return weight or name
    if name in RELUS:
        return "relu" if made.ndim > 1 else None
    if name in EMBEDDINGS:
        return "embedding"
    return plain if plain in ACTIVATIONS else OTHERS.get(name)
