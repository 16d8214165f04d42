"""The digest of Than (2025): its first experiments and next checks."""

from ..base import Experiment
from . import ablation, local_constants, norm_products, predicting, variances

EXPERIMENTS: tuple[Experiment, ...] = (
    variances.EXPERIMENT,
    ablation.EXPERIMENT,
    norm_products.EXPERIMENT,
    local_constants.EXPERIMENT,
    predicting.PREDICTING,
)
