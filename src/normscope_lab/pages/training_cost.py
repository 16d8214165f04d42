"""`training_cost_document`: the papers' rates for a model as the report a person reads."""

from __future__ import annotations

from normscope.report import Block, Column, Document, Table, Text

from ..rates import GAUGE, TrainingCost

LOGARITHMS = "Figures are exponents of ten of orders without constants: compare them, do not count with them."


def training_cost_document(cost: TrainingCost, *, brief: bool = False) -> Document:
    """Return the report, in a short form for a terminal if `brief`."""
    worst = max(range(len(cost.at_data)), key=lambda k: cost.at_data[k].log10_behind)
    first = cost.at_data[worst]
    head = (
        f"By the papers' worst case `{cost.paths[worst]}` is the slowest layer to train. With the normalizers as "
        f"they are at the data its count is 10^{first.log10_ratio:.1f} times that of the network without them."
        if cost.normalizers
        else f"By the papers' worst case `{cost.paths[worst]}` is the slowest layer to train. The model has no "
        "normalizer, so that there is nothing to compare."
    )
    warning = f"This ratio depends on a convention: {GAUGE}. Here {cost.normalizers} normalizers allow it."
    blocks: list[Block] = [Text(body=head, lead=True), *([Text(body=warning)] if cost.normalizers else [])]
    blocks += [Text(body=f"Note: {note}.") for note in cost.notes]
    columns = (
        Column(title="layer", kind="name"),
        Column(title="weights behind", kind="log10", help="product of the operator norms of the later layers"),
        Column(title="at least", kind="log10", help="Corollary 18: iterations, unnormalized"),
        Column(title="enough", kind="log10", help="Corollary 19: evaluations, unnormalized"),
        Column(title="enough, normalized", kind="log10", help="Corollary 19, constants at the data"),
        Column(title="ratio", kind="log10", help="normalized over unnormalized, constants at the data"),
        Column(title="ratio as printed", kind="log10", help="with the constants of Lemmas 1 to 3"),
    )
    rows = tuple(
        (
            path,
            one.log10_behind,
            one.log10_at_least,
            one.log10_unnormalized,
            one.log10_normalized,
            one.log10_ratio,
            other.log10_ratio,
        )
        for path, one, other in zip(cost.paths, cost.at_data, cost.printed)
    )
    title = f"Iterations for an accuracy of {cost.alpha:g}, by layer"
    blocks.append(Table(title=title, columns=columns, rows=rows, caption=LOGARITHMS))
    if cost.log10_constant is not None:
        titles = (Column(title="source"), Column(title="remark"))
        heads = (Column(title="rate"), Column(title="iterations", kind="log10"), *titles)
        blocks.append(
            Table(
                title=f"All rates, at the measured constant 10^{cost.log10_constant:.2f}",
                columns=heads,
                rows=cost.rates,
                caption="The constant is how far the output moves, at the data, per relative change of a weight: "
                "rescaling weights in front of a normalizer does not move it.",
            )
        )
    return Document(title=f"Training cost of {cost.name}", blocks=tuple(blocks))
