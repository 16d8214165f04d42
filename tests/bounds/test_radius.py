"""Certified radii: exact where the truth is known, never refuted by an attack, and bugs that are planted are caught."""

import copy
import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normscope.bounds import certifier as certifier_module
from normscope.bounds.ball import Over
from normscope.bounds.differences import difference_constants
from normscope.bounds.logits import Logits, margins
from normscope.bounds.pgd import Attack
from normscope.bounds.radii import Radii
from normscope.bounds.radius import audited_radii, certified_radius
from normscope.bounds.radius_search import widest
from normscope.bounds.work import Work
from normscope.core.bracket import Evidence
from normscope.core.errors import CaptureError, InputError, MissingRuleError, SoundnessError
from normscope.experiments.data import digits
from normscope.experiments.models import mlp
from normscope.experiments.train import train


class Tokens(nn.Module):
    """One block of attention over four tokens of four entries, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 4, 4)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + self.mlp(self.norm2(x))).flatten(1))


FAMILIES = {
    "relu": lambda: nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 3),
    ),
    "attention": Tokens,
}  # fmt: skip


def made(build, seed: int = 0) -> nn.Module:
    """Return a model in eval mode with weights, and running statistics, from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.3, 2.0)
    return model.eval()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(weight, bias) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weight))
        layer.bias.copy_(torch.as_tensor(bias))
    return layer.eval()


def distances(layer: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """The exact distance of each sample to the nearest boundary of a linear classifier."""
    weight = layer.weight.double()
    logits = x.double() @ weight.T + layer.bias.double()
    gaps = (logits.gather(1, y[:, None]) - logits) / (weight[y][:, None] - weight[None]).norm(dim=2)
    return gaps.scatter(1, y[:, None], math.inf).amin(1).clamp(min=0.0).detach()


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, steps: int = 40) -> Tensor:
    """Whether 40 steps of plain projected gradient ascent on the margin change the class, per sample."""
    size = radius.float()[:, None]
    change = torch.zeros_like(x)
    for _ in range(steps):
        z = (x + change).requires_grad_(True)
        (slope,) = torch.autograd.grad(-margins(model(z), y).sum(), z)
        change = change + 2.5 / steps * size * slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
        change = change * (size / change.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
    return (margins(model(x + change), y) <= 0).detach()


# ---- exact where the truth is known


@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_a_linear_classifier_has_its_exact_radii_from_both_sides(effort):
    layer, x = made(lambda: nn.Linear(6, 4)), drawn(12, 6)
    y = layer(x).argmax(1)
    y[3] = (y[3] + 1) % 4  # one that is wrong
    radii = certified_radius(layer, x, y, effort=effort)
    exact = distances(layer, x, y)
    assert exact[3] == 0 == radii.radius[3] == radii.attacked[3]
    for radius, attacked, true in zip(radii.radius, radii.attacked, exact.tolist()):
        assert true / 1.011 <= radius <= true
        assert true <= attacked <= 1.01 * true
    assert radii.clean_accuracy == radii.certified_accuracy(0.0) == pytest.approx(11 / 12)


def steep(activation) -> nn.Module:
    """A network of the plane whose classes change within a few units."""
    layers = [nn.Linear(2, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 3)]
    for layer in layers[::2]:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU], ids=lambda a: a.__name__)
def test_in_the_plane_the_radii_enclose_the_nearest_point_of_a_fine_grid(activation):
    model, x = made(lambda: steep(activation)), drawn(4, 2)
    radii = certified_radius(model, x, effort="tight")
    axis = torch.linspace(-6, 6, 1201)
    grid = torch.cartesian_prod(axis, axis)
    classes = model(grid).argmax(1)
    assert len(classes.unique()) > 1
    for sample, label, radius, attacked in zip(x, radii.label, radii.radius, radii.attacked):
        nearest = float((grid[classes != label] - sample).norm(dim=1).min())
        assert nearest < 4  # well inside the grid
        assert 0 < radius <= nearest
        assert nearest - 0.01 < attacked <= nearest * 1.001
        assert radius > 0.15 * attacked


def test_on_a_line_the_nearest_root_of_the_margin_is_found():
    # the margin is 1 - abs(x) between two classes, then grows again: both roots at distance 0.6 and 1.4 from 0.4
    model = nn.Sequential(
        linear([[1.0], [-1.0]], [0.0, 0.0]), nn.ReLU(), linear([[-1.0, -1.0], [0.0, 0.0]], [1.0, 0.0])
    )
    radii = certified_radius(model.eval(), torch.tensor([[0.4], [0.0], [2.0]]))
    assert radii.predicted == (0, 0, 1)
    for radius, attacked, true in zip(radii.radius, radii.attacked, (0.6, 1.0, 1.0)):
        assert 0.98 * true <= radius <= true <= attacked <= 1.0001 * true


