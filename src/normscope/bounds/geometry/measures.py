"""`measures`: every measure of generalization that the literature compares, of one model. To add one, see `MEASURES`.

A larger value should mean a larger gap between training and test error; margins enter as their inverse. Only the order
of two networks counts, so that the papers' squares are left out of products: those are given as log10 of the norms
themselves. In the formulas W_i are the d weight layers, norm(W) is an operator norm and norm_F a Frobenius norm, V_i
the weights at the start, w and v all parameters and their start, n how many there are, m how many samples, and gamma
the margin that a tenth of the samples does not exceed. What counts as a weight layer, and what is taken for a
convolution, stands in `measured_model.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...calls.batches import LossFunction
from ...calls.stand_ins import accepts_graph
from ...core.budget import Budget, Progress
from ...core.errors import InputError, NormscopeError, check_numbers, check_positive
from ...core.log10 import log10_sum
from ...core.untouched import Mode, outside_inference_mode, unwrapped
from ...products.objective import Objective
from ...report.words import listed
from ...theory.losses import Loss
from .measure_table import Invariance, MeasureRow, Measures
from .measured_model import MAGNITUDE_EPS, MeasuredModel

REACHED_LOSSES = (0.1, 0.01)
"""The training losses between which steps are counted (Jiang et al. 2020)."""
NO_MARGIN = "a tenth of the samples or more has no margin above 0, so that measures over the margin are infinite"
JIANG, DZIUGAITE = "Jiang et al. 2020", "Jiang et al. 2020; Dziugaite et al. 2020"


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure: how it is computed, what it rests on, and whether it stays when layers are rescaled."""

    group: str
    formula: str
    rests_on: tuple[str, ...]
    invariant: Invariance
    of: Callable[[MeasuredModel], float]
    source: str = DZIUGAITE
    is_log10: bool = False


def _sum_of_squares(exponents: Iterable[float]) -> float:
    return 10.0 ** log10_sum(2.0 * exponent for exponent in exponents)


def log10_spectral_product(model: MeasuredModel) -> float:
    """Return log10 of the product of the operator norms."""
    return math.fsum(layer.log10_spectral for layer in model.layers())


def log10_frobenius_product(model: MeasuredModel) -> float:
    """Return log10 of the product of the Frobenius norms."""
    return math.fsum(layer.log10_frobenius for layer in model.layers())


def _log10_mean(model: MeasuredModel, log10_product: float) -> float:
    """Return log10 of d times the geometric mean of d squared norms, from log10 of their product."""
    depth = len(model.layers())
    return math.log10(depth) + 2.0 * log10_product / depth


def log10_spectral_complexity(model: MeasuredModel) -> float:
    """Return log10 of the spectral complexity of Bartlett, Foster and Telgarsky 2017, with the start as reference."""
    ratios = (layer.log10_row_distances - layer.log10_spectral for layer in model.moved_layers())
    return log10_spectral_product(model) + 1.5 * log10_sum(2.0 / 3.0 * ratio for ratio in ratios)


def log10_frobenius_complexity(model: MeasuredModel) -> float:
    """Return log10 of the leading term of Neyshabur, Bhojanapalli and Srebro 2018, without its square."""
    ratios = (layer.log10_frobenius - layer.log10_spectral for layer in model.layers())
    return log10_spectral_product(model) + 0.5 * log10_sum(2.0 * ratio for ratio in ratios)


def log10_distance_complexity(model: MeasuredModel) -> float:
    """Return the same with the Frobenius norms of the distances from the start."""
    ratios = (layer.log10_distance - layer.log10_spectral for layer in model.moved_layers())
    return log10_spectral_product(model) + 0.5 * log10_sum(2.0 * ratio for ratio in ratios)


def _noise_bound(model: MeasuredModel, reference: Tensor) -> float:
    """Return the PAC-Bayes bound of noise of one deviation, without its common factors."""
    sigma = model.noise()
    return float(reference.square().sum()) / (4.0 * sigma**2) + math.log(model.objective.samples / sigma) + 10.0


