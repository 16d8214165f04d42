"""Steps of a proof, each checked by itself: bounds L(v) on the map from the input to a value v, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flint import arb

from . import arithmetic as ar
from .arithmetic import INF, Array, Enclosure, Unproven, require
from .composition import added, chained
from .maps import Diagonal, Identity, Map
from .network import Entrywise, Input, Linear, Network, Node, Opaque
from .reading import Reader

MOST_MAPS, MOST_BLOCKS = 10**6, 500
"""Maps in all sums over sources together, and nonlinear nodes in a certificate."""


@dataclass(frozen=True)
class Step:
    """One step of a proof.

    Attributes:
        do: "gain": a nonlinear node by its own constants. "sum": L(v) <= sum of norm(A_s) L(s) for a value that is a
            sum of maps A_s of sources s. "certificate": see `certify`.
        at: the value that is bounded.
        by: what the sources of a sum are: "operands" of the node, "segments": inputs and nonlinear nodes, or "slopes":
            inputs, and what activations add to their mean slope.
        scale, start, multipliers, slopes: of a certificate.
    """

    do: str
    at: str
    by: str = "operands"
    scale: float = 1.0
    start: dict[str, float] = field(default_factory=dict)
    multipliers: dict[str, Array] = field(default_factory=dict)
    slopes: dict[str, tuple[float, float]] = field(default_factory=dict)


def parse_step(data: Any, network: Network, reader: Reader) -> Step:
    """Read a step and check that it speaks of nodes of the network, in numbers that can be meant."""
    require(isinstance(data, dict) and data.get("do") in ("gain", "sum", "certificate"), "an unknown step")
    do, at = data["do"], network.node(data.get("at")).name
    if do != "certificate":
        require(isinstance(network.nodes[at], Linear) == (do == "sum"), f"no {do} at {at}")
        require(not isinstance(network.nodes[at], Input), f"no {do} at {at}")
        require(data.get("by", "operands") in ("operands", "segments", "slopes"), "a sum over unknown sources")
        return Step(do, at, data.get("by", "operands"))
    start, multipliers, wider = (data.get(key, {}) for key in ("start", "multipliers", "slopes"))
    require(
        all(isinstance(part, dict) for part in (start, multipliers, wider)) and start, "a certificate is incomplete"
    )
    starts = {network.node(name).name: reader.number(value) for name, value in start.items()}
    scale = reader.number(data.get("scale"))
    require(min(scale, *starts.values()) > 0.0, "a certificate starts from nothing")
    found = {}
    for name, value in multipliers.items():
        node, given = network.node(name), reader.numbers(value)
        require((given >= 0.0).all() and given.size in (1, node.size), f"the multipliers of {name} do not fit")
        found[name] = np.broadcast_to(given.reshape(-1), (node.size,))
    slopes = {}
    for name, pair in wider.items():
        require(len(reader.listed(pair, "slopes", 2)) == 2, f"the slopes of {name} are no pair")
        slopes[network.node(name).name] = (reader.number(pair[0]), reader.number(pair[1]))
    return Step(do, at, scale=scale, start=starts, multipliers=found, slopes=slopes)


class Prover:
    """What has been proven so far, over all inputs.

    Attributes:
        best: L(v) by name of a value.
        loose: why a bound may be larger than it need be, or why a step proved nothing.
        rests: nodes that have no bound here.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.best = {name: arb(1) if isinstance(node, Input) else INF for name, node in network.nodes.items()}
        self.forms: dict[str, dict[str, dict[str, Map]]] = {"segments": {}, "slopes": {}}
        self.parts = 0
        self.loose: dict[str, None] = {}
        self.rests: dict[str, None] = {}

    def take(self, step: Step) -> None:
        """Check one step and keep what it proves; why one proves nothing is noted."""
        try:
            self._take(step)
        except Unproven as error:
            self.loose[str(error)] = None

    def _take(self, step: Step) -> None:
        node = self.network.nodes[step.at]
        if step.do == "gain":
            self._gain(node)
        elif step.do == "certificate":
            self._learn(step.at, self.certify(step))
        elif isinstance(node, Linear):
            form = self._operands(node) if step.by == "operands" else self.form(node, step.by)
            self._learn(step.at, self._sum(node, form, apart=step.by == "operands" and node.apart))

    def _gain(self, node: Node) -> None:
        if isinstance(node, Opaque):
            self.rests[f"{node.name} ({node.what})"] = None
        moved = [ar.times(gain, self.best[name]) for gain, name in zip(node.gains(), node.operands)]
        self._learn(node.name, ar.root_of_squares(moved) if node.joint else sum(moved, arb(0)).upper())

    def _learn(self, name: str, bound: arb) -> None:
        if bound.is_nan():
            raise Unproven(f"the bound on {name} is not a number")
        if bound < self.best[name]:
            self.best[name] = bound

    # ---- sums

    def _operands(self, node: Linear) -> dict[str, Map]:
        found: dict[str, list[Map]] = {}
        for linear, name in zip(node.maps, node.operands):
            found.setdefault(name, []).append(linear)
        return {name: added(terms) for name, terms in found.items()}

    def form(self, node: Node, by: str) -> dict[str, Map]:
        """Write a value as linear maps of sources; "~name" stands for what an activation adds to its mean slope."""
        forms = self.forms[by]
        if node.name not in forms:
            found: dict[str, list[Map]] = {}
            if isinstance(node, Linear):
                for linear, before in zip(node.maps, node.read):
                    for source, earlier in self.form(before, by).items():
                        found.setdefault(source, []).append(chained(earlier, linear))
            elif isinstance(node, Entrywise) and by == "slopes" and np.isfinite(node.slopes()).all():
                low, high = node.slopes()
                middle, rest = (
                    (low + high) / 2.0,
                    ar.raised((high - low) / 2.0 + 4.0 * ar.UNIT * (abs(low) + abs(high))),
                )
                for source, earlier in self.form(node.read[0], by).items():
                    found[source] = [chained(earlier, Diagonal(_compact(middle), node.shape))]
                found["~" + node.name] = [Diagonal(_compact(np.where(low < high, rest, 0.0)), node.shape)]
            else:
                found[node.name] = [Identity(node.shape, node.shape)]
            forms[node.name] = {source: added(terms) for source, terms in found.items()}
            self.parts += sum(len(getattr(linear, "parts", (linear,))) for linear in forms[node.name].values())
            if self.parts > MOST_MAPS:
                raise Unproven("too many maps of too many sources")
        return forms[node.name]

    def _moves(self, source: str) -> arb:
        """Return L of a source; what an activation adds is in units of the change of its operand."""
        return self.best[self.network.nodes[source[1:]].operands[0] if source[0] == "~" else source]

    def _sum(self, node: Linear, form: dict[str, Map], apart: bool) -> arb:
        """Add up the terms of a form; those of inputs, or of maps to different entries, as a root of squares."""
        moved = {source: ar.times(linear.norm(self.loose), self._moves(source)) for source, linear in form.items()}
        if apart:
            return ar.root_of_squares(list(moved.values()))
        inputs = [moved[s] for s in form if isinstance(self.network.nodes.get(s), Input)]
        others = [moved[s] for s in form if not isinstance(self.network.nodes.get(s), Input)]
        plain = sum(others, ar.root_of_squares(inputs)).upper() if INF not in moved.values() else INF
        width = sum(linear.sizes[1] for linear in form.values())
        small = min(node.size, width) <= 1100 and node.size * width <= 4e6 and all(m.small for m in form.values())
        if len(form) < 2 or not small or plain == INF or not plain > 0:
            return plain
        # norm([t_j A_j]) (sum (L_j/t_j)^2)^(1/2), for any t_j > 0; good ones have t_j^2 = L_j/norm(A_j)
        blocks, total = [], arb(0)
        for source, linear in form.items():
            bound, moves = linear.norm(self.loose), self._moves(source)
            if not (bound > 0 and moves > 0):
                continue
            t = float((moves / bound).sqrt())
            if not 1e-100 < t < 1e100:
                return plain
            blocks.append(linear.matrix() * t)
            total = total + (moves / arb(t)) * (moves / arb(t))
        joint = Enclosure(*(np.concatenate([getattr(b, side) for b in blocks], axis=1) for side in ("mid", "rad")))
        found = (ar.matrix_norm(joint) * total.sqrt()).upper()
        return found if found < plain else plain

    # ---- certificates

    def certify(self, step: Step) -> arb:
        """Check a quadratic certificate; return the bound on the value, or infinity if it proves nothing.

        Between the start s_1, ... and the value y lie nonlinear nodes u = phi(v). An activation with slopes in [a, b]
        has (b dv_i - du_i) (du_i - a dv_i) >= 0, a node of constant g has g^2 norm(dv)^2 - norm(du)^2 >= 0. So if
            sum_j w_j norm(ds_j)^2 - sum_i lambda_i (these, >= 0) - norm(scale dy)^2 >= 0
        as a quadratic form in all ds_j and du, with any lambda_i >= 0, then norm(scale dy)^2 <= sum_j w_j L(s_j)^2
        for norm(dx) = 1. A node whose squares add up has sum_j g_j^2 norm(dv_j)^2 - norm(du)^2 >= 0. All inputs
        together are one start with L = 1 and the largest of their weights.
        """
        order, cone = list(self.network.nodes.values()), {step.at}
        for node in reversed(order):
            if node.name in cone and node.name not in step.start:
                cone.update(node.operands)
        quadratic, total = Quadratic(self.network.memory), arb(0)
        inputs = [n for n in order if n.name in cone and isinstance(n, Input)]
        for node in (node for node in order if node.name in cone):
            if isinstance(node, Input) or node.name in step.start:
                if not all(n.name in step.start for n in (node, *inputs)) or not self.best[node.name] < 1e300:
                    raise Unproven(f"the certificate up to {step.at} starts from {node.name}, which has no bound")
                weight = max(step.start[n.name] for n in inputs) if node in inputs else step.start[node.name]
                quadratic.begin(node, weight)
                if node not in inputs[1:]:  # the changes of all inputs together are one unit
                    total = total + weight * self.best[node.name] * self.best[node.name]
            elif isinstance(node, Linear):
                quadratic.linear(node)
            elif isinstance(node, Entrywise):
                low, high = (side.reshape(-1) for side in node.slopes())
                if node.name in step.slopes:  # wider ones may be what the multipliers are made for
                    low, high = np.minimum(low, step.slopes[node.name][0]), np.maximum(high, step.slopes[node.name][1])
                quadratic.activation(node, low, high, step.multipliers.get(node.name, np.zeros(node.size)))
            else:
                if len(node.operands) != 1 and not node.joint:
                    raise Unproven(f"the certificate up to {step.at} passes {node.name}, which reads several values")
                gains = [ar.above(gain) for gain in node.gains()]
                quadratic.gain(node, gains, float(step.multipliers.get(node.name, np.zeros(node.size)).min()))
        quadratic.end(self.network.nodes[step.at], step.scale)
        return (total.sqrt() / arb(step.scale)).upper() if quadratic.positive() else INF


