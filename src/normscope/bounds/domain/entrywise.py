"""Operators as their steps over a domain: entrywise functions, products, matrix products, normalizers without eps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...core.rounding import numerical
from ...graph.ir import Node
from ...linalg.linear_map import Diagonal, Identity
from ...rules.effects import Effect, Gain, Linear, Unbounded
from ...rules.local.entry_sets import Normalize
from ...rules.local.local import Affine, UnrolledStep
from ...rules.local.products import MatrixProduct, Multiply
from ...rules.local.scalar import Scalar
from .conditions import DomainCondition, Interval, LeastMeanSquare, MatrixNorm
from .pieces import DerivativeValue, Limits, Treatment, inverse_deviations
from .slopes import sloped


class UnrolledOperator(Treatment):
    """An operator as its steps: entrywise functions, products, matrix products, normalizers without eps."""

    def __init__(
        self,
        node: Node,
        effect: Effect,
        steps: Sequence[UnrolledStep],
        shapes: Mapping[str, tuple[int, ...]],
        axis: int | None,
    ) -> None:
        super().__init__(node, effect, steps)
        constant = [step for step in steps if isinstance(step.operation, Affine) and not step.operands]
        self.constants = {step.name: getattr(step.operation, "constant", None) for step in constant}
        self.at: dict[tuple[str, int], DomainCondition] = {}
        for step in steps:
            for i, name in enumerate(step.operands):
                if name in self.constants or isinstance(step.operation, Affine):
                    continue
                key, shape = f"{step.name}:{i}", shapes[name]
                if isinstance(step.operation, Scalar | Multiply):
                    place = axis if len(shape) == len(node.shape) else None
                    found: DomainCondition = Interval(key, node, step.name, (name,), shape, place)
                elif isinstance(step.operation, MatrixProduct):
                    found = MatrixNorm(key, node, step.name, (name,))
                else:
                    found = LeastMeanSquare(key, node, step.name, (name,), 1)
                self.at[step.name, i] = found
        self.conditions = tuple(self.at.values())

    def pieces(self, limits: Limits) -> list[DerivativeValue]:
        """Turn every step into pieces."""
        found: list[DerivativeValue] = []
        for step in self.steps:
            if step.name in self.constants:
                continue
            match step.operation:
                case Affine():
                    found.append(self._affine(step, step.operation))
                case Scalar():
                    found += self._scalar(step, step.operation, limits)
                case Multiply():
                    found += self._multiply(step, limits)
                case MatrixProduct():
                    found.append(self._matrix_product(step, limits))
                case Normalize():
                    inverse = inverse_deviations(limits[self.at[step.name, 0].key], step.operation.eps)
                    effect = self._gain(step, [float(inverse[0])])
                    found.append(DerivativeValue(step.name, step.operands, step.shape, effect))
        return found

    def _affine(self, step: UnrolledStep, affine: Affine) -> DerivativeValue:
        pairs = [(m, name) for m, name in zip(affine.maps, step.operands, strict=True) if name not in self.constants]
        effect = Linear(maps=tuple(m for m, _ in pairs), disjoint=affine.disjoint)
        return DerivativeValue(step.name, tuple(name for _, name in pairs), step.shape, effect)

    def _scalar(self, step: UnrolledStep, scalar: Scalar, limits: Limits) -> list[DerivativeValue]:
        condition = self.at[step.name, 0]
        assert isinstance(condition, Interval)
        low, high = condition.bounds(limits[condition.key])
        a, b = (x[0] for x in scalar.slopes(low[None].contiguous(), high[None].contiguous()))
        exact = scalar.margin == 0.0 and scalar.wobble == 0.0
        return self._entrywise(step.name, step.operands[0], a, b, step.shape, exact, scalar.reason)

    def _entrywise(
        self, name: str, operand: str, a: Tensor, b: Tensor, shape: tuple[int, ...], exact: bool, reason: str
    ) -> list[DerivativeValue]:
        if not bool((a.isfinite() & b.isfinite()).all()):
            reason = reason.replace("within the ball", "within the domain").replace("over the ball", "over the domain")
            return [DerivativeValue(name, (operand,), shape, Unbounded(reason=reason))]
        core, scale = sloped(a, b, exact=exact)
        if scale is None:
            return [
                DerivativeValue(name, (operand,), shape, core if core is not None else Linear(maps=(Identity(shape),)))
            ]
        behind = Linear(maps=(Diagonal(scale, shape),))
        if core is None:
            return [DerivativeValue(name, (operand,), shape, behind)]
        inner = f"{name}~core"
        return [DerivativeValue(inner, (operand,), shape, core), DerivativeValue(name, (inner,), shape, behind)]

    def _multiply(self, step: UnrolledStep, limits: Limits) -> list[DerivativeValue]:
        left, right = step.operands
        for one, other in ((left, right), (right, left)):
            if one in self.constants:
                constant = self.constants[one]
                assert constant is not None
                effect = Linear(maps=(Diagonal(constant.double().expand(step.shape), step.shape),))
                return [DerivativeValue(step.name, (other,), step.shape, effect)]
        found: list[DerivativeValue] = []
        for i, side in enumerate(("left", "right")):
            condition = self.at[step.name, 1 - i]
            assert isinstance(condition, Interval)
            a, b = condition.bounds(limits[condition.key])
            found += self._entrywise(
                f"{step.name}~{side}",
                step.operands[i],
                a,
                b,
                step.shape,
                True,
                f"an unbounded factor in {self.node.where}",
            )
        both = Linear(maps=(Identity(step.shape), Identity(step.shape)))
        return [*found, DerivativeValue(step.name, (f"{step.name}~left", f"{step.name}~right"), step.shape, both)]

    def _matrix_product(self, step: UnrolledStep, limits: Limits) -> DerivativeValue:
        gains, refs = [], []
        for i, name in enumerate(step.operands):
            if name in self.constants:
                continue
            other = step.operands[1 - i]
            if other in self.constants:
                constant = self.constants[other]
                assert constant is not None
                size = float(torch.linalg.matrix_norm(constant.double(), ord=2).amax()) * (1 + 1e-9)
            else:
                size = float(limits[self.at[step.name, 1 - i].key][0])
            gains.append(size)
            refs.append(name)
        return DerivativeValue(step.name, tuple(refs), step.shape, self._gain(step, gains))

    def _gain(self, step: UnrolledStep, gains: Sequence[float]) -> Effect:
        if not all(map(math.isfinite, gains)):
            return Unbounded(reason=f"no finite gain over the domain in {self.node.where}")
        return Gain(gains=tuple(numerical(gain) for gain in gains))


_FIRST = ("conv", "padded_convolution", "batch_norm", "_native_batch_norm", "group_norm", "instance_norm", "max_pool")
_LAST = ("linear", "layer_norm", "rms", "matmul", "mm", "bmm", "addmm", "scaled_dot_product")
_SHAPING = ("view", "reshape", "permute", "transpose", "flatten", "squeeze", "unsqueeze", "t", "movedim")


def channel_axis(node: Node, producers: Mapping[str, Node]) -> int | None:
    """Return the dimension of channels of an entrywise node: behind convolutions the second, behind `linear` the last.

    It decides how finely ranges are recorded, and nothing else.
    """
    rank, here = len(node.shape), node
    if rank < 3:
        return rank - 1 if rank else None
    while here.refs and here.refs[0] in producers:
        here = producers[here.refs[0]]
        if here.operator in _SHAPING or len(here.shape) != rank:
            break
        if here.operator.startswith(_LAST):
            return rank - 1
        if here.operator.startswith(_FIRST):
            return 1
    return rank - 1 if rank == 3 else 1