# ---- nothing succeeds inside a certified radius


@pytest.mark.parametrize("family", FAMILIES)
def test_no_attack_succeeds_inside_a_certified_radius(family):
    model, x = made(FAMILIES[family]), drawn(4, 16, seed=1)
    radii = certified_radius(model, x)
    y = torch.tensor(radii.label)
    assert all(0 < radius < attacked for radius, attacked in zip(radii.radius, radii.attacked))
    assert not plain_pgd(model, x, y, torch.tensor(radii.radius)).any()
    assert plain_pgd(model, x, y, 3 * torch.tensor(radii.attacked)).any()  # it can win
    double = copy.deepcopy(model).double()
    for row, (witness, attacked) in enumerate(zip(radii.witness, radii.attacked)):
        assert float((witness - x[row].double()).norm()) == pytest.approx(attacked, rel=1e-9)
        assert int(double(witness[None]).argmax()) != radii.label[row]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("effort", ["fast", "tight"])
def test_no_attack_succeeds_inside_a_certified_radius_of_many_networks(family, effort):
    for seed in range(12):
        model, x = made(FAMILIES[family], seed), (0.3, 1.0, 3.0)[seed % 3] * drawn(12, 16, seed=seed)
        radii = certified_radius(model, x, effort=effort, seed=seed)
        assert not plain_pgd(model, x, torch.tensor(radii.label), torch.tensor(radii.radius), 200).any()
        assert all(0 < radius < attacked for radius, attacked in zip(radii.radius, radii.attacked))


def test_a_constant_given_too_small_is_refuted_by_the_attack():
    model, x = made(FAMILIES["relu"]), drawn(4, 16)
    with pytest.raises(SoundnessError, match="inside the certified radius"):
        certified_radius(model, x, known={"2": 1e-3})


def test_constants_at_the_point_in_place_of_the_ball_are_caught(monkeypatch):
    honest = Over.margins
    monkeypatch.setattr(Over, "margins", lambda over, top: _at_the_point(over, top, honest))
    model, x = made(FAMILIES["relu"]), drawn(8, 16)
    with pytest.raises(SoundnessError, match="inside the certified radius"):
        certified_radius(model, x)


def _at_the_point(over: Over, top: Tensor, honest) -> Tensor:
    """Margins as if the Jacobian at the centre were the constant over the ball."""
    values = over.balls.values
    slopes = over.balls.over(0.0).differences(top)
    return values.gather(1, top[:, None]) - values - slopes * over.radius[:, None]


def test_a_margin_over_the_constant_of_the_output_is_caught(monkeypatch):
    # the difference of two outputs can be sqrt(2) times as steep as either
    def wrong(work: Work, *, effort: str) -> Tensor:
        return difference_constants(work, effort=effort) / math.sqrt(2)

    monkeypatch.setattr(certifier_module, "difference_constants", wrong)
    layer = made(lambda: nn.Linear(6, 4))
    with pytest.raises(SoundnessError, match="global"):
        certified_radius(layer, drawn(4, 6))


# ---- the attack


def test_on_trained_digits_the_attack_is_stronger_than_plain_pgd_and_the_curves_fall():
    data = digits(generator=torch.Generator().manual_seed(0))
    model = mlp(generator=torch.Generator().manual_seed(0), width=32, depth=3)
    train(model, data.train_images, data.train_labels, generator=torch.Generator().manual_seed(0), epochs=4)
    x, y = data.test_images[:24], data.test_labels[:24]
    radii = certified_radius(model, x, y)
    flat, attacked = x.flatten(1), torch.tensor(radii.attacked)
    body = nn.Sequential(*list(model)[1:])
    right = torch.tensor(radii.right)
    low, high = torch.zeros(24), torch.full((24,), 3.0)
    for _ in range(10):
        middle = (low + high) / 2
        won = plain_pgd(body, flat, y, middle)
        low, high = torch.where(won, low, middle), torch.where(won, middle, high)
    assert (attacked[right] <= 1.01 * high[right].double()).all()
    assert attacked[right].mean() < 0.98 * high[right].mean()
    points = radii.curve(np.linspace(0, 1.2, 30))
    for before, after in itertools.pairwise(points):
        assert after.certified <= before.certified
        assert after.attacked <= before.attacked
    assert all(point.certified <= point.attacked for point in points)
    assert points[0].certified == radii.clean_accuracy > 0.8
    assert radii.certified_accuracy(0.05) > 0
    assert radii.attacked_accuracy(3.0) == 0


