"""Choosing a normalizer: runs, failures, the ledger, resuming, and what is recommended."""

import importlib
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.choosing import choose as choosing
from normscope.choosing import engines
from normscope.choosing.choice import RunOutcome
from normscope.choosing.choose import train_run
from normscope.choosing.ledger import RUNS
from normscope.choosing.task import TrainingRun, gather
from normscope.core.errors import InputError

from .networks import build, data

QUICK = {"batch_sizes": (8,), "learning_rates": (0.05,), "seeds": 1, "steps": 4, "workers": 0, "capacity": False}
LOSS = {"loss": "cross_entropy"}


@pytest.fixture
def hurried(monkeypatch):
    """Runs without the measurements beside the training, which take longer than a few steps."""
    monkeypatch.setattr(choosing, "_stable", lambda *given: 0.5)
    monkeypatch.setattr(choosing, "_checked", lambda *given: set())


def quick(model=build, loader=None, **given):
    return ns.choose(model, loader or data(), **{**QUICK, **LOSS, **given})


def outcome(normalizer, loss, *, seed=0, size=8, lr=0.1, status="trained", **figures):
    run = TrainingRun(normalizer=normalizer, batch_size=size, lr=lr, seed=seed)
    return RunOutcome(run=run, status=status, loss=loss, steps=10, **figures)


def choice(*outcomes):
    return ns.Choice(name="net", outcomes=outcomes, settings={"steps": 10, "momentum": 0.9})


@pytest.mark.slow
def test_every_twin_is_run_and_what_cannot_be_is_recorded_with_the_reason(monkeypatch):
    monkeypatch.setattr(choosing, "TRIAL_STEPS", 1)
    found = quick(steps=2)
    assert [one.run.normalizer for one in found.outcomes] == ["none", "batch", "layer", "group", "instance", "rms"]
    refused = found.cell("instance", 8)
    assert refused.status == "refused"
    assert "sets of 1 entry" in refused.outcomes[0].reason
    assert all(one.loss is not None for one in found.outcomes if one.status != "refused")
    assert found.cell("batch", 8).outcomes[0].noise_law == pytest.approx(math.sqrt(2 / 7))
    assert found.cell("layer", 8).first("stable_lr") > 0.0
    text = str(found)
    assert "What did not run" in text
    assert "InstanceNorm" in text


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_a_trained_run_has_its_capacity_and_data_is_at_most_the_largest():
    given = {"normalizers": ("layer",), "learning_rates": (0.1,), "steps": 60, "capacity": True, "batch_sizes": (16,)}
    (one,) = quick(loader=data(400), **given).outcomes
    assert one.status == "trained"
    assert one.log10_data <= one.log10_observed + 1e-9
    assert one.accuracy > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_the_same_call_gives_the_same_losses_and_leaves_everything_as_found():
    model = build()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.random.get_rng_state()
    given = {"normalizers": ("batch", "none")}
    losses = [[one.loss for one in quick(model, **given).outcomes] for _ in range(2)]
    assert losses[0] == losses[1]
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not [m for m in model.modules() if m._forward_hooks]


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.left = build(), 4

    def forward(self, x):
        if self.training and isinstance(self.body[1], nn.LayerNorm):
            raise ValueError("no LayerNorm here")
        return self.body(x)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_a_run_that_raises_is_recorded_and_the_others_go_on():
    found = quick(Raises(), normalizers=("layer", "group"))
    assert found.outcomes[0].status == "failed"
    assert "no LayerNorm here" in found.outcomes[0].reason
    assert found.outcomes[1].status in ("trained", "not trained")


