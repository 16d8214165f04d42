"""DATA: quantiles of the Jacobian norm over a loader, with the confidence they claim."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

import normscope as ns
from normscope.bounds.data import streaming
from normscope.bounds.data.quantile import DataBracket, draws_needed, limits, rank_above, rank_below
from normscope.core.bracket import Evidence, Scope
from normscope.core.errors import InputError

pytestmark = pytest.mark.usefixtures("seeded")

DRAWS = 1000
"""Simulated sets of samples."""
CHANCE = 1e-4
"""How unlikely a count must be, were the confidence kept, to count as a violation."""


def network(width: int = 6, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, outputs)).double().eval()


class TestRanks:
    @pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
    @pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
    def test_ranks_are_the_least_and_the_largest_that_hold(self, share: float, confidence: float) -> None:
        for draws in (1, 7, 59, 299, 1000):
            above, below = rank_above(draws, share, confidence), rank_below(draws, share, confidence)
            if above is None:
                assert share**draws > 1 - confidence
            else:
                assert binom.cdf(above - 1, draws, share) >= confidence
                assert above == 1 or binom.cdf(above - 2, draws, share) < confidence + 1e-12
            if below is not None:
                assert binom.cdf(below - 1, draws, share) <= 1 - confidence + 1e-12
                assert above is None or below <= above

    @pytest.mark.parametrize(
        ("share", "confidence", "needed"), [(0.99, 0.95, 299), (0.95, 0.95, 59), (0.9, 0.9, 22), (0.999, 0.99, 4603)]
    )
    def test_wilks(self, share: float, confidence: float, needed: int) -> None:
        assert draws_needed(share, confidence) == needed
        assert rank_above(needed, share, confidence) == needed
        assert rank_above(needed - 1, share, confidence) is None


DISTRIBUTIONS: dict[str, tuple[Callable[[np.random.Generator, int], np.ndarray], Callable[[float], float]]] = {
    "uniform": (lambda g, n: g.random(n), lambda q: q),
    "heavy tail": (lambda g, n: g.pareto(0.5, n), lambda q: (1 - q) ** -2.0 - 1),
    "two values": (lambda g, n: (g.random(n) > 0.97).astype(float), lambda q: float(q > 0.97)),
    "a jump at the quantile": (lambda g, n: np.maximum(g.random(n), 0.9), lambda q: max(q, 0.9)),
    "constant": (lambda g, n: np.ones(n), lambda q: 1.0),
}


def kept(confidence: float, held: int) -> bool:
    """Whether a count of statements that hold is one that the confidence allows."""
    return bool(binom.cdf(held, DRAWS, confidence) > CHANCE)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("share", "confidence", "count"), [(0.99, 0.95, 299), (0.9, 0.9, 100), (0.95, 0.8, 60)])
def test_coverage_is_never_below_the_confidence(name: str, share: float, confidence: float, count: int) -> None:
    draw, known = DISTRIBUTIONS[name]
    generator, truth = np.random.default_rng(0), known(share)
    above = below = 0
    for _ in range(DRAWS):
        norms = draw(generator, count).tolist()
        low, high = limits(norms, norms, share, confidence)
        above, below = above + (high >= truth), below + (low <= truth)
    assert kept(confidence, above)
    assert kept(confidence, below)


@pytest.mark.slow
def test_coverage_of_a_real_network() -> None:
    """The norms of 5,000 inputs are the distribution; samples are drawn from it."""
    model, share, confidence, count = network(), 0.95, 0.9, 60
    inputs = torch.randn(5000, 6, dtype=torch.float64)
    everything = ns.lipschitz(model, inputs, scope="data", samples=5000, share=share)
    assert isinstance(everything, DataBracket)
    norms = np.array(everything.log10_norms)
    truth = float(np.sort(norms)[math.ceil(share * len(norms)) - 1])
    generator, held = np.random.default_rng(1), 0
    for _ in range(DRAWS):
        drawn = generator.choice(norms, count).tolist()
        held += limits(drawn, drawn, share, confidence)[1] >= truth
    assert kept(confidence, held)
    assert held < DRAWS  # and it is no bound for all draws
    fresh = ns.lipschitz(model, torch.randn(500, 6, dtype=torch.float64), scope="data", share=share, samples=500)
    assert fresh.log10_lower <= truth <= fresh.log10_upper


class Counted:
    """Batches that are counted as they are read."""

    def __init__(self, sizes: list[int], width: int = 6) -> None:
        self.sizes, self.width, self.read = sizes, width, 0

    def __iter__(self) -> Iterator[Tensor]:
        for size in self.sizes:
            self.read += 1
            yield torch.randn(size, self.width, dtype=torch.float64)


class TestStreaming:
    @pytest.mark.slow
    def test_reading_ends_with_enough_samples(self) -> None:
        loader = Counted([50] * 20)
        found = ns.lipschitz(network(), loader, scope="data")
        assert (found.samples, loader.read) == (300, 6)
        assert found.scope is Scope.DATA
        assert found.evidence is Evidence.SAMPLED
        assert found.converged
        assert found.products == 6 * (3 + 1)
        assert found.log10_upper == max(found.log10_norms)

    def test_one_trace_serves_all_batches_of_a_shape(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = []

        class Kept(streaming.Traces):
            def __init__(self, *given, **more):
                super().__init__(*given, **more)
                made.append(self)

        monkeypatch.setattr(streaming, "Traces", Kept)
        ns.lipschitz(network(), Counted([32, 32, 32, 32, 5]), scope="data", samples=133)
        assert [traces.taken for traces in made] == [2]

    @pytest.mark.slow
    def test_norms_are_those_at_the_samples(self) -> None:
        model, batches = network(), [torch.randn(size, 6, dtype=torch.float64) for size in (9, 9, 4)]
        found = ns.lipschitz(model, batches, scope="data", share=0.8, samples=22)
        alone = [ns.lipschitz(model, row[None], scope="point").log10_upper for batch in batches[1:] for row in batch]
        assert found.log10_norms[9:] == pytest.approx(alone, abs=1e-10)
        (index, value), *_ = found.largest
        assert value == max(found.log10_norms) == found.log10_norms[index]
        assert len(found.largest) == 10

    def test_too_few_samples_say_nothing(self) -> None:
        found = ns.lipschitz(network(), torch.randn(20, 6, dtype=torch.float64), scope="data")
        assert found.log10_upper == math.inf
        assert "20 samples are too few" in found.reason
        assert not found.converged
        assert "299 samples" in found.advice
        assert math.isfinite(found.limits(0.8)[1])

    @pytest.mark.slow
    def test_tokens_and_masks_of_each_batch_count(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

            def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
                return self.head((self.embedding(input_ids).tanh() * attention_mask[..., None]).sum(1))

        model = Model().double().eval()
        batches = [
            {"input_ids": torch.randint(7, (3, 5)), "attention_mask": (torch.rand(3, 5) > 0.4).double()}
            for _ in range(4)
        ]
        found = ns.lipschitz(model, batches, scope="data", share=0.5, samples=12)
        alone = [b.log10_upper for batch in batches for b in ns.lipschitz(model, batch, scope="point").per_sample]
        assert found.log10_norms == pytest.approx(alone, abs=1e-10)

    def test_samples_that_meet_are_refused(self) -> None:
        class Mean(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x - x.mean(0)

        with pytest.raises(InputError, match="samples meet in this model"):
            ns.lipschitz(Mean().eval(), torch.randn(4, 6), scope="data")
        with pytest.raises(InputError, match="yields no batch"):
            ns.lipschitz(Mean().eval(), iter([]), scope="data")
        with pytest.raises(InputError, match="data is a int: pass a batch"):
            ns.lipschitz(Mean().eval(), 3, scope="data")

    def test_the_model_is_left_as_found(self) -> None:
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout()).double().train()
        before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
        ns.lipschitz(
            model, torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator()), scope="data", mode="eval"
        )
        assert model.training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)


class TestParts:
    @pytest.mark.slow
    def test_classes_split_the_samples(self) -> None:
        model, x = network(), torch.randn(90, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(90) % 3
        loader = list(zip(x.split(30), labels.split(30), strict=True))
        found = ns.lipschitz(model, loader, scope="data", share=0.9, per="class")
        assert list(found.per_class) == ["0", "1", "2"]
        assert found.samples == 90  # all there are, not as many as the confidence takes
        for label, part in found.per_class.items():
            assert part.indices == tuple(range(int(label), 90, 3))
            assert part.log10_norms == found.log10_norms[int(label) :: 3]
            assert part.limits(0.9) == limits(part.log10_norms_lower, part.log10_norms, 0.9, 0.95)
            assert part.largest[0][0] % 3 == int(label)
        few = ns.lipschitz(model, loader, scope="data", share=0.99, per="class", samples=30)
        assert few.samples == 30
        assert all(part.log10_upper == math.inf and part.reason for part in few.per_class.values())

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("labels", [None, torch.randn(4), torch.arange(3)])
    def test_classes_need_labels(self, labels: Tensor | None) -> None:
        x = torch.randn(4, 6, dtype=torch.float64)
        with pytest.raises(InputError, match="needs the class of every sample"):
            ns.lipschitz(network(), [x if labels is None else (x, labels)], scope="data", per="class")


@pytest.fixture(scope="module")
def found() -> DataBracket:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ns.lipschitz(network(), Counted([30, 30]), scope="data", share=0.9)


class TestForms:
    def test_json_and_back(self, found: DataBracket, tmp_path) -> None:
        found.to_json(tmp_path / "found.json")
        again = DataBracket.from_json(tmp_path / "found.json")
        assert again == found
        drawn = dataclasses.replace(found, indices=tuple(range(100, 100 + found.samples)))
        assert DataBracket.from_json(drawn.to_json()) == drawn
        assert [index - 100 for index, _ in drawn.largest] == [index for index, _ in found.largest]
        assert again.to_json() == json.loads(json.dumps(found.to_json()))
        with pytest.raises(InputError, match="holds no bracket over data"):
            DataBracket.from_json({"type": "radii"})


class Pooled(nn.Module):
    """Takes images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.filters(x).tanh().mean((2, 3)))


class Sentence(nn.Module):
    """Takes sequences of tokens of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.words(tokens).tanh().sum(1))


def words(length: int) -> Tensor:
    return torch.randint(0, 20, (20, length))


class TestShapes:
    """A quantile speaks of inputs of one shape."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("make", "batches", "met"),
        [
            (Pooled, lambda: [torch.randn(20, 1, 8, 8), torch.randn(20, 1, 4, 16)], "1x8x8 at first and 1x4x16"),
            (Sentence, lambda: [words(5), words(5), words(9)], "5 at first and 9 later"),
        ],
        ids=["images of as many pixels", "lengths"],
    )
    def test_several_shapes_are_refused_and_named(self, make, batches, met: str) -> None:
        model, data = make().eval(), batches()
        for per in (None, "layer"):
            with pytest.raises(InputError, match=met):
                ns.lipschitz(model, data, scope="data", share=0.5, samples=60, per=per)
        labelled = [(batch, torch.arange(len(batch)) % 2) for batch in data]
        with pytest.raises(InputError, match=met):
            ns.lipschitz(model, labelled, scope="data", share=0.5, per="class")
        if make is not Sentence:
            with pytest.raises(InputError, match=met):
                ns.generalization(model, labelled * 4, steps=2)