def test_the_attack_stays_where_no_class_can_win():
    layer = linear([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0])  # always the first class
    radii = certified_radius(layer, drawn(2, 2))
    assert radii.attacked == (math.inf, math.inf)
    assert radii.witness == (None, None)
    assert all(radius == math.inf for radius in radii.radius)


def test_logits_without_batching_rules_are_the_same_one_by_one(monkeypatch):
    work = Work(made(FAMILIES["attention"]), drawn(3, 16))
    rows = drawn(5, 16).double()
    quick = Logits(work.double)(rows)

    def refuse(*_):
        raise RuntimeError("no batching rule")

    monkeypatch.setattr(torch.func, "vmap", refuse)
    assert torch.allclose(Logits(work.double)(rows), quick)
    many = Logits(work.double)
    many.most = 2
    assert torch.allclose(many(rows), quick)


def test_the_attack_repeats_itself_and_stops_in_time():
    work = Work(made(FAMILIES["gelu"]), drawn(6, 16))
    search, exact, y = Logits(work.graph), Logits(work.double), work.model(drawn(6, 16)).argmax(1)
    first, second = (Attack(search, exact, work.graph.samples, y, seed=3).run() for _ in range(2))
    assert torch.equal(first.distance, second.distance)
    late = Attack(search, exact, work.graph.samples, y, deadline=0.0).run()
    assert (late.distance >= first.distance).all()


# ---- the search


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("start", [1e-2, 1.0, 1e3])
def test_the_search_finds_the_root_in_few_tests(power, start):
    true = torch.logspace(-2, 2, 40, dtype=torch.float64)
    gaps = torch.stack([torch.full_like(true, math.inf), torch.ones_like(true)], 1)
    rates = torch.stack([torch.zeros_like(true), (1 / true if power == 1 else 0 * true)], 1)

    def test(rows: Tensor, radius: Tensor) -> Tensor:
        return torch.stack([torch.full_like(radius, math.inf), 1 - (radius / true[rows]) ** power], 1)

    found = widest(test, gaps, rates, torch.full_like(true, start), torch.zeros_like(true), rtol=1e-2)
    assert found.settled.all()
    assert found.tests <= (7 if power == 1 else 30)
    assert (found.radius <= true).all()
    assert (found.radius >= true / 1.01).all()


def test_the_search_keeps_its_floor_and_gives_up_where_nothing_passes():
    one = torch.ones(2, dtype=torch.float64)
    gaps = torch.stack([one * math.inf, one], 1)
    floor = torch.tensor([0.0, 0.25], dtype=torch.float64)
    found = widest(
        lambda rows, radius: gaps.new_tensor([[math.inf, -math.inf]] * 2)[rows],
        gaps,
        gaps * 0 + 1,
        one,
        floor,
        rtol=1e-2,
    )
    assert found.radius.tolist() == [0.0, 0.25]
    assert found.settled.all()
    nan = widest(
        lambda rows, radius: gaps.new_full((len(rows), 2), math.nan), gaps, gaps * 0 + 1, one, floor, rtol=1e-2
    )
    assert nan.radius.tolist() == [0.0, 0.25]
    hurried = widest(lambda rows, r: gaps[rows], gaps, gaps * 0 + 1, one, floor, rtol=1e-2, until=lambda: True)
    assert hurried.tests == 3
    assert not hurried.settled.any()


def test_difference_constants_hold_and_beat_the_constant_of_the_output():
    model = made(FAMILIES["relu"])
    work = Work(model, drawn(2, 16))
    fast, tight = difference_constants(work), difference_constants(work, effort="tight")
    x = drawn(400, 16)
    step = 1e-2 * drawn(400, 16, seed=1)
    moved = (model.double()((x + step).double()) - model(x.double())).detach() / step.double().norm(dim=1, keepdim=True)
    steepest = (moved[:, :, None] - moved[:, None, :]).abs().amax(0)
    assert (steepest <= tight).all()
    assert (tight <= fast * (1 + 1e-6)).all()
    assert float(fast.max()) <= math.sqrt(2) * work.rungs()["best"].upper * (1 + 1e-9)
    assert float(fast[0, 1]) < math.sqrt(2) * work.rungs()["best"].upper


