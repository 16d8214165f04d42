"""Matrices: `linear`, and products with a constant matrix or of two bounded values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.log10 import product_above as above
from ...core.rounding import numerical
from ..graph import samples
from ..graph.ir import Node, Ref
from ..graph.traits import describe
from ..linalg.folding import compose
from ..linalg.linear_map import Matrix, Reindex
from .effects import Effect, Gain, Linear, Range, Unbounded, coded, spread
from .local.local import Builder
from .local.products import product_of
from .registry import Factors, MatmulWord, rule

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default: 0, aten.matmul.default: 0, aten.bmm.default: 0, aten.mv.default: 0, aten.dot.default: 0,
    aten.addmm.default: 1, aten.baddbmm.default: 1, aten.addmv.default: 1,
}  # fmt: skip
"""Products of two factors, and where the first of them stands among the arguments."""
MATRICES = (aten.linear.default, aten.addmm.default, aten.mm.default, aten.matmul.default)
"""What a layer with one matrix runs, whatever calls it."""


def weighted(node: Node) -> Factors:
    """Return input, weight and bias of a layer that calls them so."""
    arguments = node.bound()
    return Factors(arguments["input"], arguments["weight"], arguments.get("bias"))


def _factors(node: Node) -> Factors:
    first = PRODUCTS[node.op]
    return Factors(node.args[first], node.args[first + 1], node.args[0] if first else None)


def _layer_steps(node: Node, build: Builder) -> str | None:
    """`x W^T + b` with a weight that depends on the input."""
    arguments = node.bound()
    image, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    if not isinstance(weight, Ref) or len(image.shape) < 2 or len(weight.shape) != 2:
        return None
    return _with_bias(
        build, product_of(build, build.operand(image), build.move_entries(weight.name, lambda x: x.mT)), bias
    )


def _with_bias(build: Builder, product: str, bias: Any) -> str:
    """Add a bias, which may depend on the input or be absent, to a product in the node's shape."""
    if bias is None:
        return product
    shape, device = build.node.shape, build.node.device
    terms = [(product, spread(Ref(product, shape), shape, 1, device))]
    if not isinstance(bias, Ref):
        return build.affine(terms, bias.double().expand(shape))
    return build.affine([*terms, (bias.name, spread(bias, shape, 1, device))])


@rule(
    aten.linear.default,
    examples=[
        (nn.Linear(5, 3), (2, 5)),
        (nn.Linear(4, 6, bias=False), (2, 3, 4)),
        (lambda x: F.linear(x.tanh(), x.sigmoid()), (2, 3)),
    ],
    linear=True,
    local=_layer_steps,
    factors=weighted,
)
def linear(node: Node, operands: Sequence[Range]) -> Effect:
    """A matrix on the last dimension."""
    arguments = node.bound()
    weight = arguments["weight"]
    if not isinstance(weight, Tensor) or not isinstance(arguments["input"], Ref):
        return Unbounded(reason=f"a product with a weight that depends on the input, in {node.where}")
    return Linear(maps=(Matrix(weight, node.shape[:-1]),))


def _product_steps(node: Node, build: Builder) -> str | None:
    """A matrix product of two variable values."""
    left, right = node.args[:2]
    if not (isinstance(left, Ref) and isinstance(right, Ref)) or min(len(left.shape), len(right.shape)) < 2:
        return None
    return product_of(build, left.name, right.name)


def _product_word(node: Node) -> MatmulWord | None:
    """Two stacks of matrices with the same leading dimensions."""
    shapes = [ref.shape for ref in node.operands]
    if len(shapes) != 2 or min(map(len, shapes)) < 2 or shapes[0][:-2] != shapes[1][:-2]:
        return None
    return MatmulWord()


