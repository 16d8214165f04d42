"""`normscope lab claims`: the ledger of the papers' claims, from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from normscope.commands import Html, Json, check_targets, options_of, show_result

from ..experiments.claims import claims as judge

HELP = """Judge every claim of the papers on normalization by computation, and print the ledger.

One row per claim: its place in the paper, the paper's own words, our reading of them, the verdict (holds, holds with
correction, fails, depends on convention, not testable), the computed evidence, a corrected statement where the claim is
not true as it stands, and the command that computes it again. What no paper claims is called a measurement and has no
verdict. Fast claims are computed now (under a minute on two cores); those of long experiments come from figures that
are kept in the package, with day, commit and machine. Every verdict is computed from these figures: other figures
would give another one. `--json` writes all of it, with the figures, their intervals and numbers of seeds.

NAME is the id of a claim (`than.lemma1`), an experiment of `normscope lab reproduce` for all of its claims
(`than.figure1`), or the beginning of several (`than`, `slides`); left out, all. Up to three claims are shown in whole
sentences: what each says and where, the evidence, and what computes it again.
"""

EXAMPLES = """
normscope lab claims than.lemma1

normscope lab claims
normscope lab claims than --html claims.html
normscope lab claims --json claims.json
"""


@options_of(judge)
def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Ids of claims, or experiments; left out, all.", show_default=False),
    ] = None,
    *,
    html: Html = None,
    json: Json = None,
    workers: Annotated[int | None, typer.Option(min=0)],
) -> None:
    """Judge the claims (the help of the command is HELP)."""
    check_targets(html, json)
    show_result(judge(names or (), workers=workers), html, json)
