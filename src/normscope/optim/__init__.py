"""Optimisers that know the geometry of normalized networks."""

from .optimizers import SphereAdam, SphereSGD

__all__ = ["SphereAdam", "SphereSGD"]
