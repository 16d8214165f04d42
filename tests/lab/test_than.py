"""Than's figures: the networks, runs that go on, figures against their definitions, and what claims make of curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from normscope_lab.experiments.base import Job, Verdict
from normscope_lab.experiments.claims import stored
from normscope_lab.experiments.than import decay_seeds
from normscope_lab.experiments.than.figures import FIGURE1, FIGURE2, FIGURE3
from normscope_lab.experiments.than.watched_training import CHECKPOINT, input_variances, matrix_norms, measure
from normscope_lab.experiments.vision import efficientnet, relu_network, resnet18

TINY: dict[str, Any] = dict(FIGURE1.quick) | {"epochs": 2, "depth": 4, "width": 8, "keep_every": 1, "reshape_every": 1}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class TestNetworks:
    @pytest.mark.slow
    def test_sizes_are_the_published_ones(self) -> None:
        resnet = resnet18(3, generator=torch.Generator("cpu"))
        assert sum(p.numel() for p in resnet.parameters()) == 11_173_962
        assert sum(isinstance(m, nn.BatchNorm2d) for m in resnet.modules()) == 20
        efficient = efficientnet(3, generator=torch.Generator("cpu"))  # 12,233,232 with 1,000 classes
        assert sum(p.numel() for p in efficient.parameters()) == 12_233_232 - 1000 * 1537 + 10 * 1537


class TestProbes:
    def test_variances_are_those_of_the_batch_and_the_model_is_left_alone(self) -> None:
        network = relu_network((1, 8, 8), generator=generator(), depth=3, width=5, batch_norm=True)
        batch = torch.rand(16, 1, 8, 8, generator=generator())
        before = {name: value.clone() for name, value in network.state_dict().items()}
        found = input_variances(network, batch)
        assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
        by_hand = network.linear1(batch.flatten(1)).double().var(0, correction=0)
        assert found["variance"][0] == pytest.approx(by_hand.mean().log10().item())
        inverse = (by_hand + network.norm1.eps).rsqrt()
        assert found["inverse"][0] == pytest.approx(inverse.max().log10().item())
        assert found["inverse_l2"][0] == pytest.approx(inverse.norm().log10().item())

    def test_norms_are_those_of_the_reshaped_kernel_also_of_tiny_ones(self) -> None:
        layer = nn.Conv2d(3, 4, 3)
        with torch.no_grad():
            layer.weight *= 1e-30
        found = matrix_norms(nn.Sequential(layer), reshaped=True)
        kernel = layer.weight.detach().flatten(1).double()
        assert found["reshaped"][0] == pytest.approx(torch.linalg.matrix_norm(kernel, 2).log10().item())
        assert found["frobenius"][0] == pytest.approx(kernel.norm().log10().item())


class TestRuns:
    @pytest.mark.slow
    def test_a_run_that_was_ended_goes_on_to_the_same_curves(self, tmp_path: Path) -> None:
        whole = measure(TINY, Job("relu_bn coupled"), tmp_path / "whole")
        measure({**TINY, "epochs": 1}, Job("relu_bn coupled"), tmp_path / "parts")
        assert (tmp_path / "parts" / CHECKPOINT).exists()
        parts = measure(TINY, Job("relu_bn coupled"), tmp_path / "parts")
        for name in ("epochs", "frobenius", "variance", "loss", "train_accuracy", "done"):
            assert parts[name] == whole[name], name
        assert whole["done"] == 2
        assert len(whole["train_accuracy"]) == 2
        assert len(whole["variance"]) == 3
        assert [record.step for record in ns.Run(tmp_path / "whole" / "log").records] == [0, 5]

    @pytest.mark.slow
    def test_operator_norms_come_from_the_watched_run_and_agree_with_the_matrix(self, tmp_path: Path) -> None:
        found = measure(TINY, Job("relu none"), tmp_path)
        assert [epoch for epoch, _ in found["operator"]] == [0.0, 1.0]
        _, reshaped = found["reshaped"][1]
        for shown, exact in zip(found["operator"][1][1], reshaped):
            assert shown is None or shown == pytest.approx(exact, abs=0.02)


Row = list[float]


def curves(network: str, decay: str, *, variance: list[Row], operator: float, kernels: float = 1.0) -> dict[str, Any]:
    """Return what a run of two layers might have measured."""
    epochs = list(range(len(variance)))
    same = [[-value / 2 for value in row] for row in variance]
    return {
        "network": network,
        "decay": decay,
        "data": "made up",
        "precision": "float32",
        "done": len(epochs) - 1,
        "layers": ["a", "b"],
        "sites": [f"s{k}" for k in range(len(variance[0]))],
        "epochs": epochs,
        "variance": variance,
        **dict.fromkeys(("inverse", "inverse_l2", "gain", "gain_l2"), same),
        "frobenius": [[0.1 * e + kernels, 0.1 * e + kernels] for e in epochs],
        "reshaped": [[e, [0.1 * e + kernels, 0.1 * e + kernels]] for e in epochs],
        "operator": [[0.0, [0.2, 0.2]], [1.0, [operator, None]], [2.0, [None, operator]]],
        "printed": [[0.0, 0.4], [2.0, 2 * operator]],
        "folded": [],
        "findings": [],
        "loss": [1.0],
        "train_accuracy": [0.99],
        "test_accuracy": [[0, 0.1], [1, 0.8]],
    }


def runs(**changes: Any) -> dict[Job, dict[str, Any]]:
    """Return three runs of ResNet18 and of the ReLU network in which everything is as the paper has it."""
    rows = [[-1.0 + 0.55 * e] * 20 for e in range(5)]
    held = {"variance": rows, "operator": 25.0, "kernels": 24.6}
    return {
        Job(f"{network} {decay}"): curves(network, decay, **(held | changes.get(decay, {})))
        for network in ("relu", "resnet18")
        for decay in ("coupled", "none", "decoupled")
    }


def verdicts(measured: dict[Job, dict[str, Any]]) -> dict[str, Verdict]:
    return {
        claim.id: claim.judge(one.figures({"epochs": 4}, measured))[0]
        for one in (FIGURE1, FIGURE2)
        for claim in one.claims
    }


class TestClaims:
    def test_curves_like_the_papers_bear_it_out(self) -> None:
        found = verdicts(runs())
        others = {name for name, verdict in found.items() if verdict != Verdict.HOLDS}
        assert others == {"than.figure2.product", "than.slides.product"}  # 20 layers of 10^1.2: 10^-12 and 10^-24
        assert found["than.figure2.product"] == Verdict.CONVENTION

    def test_products_are_those_of_their_definitions(self) -> None:
        found = FIGURE1.figures({"epochs": 4}, runs())
        run = "resnet18.none"  # 20 layers whose mean variance is 10^1.2 in the end
        assert found[f"{run}.log10_reduction_sigma"] == pytest.approx(-20 * 1.2 / 2)
        assert found[f"{run}.log10_reduction_variance"] == pytest.approx(-20 * 1.2)
        assert found[f"{run}.epoch_slides_sigma"] == 4.0  # -6.5 after three epochs, -12 after four
        assert found[f"{run}.log10_product_operator"] == pytest.approx(2 * 25.0)

    def test_runs_that_came_less_than_half_of_their_way_decide_nothing_about_the_end(self) -> None:
        settings = {**FIGURE1.full, "epochs": 9}
        found = FIGURE1.figures(settings, runs())
        by_id = {claim.id: claim.judge(found).verdict for one in (FIGURE1, FIGURE2) for claim in one.claims}
        assert by_id.pop("than.figure2.start") == Verdict.HOLDS
        assert set(by_id.values()) == {Verdict.NOT_TESTABLE}

    def test_a_figure_of_the_untrained_network_is_not_one_after_training(self) -> None:
        measured = runs()
        for run in measured.values():
            run |= {"test_accuracy": [[0, 0.1]], "reshaped": run["reshaped"][:1], "operator": run["operator"][:2]}
        found = FIGURE1.figures({"epochs": 4}, measured)
        assert not [name for name in found if "test_accuracy" in name or "reshaped" in name or "operator" in name]
        norms, product, accuracy = (claim.judge(found) for claim in FIGURE1.claims)
        assert {row[0] for row in norms.table[1:]} == {
            f"{name}, frobenius norms" for name in ("ReLU network", "ResNet18")
        }
        assert [row[0] for row in product.table[1:]] == ["frobenius norms"]
        assert accuracy.table[1][1] == "99.0 % in training and test not measured of the trained network"
        [table] = [block for block in FIGURE1.draw({"epochs": 4}, measured) if block.title == "Runs"]
        shown = dict(zip((column.title for column in table.columns), table.rows[0]))  # type: ignore[union-attr]
        assert shown["test"] is shown["product, operator"] is shown["product, reshaped"] is None
        assert shown["test and reshaped norms of epoch"] == ""

    def test_a_figure_from_before_the_last_epoch_names_its_epoch(self) -> None:
        measured = runs()
        found = FIGURE1.figures({"epochs": 4}, measured)
        norms, product, accuracy = (claim.judge(found) for claim in FIGURE1.claims)
        assert norms.table[1][1].endswith(" at epochs 1 to 2")  # the layers were measured in turn, the run has 4 epochs
        assert product.table[1][1].endswith(" at epochs 1 to 2")
        assert product.table[2][1] == "10^50.00"  # reshaped norms, of the last epoch
        assert accuracy.table[1][1].endswith("80.0 % in test at epoch 1")

    def test_stored_runs_of_efficientnet_say_which_epoch_each_figure_is_of(self) -> None:
        result = stored(FIGURE3)
        assert result is not None
        for curves in result.measured.values():
            run, tested = f"efficientnet_b3.{curves['decay']}", curves["test_accuracy"][-1]
            if tested[0] == 0:
                assert f"{run}.test_accuracy" not in result.figures
            else:
                assert result.figures[f"{run}.test_accuracy_epoch"] == tested[0] < curves["done"]
        by_id = {claim.id: claim for claim in result.claims}
        assert "after 39 (L2), 2 (AdamW), 2 (no decay) epochs" in by_id["than.figure3.norms"].evidence
        reshaped = by_id["than.figure3.norms"].table[2]
        assert reshaped[1].endswith(" at epoch 35")
        assert reshaped[2:] == ("not measured of the trained network",) * 2


class TestSeeds:
    def test_a_run_without_a_watch_trains_as_the_watched_one(self, tmp_path: Path) -> None:
        job, settings = Job("relu_bn coupled", 1), TINY | {"images": 256}
        watched, lean = measure(settings, job, tmp_path), decay_seeds.measure(settings, job, None)
        assert lean["variance"] == pytest.approx([sum(row) for row in watched["variance"]], abs=2e-3)
        assert lean["loss"] == pytest.approx(watched["loss"], rel=1e-3)
        assert lean["train_accuracy"] == pytest.approx(watched["train_accuracy"], abs=1e-4)

    @staticmethod
    def judged(ends: dict[str, float], *, seeds: int = 6) -> Verdict:
        """Judge runs whose product of variances goes to 10 in the first of five epochs, and then to its end."""
        runs = {}
        for decay, end in ends.items():
            for seed in range(seeds):
                course = [0.0, 1.0, *(1.0 + (end - 1.0) * step / 4 + seed / 100 for step in range(1, 5))]
                losses = [1.0] * 5
                entry = {"network": "resnet18", "decay": decay, "variance": course, "loss": losses}
                runs[Job(f"resnet18 {decay}", seed)] = entry | {"train_accuracy": losses}
        figures = decay_seeds.figures(decay_seeds.FULL, runs)
        assert figures["resnet18.later"] == 1.0
        return decay_seeds.goes_on(figures).verdict

    def test_an_arm_whose_decay_is_next_to_none_is_said_to_be_so(self) -> None:
        result = stored(decay_seeds.DECAY_SEEDS)
        assert result is not None
        weight = 1.0
        for _ in range(100 * 390):  # the steps of 100 epochs in batches of 128, as AdamW decays in each
            weight -= 1e-3 * 1e-4 * weight
        assert result.figures["decoupled_shrinkage"] == pytest.approx(1.0 - weight, rel=1e-6)
        [claim] = result.claims
        assert "AdamW's decay by itself shortens the weights by 0.39 % in a whole run" in claim.evidence
        assert "do not separate the strength of a decay from the place where it acts" in claim.evidence

    def test_the_claim_is_judged_by_every_kind_of_decay_and_by_six_seeds(self) -> None:
        assert self.judged({"coupled": 3.0, "none": 3.0, "decoupled": 3.0}) is Verdict.HOLDS
        assert self.judged({"coupled": -3.0, "none": 3.0, "decoupled": 3.0}) is Verdict.CONVENTION
        assert self.judged({"coupled": -3.0, "none": -3.0, "decoupled": -3.0}) is Verdict.FAILS
        assert self.judged({"coupled": 3.0, "none": 3.0, "decoupled": 3.0}, seeds=5) is Verdict.NOT_TESTABLE
