"""The claims of Than's figures 1, 2 and 3, judged by the figures of training runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from normscope.report import factor

from ..base import Figures, Judgement, Verdict
from ..judging import by_count, near, of_readings
from .curve_figures import NORMS, PRODUCTS, PUBLISHED, SEVERAL
from .watched_training import NETWORKS, TITLES

SHORT = {"coupled": "L2", "decoupled": "AdamW", "none": "no decay"}
"""Short names of the kinds of weight decay."""
MISSING = "not measured of the trained network"


class Answers(dict[str, dict[str, bool]]):
    """Whether a claim is true of each network, by reading; a reading is a kind of decay and often a norm."""

    def add(self, network: str, reading: str, answer: bool) -> None:
        """Add whether the claim is true of a network in one reading."""
        self.setdefault(reading, {})[NETWORKS[network]] = answer

    def add_end(self, figures: Figures, network: str, decay: str, reading: str, answer: bool) -> None:
        """Add an answer about the end of training; a run that came less than half of its way does not count."""
        if came_far(figures, network, decay):
            self.add(network, ", ".join(filter(None, (reading, SHORT[decay]))), answer)


class FigureTable:
    """Figures in words: a row for what they are figures of, a column for each kind of decay."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, str]] = {}

    def add(self, what: str, decay: str, figure: str) -> None:
        """Add a figure."""
        self._rows.setdefault(what, {})[decay] = figure

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The table, with its heading; empty without figures. A figure that a run lacks is said to be missing."""
        decays = [decay for decay in SHORT if any(decay in figures for figures in self._rows.values())]
        body = [(what, *(figures.get(decay, MISSING) for decay in decays)) for what, figures in self._rows.items()]
        return (("", *(SHORT[decay] for decay in decays)), *body) if body else ()


def weighed(answers: Mapping[str, Mapping[str, bool]], evidence: str, listed: FigureTable) -> Judgement:
    """Return the verdict on a claim: first over the networks in each reading, then over the readings."""
    if not answers:
        undecided = f"{evidence} No run came half of its way: this decides nothing."
        return Judgement(Verdict.NOT_TESTABLE, undecided, listed.rows)
    named = {
        ", ".join(filter(None, (network, reading))): answer
        for reading, networks in answers.items()
        for network, answer in networks.items()
    }
    true = [name for name, answer in named.items() if answer]
    false = [name for name, answer in named.items() if not answer]
    few, which = (true, "It is so for") if len(true) <= len(false) else (false, "It is not so for")
    exceptions = f" {which}: {'; '.join(few)}." if true and false else ""
    each = [by_count(sum(networks.values()), len(networks), "").verdict for networks in answers.values()]
    return Judgement(of_readings(each), evidence + exceptions, listed.rows)


def epochs(figures: Figures, networks: Iterable[str], decays: Iterable[str]) -> str:
    """Return after how many epochs the figures of networks were taken, in words; by decay where the runs differ."""
    spans = []
    for network in networks:
        counts = present(figures, network, "epochs", decays)
        same = len(set(counts.values())) == 1
        spans += [f"{count:g}" if same else f"{count:g} ({SHORT[decay]})" for decay, count in counts.items()]
    return f"after {', '.join(dict.fromkeys(spans)) or 'no'} epochs"


def present(figures: Figures, network: str, name: str, decays: Iterable[str]) -> dict[str, float]:
    """Return a figure of a network by kind of decay, for the runs that have it."""
    held = {decay: f"{network}.{decay}.{name}" for decay in decays}
    return {decay: figures[key] for decay, key in held.items() if key in figures}


def came_far(figures: Figures, network: str, decay: str) -> bool:
    """Whether a run came half of its way or more; a shorter one says nothing about the end of training."""
    run = f"{network}.{decay}"
    return 2 * figures[f"{run}.epochs"] >= figures[f"{run}.epochs_planned"]


def taken_at(figures: Figures, run: str, first: str, last: str) -> str:
    """Return the epochs at which a figure of a run was taken, in words, if that is not the run's last epoch alone."""
    start, end = figures[f"{run}.{first}"], figures[f"{run}.{last}"]
    if start == end == figures[f"{run}.epochs"]:
        return ""
    return f" at epoch {end:g}" if start == end else f" at epochs {start:g} to {end:g}"


