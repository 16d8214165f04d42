"""The inverse of the certificate's recursion where the matrix is singular."""

import torch

from normscope.bounds.ellipsoids.ellipsoid import invert


def test_a_singular_matrix_among_others_has_no_inverse_and_stops_nothing() -> None:
    reduced = torch.stack([torch.diag(torch.tensor([0.0, 1.0])), torch.diag(torch.tensor([0.75, 0.0]))]).double()
    inverse = invert(reduced)
    assert bool(inverse[0].isnan().all())
    assert torch.equal(inverse[1], torch.diag(torch.tensor([4.0, 1.0])).double())
