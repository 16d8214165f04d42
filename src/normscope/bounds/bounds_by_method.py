"""The upper side of a captured graph by every method, and the best of them.

The products printed in Than et al. (Lemma 5, Theorem 9 with Corollaries 10 and 11) are among them, as formulas on any
model: norm(W_k) over the weight layers times norm(NO_k) over the normalizers. On a network with skips, with slopes
above 1 or with other expanding parts they are no bound; the result then says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..core.bracket import Bracket, Evidence
from ..core.budget import Progress
from ..core.effort import Effort
from ..core.log10 import log10, power10
from ..core.rounding import Upper, smallest
from ..theory.normalizers import lemma1, lemma2, lemma3
from .certificate import ChainCertificate, ClosedForm
from .ellipsoids.ellipsoid_plan import WIDEST, EllipsoidPlan, plan
from .ellipsoids.optimised import TIGHTENING, Certified, is_exact, optimise, with_rounding
from .graph.ir import Node, Unit
from .linalg.linear_map import LinearMap
from .lower import lower_side
from .operators.effects import Effect, Elementwise, Gain, Linear, Norm, Unbounded
from .operators.registry import is_normalizer, is_weight, sets_of
from .proofs.proof import Multipliers, Proof
from .segments import Bounds, Joints, Segments, propagate
from .traced_network import BoundSettings, TracedNetwork, cut_short


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundsByMethod(Mapping[str, Bracket]):
    """The brackets of one captured graph by method, and what they rest on.

    Attributes:
        brackets: by method.
        nodes: the smallest bound of the map from the input to every node, by name.
        plan: of the ellipsoids that were optimised; None where there are none.
    """

    brackets: dict[str, Bracket]
    nodes: Bounds
    plan: EllipsoidPlan | None = None

    def __getitem__(self, name: str) -> Bracket:
        return self.brackets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.brackets)

    def __len__(self) -> int:
        return len(self.brackets)


def upper_sides(
    captured: TracedNetwork,
    bounding: BoundSettings | None = None,
    effort: Effort = Effort.FAST,
    *,
    proofs: bool = True,
) -> BoundsByMethod:
    """Return the upper side of every method that the effort allows, and the best of them.

    `proofs` keeps what a checker needs, which takes stock of all weights.
    """
    bounding = bounding or BoundSettings()
    node_bounds, chains = _composed(captured, bounding)
    output = captured.graph.output
    uppers = {name: bounds[output] for name, bounds in node_bounds.items()}
    values = {name: smallest([bounds[name] for bounds in node_bounds.values()]) for name in node_bounds["folded"]}
    proof = Proof(graph=captured.double, effects=captured.segments.effects) if proofs else None
    proof_of: dict[str, Proof | None] = dict.fromkeys(uppers, proof)
    proof_of["closed-form"] = None if proof is None else replace(proof, multipliers=chains)
    tight = OptimisedCertificate() if effort == Effort.FAST else optimise_certificate(captured, bounding, values)
    least = min(uppers, key=lambda name: uppers[name].log10)
    if tight.upper is not None and tight.upper.log10 <= uppers[least].log10:
        uppers["tight"], proof_of["tight"] = tight.upper, None if proof is None else tight.proof(proof)
    elif tight.upper is not None or tight.cut:  # what is known without it
        uppers["tight"], proof_of["tight"] = uppers[least], proof_of[least]
    brackets = {
        "printed": printed(captured.segments, bounding.norm, exact=False),
        "printed-exact": printed(captured.segments, bounding.norm, exact=True),
        **_brackets(captured, bounding, uppers, proof_of),
    }
    norms, chained, whole = bounding.norms, bounding.closed_forms, bounding.budget
    later = {"closed-form": chained, "tight": whole, "best": whole}
    brackets = {name: cut_short(rung, norms, later.get(name, norms)) for name, rung in brackets.items()}
    brackets = {name: replace(rung, notes=(*rung.notes, *tight.notes)) for name, rung in brackets.items()}
    return BoundsByMethod(brackets=brackets, nodes=values, plan=tight.plan)


def bound_by_all_methods(
    captured: TracedNetwork,
    bounding: BoundSettings,
    observed: Bracket | None,
    seed: int,
    effort: Effort = Effort.FAST,
    *,
    search: bool = True,
    proofs: bool = True,
) -> BoundsByMethod:
    """Return every rung, with one lower side shared by all that bound the network, and `observed` as the last.

    Without `search` the lower side comes from pairs at the batch alone; `proofs` keeps what a checker needs.
    """
    rungs = upper_sides(captured, bounding, effort, proofs=proofs)
    lower = lower_side(captured, bounding, observed, seed, enough=rungs["best"].log10_upper, search=search)
    best = lower.under(rungs["best"])
    brackets = {
        name: replace(b, log10_lower=best.log10_lower, witness=best.witness, notes=best.notes) if b.holds else b
        for name, b in rungs.items()
        if name != "best"
    }
    brackets = {name: cut_short(rung, lower.search) for name, rung in brackets.items()} | {"best": best}
    return replace(rungs, brackets=brackets if observed is None else brackets | {"observed": observed})


def _composed(captured: TracedNetwork, bounding: BoundSettings) -> tuple[dict[str, Bounds], tuple[Multipliers, ...]]:
    """Return the bounds of all nodes by every method that composes, and the multipliers of the best closed form."""
    segments, output = captured.segments, captured.graph.output
    joints: Joints = {}
    with torch.no_grad(), Progress("bounding") as progress:
        norm = partial(_shown, bounding.norm, progress)
        chained = partial(_chained, captured, bounding, norm, joints)
        bounds = {"product": propagate(segments, norm, fold=False)}
        with bounding.norms.timing():
            bounds["folded"] = propagate(segments, norm, fold=True, joints=joints)
        bounds["closed-form"], chains = chained(ClosedForm())
        slopes = [atom.effect.slope for atom in segments.atoms.values() if isinstance(atom.effect, Elementwise)]
        if any(low != 0 for low, _ in slopes):  # at 0 both choices of Lambda are the same
            doubled, others = chained(ClosedForm(doubled=True))
            if doubled[output].log10 < bounds["closed-form"][output].log10:
                chains = others
            bounds["closed-form"] = {n: smallest([u, doubled[n]]) for n, u in bounds["closed-form"].items()}
    return bounds, chains


def _shown(norm: Norm, progress: Progress, linear: LinearMap) -> Upper:
    """Bound the norm of a map, and show which one it is."""
    progress.step(f"{linear!r}")
    return norm(linear)


def _chained(
    captured: TracedNetwork, bounding: BoundSettings, norm: Norm, joints: Joints, start: ClosedForm
) -> tuple[Bounds, tuple[Multipliers, ...]]:
    """Return the bounds of all nodes by a certificate that follows chains, and its multipliers."""
    device = captured.double.inputs[0].value.device
    chain = ChainCertificate(start, device, bounding.closed_forms)
    with bounding.closed_forms.timing():
        bounds = propagate(captured.segments, norm, fold=True, chain=chain, joints=joints)
    return bounds, chain.proof()


@dataclass(frozen=True, slots=True)
class OptimisedCertificate:
    """What the optimised certificate gives.

    Attributes:
        upper: its bound, with all rounding; None where there is no certificate.
        certificate: the one that gives it.
        plan: of the certificate; None where none was found.
        cut: whether the clock cut the search short.
        notes: what was not attempted, and why.
    """

    upper: Upper | None = None
    certificate: Certified | None = None
    plan: EllipsoidPlan | None = None
    cut: bool = False
    notes: tuple[str, ...] = ()

    def proof(self, network: Proof) -> Proof:
        """Return what a checker needs beside the network itself."""
        assert self.certificate is not None
        assert self.plan is not None
        run = Multipliers(sigma=self.certificate.sigma, start=self.plan.start, log10=self.certificate.log10)
        return replace(network, multipliers=(run,))


def optimise_certificate(captured: TracedNetwork, bounding: BoundSettings, values: Bounds) -> OptimisedCertificate:
    """Optimise a certificate within the budget."""
    tightening = bounding.budget.search(TIGHTENING)
    certificate = tightening.attempt(lambda: _optimise(captured, bounding, values), OptimisedCertificate)
    return replace(certificate, cut=tightening.cut or bounding.budget.cut)


def _optimise(captured: TracedNetwork, bounding: BoundSettings, values: Bounds) -> OptimisedCertificate:
    """Optimise a certificate, from the input on or from where values are narrow enough to be carried."""
    budget = bounding.budget.share(0.7)
    written = plan(captured.segments, values)
    inputs = {item.name for item in captured.graph.inputs}
    notes = () if values[captured.graph.output].log10 == math.inf else _not_attempted(captured, written, inputs)
    dense = None if written is None else optimise(written, budget=budget)
    sure = None if written is None or dense is None else with_rounding(written, dense)
    if written is None or sure is None:
        return OptimisedCertificate(plan=None if dense is None else written, notes=notes)
    evidence = Evidence.PROVEN if is_exact(written, inputs) else Evidence.NUMERICAL
    evidence = min([evidence, *(slope_evidence(captured.segments.effects[step.name]) for step in written.steps)])
    return OptimisedCertificate(Upper(sure.log10, evidence, "tight"), dense, written, notes=notes)


def _not_attempted(captured: TracedNetwork, written: EllipsoidPlan | None, inputs: set[str]) -> tuple[str, ...]:
    """Return which part of a network the optimised certificate leaves out, and why; nothing where it takes all."""
    limit = f"which holds at most {WIDEST:,} entries of values at a time, of a size whose squares float64 can hold"
    if written is None:
        return (f'effort="tight" adds nothing here: the output is out of reach of the optimised certificate, {limit}',)
    late = [name for name in written.start if name not in inputs]
    if not late:
        return ()
    places = " and ".join(
        f"`{path}`" for path in dict.fromkeys(captured.graph.node(name).path or name for name in late)
    )
    return (
        f"the optimised certificate begins behind {places}: values before that are out of its reach, {limit}; "
        "their bounds are those of the faster methods",
    )


def slope_evidence(effect: Effect) -> Evidence:
    """Return how the slopes or gains of a nonlinear effect are known."""
    if isinstance(effect, Gain):
        return min(gain.evidence for gain in effect.gains)
    return effect.evidence if isinstance(effect, Elementwise) else Evidence.PROVEN


def _brackets(
    captured: TracedNetwork, bounding: BoundSettings, uppers: Bounds, proofs: Mapping[str, Proof | None]
) -> dict[str, Bracket]:
    """Return the upper side of every method as a bracket with its proof, and the best of them again."""
    best = smallest(list(uppers.values()))
    method = next(name for name, value in uppers.items() if value.log10 == best.log10)
    sides = {name: (value, name) for name, value in uppers.items()} | {"best": (best, method)}
    return {
        name: replace(bracket_of(captured, bounding, value, rung), proof=proofs[rung])
        for name, (value, rung) in sides.items()
    }


def bracket_of(captured: TracedNetwork, bounding: BoundSettings, value: Upper, method: str) -> Bracket:
    """Return an upper side as a bracket, with the reasons where it is infinite."""
    return Bracket(
        log10_lower=-math.inf,
        log10_upper=value.log10,
        evidence=captured.evidence(value),
        method=method,
        mode=captured.graph.mode,
        reason=_reason(captured, bounding) if value.log10 == math.inf else None,
        input_shape=captured.graph.input_shape,
        notes=captured.graph.notes,
    )


def _reason(captured: TracedNetwork, bounding: BoundSettings) -> str:
    """Return every reason why the bound is infinite, the first three by name."""
    segments = captured.segments
    reasons = [atom.effect.reason for atom in segments.atoms.values() if isinstance(atom.effect, Unbounded)]
    maps = [m for effect in segments.effects.values() if isinstance(effect, Linear) for m in effect.maps]
    reasons += [bound.reason for bound in map(bounding.norm, maps) if bound.reason]
    reasons = list(dict.fromkeys(reasons))
    return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")


def printed_constant(node: Node, effect: Effect) -> float:
    """log10 of the printed constant over all inputs, times the scale gamma: Lemma 1, 2 or 3."""
    arguments = node.op.data if isinstance(node.op, Unit) else node.bound()
    weight, eps = arguments.get("weight"), float(arguments["eps"])
    if isinstance(effect, Linear):
        return log10(lemma1(arguments["running_var"], eps, weight))
    top = float(weight.abs().amax()) if isinstance(weight, Tensor) else 1.0
    sets = sets_of(node)
    groups = 1 if sets is None or sets.groups is None else sets.groups
    return log10(top) + log10(lemma2(eps) if groups == 1 else lemma3(eps, torch.zeros(groups)))


def printed(segments: Segments, norm: Norm, *, exact: bool) -> Bracket:
    """Return the printed product, under the printed or the exact constants of the normalizers.

    `holds` is False, with the reason, where the formula is no upper bound for this network.
    """
    exponent = 0.0
    evidence = Evidence.PROVEN
    for node in segments.graph:
        effect = segments.effects[node.name]
        if is_weight(node) and isinstance(effect, Linear):
            bound = norm(effect.maps[0])
            exponent, evidence = exponent + bound.log10, min(evidence, bound.evidence)
        elif is_normalizer(node):
            exponent += effect.constant(norm).log10 if exact else printed_constant(node, effect)
    reason = _why_no_bound(segments, norm)
    method = "printed product, exact constants" if exact else "printed product"
    if exponent == math.inf:
        reason = reason or "a normalizer with eps = 0"
    return Bracket(
        log10_lower=-math.inf,
        log10_upper=exponent,
        evidence=min(evidence, Evidence.NUMERICAL),
        method=method,
        mode=segments.graph.mode,
        holds=reason is None,
        reason=reason,
        input_shape=segments.graph.input_shape,
    )


def _why_no_bound(segments: Segments, norm: Norm) -> str | None:
    """Return why the printed product does not bound this network, or None if it does."""
    readers: dict[str, int] = {}
    for node in segments.graph:
        for name in node.refs:
            readers[name] = readers.get(name, 0) + 1
    for node in segments.graph:
        effect = segments.effects[node.name]
        if len(node.refs) > 1 or readers.get(node.name, 0) > 1:
            return f"the network is not a chain ({node.op} in {node.where}): skips or branches"
        if isinstance(effect, Unbounded):
            return effect.reason
        if is_weight(node) or is_normalizer(node) or not node.refs:
            continue
        gain = effect.constant(norm)
        if gain.reason:
            return gain.reason
        if gain.log10 > 1e-9:
            return f"{node.op} in {node.where} has a constant of {power10(gain.log10):.4g}, and the formula assumes 1"
    if len(segments.graph.inputs) > 1 or any(readers.get(item.name, 0) > 1 for item in segments.graph.inputs):
        return "the network is not a chain: several inputs or branches from the input"
    return None
