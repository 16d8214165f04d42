"""The one registry: all that is known of each operator. Absence is an error, never a silent 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from ...core.errors import MissingRuleError
from ...theory.activations import Activation
from ..graph.ir import Graph, Node, Unit, leaves
from ..graph.traits import TRAITS, Traits, traits_of
from .effects import Effect, Range, Unbounded
from .local.local import Builder


@dataclass(frozen=True, slots=True)
class EntrywiseWord:
    """A function of single entries, by the name that the checker knows, with its parameters (one, or one per entry)."""

    function: str
    parameters: Mapping[str, float | Tensor]


@dataclass(frozen=True, slots=True)
class NormalizedSets:
    """What a normalizer divides by the root mean square: the axes of a view that make up one set.

    Attributes:
        view, axes: the value in the shape `view`, one set along `axes`.
        eps: under the root.
        scale, shift: in a shape that broadcasts to the value's.
        centred: whether the mean of the set is subtracted first.
        groups: the number of groups of channels, on axis 1, with statistics of their own; None where the sets are made
            of whole dimensions.
        running: whether the statistics are stored ones, so that the operator is linear.
    """

    view: tuple[int, ...]
    axes: tuple[int, ...]
    eps: float
    scale: Tensor | None
    shift: Tensor | None
    centred: bool = True
    groups: int | None = None
    running: bool = False


@dataclass(frozen=True, slots=True)
class SoftmaxWord:
    """A softmax along one axis, or its logarithm: `kind` is `"softmax"` or `"log_softmax"`."""

    kind: str
    axis: int


@dataclass(frozen=True, slots=True)
class GatedWord:
    """The first half along an axis times the sigmoid of the second."""

    axis: int


@dataclass(frozen=True, slots=True)
class WindowsWord:
    """The largest (or the lowest) entry of every window.

    Attributes:
        index: the entries each output looks at, `[outputs, taps]` (-1 for none), within every slice of the leading
            dimensions.
        leading: the number of these dimensions.
        lowest: whether the lowest entry is taken.
    """

    index: Tensor
    leading: int
    lowest: bool = False


@dataclass(frozen=True, slots=True)
class LargerWord:
    """The larger (or the lower) of two values, entry by entry."""

    lowest: bool


@dataclass(frozen=True, slots=True)
class ProductWord:
    """The product of two values, entry by entry."""


@dataclass(frozen=True, slots=True)
class MatmulWord:
    """The product of two stacks of matrices."""


@dataclass(frozen=True, slots=True)
class AttentionWord:
    """softmax(scale Q K^T + bias) V; the three are values of the graph (`Ref`) or constants."""

    query: Any
    key: Any
    value: Any
    scale: float
    bias: Tensor | None


Word = (
    EntrywiseWord
    | NormalizedSets
    | SoftmaxWord
    | GatedWord
    | WindowsWord
    | LargerWord
    | ProductWord
    | MatmulWord
    | AttentionWord
)


class Factors(NamedTuple):
    """What a product is made of: left times right, plus what is added; each a `Ref` or a constant."""

    left: Any
    right: Any
    added: Any = None


EffectRule = Callable[[Node, Sequence[Range]], Effect]
LocalRule = Callable[[Node, Builder], str | None]
WordRule = Callable[[Node], Word | None]
ActivationRule = Callable[[Node], Activation | None]
SetsRule = Callable[[Node], NormalizedSets | None]
FactorsRule = Callable[[Node], Factors]
Example = tuple[Callable[..., Any], *tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """All that is known of one operator.

    Attributes:
        op: the operator of torch, or the name of a recognised unit.
        family: the file of `normscope.bounds.operators` that its rule stands in, `"user"` for rules of users.
        summary: one line that says what its effect is.
        examples: what puts it on trial.
        effect: what it does to a change, over all inputs.
        linear: whether its effect is `Linear`, always or for some arguments: its map is then all that balls and proofs
            need.
        local: what it does near a point, where it is not linear. Without, balls take its effect at the sizes that they
            allow, and no slopes.
        word: what it is called in proofs, where it is not linear. Without, proofs do not follow it.
        activation: the function of single entries that it is.
        sets: what it normalizes.
        factors: the two values that it multiplies, the weight of a layer among them, and its bias.
    """

    op: Any
    family: str
    summary: str
    examples: tuple[Example, ...]
    effect: EffectRule
    linear: bool = False
    local: LocalRule | None = None
    word: WordRule | None = None
    activation: ActivationRule | None = None
    sets: SetsRule | None = None
    factors: FactorsRule | None = None

    @property
    def name(self) -> str:
        """The operator's name."""
        return str(self.op)

    @property
    def traits(self) -> Traits:
        """What is known of it beside its rule: how samples meet in it, which entries it keeps, whether it pools."""
        return traits_of(self.op)

    @property
    def near(self) -> str:
        """What balls know of it: its map, steps of its own, or its gain alone."""
        return _known(self.linear, self.local is not None, "steps") or "gain alone"

    @property
    def proof(self) -> str:
        """What proofs know of it: its map, or a word; nothing where it is opaque to the checker."""
        return _known(self.linear, self.word is not None, "word") or "opaque"


