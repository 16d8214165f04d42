"""Findings about normalizers: the sets behind their statistics, eps, gains, and what spectral normalization keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from ...core.finding import Finding, Severity, figure, figures, percent, power
from ...core.log10 import log10, power10
from ...report.words import listed, pluralise
from ..checking.examined import Examined, ExaminedRow, NormalizerOverData
from ..checking.loss_facts import is_fresh

NOISY_VARIANCE = 0.3
"""Relative standard deviation of a variance: 32 values give 0.25 and train well, 16 give 0.37 and do not."""
MEASURED_SPREAD = 0.5
"""From batch to batch, measured: correlated positions and heavy tails count here, and half is beyond both."""
FEW_SAMPLES = 2
"""Positions of one image are alike: with one or two images a channel's variance is that of the image."""
STALE_VARIANCE = 1.0
"""The median over channels of abs(log2(variance of the data/stored variance)): one of them is twice the other."""
STALE_MEAN = 0.5
"""The median over channels of the distance between the means, in stored standard deviations."""
LITTLE_LOSS = 0.25
"""A share of the loss of a blind guess: a model that is this good in eval mode is not harmed by its statistics."""
ERRORS = 4.0
"""Standard errors that a difference must exceed: beyond 4 chance is no explanation."""


def is_tiny(seen: NormalizerOverData) -> bool:
    """Whether a normalizer takes its statistics from one or two values, which leaves nothing or signs."""
    return not seen.uses_running and seen.entries <= 2 and not (seen.kind == "rms" and seen.entries == 2)


def is_noisy(seen: NormalizerOverData) -> bool:
    """Whether a BatchNorm takes its statistics from too few values, or too few samples, for a variance."""
    if seen.kind != "batch" or seen.uses_running or seen.entries < 3:
        return False
    spread = seen.batch_spread or 0.0
    return _noise(seen) > NOISY_VARIANCE or spread > MEASURED_SPREAD or seen.samples <= FEW_SAMPLES


def _noise(seen: NormalizerOverData) -> float:
    """Return the relative standard deviation of a variance of as many normal values."""
    return math.sqrt(2.0 / (seen.entries - 1))


def tiny_sets(examined: Examined) -> Iterator[Finding]:
    """Normalizers over one or two values."""
    for place, seen in examined.normalizers():
        if not is_tiny(seen):
            continue
        where, one = place.path, seen.entries == 1
        constant = one and seen.kind != "rms"
        effect = "its own mean leaves zero" if constant else "only the sign of their difference is left (-1 or +1)"
        if seen.kind == "rms":
            effect = "only the sign is left (-1 or +1)"
        yield Finding(
            code="tiny-sets",
            severity=Severity.ERROR if constant else Severity.WARNING,
            where=where,
            seen=f"`{where}` normalizes over sets of {pluralise(seen.entries, 'value')}.",
            why=f"A set of {seen.entries} cannot be standardised: {effect}"
            + (", so the output is constant." if constant else ", and no gradient passes."),
            advice=_larger_sets(seen),
            numbers=figures(entries=seen.entries, samples=seen.samples),
        )


def _larger_sets(seen: NormalizerOverData) -> str:
    return {
        "batch": "Use larger batches, or a normalizer that does not need them: GroupNorm or LayerNorm.",
        "group": "Give GroupNorm fewer groups (num_groups=1 normalizes the whole layer), or use LayerNorm.",
        "instance": "Normalize before the positions are pooled away, or use LayerNorm or GroupNorm(1, channels).",
    }.get(seen.kind, "Remove it, or use BatchNorm: LayerNorm needs more than two features to normalize over.")


def small_batch(examined: Examined) -> Iterator[Finding]:
    """BatchNorm in train mode with too few values, or too few samples, for a variance."""
    for place, seen in examined.normalizers():
        if not is_noisy(seen):
            continue
        noise, spread, where = _noise(seen), seen.batch_spread, place.path
        shown = f"{pluralise(seen.entries, 'value')} per channel from {pluralise(seen.samples, 'sample')}"
        if noise > NOISY_VARIANCE:
            words = f"estimates each variance from {shown}: the estimate is typically off by {percent(noise)}"
        elif spread is not None and spread > MEASURED_SPREAD:
            words = f"sees variances that move by {percent(spread)} from batch to batch ({shown})"
        else:
            words = f"has {shown}: the positions of one sample are alike, so the variance is that of the sample"
        yield Finding(
            code="small-batch",
            severity=Severity.WARNING,
            where=where,
            seen=f"BatchNorm `{where}` {words}.",
            why="In train mode every sample is divided by a deviation estimated from its batch; with few values that "
            "is noise, and the running statistics used later describe another function.",
            advice="Use batches of 32 or more (torch.nn.SyncBatchNorm joins devices), drop a small last batch "
            "(drop_last=True), or use GroupNorm or LayerNorm, which do not look at the batch.",
            numbers=figures(entries=seen.entries, samples=seen.samples, relative_error=noise, batch_spread=spread),
        )


