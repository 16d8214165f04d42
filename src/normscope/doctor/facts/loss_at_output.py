"""What the gradient of a loss at the model's one output shows of the loss, and the loss at outputs that are changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...calls.batches import LossFunction
from ...core.codec import JsonForm, Part

MAX_LABELS, MIN_SAMPLES_OF_LABEL, MIN_CLASSES = 10, 8, 3
"""The most different labels that count as names of kinds, not as numbers; the fewest samples of a label that share
something not by chance; the fewest classes, for two values may be names of any two kinds."""
IGNORED_LABEL = -100
"""The class by which torch leaves an entry out of a loss."""
MOVE_FACTOR = 3.0
"""How far outputs are moved, as a multiple of the largest of them and of the targets."""
SAME_LOSS = 1e-4
"""The share by which a loss may differ by rounding."""
SURE_SCORE = 16.0
"""A score of this size leaves a sigmoid 1e-7 from its end."""
NEARLY_NO_LOSS_SHARE, MUCH_LOSS_SHARE = 0.05, 0.2
"""The loss at perfect answers over that at the outputs: below the first they fit the loss, above the second not."""
SOLVED_LOSS = 1e-3
"""Samples with a smaller loss need no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts(Part):
    """How a loss reads the model's one output.

    Attributes:
        wanted: what the loss takes where outputs are none: `probabilities` or `scores`; empty where that is not known.
        idle_label: the label of which no sample gets a gradient at the output, while others do.
        pushed_away: the share of the outputs that a step against the gradient of the loss moves away from their
            targets, where both are known.
        classes_as_numbers: of a loss that is a squared error, however it is written: how many classes there are whose
            numbers the outputs are to equal; 0 where they are to equal other targets.
        means_alone: whether the loss stays as it is with other outputs that have the same mean over the samples.
    """

    JSON: ClassVar[JsonForm] = JsonForm(sparse=(...,))

    wanted: str = ""
    idle_label: float | None = None
    pushed_away: float = 0.0
    means_alone: bool = False
    classes_as_numbers: int = 0


