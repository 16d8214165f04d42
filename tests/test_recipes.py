"""The recipes of CONTRIBUTING.md work: the code that stands there is run, registered as it says, and removed again.

What a test patches is what the recipe says is touched beside the file that holds the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.operators import registry
from normscope.bounds.trial import try_example
from normscope.core.errors import MissingRuleError
from normscope.doctor.checking import verdict
from normscope.doctor.monitor import quantities, step_measurement
from normscope.doctor.symptoms import registry as symptoms
from normscope_lab.experiments import registry as experiment_registry
from normscope_lab.experiments import theory
from normscope_lab.experiments.base import Verdict
from normscope_lab.experiments.reproducing import reproduce

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## Recipe: (.*?)\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL))
ASINH = torch.ops.aten.asinh.default


def code(name: str) -> SimpleNamespace:
    """Run the code of a recipe; return the names that it binds."""
    (block,) = re.findall(r"^```python\n(.*?)^```", RECIPES[name], re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(block, f"CONTRIBUTING.md, {name}", "exec", dont_inherit=True), found)
    return SimpleNamespace(**found)


def network() -> tuple[nn.Module, torch.Tensor]:
    """Return a small network with the operator of the first three recipes, and a batch."""

    class Asinh(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.asinh(x)

    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), Asinh(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model, torch.randn(2, 3, generator=generator)


@pytest.fixture
def known() -> Iterator[Callable[[str], SimpleNamespace]]:
    """Follow a recipe that registers the operator, and undo it at the end or before the next."""

    def follow(name: str) -> SimpleNamespace:
        registry._OPERATORS.pop(ASINH, None)
        return code(name)

    yield follow
    registry._OPERATORS.pop(ASINH, None)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_truly_how_many_files_it_touches(name):
    """As many as it names, and all of them exist."""
    sentence = r"^Touches (\d) source files?: (.*?)\n\n"
    ((count, said),) = re.findall(sentence, RECIPES[name], re.MULTILINE | re.DOTALL)
    named = re.findall(r"`((?:src|tools)/[^`]*)`", said)
    assert len(named) == int(count)
    assert all((ROOT / path).exists() for path in named)


def test_every_recipe_is_run():
    run = re.findall(r'(?:code|known)\("(.*?)"\)', Path(__file__).read_text(encoding="utf-8"))
    assert set(run) == set(RECIPES)
    assert len(RECIPES) == 8


@pytest.mark.slow
def test_a_rule(known):
    known("a rule for an operator")
    model, batch = network()
    bracket = ns.lipschitz(model, batch)
    first, last = (torch.linalg.matrix_norm(model[i].weight.detach(), 2).item() for i in (0, 2))
    assert 0.0 < bracket.lower <= bracket.upper <= 1.001 * first * last
    (found,) = [one for one in registry.operators() if one.op is ASINH]
    assert found.summary.startswith("Inverse hyperbolic sine")
    assert (found.near, found.proof) == ("gain alone", "opaque")
    assert all(try_example(example, steps=20).log10_uppers["best"] <= 1e-9 for example in found.examples)


def test_without_the_rule_its_operator_is_missing():
    with pytest.raises(MissingRuleError, match="asinh"):
        ns.lipschitz(*network())


def over_balls() -> ns.Bracket:
    model, batch = network()
    found = ns.lipschitz(model, batch, scope="ball", radius=0.05)
    points = torch.func.vmap(torch.func.jacrev(model))(batch)
    norms = torch.linalg.matrix_norm(points, 2).log10().tolist()
    assert all(norm <= bound.log10_upper for norm, bound in zip(norms, found.per_sample, strict=True))
    return found


@pytest.mark.slow
def test_a_ball_rule(known):
    known("a rule for an operator")
    before = over_balls()
    known("a ball rule")
    after = over_balls()
    for looser, tighter in zip(before.per_sample, after.per_sample, strict=True):
        assert tighter.log10_upper < looser.log10_upper - 1e-3
        assert tighter.log10_upper >= max(tighter.log10_lower, looser.log10_lower)


@pytest.fixture
def checker(monkeypatch, tmp_path) -> Iterator[Callable[[], str]]:
    """What the checker says of the upper side of the network's proof; it knows no new function at the end."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "verify"))
    from normscope_verify import claims, functions

    def upper() -> str:
        ns.lipschitz(*network()).save(tmp_path / "proof.npz")
        return next(one.status for one in claims.check(str(tmp_path / "proof.npz")) if "<=" in one.what)

    yield upper
    functions.FUNCTIONS.pop("asinh", None)