def wrong_mode(examined: Examined) -> Iterator[Finding]:
    """BatchNorms that take the statistics of the batch, though the model is in eval mode and they keep others."""
    noisy = [
        place.path
        for place, seen in examined.normalizers()
        if examined.mode == "eval" and not seen.uses_running and seen.running_mean is not None
    ]
    if noisy:
        yield Finding(
            code="wrong-mode",
            severity=Severity.WARNING,
            where=noisy[0],
            seen=f"The model is in eval mode, and {listed([f'`{path}`' for path in noisy], most=3)} "
            f"{'normalizes' if len(noisy) == 1 else 'normalize'} with the statistics of the batch.",
            why="What the model says of one sample then depends on the others of the batch, and its running statistics "
            "move.",
            advice="Call model.eval() after whatever switched this part back to train mode; in F.batch_norm pass "
            "training=self.training.",
            numbers=figures(count=len(noisy)),
        )
    steps = None if examined.signal is None else examined.signal.steps
    if steps is None or steps.optimizer is None or examined.model.training or examined.mode != "eval":
        return
    stopped = [path for path, module in examined.model.named_modules() if _trains_otherwise(module)]
    if stopped:
        yield Finding(
            code="wrong-mode",
            severity=Severity.INFO,
            where=stopped[0],
            seen="The model is in eval mode beside an optimizer that is to train it, and "
            f"{listed([f'`{path}`' for path in stopped], most=3)} {'works' if len(stopped) == 1 else 'work'} otherwise "
            "in train mode.",
            why="Dropout is off in eval mode, and running statistics do not move.",
            advice="Call model.train() before the steps, and check the model in that mode. If it is in eval mode to be "
            "looked at, or its statistics are kept on purpose, there is nothing to do.",
            numbers=figures(count=len(stopped)),
        )


def _trains_otherwise(module: nn.Module) -> bool:
    """Whether a module computes something else in train mode: dropout, or a BatchNorm whose scales learn."""
    if isinstance(module, _BatchNorm):
        return module.track_running_stats and all(p.requires_grad for p in module.parameters(recurse=False))
    return isinstance(module, _DropoutNd) and module.p > 0.0


def stale_statistics(examined: Examined) -> Iterator[Finding]:
    """Running statistics that were never taken, or that disagree with the data."""
    for path, module in examined.model.named_modules():
        moves = isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum == 0.0
        if moves and examined.mode == "train" and all(p.requires_grad for p in module.parameters(recurse=False)):
            yield Finding(
                code="stale-statistics",
                severity=Severity.WARNING,
                where=path,
                seen=f"The running statistics of `{path}` have a momentum of 0: they never move.",
                why="In eval mode the network then computes another function than it was trained as.",
                advice="Set the momentum to 0.1, torch's default: it is the share of each batch that enters.",
                numbers={},
            )
    stale: list[tuple[str, float, float]] = []
    for place, seen in examined.normalizers():
        if not seen.uses_running or seen.running_variance is None or seen.running_mean is None:
            continue
        if seen.untaken:
            trained = not is_fresh(examined.model)
            yield _never_updated(
                place.path, trained=trained, training=examined.signal is not None and examined.signal.loss is not None
            )
            continue
        drift = _drift(seen, examined.data.samples)
        if drift is not None:
            stale.append((place.path, *drift))
    if stale:
        where, variance, mean = stale[0]
        later = len(stale) - 1
        loss = None if examined.signal is None else examined.signal.loss
        harmless = loss is not None and loss.share_of_blind is not None and loss.share_of_blind < LITTLE_LOSS
        also = f" {pluralise(later, 'later normalizer')} disagree{'s' if later == 1 else ''} as well." if later else ""
        yield Finding(
            code="stale-statistics",
            severity=Severity.INFO if harmless else Severity.WARNING,
            where=where,
            seen=f"Over {pluralise(examined.data.samples, 'sample')} a typical channel of `{where}` differs from "
            "what it "
            f"stores by a factor of {figure(2.0**variance)} in its variance and by {figure(mean)} stored deviations in "
            f"its mean.{also}",
            why="In eval mode the stored statistics are used whatever the data, so the network computes another "
            "function than it was trained as; what comes after sees shifted values and is thrown off too.",
            advice="Take them again over training data: torch.optim.swa_utils.update_bn(loader, model). If they drift "
            "again, training ended too early for their momentum, or these data are not what the model was trained on.",
            numbers=figures(log2_variance=variance, mean_shift=mean, count=len(stale)),
        )