@rule(
    aten.mm.default, aten.matmul.default, aten.bmm.default,
    examples=[
        (lambda x: x @ torch.linspace(-1, 1, 12).reshape(4, 3), (2, 4)),
        (lambda x: torch.linspace(-1, 1, 6).reshape(2, 3) @ x, (3, 4)),
        (lambda x: torch.linspace(-1, 1, 24).reshape(2, 3, 4) @ x.tanh(), (2, 4, 2)),
        (lambda x: torch.matmul(x.sigmoid(), x.tanh().mT), (2, 3)),
        (lambda x: torch.bmm(x.softmax(-1), x.tanh()), (2, 3, 3)),
        (lambda x: torch.bmm(x, torch.linspace(-1, 1, 12).reshape(2, 3, 2)), (2, 3, 3)),
        (lambda x: torch.mm(x, torch.linspace(-1, 1, 6).reshape(3, 2)), (2, 3)),
        (lambda x: torch.mm(x.tanh(), x.sigmoid().mT), (2, 3)),
    ],
    linear=True, local=_product_steps, word=_product_word, factors=_factors,
)  # fmt: skip
@rule(
    aten.mv.default, aten.dot.default,
    examples=[
        (lambda x: torch.mv(x, torch.ones(3)), (2, 3)), (lambda x: torch.dot(x, torch.linspace(1, 2, 3)), (3,)),
    ],
    linear=True, factors=_factors,
)  # fmt: skip
def product(node: Node, operands: Sequence[Range]) -> Effect:
    """A product with a constant matrix, or of two bounded values."""
    left, right = node.args[:2]
    if isinstance(left, Ref) and isinstance(right, Ref):
        return _bilinear(node, left, right, operands)
    if isinstance(left, Ref) and right.ndim == 2 and len(left.shape) >= 2:
        return Linear(maps=(Matrix(right.mT, left.shape[:-1]),))
    if isinstance(right, Ref) and left.ndim == 2 and len(right.shape) == 2:
        swap_in = Reindex.of(lambda x: x.mT, right.shape, node.device)
        turned = Matrix(left, (right.shape[-1],))
        return Linear(
            maps=(compose(Reindex.of(lambda x: x.mT, turned.out_shape, node.device), compose(turned, swap_in)),)
        )
    return Linear(maps=(coded(node, 0),))


def _bilinear(node: Node, left: Ref, right: Ref, operands: Sequence[Range]) -> Effect:
    """`A @ B` with both variable: Frobenius norms of the bounded factors are the gains."""
    if len(left.shape) < 2 or len(right.shape) < 2 or left.shape[:-2] != right.shape[:-2]:
        return Unbounded(
            reason=f"{node.op} of two variable operands of shapes {left.shape} and {right.shape} in {node.where}"
        )
    a, b = operands
    norms = (above(b.row, right.shape[-2] ** 0.5), above(a.row, left.shape[-2] ** 0.5))
    if not all(value < float("inf") for value in norms):
        return Unbounded(reason=f"a product of two unbounded values in {node.where}")
    gains = tuple(numerical(value, "bounded product") for value in norms)
    width = node.shape[-1]
    return Gain(gains=gains, range=Range.of(above(a.row, norms[0]), width, above(a.row, norms[0])))


def _added_steps(node: Node, build: Builder) -> str | None:
    """`beta bias + alpha A B` with both factors variable."""
    bias, left, right = node.args[:3]
    arguments = node.bound()
    if not (isinstance(left, Ref) and isinstance(right, Ref)):
        return None
    product = product_of(build, left.name, right.name)
    alpha, beta = float(arguments.get("alpha", 1)), float(arguments.get("beta", 1))
    name = build.operand(bias)
    return build.affine(
        [
            (product, spread(Ref(product, node.shape), node.shape, alpha, node.device)),
            (name, spread(Ref(name, build.shapes[name]), node.shape, beta, node.device)),
        ]
    )