class Stop(Exception):
    """Ends a choice in its midst."""


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_a_choice_that_was_ended_goes_on_and_loses_no_finished_run(tmp_path, monkeypatch):
    ran = []

    def counted(task, run, *, first, stop=None):
        if stop is not None and len(ran) >= stop:
            raise Stop
        ran.append(run.key)
        return train_run(task, run, first=first)

    kinds = {"folder": tmp_path, "normalizers": ("none", "layer", "group")}
    monkeypatch.setattr(choosing, "train_run", lambda *a, **k: counted(*a, **k, stop=2))
    with pytest.raises(Stop):
        quick(**kinds)
    lines = (tmp_path / RUNS).read_text().splitlines()
    assert [RunOutcome.from_json(json.loads(line)).run.key for line in lines] == ran
    with (tmp_path / RUNS).open("a") as file:
        file.write(lines[0][: len(lines[0]) // 2])  # killed while it wrote
    monkeypatch.setattr(choosing, "train_run", counted)
    found = quick(**kinds)
    assert len(ran) == len(set(ran)) == 3
    assert len((tmp_path / RUNS).read_text().splitlines()) == 3
    ran.clear()
    assert quick(**kinds).to_json() == found.to_json()
    assert not ran
    quick(**kinds, seeds=2)
    assert len(ran) == 3


@pytest.mark.usefixtures("hurried")
def test_a_folder_of_another_choice_or_a_damaged_one_is_refused(tmp_path):
    quick(folder=tmp_path, normalizers=("none",))
    with pytest.raises(InputError, match=r"other settings \(of steps\)"):
        quick(folder=tmp_path, normalizers=("none",), steps=13)
    path = tmp_path / RUNS
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(InputError, match="line 1"):
        quick(folder=tmp_path, normalizers=("none",))


def test_the_recommendation_quotes_its_figures_and_how_sure_it_is():
    clear = choice(
        *(outcome("layer", loss, seed=k) for k, loss in enumerate((0.10, 0.11, 0.12))),
        *(outcome("batch", loss, seed=k) for k, loss in enumerate((0.50, 0.51, 0.53))),
        *(outcome("none", 2.3, seed=k, status="not trained") for k in range(3)),
    )
    assert clear.best.normalizer == "layer"
    assert "Use LayerNorm with batches of 8 and a learning rate of 0.1" in clear.recommendation
    assert "0.11 ± 0.025" in clear.recommendation
    assert "more than chance" in clear.recommendation
    assert "BatchNorm, the next, has 0.513" in clear.recommendation
    close = choice(
        *(outcome("layer", loss, seed=k) for k, loss in enumerate((0.10, 0.50))),
        *(outcome("batch", loss, seed=k) for k, loss in enumerate((0.45, 0.20))),
    )
    assert "cannot tell the two apart" in close.recommendation
    alone = choice(outcome("layer", 0.1), outcome("batch", 0.2))
    assert "One seed says nothing about chance" in alone.recommendation
    assert "Nothing can be recommended" in choice(outcome("none", 2.3, status="not trained")).recommendation
    assert "train; plain at no learning rate that was tried" in " ".join(str(clear).split())


def test_the_best_learning_rate_is_that_of_the_mean_and_all_seeds_must_train():
    found = choice(
        outcome("layer", 0.1, seed=0, lr=0.1), outcome("layer", 2.3, seed=1, lr=0.1, status="not trained"),
        outcome("layer", 0.3, seed=0, lr=0.01), outcome("layer", 0.3, seed=1, lr=0.01),
        outcome("batch", 0.2, seed=0, lr=0.1), outcome("batch", 2.3, seed=1, lr=0.1, status="not trained"),
    )  # fmt: skip
    assert found.cell("layer", 8).lr == 0.01
    assert found.cell("batch", 8).status == "1 of 2 seeds"
    assert found.best.normalizer == "layer"
    diverged = choice(outcome("layer", None, status="diverged", lr=1.0), outcome("layer", 0.5, lr=0.1))
    assert diverged.cell("layer", 8).lr == 0.1


def test_a_loader_is_taken_apart_and_put_together_anew():
    x, y = data(50)
    held = gather(
        build(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7), own_loss=False
    )
    assert (held.count, held.held_out) == (50, 10)
    batches = list(held.steps(16, 5, seed=0))
    assert [batch.samples for batch in batches] == [16] * 5
    tests = held.tests.call.args[0]
    rows = {tuple(row.tolist()) for row in tests}
    assert not any(tuple(row.tolist()) in rows for batch in batches for row in batch.call.args[0])
    assert torch.equal(gather(build(), [(x, y)], own_loss=False, samples=20).call.args[0], x[:20])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"normalizers": ("spectral",)}, "normalizers are some of"),
        ({"batch_sizes": (0,)}, "batch_sizes"),
        ({"batch_sizes": (1000,)}, "too few for batches of 1000"),
        ({"momentum": 1.0}, "momentum"),
        ({"engine": "slurm"}, "engine is"),
        ({"model": 3}, "pass a torch.nn.Module"),
        ({"loss": "unknown"}, "loss is 'unknown'"),
    ],
)
def test_options_that_are_none_are_refused(given, reason):
    with pytest.raises(InputError, match=reason):
        quick(**given)