def _never_updated(where: str, *, trained: bool, training: bool) -> Finding:
    seen = f"The running statistics of `{where}` were never updated: mean 0 and variance 1 everywhere"
    return Finding(
        code="stale-statistics",
        severity=Severity.WARNING if trained or training else Severity.INFO,
        where=where,
        seen=f"{seen}, though the model was trained." if trained else f"{seen}, and it is in eval mode.",
        why="In eval mode such a normalizer does not normalize: the network computes another function than in "
        "training.",
        advice="Take the statistics over training data: torch.optim.swa_utils.update_bn(loader, model). They are "
        "lost where a checkpoint was loaded without its buffers, or the model was trained in eval mode."
        if trained
        else 'A fresh model is to be trained, and looked at, in train mode: model.train(), or mode="train" here.',
        numbers={},
    )


def _drift(seen: NormalizerOverData, samples: int) -> tuple[float, float] | None:
    """Return the median abs(log2) ratio of variances and the median shift of means, if either is beyond chance."""
    if seen.channel_variance is None or seen.channel_mean is None or samples < 2:
        return None
    assert seen.running_variance is not None
    assert seen.running_mean is not None
    stored = seen.running_variance.double().cpu() + seen.eps
    ratio = torch.log2((seen.channel_variance + seen.eps) / stored)
    shift = (seen.channel_mean - seen.running_mean.double().cpu()).abs() / stored.sqrt()
    variance, mean = float(ratio.abs().median()), float(shift.median())
    chance = ERRORS * math.sqrt(2.0 / (samples - 1)) / math.log(2.0), ERRORS / math.sqrt(samples)
    if not (math.isfinite(variance) and math.isfinite(mean)):
        return None
    beyond = variance > max(STALE_VARIANCE, chance[0]) or mean > max(STALE_MEAN, chance[1])
    return (variance, mean) if beyond else None


MUCH = 0.2
"""A fifth of the sets ruled by eps changes what the layer computes; less is a few quiet channels or tokens."""
LARGE_EPS = 1e-3
"""Every common default is at most this (Keras and EfficientNet use 1e-3, PyTorch 1e-5)."""
EPS_NAMES, LITTLE = ("eps", "epsilon", "variance_epsilon"), 0.3
"""How normalizers written by hand call it, and a share of the size 1 that they are to hand on."""
HALF_STEP = 2.0**-24
"""The smallest positive float16, about 6e-8."""


def eps_scale(examined: Examined) -> Iterator[Finding]:
    """An eps that is zero, vanishes in half precision, or is larger than the variances it protects."""
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
    return Finding(code="eps-scale", severity=severity, where=where, seen=seen, why=why, advice=advice, numbers=numbers)


def _half(model: nn.Module, place: ExaminedRow) -> bool:
    """Whether the module of a place holds float16 parameters."""
    try:
        module = model.get_submodule(place.path)
    except AttributeError:
        return False
    return any(parameter.dtype == torch.float16 for parameter in module.parameters(recurse=False))


def eps_dominated(examined: Examined) -> Iterator[Finding]:
    """Normalizers that see variances which eps outweighs."""
    for place, seen in examined.normalizers():
        share = seen.share_eps
        if not share > 0.0 or seen.eps == 0.0:
            continue
        where, much = place.path, share >= MUCH
        median, raw = seen.log10_median, examined.reads_input(place)
        yield Finding(
            code="eps-dominated",
            severity=Severity.WARNING if much else Severity.INFO,
            where=where,
            seen=f"{percent(share)} of the {'stored variances' if seen.uses_running else 'sets'} of `{where}` "
            f"{'are' if seen.uses_running else 'have a variance'} below 10 eps = {figure(10.0 * seen.eps)} (median "
            f"{power(median)}).",
            why="There eps decides the result: the output is smaller than normalized, and rescaling the weights before "
            "the layer changes the function.",
            advice=(
                "Scale the input (divide it by its deviation over the data)"
                if raw
                else "Raise the scale of what comes before (its weights, or a skip that carries them), exclude those "
                "weights from weight decay"
            )
            + f", or lower eps below {power(median - 2)}."
            if math.isfinite(median) and much
            else "Look at the quiet sets: constant channels, padded positions or empty patches end up here.",
            numbers=figures(share=share, eps=seen.eps, log10_median=median),
        )