class Quadratic:
    """The quadratic form of a certificate, in blocks of variables: the start, and the nonlinear nodes behind it."""

    def __init__(self, memory: float) -> None:
        self.sizes: list[int] = []
        self.entries, self.memory = 0, memory
        self.forms: dict[str, dict[int, Enclosure | None]] = {}  # None for the variables themselves
        self.blocks: ar.Blocks = {}

    def _fresh(self, diagonal: Array) -> int:
        """Add a block of variables with these squares; return its number."""
        self.sizes.append(len(diagonal))
        self._add(len(self.sizes) - 1, len(self.sizes) - 1, Enclosure.exact(diagonal))
        return len(self.sizes) - 1

    def _written(self, name: str) -> dict[int, Enclosure]:
        """Return a value as matrices over the variables."""
        found = {}
        for i, form in self.forms.get(name, {}).items():
            if form is None:
                self._reserve(self.sizes[i], self.sizes[i])
            found[i] = Enclosure.exact(np.eye(self.sizes[i])) if form is None else form
        return found

    def _reserve(self, rows: int, columns: int) -> None:
        """Refuse to hold more than the memory allowed, over all blocks and forms."""
        self.entries += rows * columns
        ar.reserve(self.entries, most=self.memory)

    def _add(self, i: int, j: int, block: Enclosure) -> None:
        (i, j), block = ((i, j), block) if i <= j else ((j, i), block.T)
        if (i, j) not in self.blocks or self.blocks[i, j].mid.ndim < block.mid.ndim:
            self._reserve(block.mid.shape[0], block.mid.size // block.mid.shape[0])
        self.blocks[i, j] = ar.plus(self.blocks.get((i, j)), block)

    def _squares(self, form: dict[int, Enclosure], weights: Enclosure) -> None:
        """Add sum_k weights_k (form_k)^2."""
        if not weights.most.any():
            return
        for i, left in form.items():
            for j, right in form.items():
                if i <= j:
                    self._add(i, j, (left * weights.reshape(-1, 1)).T @ right)

    def begin(self, node: Node, weight: float) -> None:
        """Start from a value."""
        own = self._fresh(np.full(node.size, weight))
        self.forms[node.name] = {own: None}

    def linear(self, node: Linear) -> None:
        """Write a linear value as matrices over the variables."""
        found: dict[int, Enclosure] = {}
        for linear, name in zip(node.maps, node.operands):
            for block, form in self.forms.get(name, {}).items():
                self._reserve(node.size, self.sizes[block])
                if form is None:
                    moved = linear.matrix()
                else:
                    columns = form.T.reshape(-1, *linear.inside)
                    moved = linear.carry(columns).reshape(self.sizes[block], node.size).T
                found[block] = found[block] + moved if block in found else moved
        self.forms[node.name] = found

    def activation(self, node: Entrywise, low: Array, high: Array, multipliers: Array) -> None:
        """Add lambda (du - a dv) (du - b dv) for entries whose slope is open; the others are linear."""
        if not np.isfinite([low, high]).all():
            raise Unproven(f"the slopes of {node.name} have no limit")
        given, open_ = self._written(node.operands[0]), np.flatnonzero(low < high)
        self._reserve(node.size, sum(self.sizes[i] for i in given) + len(open_))
        closed = np.where(low < high, 0.0, low)
        self.forms[node.name] = {i: form * closed[:, None] for i, form in given.items()} if closed.any() else {}
        if not len(open_):
            return
        own = self._fresh(multipliers[open_])
        low, high, weights = (Enclosure.exact(side[open_]) for side in (low, high, multipliers))
        read = {i: Enclosure(form.mid[open_], form.rad[open_]) for i, form in given.items()}
        for i, form in read.items():
            self._add(own, i, form * (weights * (low + high) * -0.5).reshape(-1, 1))
        self._squares(read, weights * low * high)
        chosen = np.zeros((node.size, len(open_)))
        chosen[open_, np.arange(len(open_))] = 1.0
        self.forms[node.name][own] = None if len(open_) == node.size else Enclosure.exact(chosen)

    def gain(self, node: Node, gains: list[float], multiplier: float) -> None:
        """Add lambda (norm(du)^2 - sum_j g_j^2 norm(dv_j)^2)."""
        if not np.isfinite(gains).all():
            raise Unproven(f"{node.name} has no constant")
        own = self._fresh(np.full(node.size, multiplier))
        for before, gain in zip(node.read, gains):
            weight = Enclosure.exact(np.full(before.size, -multiplier)) * gain * gain
            self._squares(self._written(before.name), weight)
        self.forms[node.name] = {own: None}

    def end(self, node: Node, scale: float) -> None:
        """Subtract the square of the value."""
        self._squares(self._written(node.name), Enclosure.exact(np.full(node.size, -scale)) * scale)

    def positive(self) -> bool:
        """Say whether the form is proven to be positive semidefinite."""
        count, filled = len(self.sizes), {place for place, block in self.blocks.items() if block.mid.ndim == 2}
        if count > MOST_BLOCKS:
            raise Unproven("a certificate through too many nodes")
        for i in range(count):  # what elimination fills in
            ahead = [j for j in range(i + 1, count) if (i, j) in filled]
            filled.update((j, k) for j in ahead for k in ahead if j <= k)
        ar.reserve(sum(self.sizes[i] * self.sizes[j] for i, j in filled), most=self.memory)
        return not count or ar.positive(self.blocks, count)


def _compact(values: Array) -> Array:
    """Return one number where all entries are the same."""
    return values if np.ptp(values) else values.reshape(-1)[:1].reshape(())
