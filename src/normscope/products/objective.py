"""`Objective`: the mean loss over batches as a function of the parameters, with gradients and curvature products."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..calls.batches import Batch, LossFunction, kept_batches, loss_function, loss_of
from ..calls.call import quantized
from ..core.budget import count
from ..core.errors import InputError, NotFiniteError, describe_error
from ..core.threads import full_precision, math_attention, without_cudnn
from ..core.untouched import ProtectedParameters, dropping_nothing, mode_of, on_copies, untouched
from ..theory.losses import Loss

MISSING = re.compile(r"derivative for '?(?:aten::)?([\w.]+)'? is not implemented")
"""The error message by which torch says that an operator has no derivative."""
DISAGREEMENT = 0.1
"""How far a product may be from differences of gradients, relative to the larger: kinks may lie between the points."""
MAX_ENTRIES_TOGETHER = 2**23
"""About how many entries the tensors of the backward may have in products computed together: more save no time."""
TWICE = "the loss cannot be differentiated twice: {} has no second derivative. Replace it by an operator that has one"


@dataclass
class _Traced:
    """One batch's loss with its gradients, both still differentiable."""

    loss: Tensor
    gradients: tuple[Tensor | None, ...]

    @cached_property
    def at_once(self) -> int:
        """How many products may be computed together: each has a tensor at every node of the backward."""
        entries = sum(math.prod(one.shape) for node in _nodes(self.gradients) for one in node._input_metadata)
        return max(1, MAX_ENTRIES_TOGETHER // max(entries, 1))


class Objective:
    """The mean loss over batches, at the parameters of a model that need gradients.

    A batch counts with the number of its samples, so that losses that are means over a batch give the mean over all
    samples. In train mode every batch has its own statistics. Vectors are flat, in the order of
    `model.named_parameters()`.

    Args:
        model: any `torch.nn.Module`.
        data: a batch, an iterable of batches, or a data set.
        labels: the labels of one batch, or their key in batches that are dicts.
        loss: a function of outputs and targets, the name of a loss, or None for the loss the model returns.
        mode: `"train"`, `"eval"`, or None for the mode the model is in.
        batches: read at most this many batches; None for all.

    Attributes:
        parameters: the parameters that need gradients, by name.
        products: how many products with a curvature matrix were computed; each is a pass over all batches.
        gradients: how many gradients were computed.
        draws: whether a forward pass drew random numbers although dropout is off; all passes draw the same ones.

    Raises:
        InputError: there is no parameter, no batch, or no loss.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        labels: Any = None,
        loss: LossFunction | str | Loss | None = None,
        mode: str | None = None,
        batches: int | None = None,
    ) -> None:
        self.mode = mode_of(model, mode)
        self.model = model
        self.function = loss_function(loss)
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}
        if not self.parameters:
            raise InputError("the model has no parameter that needs gradients: its loss has no curvature")
        devices = {p.device for p in self.parameters.values()}
        if len(devices) > 1:
            raise InputError(f"the parameters lie on {len(devices)} devices: put the model on one")
        self.batches = kept_batches(model, data, batches, own_loss=loss is None, labels=labels)
        self.samples = sum(batch.samples for batch in self.batches)
        self.products = self.gradients = 0
        self.draws = False
        [self.device] = devices
        wide = any(p.dtype == torch.float64 for p in self.parameters.values())
        self.dtype = torch.float64 if wide else torch.float32
        self.size = sum(p.numel() for p in self.parameters.values())
        self._kept: _Traced | None = None
        self._moved = False
        self._one_by_one = False  # whether an operator of the backward has no rule for several vectors at once
        self._custom: str | None = None  # The names of the user's own autograd functions in the loss; None: not read.
        self._weights = ProtectedParameters(model)

    @contextmanager
    def measuring(self) -> Iterator[Objective]:
        """Run a block in the mode that is measured, and leave the model exactly as it was found."""
        recurrent = any(isinstance(module, nn.RNNBase) for module in self.model.modules())
        with ExitStack() as stack:
            stack.enter_context(untouched(self.model, self.mode, traced=True))
            stack.enter_context(dropping_nothing(self.model))
            stack.enter_context(full_precision())
            stack.enter_context(torch.enable_grad())
            stack.enter_context(math_attention())  # The other backends have no second derivative.
            if recurrent:
                stack.enter_context(without_cudnn())
            as_found = self.vector()
            self._moved = False
            try:
                yield self
            finally:
                if self._moved:
                    self.place(as_found)
                self._kept = None
                with torch.no_grad():
                    self._weights.restore()

    def vector(self) -> Tensor:
        """Return a copy of the parameters as one vector."""
        return self.flat([p.detach() for p in self.parameters.values()])

    def place(self, vector: Tensor) -> None:
        """Put other values into the parameters, until `measuring` ends."""
        self._kept, self._moved = None, True
        with torch.no_grad():
            for parameter, part in zip(self.parameters.values(), self.parts(vector), strict=True):
                parameter.copy_(part)

    def flat(self, tensors: Sequence[Tensor | None], chosen: Sequence[nn.Parameter] | None = None) -> Tensor:
        """Return tensors with the shapes of the parameters, or of chosen ones, as one vector; None stands for zeros."""
        parameters = list(self.parameters.values()) if chosen is None else chosen
        return torch.cat(
            [
                torch.zeros(p.numel(), dtype=self.dtype, device=self.device)
                if t is None
                else t.detach().to(self.dtype).reshape(-1)
                for t, p in zip(tensors, parameters, strict=True)
            ]
        )

    def parts(self, vector: Tensor, chosen: Sequence[nn.Parameter] | None = None) -> list[Tensor]:
        """Return a vector, or rows, as tensors with the shapes and the dtypes of the parameters, or of chosen ones."""
        parameters = list(self.parameters.values()) if chosen is None else chosen
        pieces = vector.split([p.numel() for p in parameters], -1)
        return [
            piece.reshape(*vector.shape[:-1], *p.shape).to(p.dtype) for piece, p in zip(pieces, parameters, strict=True)
        ]

    def share(self, batch: Batch) -> float:
        """Return the weight of a batch in the mean loss: its share of all samples."""
        return batch.samples / self.samples

    def outputs(self) -> Iterator[tuple[Any, Batch]]:
        """Yield what the model returns for every batch, without gradients."""
        with torch.no_grad():
            for batch in self.batches:
                yield self._output(batch), batch

    def loss(self) -> float:
        """Return the mean loss at the present parameters, also if it is infinite or NaN: one forward pass."""
        total = sum(self.share(batch) * loss_of(self.function, out, batch).double() for out, batch in self.outputs())
        return float(total)

    def gradient(self) -> tuple[float, Tensor]:
        """Return the mean loss and its gradient at the present parameters."""
        self.gradients += 1
        loss, total = 0.0, torch.zeros(self.size, dtype=self.dtype, device=self.device)
        parameters = list(self.parameters.values())
        for batch in self.batches:
            if self._kept is not None:
                value, gradients = self._kept.loss, self._kept.gradients
            else:
                value = loss_of(self.function, self._output(batch), batch)
                count("backwards", batch.samples)
                gradients = torch.autograd.grad(self._differentiable(value), parameters, allow_unused=True)
            loss += self.share(batch) * float(value.detach().double())
            total += self.share(batch) * self.flat(gradients)
        return loss, total

    def trace(self) -> None:
        """Keep the differentiable gradients of a single batch, so that the gradient and all products share them."""
        if len(self.batches) == 1:
            self._traced(self.batches[0])

    def check_custom(self, direction: Tensor) -> None:
        """Compare a product with differences of gradients if the loss uses the user's own autograd functions.

        Autograd takes the backward of such a function for its derivative without a check.
        """
        if self._custom is None:
            self._traced(self.batches[0])
        if not self._custom:
            return
        here, product = self.vector(), self.hessian(direction)
        step = torch.finfo(self.dtype).eps ** (1 / 3) * float(here.double().norm()) / float(direction.double().norm())
        ends = []
        for side in (step, -step):
            self.place(here + side * direction)
            ends.append(self.gradient()[1])
        self.place(here)
        differences = (ends[0] - ends[1]) / (2 * step)
        size = max(float(product.norm()), float(differences.norm()), torch.finfo(self.dtype).tiny)
        if float((product - differences).norm()) > DISAGREEMENT * size:
            raise InputError(
                "what autograd gives as the second derivative is not that of the loss: products with the Hessian and "
                f"differences of gradients disagree. Look at the backward of {self._custom}"
            )

    def hessian(self, vector: Tensor) -> Tensor:
        """Return the Hessian of the mean loss times a vector, or times each of several rows."""
        return self._product(vector, list(self.parameters.values()))

    def block(self, *names: str) -> Callable[[Tensor], Tensor]:
        """Return products with the diagonal block of the Hessian that belongs to one parameter, or to several."""
        chosen = [self.parameters[name] for name in names]
        return lambda vector: self._product(vector, chosen)

    def gauss_newton(self, vector: Tensor) -> Tensor:
        """Return J^T H J times a vector or rows, J the Jacobian of the outputs, H the Hessian of the loss in these."""
        if self.function is None:
            raise InputError("the Gauss-Newton matrix needs outputs and a loss apart: pass loss=")
        if vector.ndim > 1:
            return torch.stack([self.gauss_newton(row) for row in vector])
        self.products += 1
        parameters = list(self.parameters.values())
        parts = self.parts(vector)
        total = torch.zeros_like(vector)
        for batch in self.batches:
            with self._twice():
                product = self._curved(self._output(batch), batch, parameters, parts)
            total += self.share(batch) * self.flat(product)
        return total

    def _curved(
        self, output: Any, batch: Batch, parameters: list[nn.Parameter], parts: list[Tensor]
    ) -> Sequence[Tensor | None]:
        """Return J^T H J times a vector for one batch."""
        ends, moved = self._moved_ends(output, parameters, parts)
        leaves, shape = tree_flatten(output)
        indices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        for index, end in zip(indices, ends, strict=True):
            leaves[index] = end.detach().requires_grad_()
        free = [leaves[index] for index in indices]
        loss = loss_of(self.function, tree_unflatten(leaves, shape), batch)
        slopes = torch.autograd.grad(loss, free, create_graph=True, allow_unused=True)
        curved = [(s, m) for s, m in zip(slopes, moved, strict=True) if s is not None and s.requires_grad]
        if not curved:
            return [None] * len(parameters)
        bent = torch.autograd.grad(
            [s for s, _ in curved],
            free,
            [torch.zeros_like(s) if m is None else m for s, m in curved],
            materialize_grads=True,
            allow_unused=True,
        )
        return torch.autograd.grad(ends, parameters, bent, allow_unused=True)

    @staticmethod
    def _moved_ends(
        output: Any, parameters: list[nn.Parameter], parts: list[Tensor]
    ) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        """Return the outputs that depend on the parameters, and J v of each, v a move of the parameters.

        The product J v is the derivative of the backward pass, u -> J^T u, with respect to a vector of zeros.
        """
        ends = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not ends:
            raise InputError("the outputs of the model do not depend on its parameters")
        dummies = [torch.zeros_like(end, requires_grad=True) for end in ends]
        pulled = torch.autograd.grad(ends, parameters, dummies, create_graph=True, allow_unused=True)
        linear = [(g, v) for g, v in zip(pulled, parts, strict=True) if g is not None]
        return ends, torch.autograd.grad([g for g, _ in linear], dummies, [v for _, v in linear], allow_unused=True)

    def differentiate(self, batch: Batch, direction: Tensor) -> tuple[Any, Tensor, Tensor, Tensor]:
        """Return the output of a batch, its mean loss, the gradient, and each sample's slope along a direction.

        Everything comes from one forward pass. The slope of a sample is the derivative of its own loss; the loss of the
        batch must be the mean of these, and no sample may influence the output of another.
        """
        if self.function is None:
            raise InputError("slopes of single samples need outputs and a loss apart: pass loss=")
        self.gradients += 1
        parameters = list(self.parameters.values())
        with self._twice():
            output = self._output(batch)
            loss = self._differentiable(loss_of(self.function, output, batch))
            ends, moved = self._moved_ends(output, parameters, self.parts(direction))
            count("backwards", 2 * batch.samples)
            slopes = torch.autograd.grad(loss, ends, retain_graph=True, materialize_grads=True, allow_unused=True)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        by_sample = torch.zeros(batch.samples, dtype=torch.float64, device=self.device)
        for end, slope, move in zip(ends, slopes, moved, strict=True):
            if end.ndim == 0 or end.shape[0] != batch.samples:
                raise InputError(f"an output has shape {tuple(end.shape)}, and not one row for each sample")
            if move is not None:
                by_sample += batch.samples * (slope.double() * move.double()).reshape(batch.samples, -1).sum(1)
        return output, loss.detach(), self.flat(gradients), by_sample

    def _product(self, vector: Tensor, chosen: list[nn.Parameter]) -> Tensor:
        """Return the block of the Hessian that belongs to some parameters times a vector, or times each of several."""
        rows = vector.reshape(-1, vector.shape[-1])
        self.products += len(rows)
        places = {id(p): index for index, p in enumerate(self.parameters.values())}
        total = torch.zeros_like(rows)
        for batch in self.batches:
            with self._twice():
                traced = self._traced(batch)
                gradients = [traced.gradients[places[id(p)]] for p in chosen]
                if not any(g is not None and g.requires_grad for g in gradients):  # linear in these parameters
                    continue
                at_once = 1 if self._one_by_one or len(rows) == 1 else traced.at_once
                products = torch.cat([self._differentiate(gradients, chosen, part) for part in rows.split(at_once)])
            count("backwards", 2 * batch.samples * len(rows))
            total += self.share(batch) * products
        return total.reshape(vector.shape)

    def _differentiate(self, gradients: list[Tensor | None], chosen: list[nn.Parameter], rows: Tensor) -> Tensor:
        """Return the derivatives of gradients times each of several rows, together where every operator can do that."""
        differentiable = [g for g in gradients if g is not None and g.requires_grad]

        def product(row: Tensor) -> Tensor:
            parts = zip(gradients, self.parts(row, chosen), strict=True)
            along = [part for g, part in parts if g is not None and g.requires_grad]
            return self.flat(
                torch.autograd.grad(differentiable, chosen, along, retain_graph=True, allow_unused=True), chosen
            )

        if len(rows) > 1 and not self._one_by_one:
            try:
                return torch.vmap(product)(rows)
            except (RuntimeError, NotImplementedError, ValueError):
                self._one_by_one = True
        return torch.stack([product(row) for row in rows])

    def _traced(self, batch: Batch) -> _Traced:
        """Return a batch's loss with differentiable gradients; those of a single batch are kept for later products."""
        if self._kept is not None:
            return self._kept
        loss = self._differentiable(loss_of(self.function, self._output(batch), batch))
        gradients = torch.autograd.grad(loss, list(self.parameters.values()), create_graph=True, allow_unused=True)
        if self._custom is None:
            own = (getattr(type(node), "_forward_cls", None) for node in _nodes([loss]))
            self._custom = ", ".join(dict.fromkeys(cls.__name__ for cls in own if cls is not None))
            if any(type(node).__name__ == "Error" for node in _nodes(gradients)):  # Autograd would return zeros here.
                raise InputError(TWICE.format(self._custom or "one of its operators"))
        traced = _Traced(loss, gradients)
        if len(self.batches) == 1:
            self._kept = traced
        return traced

    def _output(self, batch: Batch) -> Any:
        """Run the model on a batch, on copies of its inputs and buffers, with the same random numbers every time."""
        count("passes", batch.samples)
        args, kwargs = tree_map(
            lambda v: v.clone() if isinstance(v, Tensor) else v, (batch.call.args, batch.call.kwargs)
        )
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self._weights, on_copies(self.model):
            before = torch.random.get_rng_state(), *map(torch.cuda.get_rng_state, devices)
            try:
                output = self.model(*args, **kwargs)
            except Exception as error:
                shapes = [tuple(leaf.shape) for leaf in batch.call.leaves if isinstance(leaf, Tensor)]
                raise InputError(
                    f"the model raises {describe_error(error)}, on a batch with inputs of shapes {shapes}: batches "
                    "are pairs "
                    "(input, target), or dicts whose targets are called labels"
                ) from error
            after = torch.random.get_rng_state(), *map(torch.cuda.get_rng_state, devices)
            self.draws |= not all(map(torch.equal, before, after))
            return output

    def _differentiable(self, loss: Tensor) -> Tensor:
        """Return the loss; refuse one without a gradient."""
        if not loss.requires_grad:
            raise InputError("the loss does not depend on the parameters that need gradients: there is no gradient")
        if not bool(torch.isfinite(loss.detach())):
            raise NotFiniteError(f"the loss is {float(loss.detach())} at these parameters: it has no gradient")
        refuse_lost_gradients(self.model, loss)
        return loss

    @contextmanager
    def _twice(self) -> Iterator[None]:
        """Name the operator in the error where one cannot be differentiated twice."""
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            named = MISSING.search(str(error))
            if named is None:
                raise
            raise InputError(TWICE.format(named[1])) from error


def refuse_lost_gradients(model: nn.Module, loss: Tensor) -> None:
    """Refuse a loss whose gradient ends at an operator that has none: torch warns and leaves this share of it out."""
    if any(node.name().endswith("WarnNotImplemented") for node in _nodes([loss])):
        raise InputError(
            quantized(model)
            or "the loss depends on its variables through an operator for which torch has no derivative: its gradient "
            "would lack that share. Register a backward for the operator, or replace it"
        )


def _nodes(tensors: Sequence[Tensor | None]) -> Iterator[Any]:
    """Yield the nodes of the autograd graph that lead to some tensors."""
    waiting: list[Any] = [t.grad_fn for t in tensors if t is not None and t.grad_fn is not None]
    visited: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            yield node
            waiting.extend(before for before, _ in node.next_functions if before is not None)