# ---- what may be passed


def test_batches_loaders_and_labels_left_out_give_the_same():
    model, x = made(FAMILIES["batch norm"]), drawn(4, 16)
    y = model(x).argmax(1)
    whole = certified_radius(model, x, attack=False)
    assert whole.label == whole.predicted == tuple(y.tolist())
    assert whole.attacked == (None,) * 4
    assert whole.attacked_accuracy(0.1) is whole.curve()[0].attacked is None
    assert "Under attack" not in str(whole).split("Certified:")[0]
    pairs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    for given in (pairs, (x, y), [x[:2], x[2:]], [{"input": x, "labels": y}]):
        radii = certified_radius(model, given, attack=False)
        assert radii.label == whole.label
        assert radii.radius == pytest.approx(whole.radius, rel=0.02)


class Several(nn.Module):
    """A model with two outputs, one of which is a row of class scores."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": x[:, :3], "map": x[:, None, :].repeat(1, 2, 1)}


class Masked(nn.Module):
    """A model whose second input is held constant."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


class Sinc(nn.Module):
    """An operator without a rule."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sinc(x)


class Branching(nn.Module):
    """What torch.export cannot trace."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.detach().sum()) > 0 else 2 * x


X = drawn(4, 5)
Y = torch.zeros(4, dtype=torch.int64)
NOT_FINITE = X.clone()
NOT_FINITE[1, 1] = math.nan

