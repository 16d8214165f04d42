"""What a normalizer makes of its input: eps that does not fit, variances that collapse, norms that are off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from ...core.finding import Finding, Severity, figure, figures, percent, power
from ...core.log10 import log10, power10
from ..facts.examined import Examined, ExaminedRow
from ..facts.layers_over_data import NormalizerOverData
from ..monitor.history import History
from ..monitor.layer_record import LayerRecord
from .check_readings import parameters_of
from .symptom import FindingWords, Symptom, finding, others_likewise

FINDING_WORDS = {
    "eps-scale": FindingWords(
        "the eps of {where} does not fit its input", "the eps of {norms} does not fit their input"
    ),
    "normalizer-start": FindingWords("the normalizers do not begin with gains of 1 and biases of 0"),
    "eps-dominated": FindingWords(
        "eps outweighs what {where} normalizes",
        "eps outweighs what {norms} normalize",
        note=("eps outweighs a little of {where}", "eps outweighs a little of what {norms} normalize"),
    ),
    "expanding-normalizer": FindingWords("{where} expands what it normalizes", "{norms} expand"),
    "variance-collapse": FindingWords("the variance into {where} collapsed", "the variances into {norms} collapsed"),
    "spectral-norm-off": FindingWords(
        "the spectral norm of {where} is not the one it was made for",
        "the spectral norms of {count} layers are not those they were made for",
    ),
}
MUCH_DOMINATED_SHARE = 0.2
"""A fifth of the sets ruled by eps changes what the layer computes; less is a few quiet channels or tokens."""
LARGE_EPS = 1e-3
"""Every common default is at most this (Keras and EfficientNet use 1e-3, PyTorch 1e-5)."""
EPS_NAMES, LITTLE_SIZE = ("eps", "epsilon", "variance_epsilon"), 0.3
"""How normalizers written by hand call it, and a share of the size 1 that they are to hand on."""
HALF_STEP = 2.0**-24
"""The smallest positive float16, about 6e-8."""


def check_eps_scale(examined: Examined) -> Iterator[Finding]:
    """`eps-scale` (warning, info): eps is zero, or large and above the typical variance it stabilises (info: below the
    smallest float16 in a half-precision model)
    """
    for place, seen in examined.normalizers():
        where, median = place.path, seen.log10_median
        if seen.eps == 0.0:
            yield _finding(
                where,
                Severity.WARNING,
                f"`{where}` has eps = 0.",
                "A set of equal values has variance 0 and is divided by 0, and just before that the gain has no limit.",
                "Set eps to 1e-5.",
                figures(eps=0.0, log10_median=median),
            )
        elif seen.eps > LARGE_EPS and median < log10(seen.eps):
            yield _finding(
                where,
                Severity.WARNING,
                f"eps = {figure(seen.eps)} in `{where}` exceeds the typical variance of its input, {power(median)}.",
                "The layer then divides by sqrt(eps), a constant: it scales its input and normalizes nothing.",
                f"Set eps to 1e-5, or at most to a hundredth of the variance ({power(median - 2)}).",
                figures(eps=seen.eps, log10_median=median),
            )
        elif seen.eps < HALF_STEP and _half(examined.model, place):
            yield _finding(
                where,
                Severity.INFO,
                f"`{where}` holds float16 weights, and its eps = {figure(seen.eps)} is below the smallest float16, "
                f"{figure(HALF_STEP)}.",
                "PyTorch's own kernels add eps in float32, where it counts; code or an exported model that computes in "
                "float16 adds zero.",
                "Set eps to 1e-5 before exporting to a runtime that works in float16.",
                figures(eps=seen.eps, log10_median=median),
            )


def _finding(
    where: str, severity: Severity, seen: str, why: str, advice: str, numbers: dict[str, float | int | None]
) -> Finding:
    return finding("eps-scale", where, seen, why, advice, numbers, severity=severity)


def _half(model: nn.Module, place: ExaminedRow) -> bool:
    """Whether the module of a place holds float16 parameters."""
    try:
        module = model.get_submodule(place.path)
    except AttributeError:
        return False
    return any(parameter.dtype == torch.float16 for parameter in module.parameters(recurse=False))


def check_eps_dominated(examined: Examined) -> Iterator[Finding]:
    """`eps-dominated` (warning, info): a share of the variances below 10 eps; a normalizer written by hand whose eps is
    above the mean square of what it reads
    """
    for place, seen in examined.normalizers():
        share = seen.share_eps
        if not share > 0.0 or seen.eps == 0.0:
            continue
        where, much = place.path, share >= MUCH_DOMINATED_SHARE
        median, raw = seen.log10_median, examined.reads_input(place)
        yield finding(
            "eps-dominated",
            where,
            f"{percent(share)} of the {'stored variances' if seen.uses_running else 'sets'} of `{where}` "
            f"{'are' if seen.uses_running else 'have a variance'} below 10 eps = {figure(10.0 * seen.eps)} (median "
            f"{power(median)}).",
            "There eps decides the result: the output is smaller than normalized, and rescaling the weights before "
            "the layer changes the function.",
            (
                "Scale the input (divide it by its deviation over the data)"
                if raw
                else "Raise the scale of what comes before (its weights, or a skip that carries them), exclude those "
                "weights from weight decay"
            )
            + f", or lower eps below {power(median - 2)}."
            if math.isfinite(median) and much
            else "Look at the quiet sets: constant channels, padded positions or empty patches end up here.",
            figures(share=share, eps=seen.eps, log10_median=median),
            severity=Severity.WARNING if much else Severity.INFO,
        )


def check_written_eps(examined: Examined) -> Iterator[Finding]:
    """Modules with an eps of their own, as normalizers written by hand have, that eps leaves little of."""
    for path, eps, read, made, gain in written_normalizers(examined):
        if eps > read**2 > 0.0 and made < LITTLE_SIZE * gain:
            yield finding(
                "eps-dominated",
                path,
                f"`{path}` has an eps of {figure(eps)}, reads values of size {figure(read)}, and hands on "
                f"values of size {figure(made)}.",
                "There eps decides the result: the layer normalizes nothing and makes values far smaller.",
                "Lower eps to 1e-5, or to a hundredth of the mean square of what it reads.",
                figures(eps=eps, size=read),
            )


def written_normalizers(examined: Examined) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield modules with an eps of their own: the path, eps, the sizes of what it reads and hands on, its gain."""
    signal, modules = examined.signal, dict(examined.model.named_modules())
    for number, row in enumerate(() if signal is None else signal.rows):
        held = vars(modules[row.path]) if row.path in modules and row.kind[:1].isupper() else {}
        eps = next((held[name] for name in EPS_NAMES if isinstance(held.get(name), float)), None)
        feeds = signal.flow.feeds[number] if signal is not None and number < len(signal.flow.feeds) else ()
        if signal is None or eps is None or len(feeds) != 1:
            continue
        read, made = signal.rows[feeds[0]].root_mean_square or 0.0, row.root_mean_square or 0.0
        gains = [p.root_mean_square for p in signal.parameters if p.module == row.path and "bias" not in p.name]
        yield row.path, eps, read, made, max(gains, default=1.0)


