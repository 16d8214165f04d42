"""Masks, ids and lengths belong to their sample: every figure of a sample is that of its own map."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.core.errors import InputError

pytestmark = pytest.mark.usefixtures("seeded")


class Masked(nn.Module):
    """Features that a mask leaves out do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x * mask)))


class Conditioned(nn.Module):
    """Each sample is scaled by the embedding of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kinds = nn.Linear(4, 3), nn.Embedding(3, 3)
        self.kinds.weight.data[0] = 0.0

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) * self.kinds(kind)


class Chosen(nn.Module):
    """Each sample chooses its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(3.0)[:, None, None] * torch.randn(3, 4, 4))

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        return torch.bmm(self.w[kind], x[:, :, None])[:, :, 0]


class Attending(nn.Module):
    """Attention in which a mask hides keys."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x.reshape(len(x), 1, 3, 4)
        return self.layer(F.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, None]).flatten(1))


class Pooled(nn.Module):
    """Token ids, the mean of the first ones of which counts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        inside = (torch.arange(ids.shape[1]) < lengths[:, None]).to(torch.float32)[..., None]
        return self.layer((torch.tanh(self.embed(ids)) * inside).sum(1))


KINDS = torch.tensor([0, 2, 1])
MASK = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 1]])
CASES = {
    "a float mask": (Masked, {"x": torch.randn(3, 4), "mask": MASK.float()}),
    "a mask": (Masked, (torch.randn(3, 4), MASK.bool())),
    "embedded kinds": (Conditioned, (torch.randn(3, 4), KINDS)),
    "chosen weights": (Chosen, (torch.randn(3, 4), KINDS)),
    "attention": (Attending, (torch.randn(3, 12), torch.tensor([[1, 0, 0], [1, 1, 1], [0, 1, 1]]).bool()[KINDS])),
    "tokens": (Pooled, (torch.arange(12).reshape(3, 4) % 9, torch.tensor([1, 4, 2]))),
}


def single(batch, number: int):
    """One sample of a batch."""
    if isinstance(batch, dict):
        return {name: value[number : number + 1] for name, value in batch.items()}
    return tuple(value[number : number + 1] for value in batch)