DECAYS = tuple(TITLES)
MANY = 0.9
"""The share of the layers that counts as "nearly all layers"."""
RIGHT = 0.95
"""The training error counts as near zero from this accuracy on."""


def norms_exceed_one(figures: Figures, networks: Sequence[str]) -> Judgement:
    """Judge whether the norms of nearly all layers are above 1 in the end, and their product has grown.

    The readings are each of the three norms with each kind of decay; the claim is about both networks.
    """
    answers, listed = Answers(), FigureTable()
    for network in networks:
        for norm in NORMS:
            for decay, count in present(figures, network, f"{norm}_above_one", DECAYS).items():
                run = f"{network}.{decay}"
                layers = figures[f"{run}.{norm}_layers"]
                start, end = figures[f"{run}.log10_product_{norm}_first"], figures[f"{run}.log10_product_{norm}"]
                answers.add_end(figures, network, decay, f"{norm} norms", count >= MANY * layers and end > start)
                when = taken_at(figures, run, f"{norm}_epoch_from", f"{norm}_epoch_to")
                grown = f"{count:g} of {layers:g}, product from {factor(start)} to {factor(end)}{when}"
                listed.add(f"{NETWORKS[network]}, {norm} norms", decay, grown)
    return weighed(answers, f"Layers whose norm is above 1 {_after(figures, networks)}.", listed)


def product_of(figures: Figures, network: str, published: float) -> Judgement:
    """Judge a published product of weight norms: which norm and which decay give it, if any."""
    answers, listed = Answers(), FigureTable()
    for norm in NORMS:
        for decay, value in present(figures, network, f"log10_product_{norm}", DECAYS).items():
            answers.add_end(figures, network, decay, f"{norm} norms", near(value, published))
            when = taken_at(figures, f"{network}.{decay}", f"{norm}_epoch_from", f"{norm}_epoch_to")
            listed.add(f"{norm} norms", decay, factor(value) + when)
    counts = _tolerance(published)
    return weighed(answers, f"Published {factor(published)} ({counts}); measured {_after(figures, [network])}.", listed)


def reduction_of(figures: Figures, network: str, names: Iterable[str], source: str) -> Judgement:
    """Judge a published product of 1/sigma: which reading and decay give it at the end, and which on the way."""
    answers, listed = Answers(), FigureTable()
    published = PUBLISHED[source]
    for name in names:
        for decay, value in present(figures, network, f"log10_reduction_{name}", DECAYS).items():
            answers.add_end(figures, network, decay, PRODUCTS[name], near(value, published))
            epoch = present(figures, network, f"epoch_{source}_{name}", [decay]).get(decay)
            passed = "" if epoch is None else f", passing the published figure at epoch {epoch:g}"
            listed.add(PRODUCTS[name], decay, factor(value) + passed)
    counts = _tolerance(published)
    evidence = f"Published {factor(published)} ({counts}); measured {_after(figures, [network])}."
    return weighed(answers, evidence, listed)


def reduces(figures: Figures, network: str) -> Judgement:
    """Judge whether the normalizers' factors multiply to less than 1, so that they reduce the printed bound."""
    answers, listed = Answers(), FigureTable()
    for name in ("sigma", "inverse", "inverse_l2"):
        for decay, value in present(figures, network, f"log10_reduction_{name}", DECAYS).items():
            answers.add_end(figures, network, decay, PRODUCTS[name], value < 0)
            listed.add(PRODUCTS[name], decay, factor(value))
    return weighed(answers, f"The product over the layers {_after(figures, [network])}.", listed)


def small_at_first(figures: Figures, networks: Sequence[str]) -> Judgement:
    """Judge whether every input variance is below 1 before training; all decays begin from the same weights."""
    answers, listed = Answers(), []
    for network in networks:
        for decay, small in present(figures, network, "sites_small_at_first", DECAYS).items():
            sites = figures[f"{network}.{decay}.sites"]
            largest = figures[f"{network}.{decay}.log10_variance_largest_first"]
            text = f"{NETWORKS[network]} {small:g} of {sites:g}, the largest being {factor(largest)}"
            listed += [text] if text not in listed else []
            answers.add(network, "", small == sites)
    evidence = f"Layers whose input variance is below 1 before training: {'; '.join(listed)}."
    return weighed(answers, evidence, FigureTable())


