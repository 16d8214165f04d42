"""The callback in the real Trainer of transformers: the same figures as in a plain loop, and the same training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.doctor.monitor.log import read_log
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.watching import watch

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from normscope.doctor.monitor.callbacks.huggingface import NormscopeCallback

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


def small() -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def data(count: int, size: int = 4) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(32, (8,), generator=generator), "labels": torch.randint(3, (), generator=generator)}
        for _ in range(count * size)
    ]


class Keeping(Trainer):
    """Keeps the losses; takes the data in order."""

    losses: list[float]

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self.losses:
            torch.manual_seed(3)  # the loader has drawn from it
        loss = super().training_step(*args, **kwargs)
        self.losses.append(float(loss))
        return loss


def trainer(callback: Any, folder: Path, *, steps: int, kind: type[Keeping] = Keeping, **options: Any) -> Keeping:
    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=True, per_device_train_batch_size=4, report_to=[], disable_tqdm=True,
        optim="sgd", learning_rate=0.05, lr_scheduler_type="constant", max_grad_norm=0.0, seed=3,
        **{"save_strategy": "no", "logging_strategy": "no", "max_steps": steps, **options},
    )  # fmt: skip
    made = kind(small(), arguments, train_dataset=data(40), callbacks=[] if callback is None else [callback])
    made.losses = []
    return made


def looped(steps: int, every: int) -> tuple[Record, ...]:
    """The same training as a plain loop."""
    model = small().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    examples = data(40)
    torch.manual_seed(3)
    with watch(model, optimizer, every=every) as run:
        for step in range(steps):
            batch = {key: torch.stack([e[key] for e in examples[4 * step : 4 * step + 4]]) for key in examples[0]}
            loss = model(**batch).loss
            loss.backward()
            run.observe(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    return run.records


def assert_same(found: tuple[Record, ...], expected: tuple[Record, ...]) -> None:
    assert [record.step for record in found] == [record.step for record in expected]
    assert found
    for one, two in zip(found, expected, strict=True):
        for kind, table in two.values.items():
            for quantity in table:
                assert one.of(kind, quantity) == pytest.approx(table[quantity], abs=1e-4), (kind, quantity)
        assert one.total["log10_gradient"] == pytest.approx(two.total["log10_gradient"], abs=1e-4)
        assert one.loss == pytest.approx(two.loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_the_same_and_measured_like_a_loop(accumulate: int, tmp_path: Path) -> None:
    alone = trainer(None, tmp_path, steps=5, gradient_accumulation_steps=accumulate)
    alone.train()
    callback = NormscopeCallback(every=2)
    watched = trainer(callback, tmp_path, steps=5, gradient_accumulation_steps=accumulate)
    watched.train()
    assert watched.losses == alone.losses
    for (name, one), two in zip(alone.model.state_dict().items(), watched.model.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in watched.model.modules())
    steps = [sum(watched.losses[at : at + accumulate]) for at in range(0, 5 * accumulate, accumulate)]
    assert [record.loss for record in callback.records] == pytest.approx(steps[::2], rel=1e-5)
    assert [record.step for record in callback.records] == [0, 2, 4]
    if accumulate == 1:
        assert_same(callback.records, looped(5, 2))


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_in_the_same_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    trainer(NormscopeCallback(every=2, log=log), tmp_path, steps=5, save_strategy="steps", save_steps=5).train()
    callback = NormscopeCallback(every=2, log=log)
    made = trainer(callback, tmp_path, steps=9)
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert made.state.global_step == callback.run.step == 9
    assert [line["step"] for line in read_log(log) if line["type"] == "step"] == [0, 2, 4, 6, 8]
    assert [line["step"] for line in read_log(log) if line["type"] == "run"] == [0, 6]


@pytest.mark.slow
def test_a_model_without_a_loss_has_the_trainers(tmp_path: Path) -> None:
    class Own(Keeping):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            labels = inputs.pop("labels")
            return torch.nn.functional.cross_entropy(model(**inputs).logits, labels)

    callback = NormscopeCallback(every=1)
    made = trainer(callback, tmp_path, steps=3, kind=Own, logging_strategy="steps", logging_steps=1)
    made.train()
    assert [record.loss for record in callback.records] == pytest.approx(made.losses, rel=1e-3)


@pytest.mark.slow
def test_a_run_stopped_by_an_error_is_closed_by_the_next(tmp_path: Path) -> None:
    callback = NormscopeCallback(every=1)
    made = trainer(callback, tmp_path, steps=3)
    right, made.compute_loss = made.compute_loss, None
    with pytest.raises(TypeError):
        made.train()
    made.compute_loss = right
    made.train()
    assert [record.step for record in callback.records] == [0, 1, 2]
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in made.model.modules())


@pytest.mark.slow
def test_a_model_that_the_trainer_compiles_is_measured(tmp_path: Path) -> None:
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
    alone = trainer(None, tmp_path, steps=5, **compiled)
    alone.train()
    callback = NormscopeCallback(every=2)
    watched = trainer(callback, tmp_path, steps=5, **compiled)
    watched.train()
    assert watched.losses == alone.losses
    assert_same(callback.records, looped(5, 2))