def _known(linear: bool, own: bool, name: str) -> str:
    return " or ".join([*(["map"] if linear else []), *([name] if own else [])])


_OPERATORS: dict[Any, Operator] = {}
FAILED = "the rule for"
"""How the reason of a rule that raised begins; `bounds.trial` turns it into an error."""


def rule(
    *ops: Any,
    examples: Sequence[Example],
    summary: str | None = None,
    linear: bool = False,
    local: LocalRule | None = None,
    word: WordRule | None = None,
    activation: ActivationRule | None = None,
    sets: SetsRule | None = None,
    factors: FactorsRule | None = None,
    samples: Callable[..., Any] | None = None,
) -> Callable[[EffectRule], EffectRule]:
    """Register what is known of one or more operators.

    The decorated function takes the `Node` and one `Range` per operand (how large its value can get) and returns a
    `Linear`, `Elementwise`, `Gain` or `Unbounded` effect (`normscope.bounds.operators.effects`).

    Args:
        *ops: operator overloads such as `torch.ops.aten.relu.default`, or names of recognised units.
        examples: pairs `(function, *input_shapes)`; every example runs through the soundness suite
            (`normscope.bounds.trial.try_example`).
        summary: one line for `normscope bound ops`; the first line of the docstring if absent.
        linear: whether the effect is `Linear`, always or for some arguments.
        local: takes the node and a `Builder`, adds the steps that the operator is near a point, and returns the name of
            its value, or None where it does not apply: for bounds over balls.
        word: takes the node and returns what it is called in proofs (`normscope.bounds.operators.registry`), or None.
        activation: takes the node and returns the function of single entries that it is.
        sets: takes the node of a normalizer and returns what it divides by what.
        factors: takes the node of a product and returns the two values that it multiplies, and what it adds.
        samples: which entries meet in one entry of the value: a function of `normscope.bounds.graph.samples`, such as
            `entrywise` or `trailing(1)` (the last dimension). Without, an operator that is not torch's own makes one
            input of the whole batch.

    Raises:
        ValueError: an operator has a rule already, or no example is given.

    Example:
        >>> import torch, normscope as ns
        >>> from normscope.bounds.operators.effects import Elementwise
        >>> @ns.rule(torch.ops.aten.arctan2.default, examples=[])
        ... def arctan2(node, operands): ...
        Traceback (most recent call last):
        ...
        ValueError: rule arctan2: give at least one example to put it on trial
    """

    def register(function: EffectRule) -> EffectRule:
        if not examples:
            raise ValueError(f"rule {function.__name__}: give at least one example to put it on trial")
        module = function.__module__
        for op in ops:
            record = Operator(
                op=op,
                family=module.rsplit(".", 1)[-1] if module.startswith("normscope.bounds.operators.") else "user",
                summary=summary or (function.__doc__ or function.__name__).strip().splitlines()[0],
                examples=tuple(examples),
                effect=function,
                linear=linear,
                local=local,
                word=word,
                activation=activation,
                sets=sets,
                factors=factors,
            )
            enter(record)
            if samples is not None:
                TRAITS[op] = replace(traits_of(op), samples=samples)
        return function

    return register


