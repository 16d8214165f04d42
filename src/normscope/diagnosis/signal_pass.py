"""`watch_signal`: one forward and one backward on one batch, with the statistics of every layer's output.

They are taken where the values are, and fetched once when both passes are done: no layer waits for the device.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from ..core.budget import count
from ..core.errors import InputError, describe_error
from ..core.log10 import log10
from ..core.threads import ignore_warnings, uncompiled
from ..core.untouched import DROPOUTS, on_copies, random_state, seed_random, untouched
from ..graph.call import ALL_OUTPUTS, Call, arguments, labels_of, map_leaves, select
from ..listening.calls import (
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
from ..listening.listener import ForwardListener
from .autograd_flow import (
    LOSS,
    Feed,
    NodeOwners,
    find_feeds,
    find_kinds,
    find_makers,
    find_readers,
    operator_name,
    reached_leaves,
)
from .descent_pass import Optimizers, StepFacts, try_steps
from .examined import UnitsOverData
from .loss_facts import LabelsOutside, LossFacts, LossListener
from .padding import PaddingListener
from .sample_pass import have_moved
from .signal import (
    BFLOAT16_NORMAL,
    FLOAT16_NORMAL,
    INPUT,
    MOST_SILENT,
    NO_GRADIENT,
    RANDOM,
    CutValue,
    DropoutCall,
    ParameterRow,
    Signal,
    SignalRow,
    WidestColumn,
)

FLAT = 0.01
"""Nearer to an end of its range than this share of the range, a sigmoid or tanh has less than a twentieth of its
steepest slope."""
SATURATING = ("sigmoid", "tanh", "softmax", "hardsigmoid", "hardtanh")
ACTIVATIONS = (*SATURATING, "gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "softplus",
               "hardswish", "glu", "log_softmax", "log_sigmoid", "softsign")  # fmt: skip
OTHERS = {
    "scaled_dot_product_attention": "attention", "multi_head_attention_forward": "attention", "lstm": "lstm",
    "gru": "gru", "rnn_tanh": "rnn", "rnn_relu": "rnn",
}  # fmt: skip
ATTENTION_ROWS = 64
"""Queries of a fused attention whose rows are looked at."""
HIDDEN_BELOW = 1e4
"""A score this far below the largest of its row is that of a hidden position."""
POWER_STEPS = 4
"""Enough to tell a matrix of rank one: one step finds its direction."""
FAR = 3.0
"""How far values are moved towards those of another sample: past them, so that a maximum takes notice."""
FEWEST_STEPS, MOST_STEPS = 6, 2048
"""Positions of a sequence over which gradients are compared: fewer show no trend."""
STEADY_SHARE, STEADY_FACTOR = 0.8, 3.0
"""A recurrence changes the gradient at nearly every step by about the same factor."""
LEAST_STEP = 1e-30
"""A share of the largest gradient of a step; less is lost in rounding."""
FEW_LABELS, FEWEST_OF_A_LABEL, FEWEST_CLASSES = 10, 8, 3
SAME_LOSS = 1e-4
"""The share by which a loss may differ by rounding."""
NO_LOSS_GIVEN = (
    'optimizer= needs loss=: pass it too, as in check(model, data, loss="cross_entropy"), where data are pairs (x, y) '
    "or dicts with labels"
)
NO_LOSS = 1e-3
"""Samples with a smaller loss need no gradient."""

Loss = Callable[..., Tensor]


def watch_signal(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    loss: Loss | None = None,
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
        raises = None if reason is None or reason == NO_GRADIENT else _find_raising(model, call, batch, output, loss)
        if not listener.complete:
            listener, runs = _SignalListener(model, samples), runs + 1
            stack.callback(listener.remove_hooks)
            _without_gradient(listener, call)
        steps = None
        if loss is not None and listener.of_parameters and listener.loss_value is not None:
            steps = _steps(listener, call, batch, output, loss, float(listener.loss_value), optimizer)
        tried = listener.confirm_silent(call)
    rows = listener.rows({} if units is None else units)
    forwards, backwards = runs + tried, int(reason is None)
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
        feeds=tuple(tuple(feed.layer for feed in feeds) for feeds in listener.feeds),
        linear_feeds=tuple(tuple(feed.layer for feed in feeds if feed.rearranged) for feeds in listener.feeds),
        loss=listener.loss,
        other_losses=listener.other_losses,
        columns=listener.columns(),
        loss_value=None if listener.loss_value is None else float(listener.loss_value),
        outputs=listener.outputs,
        dropouts=tuple(listener.dropouts),
        steps=steps,
        draws=listener.draws,
        unread=listener.unread(),
        labels_outside=listener.labels_outside,
        unregistered=listener.unregistered(),
        cut_values=listener.cut_values(),
        shared=listener.shared(),
        wrong_axis=listener.wrong_axis,
        idle_label=None if loss is None else listener.find_idle_label(labels_of(batch, call), loss),
        bends=listener.bends,
        derives=listener.derives,
        pushed_away=0.0 if loss is None else listener.find_pushed_away(labels_of(batch, call)),
        detached_at=listener.detached_at,
        means_alone=loss is not None and listener.loss_reads_means_alone(labels_of(batch, call), loss),
        padding=listener.padding.read(),
        raises=raises,
        unheard=listener.unheard,
        beside_loss=listener.beside_loss(),
        replaced=tuple(listener.replaced),
    )


class _Holder(nn.Module):
    """Holds a loss, so that what it keeps from call to call (a running centre, a list) is put back as a model's is."""

    def __init__(self, loss: Loss | None) -> None:
        super().__init__()
        self.loss = loss