def _magnitude_bound(model: MeasuredModel, reference: Tensor) -> float:
    """Return the same for noise in units of the weights, with distances from the start as in Dziugaite's code."""
    sigma, eps, distances = model.magnitude_noise(), MAGNITUDE_EPS**2, model.distance().square()
    above = eps + (sigma**2 + 1.0) * float(reference.square().sum()) / len(distances)
    terms = torch.log(above / (eps + sigma**2 * distances))
    return float(terms.sum()) / 4.0 + math.log(model.objective.samples / sigma) + 10.0


def _box_bound(model: MeasuredModel, reference: Tensor) -> float:
    """Return the bound of boxes: noise that stays inside of one with probability above 1/2."""
    side, count = model.box(), len(reference)
    spread = float(reference.square().sum()) * math.log(2.0 * count) / (4.0 * side**2)
    return spread + math.log(model.objective.samples / side) + 10.0


def _negative_entropy(model: MeasuredModel) -> float:
    entropy = model.data().entropy
    if entropy is None:
        raise InputError("the entropy is that of a classifier: a row of 2 or more outputs and a class per sample")
    return -entropy


def _over_margin(measure: Measure) -> Measure:
    """Return a measure over the margin."""
    return Measure(
        "capacity over margin",
        f"{measure.formula} / gamma",
        ("data", "margin", *measure.rests_on),
        measure.invariant,
        lambda model: measure.of(model) - model.log10_margin(),
        measure.source,
        is_log10=True,
    )


SPECTRAL_PRODUCT = Measure("norms", "prod norm(W_i)", (), "yes", log10_spectral_product, is_log10=True)
FROBENIUS_PRODUCT = Measure("norms", "prod norm_F(W_i)", (), "yes", log10_frobenius_product, is_log10=True)
SPECTRAL_MEAN = Measure(
    "norms", "d (prod norm(W_i)^2)^(1/d)", (), "yes",
    lambda m: _log10_mean(m, log10_spectral_product(m)), is_log10=True,
)  # fmt: skip
FROBENIUS_MEAN = Measure(
    "norms", "d (prod norm_F(W_i)^2)^(1/d)", (), "yes",
    lambda m: _log10_mean(m, log10_frobenius_product(m)), is_log10=True,
)  # fmt: skip
PATH_NORM = Measure(
    "path", "sqrt of the sum of the outputs on ones, all weights squared", (), "yes",
    lambda m: m.log10_path_norm(), is_log10=True,
)  # fmt: skip
NEEDS_START, SEARCHED, MOVED = ("start",), ("data", "search"), ("data", "search", "start")
CLIMBED = ("data", "loss", "search")
"""What an ascent rests on: it follows the gradient of the loss, also where the error decides how far it goes."""

