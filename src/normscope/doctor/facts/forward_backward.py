"""`run_forward_backward`: one forward and one backward on one batch, and all facts that they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ...calls.batches import LossFunction
from ...calls.call import Call, arguments, labels_of, map_leaves
from ...core.budget import count
from ...core.errors import InputError, describe_error
from ...core.threads import ignore_warnings, uncompiled
from ...core.untouched import DROPOUTS, on_copies, random_state, seed_random, untouched
from ...listening.calls import FunctionCall, Site, as_floats, float_tensors, tensors_in
from ...listening.listener import ForwardListener
from .activations import Softmaxes, layer_kind, saturated_share
from .autograd_graph import Reached, nodes_before, reached_leaves
from .batch import (
    BatchFacts,
    PaddingCollector,
    fetch_columns,
    find_constant_columns,
    find_telling_column,
    widest_column,
)
from .calls import CallFacts, Casts, Dropouts
from .collector import Collector
from .detached import CutValues, GraphCuts, GraphEnds, UnreadOutputs, cuts_graph
from .divergence import Divergence, DivergenceTerm, find_divergence, find_untaught
from .flow import FlowCollector
from .input_use import Recurrence, SilentPlaces
from .layers import INPUT, LayerRow, Layers, name_input, norm_of
from .layers_over_data import UnitsOverData
from .loss import LossListener
from .objective import Objective, own_loss, random_signs, take_loss
from .parameters import ParameterCollector
from .pass_facts import PassFacts
from .steps import Optimizers, StepFacts, Trial, try_steps

NO_GRADIENT = "the output does not depend on anything that has a gradient"
"""Why there is no backward where autograd has nothing to follow."""
NO_LOSS_GIVEN = (
    'optimizer= needs loss=: pass it too, as in check(model, data, loss="cross_entropy"), where data are pairs (x, y) '
    "or dicts with labels"
)


def run_forward_backward(
    model: nn.Module,
    batch: Any,
    *,
    mode: str | None = None,
    output: str | int | None = None,
    loss: LossFunction | None = None,
    optimizer: Optimizers | None = None,
    units: Mapping[Site, UnitsOverData] | None = None,
) -> PassFacts:
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
        The facts; without gradients where there is no backward, with the reason.

    Raises:
        InputError: the model does not accept the batch, or the loss cannot be taken.
    """
    call = arguments(model, batch)
    labels = labels_of(batch, call)
    with ExitStack() as stack:
        stack.enter_context(untouched(model, mode))
        stack.enter_context(untouched(_Holder(loss), traced=True))
        stack.enter_context(uncompiled())
        stack.enter_context(ignore_warnings("Converting a tensor with requires_grad=True"))  # a branch on a value
        stack.enter_context(ignore_warnings("Full backward hook is firing"))  # a hook of the user's
        runs = 0
        for follow_cuts in (True, False):  # what asks for a gradient can be written to or handed to numpy no more
            run, runs = _Pass(model, call, Objective(loss, output, labels), follow_cuts=follow_cuts), runs + 1
            stack.callback(run.layers.remove_hooks)
            try:
                reason = run.both_ways()
            except Exception as error:  # a forward that cannot be differentiated may still run
                if isinstance(error, InputError) and not run.cut_values.has_values:
                    raise
                reason = f"autograd cannot follow the model ({describe_error(error)})"
                run.forget_gradients()
            if reason is None or not run.cut_values.has_values:
                break
        if run.objective.has_own_loss:
            loss = own_loss
        if optimizer is not None and loss is None:
            raise InputError(NO_LOSS_GIVEN)
        raises = None
        if reason is not None and reason != NO_GRADIENT:
            from .raising import find_raising  # loaded only where a backward raised

            raises = find_raising(model, call, batch, output, loss)
        if not run.complete:
            run, runs = _Pass(model, call, Objective(loss, output, labels)), runs + 1
            stack.callback(run.layers.remove_hooks)
            run.without_gradient()
        steps = None if loss is None else run.try_steps(loss, optimizer)
        divergence = run.read_divergence()
        tried = run.silent.confirm(call, run.objective.returned) + (divergence is not None)
        at_output = run.objective.at_output(loss)
    named = [(name_input(name, len(call.variables)), tensor) for name, tensor in call.variables]
    forwards, backwards = runs + tried, int(reason is None) + (divergence is not None)
    count("passes", forwards * call.count)
    count("backwards", backwards * call.count)
    return PassFacts(
        rows=run.rows({} if units is None else units),
        samples=call.count,
        forwards=forwards + (0 if steps is None else steps.forwards),
        backwards=backwards + (0 if steps is None else steps.backwards),
        objective=run.objective.facts(has_loss=loss is not None),
        reason=reason,
        loss=run.objective.facts_of_loss,
        at_output=at_output,
        divergence=divergence,
        parameters=run.parameters.rows(),
        weights=run.parameters.use(),
        flow=run.flow.facts(),
        cuts=run.cuts(),
        calls=run.calls(raises),
        batch=BatchFacts(
            columns=fetch_columns(run.columns),
            padding=run.padding.facts(),
            telling=find_telling_column(named, next(iter(labels), None)),
            constant=find_constant_columns(named),
        ),
        steps=steps,
    )


