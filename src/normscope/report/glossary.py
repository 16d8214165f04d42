"""What the terms of the papers mean, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .document import Block, Chart, Circle, Curves, Figures, Glossary, Table, Text

WORDS = {
    "Lipschitz constant": "The most that the distance between two inputs can grow on its way to the output, over all "
    "pairs of inputs there are (GLOBAL). A network with constant 3 moves its output by at most 3 when its input moves "
    "by 1. It is known from two sides: an upper side that holds for every input, and a lower side that is attained by "
    "two inputs which were found.",
    "Jacobian norm": "How much the smallest changes of one input grow at most (POINT): the largest singular value of "
    "the derivative there. It is a fact about the inputs it was taken at and says nothing about others.",
    "domain": "A set of inputs that can be tested: all inputs whose values inside the network stay in the ranges that "
    "were recorded over data. A bound over a domain (DOMAIN) holds at every input inside, also at inputs that are no "
    "data; its coverage is the share of fresh data that lies inside.",
    "operator norm": "The most that a linear layer can stretch what it is given: its largest singular value, at the "
    "size of input it really gets. For a convolution this is not the norm of its kernel.",
    "folded gain": "The gain of a normalizer and the linear map before it as one map, with the variance seen in the "
    "data (column 'folded'): an estimate from below, since it speaks of the data alone. Rescaling the weights moves "
    "the norm of the layer and the constant of the normalizer, but not this. Where no linear map stands before a "
    "normalizer it is the gain of the normalizer alone.",
    "printed product": "The product of layer constants as papers print it. It is no bound where layers run side by "
    "side or activations are steeper than 1; then the page says so.",
    "ladder of bounds": "Ways to bound the same Lipschitz constant, from the crudest to the best: layer after layer "
    "(product), runs of linear layers joined into one map first (folded), certificates that look at several layers at "
    "once (liplt, closed-form, tight) and an exhaustive search (exact).",
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
}
"""By term, in the order a reader may need them."""

EXPLAINED = {"evidence": "evidence", "folded": "folded gain", "printed": "printed product"}
"""The terms that explain columns, by their headings."""


def glossary(blocks: Iterable[Block]) -> list[Block]:
    """Return a folded part that explains the terms which some blocks use, or nothing where they use none.

    Args:
        blocks: of a page.
    """
    used = set(_terms(blocks))
    items = tuple((term, meaning) for term, meaning in WORDS.items() if term in used)
    return [Text(heading="Words", folded=True), Glossary(items=items)] if items else []


def _terms(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the terms of blocks, and those that columns and axes need without naming them as such."""
    for block in blocks:
        if isinstance(block, Text | Chart | Curves | Circle):
            yield block.term
        if isinstance(block, Figures):
            yield from (item.term for item in block.items)
        if isinstance(block, Chart | Curves) and block.axis.startswith("log10"):
            yield "log10"
        if isinstance(block, Table):
            yield from ("log10" for column in block.columns if column.kind == "log10")
            yield from (EXPLAINED[column.title] for column in block.columns if column.title in EXPLAINED)