def variances_grow(figures: Figures, networks: Sequence[str]) -> Judgement:
    """Judge whether the variances of several layers grow at least tenfold and exceed 1."""
    answers, listed = Answers(), FigureTable()
    for network in networks:
        for decay, count in present(figures, network, "sites_grown_tenfold_above_one", DECAYS).items():
            run = f"{network}.{decay}"
            answers.add_end(figures, network, decay, "", count >= SEVERAL)
            dead = figures[f"{run}.sites_below_eps"]
            fallen = f", and {dead:g} fell below eps" if dead else ""
            listed.add(NETWORKS[network], decay, f"{count:g} of {figures[f'{run}.sites']:g}{fallen}")
    return weighed(
        answers,
        f"Layers whose input variance grew tenfold or more and is above 1 {_after(figures, networks)}.",
        listed,
    )


def variances_all_grow(figures: Figures, networks: Sequence[str]) -> Judgement:
    """Judge whether the variances of nearly all layers and nearly all operator norms have grown in the end."""
    answers, listed = Answers(), FigureTable()
    for network in networks:
        for decay, count in present(figures, network, "sites_grown", DECAYS).items():
            run = f"{network}.{decay}"
            sites = figures[f"{run}.sites"]
            if f"{run}.operator_grown" not in figures:
                listed.add(NETWORKS[network], decay, f"{count:g} of {sites:g} variances; norms {MISSING}")
                continue
            layers, grown = figures[f"{run}.operator_layers"], figures[f"{run}.operator_grown"]
            answers.add_end(figures, network, decay, "", count >= MANY * sites and grown >= MANY * layers)
            when = taken_at(figures, run, "operator_epoch_from", "operator_epoch_to")
            listed.add(
                NETWORKS[network],
                decay,
                f"{count:g} of {sites:g} variances and {grown:g} of {layers:g} norms{when and f' ({when.strip()})'}",
            )
    return weighed(answers, f"Larger than before training, {_after(figures, networks)}.", listed)


def exponential(figures: Figures, networks: Sequence[str]) -> Judgement:
    """Judge whether the product of variances grows, and whether an exponential fits it better than a power law."""
    growing, exponentially, listed = Answers(), Answers(), FigureTable()
    for network in networks:
        for decay, slope in present(figures, network, "log10_variances_per_epoch", DECAYS).items():
            names = ("variances_straightness", "variances_power_straightness", "variances_power")
            fit, power_fit, power = (figures[f"{network}.{decay}.{name}"] for name in names)
            growing.add_end(figures, network, decay, "", slope > 0)
            exponentially.add_end(figures, network, decay, "", slope > 0 and fit >= power_fit)
            listed.add(
                NETWORKS[network],
                decay,
                f"{slope:+.3g} decades an epoch, R2 {fit:.3f}, or epochs to the power {power:.3g}, R2 {power_fit:.3f}",
            )
    judgement = weighed(exponentially, "Growth of the product of all input variances.", listed)
    if judgement.verdict is not Verdict.FAILS:
        return judgement
    grows = weighed(growing, "", listed).verdict  # it grows, by another law than the printed one
    return judgement._replace(verdict=Verdict.CORRECTED if grows is Verdict.HOLDS else grows)


def fits_the_data(figures: Figures, networks: Sequence[str]) -> Judgement:
    """Judge whether the training error approaches zero."""
    answers, listed = Answers(), FigureTable()
    for network in networks:
        for decay, right in present(figures, network, "train_accuracy", DECAYS).items():
            answers.add_end(figures, network, decay, "", right >= RIGHT)
            run = f"{network}.{decay}"
            tested = f"test {MISSING}"
            if f"{run}.test_accuracy" in figures:
                when = taken_at(figures, run, "test_accuracy_epoch", "test_accuracy_epoch")
                tested = f"{100 * figures[f'{run}.test_accuracy']:.1f} % in test{when}"
            listed.add(NETWORKS[network], decay, f"{100 * right:.1f} % in training and {tested}")
    return weighed(answers, f"Right {_after(figures, networks)} ({100 * RIGHT:g} % in training counts).", listed)


def _tolerance(published: float) -> str:
    return f"within {abs(published) / 10:.2g} decades counts"


def _after(figures: Figures, networks: Sequence[str]) -> str:
    return epochs(figures, networks, DECAYS)
