"""Write docs/reproduction.md and its pictures from the ledger of claims and the stored results.

    python tools/reproduction_page.py [--docs docs]

Every figure and every verdict on the page is what the program computes just now or read from a stored result; nothing
is typed in. Run it after a stored result or a claim has changed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import normscope_lab as lab
from normscope.report.document import Chart, Curves, Table
from normscope.report.export import picture
from normscope.report.words import factor, format_cell
from normscope_lab.experiments import judging
from normscope_lab.experiments.base import Verdict
from normscope_lab.experiments.reproduction import JudgedClaim, Reproduction
from normscope_lab.experiments.than.curve_figures import PRODUCTS
from normscope_lab.experiments.than.watched_training import NETWORKS, TITLES
from normscope_lab.pages.reproduction import evidence_in_line, evidence_table, origin_text

HEADINGS = {
    Verdict.HOLDS: "What held",
    Verdict.CORRECTED: "What needed a correction",
    Verdict.CONVENTION: "What depends on how it is read or done",
    Verdict.FAILS: "What failed",
    Verdict.NOT_TESTABLE: "What could not be decided",
    Verdict.MEASURED: "What no source claims",
}
LEADS = {
    Verdict.HOLDS: "No computed case contradicts these claims; theorems are not proved here.",
    Verdict.CORRECTED: "These are true once a constant, a term of a formula or a condition is mended, or of most but "
    "not all of what they speak of; the figures say which.",
    Verdict.CONVENTION: "These are true in one reading of their words (a norm, a definition, a kind of weight decay, a "
    "mode) and false in another.",
    Verdict.FAILS: "What these claims say is not there, goes the other way, or is true of half or fewer of what was "
    "tried.",
    Verdict.NOT_TESTABLE: "The runs that there are do not decide these; the commands below run longer ones.",
    Verdict.MEASURED: "These are measurements, of questions that a source asks or of our own, and nobody judges them.",
}
INTRO = """# What of the theory holds

## The question

Which claims of the papers that Normscope is built on survive a computation? They are Than (2025), *The Hidden Power of
Normalization*, with its slides and its digest, Akbar's paper on the geometry of normalization, and a few results of
others beside them. Their common thread is that normalization controls a network's capacity: it is said to shrink the
Lipschitz constant, flatten the loss, allow large learning rates and so let networks generalize.

## The method

`normscope lab reproduce` runs the papers' experiments, and `normscope lab claims` judges each claim by what comes out.
Each has the source's own words (formulas in the source's LaTeX), our reading of them, the computed evidence and, where
the claim is not true as it stands, a corrected statement. A few results of others are in our words alone, where their
text is not at hand. No verdict is written down anywhere: each is the program's comparison of a computed figure with
what the claim says, and a test alters the figures of every claim and sees its verdict change. Medians over seeds stand
with the interval that holds the true median in 95 % of all cases.

```
normscope lab claims                        the ledger, in under a minute (long experiments are read from stored ones)
normscope lab claims than.lemma1            one claim in whole sentences; than, slides, akbar, ... for several
normscope lab claims --html claims.html     one page with the ledger, every figure and every picture
normscope lab claims --json claims.json     the ledger for programs: quotations, figures, intervals, seeds, commits
normscope lab reproduce all --quick         every experiment at a small size, in minutes
normscope lab reproduce than.figure1 --full --data FOLDER --folder runs/than      one of them as the paper has it
python tools/reproduction_page.py           this page with all of its pictures, from the ledger
```