def _steps(
    listener: _SignalListener,
    call: Call,
    batch: Any,
    output: str | int | None,
    loss: Loss,
    value: float,
    optimizer: Optimizers | None,
) -> StepFacts:
    """Try steps along the gradients that the backward has left."""

    def loss_of(made: Any, samples: slice) -> Tensor:
        labels = [v[samples] if isinstance(v, Tensor) and v.ndim else v for v in labels_of(batch, call)]
        return _loss_of(loss, made, output, labels)

    names = {id(parameter): name for name, parameter in listener.model.named_parameters()}
    gradients = {names[key]: gradient for key, gradient in listener.of_parameters.items()}
    return try_steps(listener.model, call, loss_of, gradients, value, optimizer)


def _find_raising(
    model: nn.Module, call: Call, batch: Any, output: str | int | None, loss: Loss | None
) -> tuple[str, str, str] | None:
    """Run a model as its user does, inputs without a gradient; return where it raises, what, and the line of code."""
    owners = NodeOwners(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with (
            torch.enable_grad(),
            on_copies(model),
            ignore_warnings("Anomaly Detection|Error detected in"),
            torch.autograd.set_detect_anomaly(True, check_nan=False),
        ):
            copied = call.changed(torch.clone)
            with owners.listening():
                made = model(*copied.args, **copied.kwargs)
            outputs = _outputs(made, output)
            values = outputs if loss is None else [_loss_of(loss, made, output, labels_of(batch, call))]
            values = [value for value in values if value.requires_grad]
            owners.follow(values)
            torch.autograd.grad(values, trained, [_signs(value) for value in values], allow_unused=True)
    except InputError:
        return None
    except Exception as error:
        path, line = owners.found_at()
        return path, describe_error(error), line
    return None


def own_loss(made: Any) -> Any:
    """Return the loss that a model has computed itself and returns as `loss`, if it is one."""
    value = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
    return value if isinstance(value, Tensor) and value.numel() == 1 else None


def _both_ways(
    listener: _SignalListener, call: Call, batch: Any, output: str | int | None, loss: Loss | None
) -> str | None:
    """Run one forward and one backward; return why there is no backward, if there is none."""
    with torch.enable_grad(), on_copies(listener.model):
        seed_random(listener.model)
        with LossListener() as losses:
            made = listener.forward(call)
            outputs = _outputs(made, output)
            listener.has_own_loss = loss is None and getattr(own_loss(made), "requires_grad", False)
            listener.outputs = len(outputs)
            listener.returned = [tensor.detach() for tensor in as_floats(made)]
            listener.follow_outputs(outputs)
            losses.in_loss = True
            try:
                named = loss if loss is not None or not listener.has_own_loss else own_loss
                objective = outputs if named is None else [_loss_of(named, made, output, labels_of(batch, call))]
            except InputError:
                if losses.outside is None:
                    raise
                listener.labels_outside, loss, objective = losses.outside, None, outputs
            listener.loss_value = None if named is None or objective is outputs else objective[0].detach()
        listener.loss = losses.facts(None if loss is None else labels_of(batch, call), listener.maker(losses.output))
        if loss is not None:
            listener.other_losses = losses.others(labels_of(batch, call), listener.maker)
        is_loss = listener.loss_value is not None
        listener.read_graph(objective if is_loss else as_floats(made), as_floats(made))
        reason = listener.backward(objective, outputs, random=not is_loss)
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


def _outputs(made: Any, output: str | int | None) -> list[Tensor]:
    """Return the output that is differentiated; where none is the usual one, all floats that the model returns."""
    if output == ALL_OUTPUTS:
        return as_floats(made)
    try:
        return [select(made, output)]
    except InputError:
        if output is not None:
            raise
        return as_floats(made)


def _loss_of(loss: Loss, made: Any, output: str | int | None, labels: Sequence[Any]) -> Tensor:
    """Return the loss of the user's function: of the one output, or else of all that the model returns (`o.loss`).

    An output that the user named comes first, and to losses of torch, which take tensors, the one there is. A function
    of the user's that takes what the model returns may take a tensor as well, and read it otherwise: `o[0]` of a tensor
    is its first sample.
    """
    outputs = _outputs(made, output)
    single = outputs[0] if len(outputs) == 1 else made
    module = loss.__module__ if hasattr(loss, "__qualname__") else type(loss).__module__
    by_tensor = output is not None or str(module).startswith("torch.")
    forms = (single, made) if by_tensor else (made, single)
    value: Any
    try:
        value = loss(forms[0], *labels)
    except Exception as error:
        try:
            value = None if forms[0] is forms[1] else loss(forms[1], *labels)
        except Exception:
            value = None
        if value is None:
            raise InputError(
                f"the loss raises {describe_error(error)}: it is called with the model's output, and with the labels "
                "where the batch is a pair of inputs and labels, or a dict that holds labels"
            ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = f"{value.numel()} values" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"the loss must return a tensor with one value, and it returned {kind}. With loss= a model is not given "
            'its labels, so that it computes no loss of its own: name that loss, as in loss="cross_entropy"'
        )
    return value


class _SignalListener(ForwardListener):
    """Keeps the statistics of every layer's output, and of the gradient that comes back to it, on the device."""

    def __init__(self, model: nn.Module, samples: int, *, follow_cuts: bool = True) -> None:
        super().__init__(model, dropout=False)
        self.follow_cuts, self.complete = follow_cuts, False
        self.feeds: list[tuple[Feed, ...]] = []
        self._hooks: list[Any] = []
        self.loss: LossFacts | None = None
        self.other_losses: tuple[LossFacts, ...] = ()
        self.labels_outside: LabelsOutside | None = None
        self.loss_value: Tensor | None = None
        self.outputs, self.draws, self.has_own_loss, self.replaced = 1, False, False, dict[str, None]()
        self._detached_at: str | None = None
        self._unread: dict[int, tuple[Tensor, str]] = {}  # what a module returned and no function has read since
        self._moves: list[Tensor] = []  # by output: which samples a gradient comes back to
        self._output_gradients: list[Tensor] = []
        self.bends, self.derives = True, False
        self.detached_at: str | None = None
        self.padding = PaddingListener()
        self._by_step: dict[int, Tensor] = {}
        self._held_names: dict[int, tuple[bool, str]] = {}  # of parameters and buffers: do they map states, name
        self._reads = Counter[int]()
        self._row_reads = Counter[int]()  # functions that read what a row handed on, by its id
        self._leaks: dict[int, Tensor | None] = {}
        self._cut: dict[int, tuple[str, float]] = {}
        self.returned: list[Tensor] = []
        self.dropouts: list[DropoutCall] = []
        self._columns: list[Tensor | None] = []
        self._samples = samples
        self._functions: list[Any] = []  # autograd's node of every row
        self._used: set[int] = set()
        self._reached: dict[int, Tensor] = {}
        # Leaves that gradients of the outputs reach; parameters that require one when the forward ends.
        self._of_outputs, self._trained = set[int](), set[int]()
        self.of_parameters: dict[int, Tensor] = {}  # gradients by the parameter's id
        self._heard: list[tuple[Site, tuple[int, ...], torch.dtype, Tensor]] = []
        self._gradients: dict[int, Tensor] = {}
        self._leaves: list[Tensor] = []
        self._softmaxes: dict[int, tuple[Tensor, int]] = {}  # what a softmax returned, and over which axis
        self.wrong_axis: tuple[str, int, int] | None = None
        self._cut_values: list[tuple[str, Tensor]] = []  # what goes on without its graph, by the layer that made it
        self._cut_readers: list[tuple[str, str, int]] = []
        self._cut_gradients: dict[int, Tensor] = {}
        # What was dropped from, and no function has read since.
        self._dropped, self._end = dict[int, tuple[Tensor, DropoutCall]](), list[Tensor]()
        self._differing: dict[int, list[Tensor]] = {}  # places of inputs and embeddings that differ between samples
        self._silent: dict[int, Tensor] = {}
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
            self._hear((INPUT if len(variables) == 1 else f"{INPUT} {name}", INPUT, 0), fed[id(tensor)])
        self._columns = [_widest_column(tensor) for _, tensor in variables]
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
        signs = [_signs(value) if random else torch.ones_like(value) for value in objective]
        trained = [p for p in self.model.parameters() if p.requires_grad]
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
        """Note the size of the gradient at an output, and which samples have one."""
        self._end.append(_norm(gradient))
        if gradient.shape[:1] == (self._samples,):
            self._moves.append((gradient.detach() != 0).reshape(self._samples, -1).any(1))
            self._output_gradients.append(gradient.detach())

    def follow_outputs(self, outputs: Sequence[Tensor]) -> None:
        """Note what lies before the outputs: an activation, or a place where the graph of parameters ends."""
        if any(output.requires_grad for output in outputs):
            self.bends, self.derives = find_kinds(outputs)
        else:
            trained = {n.rpartition(".")[0] for n, p in self.model.named_parameters() if p.requires_grad}
            self.detached_at = next((site[0] for site, *_ in reversed(self._heard) if site[0] in trained), None)

    @property
    def has_cuts(self) -> bool:
        """Whether a gradient was asked for where the model goes on without one."""
        return bool(self._cut_values)

    def find_idle_label(self, labels: Sequence[Any], loss: Loss) -> float | None:
        """Return the label whose samples get no gradient at the output, all of them, though their loss is not zero."""
        kinds = [v for v in labels if isinstance(v, Tensor) and v.numel() == self._samples and not v.is_complex()]
        if len(self._moves) != 1 or self.outputs != 1 or not kinds:
            return None
        moves, kind = self._moves[0].cpu(), kinds[0].detach().flatten().cpu()
        values = kind.unique()
        if not 2 <= len(values) <= FEW_LABELS:
            return None
        idle = [float(v) for v in values if not moves[kind == v].any() and (kind == v).sum() >= FEWEST_OF_A_LABEL]
        if len(idle) != 1 or not bool(moves.any()) or len(self.returned) != 1:
            return None
        rows = (kind == idle[0]).nonzero().flatten().to(self.returned[0].device)
        chosen = [v[rows] if isinstance(v, Tensor) and len(v) == self._samples else v for v in labels]
        try:
            left = float(loss(self.returned[0][rows], *chosen))
        except Exception:  # a loss may need samples of every label
            return None
        return idle[0] if left > NO_LOSS else None

    def loss_reads_means_alone(self, labels: Sequence[Any], loss: Loss) -> bool:
        """Whether the loss is the same for outputs that differ from these, and have the same mean over the samples."""
        differ = [v for v in labels if isinstance(v, Tensor) and v.shape[:1] == (self._samples,) and v.numel()]
        if len(self._output_gradients) != 1 or len(self.returned) != 1 or self._samples < FEWEST_OF_A_LABEL:
            return False
        (gradient,) = self._output_gradients
        if not bool((gradient == gradient[:1]).all() & (gradient != 0).any()):
            return False
        if not any(bool((v != v[:1]).any()) for v in differ):
            return False
        (output,) = self.returned
        noise = torch.linspace(-1.0, 1.0, self._samples, dtype=output.dtype, device=output.device)
        spread = FAR * (output.abs().amax() + max(float(v.abs().max()) for v in differ if not v.is_complex()))
        moved = output + spread * noise.reshape(-1, *(1,) * (output.ndim - 1))
        try:
            before, after = (float(loss(made, *labels)) for made in (output, moved))
        except Exception:  # a loss may refuse such values
            return False
        return abs(after - before) <= SAME_LOSS * abs(before)

    def find_pushed_away(self, labels: Sequence[Any]) -> float:
        """Return the share of outputs that steps against the gradient of the loss move away from their targets.

        These are numbers, one for each output, or the classes of the samples. Two values may be the names of kinds.
        """
        if len(self._output_gradients) != 1 or len(self.returned) != 1 or len(labels) != 1:
            return 0.0
        (gradient,), (output,), (target,) = self._output_gradients, self.returned, labels
        if not isinstance(target, Tensor) or gradient.shape != output.shape or not bool(gradient.any()):
            return 0.0
        columns = target.ndim == output.ndim and all(
            n in (1, m) for n, m in zip(target.shape, output.shape, strict=True)
        )
        if target.is_floating_point() and columns and len(target.unique()) > FEW_LABELS:
            towards = gradient * (output - target)
        elif target.dtype == torch.long and target.shape == output.shape[:1] and output.ndim == 2:
            inside = output.shape[1] > 2 and int(target.min()) >= 0 and int(target.max()) < output.shape[1]
            if not inside or len(target.unique()) < FEWEST_CLASSES:
                return 0.0
            towards = -gradient.gather(1, target[:, None])
        else:
            return 0.0
        return float((towards < 0).double().mean())

    def unread(self) -> tuple[str, ...]:
        """Return the modules whose output was thrown away."""
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
        self._reached = reached_leaves(objective)
        self._of_outputs = set(reached_leaves(outputs))
        weights = {k for k, (site, *_) in enumerate(self._heard) if site[1] in (*WEIGHTS.values(), *OTHERS.values())}
        for path, leaf in self._cut_values:
            reader = next((k for k in find_readers(leaf, self._functions) if k in weights), None)
            if reader is not None:
                self._cut_readers.append((path, self._heard[reader][0][0], id(leaf)))
        self._functions = []

    def cut_values(self) -> tuple[CutValue, ...]:
        """Return the layers whose values go on without their graph, into layers that a gradient comes back from."""
        fetched = _fetched(
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
        """Return the attributes of modules that hold weights which learn, and which are no parameters of the model."""
        own = {id(parameter) for parameter in self.model.parameters()} | {id(leaf) for leaf in self._leaves}
        strangers = self._reached.keys() - own
        return tuple(
            f"{path}.{name}".lstrip(".")
            for path, module in self.model.named_modules()
            for name, value in (vars(module).items() if strangers else ())
            if name not in ("_parameters", "_buffers", "_modules")
            and any(id(t) in strangers for t in _weights_in(value))
        )

    def forget_gradients(self) -> None:
        """Drop what a backward that did not end has left."""
        self._gradients, self._end, self.of_parameters, self._silent = {}, [], {}, {}

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Hear what a layer's function returns; an embedding starts a graph, as a float input does."""
        self._used.update(id(leaf) for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, nn.Parameter))
        if self.follow_cuts and isinstance(result, Tensor) and _cuts(call):
            return self._follow_cut(call, result)
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
        flat = _saturated(family, made.detach(), dim, call) if family in SATURATING else None
        if call.name == "scaled_dot_product_attention":
            flat = _one_hot_attention(call)
        elif call.name == "multi_head_attention_forward":
            flat = _one_hot_multihead(call)
        elif call.name in ("lstm", "gru", "rnn_tanh"):
            flat = _saturated_gates(call, made.detach())
        self._hear(self.site(family), made, flat)
        if family == "softmax":
            self._leaks[len(self._heard) - 1] = _leak(call, made.detach(), dim)
            if isinstance(dim, int) and made.ndim > 1:
                self._softmaxes[id(made)] = made, dim % made.ndim
        return result

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
        result.register_hook(lambda gradient: self._cut_gradients.update({id(result): _norm(gradient)}))
        return result

    def before_call(self, call: FunctionCall) -> None:
        """Note a function of dropout that is switched on, although modules of dropout are off; note a detach."""
        for leaf in tree_leaves((call.args, call.kwargs)):
            self._unread.pop(id(leaf), None)
            self._dropped.pop(id(leaf), None)
            if id(leaf) in self._sites and call.name not in ("__get__", "size", "dim", "__len__"):
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
        self._heard.append((site, tuple(made.shape), made.dtype, _statistics(made.detach(), saturated, self._samples)))
        self._functions.append(made.grad_fn)
        if not torch.is_grad_enabled():
            self._held.clear()
        self._held[made.data_ptr()] = made, _version(made)
        self._sites[id(made)] = site
        self._row_ids.append(id(made))
        if made.requires_grad:
            if site[1] in (INPUT, "embedding") and made.shape[:1] == (self._samples,):
                self._differing[len(self._heard) - 1] = _by_place(made.detach() - made.detach()[:1])
                self.padding.hear(site[0], made)
            self._hooks.append(made.register_hook(functools.partial(self._returned, len(self._heard) - 1)))

    def _returned(self, index: int, gradient: Tensor) -> None:
        self._gradients[index] = _norm(gradient)
        if index in self._differing and gradient.ndim == 3 and FEWEST_STEPS < gradient.shape[1] <= MOST_STEPS:
            self._by_step[index] = gradient.detach().double().square().sum((0, 2)).sqrt()
        if index in self._differing:
            differing = self._differing[index]
            pairs = zip(differing, _by_place(gradient.detach()), strict=True)
            places = self._silent_places[index] = [differs & ~read for differs, read in pairs]
            shares = [p.sum() / differs.sum().clamp(min=1) for p, differs in zip(places, differing, strict=True)]
            self._silent[index] = torch.stack(shares).amax() if shares else gradient.new_zeros(())

    def confirm_silent(self, call: Call) -> int:
        """Run once more with other values where no gradient came back; return how many forwards that took.

        Places that no gradient comes back to may have an influence all the same. In a model that detaches something
        the gradient is cut; otherwise a maximum passes these places over, or the loss does not read what they move.
        """
        forwards = 0
        shares = _fetched([share.double().reshape(1) for share in self._silent.values()])
        for index, (share,) in zip(list(self._silent), shares, strict=True):
            if share > MOST_SILENT:
                changer = _PlaceChanger(self.model, self._heard[index][0], self._silent_places[index])
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

    def columns(self) -> tuple[WidestColumn | None, ...]:
        """Fetch what is to be said of the columns of the inputs."""
        fetched = iter(_fetched([column for column in self._columns if column is not None]))
        return tuple(
            None if column is None or math.isnan(usual) else WidestColumn(index=int(index), size=size, usual=usual)
            for column in self._columns
            for index, size, usual in [(0.0, 0.0, 0.0) if column is None else next(fetched)]
        )

    def parameters(self) -> tuple[ParameterRow, ...]:
        """Fetch what is to be said of the parameters."""
        held = [(n, p) for n, p in self.model.named_parameters() if not is_lazy(p) and p.numel() and not p.is_meta]
        none = torch.full((1,), -1.0, dtype=torch.float64)
        fetched = _fetched([_parameter_statistics(p) for _, p in held])
        norms = _fetched(
            [_norm(self.of_parameters[id(p)]).reshape(1) if id(p) in self.of_parameters else none for _, p in held]
        )
        return tuple(
            ParameterRow(
                name=name,
                shape=tuple(parameter.shape),
                trainable=id(parameter) in self._trained,
                used=id(parameter) in self._used or id(parameter) in self._reached,
                reached=id(parameter) in self._reached,
                root_mean_square=size,
                least=least,
                greatest=greatest,
                row_deviation=None if math.isnan(between) else between,
                leading_share=None if math.isnan(share) else share,
                gradient=None if norm < 0.0 else math.inf if math.isnan(norm) else norm,
            )
            for (name, parameter), (size, least, greatest, between, share), (norm,) in zip(
                held, fetched, norms, strict=True
            )
        )

    def rows(self, units: Mapping[Site, UnitsOverData]) -> tuple[SignalRow, ...]:
        """Fetch everything and return the rows."""
        indices = list(self._gradients)
        fetched = _fetched(
            [statistics for *_, statistics in self._heard]
            + [self._gradients[index].reshape(1) for index in indices]
            + [norm.reshape(1) for norm in self._end]
        )
        count = len(self._heard)
        end = math.hypot(*(norm for (norm,) in fetched[count + len(indices) :]))
        gradients = {index: norm for index, (norm,) in zip(indices, fetched[count:])}
        shares = _fetched([share.double().reshape(1) for share in self._silent.values()])
        silent = {index: share for index, (share,) in zip(self._silent, shares, strict=True)}
        steps = dict(zip(self._by_step, _fetched(list(self._by_step.values())), strict=True))
        leaks = {index: leak.reshape(1) for index, leak in self._leaks.items() if leak is not None}
        leaking = dict(zip(leaks, _fetched(list(leaks.values())), strict=True))
        return tuple(
            replace(
                _row(site, shape, dtype, fetched[k], _relative(gradients.get(k), end), units.get(site)),
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


def _weights_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors that an attribute holds: itself, in a module, a list or dict, or in a plain object."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif depth and not isinstance(value, type | ModuleType):
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        for item in inside or (vars(value).values() if hasattr(value, "__dict__") else ()):
            yield from _weights_in(item, depth - 1)


class _PlaceChanger(ForwardListener):
    """Runs a model with other values at some places of an input or an embedding."""

    def __init__(self, model: nn.Module, site: Site, places: Sequence[Tensor]) -> None:
        super().__init__(model, dropout=False)
        self._site, self._places = site, places

    def run(self, call: Call) -> Any:
        """Return what the model returns with values moved past those of the next sample."""
        at = {INPUT if len(call.variables) == 1 else f"{INPUT} {name}": id(leaf) for name, leaf in call.variables}
        chosen = at.get(self._site[0]) if self._site[1] == INPUT else None
        here = call.changed(lambda leaf: self._change(leaf) if id(leaf) == chosen else leaf.clone())
        seed_random(self.model)
        with torch.no_grad(), on_copies(self.model), self.listening():
            return self.model(*here.args, **here.kwargs)

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Change what the embedding returns."""
        if _family(call, result) == "embedding" and self.site("embedding") == self._site:
            return self._change(result)
        return result

    def _change(self, values: Tensor) -> Tensor:
        """Move the values at these places."""
        wide = [self._places[0][:, None], self._places[1]] if values.ndim == 3 else self._places
        there = functools.reduce(torch.logical_or, (places.expand(values.shape[1:]) for places in wide))
        return torch.where(there, values + FAR * (values.roll(1, 0) - values), values)


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


def _relative(norm: float | None, end: float) -> float | None:
    """Return log10 of a gradient's norm as a multiple of that at the output."""
    if norm is None or not (math.isfinite(norm) and 0.0 < end < math.inf):
        return None
    return log10(norm) - log10(end)


def _row(
    site: Site,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    figures: Sequence[float],
    gradient: float | None,
    units: UnitsOverData | None,
) -> SignalRow:
    mean, variance, least, greatest, below_float16, below_bfloat16, saturated, between = figures
    finite = all(map(math.isfinite, (least, greatest)))
    measured: dict[str, Any] = {
        "mean": mean,
        "deviation": math.sqrt(variance) if variance >= 0.0 else variance,
        "least": least,
        "greatest": greatest,
        "below_float16": below_float16,
        "below_bfloat16": below_bfloat16,
        "saturated": None if math.isnan(saturated) else saturated,
        "sample_deviation": None if math.isnan(between) else math.sqrt(max(between, 0.0)),
    }
    return SignalRow(
        path=site[0],
        kind=site[1],
        shape=shape,
        dtype=str(dtype).removeprefix("torch."),
        finite=finite,
        log10_gradient=gradient,
        dead=None if units is None else float(units.dead.double().mean()),
        **(measured if finite else {}),
    )


@torch.no_grad()
def _statistics(values: Tensor, saturated: Tensor | None, samples: int) -> Tensor:
    """Return mean, variance, range, shares below half precisions, what is saturated, the variance over the samples.

    The last two are NaN where there is none.
    """
    wide = values.double()
    variance, mean = torch.var_mean(wide, correction=0)
    least, greatest = torch.aminmax(wide)
    sizes = wide.abs()
    below = [((sizes < limit) & (sizes > 0)).double().mean() for limit in (FLOAT16_NORMAL, BFLOAT16_NORMAL)]
    unknown = torch.full_like(mean, math.nan)
    flat = unknown if saturated is None else saturated.double()
    comparable = samples > 1 and values.ndim > 0 and values.shape[0] == samples
    between = wide.var(0, correction=0).mean() if comparable else unknown
    return torch.stack([mean, variance, least, greatest, *below, flat, between])


@torch.no_grad()
def _saturated(family: str, made: Tensor, dim: Any, call: FunctionCall) -> Tensor | None:
    """Return the share of values in the flat parts of a sigmoid or tanh, or of one-hot rows of a softmax."""
    if family == "hardtanh":
        limits = {**dict(zip(("input", "min_val", "max_val"), call.args)), **call.kwargs}
        return ((made <= limits.get("min_val", -1.0)) | (made >= limits.get("max_val", 1.0))).double().mean()
    if family == "softmax":
        dim = dim if isinstance(dim, int) else -1
        return None if made.shape[dim] == 1 else (made.amax(dim) > 1.0 - FLAT).double().mean()
    low, high = (-1.0, 1.0) if family == "tanh" else (0.0, 1.0)
    edge = FLAT * (high - low)
    return ((made < low + edge) | (made > high - edge)).double().mean()


@torch.no_grad()
def _leak(call: FunctionCall, made: Tensor, dim: Any) -> Tensor | None:
    """Return the share that a softmax gives to entries which a mask was to hide, in rows with others."""
    filled = getattr(call.input, "grad_fn", None)
    if filled is None or operator_name(filled) != "MaskedFill" or not isinstance(dim, int):
        return None
    hidden = filled._saved_mask.expand(made.shape)
    rows = hidden.any(dim) & ~hidden.all(dim)
    return ((made * hidden).sum(dim) * rows).double().sum() / rows.sum().clamp(min=1)


def _one_hot_attention(call: FunctionCall) -> Tensor | None:
    """Return the share of rows of fused attention that look at one of several positions alone."""
    given = call.named()
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if query.shape[-3] != key.shape[-3]:  # grouped queries share keys
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    if given.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return _one_hot(query, key, mask, given.get("scale"))


def _one_hot_multihead(call: FunctionCall) -> Tensor | None:
    """Return the same for torch's own attention with its projections."""
    given = call.named()
    weight, bias, heads = given["in_proj_weight"], given["in_proj_bias"], given["num_heads"]
    weights = [given["q_proj_weight"], given["k_proj_weight"]] if weight is None else weight.chunk(3)[:2]
    biases = [None, None] if bias is None else bias.chunk(3)[:2]
    query, key = (
        torch.nn.functional.linear(given[name], own, shift).unflatten(-1, (heads, -1)).movedim(0, -2)
        for name, own, shift in zip(("query", "key"), weights, biases, strict=True)
    )
    mask = given["attn_mask"]
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = ~mask  # there, True means that a position is hidden
    return _one_hot(query, key, mask if mask is None or mask.ndim == 2 else None, None)


@torch.no_grad()
def _one_hot(query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> Tensor | None:
    """Return the share of rows with more than 99 % on one position, of those that may look at several."""
    rows, columns = query.shape[-2], key.shape[-2]
    if columns < 2:
        return None
    picked = slice(None, None, max(1, rows // ATTENTION_ROWS))
    scores = (scale or query.shape[-1] ** -0.5) * query.detach()[..., picked, :].double() @ key.detach().double().mT
    if mask is not None:
        mask = mask.detach().expand(*mask.shape[:-2], rows, columns)[..., picked, :]
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    several = (scores > scores.amax(-1, keepdim=True).clamp(min=-1e30) - HIDDEN_BELOW).sum(-1) > 1
    certain = scores.softmax(-1).amax(-1) > 1.0 - FLAT
    return (certain & several).double().sum() / several.sum().clamp(min=1)


@torch.no_grad()
def _saturated_gates(call: FunctionCall, made: Tensor) -> Tensor | None:
    """Return the share of a recurrent layer's gates that are wide open or shut, for the kind of gate with most of them.

    Of several layers the first is looked at.
    The state that a step reads is the output of the step before; where there are several layers, it is left out.
    """
    if call.name == "rnn_tanh":
        return (made.abs() > 1.0 - 2 * FLAT).double().mean()
    given, _, weights, biased, layers, _, _, both, batch_first = call.args[:9]
    if not isinstance(given, Tensor) or not isinstance(biased, bool):
        return None  # packed sequences
    shift = weights[2] + weights[3] if biased else None
    gates = torch.nn.functional.linear(given.detach(), weights[0], shift)
    if layers == 1 and not both and weights[1].shape[1] == made.shape[-1]:
        time = 1 if batch_first else 0
        before = made.roll(1, time)
        before.select(time, 0).zero_()
        gates = gates + before @ weights[1].mT
    edge = math.log((1.0 - FLAT) / FLAT)
    kept = [part for k, part in enumerate(gates.chunk(4 if call.name == "lstm" else 3, -1)) if k != 2]
    return torch.stack([(part.abs() > edge).double().mean() for part in kept]).amax()


@torch.no_grad()
def _parameter_statistics(parameter: Tensor) -> Tensor:
    """Return root mean square, range, deviation between the rows, and the share of the leading singular pair."""
    wide = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    wide = wide.double()
    least, greatest = torch.aminmax(wide)
    square = wide.square().mean()
    rows = wide.flatten(1) if wide.ndim > 1 else wide[None]
    if min(rows.shape) < 2:
        return torch.stack([square.sqrt(), least, greatest, *[torch.full_like(square, math.nan)] * 2])
    between = rows.var(0, correction=0).mean().sqrt()
    vector = torch.ones(rows.shape[1], dtype=wide.dtype, device=wide.device) + rows.abs().sum(0)
    for _ in range(POWER_STEPS):
        vector = rows.mT @ (rows @ vector)
        vector = vector / torch.linalg.vector_norm(vector).clamp(min=1e-300)
    share = (rows @ vector).square().sum() / rows.square().sum().clamp(min=1e-300)
    return torch.stack([square.sqrt(), least, greatest, between, share])


def _by_place(values: Tensor) -> list[Tensor]:
    """Return where values are not zero for any sample: by column, by position and feature, or by pixel and channel."""
    there = (values != 0).any(0)
    if there.ndim == 2:
        return [there.any(1), there.any(0)]
    if there.ndim > 2:
        return [there.any(0), there.flatten(1).any(1).reshape(-1, *(1,) * (there.ndim - 1))]
    return [there] if there.ndim else []


@torch.no_grad()
def _widest_column(values: Tensor) -> Tensor | None:
    """Return the column of a table with the largest values, their size and that of a usual column; None for others."""
    if values.ndim not in (2, 3) or values.shape[-1] < 2:
        return None
    sizes = values.detach().double().flatten(0, -2).square().mean(0).sqrt()
    usual = torch.where(sizes > 0, sizes, math.nan).nanmedian()
    return torch.stack([sizes.argmax().double(), sizes.max(), usual])


def _norm(gradient: Tensor) -> Tensor:
    gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.linalg.vector_norm(gradient.detach().abs(), dtype=torch.float64)


def _signs(value: Tensor) -> Tensor:
    """Return random signs, the same for the same shape."""
    generator = torch.Generator(value.device).manual_seed(0)
    drawn = torch.empty(value.shape, device=value.device).bernoulli_(0.5, generator=generator)
    return (2.0 * drawn - 1.0).to(value.dtype)


def _fetched(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return small vectors as lists of floats, with one transfer from each device."""
    found: list[list[float]] = [[] for _ in tensors]
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        here = [k for k, tensor in enumerate(tensors) if tensor.device == device]
        values = iter(torch.cat([tensors[k] for k in here]).tolist())
        for k in here:
            found[k] = [next(values) for _ in range(tensors[k].numel())]
    return found