def balls_of_their_own(name: str) -> None:
    """Every ball has the bounds of its sample alone, and no Jacobian of a sample exceeds them."""
    build, batch = CASES[name]
    model = build().eval()
    found = ns.lipschitz(model, batch, scope="ball", radius=0.1)
    points = ns.lipschitz(model, batch, scope="point")
    assert len(found.per_sample) == len(points.per_sample) == 3
    for number, (ball, point) in enumerate(zip(found.per_sample, points.per_sample, strict=True)):
        assert ball.upper >= point.lower
        alone = ns.lipschitz(model, single(batch, number), scope="ball", radius=0.1)
        assert ball.upper == pytest.approx(alone.upper, rel=1e-9)
        assert ball.lower <= alone.upper
    assert found.upper == max(ball.upper for ball in found.per_sample)
    assert found.lower == max(ball.lower for ball in found.per_sample)
    assert not any("first sample" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_ball_has_the_masks_of_its_own_sample(name):
    balls_of_their_own(name)


@pytest.mark.slow
def test_a_proof_is_that_of_one_network(tmp_path):
    build, batch = CASES["a mask"]
    found = ns.lipschitz(build().eval(), batch, scope="ball", radius=0.1)
    with pytest.raises(InputError, match="per_sample"):
        found.save(tmp_path / "all.npz")
    found.per_sample[1].save(tmp_path / "one.npz")
    assert (tmp_path / "one.npz").exists()


def radii_of_their_own(name: str) -> None:
    """Radii are those of each sample alone, with an attack on the sample's own map."""
    build, batch = CASES[name]
    model = build().eval()
    found = ns.certified_radius(model, batch, attack=False)
    alone = [ns.certified_radius(model, single(batch, number), attack=False) for number in range(3)]
    assert found.radius == pytest.approx([one.radius[0] for one in alone], rel=0.03)
    assert found.predicted == tuple(one.predicted[0] for one in alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a float mask", "embedded kinds", "chosen weights", "attention"])
def test_every_radius_has_the_masks_of_its_own_sample(name):
    radii_of_their_own(name)


def padded() -> tuple[nn.Module, dict[str, Tensor]]:
    """Data that are zero where the mask is: no output tells one mask from another."""
    model = Masked().eval()
    x = torch.randn(3, 4) * MASK
    mask = MASK.float()
    mask[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    with torch.no_grad():
        assert torch.equal(model(x, mask), model(x, torch.ones(3, 4)))
    return model, {"x": x, "mask": mask}


@pytest.mark.slow
def test_masks_that_no_output_shows_count():
    model, batch = padded()
    every = ns.certified_radius(model, batch, attack=False)
    one = [ns.certified_radius(model, single(batch, number), attack=False).radius[0] for number in range(3)]
    assert every.radius == pytest.approx(one, rel=0.03)


class Padded(nn.Module):
    """Token ids, of which zeros do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer((torch.tanh(self.embed(ids)) * (ids != 0)[..., None]).sum(1))


@pytest.mark.slow
def test_ids_that_make_the_same_constants_are_one_function():
    ids = torch.arange(20).reshape(5, 4) % 8 + 1
    model = Padded().eval()
    found = ns.lipschitz(model, ids, scope="ball", radius=0.1)
    assert len({id(ball.proof.graph) for ball in found.per_sample}) == 1
    ids[1, 2:] = 0
    other = ns.lipschitz(model, ids, scope="ball", radius=0.1)
    assert len({id(ball.proof.graph) for ball in other.per_sample}) == 2


@pytest.mark.slow
def test_jacobians_at_other_ids_are_not_those_of_the_first_batch():
    """Outputs that agree do not make the same point: only the ids tell."""
    model = Padded().eval()
    model.embed.weight.data[1:] = torch.randn(8, 1) * torch.ones(4)  # steep and flat tokens
    model.layer.weight.data.zero_()
    model.layer.weight.data[0] = torch.tensor([1e-5, -1e-5, 1e-5, -1e-5])  # which no output shows
    batches = [torch.full((2, 1), token) for token in (1, 5)]
    joint = ns.lipschitz(model, batches, scope="data", share=0.5, samples=4)
    alone = [ns.lipschitz(model, batch, scope="point").upper for batch in batches]
    assert alone[0] != pytest.approx(alone[1], rel=0.01)
    assert [10**norm for norm in joint.log10_norms[::2]] == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("name", ["embedded kinds", "a mask"])
def test_a_bound_over_all_inputs_says_in_every_form_that_it_holds_the_first_sample_s_ids(name):
    build, batch = CASES[name]
    model = build().eval()
    words = "held constant at those of the first sample"
    assert words in str(ns.lipschitz(model, batch))
    assert words in ns.lipschitz(model, batch)._repr_html_()
    assert str(ns.ladder(model, batch)).count(words) == 1
    assert words not in str(ns.lipschitz(model, single(batch, 0)))


class Inpainting(nn.Module):
    """The image, and five times a second input, whose key decides whether it is a mask."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def forward(self, image: Tensor, **more: Tensor) -> Tensor:
        return image + 5 * more[self.key]


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("key", ["masked_image", "image_mask", "unmasked", "mask", "attention_mask"])
def test_float_inputs_are_held_constant_by_the_exact_names_of_masks_alone(key, mode):
    """The constant in both inputs is sqrt(1 + 25); where the second is held, 1, and the result says so."""
    bracket = ns.lipschitz(Inpainting(key), {"image": torch.randn(3, 4), key: torch.randn(3, 4)}, mode=mode)
    held = key in ("mask", "attention_mask")
    assert bracket.lower == pytest.approx(1.0 if held else 26**0.5, rel=1e-6)
    assert bracket.upper >= (1.0 if held else 26**0.5)
    assert (f"the float input '{key}' is held constant" in str(bracket)) == held