FOLDER holds CIFAR-10 and MNIST. The stored runs on CIFAR-10 used images that had gone through JPEG (quality 75) once.
Both commands come with the lab (`pip install 'normscope[lab]'`).
"""
DISCUSSED = (
    (
        "Whether normalization reduces capacity is asked of trained twins, which differ in their normalizers alone and "
        "have the same training loss. They have the same learning rate too, which need not be the best of each: at "
        "another rate the answer may have the other sign. The factor that Than's paper prints does not answer it, "
        "because weights in front of a normalizer can be rescaled without changing the network.",
        ("than.reduction-factor", "than.6.reduction", "beyond.reduction", "digest.question1.reduction"),
    ),
    (
        "The way from large rates over flat minima to generalization is judged link by link, at equal training loss.",
        ("akbar.5.1.broad", "akbar.5.1.flat", "akbar.6.flat", "akbar.7.1.large-steps", "akbar.10.chain"),
    ),
    (
        "The figures of Than's paper on CIFAR-10 depend on the weight decay, of which the paper gives the strength and "
        "not the place. Decay in the gradient turns them around. AdamW's decay is next to none at the paper's rate, so "
        "that its runs say nothing of a decay that acts beside the gradient and is strong enough to matter.",
        ("than.figure1.norms", "than.figure2.growth", "than.figure2.later", "than.figure2.product"),
    ),
    (
        "Whether the bound that Than proves says which network generalizes better was asked of populations of networks "
        "at equal training loss.",
        ("digest.check3.bound", "digest.check3.global"),
    ),
)
"""What the discussion takes up, and the claims whose verdicts it cites."""
LIMITS = """## Limits

- Where a claim holds, no computed case contradicts it; that is no proof.
- *On this task* means that networks learnt one task, often one of ours because the paper names none: other tasks may
  come out otherwise. Networks are small, but for ResNet18 and EfficientNet-B3.
- Where an interval covers the limit, these seeds decide nothing; more of them may.
- What no source claims is called a measurement and has no verdict.
- Figures 1, 2 and 3 of Than are one run of each network and kind of weight decay. Over six seeds and all 100 epochs
  there is ResNet18 alone (`than.figure2.later`), in bfloat16, without augmentation. EfficientNet-B3 was not run to the
  end: one epoch of its 18 trainings takes 46 seconds on an H200, all 100 take 77 minutes (`python
  benchmarks/decay_seeds.py FOLDER --minutes efficientnet_b3=80`). `python benchmarks/than_full.py FOLDER --folder
  runs/than` runs one of each with all that is watched.
- Which measure predicts the generalization gap is answered for digits, MNIST and CIFAR-10 ([that page](predict.md)),
  with small networks and 300 samples. More samples of CIFAR-10 need a GPU and were not run: `normscope lab
  predict --data cifar10:FOLDER --samples 5000 --depths 4,6 --widths 32,64 --normalizers none,batch,layer
  --batch-sizes 32,128 --learning-rates 0.05 --weight-decays 0 --seeds 6 --target-loss 0.1 --steps 20000
  --device cuda --folder runs/cifar`.
"""
CITE = """## Citing

