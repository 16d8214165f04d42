"""The normalizers' constants as the papers print them, each beside the exact one: whether it is a bound is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.log10 import log10
from normscope.core.rounding import Upper
from normscope.theory.lemmas import lemma1, lemma2, lemma3, slides_group_norm, slides_layer_norm
from normscope.theory.normalizers import batch_norm_eval_global, layer_norm_global

from .normalizer_oracles import group_norm_global


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A Lipschitz constant as it is and as it is printed.

    Attributes:
        exact: the exact constant, rounded outward.
        as_printed: the printed value.
        reference: where it is printed.
    """

    exact: Upper
    as_printed: float
    reference: str

    @property
    def printed_is_bound(self) -> bool:
        """Whether the printed value is at least the exact constant (to 1e-12, the rounding of both)."""
        return log10(self.as_printed) >= self.exact.log10 - 1e-12

    @property
    def log10_excess(self) -> float:
        """log10 of printed over exact: how loose the printed value is, or below 0 how wrong."""
        printed = log10(self.as_printed)
        return 0.0 if printed == self.exact.log10 else printed - self.exact.log10


def batch_norm_constants(gamma: Tensor | None, running_var: Tensor, eps: float) -> tuple[Printed, ...]:
    """Return eval-mode BatchNorm's constant beside Lemma 1 and the Slides' form (the first without gamma)."""
    plain, affine = lemma1(running_var, eps), lemma1(running_var, eps, gamma)
    return (
        Printed(exact=batch_norm_eval_global(None, running_var, eps), as_printed=plain, reference="Than, Lemma 1"),
        Printed(exact=batch_norm_eval_global(gamma, running_var, eps), as_printed=affine, reference="Slides, BN"),
    )


def layer_norm_constants(gamma: Tensor | None, n: int, eps: float) -> tuple[Printed, ...]:
    """Return LayerNorm's constant over all inputs beside Lemma 2, the digest (without gamma) and the Slides."""
    plain, scales = layer_norm_global(None, n, eps), torch.ones(n) if gamma is None else gamma
    digest, slides = slides_layer_norm(n, 0.0, eps), slides_layer_norm(n, 0.0, eps, scales)
    return (
        Printed(exact=plain, as_printed=lemma2(eps), reference="Than, Lemma 2"),
        Printed(exact=plain, as_printed=digest, reference="digest, LN"),
        Printed(exact=layer_norm_global(gamma, n, eps), as_printed=slides, reference="Slides, LN"),
    )


def group_norm_constants(gamma: Tensor | None, groups: int, set_size: int, eps: float) -> tuple[Printed, ...]:
    """Return GroupNorm's constant over all inputs beside Lemma 3 (without gamma) and the Slides."""
    zeros = torch.zeros(groups)
    scales = torch.ones(groups, 1) if gamma is None else gamma.detach().reshape(groups, -1)
    entries = scales.repeat_interleave(set_size // scales.shape[1], dim=1)
    slides = slides_group_norm(set_size, zeros, eps, entries)
    return (
        Printed(
            exact=group_norm_global(None, groups, set_size, eps),
            as_printed=lemma3(eps, zeros),
            reference="Than, Lemma 3",
        ),
        Printed(exact=group_norm_global(gamma, groups, set_size, eps), as_printed=slides, reference="Slides, GN"),
    )
