"""Rules: what each operator does. One registry; one file per family."""

from . import activation, arithmetic, attention, convolution, linear, normalization, pooling, shape  # noqa: F401
