"""Along which dimension the units of an activation lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normscope.diagnosis.data_pass import watch_data
from normscope.listening.listener import UnitAxis


@pytest.mark.parametrize(
    ("output", "dim", "last", "shape", "axis"),
    [
        ((2, 5, 4, 4), 1, False, (2, 5, 4, 4), 1),
        ((2, 5, 5, 5), 1, False, (2, 5, 5, 5), 1),  # both fit
        ((2, 5, 4, 4), 1, False, (2, 16, 5), 2),  # an image as tokens
        ((2, 7, 6), -1, True, (2, 7, 6), 2),
        ((2, 6, 6), -1, True, (2, 6, 6), 2),
        ((2, 7, 6), -1, True, (2, 6, 7), 1),  # transposed on its way
        ((2, 7, 6), -1, True, (2, 3, 4), 2),  # none fits
        ((2, 6), -1, True, (2, 12), 1),
        ((6,), -1, True, (2, 3, 6), 2),  # no batch: where the layer has them
    ],
)
def test_units_lie_where_the_layer_before_has_its_channels(
    output: tuple[int, ...], dim: int, last: bool, shape: tuple[int, ...], axis: int
) -> None:
    units = UnitAxis()
    units.follow(torch.empty(output), dim, last=last)
    assert units.of(torch.empty(shape)) == axis


def test_in_front_of_all_layers_they_lie_along_the_second_dimension() -> None:
    assert UnitAxis().of(torch.empty(2, 3, 4, 5)) == 1
    assert UnitAxis().of(torch.empty(2, 3)) == 1


class Tokens(nn.Module):
    """A table of 5 tokens of width 3, whose second entry is never positive; then a recurrent layer."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 4, 1)
        self.table = nn.Embedding.from_pretrained(torch.tensor([1.0, -1.0, 2.0]).expand(5, 3).clone())
        self.recurrent = nn.GRU(3, 6, batch_first=True) if recurrent else None

    def forward(self, tokens: Tensor) -> Tensor:
        self.first(torch.ones(1, 4, 2))
        x = self.table(tokens)
        return torch.relu(x if self.recurrent is None else self.recurrent(x)[0])


@pytest.mark.parametrize(("recurrent", "width"), [(False, 3), (True, 6)])
def test_embeddings_and_recurrent_layers_have_their_channels_last(recurrent: bool, width: int) -> None:
    """Also behind a convolution, and with as many tokens as the convolution has channels."""
    data = watch_data(Tokens(recurrent), [torch.tensor([[0, 1, 2, 3]] * 3)])
    (units,) = data.units.values()
    assert len(units.dead) == width
    assert recurrent or units.dead.tolist() == [False, True, False]