MEASURES: dict[str, Measure] = {
    "parameters": Measure(
        "size", "number of parameters", (), "yes",
        lambda m: float(sum(parameter.numel() for parameter in m.model.parameters())),
    ),
    "inverse-margin": Measure(
        "outputs", "1 / gamma", ("data", "margin"), "yes", lambda m: -m.log10_margin(), is_log10=True
    ),
    "negative-entropy": Measure(
        "outputs", "mean over the samples of sum p ln p, p the probabilities of the classes", ("data",), "yes",
        _negative_entropy, JIANG,
    ),
    "frobenius-sum": Measure(
        "norms", "sum norm_F(W_i)^2", (), "no",
        lambda m: _sum_of_squares(layer.log10_frobenius for layer in m.layers()),
    ),
    "frobenius-product": FROBENIUS_PRODUCT,
    "spectral-product": SPECTRAL_PRODUCT,
    "frobenius-mean": FROBENIUS_MEAN,
    "spectral-mean": SPECTRAL_MEAN,
    "frobenius-over-spectral": Measure(
        "norms", "sum norm_F(W_i)^2 / norm(W_i)^2", (), "yes",
        lambda m: _sum_of_squares(layer.log10_frobenius - layer.log10_spectral for layer in m.layers()),
    ),
    "distance": Measure(
        "distances", "sum norm_F(W_i - V_i)^2", NEEDS_START, "no",
        lambda m: _sum_of_squares(layer.log10_distance for layer in m.moved_layers()),
    ),
    "spectral-distance": Measure(
        "distances", "sum norm(W_i - V_i)^2", NEEDS_START, "no",
        lambda m: _sum_of_squares(layer.log10_spectral_distance for layer in m.moved_layers()),
    ),
    "distance-over-spectral": Measure(
        "distances", "sum norm_F(W_i - V_i)^2 / norm(W_i)^2", NEEDS_START, "with the start",
        lambda m: _sum_of_squares(layer.log10_distance - layer.log10_spectral for layer in m.moved_layers()), JIANG,
    ),
    "path-norm": PATH_NORM,
    "frobenius-product/margin": _over_margin(FROBENIUS_PRODUCT),
    "spectral-product/margin": _over_margin(SPECTRAL_PRODUCT),
    "frobenius-mean/margin": Measure(
        "capacity over margin", "d (prod norm_F(W_i)^2 / gamma^2)^(1/d)", ("data", "margin"), "yes",
        lambda m: _log10_mean(m, log10_frobenius_product(m) - m.log10_margin()), is_log10=True,
    ),
    "spectral-mean/margin": Measure(
        "capacity over margin", "d (prod norm(W_i)^2 / gamma^2)^(1/d)", ("data", "margin"), "yes",
        lambda m: _log10_mean(m, log10_spectral_product(m) - m.log10_margin()), is_log10=True,
    ),
    "spectral-complexity/margin": _over_margin(Measure(
        "", "prod norm(W_i) (sum (norm_21(W_i - V_i) / norm(W_i))^(2/3))^(3/2)", NEEDS_START, "with the start",
        log10_spectral_complexity, "Bartlett et al. 2017",
    )),
    "pac-bayes-complexity/margin": _over_margin(Measure(
        "", "prod norm(W_i) sqrt(sum norm_F(W_i)^2 / norm(W_i)^2)", (), "yes", log10_frobenius_complexity
    )),
    "spectral-init/margin": _over_margin(Measure(
        "", "prod norm(W_i) sqrt(sum norm_F(W_i - V_i)^2 / norm(W_i)^2)", NEEDS_START, "with the start",
        log10_distance_complexity,
    )),
    "path-norm/margin": _over_margin(PATH_NORM),
    "pac-bayes-init": Measure(
        "noise", "norm(w - v)^2/(4 sigma^2) + ln(m/sigma) + 10", MOVED, "no", lambda m: _noise_bound(m, m.distance())
    ),
    "pac-bayes-orig": Measure(
        "noise", "norm(w)^2/(4 sigma^2) + ln(m/sigma) + 10", SEARCHED, "no", lambda m: _noise_bound(m, m.vector())
    ),
    "pac-bayes-flatness": Measure(
        "noise", "1/sigma^2, noise of deviation sigma raising the error by 0.1", SEARCHED, "no",
        lambda m: m.noise() ** -2,
    ),
    "pac-bayes-magnitude-init": Measure(
        "noise", "1/4 sum ln((e^2 + (s^2 + 1) norm(w - v)^2/n) / (e^2 + s^2 (w_j - v_j)^2)) + ln(m/s) + 10", MOVED,
        "no", lambda m: _magnitude_bound(m, m.distance()),
    ),
    "pac-bayes-magnitude-orig": Measure(
        "noise", "1/4 sum ln((e^2 + (s^2 + 1) norm(w)^2/n) / (e^2 + s^2 (w_j - v_j)^2)) + ln(m/s) + 10", MOVED, "no",
        lambda m: _magnitude_bound(m, m.vector()),
    ),
    "pac-bayes-magnitude-flatness": Measure(
        "noise", "1/s^2, noise of variance s^2 w_j^2 + e^2, e = 0.001, raising the error by 0.1", SEARCHED,
        "up to eps", lambda m: m.magnitude_noise() ** -2,
    ),
    "sharpness-init": Measure(
        "boxes", "norm(w - v)^2 ln(2 n)/(4 alpha^2) + ln(m/alpha) + 10", (*CLIMBED, "start"), "no",
        lambda m: _box_bound(m, m.distance()), JIANG,
    ),
    "sharpness-orig": Measure(
        "boxes", "norm(w)^2 ln(2 n)/(4 alpha^2) + ln(m/alpha) + 10", CLIMBED, "no",
        lambda m: _box_bound(m, m.vector()), JIANG,
    ),
    "sharpness-flatness": Measure(
        "boxes", "1/alpha^2, a move of every weight by at most alpha raising the error by 0.1", CLIMBED, "no",
        lambda m: m.box() ** -2, JIANG,
    ),
    "sharpness-magnitude-flatness": Measure(
        "boxes", "1/a^2, a move of every weight by at most a abs(w_j) + e, e = 0.001, raising the error by 0.1",
        CLIMBED, "up to eps", lambda m: m.magnitude_box() ** -2, JIANG,
    ),
    "adaptive-sharpness": Measure(
        "flatness", "largest rise of the loss for norm(u / abs(w)) <= rho", CLIMBED, "yes",
        lambda m: m.sharpness("elementwise adaptive"), "Kwon et al. 2021",
    ),
    "adaptive-sharpness-box": Measure(
        "flatness", "largest rise of the loss for abs(u_j) <= rho abs(w_j)", CLIMBED, "yes",
        lambda m: m.sharpness("l-infinity adaptive"), "Kwon et al. 2021",
    ),
    "keskar-box": Measure(
        "flatness", "100/(1 + loss) times the largest rise for abs(u_j) <= 0.001 (abs(w_j) + 1)",
        CLIMBED, "no", lambda m: m.sharpness("Keskar's box"), "Keskar et al. 2017",
    ),
    "m-sharpness": Measure(
        "flatness", "mean over batches of the largest rise of the batch's loss for norm(u) <= rho",
        CLIMBED, "no", lambda m: m.sharpness("m-sharpness"), "Foret et al. 2021",
    ),
    "fisher-rao": Measure(
        "flatness", "root mean square over the samples of <w, gradient of the sample's loss>", ("data", "loss"), "yes",
        lambda m: m.data().fisher_rao, "Liang et al. 2019",
    ),
    "relative-flatness": Measure(
        "flatness", "sum over rows of <w_s, w_t> tr(H_st) of the last matrix", ("data", "loss"), "yes",
        lambda m: m.relative_flatness(), "Petzka et al. 2021",
    ),
    "gradient-noise": Measure(
        "training", "trace of the covariance of the gradient of one sample", ("data", "loss"), "no",
        lambda m: m.gradient_noise(), JIANG,
    ),
    "steps-to-loss": Measure(
        "training", "steps until the training loss was 0.1", ("losses",), "yes",
        lambda m: float(m.steps_to(REACHED_LOSSES[0])), JIANG,
    ),
    "steps-between-losses": Measure(
        "training", "steps from a training loss of 0.1 to one of 0.01", ("losses",), "yes",
        lambda m: float(m.steps_to(REACHED_LOSSES[1]) - m.steps_to(REACHED_LOSSES[0])), JIANG,
    ),
}  # fmt: skip
"""The measures by name."""
GROUPS = tuple(dict.fromkeys(measure.group for measure in MEASURES.values()))