def check_normalizer_start(examined: Examined) -> Iterator[Finding]:
    """`normalizer-start` (warning): the gains of all normalizers are one number other than 1 (but for those of zero),
    or their biases are one number other than 0
    """
    paths = {path for path, module in examined.model.named_modules() if "Norm" in type(module).__name__}
    vectors = [row for row in parameters_of(examined) if row.module in paths and row.used and len(row.shape) == 1]
    biases = [row for row in vectors if "bias" in row.name]
    gains = [row for row in vectors if row not in biases and not row.is_zero]
    for what, rows, usual in (("gain", gains, 1.0), ("bias", biases, 0.0)):
        values = {value for row in rows for value in (row.least, row.greatest)}
        if len(rows) > 1 and len(values) == 1 and usual not in values:
            yield finding(
                "normalizer-start",
                rows[0].module,
                f"Every {what} of `{rows[0].module}` and of all other normalizers is {figure(rows[0].least)}.",
                f"Normalizers begin with a {what} of {usual:g}, and no training gives all of them one other number.",
                f"Look at what writes to them after they were made, and set each {what} to {usual:g}.",
                figures(value=rows[0].least),
            )


EXPANDING_SETS = 0.5
"""Of the sets, those with a variance below 1: a normalizer divides by their deviation, and so expands them."""
HUGE_GAIN = 3.0
"""log10 of a folded gain: a thousand is more than any normalizer of a healthy fresh network."""
EXPANDING_NORMALIZER = Symptom(
    code="expanding-normalizer",
    seen="{where}{folded} expands by {log10_gain:power}; the typical variance of its input is "
    "{log10_variance:power}.{also}",
    why="A normalizer divides by the deviation of its input: what enters it as noise leaves it as signal, and "
    "gradients grow by the same factor on their way back.",
    advice="Find out why its input hardly varies (dead or constant features before it), or raise eps, which caps the "
    "gain at the largest scale over sqrt(eps).",
)