def written_eps(examined: Examined) -> Iterator[Finding]:
    """Modules with an eps of their own, as normalizers written by hand have, that eps leaves little of."""
    signal, modules = examined.signal, dict(examined.model.named_modules())
    for number, row in enumerate(() if signal is None else signal.rows):
        held = vars(modules[row.path]) if row.path in modules and row.kind[:1].isupper() else {}
        eps = next((held[name] for name in EPS_NAMES if isinstance(held.get(name), float)), None)
        feeds = signal.feeds[number] if signal is not None and number < len(signal.feeds) else ()
        if signal is None or eps is None or len(feeds) != 1:
            continue
        read, made = signal.rows[feeds[0]].root_mean_square or 0.0, row.root_mean_square or 0.0
        gains = [p.root_mean_square for p in signal.parameters if p.module == row.path and "bias" not in p.name]
        if eps > read**2 > 0.0 and made < LITTLE * max(gains, default=1.0):
            yield Finding(
                code="eps-dominated",
                severity=Severity.WARNING,
                where=row.path,
                seen=f"`{row.path}` has an eps of {figure(eps)}, reads values of size {figure(read)}, and hands on "
                f"values of size {figure(made)}.",
                why="There eps decides the result: the layer normalizes nothing and makes values far smaller.",
                advice="Lower eps to 1e-5, or to a hundredth of the mean square of what it reads.",
                numbers=figures(eps=eps, size=read),
            )


EXPANDING_SETS = 0.5
"""Of the sets, those with a variance below 1: a normalizer divides by their deviation, and so expands them."""
HUGE_GAIN = 3.0
"""log10 of a folded gain: a thousand is more than any normalizer of a healthy fresh network."""


def expanding_normalizer(examined: Examined) -> Iterator[Finding]:
    """Normalizers that see variances below 1 and stretch a change a thousandfold with the weights before them."""
    for place, seen in examined.normalizers():
        share, where = seen.variance.share_below_one, place.path
        if place.log10_folded is None or not share >= EXPANDING_SETS:
            continue
        typical = place.log10_folded - _above_typical(seen)
        if typical < HUGE_GAIN:
            continue
        together = "" if place.folded_with is None else f"`{place.folded_with}` followed by "
        yield Finding(
            code="expanding-normalizer",
            severity=Severity.WARNING,
            where=where,
            seen=f"{percent(share)} of what `{where}` normalizes has a variance below 1, and {together}`{where}` can "
            f"stretch a change {power(place.log10_folded)} times.",
            why="A normalizer divides by the deviation of its input: what enters it as noise leaves it as signal, and "
            "gradients grow by the same factor on their way back.",
            advice="Find out why its input hardly varies (dead or constant features before it), or raise eps, which "
            "caps the gain at the largest scale over sqrt(eps).",
            numbers=figures(
                log10_folded=place.log10_folded,
                log10_typical=typical,
                share_below_one=share,
                log10_median=seen.variance.log10_median,
            ),
        )


def _above_typical(seen: NormalizerOverData) -> float:
    """Return log10 of how much more a normalizer expands its quietest set than its median one.

    The folded gain is that of the quietest; BatchNorm's is that of all its channels together.
    """
    if seen.kind == "batch":
        return 0.0
    quiet, usual = (power10(v) + seen.eps for v in (seen.variance.log10_min, seen.variance.log10_median))
    return (log10(usual) - log10(quiet)) / 2.0 if quiet > 0.0 else 0.0


NORM_ERROR = 0.1
"""A relative error of a spectral norm that is worth knowing."""
LARGE_ERROR = 0.25
"""An error to act on: one power iteration a step follows the weights more closely than this, even at large rates."""
ITERATE_BEYOND = 1024
"""The short side of a matrix from which on its norm is iterated instead of decomposed."""
ITERATIONS = 100
"""Power iterations: a random matrix is then known to about a percent."""


def spectral_norm_off(examined: Examined) -> Iterator[Finding]:
    """Spectral normalization whose power iteration is off, or whose norm is not that of the convolution."""
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
                yield Finding(
                    code="spectral-norm-off",
                    severity=Severity.WARNING if lasting else Severity.INFO,
                    where=path,
                    seen=f"The weight that spectral_norm hands out in `{path}` has norm {figure(handed)}, not 1.",
                    why="Its power iteration keeps two vectors and improves them only in train mode; they do not fit "
                    "the weight, so the layer is not the 1-Lipschitz map it is taken for.",
                    advice="Run a few forward passes in train mode (no optimizer step) before evaluating, or use more "
                    "iterations: spectral_norm(module, n_power_iterations=5).",
                    numbers=figures(norm=handed, log10_weight=log10(sigma)),
                )
            elif bracket is not None and bracket.lower > 1.0 + NORM_ERROR:
                yield Finding(
                    code="spectral-norm-off",
                    severity=Severity.INFO,
                    where=path,
                    seen=f"The reshaped kernel of `{path}` has norm {figure(handed)}, the convolution itself at "
                    f"least {figure(bracket.lower)}.",
                    why="spectral_norm normalizes the kernel reshaped to a matrix, whose norm is below the operator's: "
                    "windows overlap and their images add up.",
                    advice="Do not multiply by 1 per layer when certifying: use the norms of this audit, or divide the "
                    "weight by ns.spectral_norm(module, input_shape=...).upper.",
                    numbers=figures(norm=handed, operator_norm=bracket.lower),
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