REFUSED = {
    "train mode": (nn.Linear(5, 3).train(), X, Y, {}, "train mode.*eval"),
    "one output": (nn.Linear(5, 1).eval(), X, Y, {}, "single output"),
    "a map": (nn.Unflatten(1, (5, 1)).eval(), X, Y, {}, "shape"),
    "samples that mix": (nn.Softmax(0).eval(), X, Y, {}, "single sample"),
    "float labels": (nn.Linear(5, 3).eval(), X, Y.float(), {}, "dtype"),
    "one-hot labels": (nn.Linear(5, 3).eval(), X, torch.eye(4, 3).long(), {}, "argmax"),
    "too few labels": (nn.Linear(5, 3).eval(), X, Y[:3], {}, "4 samples and 3 labels"),
    "a class too many": (nn.Linear(5, 3).eval(), X, Y + 3, {}, "label 3 is out of range"),
    "a negative class": (nn.Linear(5, 3).eval(), X, Y - 1, {}, "label -1"),
    "labels of text": (nn.Linear(5, 3).eval(), X, ["a", "b", "c", "d"], {}, "integers"),
    "NaN": (nn.Linear(5, 3).eval(), NOT_FINITE, Y, {}, "NaN"),
    "no batch": (nn.Linear(5, 3).eval(), [], None, {}, "no batch"),
    "no data": (nn.Linear(5, 3).eval(), 3, None, {}, "int"),
    "an unknown effort": (nn.Linear(5, 3).eval(), X, Y, {"effort": "exact"}, "effort"),
    "several outputs": (Several().eval(), X, Y, {}, "output"),
    "a wrong shape": (nn.Linear(5, 3).eval(), drawn(4, 6), Y, {}, "shapes"),
    "masks by sample": (Masked().eval(), {"x": X, "mask": torch.eye(4, 5)}, Y, {}, "one at a time"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_certified_is_refused_in_a_sentence(case):
    model, x, y, options, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        certified_radius(model, x, y, **options)
    assert "\n" not in str(caught.value)


def test_models_that_cannot_be_read_say_why():
    with pytest.raises(MissingRuleError, match="sinc"):
        certified_radius(Sinc().eval(), X)
    with pytest.raises(CaptureError, match="trace"):
        certified_radius(Branching().eval(), X)


def test_an_output_and_a_mode_can_be_chosen():
    assert certified_radius(Several().eval(), X, output="scores").classes == 3
    model = made(FAMILIES["batch norm"]).train()
    radii = certified_radius(model, drawn(2, 16), mode="eval")
    assert model.training
    assert all(radius > 0 for radius in radii.radius)


def test_the_model_is_left_as_found():
    model = made(FAMILIES["batch norm"])
    (model(drawn(2, 16)).sum()).backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    with torch.inference_mode():
        certified_radius(model, drawn(3, 16))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(a, b.grad) for a, b in zip(grads, model.parameters()))
    assert not model.training


def test_a_budget_ends_the_search_with_radii_that_hold():
    model, x = made(FAMILIES["layer norm"]), drawn(6, 16)
    free, short = certified_radius(model, x), certified_radius(model, [(x, None), (x, None)], max_seconds=0.0)
    assert free.converged
    assert free.advice is None
    assert not short.converged
    assert "max_seconds" in short.advice
    assert len(short) == 6
    assert "first 6 samples" in short.notes[0]
    assert all(0 < a <= 1.02 * b for a, b in zip(short.radius, free.radius))
    assert "did not end" in str(short)


def test_tight_reaches_further_than_fast():
    model, x = made(FAMILIES["relu"]), drawn(6, 16)
    fast, tight = (certified_radius(model, x, effort=effort, attack=False) for effort in ("fast", "tight"))
    assert all(b >= 0.98 * a for a, b in zip(fast.radius, tight.radius))


def test_an_audit_asks_for_radii_of_classifiers_alone():
    found = audited_radii(Work(made(FAMILIES["relu"]), drawn(20, 16)), samples=5)
    assert len(found) == 5
    assert found.label == found.predicted
    assert audited_radii(Work(nn.Linear(5, 1).eval(), X)) is None
    assert audited_radii(Work(nn.Linear(5, 3).train(), X)) is None
    assert audited_radii(Work(nn.Unflatten(1, (5, 1)).eval(), X)) is None


# ---- the result


def result(**changes) -> Radii:
    columns = {
        "label": (0, 1, 2), "predicted": (0, 1, 1), "margin": (1.0, 2.0, -1.0), "radius": (0.1, 0.25, 0.0),
        "attacked": (0.2, math.inf, 0.0), "method": ("ball", "global", "none"), "evidence": (Evidence.NUMERICAL,) * 3,
    }  # fmt: skip
    return Radii(**({"name": "net", "classes": 3, "input_shape": (2,), "notes": ("a note",)} | columns | changes))


def test_accuracies_by_radius():
    radii = result()
    assert radii.clean_accuracy == radii.certified_accuracy(0) == pytest.approx(2 / 3)
    assert [radii.certified_accuracy(r) for r in (0.1, 0.2, 0.25, 0.3)] == pytest.approx([2 / 3, 1 / 3, 1 / 3, 0])
    assert [radii.attacked_accuracy(r) for r in (0.1, 0.2, 9.0)] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    with pytest.raises(InputError, match="number >= 0"):
        radii.certified_accuracy(-1.0)
    assert repr(radii) == "<Radii of net: 3 samples, median certified radius 0.1>"


def test_a_radius_beyond_the_attacked_one_cannot_be_made():
    with pytest.raises(SoundnessError, match="sample 0"):
        result(radius=(0.2, 0.25, 0.0))
    with pytest.raises(ValueError, match="one entry"):
        result(label=(0, 1))


def test_radii_come_back_from_json(tmp_path):
    radii = result()
    radii.to_json(tmp_path / "r.json")
    again = Radii.from_json(tmp_path / "r.json")
    assert again == radii
    assert again.to_json() == json.loads((tmp_path / "r.json").read_text())


DAMAGED = {
    "no radii": {"type": "audit"},
    "another version": {"schema_version": 2},
    "a missing field": {"radius": None},
    "text for a number": {"radius": ["0.1", 0.2, 0.0]},
    "a truth value for a number": {"classes": True},
    "NaN": {"margin": [None, 1.0, 1.0]},
    "too few": {"label": [0]},
    "an unknown evidence": {"evidence": ["SURE", "PROVEN", "PROVEN"]},
    "a radius refuted": {"radius": [0.3, 0.25, 0.0]},
    "a negative radius": {"radius": [-0.1, 0.25, 0.0]},
    "provenance of numbers": {"provenance": {"torch": 2}},
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_radii_are_refused(case):
    with pytest.raises(InputError, match=r"radii|schema_version"):
        Radii.from_json(result().to_json() | DAMAGED[case])


def test_radii_show_themselves(tmp_path):
    radii = result(name="<script>alert(1)</script>")
    page = radii.to_html(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert page.count('<svg class="chart') == 1
    assert "under attack" in page
    assert "a note" in page
    assert "NUMERICAL" in radii._repr_html_()
    assert "33.3 %" in str(radii)
    frame = radii.to_pandas()
    assert list(frame["radius"]) == [0.1, 0.25, 0.0]
    assert list(frame["evidence"]) == ["NUMERICAL"] * 3