def check_expanding_normalizer(examined: Examined) -> Iterator[Finding]:
    """`expanding-normalizer` (warning): variances below 1, and the normalizer with the layer before it stretches a
    change a thousandfold; what normalizers do short of that is said by `audit.normalizers` (see
    [reports](report.md))
    """
    for place, seen in examined.normalizers():
        share, where = seen.variance.share_below_one, place.path
        if place.log10_folded is None or not share >= EXPANDING_SETS:
            continue
        typical = place.log10_folded - _above_typical(seen)
        if typical < HUGE_GAIN:
            continue
        together = "" if place.folded_with is None else f"`{place.folded_with}` followed by "
        yield EXPANDING_NORMALIZER.at(
            where,
            seen=f"{percent(share)} of what `{where}` normalizes has a variance below 1, and {together}`{where}` can "
            f"stretch a change {power(place.log10_folded)} times.",
            log10_folded=place.log10_folded,
            log10_typical=typical,
            share_below_one=share,
            log10_median=seen.variance.log10_median,
        )


def _above_typical(seen: NormalizerOverData) -> float:
    """Return log10 of how much more a normalizer expands its quietest set than its median one.

    The folded gain is that of the quietest; BatchNorm's is that of all its channels together.
    """
    if seen.kind == "batch":
        return 0.0
    quiet, usual = (power10(v) + seen.eps for v in (seen.variance.log10_min, seen.variance.log10_median))
    return (log10(usual) - log10(quiet)) / 2.0 if quiet > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class TypicalGain:
    """What a normalizer does to a typical set: log10 of its gain, of the variance, whether weights before it count."""

    layer: LayerRecord
    log10: float
    variance: float
    folded: bool


def watch_expanding_normalizer(history: History) -> Iterator[Finding]:
    """`expanding-normalizer` (warning): a normalizer with the weights before it expands a thousandfold; once in a run,
    for the one that expands most
    """
    gains = [gain for gain in _typical_gains(history) if gain.log10 >= HUGE_GAIN]
    if gains:
        most = max(gains, key=lambda gain: gain.log10)
        yield EXPANDING_NORMALIZER.at(
            most.layer.name,
            {
                "folded": " with the weights before it" if most.folded else "",
                "also": others_likewise(len(gains), "other normalizer"),
            },
            log10_gain=most.log10,
            log10_variance=most.variance,
            count=len(gains),
        )


