"""The population of healthy networks: a network leaves lines for its states, an error leaves its reason."""

import json

import torch
from torch import nn

from benchmarks.population import batches, merging
from benchmarks.population.measuring import Limits, measure
from benchmarks.population.networks import Network


def network(build, family="small", name="one"):
    return Network(package="here", family=family, name=name, build=build, batch_size=8)


def build():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    net(torch.zeros(2, 3, 8, 8))
    return net, lambda count, generator: batches.images(count, generator, size=8)


def test_a_network_is_measured_in_the_states_of_a_training():
    rows = list(measure(network(build), Limits(training_seconds=60.0)))
    assert [(row.get("state"), row.get("steps")) for row in rows] == [("fresh", 0), ("training", 20), ("trained", 200)]
    assert all(row["kind"] == "convolutional" and row["healthy"] and row["passes"] > 0.0 for row in rows)
    assert rows[-1]["last_loss"] < rows[0]["facts"]["class loss over blind"] * 2.4
    assert rows[0]["facts"]["values of a set"] == 8 * 6 * 6


def test_an_error_is_a_line_and_twins_count_once(tmp_path):
    def broken():
        raise RuntimeError("no\nsuch layer")

    (row,) = measure(network(broken, name="broken"), Limits())
    assert row["error"] == "build: RuntimeError: no such layer"
    (fresh, *_) = measure(network(build), Limits(training_seconds=0.0))
    twin = fresh | {"name": "twin"}
    (tmp_path / "shard-000-of-001.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (row, fresh, twin)))
    said = merging.merge(tmp_path)
    assert said.startswith("1 networks of 1 families, 1 states")
    assert "the same as here one" in said
    assert "build" in said


def test_a_family_is_whole_in_one_half_whatever_its_package_calls_it():
    halves = {network(build, family=family).half for family in ("mobilenet_v2", "MobileNetV2", "mobilenet-v2")}
    assert len(halves) == 1
    assert {network(build, family=f"family {k}").half for k in range(20)} == {"fit", "held-out"}