@rule(
    aten.addmm.default, aten.baddbmm.default,
    examples=[
        (lambda x: torch.addmm(torch.ones(3), x, torch.linspace(-1, 1, 12).reshape(4, 3)), (2, 4)),
        (lambda x: torch.addmm(x, x.relu(), torch.linspace(-1, 1, 9).reshape(3, 3), beta=2, alpha=3), (2, 3)),
        (lambda x: torch.baddbmm(torch.ones(2, 3, 4), x, torch.linspace(-1, 1, 24).reshape(2, 3, 4)), (2, 3, 3)),
        (lambda x: torch.addmm(torch.ones(2), x.tanh(), x.sigmoid().mT), (2, 3)),
        (lambda x: torch.baddbmm(torch.ones(2, 3, 3), x.tanh(), x.sigmoid()), (2, 3, 3)),
    ],
    linear=True, local=_added_steps, factors=_factors,
)  # fmt: skip
@rule(
    aten.addmv.default,
    examples=[(lambda x: torch.addmv(torch.ones(2), x, torch.linspace(1, 2, 3)), (2, 3))],
    linear=True, factors=_factors,
)  # fmt: skip
def addmm(node: Node, operands: Sequence[Range]) -> Effect:
    """A bias plus a product with a constant matrix."""
    bias, left, right = node.args[:3]
    scale = node.bound().get("alpha", 1)
    plain = isinstance(left, Ref) and isinstance(right, Tensor) and right.ndim == 2 and not isinstance(bias, Ref)
    if plain:
        return Linear(maps=(Matrix(right.mT * scale, left.shape[:-1]),))
    if isinstance(left, Ref) and isinstance(right, Ref):
        return Unbounded(reason=f"a product of two variable values in {node.where}")
    return Linear(maps=tuple(coded(node, position) for position in range(len(node.operands))))


def _form_steps(node: Node, build: Builder) -> str | None:
    """`x W_k y + b_k`: every W_k times y, as the rows of a matrix, and that times x."""
    left, right, weight, bias = (*node.args, None)[:4]
    if not (isinstance(left, Ref) and isinstance(right, Ref) and isinstance(weight, Tensor)):
        return None
    outputs, inner, other = weight.shape
    turned = build.affine([(right.name, Matrix(weight.reshape(outputs * inner, other), right.shape[:-1]))])
    rows = build.move_entries(turned, lambda y: y.reshape(*right.shape[:-1], outputs, inner))
    product = product_of(build, rows, build.move_entries(left.name, lambda x: x[..., None]))
    return _with_bias(build, build.move_entries(product, lambda x: x[..., 0]), bias)


class _Form(nn.Module):
    """A function of an input and a bilinear layer."""

    def __init__(
        self, function: Callable[[Tensor, nn.Module], Tensor], left: int, right: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Bilinear(left, right, 2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.layer)


@rule(
    aten.bilinear.default,
    examples=[
        (_Form(lambda x, layer: layer(x, torch.linspace(-1, 2, 6).reshape(2, 3)), 4, 3), (2, 4)),
        (_Form(lambda x, layer: layer(torch.linspace(-1, 2, 8).reshape(2, 4), x), 4, 3, bias=False), (2, 3)),
        (_Form(lambda x, layer: layer(x.tanh(), x.sigmoid()), 3, 3), (2, 5, 3)),
        (_Form(lambda x, layer: layer(x, x.sin()), 3, 3, bias=False), (2, 3)),
        (lambda x: F.bilinear(x, torch.ones(2, 3), torch.linspace(-1, 2, 9).reshape(1, 3, 3), x[0, :1]), (2, 3)),
        (lambda x: F.bilinear(x.tanh(), x.sin(), torch.linspace(-1, 2, 9).reshape(1, 3, 3), x[0, :1]), (2, 3)),
    ],
    linear=True, local=_form_steps,
)  # fmt: skip
def form(node: Node, operands: Sequence[Range]) -> Effect:
    """`x W_k y + b_k`: linear beside a constant; the Frobenius norm of W times the other's, of two bounded values."""
    left, right, weight = node.args[:3]
    if isinstance(weight, Ref):
        return Unbounded(reason=f"a product with a weight that depends on the input, in {node.where}")
    if not (isinstance(left, Ref) and isinstance(right, Ref)):
        return Linear(maps=tuple(coded(node, position) for position in range(len(node.operands))))
    size = float(weight.double().norm())
    gains = [above(size, operands[1].row), above(size, operands[0].row)]
    if not all(value < float("inf") for value in gains):
        return Unbounded(reason=f"a product of two unbounded values in {node.where}")
    gains += [math.prod(node.shape[:-1]) ** 0.5] * (len(node.operands) - 2)
    return Gain(gains=tuple(numerical(value, "bounded product") for value in gains))


describe("linear.default", samples=samples.trailing(1))
describe("mm.default bmm.default matmul.default mv.default addmm.default baddbmm.default", samples=samples.product)