def _typical_gains(history: History) -> Iterator[TypicalGain]:
    """Yield the gains of all normalizers that were measured, with the weights before them where those are known."""
    fed = {w.normalizer: i for i, w in enumerate(history.of("weight")) if w.normalizer}
    folded = history.series_by_layer("weight", "log10_folded").nows()
    least, means = (history.series_by_layer("normalizer", q).nows() for q in ("log10_variance_min", "log10_variance"))
    for index, layer, gains in history.lasting("normalizer", "log10_gain"):
        together = folded.get(fed[layer.name]) if layer.name in fed else None
        gain, quietest, usual = median(gains) if together is None else together, least.get(index), means.get(index)
        if layer.eps is None or not layer.eps > 0.0 or usual is None or quietest is None:
            continue
        if layer.family != "batch_norm":  # the gain is that of the quietest set; say what a typical one gets
            gain -= (_log10_sum(usual, layer.eps) - _log10_sum(quietest, layer.eps)) / 2.0
        yield TypicalGain(layer, gain, usual, together is not None)


def _log10_sum(exponent: float, eps: float) -> float:
    """Return log10(10**exponent + eps)."""
    return math.log10(10.0 ** min(exponent, 300.0) + eps)


COLLAPSE_HARM = "Below eps {where} no longer normalizes, and what comes after sees next to nothing of its input."
COLLAPSE_UNEXPLAINED = Symptom(
    code="variance-collapse",
    seen="The variance into {where} fell from {log10_variance_first:power} to {log10_variance:power}; "
    "{dominated:percent} of what it normalizes is below 10 eps ({known_eps}).{norms}",
    why=f"What enters {{where}} becomes constant while the weights before it keep their size. {COLLAPSE_HARM}",
    advice="Look at what comes before: scales of another normalizer that shrink, units that are never on, inputs that "
    "are all alike.",
)
COLLAPSE_BY_COUPLED_DECAY = replace(
    COLLAPSE_UNEXPLAINED,
    why="The weights of {weight} are scale invariant: {where} undoes their scale, so the loss does not hold it up. The "
    "optimizer adds weight_decay={weight_decay:g} to their gradient and divides both by the gradient's size (coupled "
    "L2): where the gradient vanishes, the decay alone moves them, by the whole learning rate a step. "
    f"{COLLAPSE_HARM}",
    advice="Use torch.optim.AdamW, whose decay is not rescaled, or put the weights before normalizers into a parameter "
    "group with weight_decay=0; go on from a checkpoint from before the fall.",
)
COLLAPSE_BY_SHRINKING = replace(
    COLLAPSE_UNEXPLAINED,
    why=f"The weights of {{weight}} shrink. {{cause}} {COLLAPSE_HARM}",
    advice="Lower the weight decay of this weight, or put the weights before normalizers into a parameter group with "
    "weight_decay=0.",
)
FALL_DECADES = 3.0
"""Decades: a thousandfold. Weights that settle from a large start under plain weight decay lose up to two."""
FALL_COUPLED_DECADES = 1.2
"""Decades, where coupled L2 has pulled a scale-invariant weight down to half its norm or less (`SHRUNK_DECADES`).

Adam divides the decay d w by the gradient's noise, which for such a weight is c/|w|: it shrinks by lr d |w|^2/c a step
and grows by about lr^2 n/|w| from steps across it. They balance where |w|^3 goes with c. The variance goes with |w|^2:
a fall by 1.2 decades is one of the noise by 1.8, sixtyfold, as of data that are fitted. Where the decay exceeds the
noise it moves every entry by the whole learning rate, and nothing stops it before eps does. The scaling is
theory's; the number was chosen between runs of a LayerNorm MLP that collapse and runs that do not.
"""
SHRUNK_DECADES = 0.3
"""Decades of a weight's norm, half of it: the variance behind it goes with the square."""
NEAR_EPS_SHARE = 0.5
"""Share of the sets with a variance below 10 eps."""
WAS_NEAR_EPS_SHARE = 0.25
"""At the start: a model that begins there is the business of an audit (`eps-dominated`)."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A weight that became much smaller: log10 of its norm at the start and now."""

    layer: LayerRecord
    then: float
    now: float