def enter(record: Operator) -> None:
    """Enter what is known of an operator; raise ValueError if it has a record already."""
    if record.op in _OPERATORS:
        raise ValueError(f"{record.op} has a rule already (family {_OPERATORS[record.op].family})")
    _OPERATORS[record.op] = record


def operators() -> tuple[Operator, ...]:
    """Return all that is known of every registered operator, by family and name."""
    return tuple(sorted(_OPERATORS.values(), key=lambda record: (record.family, record.name)))


def forget(op: Any) -> None:
    """Remove an operator (to replace its rule, or after a test)."""
    del _OPERATORS[op]


def lookup(node: Node) -> Operator | None:
    """Return what is known of a node's operator, or None."""
    return _OPERATORS.get(node.op.name if isinstance(node.op, Unit) else node.op)


def family_of(node: Node) -> str | None:
    """Return the family of a node's operator; None where it has no rule."""
    record = lookup(node)
    return None if record is None else record.family


def activation_of(node: Node) -> Activation | None:
    """Return the function of single entries that a node is, or None if it is none."""
    record = lookup(node)
    return None if record is None or record.activation is None else record.activation(node)


def sets_of(node: Node) -> NormalizedSets | None:
    """Return what a node normalizes, or None if it is no normalizer of one value with constant parameters."""
    record = lookup(node)
    return None if record is None or record.sets is None else record.sets(node)


def multiplied(node: Node) -> Factors | None:
    """Return what a node multiplies and adds, or None if it is no matrix product or convolution."""
    record = lookup(node)
    return None if record is None or record.factors is None else record.factors(node)


def is_weight(node: Node) -> bool:
    """Whether a node is a layer with a weight: a matrix or a convolution."""
    return family_of(node) in ("linear", "convolution")


def is_normalizer(node: Node) -> bool:
    """Whether a node is a normalization layer."""
    return family_of(node) == "normalization" and node.index in (None, 0)


def is_homogeneous(node: Node) -> bool:
    """Whether a positive factor passes through a node; weight layers and normalizers have conditions of their own.

    It does not if a constant is added, concatenated or used as padding: that is a bias outside of the weight layers.
    """
    traits = traits_of(node.op)
    if is_weight(node) or is_normalizer(node) or traits.homogeneous or traits.pools is not None:
        return True
    if node.operator in ("add", "sub"):
        return len(node.refs) > 1
    constants = (leaf for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, Tensor))
    floats = any(constant.is_floating_point() for constant in constants)
    return family_of(node) == "shape" and "pad" not in node.operator and not floats


def effect_of(node: Node, operands: Sequence[Range]) -> Effect:
    """Return what a node does; a missing rule is an `Unbounded` that says so (see `check` for the error)."""
    record = lookup(node)
    if record is None:
        return Unbounded(reason=f"no rule for {node.op} in {node.where}")
    try:
        effect = record.effect(node, operands)
        if not isinstance(effect, Effect):
            raise TypeError(f"it returned {effect!r}, which is no effect")
        if not node.dtype.is_floating_point and not isinstance(effect, Unbounded):
            return Unbounded(reason=f"{node.op} gives {node.dtype} in {node.where}: not continuous")
        return effect
    except Exception as error:  # a rule that meets what it was not written for must not pass for a bound
        return Unbounded(reason=f"{FAILED} {node.op} failed in {node.where}: {type(error).__name__}: {error}")


def check(graph: Graph) -> None:
    """Raise one error that lists every operator without a rule, with count, module path and source line."""
    missing: dict[Any, list[Node]] = {}
    for node in graph:
        if lookup(node) is None:
            missing.setdefault(node.op, []).append(node)
    if missing:
        lines = []
        for op, nodes in missing.items():
            paths = Counter(node.path or "(top level)" for node in nodes)
            shown = ", ".join(list(paths)[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
            lines.append(f"{op}, {len(nodes)} time(s), in {shown}, first at {nodes[0].source or 'unknown line'}")
        raise MissingRuleError(lines)
