"""What holds for the package as a whole."""

import inspect
import pkgutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import normscope as ns
import normscope_lab as lab
from normscope.bounds.graph import capturing
from normscope.core import budget

LATE = (
    "rich", "typer", "jinja2", "sklearn", "pandas", "transformers", "matplotlib", "scipy", "sympy", "networkx",
    "torch._dynamo", "torch._inductor", "torch.onnx",
)  # fmt: skip
"""What takes long to load and is not needed before something is measured."""


PACKAGES = [ns, lab]


@pytest.mark.slow
def test_importing_normscope_loads_nothing_that_can_wait_and_draws_no_random_numbers():
    code = f"""
import sys, torch
before = torch.random.get_rng_state()
import normscope, normscope.bounds.operators, normscope_lab
print([name for name in {LATE} if name in sys.modules], torch.equal(before, torch.random.get_rng_state()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


@pytest.mark.slow
def test_the_first_call_of_anything_draws_no_random_numbers():
    """What loads when it is first used, such as rich, may draw numbers while it loads: in a process of its own."""
    code = """
import random
import numpy, torch
from torch import nn
import normscope as ns
import normscope_lab as lab

model, batch = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(8, 3)

def state():
    return random.getstate(), str(numpy.random.get_state()), torch.random.get_rng_state().tolist()

def watched():
    from normscope.doctor.monitor.history import History
    from normscope.doctor.monitor.panel import Panel
    panel = Panel()
    panel._silent = False
    panel.update(History(), 0.01)
    panel.close()

calls = {"panel": watched, "check": lambda: ns.check(model, batch)}
calls["printed"] = lambda: str(found["check"])
calls["audit"] = lambda: ns.audit(model.eval(), batch)
calls["printed audit"] = lambda: str(found["audit"])
calls["page"] = lambda: found["audit"].to_html()
calls["table"] = lambda: found["audit"].to_pandas()
calls["json"] = lambda: found["audit"].to_json()
small = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).eval()
calls["tight"] = lambda: ns.lipschitz(small, torch.ones(1, 1), effort="tight", max_seconds=0.1)
found, changed = {}, []
for name, call in calls.items():
    before = state()
    found[name] = call()
    changed += [] if state() == before else [name]
print(changed)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class _ClockRead(Exception):
    """Ends a measurement as soon as its clock starts."""


@pytest.mark.parametrize(
    "measure", [ns.lipschitz, ns.ladder, ns.weight_sensitivity, ns.certified_radius, ns.audit], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(("limit", "warm"), [(60.0, 1), (None, 0)])
def test_torch_export_has_loaded_before_the_clock_of_a_limit_starts(monkeypatch, measure, limit, warm):
    """Its first call in a process takes seconds, which no limit is spent on."""
    warmed = []

    def started():
        raise _ClockRead

    monkeypatch.setattr(capturing, "_warm_up", lambda: warmed.append(1))
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=started))
    with pytest.raises(_ClockRead):
        measure(torch.nn.Linear(2, 3).eval(), torch.ones(2, 2), max_seconds=limit)
    assert len(warmed) == warm


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_no_front_door_name_is_shadowed_by_a_module(package):
    children = {found.name for found in pkgutil.iter_modules(package.__path__)}
    assert not children & set(package.__all__)
    assert not [name for name in package.__all__ if inspect.ismodule(getattr(package, name))]