def watch_variance_collapse(history: History) -> Iterator[Finding]:
    """`variance-collapse` (warning): the variance into a normalizer fell a thousandfold, or half of its channels to 10
    eps; sixteenfold suffices where coupled L2 in an adaptive optimizer has halved the scale-invariant weight before
    it, and is then named as the cause
    """
    near = {i: (then, now) for i, _, then, now in history.then_and_now("normalizer", "dominated")}
    means, most = (history.series_by_layer("normalizer", q) for q in ("log10_variance", "log10_variance_max"))
    for index, layer in enumerate(history.of("normalizer")):
        then = _level(means.starts().get(index), most.starts().get(index))
        now = _level(means.nows().get(index), most.nows().get(index))
        before, share = near.get(index, (0.0, 0.0))
        if then is None or now is None or not math.isfinite(then):
            continue
        if then - now < FALL_COUPLED_DECADES and share < NEAR_EPS_SHARE:
            continue
        pulled, shrunk = _weights_before(history, layer)
        fell = then - now >= (FALL_DECADES if pulled is None or shrunk is None else FALL_COUPLED_DECADES)
        if fell or (share >= NEAR_EPS_SHARE and before <= WAS_NEAR_EPS_SHARE):
            yield _describe_collapse(history, layer, (then, now), share, pulled, shrunk)


def _level(mean: float | None, most: float | None) -> float | None:
    """Return the mean of the log variances; where one constant channel makes it minus infinity, the largest."""
    return most if mean == -math.inf else mean


def _weights_before(history: History, layer: LayerRecord) -> tuple[LayerRecord | None, Shrunk | None]:
    """Return the weight before a normalizer that coupled L2 pulls down, and the one that shrank, if there are any."""
    weights = [(i, w) for i, w in enumerate(history.of("weight")) if w.normalizer == layer.name]
    pulled = next((pair for pair in weights if pair[1].coupled and pair[1].invariant), None)
    for index, weight in [pulled] if pulled else weights[:1]:
        course = history.value_series("weight", "log10_size", index)
        then, now = course.start, course.now
        if then is not None and now is not None and not then - now < SHRUNK_DECADES:
            return pulled and pulled[1], Shrunk(weight, then, now)
    return pulled and pulled[1], None


def _describe_collapse(
    history: History,
    layer: LayerRecord,
    levels: tuple[float, float],
    share: float,
    pulled: LayerRecord | None,
    shrunk: Shrunk | None,
) -> Finding:
    """The finding about one normalizer whose variance went from one level to another."""
    alarm, words, (then, now) = COLLAPSE_UNEXPLAINED, {"norms": ""}, levels
    words["known_eps"] = "eps not known" if layer.eps is None else f"eps = {figure(layer.eps)}"
    if shrunk is not None:
        alarm, words["weight"] = COLLAPSE_BY_COUPLED_DECAY if pulled else COLLAPSE_BY_SHRINKING, shrunk.layer.name
        words["norms"] = f" The norm of {shrunk.layer.name} went from {power(shrunk.then)} to {power(shrunk.now)}."
        words["cause"] = (
            "Weight decay pulls them down faster than their gradients hold against it."
            if shrunk.layer.weight_decay
            else "The loss, or a penalty in it, pulls them down."
        )
    return alarm.at(
        layer.name,
        words,
        log10_variance=now,
        log10_variance_first=then,
        dominated=share,
        eps=layer.eps,
        weight_decay=None if pulled is None else pulled.weight_decay,
        coupled=int(pulled is not None),
        log10_norm=None if shrunk is None else shrunk.now,
        log10_norm_first=None if shrunk is None else shrunk.then,
    )


NORM_ERROR = 0.1
"""A relative error of a spectral norm that is worth knowing."""
LARGE_ERROR = 0.25
"""An error to act on: one power iteration a step follows the weights more closely than this, even at large rates."""
ITERATE_BEYOND = 1024
"""The short side of a matrix from which on its norm is iterated instead of decomposed."""
ITERATIONS = 100
"""Power iterations: a random matrix is then known to about a percent."""


