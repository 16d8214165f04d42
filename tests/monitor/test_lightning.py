"""The callback in real fits of Lightning: the same figures as in a plain loop, and a fit that is the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.doctor.monitor.log import read_log
from normscope.doctor.monitor.record import Record
from normscope.doctor.monitor.watching import watch

from .training import batches, network

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
from normscope.doctor.monitor.callbacks.lightning import NormscopeCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*(litlogger|does not have many workers|isinstance.treespec).*"),
]
KIND = "mlp"


class Module(pl.LightningModule):
    """Calls itself, a part of itself, or two parts, with automatic or manual optimization."""

    def __init__(self, calls: str = "itself", manual: bool = False, returns: bool = True) -> None:
        super().__init__()
        self.net, self.calls, self.returns = network(KIND), calls, returns
        if calls == "parts":
            self.head = nn.Linear(4, 4)
        self.automatic_optimization = not manual
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor | None:
        x, y = batch
        if index == 0:
            torch.manual_seed(2)  # the loader has drawn from it
        out = self(x) if self.calls == "itself" else self.net(x)
        loss = F.cross_entropy(self.head(out) if self.calls == "parts" else out, y)
        self.losses.append(float(loss.detach()))
        if not self.automatic_optimization:
            held = self.optimizers()
            for optimizer in held if isinstance(held, list) else [held]:
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in held if isinstance(held, list) else [held]:
                optimizer.step()
        return loss if self.returns else None

    def configure_optimizers(self) -> Any:
        if self.calls == "two":
            parts = ((self.net[:4], 0.05), (self.net[4:], 0.02))
            return [torch.optim.SGD(part.parameters(), lr=lr) for part, lr in parts]
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fit(
    module: Module, callback: Any, folder: Path, *, steps: int = 5, start: str | None = None, **options: Any
) -> Any:
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[] if callback is None else [callback], default_root_dir=folder,
        **{"max_epochs": 1, "enable_checkpointing": False, **options},
    )  # fmt: skip
    data = torch.utils.data.DataLoader(list(batches(KIND, steps)), batch_size=None)
    trainer.fit(module, data, ckpt_path=start)
    return trainer


def looped(module: Module, steps: int = 5, every: int = 1, accumulate: int = 1, target: str = "") -> tuple[Record, ...]:
    """The same training as a plain loop."""
    optimizer = module.configure_optimizers()
    torch.manual_seed(2)
    module.train()
    losses = []
    with watch(module.get_submodule(target), optimizer, every=every) as run:
        for index, (x, y) in enumerate(batches(KIND, steps)):
            out = module(x) if module.calls == "itself" else module.net(x)
            loss = F.cross_entropy(module.head(out) if module.calls == "parts" else out, y)
            (loss / accumulate).backward()
            losses.append(loss.detach())
            if (index + 1) % accumulate == 0:
                run.observe(loss=torch.stack(losses).mean())
                losses = []
                optimizer.step()
                optimizer.zero_grad()
    return run.records


def assert_same(found: tuple[Record, ...], expected: tuple[Record, ...]) -> None:
    assert [record.step for record in found] == [record.step for record in expected]
    assert found
    for one, two in zip(found, expected, strict=True):
        assert one.lr == two.lr
        assert one.loss == pytest.approx(two.loss, rel=1e-6)
        assert one.total["log10_gradient"] == two.total["log10_gradient"]
        assert one.total["log10_weight"] == two.total["log10_weight"]
        assert one.values.keys() == two.values.keys()
        for kind, table in two.values.items():
            for quantity in table:
                assert one.of(kind, quantity) == table[quantity], (kind, quantity)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("calls", ["itself", "part"])
def test_a_fit_is_the_same_and_measured_like_a_loop(calls: str, manual: bool, tmp_path: Path) -> None:
    alone, watched = Module(calls, manual), Module(calls, manual)
    fit(alone, None, tmp_path)
    callback = NormscopeCallback(every=1)
    fit(watched, callback, tmp_path)
    assert watched.losses == alone.losses
    for (name, one), two in zip(alone.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert_same(callback.records, looped(Module(calls), target="" if calls == "itself" else "net"))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in watched.modules())


def test_clipped_gradients_are_what_the_optimizer_gets(tmp_path: Path) -> None:
    callback = NormscopeCallback(every=1)
    fit(Module(), callback, tmp_path, gradient_clip_val=1e-3)
    assert all(record.total["log10_gradient"] == pytest.approx(-3, abs=1e-2) for record in callback.records)


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    callback = NormscopeCallback(every=2)
    fit(Module(), callback, tmp_path, steps=9, accumulate_grad_batches=3)
    assert_same(callback.records, looped(Module(), steps=9, every=2, accumulate=3))
    assert callback.run.step == 3


def test_manual_optimization_that_returns_nothing_has_a_loss(tmp_path: Path) -> None:
    callback, module = NormscopeCallback(every=1), Module(manual=True, returns=False)
    fit(module, callback, tmp_path)
    assert [record.loss for record in callback.records] == pytest.approx(module.losses, rel=1e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("manual", [False, True])
def test_a_fit_goes_on_from_a_checkpoint_in_the_same_log(manual: bool, tmp_path: Path) -> None:
    log, saved = tmp_path / "log", tmp_path / "saved.ckpt"
    first = NormscopeCallback(every=2, log=log)
    fit(Module(manual=manual), first, tmp_path, steps=5).save_checkpoint(saved)
    second = NormscopeCallback(every=2, log=log)
    trainer = fit(Module(manual=manual), second, tmp_path, steps=5, start=str(saved), max_epochs=2)
    assert trainer.global_step == second.run.step == 10
    assert [line["step"] for line in read_log(log) if line["type"] == "step"] == [0, 2, 4, 6, 8]
    assert [line["step"] for line in read_log(log) if line["type"] == "run"] == [0, 6]


def test_a_checkpoint_without_the_callback_gives_the_step_too(tmp_path: Path) -> None:
    fit(Module(), None, tmp_path, steps=5).save_checkpoint(tmp_path / "saved.ckpt")
    callback = NormscopeCallback(every=2)
    fit(Module(), callback, tmp_path, steps=5, start=str(tmp_path / "saved.ckpt"), max_epochs=2)
    assert [record.step for record in callback.records] == [6, 8]


def test_of_several_optimizers_the_first_is_watched(tmp_path: Path) -> None:
    callback = NormscopeCallback(every=1)
    with pytest.warns(UserWarning, match="2 optimizers; number 0 is watched"):
        fit(Module("two", manual=True), callback, tmp_path)
    assert callback.run.step == 5
    assert callback.records[0].lr == (0.05,)


def test_a_step_that_calls_parts_is_watched_in_its_largest(tmp_path: Path) -> None:
    callback = NormscopeCallback(every=1)
    fit(Module("parts"), callback, tmp_path)
    assert_same(callback.records, looped(Module("parts"), target="net"))


@pytest.mark.slow
def test_a_part_can_be_named(tmp_path: Path) -> None:
    callback = NormscopeCallback(every=1, model="net")
    fit(Module(), callback, tmp_path)
    assert_same(callback.records, looped(Module(), target="net"))
    with pytest.raises(InputError, match="no such part"):
        fit(Module(), NormscopeCallback(model="nothing"), tmp_path)
    with pytest.raises(InputError, match="the fit has 1"):
        fit(Module(), NormscopeCallback(optimizer=3), tmp_path)
    with pytest.raises(InputError, match="number of steps"):
        NormscopeCallback(every=0)


@pytest.mark.slow
def test_under_ddp_the_same_is_measured(tmp_path: Path) -> None:
    callback = NormscopeCallback(every=1)
    try:
        fit(Module(), callback, tmp_path, strategy="ddp", use_distributed_sampler=False)
    except (RuntimeError, OSError) as error:
        if "address" not in str(error).lower() and "socket" not in str(error).lower():
            raise
        pytest.skip("no process group can be made here")
    assert_same(callback.records, looped(Module()))


def test_an_error_ends_the_log_and_leaves_no_hooks(tmp_path: Path) -> None:
    class Broken(Module):
        def training_step(self, batch: Any, index: int) -> Any:
            if index == 2:
                raise RuntimeError("mine")
            return super().training_step(batch, index)

    module = Broken()
    with pytest.raises(RuntimeError, match="mine"):
        fit(module, NormscopeCallback(every=1, log=tmp_path), tmp_path)
    lines = list(read_log(tmp_path))
    assert lines[-1]["how"] == "stopped by RuntimeError"
    assert [line["step"] for line in lines if line["type"] == "step"] == [0, 1]
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in module.modules())


@pytest.mark.slow
def test_it_serves_the_other_package_too(tmp_path: Path) -> None:
    other = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    assert isinstance(NormscopeCallback(), pl.Callback)

    class Theirs(other.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(KIND)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == 0:
                torch.manual_seed(2)
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    callback = NormscopeCallback(every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = other.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, callbacks=[callback], default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(Theirs(), torch.utils.data.DataLoader(list(batches(KIND, 3)), batch_size=None))
    assert_same(callback.records, looped(Module("part"), steps=3, target="net"))