`CITATION.cff` has the reference. Name the commit: figures belong to one. `normscope lab claims --json
claims.json` writes the ledger with quotations, figures, intervals, seeds, commits and the command of each row.
"""
SHOWN = ("resnet18 coupled", "resnet18 none")
"""Runs whose layers are drawn on the page; the others are on the page of `normscope lab claims --html`."""


def main() -> None:
    """Compute, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    docs: Path = parser.parse_args().docs
    ledger = lab.claims()
    pictures = docs / "images" / "reproduction"
    pictures.mkdir(parents=True, exist_ok=True)
    held = {one.name: one for one in ledger.items if one.experiment.stored}
    parts = [INTRO, rule(), *summary(ledger.rows), *verdicts(ledger.rows)]
    parts += [*discussion(ledger), LIMITS]
    parts += [text for one in held.values() for text in experiment(one, pictures)]
    first = json.loads((docs / "results" / "first_claims.json").read_text(encoding="utf-8"))
    parts += [*stored(held), *since(ledger, first), CITE]
    (docs / "reproduction.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    print(f"wrote {docs / 'reproduction.md'}: {len(ledger)} claims, {len(held)} stored results")


def rule() -> str:
    """Return the rule by which figures become verdicts, from the module that applies it."""
    return "## The rule\n\n" + (judging.__doc__ or "").partition("\n\n")[2].strip() + "\n"


def summary(rows: tuple[JudgedClaim, ...]) -> Iterator[str]:
    """Yield how many claims of each source have each verdict."""
    counts = Counter((row.source, row.verdict) for row in rows)
    sources = list(dict.fromkeys(row.source for row in rows))
    yield "## In short\n"
    yield "| source | " + " | ".join(Verdict) + " |\n|---|" + "---|" * len(Verdict)
    for source in (*sources, "all"):
        cells = [sum(n for (s, v), n in counts.items() if v == verdict and source in (s, "all")) for verdict in Verdict]
        yield f"| {source} | " + " | ".join(map(str, cells)) + " |"
    yield ""


def verdicts(rows: tuple[JudgedClaim, ...]) -> Iterator[str]:
    """Yield the claims by verdict, each with its evidence."""
    for verdict, heading in HEADINGS.items():
        found = [row for row in rows if row.verdict == verdict]
        if found:
            yield f"## {heading}\n\n{LEADS[verdict]}\n"
            for row in found:
                yield entry(row)
            yield ""


def discussion(ledger: lab.Claims) -> Iterator[str]:
    """Yield the discussion: each subject with the verdicts and the evidence that it rests on."""
    yield "## Discussion\n"
    for subject, ids in DISCUSSED:
        yield f"{subject}\n"
        for row in (ledger[id] for id in ids):
            yield f"- {row.reading} *{row.verdict[0].upper()}{row.verdict[1:]}.* {evidence_in_line(row)} (`{row.id}`)"
        yield ""


def entry(row: JudgedClaim) -> str:
    """Return a claim: our reading and its place, the source's words, the evidence, the corrected statement."""
    task = f" {row.on_task[0].upper()}{row.on_task[1:]}." if row.verdict_in_words != row.verdict else ""
    parts = [f"- **{row.reading}**{task} ({row.source}, {row.where}; `{row.id}`)"]
    if row.quotation:  # formulas are shown as the source's LaTeX has them
        parts.append('"' + re.sub(r"\$(.*?)\$", r"`\1`", row.quotation) + '"')
    parts.append(row.evidence)
    if row.table:
        parts.append(markdown(evidence_table(row)).strip().replace("\n", "\n  "))
    if row.corrected:
        parts.append(f"*Corrected statement:* {row.corrected}")
    return "\n\n  ".join(parts)


def experiment(one: Reproduction, pictures: Path) -> Iterator[str]:
    """Yield the heading, tables and pictures of a stored experiment."""
    yield f"## {one.experiment.title}\n\n{one.experiment.about}\n"
    yield f"`{one.command} --folder runs/{one.name}` computes it again, with its tables (CSV) and pictures (SVG).\n"
    if one.name == "than.figure2":
        yield from than_story(one)
    for number, block in enumerate(one.drawn(), 1):
        if isinstance(block, Table):
            yield markdown(block)
        elif isinstance(block, Chart | Curves) and wanted(one, block.title) and (drawn := picture(block)):
            name = f"{one.name}.{number}.svg"
            (pictures / name).write_text(drawn, encoding="utf-8")
            yield f"![{block.title}](images/reproduction/{name})\n"


def wanted(one: Reproduction, title: str) -> bool:
    """Return whether a picture stands on the page: not the layers of every run."""
    if not one.name.startswith("than.figure"):
        return True
    runs = [f"{NETWORKS[network]}, {TITLES[decay]}" for network, decay in (run.split() for run in SHOWN)]
    return ": " not in title or title.partition(": ")[2] in runs


def than_story(one: Reproduction) -> Iterator[str]:
    """Yield what each kind of weight decay did to ResNet18, one sentence each."""
    f = one.figures
    for decay, title in TITLES.items():
        run = f"resnet18.{decay}"
        if f"{run}.epochs" in f:
            yield (
                f"- ResNet18 with {title}, {f[f'{run}.epochs']:g} epochs, {100 * f[f'{run}.test_accuracy']:.1f} % "
                f"right in test: {f[f'{run}.sites_grown']:g} of {f[f'{run}.sites']:g} input variances grew, "
                f"{f[f'{run}.sites_above_one']:g} are above 1 and {f[f'{run}.sites_below_eps']:g} below eps. The "
                f"product of 1/sigma is {factor(f[f'{run}.log10_reduction_sigma'])} ({PRODUCTS['sigma']}) and "
                f"{factor(f[f'{run}.log10_reduction_inverse'])} ({PRODUCTS['inverse']})."
            )
    yield ""


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    lines = ["| " + " | ".join(column.title for column in table.columns) + " |", "|" + "---|" * len(table.columns)]
    for row in table.rows:
        cells = (format_cell(value, column.kind) for value, column in zip(row, table.columns))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    title = f"**{table.title}**\n\n" if table.title else ""
    return title + "\n".join(lines) + f"\n\n{table.caption}\n"


def stored(held: dict[str, Reproduction]) -> Iterator[str]:
    """Yield where the stored results come from and what runs them again."""
    yield "## Where the stored results come from\n"
    yield "| experiment | from | runs it again |\n|---|---|---|"
    for one in held.values():
        yield f"| `{one.name}` | {origin_text(dict(one.origin))} | `{one.command}` |"
    short = {
        f"{curves['network']} {curves['decay']}": curves["done"]
        for one in held.values()
        if one.name.startswith("than.figure")
        for curves in one.measured.values()
        if curves["done"] < one.settings["epochs"]
    }
    yield (
        "\nResults from before times were kept have none. `docs/results/decay_seeds_h200.txt` has those of the 18 "
        "trainings on one GPU. The time of `digest.predicting` is that of its statistics alone: its 720 networks, "
        "which `python benchmarks/populations.py FOLDER` trains and measures, took 17 minutes on 14 cores of the "
        "machine with that GPU (commit bf90e15c, torch 2.11.0).\n"
    )
    if short:
        runs = ", ".join(f"{name} {epochs}" for name, epochs in short.items())
        yield (
            f"Runs that ended before their 100 epochs, with the epochs they came to: {runs}. "
            "`python benchmarks/than_full.py FOLDER --folder runs/than` runs all of them to the end on one GPU.\n"
        )


def since(ledger: lab.Claims, first: dict[str, Any]) -> Iterator[str]:
    """Yield what became of the claims of the first ledger, with reasons, and which claims are new."""
    now, then = {row.id: row for row in ledger}, first["verdicts"]
    missing = [id for id in then if id not in now and id not in first["gone"]]
    moved = [id for id in then if id in now and (then[id] != now[id].verdict or id in first["changed"])]
    missing += [id for id in moved if id not in first["changed"]]
    if missing:
        raise SystemExit(f"docs/results/first_claims.json gives no reason for the change of {', '.join(missing)}")
    new = [row for row in ledger if row.id not in then]
    same = [id for id in then if id in now and id not in moved]
    yield "## Since the first ledger\n"
    yield (
        f"The first ledger ({first['date']}, commit {first['commit']}) had {len(then)} claims. Of these {len(same)} "
        f"have the verdict that they had, {len(moved)} another verdict or reading, and {len(first['gone'])} went; "
        f"{len(new)} are new. `git show {first['commit']}:docs/reproduction.md` shows the first ledger.\n"
    )
    yield "| claim | first | now | why |\n|---|---|---|---|"
    for id in moved:
        reworded = "the same, read anew" if then[id] == now[id].verdict else now[id].verdict
        yield f"| `{id}` | {then[id]} | {reworded} | {first['changed'][id]} |"
    for id, why in first["gone"].items():
        yield f"| `{id}` | {then[id]} | gone | {why} |"
    yield ""
    for text in (
        "New, for statements of the same sources that the first ledger had passed over or joined to others, each with "
        "its place: " + ", ".join(f"`{row.id}` ({row.where})" for row in new if row.source != "Normscope"),
        "New measurements: " + ", ".join(f"`{row.id}`" for row in new if row.source == "Normscope"),
        "With the verdict that they had: " + ", ".join(f"`{id}`" for id in same),
    ):
        yield f"{text}.\n"


if __name__ == "__main__":
    main()