def check_spectral_norm_off(examined: Examined) -> Iterator[Finding]:
    """`spectral-norm-off` (warning, info): a `spectral_norm` parametrization whose power iteration has not found the
    norm, or a convolution whose operator norm is above the one it controls
    """
    norms = {place.path: place.norm for place in examined.places}
    for path, module in examined.model.named_modules():
        for weight, u, v in _spectral_norms(module, examined.mode):
            sigma, estimate = _largest(weight), abs(float(torch.dot(u, weight @ v)))
            if not 0.0 < sigma < math.inf:
                continue  # other findings
            handed = sigma / estimate if estimate > 0.0 else math.inf
            bracket, error = norms.get(path), abs(handed - 1.0)
            if error > NORM_ERROR:
                lasting = examined.mode == "eval" and error > LARGE_ERROR
                yield finding(
                    "spectral-norm-off",
                    path,
                    f"The weight that spectral_norm hands out in `{path}` has norm {figure(handed)}, not 1.",
                    "Its power iteration keeps two vectors and improves them only in train mode; they do not fit "
                    "the weight, so the layer is not the 1-Lipschitz map it is taken for.",
                    "Run a few forward passes in train mode (no optimizer step) before evaluating, or use more "
                    "iterations: spectral_norm(module, n_power_iterations=5).",
                    figures(norm=handed, log10_weight=log10(sigma)),
                    severity=Severity.WARNING if lasting else Severity.INFO,
                )
            elif bracket is not None and bracket.lower > 1.0 + NORM_ERROR:
                yield finding(
                    "spectral-norm-off",
                    path,
                    f"The reshaped kernel of `{path}` has norm {figure(handed)}, the convolution itself at "
                    f"least {figure(bracket.lower)}.",
                    "spectral_norm normalizes the kernel reshaped to a matrix, whose norm is below the operator's: "
                    "windows overlap and their images add up.",
                    "Do not multiply by 1 per layer when certifying: use the norms of this audit, or divide the "
                    "weight by ns.spectral_norm(module, input_shape=...).upper.",
                    figures(norm=handed, operator_norm=bracket.lower),
                    severity=Severity.INFO,
                )


@torch.no_grad()
def _spectral_norms(module: nn.Module, mode: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the reshaped weight and the two vectors of every spectral normalization of a module, in float64."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            weight = hook.reshape_weight_to_matrix(getattr(module, f"{hook.name}_orig"))
            u, v = getattr(module, f"{hook.name}_u"), getattr(module, f"{hook.name}_v")
            yield _iterated(weight, u, v, hook.n_power_iterations if mode == "train" else 0)
    for parts in getattr(module, "parametrizations", {}).values():
        first = parts[0]
        if isinstance(first, _SpectralNorm) and parts.original.ndim > 1:
            weight = first._reshape_weight_to_matrix(parts.original)
            yield _iterated(weight, first._u, first._v, first.n_power_iterations if mode == "train" else 0)


def _iterated(weight: Tensor, u: Tensor, v: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the vectors after the iterations a forward pass would run, without touching the module's own."""
    weight, u, v = weight.detach().double(), u.detach().double(), v.detach().double()
    for _ in range(steps):
        v = nn.functional.normalize(weight.T @ u, dim=0)
        u = nn.functional.normalize(weight @ v, dim=0)
    return weight, u, v


def _largest(weight: Tensor) -> float:
    """Return the spectral norm of a matrix: exactly if it is small, otherwise by iteration; NaN if it has none."""
    if weight.is_meta or not bool(torch.isfinite(weight).all()):
        return math.nan
    wide = weight if weight.shape[0] <= weight.shape[1] else weight.T
    if len(wide) <= ITERATE_BEYOND:
        return math.sqrt(max(float(torch.linalg.eigvalsh(wide @ wide.T)[-1]), 0.0))
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(len(wide), generator=generator, dtype=wide.dtype).to(wide.device)
    for _ in range(ITERATIONS):
        vector = nn.functional.normalize(wide @ (wide.T @ vector), dim=0)
    return float((wide.T @ vector).norm())
