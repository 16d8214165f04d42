"""The terms of the papers and of Normscope in plain words, for pages and for `docs/glossary.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .document import Block, Chart, Curves, Figures, Glossary, Table, Text

WORDS = {
    "Lipschitz constant": "The most that the distance between two inputs can grow on its way to the output, over all "
    "pairs of inputs there are (GLOBAL). A network with constant 3 moves its output by at most 3 when its input moves "
    "by 1. It is known from two sides: an upper side that holds for every input, and a lower side that is attained by "
    "two inputs which were found.",
    "Jacobian norm": "How much the smallest changes of one input grow at most (POINT): the largest singular value of "
    "the derivative there. It is a fact about the inputs it was taken at and says nothing about others.",
    "operator norm": "The most that a linear layer can stretch what it is given: its largest singular value, at the "
    "size of input it really gets. For a convolution this is not the norm of its kernel.",
    "folded gain": "The gain of a normalizer and the linear map before it as one map, with the variance seen in the "
    "data (column 'folded'): an estimate from below, since it speaks of the data alone. Rescaling the weights moves "
    "the norm of the layer and the constant of the normalizer, but not this. Where no linear map stands before a "
    "normalizer it is the gain of the normalizer alone.",
    "growth across a normalizer": "What a normalizer and the layer that feeds it make of a random small change, as a "
    "share of the values: |change|/|value| behind the two over the same in front of them. Rescaling weights moves both "
    "alike. Above 1 the two let a change grow. Frozen, a normalizer is the scale and shift that it is at the "
    "statistics it takes now; one that does the same frozen is idle.",
    "printed product": "The product of layer constants as papers print it. It is no bound where layers run side by "
    "side or activations are steeper than 1; then the page says so.",
    "ladder of bounds": "Ways to bound the same Lipschitz constant, from the crudest to the best: layer after layer "
    "(product), runs of linear layers joined into one map first (folded), certificates that look at several layers at "
    "once (closed-form, tight).",
    "evidence": "How an upper side is known. PROVEN is true with all rounding errors counted; NUMERICAL is true up to "
    "rounding; SAMPLED is the largest value among the points tried, and no bound.",
    "normalized variance": "What a normalizer divides by, squared: the variance of the values it normalizes together, "
    "plus eps. Where it is below 1 the normalizer expands its input, near eps it no longer normalizes. BatchNorm in "
    "eval mode divides by the variances it has stored, whatever those of the data are.",
    "weight sensitivity": "How far the output moves per unit (Frobenius) of change of one weight matrix, all others "
    "fixed: norm(h, W). Large values mean that a small step or a small rounding of this weight changes much.",
    "certified radius": "The distance (l2, in units of the model's input) within which no change of a sample can "
    "change its class; this is proven. The attacked radius is the length of the smallest change found that does.",
    "sharpness": "The largest eigenvalue of the Hessian of the loss with respect to the weights: how strongly the loss "
    "curves in the direction in which it curves most. It depends on the mode (batch norm) and, for weights whose scale "
    "has no effect, on their norms.",
    "log10": "An exponent of ten: 2 stands for 100, -1 for 0.1. Products of many layers would not fit into numbers.",
    "effective learning rate": "The learning rate over the squared norm of a weight whose scale has no effect: how far "
    "a step turns it.",
    "update to weight ratio": "The size of one step of the optimizer over the size of the weights that it changes. "
    "Trainings that go well have about a thousandth.",
    "bracket": "A number that is known to lie between a lower side and an upper side. The lower side has a witness "
    "that attains it; the upper side has evidence, and a reason where it is infinite.",
    "witness": "What attains the lower side of a bracket: a vector that a linear map stretches by so much, or two "
    "inputs whose outputs are so far apart.",
    "scope": "The inputs that a figure speaks of: all inputs (GLOBAL), those within a distance of a sample (BALL), "
    "fresh draws from the same data (DATA), or the given samples alone (POINT).",
    "GLOBAL": "The scope of all inputs of the captured shape, whether or not they look like data.",
    "DATA": "The scope of fresh, independent draws from the same data: with a stated confidence, a stated share of "
    "them has a Jacobian norm of at most the upper side. It says nothing about shifted or adversarial inputs.",
    "POINT": "The scope of the given samples alone: the Jacobian norm at each of them.",
    "BALL": "The scope of all inputs within a radius (l2) of a sample.",
    "rung": "One entry of the ladder of bounds: one method and the bracket that it gives.",
    "product": "The rung that multiplies the constants of all layers, and adds those of layers that run side by side.",
    "folded": "The rung that first joins every run of linear layers into one map, and then takes the norm of that map. "
    "A convolution with the BatchNorm behind it, in eval mode, is one such map.",
    "closed form": "A certificate whose multipliers are given by a formula, without a search. It looks at several "
    "layers at once and is never worse than the product of norms.",
    "tight": "The certificate whose multipliers are searched for: the rung `tight`, from effort `tight` on.",
    "certificate": "Numbers from which anyone can compute that an upper side holds, without repeating the search for "
    "them.",
    "printed": "Computed as the literature prints it. A printed constant or product is shown for comparison, and the "
    "page says where it is no bound.",
    "gauge": "A choice that changes the weights and leaves the function as it is: weights in front of a normalizer can "
    "be multiplied by any positive number. Figures that move with it, such as the norm of one layer, say nothing "
    "alone.",
    "scale-invariant weight": "A weight that can be multiplied by a positive number without changing the output, "
    "because a normalizer stands behind it.",
    "capture": "To run a model once under `torch.export` and to keep what it does as a small graph of operators.",
    "rule": "What is known of one operator: how much a change of its input can change its output.",
    "effect": "What a rule answers: a linear map, an interval of slopes, one gain per operand, or that there is no "
    "finite constant, with the reason.",
    "gain": "How many times longer a change can be behind a layer than in front of it.",
    "normalizer": "A layer that divides values by their own spread: BatchNorm, LayerNorm, GroupNorm, InstanceNorm or "
    "RMSNorm.",
    "finding": "Something wrong with a model or worth knowing about it: where it is, why it matters and what to do.",
    "alarm": "A finding that is raised while a model trains.",
    "probe": "A small function that measures something of a training step on the device, such as a variance.",
    "twin": "The same network with other normalizers, or with none.",
}
"""The meaning of each term: first the terms that pages link to, then those of the documentation."""

USED = {
    "Lipschitz constant": "certificates.md#over-all-inputs",
    "Jacobian norm": "certificates.md#lower-sides-and-rounding",
    "operator norm": "api.md#functions",
    "folded gain": "choices.md#choices",
    "growth across a normalizer": "report.md#how-to-read-it",
    "printed product": "watching.md#what-is-measured",
    "ladder of bounds": "certificates.md#over-all-inputs",
    "evidence": "certificates.md#lower-sides-and-rounding",
    "normalized variance": "findings.md#in-an-audit",
    "weight sensitivity": "certificates.md#with-respect-to-weights",
    "certified radius": "certificates.md#over-balls",
    "sharpness": "geometry.md#curvature",
    "log10": "json.md#audits",
    "effective learning rate": "watching.md#what-is-measured",
    "update to weight ratio": "watching.md#what-is-measured",
    "bracket": "json.md#brackets-over-data",
    "witness": "certificates.md#lower-sides-and-rounding",
    "scope": "scopes.md#where-a-bound-holds",
    "GLOBAL": "certificates.md#over-all-inputs",
    "DATA": "scopes.md#a-share-of-the-data",
    "POINT": "scopes.md#where-a-bound-holds",
    "BALL": "certificates.md#over-balls",
    "rung": "certificates.md#over-all-inputs",
    "product": "certificates.md#over-all-inputs",
    "folded": "certificates.md#over-all-inputs",
    "closed form": "certificates.md#over-all-inputs",
    "tight": "certificates.md#over-all-inputs",
    "certificate": "certificates.md#checked-by-someone-else",
    "printed": "reproduction.md#what-of-the-theory-holds",
    "gauge": "geometry.md#symmetries",
    "scale-invariant weight": "geometry.md#weight-decay-and-scale-invariance",
    "capture": "architecture.md#architecture",
    "rule": "api.md#rules",
    "effect": "api.md#rules",
    "gain": "findings.md#in-an-audit",
    "normalizer": "networks.md#twins",
    "finding": "findings.md#findings",
    "alarm": "watching.md#alarms",
    "probe": "watching.md#what-is-measured",
    "twin": "networks.md#twins",
}
"""The heading of `docs` under which each term is used."""
MORE = "These and other terms are explained in `docs/glossary.md`, with links to where they are used."

EXPLAINED = {"evidence": "evidence", "folded": "folded gain", "printed": "printed product"}
"""The terms that explain columns, by their headings."""


def glossary(blocks: Iterable[Block]) -> list[Block]:
    """Return a folded part that explains the terms which some blocks use, or nothing where they use none."""
    used = set(_terms(blocks))
    items = tuple((term, meaning) for term, meaning in WORDS.items() if term in used)
    return [Text(heading="Words", body=MORE, folded=True), Glossary(items=items)] if items else []


def _terms(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the terms of blocks, and those that columns and axes need without naming them as such."""
    for block in blocks:
        if isinstance(block, Text | Chart | Curves):
            yield block.term
        if isinstance(block, Figures):
            yield from (item.term for item in block.items)
        if isinstance(block, Chart | Curves) and block.axis.startswith("log10"):
            yield "log10"
        if isinstance(block, Table):
            yield from ("log10" for column in block.columns if column.kind == "log10")
            yield from (EXPLAINED[column.title] for column in block.columns if column.title in EXPLAINED)