@pytest.mark.usefixtures("hurried")
def test_a_model_that_cannot_travel_runs_here_and_says_so():
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = build()

        def forward(self, x):
            return self.body(x)

    found = quick(Local(), normalizers=("none",), workers=2)
    assert "one process" in found.notes[-1]
    with pytest.raises(InputError, match="cannot be sent to a cluster"):
        quick(Local(), normalizers=("none",), engine="ray")


def test_a_job_whose_process_dies_twice_is_a_failure_and_the_others_are_done(monkeypatch):
    class Work:
        local = False

        def do(self, job):
            return job, "done"

        def failed(self, job, reason):
            return job, reason

    def pooled(work, jobs, workers):
        for job in jobs:
            if job == "b":
                raise BrokenProcessPool
            yield job, work.do(job)

    monkeypatch.setattr(engines, "_pooled", pooled)
    assert dict(engines.processes(Work(), ["a", "b", "c"], 2)) == {"a": "done", "b": engines.DIED, "c": "done"}


@pytest.mark.slow
def test_a_script_without_a_guard_has_its_processes(tmp_path):
    (tmp_path / "net.py").write_text(Path(__file__).with_name("networks.py").read_text())
    script = tmp_path / "script.py"
    given = {**QUICK, **LOSS, "normalizers": ("none", "layer"), "workers": 2}
    script.write_text(f"import net, normscope as ns\nprint(ns.choose(net.build, net.data(), **{given!r}).notes)\n")
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.stdout.count("()") == 1, ran.stderr


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """The networks of these tests as a module that other processes find."""
    (tmp_path / "networks_to_choose.py").write_text(Path(__file__).with_name("networks.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("networks_to_choose")


@pytest.mark.slow
def test_processes_give_what_one_process_gives_and_one_that_dies_is_recorded(importable):
    kinds = {"normalizers": ("none", "group"), "seeds": 2}
    one, many = quick(importable.build, **kinds), quick(importable.build, **kinds, workers=2)
    assert [o.loss for o in one.outcomes] == [o.loss for o in many.outcomes]
    found = quick(importable.Dies(), normalizers=("none", "layer", "group"), workers=2)
    status = {o.run.normalizer: o.status for o in found.outcomes}
    assert status["layer"] == "failed"
    assert "died" in found.cell("layer", 8).outcomes[0].reason
    assert "failed" not in (status["none"], status["group"])


@pytest.mark.slow
def test_killed_and_begun_again_nothing_that_was_finished_is_lost(tmp_path):
    (tmp_path / "net.py").write_text(Path(__file__).with_name("networks.py").read_text())
    command = [sys.executable, "-m", "normscope", "choose", "net.py:build", "--data", "net.py:batches",
               "--batch-sizes", "8,16", "--steps", "40", "--folder", "runs", "--workers", "2",
               "--no-capacity"]  # fmt: skip
    with (tmp_path / "net.py").open("a") as file:
        file.write("\nbatches = [data()]\n")
    place = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(Path(ns.__file__).parents[1])}}
    process = subprocess.Popen(command, **place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = tmp_path / "runs" / RUNS
    for _ in range(1200):
        assert process.poll() is None
        if path.exists() and len(path.read_text().splitlines()) >= 5:
            break
        time.sleep(0.1)
    workers = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    process.kill()
    process.wait()
    for _ in range(100):
        left = [pid for pid in workers.split() if Path(f"/proc/{pid}").exists()]
        if not left:
            break
        time.sleep(0.1)
    assert workers.split()
    assert not left  # nor is a process left behind
    before = path.read_text().splitlines(keepends=True)
    finished = [line for line in before if line.endswith("\n")]
    assert 5 <= len(finished) < 72
    done = subprocess.run(command, **place, capture_output=True, text=True, check=True)
    after = path.read_text().splitlines(keepends=True)
    assert after[: len(finished)] == finished
    keys = [RunOutcome.from_json(json.loads(line)).run.key for line in after]
    assert len(keys) == len(set(keys)) == 72
    assert "By batch size" in done.stdout


@pytest.mark.slow
def test_a_local_ray_cluster_gives_the_same(importable):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'normscope[ray]'")
    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    ray.init(num_cpus=2, log_to_driver=False, runtime_env=paths)
    try:
        kinds = {"normalizers": ("none", "layer", "instance")}
        cluster, one = quick(importable.build, **kinds, engine="ray"), quick(importable.build, **kinds)
        assert [o.loss for o in cluster.outcomes] == [o.loss for o in one.outcomes]
    finally:
        ray.shutdown()
