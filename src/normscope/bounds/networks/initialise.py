"""`initialise`: rescale every weight layer so that its output has a standard deviation of one, at a batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ...calls.call import Call, arguments
from ...calls.data_reader import Batches
from ...calls.stand_ins import accepts_graph
from ...core.codec import JsonForm, Part
from ...core.errors import CaptureError, InputError, describe_error
from ...core.shown import Shown, data_frame
from ...core.untouched import Mode, mode_of, outside_inference_mode, untouched, unwrapped
from ..graph.capturing import trace_model
from ..operators.invariance import feeds
from .twin import Where, chosen, copied, run, weight_layers

if TYPE_CHECKING:
    import pandas

UNIT_DEVIATION_TOLERANCE = 0.01
"""A layer whose output has a standard deviation this close to one is not rescaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What was done to one weight layer.

    Attributes:
        path: the path of the module.
        before, after: the standard deviation of its output, over all values, before and after the rescaling.
        factor: the factor on its weight and bias; 1 where it was not rescaled.
        log10_gradient_before, log10_gradient_after: log10 of the norm of the gradient at its output, relative to that
            at the output of the model; None where there is none.
        reason: why it was not rescaled.
    """

    path: str
    before: float
    after: float
    factor: float
    log10_gradient_before: float | None = None
    log10_gradient_after: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialisation(Part, Shown):
    """What `normscope.initialise` did. Prints as a table.

    Attributes:
        model: the rescaled model: a copy, or the one that was given with `inplace=True`; None where the
            result was read from a file.
        layers: one entry per weight layer that ran, in the order they run.
        mode: the mode in which the model was measured.
        notes: what the reader must know.
    """

    page = "normscope.bounds.pages.weights:initialisation_document"
    JSON: ClassVar[JsonForm] = JsonForm(left_out=("model",))

    model: nn.Module = field(default=None, repr=False)  # type: ignore[assignment]
    layers: tuple[Scaled, ...]
    mode: str
    notes: tuple[str, ...] = ()

    def to_pandas(self) -> pandas.DataFrame:
        """Return one line per layer.

        Raises:
            InputError: pandas is not installed.
        """
        return data_frame(map(asdict, self.layers))

    @property
    def factors(self) -> dict[str, float]:
        """The factors on weight and bias by layer, for the layers that were rescaled."""
        return {layer.path: layer.factor for layer in self.layers if layer.factor != 1.0}


@accepts_graph
@outside_inference_mode
def initialise(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    where: Where = None,
    mode: Mode | None = None,
    inplace: bool = False,
) -> Initialisation:
    """Rescale a fresh model so that the output of every weight layer has a standard deviation of one, at a batch.

    In the order in which the layers run, each weight and its bias are divided by the standard deviation of the layer's
    output, which divides the output by it exactly: one forward pass is enough. So the signal neither fades nor grows
    with depth, and neither does the gradient in layers of equal width. Layers that feed a normalizer are not rescaled,
    as the normalizer would undo it. The result lists every layer, with values and gradients before and after.

    Args:
        model: any `torch.nn.Module` (or its captured graph); it is left as it is, unless `inplace` says otherwise.
        data: inputs as they will be in training: a batch, an iterable of batches such as a `DataLoader`, or a data set;
            the first batch is measured. None for the batch of a captured graph.
        labels: the labels of one batch, or the key that they have in batches that are dicts; None to recognise them.
        where: which layers to rescale: patterns of module paths, or a function of path and module; None for all.
        mode: `"train"`, `"eval"`, or None for the mode the model is in. A model with BatchNorm should be in `"train"`.
        inplace: change the model itself and not a copy, so that an optimizer that knows its parameters stays valid.

    Returns:
        `.model`, `.layers` with each factor, and `.factors`; prints as a table.

    Raises:
        InputError: the model does not accept the batch, or its outputs are not finite.

    Example:
        >>> import torch, normscope as ns
        >>> deep = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(20)))
        >>> done = ns.initialise(deep, torch.randn(64, 32))
        >>> done.layers[-1].before < 0.2, round(done.layers[-1].after, 6), len(done.factors)
        (True, 1.0, 20)

    Reference: Mishkin and Matas 2016, All You Need Is a Good Init, without its orthogonal start.
    """
    mode = mode_of(model, mode)
    inner = unwrapped(model)
    batches = Batches(inner, data, labels=labels)
    batch = batches.first
    call = arguments(inner, batch)
    target = inner if inplace else copied(inner)
    notes = [*batches.notes]
    before = _deviations_and_gradients(target, call, mode)
    if not before:
        raise InputError("no linear layer or convolution of the model runs as a module: there is nothing to rescale")
    left_alone = _left_alone(target, batch, mode, where, notes)
    factors = _rescale(target, call, mode, left_alone)
    after = _deviations_and_gradients(target, call, mode)
    rows = tuple(
        Scaled(
            path=path,
            before=deviation,
            after=after[path][0],
            factor=factors.get(path, 1.0),
            log10_gradient_before=gradient,
            log10_gradient_after=after[path][1],
            reason=left_alone.get(path, ""),
        )
        for path, (deviation, gradient) in before.items()
    )
    if inplace and inner is not model:
        notes.append("the model inside the wrapper was changed")
    return Initialisation(model=model if inplace else target, layers=rows, mode=mode, notes=tuple(notes))


@contextmanager
def _on_outputs(model: nn.Module, function: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
    """Call a function with the path and the output of every weight layer; it may return another output."""

    def hook(path: str) -> Callable[..., Any]:
        return lambda module, args, output: function(path, output)

    hooks = [module.register_forward_hook(hook(path)) for path, module in weight_layers(model)]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _deviations_and_gradients(model: nn.Module, call: Call, mode: str) -> dict[str, tuple[float, float | None]]:
    """Return the standard deviation of every layer's output, and log10 of the gradient there, in the order of running.

    The loss is the sum of the model's outputs with random signs. A layer that runs several times counts with its first
    run.
    """
    by_layer: dict[str, Tensor] = {}

    def keep(path: str, output: Tensor) -> None:
        by_layer.setdefault(path, output)

    with untouched(model, mode), torch.enable_grad():
        with _on_outputs(model, keep):
            outputs = run(model, call)
        if not bool(torch.isfinite(outputs).all()):
            raise InputError("the model gives NaN or infinite values on this batch")
        generator = torch.Generator(outputs.device).manual_seed(0)
        signs = 2.0 * torch.empty(outputs.shape, device=outputs.device).bernoulli_(0.5, generator=generator) - 1.0
        differentiable = [value for value in by_layer.values() if value.requires_grad]
        gradients: dict[int, Tensor | None] = {}
        if outputs.requires_grad and differentiable:
            slopes = torch.autograd.grad((outputs * signs.to(outputs)).sum(), differentiable, allow_unused=True)
            gradients = {id(value): gradient for value, gradient in zip(differentiable, slopes)}
    size = math.sqrt(outputs.numel())
    return {path: (_deviation(value), _relative(gradients.get(id(value)), size)) for path, value in by_layer.items()}


def _relative(gradient: Tensor | None, size: float) -> float | None:
    """Return log10 of the norm of a gradient relative to a size."""
    if gradient is None:
        return None
    norm = float(gradient.detach().double().norm())
    return math.log10(norm / size) if norm > 0.0 else -math.inf


def _deviation(values: Tensor) -> float:
    return float(values.detach().double().std(correction=0))


def _left_alone(model: nn.Module, batch: Any, mode: str, where: Where, notes: list[str]) -> dict[str, str]:
    """Return the layers that are not rescaled, each with the reason."""
    reasons: dict[str, str] = {}
    try:
        fed = {feed.weight.path: feed for feed in feeds(trace_model(model, batch, mode=mode)) if feed.scale_invariant}
    except (CaptureError, InputError) as error:
        fed = {}
        notes.append(f"which layers feed a normalizer is not known ({describe_error(error)}): all are rescaled")
    uses = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    for path, module in weight_layers(model):
        if not chosen(where, path, module):
            reasons[path] = "not asked for"
        elif path in fed:
            reasons[path] = f"feeds `{fed[path].normalizer.path}`, which takes the scale back"
        elif hasattr(module, "parametrizations"):
            reasons[path] = "its weight is made by a parametrization"
        elif any(uses[id(parameter)] > 1 for parameter in module.parameters(recurse=False)):
            reasons[path] = "shares its weight with another layer"
    return reasons


def _rescale(model: nn.Module, call: Call, mode: str, left_alone: dict[str, str]) -> dict[str, float]:
    """Run the model once; divide each layer and its output by the output's standard deviation; return the factors.

    Layers whose output has no such deviation are added to those that are left alone.
    """
    factors: dict[str, float] = {}

    def rescaled(path: str, output: Tensor) -> Tensor | None:
        if path in left_alone:
            return None
        if path in factors:  # The layer runs again.
            return output * factors[path]
        deviation = _deviation(output)
        if deviation == 0.0 or not math.isfinite(deviation):
            left_alone[path] = "its output is constant" if deviation == 0.0 else "its output is not finite"
            return None
        factors[path] = 1.0 if abs(deviation - 1.0) <= UNIT_DEVIATION_TOLERANCE else 1.0 / deviation
        return output * factors[path]

    with untouched(model, mode), torch.no_grad(), _on_outputs(model, rescaled):
        run(model, call)
    modules = dict(model.named_modules())
    with torch.no_grad():
        for path, factor in factors.items():
            for parameter in modules[path].parameters(recurse=False):
                parameter.mul_(factor)
    return factors