@dataclass(frozen=True, kw_only=True)
class LossAtOutput:
    """The one output of a model, with samples as its first dimension, its gradient, the loss and the labels of that."""

    loss: LossFunction
    labels: Sequence[Any]
    output: Tensor
    gradient: Tensor

    def facts(self, limits: tuple[float, float] | None) -> OutputFacts:
        """Return what the loss shows at this output, and at other outputs and samples."""
        return OutputFacts(
            idle_label=self.find_idle_label(),
            means_alone=self.reads_means_alone(),
            classes_as_numbers=self.count_classes_as_numbers(),
            pushed_away=self.find_pushed_away(),
            wanted=self.find_wanted(limits),
        )

    def find_idle_label(self) -> float | None:
        """Return the label whose samples get no gradient at the output, all of them, though their loss is not zero."""
        samples = len(self.output)
        kinds = [v for v in self.labels if isinstance(v, Tensor) and v.numel() == samples and not v.is_complex()]
        if not kinds:
            return None
        moves, kind = (self.gradient != 0).reshape(samples, -1).any(1).cpu(), kinds[0].detach().flatten().cpu()
        values = kind.unique()
        if not 2 <= len(values) <= MAX_LABELS:
            return None
        idle = [float(v) for v in values if not moves[kind == v].any() and (kind == v).sum() >= MIN_SAMPLES_OF_LABEL]
        if len(idle) != 1 or not bool(moves.any()):
            return None
        rows = (kind == idle[0]).nonzero().flatten().to(self.output.device)
        chosen = [v[rows] if isinstance(v, Tensor) and len(v) == samples else v for v in self.labels]
        try:
            left = float(self.loss(self.output[rows], *chosen))
        except Exception:  # a loss may need samples of every label
            return None
        return idle[0] if left > SOLVED_LOSS else None

    def reads_means_alone(self) -> bool:
        """Whether the loss is the same for outputs that differ from these, and have the same mean over the samples."""
        samples = len(self.output)
        differ = [v for v in self.labels if isinstance(v, Tensor) and v.shape[:1] == (samples,) and v.numel()]
        if samples < MIN_SAMPLES_OF_LABEL:
            return False
        if not bool((self.gradient == self.gradient[:1]).all() & (self.gradient != 0).any()):
            return False
        if not any(bool((v != v[:1]).any()) for v in differ):
            return False
        noise = torch.linspace(-1.0, 1.0, samples, dtype=self.output.dtype, device=self.output.device)
        spread = MOVE_FACTOR * (
            self.output.abs().amax() + max(float(v.abs().max()) for v in differ if not v.is_complex())
        )
        moved = self.output + spread * noise.reshape(-1, *(1,) * (self.output.ndim - 1))
        before, after = self._losses_at(self.output, moved) or (0.0, 1.0)
        return abs(after - before) <= SAME_LOSS * abs(before)

    def count_classes_as_numbers(self) -> int:
        """Return the number of classes whose numbers a squared error wants outputs to equal; 0 where that is not so.

        The gradient of a squared error grows by the same at every step of the output, and is zero at the targets.
        """
        label = next((v for v in self.labels if isinstance(v, Tensor) and v.shape[:1] == self.output.shape[:1]), None)
        if label is None or label.is_complex() or label.ndim > self.output.ndim or not label.numel():
            return 0
        kinds = len(label.unique())
        per_class = not label.is_floating_point() and label.ndim + 1 == self.output.ndim
        if per_class and kinds >= MIN_CLASSES and set(label[label < 0].tolist()) <= {IGNORED_LABEL}:
            kinds = max(kinds, self.output.shape[-1])  # an output for each class: a small batch has not all of them
        elif int(label.min()):
            return 0
        named = not label.is_floating_point() or self.output.shape[-1:] == (1,) or self.output.ndim == 1
        whole = bool((label == label.round()).all()) if label.is_floating_point() else True
        if not named or not whole or kinds < MIN_CLASSES or int(label.max()) >= kinds:
            return 0
        gradients: list[Tensor] = []
        try:
            for step in range(3):
                output = (self.output.detach().double() + step).requires_grad_()
                with torch.enable_grad():
                    gradients.append(*torch.autograd.grad(self.loss(output, *self.labels), output))
        except Exception:  # a loss may refuse such values, or read something else than the output
            return 0
        first, second = gradients[1] - gradients[0], gradients[2] - gradients[1]
        if bool((first <= 0).any()) or bool(((second - first).abs() > SAME_LOSS * first).any()):
            return 0
        wanted = self.output.double() - gradients[0] / first
        numbers = label.double().reshape(*label.shape, *(1,) * (self.output.ndim - label.ndim))
        return kinds if bool(((wanted - numbers).abs() < SAME_LOSS * kinds).all()) else 0

    def find_pushed_away(self) -> float:
        """Return the share of outputs that steps against the gradient of the loss move away from their targets.

        These are numbers, one for each output, or the classes of the samples. Two values may be the names of kinds.
        """
        output, gradient = self.output, self.gradient
        if len(self.labels) != 1 or not isinstance(self.labels[0], Tensor) or not bool(gradient.any()):
            return 0.0
        target = self.labels[0]
        columns = target.ndim == output.ndim and all(
            n in (1, m) for n, m in zip(target.shape, output.shape, strict=True)
        )
        if target.is_floating_point() and columns and len(target.unique()) > MAX_LABELS:
            towards = gradient * (output - target)
        elif target.dtype == torch.long and target.shape == output.shape[:1] and output.ndim == 2:
            inside = output.shape[1] > 2 and int(target.min()) >= 0 and int(target.max()) < output.shape[1]
            if not inside or len(target.unique()) < MIN_CLASSES:
                return 0.0
            towards = -gradient.gather(1, target[:, None])
        else:
            return 0.0
        return float((towards < 0).double().mean())

    def find_wanted(self, limits: tuple[float, float] | None) -> str:
        """Return `probabilities` or `scores`, whichever the loss takes, if the outputs are the other; else nothing.

        The loss is taken at perfect answers, made of labels that are classes or zeros and ones. A loss of probabilities
        is small where the outputs are these zeros and ones, and should not be smaller still beyond them. A loss of
        scores is small where outputs are far from zero on the right side.
        """
        right = self._right_answers()
        if right is None:
            return ""
        inside = limits is not None and limits[0] >= 0.0 and limits[1] <= 1.0
        losses = self._losses_at(self.output, right, SURE_SCORE * (2 * right - 1), 2 * right)
        if losses is None:
            return ""
        now, certain, far, beyond = losses
        if inside:
            return "scores" if certain > MUCH_LOSS_SHARE * now > 0.0 and far < NEARLY_NO_LOSS_SHARE * certain else ""
        leaves = bool((self.output < 0).any()) and limits is None
        return (
            "probabilities"
            if leaves and abs(certain) < NEARLY_NO_LOSS_SHARE * now and beyond < -MUCH_LOSS_SHARE * now
            else ""
        )

    def _losses_at(self, *outputs: Tensor) -> list[float] | None:
        """Return the loss at some outputs; None where it refuses such values."""
        try:
            return [float(self.loss(output, *self.labels)) for output in outputs]
        except Exception:
            return None

    def _right_answers(self) -> Tensor | None:
        """Return the outputs that know the labels: 1 for what is true, else 0; None for other labels than classes."""
        labels = [v for v in self.labels if isinstance(v, Tensor)]
        if len(labels) != 1 or labels[0].is_complex() or not self.output.is_floating_point() or self.output.ndim < 1:
            return None
        (target,) = labels
        if target.numel() == self.output.numel() and len(self.output.unique()) > 1:
            binary = bool(((target == 0) | (target == 1)).all()) and bool((target != target.flatten()[0]).any())
            return target.reshape(self.output.shape).to(self.output.dtype) if binary else None
        classes = self.output.shape[1] if self.output.ndim > 1 else 0
        counted = target.dtype == torch.long and target.shape == (len(self.output), *self.output.shape[2:])
        if not counted or classes < 2 or int(target.min()) < 0 or int(target.max()) >= classes:
            return None
        return torch.zeros_like(self.output).scatter_(1, target[:, None], 1.0)