@pytest.mark.slow
def test_a_proof_step(known, checker):
    known("a rule for an operator")
    assert checker() != "VERIFIED"
    known("a proof step")
    assert checker() == "VERIFIED"


@pytest.mark.slow
def test_a_complete_activation(known, checker):
    """One call: bounds over all inputs, slopes over balls, and a word that the checker, once taught it, verifies."""
    known("a ball rule")
    balls = over_balls()
    known("a complete activation")
    assert checker() == "NOT RE-VERIFIED"  # a word that the checker was not taught is not followed
    known("a proof step")  # teaches it
    known("a complete activation")
    (found,) = [one for one in registry.operators() if one.op is ASINH]
    assert (found.near, found.proof) == ("steps", "word")
    assert [one.log10_upper for one in over_balls().per_sample] == [one.log10_upper for one in balls.per_sample]
    assert checker() == "VERIFIED"


def test_a_watched_quantity(monkeypatch):
    probe, (model, batch) = code("a watched quantity").LargestGradient, network()
    model = nn.Sequential(model[0], nn.Tanh(), model[2])
    monkeypatch.setattr(step_measurement, "PROBES", (*step_measurement.PROBES, probe))
    monkeypatch.setitem(quantities.DECLARED, ("network", "largest_gradient"), probe.quantities[0])
    step_measurement._probes_told.cache_clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ns.watch(model, optimizer, every=1, panel=False) as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    step_measurement._probes_told.cache_clear()
    last = run.history.records[-1].total_of("largest_gradient")
    assert last == pytest.approx(max(float(p.grad.abs().max()) for p in model.parameters()), rel=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("sign", "raised"), [(-1.0, ["negative-loss"]), (1.0, [])])
def test_a_symptom(sign, raised, monkeypatch):
    symptom, (model, batch) = code("a symptom"), network()
    model.train()
    monkeypatch.setattr(symptoms, "RULES", (*symptoms.RULES, symptom.RULE))
    monkeypatch.setitem(symptoms.FINDING_WORDS, "negative-loss", symptom.FINDING_WORDS["negative-loss"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with ns.watch(model, optimizer, every=1, panel=False) as run:
        for _ in range(3):
            optimizer.zero_grad()
            loss = sign * model(batch).square().mean()
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    assert [finding.code for finding in run.findings] == raised
    checked = ns.check(model, batch, loss=lambda output: sign * output.square().mean())
    seen = [one for one in checked.findings if one.code == "negative-loss"]
    assert [one.code for one in seen] == raised
    if seen:
        assert verdict.clause(seen) == "the loss is below zero"


def test_a_page(monkeypatch):
    page = code("a page")
    monkeypatch.setitem(sys.modules, "normscope.bounds.pages.counted", page)
    found = page.Counted(layers=3)
    assert "The model has 3 layers." in str(found)
    assert "The model has 3 layers." in found.to_html()


def test_an_experiment(monkeypatch):
    experiment = code("an experiment").SQUARES
    monkeypatch.setattr(theory, "EXPERIMENTS", (*theory.EXPERIMENTS, experiment))
    experiment_registry.registered.cache_clear()
    try:
        (done,) = reproduce(["toy.squares"], workers=0).items
        assert [(claim.id, claim.verdict) for claim in done.claims] == [("toy.squares", Verdict.HOLDS)]
        assert experiment.claims[0].judge({"off": 1.0}).verdict is Verdict.FAILS
    finally:
        experiment_registry.registered.cache_clear()
