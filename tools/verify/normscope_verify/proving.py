"""The steps of a proof, each checked by itself: bounds L(v) on the map from the input to a value v."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import Array, Enclosure, Unproven, require
from .nodes import Network, Node
from .reading import Reader

MOST_BLOCKS = 500  # values that a certificate may have as variables


class Forms:
    """The changes of values as linear forms in variables, one row per variable.

    Variables are the changes of some values, called sources, and what is added to them on the way. Where all nodes on
    the way treat many slices of the values alike, the forms of one slice are enough.

    Attributes:
        nodes: from the sources to a value, in order.
        slices: into how many equal parts every value falls that have nothing to do with one another.
        sizes, moves: of the blocks of variables, and bounds on their norms where they are taken one by one.
        forms: by name of a value and number of a block.
    """

    def __init__(self, network: Network, at: Node, sources: Collection[str], periods: Iterable[int] = ()) -> None:
        ar.WORK.spend(1e3 * len(network.nodes))
        cone = {at.name}
        for node in reversed(network.nodes.values()):
            if node.name in cone and node.name not in sources:
                cone.update(operand.name for operand in node.read)
        if network.input.name in cone and network.input.name not in sources:
            raise Unproven(f"a step at {at.name} does not start from the input")
        self.nodes, self.sources = [node for node in network.nodes.values() if node.name in cone], sources
        if not any(node.name in sources for node in self.nodes):
            raise Unproven(f"a step at {at.name} passes none of its sources")
        alike = [node.count for node in self.nodes if node.read and node.name not in sources]
        sizes = [node.size for node in self.nodes if node.read or node.name in sources]
        self.slices = math.gcd(*alike, *periods, *sizes)  # whatever a file says, every value falls into whole slices
        self.sizes: list[int] = []
        self.forms: dict[str, dict[int, Enclosure]] = {}
        self.held, self.memory, self.moves = 0, network.memory, list[arb]()

    def run(self, source: Callable[[Node], None], bent: Callable[..., None]) -> None:
        """Write the other values as forms; what sources and nonlinear nodes add to them is left to two functions."""
        for node in (node for node in self.nodes if node.name not in self.forms):
            if node.name in self.sources:
                source(node)
            elif node.slopes is not None:
                bent(node, *node.slopes())
            elif node.fan is None:
                raise Unproven(f"a step passes {node.name}, which is not followed here")
            else:
                self._carry(node)

    def _carry(self, node: Node) -> None:
        self.forms[node.name] = {}
        for block in sorted({block for operand in node.read for block in self.forms[operand.name]}):
            rows, given = self.sizes[block], []
            self.hold(rows, node.size // self.slices)
            for operand in node.read:
                zero = np.zeros((rows, operand.size // self.slices))
                given.append(self.forms[operand.name].get(block) or Enclosure.exact(zero))
            self.forms[node.name][block] = node.carry(given)

    def hold(self, rows: int, columns: int) -> None:
        """Refuse to hold more numbers than the memory is meant for."""
        self.held += rows * columns
        ar.reserve(self.held, most=self.memory)

    def tiled(self, values: Array, node: Node) -> Enclosure:
        """Return numbers that repeat for all entries of a slice of a value."""
        return Enclosure.exact(np.resize(values, node.size // self.slices))

    def fresh(self, node: Node, factors: Array) -> int:
        """Add variables, which times the factors are added to the changes of a value; return their number."""
        size = node.size // self.slices
        self.hold(size, size)
        self.sizes.append(size)
        form = Enclosure.exact(np.diag(self.tiled(factors, node).mid))
        self.forms.setdefault(node.name, {})[len(self.sizes) - 1] = form
        return len(self.sizes) - 1

    def bend(self, node: Node, slopes: Array) -> None:
        """Write the changes of a node as those of its operand times slopes."""
        given, scale = self.forms[node.read[0].name], self.tiled(slopes, node)
        self.forms[node.name] = {block: form * scale for block, form in given.items()}


class Prover:
    """What has been proven over all inputs: `best` holds L(v) by name, `notes` why steps proved nothing."""

    def __init__(self, network: Network, reader: Reader) -> None:
        self.network, self.reader = network, reader
        self.best, self.notes = {network.input.name: arb(1)}, dict[str, None]()
        self.walk: Forms | None = None

    def take(self, step: Any) -> None:
        """Check one step and keep what it proves; why one proves nothing is noted."""
        steps = {"gain": self.gain, "fold": self.fold, "certificate": self.certificate}
        require(isinstance(step, dict) and str(step.get("do")) in steps, "an unknown step")
        at = self.network.node(step.get("at"))
        try:
            ar.WORK.spend(1e4)
            bound = steps[step["do"]](at, step)
        except (Unproven, np.linalg.LinAlgError) as error:
            self.notes[str(error)] = None
            return
        if bound is not None and not bound.is_nan() and not self.best.get(at.name, bound + 1) <= bound:
            self.best[at.name] = bound.upper()

    def known(self, node: Node) -> arb:
        """Return L of a value."""
        if node.name not in self.best:
            raise Unproven(f"nothing is known of {node.name}")
        return self.best[node.name]

    def gain(self, at: Node, step: dict[str, Any]) -> arb:
        """Bound a value by its operands: L(v) <= norm(A) L(u) for v = A u, and the like."""
        return at.bound(*(self.known(node) for node in at.read))

    def fold(self, at: Node, step: dict[str, Any]) -> arb:
        """Bound a sum of maps A_j of sources by norm([t_j A_j]) (sum (L_j/t_j)^2)^(1/2), for any t_j > 0.

        An activation on the way with slopes in [a, b] is (a + b)/2 dv and a source w with norm(dw) <= (b - a)/2
        norm(dv). Good t_j have t_j^2 = L_j/norm(A_j): then this is at most the sum of norm(A_j) L_j.
        """
        names = [self.network.node(name).name for name in self.reader.listed(step.get("from"), "sources")]
        forms, walk, self.walk = Forms(self.network, at, names), self.walk, None
        if walk and (walk.sources, walk.slices) == (names, forms.slices):  # goes on where the last one ended
            walk.nodes, forms = forms.nodes, walk
        if min(at.size, sum(self.network.nodes[name].size for name in names)) > ar.MOST_SIDE * forms.slices:
            raise Unproven(f"the maps up to {at.name} are too large to be written out")

        def source(node: Node) -> None:
            forms.fresh(node, np.ones(1))
            forms.moves.append(self.known(node))

        def bent(node: Node, low: Array, high: Array) -> None:
            if node.whole:
                raise Unproven(f"a sum of maps passes {node.name}")
            forms.bend(node, (low + high) / 2.0)
            rest = ar.raised((high - low) / 2.0 + 4.0 * ar.UNIT * (np.abs(low) + np.abs(high)))
            forms.fresh(node, np.where(low < high, rest, 0.0))
            forms.moves.append(self.known(node.read[0]))

        forms.run(source, bent)
        self.walk = forms if names == [self.network.input.name] else walk  # one that broke off is not kept
        live = [(form, forms.moves[block]) for block, form in forms.forms[at.name].items() if forms.moves[block] > 0]
        if len(live) <= 1:
            return ar.matrix_norm(live[0][0]) * live[0][1] if live else arb(0)
        parts, total = [], arb(0)
        for form, move in live:
            short = form.mid if len(form.mid) <= form.mid.shape[1] else form.mid.T
            ar.WORK.spend(20.0 * form.mid.size * len(short))
            about = max(np.linalg.eigvalsh(short @ short.T)[-1], 0.0) ** 0.5  # a guess, on which nothing rests
            about = max(about + np.linalg.norm(form.rad), 1e-300)
            t = float(np.clip(float((move / about).sqrt()), 1e-150, 1e150))
            parts.append(form * t)
            total = total + (move / t) ** 2
        joint = Enclosure(*(np.concatenate([getattr(part, side) for part in parts]) for side in ("mid", "rad")))
        return ar.matrix_norm(joint) * total.sqrt()

    def certificate(self, at: Node, step: dict[str, Any]) -> arb | None:
        """Check a quadratic certificate; None if it proves nothing.

        Between the sources s_1, ... and the value y lie nonlinear nodes u = phi(v). Slopes in [a, b] mean
        (b dv_i - du_i) (du_i - a dv_i) >= 0, for every i or, if the node is only known as a whole, in their sum. So if
            sum_j w_j norm(ds_j)^2 - sum_i lambda_i (these, >= 0) - norm(scale dy)^2 >= 0
        as a quadratic form in all ds_j and du, with any lambda_i >= 0, then norm(scale dy)^2 <= sum_j w_j L(s_j)^2
        for norm(dx) = 1. Slopes in the file can only widen those that are known here.
        """
        given = {key: step.get(key) for key in ("start", "multipliers", "slopes")}
        require(all(isinstance(part, dict) for part in given.values()), "a certificate is incomplete")
        node, number = self.network.node, self.reader.number
        weights = {node(name).name: number(value) for name, value in given["start"].items()}
        multipliers = {node(name).name: self.reader.pattern(value) for name, value in given["multipliers"].items()}
        wider = {node(name).name: [number(side) for side in self.reader.listed(pair, "slopes", 2)]
                 for name, pair in given["slopes"].items()}  # fmt: skip
        scale = number(step.get("scale"))
        require(weights and min(scale, *weights.values()) > 0.0, "a certificate starts from nothing")
        for name, value in multipliers.items():
            require((value >= 0.0).all() and node(name).size % len(value) == 0, f"multipliers of {name} do not fit")
        periods = [node(name).size // len(value) for name, value in multipliers.items()]
        forms, blocks, total = Forms(self.network, at, weights, periods), {}, []

        def enter(i: int, j: int, block: Enclosure) -> None:
            forms.hold(*block.mid.shape)
            blocks[i, j] = blocks[i, j] + block if (i, j) in blocks else block

        def squares(name: str, factors: Enclosure) -> None:  # add sum_k factors_k (form_k)^2
            for i, left in forms.forms[name].items():
                for j, right in forms.forms[name].items():
                    if i <= j and factors.most.any():
                        enter(i, j, (left * factors) @ right.T)

        def source(node: Node) -> None:
            own = forms.fresh(node, np.ones(1))
            enter(own, own, forms.forms[node.name][own] * weights[node.name])
            total.append(self.known(node) ** 2 * weights[node.name])

        def bent(node: Node, low: Array, high: Array) -> None:
            if node.name in wider:
                low, high = np.minimum(low, wider[node.name][0]), np.maximum(high, wider[node.name][-1])
            if not node.whole and (low == high).all():
                forms.bend(node, low)
                return
            own, lambdas, read = forms.fresh(node, np.ones(1)), multipliers.get(node.name, np.zeros(1)), node.read[0]
            require(not node.whole or len(lambdas) == 1, f"{node.name} has one multiplier")
            enter(own, own, forms.forms[node.name][own] * forms.tiled(lambdas, node))
            low, high, lambdas = (forms.tiled(side, read) for side in (low, high, lambdas))
            squares(read.name, lambdas * low * high)
            if not node.whole:
                for i, form in forms.forms[read.name].items():
                    enter(i, own, form * (lambdas * (low + high) * -0.5))

        forms.run(source, bent)
        squares(at.name, Enclosure.exact(np.full(at.size // forms.slices, -scale)) * scale)
        count, filled = len(forms.sizes), set(blocks)
        if count > MOST_BLOCKS:
            raise Unproven("a certificate through too many nodes")
        for i in range(count):  # what a factorization fills in
            ahead = [j for j in range(i + 1, count) if (i, j) in filled]
            filled.update((j, k) for j in ahead for k in ahead if j <= k)
        ar.reserve(sum(forms.sizes[i] * forms.sizes[j] for i, j in filled), most=forms.memory)
        return sum(total, arb(0)).sqrt() / arb(scale) if ar.positive(blocks, count) else None
