"""The claims of Than's figures 1, 2 and 3, judged by the figures of training runs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..base import Figures, Judgement, Verdict
from .reading import NORMS, PRODUCTS, SEVERAL, present, weighed
from .training import NETWORKS, TITLES

DECAYS = tuple(TITLES)
MANY = 0.9
"""Share of the layers that counts as "at all layers often"."""


def norms_exceed_one(figures: Figures, networks: Iterable[str]) -> Judgement:
    """Judge whether the norms of nearly all layers are above 1 in the end, and their product has grown."""
    answers, told = {}, []
    for network in networks:
        for norm in NORMS:
            above = present(figures, network, f"{norm}_above_one", DECAYS)
            for decay, count in above.items():
                run = f"{network}.{decay}"
                layers = figures[f"{run}.{norm}_layers"]
                start, end = figures[f"{run}.log10_product_{norm}_first"], figures[f"{run}.log10_product_{norm}"]
                answers[f"{NETWORKS[network]}, {TITLES[decay]}, {norm} norms"] = count >= MANY * layers and end > start
                if norm == "operator":
                    told.append(
                        f"{NETWORKS[network]} with {TITLES[decay]}: {count:g} of {layers:g}, "
                        f"product {_power(start)} to {_power(end)}"
                    )
    return weighed(answers, f"Layers whose operator norm is above 1 in the end: {'; '.join(told)}.")


def product_of(figures: Figures, network: str, published: float, tolerance: float) -> Judgement:
    """Judge a published product of weight norms: which norm and which decay give it, if any."""
    answers, told = {}, []
    for norm in NORMS:
        for decay, value in present(figures, network, f"log10_product_{norm}", DECAYS).items():
            answers[f"{norm} norms, {TITLES[decay]}"] = abs(value - published) <= tolerance
            told.append(f"{norm} norms, {TITLES[decay]}: {_power(value)}")
    evidence = f"Published {_power(published)}; measured, {'; '.join(told)} (within {tolerance:g} decades counts)."
    return weighed(answers, evidence)


def reduction_of(figures: Figures, network: str, names: Iterable[str], published: float, tolerance: float) -> Judgement:
    """Judge a published product of 1/sigma: which reading and which decay give it, if any."""
    answers, told = {}, []
    for name in names:
        for decay, value in present(figures, network, f"log10_reduction_{name}", DECAYS).items():
            answers[f"{PRODUCTS[name]} and {TITLES[decay]}"] = abs(value - published) <= tolerance
            told.append(f"{PRODUCTS[name]}, {TITLES[decay]}: {_power(value)}")
    evidence = f"Published {_power(published)}; measured with {'; '.join(told)} (within {tolerance:g} decades counts)."
    return weighed(answers, evidence)


def reduces(figures: Figures, network: str) -> Judgement:
    """Judge whether the normalizers' factors multiply to less than 1, so that they reduce the printed bound."""
    answers, told = {}, []
    for name in ("sigma", "inverse", "inverse_l2"):
        for decay, value in present(figures, network, f"log10_reduction_{name}", DECAYS).items():
            answers[f"{PRODUCTS[name]} and {TITLES[decay]}"] = value < 0
            told.append(f"{PRODUCTS[name]}, {TITLES[decay]}: {_power(value)}")
    return weighed(answers, f"The product over the layers with {'; '.join(told)}.")


def small_at_first(figures: Figures, networks: Iterable[str]) -> Judgement:
    """Judge whether every input variance is below 1 before training."""
    answers, told = {}, []
    for network in networks:
        for decay, small in present(figures, network, "sites_small_at_first", DECAYS).items():
            sites = figures[f"{network}.{decay}.sites"]
            answers[NETWORKS[network]] = small == sites  # all decays begin from the same weights
            if decay == "coupled":
                told.append(f"{NETWORKS[network]}: {small:g} of {sites:g}")
    return weighed(answers, f"Layers whose input variance is below 1 before training: {'; '.join(told)}.")


def variances_grow(figures: Figures, networks: Iterable[str]) -> Judgement:
    """Judge whether the variances of several layers grow at least tenfold and exceed 1."""
    answers, told = {}, []
    for network in networks:
        for decay, count in present(figures, network, "sites_grown_tenfold_above_one", DECAYS).items():
            run = f"{network}.{decay}"
            answers[f"{NETWORKS[network]}, {TITLES[decay]}"] = count >= SEVERAL
            dead = figures[f"{run}.sites_below_eps"]
            fallen = f", and {dead:g} fell below eps" if dead else ""
            told.append(f"{NETWORKS[network]} with {TITLES[decay]}: {count:g} of {figures[f'{run}.sites']:g}{fallen}")
    return weighed(
        answers, f"Layers whose input variance grew tenfold or more and is above 1 in the end: {'; '.join(told)}."
    )


def variances_all_grow(figures: Figures, networks: Iterable[str]) -> Judgement:
    """Judge whether the variances of nearly all layers and nearly all operator norms have grown in the end."""
    answers, told = {}, []
    for network in networks:
        for decay, count in present(figures, network, "sites_grown", DECAYS).items():
            run = f"{network}.{decay}"
            sites, layers, grown = (figures[f"{run}.{name}"] for name in ("sites", "operator_layers", "operator_grown"))
            answers[f"{NETWORKS[network]}, {TITLES[decay]}"] = count >= MANY * sites and grown >= MANY * layers
            epochs = figures[f"{run}.epochs"]
            told.append(
                f"{NETWORKS[network]} with {TITLES[decay]} after {epochs:g} epochs: {count:g} of {sites:g} variances "
                f"and {grown:g} of {layers:g} norms"
            )
    return weighed(answers, f"Larger than before training: {'; '.join(told)}.")


def exponential(figures: Figures, networks: Iterable[str]) -> Judgement:
    """Judge whether the product of variances grows, and by about the same factor in each epoch."""
    growing, told, fits = {}, [], []
    for network in networks:
        for decay, slope in present(figures, network, "log10_variances_per_epoch", DECAYS).items():
            fit = figures[f"{network}.{decay}.variances_straightness"]
            growing[f"{NETWORKS[network]}, {TITLES[decay]}"] = slope > 0
            fits.append(fit)
            told.append(f"{NETWORKS[network]} with {TITLES[decay]}: {slope:+.3g} decades an epoch (R2 {fit:.2f})")
    evidence = f"Growth of the product of all input variances: {'; '.join(told)}."
    judgement = weighed(growing, evidence)
    if judgement.verdict == Verdict.HOLDS and min(fits) < 0.8:
        return Judgement(Verdict.CORRECTED, f"{evidence} It grows, but not at a constant rate.")
    return judgement


def fits_the_data(figures: Figures, networks: Iterable[str]) -> Judgement:
    """Judge whether the training error approaches zero."""
    answers, told = {}, []
    for network in networks:
        for decay, right in present(figures, network, "train_accuracy", DECAYS).items():
            answers[f"{NETWORKS[network]}, {TITLES[decay]}"] = right >= 0.95
            told.append(
                f"{NETWORKS[network]} with {TITLES[decay]}: {100 * right:.1f} % in training, "
                f"{100 * figures[f'{network}.{decay}.test_accuracy']:.1f} % in test"
            )
    return weighed(answers, f"Right after the last epoch: {'; '.join(told)} (95 % in training counts).")


def _power(exponent: float) -> str:
    return f"10^{exponent:.1f}" if math.isfinite(exponent) else ("infinity" if exponent > 0 else "0")
