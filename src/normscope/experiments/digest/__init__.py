"""The digest of Than (2025): its first experiments and next checks."""

from ..base import Experiment
from . import ablation, local, variances, weights

EXPERIMENTS: tuple[Experiment, ...] = (
    variances.EXPERIMENT,
    ablation.EXPERIMENT,
    weights.EXPERIMENT,
    local.EXPERIMENT,
)