class _Holder(nn.Module):
    """Holds a loss, so that what it keeps from call to call (a running centre, a list) is put back as a model's is."""

    def __init__(self, loss: LossFunction | None) -> None:
        super().__init__()
        self.loss = loss


class _Pass(ForwardListener):
    """Runs a model forward and backward, and lets each collector see what it notes.

    Attributes:
        complete: whether a forward came to its end.
        follow_cuts: whether values that go on without their graph are asked for the gradient that they lose.
    """

    def __init__(self, model: nn.Module, call: Call, objective: Objective, *, follow_cuts: bool = True) -> None:
        super().__init__(model, dropout=False)
        self.call, self.objective, self.follow_cuts = call, objective, follow_cuts
        self.complete = self.draws = False
        self.columns = list[Tensor | None]()
        self._divergence: DivergenceTerm | None = None
        layers = self.layers = Layers(call.count)
        self.ends = GraphEnds(layers, model)
        self.flow = FlowCollector(layers, self.ends, DROPOUTS)
        self.parameters = ParameterCollector(layers, model)
        self.unread = UnreadOutputs(layers, self.ends, model)
        self.cut_values = CutValues(layers)
        self.silent, self.recurrence = SilentPlaces(layers, self.ends, model), Recurrence(layers, model)
        self.padding, self.softmaxes = PaddingCollector(layers), Softmaxes(layers)
        self.dropouts, self.casts = Dropouts(layers, model), Casts(layers)
        self._collectors: tuple[Collector, ...] = (
            self.flow,  # which the ones behind it ask who feeds whom
            self.ends,
            self.parameters,
            self.unread,
            self.cut_values,
            self.silent,
            self.recurrence,
            self.padding,
            self.softmaxes,
            self.dropouts,
            self.casts,
        )

    def both_ways(self) -> str | None:
        """Run one forward and one backward; return why there is no backward, if there is none."""
        objective = self.objective
        with torch.enable_grad(), on_copies(self.model):
            seed_random(self.model)
            with LossListener() as losses:
                made = self._forward()
                outputs = objective.choose(made)
                for collector in self._collectors:
                    collector.follow_outputs(outputs)
                values = objective.take(made, outputs, losses)
            objective.read(values, losses, self.layers, self.call.leaves)
            is_loss, returned = objective.value is not None, as_floats(made)
            self._read_graph(values if is_loss else returned, returned)
            reason = self._backward(values, outputs, random=not is_loss)
            if objective.loss is not None:
                self._divergence = find_divergence(objective.loss, made, objective.output, objective.labels)
            return reason

    def without_gradient(self) -> None:
        """Run the forward alone; what it raises now is no fault of autograd's."""
        try:
            with torch.no_grad():
                self._forward()
        except Exception as error:
            raise InputError(
                f"the model raises {describe_error(error)}, on this batch. Pass a batch the model accepts: "
                "model(batch) must work."
            ) from error

    def _forward(self) -> Any:
        """Run the model, its float inputs as the first rows."""
        variables = self.call.variables
        fed = {id(tensor): self.layers.new_leaf(tensor) for _, tensor in variables}
        for collector in self._collectors:
            collector.begin(self.call)
        for name, tensor in variables:
            self._hear((name_input(name, len(variables)), INPUT, 0), fed[id(tensor)])
        self.columns = [widest_column(tensor) for _, tensor in variables]
        self.layers.release()
        args, kwargs = map_leaves(lambda leaf: fed.get(id(leaf), leaf), (self.call.args, self.call.kwargs))
        before = random_state(self.model)
        with self.listening():
            made = self.model(*args, **kwargs)
        self.draws = before != random_state(self.model)
        for collector in self._collectors:
            collector.forward_ended(tensors_in(made))
        self.complete = True
        self.layers.release()
        return made

    def before_call(self, call: FunctionCall) -> None:
        """Show the call to each collector."""
        leaves, path = call.leaves, self.path
        for collector in self._collectors:
            collector.before_call(call, leaves, path)

    def after_call(self, call: FunctionCall, result: Any) -> Any:
        """Hear what a layer's function returns; an embedding starts a graph, as a float input does."""
        leaves, path = call.leaves, self.path
        if self.follow_cuts and isinstance(result, Tensor) and cuts_graph(call):
            self.parameters.after_call(call, leaves, result, path)
            return self.cut_values.replace(leaves, result)
        for collector in self._collectors:
            collector.after_call(call, leaves, result, path)
        kind = layer_kind(call, result)
        if kind is None:
            return result
        if kind == "embedding" and torch.is_grad_enabled() and not result.requires_grad:
            result = self.layers.new_leaf(result)
        made = result[0] if isinstance(result, tuple) else result
        number = self._hear(self.site(kind), made, saturated_share(call, kind, made.detach()))
        for collector in self._collectors:
            collector.after_layer(number, call, result, made)
        return result

    def entered(self, path: str | None, args: Any) -> None:
        """Show the arguments of a module to each collector."""
        for collector in self._collectors:
            collector.module_entered(self.path, args)

    def left(self, module: nn.Module, path: str, made: Any) -> None:
        """Hear what a module returns, unless a layer that was heard returned it."""
        floats = float_tensors(made)
        for collector in self._collectors:
            collector.module_returned(path, floats)
        if floats and not self.layers.is_held(floats[0]):
            self._hear(self.site(type(self.modules[path]).__name__, path), floats[0])

    def _hear(self, site: Site, made: Tensor, saturated: Tensor | None = None) -> int:
        """Add a row."""
        number = self.layers.add(site, made, saturated)
        for collector in self._collectors if made.requires_grad else ():
            collector.heard(number, made)
        return number

    def _read_graph(self, objective: Sequence[Tensor], returned: Sequence[Tensor]) -> None:
        """Read autograd's graph, and hold it no longer."""
        reached = Reached(reached_leaves(objective), set(reached_leaves(returned)), returned)
        for collector in self._collectors:
            collector.read_graph(reached)
        self.ends.tensors, self.layers.functions = [], []

    def _backward(self, objective: Sequence[Tensor], outputs: Sequence[Tensor], *, random: bool) -> str | None:
        """Run one backward; return why there is none."""
        objective = [value for value in objective if value.requires_grad]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        leaves = self.layers.leaves or trained
        if not objective or not leaves:
            return NO_GRADIENT
        for tensor in outputs:
            if tensor.requires_grad:
                self.layers.follow(tensor, self._end_returned)
        signs = [random_signs(value) if random else torch.ones_like(value) for value in objective]
        if any("CheckpointFunction" in node.name() for node in nodes_before(objective)):  # it refuses `grad`
            for tensor in (*leaves, *trained):
                tensor.grad = None
            torch.autograd.backward(objective, signs)
            gradients = tuple(tensor.grad for tensor in (*leaves, *trained))
        else:
            gradients = torch.autograd.grad(objective, [*leaves, *trained], signs, allow_unused=True)
        for parameter, gradient in zip(trained, gradients[len(leaves) :], strict=True):
            if gradient is not None:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                self.parameters.gradients[id(parameter)] = dense
        return None

    def _end_returned(self, gradient: Tensor) -> None:
        """Note the gradient at an output, and its size."""
        self.layers.end_gradients.append(norm_of(gradient))
        if gradient.shape[:1] == (self.layers.samples,):
            self.objective.gradients.append(gradient.detach())

    def forget_gradients(self) -> None:
        """Drop what a backward that did not end has left."""
        self.layers.forget_gradients()
        for collector in self._collectors:
            collector.forget_gradients()

    def try_steps(self, loss: LossFunction, optimizer: Optimizers | None) -> StepFacts | None:
        """Try steps along the gradients that the backward has left; None where it left none."""
        output, labels, value = self.objective.output, self.objective.labels, self.objective.value
        if not self.parameters.gradients or value is None:
            return None

        def loss_of(made: Any, samples: slice) -> Tensor:
            chosen = [v[samples] if isinstance(v, Tensor) and v.ndim else v for v in labels]
            return take_loss(loss, made, output, chosen)

        return try_steps(self.model, self.call, loss_of, self.parameters.by_name(), float(value), optimizer)

    def read_divergence(self) -> Divergence | None:
        """Return how a divergence in the loss counts, and which modules nothing else in the loss teaches."""
        term = self._divergence
        if term is None:
            return None
        try:
            of_term = Trial(self.model, self.call, lambda made, _: term.of(made)).gradients()
        except Exception:  # a model may refuse to run with its weights handed to it
            of_term = {}
        untaught = find_untaught(self.parameters.by_name(), of_term)
        return Divergence(weight=term.factor * self.call.count, untaught=untaught)

    def rows(self, units: Mapping[Site, UnitsOverData]) -> tuple[LayerRow, ...]:
        """Fetch the rows, with what other collectors have noted of them."""
        more: dict[int, dict[str, Any]] = {}
        for collector in (self.silent, self.recurrence, self.softmaxes):
            for number, fields in collector.of_rows().items():
                more.setdefault(number, {}).update(fields)
        return self.layers.rows(units, more)

    def cuts(self) -> GraphCuts:
        """Return where the graph ends too early."""
        return GraphCuts(
            unread=self.unread.paths(),
            lost=self.unread.lost(),
            cut_values=self.cut_values.facts(),
            detached_at=self.ends.outputs_detached_at,
            discriminator=self.ends.discriminator,
        )

    def calls(self, raises: tuple[str, str, str] | None) -> CallFacts:
        """Return what functions did that no values show."""
        return CallFacts(
            dropouts=tuple(self.dropouts.calls),
            draws=self.draws,
            wrong_axis=self.softmaxes.wrong_axis,
            rounded=self.casts.rounded(),
            unscaled=self.softmaxes.unscaled,
            raises=raises,
            unheard=self.unheard,
        )


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
