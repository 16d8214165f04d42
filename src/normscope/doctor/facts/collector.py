"""`Collector`: what notes one kind of fact while a model runs forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...calls.call import Call
from ...listening.calls import FunctionCall
from .autograd_graph import Reached
from .layers import Layers


class Collector:
    """Notes one kind of fact: it overrides what it has to see, in the order in which a pass comes to it.

    Attributes:
        layers: what every layer has handed on so far.
    """

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    def begin(self, call: Call) -> None:
        """See the arguments before the model runs."""

    def before_call(self, call: FunctionCall, leaves: Sequence[Any], path: str) -> None:
        """See a function before it runs: its arguments without their nest, and the module that calls it."""

    def after_call(self, call: FunctionCall, leaves: Sequence[Any], result: Any, path: str) -> None:
        """See what a function returns."""

    def after_layer(self, number: int, call: FunctionCall, result: Any, made: Tensor) -> None:
        """See the row that a layer's function has made, behind `after_call`."""

    def heard(self, number: int, made: Tensor) -> None:
        """See the values of any new row that a gradient will come back to."""

    def module_entered(self, path: str, args: Sequence[Any]) -> None:
        """See the arguments of a module before it runs."""

    def module_returned(self, path: str, made: Sequence[Tensor]) -> None:
        """See the float tensors that a module returns."""

    def forward_ended(self, returned: Sequence[Tensor]) -> None:
        """See the tensors that the model returns."""

    def follow_outputs(self, outputs: Sequence[Tensor]) -> None:
        """See what is differentiated, or what the loss will be taken of."""

    def read_graph(self, reached: Reached) -> None:
        """See autograd's graph in front of the backward; it is gone behind it."""

    def forget_gradients(self) -> None:
        """Drop what a backward that did not end has left."""