@accepts_graph
@outside_inference_mode
def measures(
    model: nn.Module,
    data: Any = None,
    *,
    labels: Any = None,
    loss: LossFunction | str | Loss | None = "cross_entropy",
    start: nn.Module | Mapping[str, Tensor] | None = None,
    losses: Sequence[tuple[int, float]] | None = None,
    only: Sequence[str] | None = None,
    rho: float = 0.05,
    mode: Mode | None = "eval",
    batches: int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
) -> Measures:
    """Take every measure of generalization that the literature compares, of one model.

    A measure is a number that should be larger for a network with a larger gap between training and test error. None is
    a bound here, and which of them orders networks well depends on how these differ (`normscope lab predict` measures
    that). Measures that share a pass over the data, a graph or a search take it once. One that makes no sense for the
    model, or needs what was not given, has a reason in place of a value.

    Args:
        model: a classifier, after its training (or its captured graph).
        data: the training samples, as in `normscope.hessian`.
        labels: as in `normscope.hessian`.
        loss: as in `normscope.hessian`; cross entropy by default, since most measures are those of a classifier.
        start: the model before its training, or its weights by name; None where it is not known.
        losses: the training loss by step, as pairs `(step, loss)`, such as `Run(folder).total("loss")`.
        only: the names of the measures to take, or groups of them (size, outputs, norms, distances, path, capacity over
            margin, noise, boxes, flatness, training); None for all. Noise and boxes take longest.
        rho: how far the ascents of sharpness go.
        mode: `"eval"`, which is the default here (a classifier as it is used), `"train"`, or None for the mode the
            model is in. Norms of weights are the same in both.
        batches: read at most this many batches of the data; None for all.
        max_seconds: the time limit: no search is begun after it, and the reasons say so.
        seed: the seed of the noise.

    Returns:
        The table: `.rows`, `result["path-norm"]`, `.to_pandas()`, `.to_html(path)`, `.to_json(path)`.

    Raises:
        InputError: as in `normscope.hessian`; `only` names no measure, or `start` does not fit the model.

    Example:
        >>> import torch, normscope as ns
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> data = torch.eye(2), torch.tensor([0, 1])
        >>> result = ns.measures(model, data, only=["frobenius-sum", "frobenius-over-spectral"])
        >>> round(result["frobenius-sum"], 2), round(result["frobenius-over-spectral"], 2)
        (5.0, 1.25)

    Reference: Jiang et al. 2020 (Fantastic Generalization Measures) and Dziugaite et al. 2020 (Robust Measures).
    """
    check_numbers(max_seconds=max_seconds, seed=seed)
    check_positive(rho=rho)
    chosen = _chosen(only)
    objective = Objective(unwrapped(model), data, labels=labels, loss=loss, mode=mode, batches=batches)
    budget = Budget(max_seconds=max_seconds, what="the measures")
    measured = MeasuredModel(objective, start=start, losses=losses, rho=rho, budget=budget, seed=seed)
    with objective.measuring():
        objective.loss()  # A model that does not run on the data, or a loss that does not fit, is refused here.
    with Progress("measures", total=len(chosen)) as progress:
        rows = []
        for name in chosen:
            progress.step(name)
            rows.append(_row(name, MEASURES[name], measured))
    notes = [] if all(row.value != math.inf for row in rows) else [NO_MARGIN]
    try:
        layers, left_out = len(measured.layers()), measured.left_out()
    except NormscopeError:  # The rows that need the layers say why there are none.
        layers, left_out = 0, []
    if left_out:
        listed_names = listed([f"`{name}`" for name in left_out], most=4)
        notes.append(f"norms and distances leave {listed_names} out, which no matrix or convolution is made of")
    return Measures(
        name=type(objective.model).__name__,
        mode=objective.mode,
        samples=objective.samples,
        layers=layers,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _chosen(only: Sequence[str] | None) -> list[str]:
    """Return the names of the measures to take, in the order of the table."""
    if only is None:
        return list(MEASURES)
    wrong = [name for name in only if name not in MEASURES and name not in GROUPS]
    if isinstance(only, str) or wrong:
        name = only if isinstance(only, str) else wrong[0]
        raise InputError(f"only is a list of measures or of groups ({', '.join(GROUPS)}), which {name!r} is not")
    return [name for name, measure in MEASURES.items() if name in only or measure.group in only]


def _row(name: str, measure: Measure, model: MeasuredModel) -> MeasureRow:
    """Return a measure of a model, or why it has no value."""
    value, reason = None, ""
    try:
        value = float(measure.of(model))
    except NormscopeError as error:
        reason = str(error)
    if value is not None and math.isnan(value):
        value, reason = None, "it is zero over zero, or the weights are not finite"
    return MeasureRow(
        name=name,
        group=measure.group,
        value=value,
        is_log10=measure.is_log10,
        formula=measure.formula,
        rests_on=measure.rests_on,
        invariant=measure.invariant,
        source=measure.source,
        reason=reason,
    )
