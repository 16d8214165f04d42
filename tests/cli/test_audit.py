"""Audits that work: every form of MODEL and of --data, the files they write, and the exit code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from normscope import data as data_sets
from normscope.auditing.audit_result import Audit
from normscope.cli import data_forms, model_forms
from normscope.cli.messages import read_from

QUICK = ("--max-seconds", 0.5, "--batch-size", 8)


@pytest.mark.slow
def test_a_function_in_the_current_folder_audited_with_digits_prints_and_writes_both_files(work, shell):
    done = shell(
        "audit",
        "net:model",
        "--data",
        "digits",
        "--html",
        "r.html",
        "--json",
        "a.json",
        "--fail-on",
        "error",
        "--batch-size",
        8,
    )
    assert (done.code, done.err) == (0, "")
    assert "BatchNorm1d" in done.out
    assert done.out.endswith("wrote r.html\nwrote a.json\n")
    audit = Audit.from_json(work / "a.json")
    assert (audit.name, audit.mode, audit.batches, audit.samples) == ("net:model", "eval", 64, 512)
    assert [row.kind for row in audit.layers] == ["Linear", "BatchNorm1d", "Linear"]
    assert audit.notes[0] == "data: scikit-learn's digits, the training part, values from 0 to 1, 64 batches of 8"
    assert audit.lipschitz is not None
    page = (work / "r.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "net:model" in page


def test_a_finding_that_reaches_fail_on_gives_exit_code_1_and_the_files_are_written(work, run):
    done = run("audit", "net.py:broken", "--data", "digits", "--fail-on", "warning", "--json", "a.json", *QUICK)
    assert done.code == 1
    assert done.err == "normscope: 1 finding reaches --fail-on warning\n"
    assert any(finding.code == "non-finite-weights" for finding in Audit.from_json(work / "a.json").findings)


def test_mode_dtype_and_the_users_own_data(work, run):
    assert run("audit", "net.py:build", "--data", "net.py:loader", "--json", "a.json", "--max-seconds", 1).code == 0
    assert Audit.from_json(work / "a.json").mode == "train"
    assert run("audit", "net.py:doubled", "--data", "digits", "--json", "b.json", *QUICK).code == 0
    assert Audit.from_json(work / "b.json").mode == "eval"


def test_an_output_is_chosen_by_name(work, run):
    options = ("--data", "net.py:vectors", "--output", "second", "--json", "a.json")
    assert run("audit", "net.py:Several", *options).code == 0
    assert Audit.from_json(work / "a.json").lipschitz.upper == pytest.approx(2.0, rel=1e-6)


def exported(work: Path, *, train: bool, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2)).train(train)
    shapes = ({0: torch.export.Dim("batch", min=2)},) if dynamic else None
    program = torch.export.export(model, (torch.randn(5, 4),), dynamic_shapes=shapes)
    torch.export.save(program, work / "model.pt2")
    np.savez(work / "x.npz", x=np.random.default_rng(0).normal(size=(40, 4)))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_keeps_its_mode_its_batch_size_and_its_paths(work, run):
    exported(work, train=False, dynamic=False)
    assert run("audit", "model.pt2", "--trust", "--data", "npz:x.npz", "--json", "a.json").code == 0
    audit = Audit.from_json(work / "a.json")
    assert (audit.mode, audit.samples, audit.batches) == ("eval", 40, 8)
    assert [(row.path, row.kind) for row in audit.layers] == [("0", "Linear"), ("1", "BatchNorm1d"), ("3", "Linear")]
    refused = run("audit", "model.pt2", "--trust", "--data", "npz:x.npz", "--batch-size", 8)
    assert (refused.code, "was exported for batches of 5" in refused.err) == (2, True)
    refused = run("audit", "model.pt2", "--trust", "--data", "npz:x.npz", "--mode", "train")
    assert (refused.code, "was exported in eval mode" in refused.err) == (2, True)


@pytest.mark.slow
def test_a_hugging_face_folder_gets_noise_and_the_report_says_so(work, run):
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = ViTConfig(**sizes, image_size=8, patch_size=4)
    ViTForImageClassification(config).bfloat16().save_pretrained(work / "vit")
    done = run("audit", "vit", "--json", "a.json", "--max-seconds", 1)
    assert (done.code, done.err) == (0, "")
    audit = Audit.from_json(work / "a.json")
    assert audit.samples == 8
    assert "random noise (8 samples)" in audit.notes[0]
    assert "random noise" in done.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("GPT2", {"n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 20, "n_positions": 16}, {"input_ids": (3, 16)}),
        (
            "T5",
            {"num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 1, "d_kv": 8, "vocab_size": 20},
            {"input_ids": (3, 32), "decoder_input_ids": (3, 32)},
        ),
        ("ResNet", {"embedding_size": 4, "hidden_sizes": [4], "depths": [1]}, {"pixel_values": (3, 3, 224, 224)}),
    ],
)
def test_noise_has_the_sizes_of_the_config(name, sizes, expected):
    import transformers

    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes))
    made = model_forms.noise(model, 3, generator=torch.Generator().manual_seed(0))
    assert {key: tuple(value.shape) for key, value in made.items()} == expected
    assert all(int(value.max()) < 20 for key, value in made.items() if "ids" in key)


def test_parameters_missing_from_the_file_are_told(work):
    from transformers import ViTConfig, ViTForImageClassification, ViTModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    ViTModel(ViTConfig(**sizes, image_size=8, patch_size=4), add_pooling_layer=False).save_pretrained(work / "vit")
    config = json.loads((work / "vit/config.json").read_text()) | {
        "architectures": [ViTForImageClassification.__name__]
    }
    (work / "vit/config.json").write_text(json.dumps(config))
    notes = model_forms.open_model("vit", trust=False).notes
    assert any("were drawn at random, e.g. classifier" in note for note in notes)


def test_weights_alone(work, run):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(6, 5))
    torch.save({"epoch": 1, "state_dict": model.state_dict()}, work / "checkpoint.ckpt")
    save_file(model.state_dict(), work / "model.safetensors")
    for file in ("checkpoint.ckpt", "model.safetensors"):
        done = run("audit", file, "--json", f"{file}.json", "--html", f"{file}.html", "--fail-on", "info")
        assert (done.code, done.err) == (0, "")
    first, second = Audit.from_json(work / "checkpoint.ckpt.json"), Audit.from_json(work / "model.safetensors.json")
    assert {row.path for row in first.layers} == {"0", "1", "2"}
    assert {row.path: row.norm for row in first.layers} == {row.path: row.norm for row in second.layers}
    assert first.mode is None


def test_sharded_weights_are_read_through_their_index_in_natural_order(work, run):
    tensors = {f"layer.{k}.weight": torch.full((2, 2), float(k)) for k in (10, 9, 2)}
    names = list(tensors)
    save_file({names[0]: tensors[names[0]]}, work / "model-1.safetensors")
    save_file({name: tensors[name] for name in names[1:]}, work / "model-2.safetensors")
    shards = dict.fromkeys(names, "model-2.safetensors") | {names[0]: "model-1.safetensors"}
    (work / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert run("audit", "model.safetensors.index.json", "--json", "a.json").code == 0
    audit = Audit.from_json(work / "a.json")
    assert [row.path for row in audit.layers] == ["layer.2", "layer.9", "layer.10"]
    assert audit.layers[2].norm.upper == pytest.approx(20.0)
    done = run("audit", ".", "--json", "b.json", "--device", "cpu", "--certify")
    assert (done.code, done.err) == (0, "")
    assert Audit.from_json(work / "b.json").layers == audit.layers
    assert "cannot be moved to --device nowhere" in run("audit", ".", "--device", "nowhere").err
    (work / "model.safetensors.index.json").unlink()
    assert run("audit", ".", "--json", "c.json").code == 0
    assert {row.path for row in Audit.from_json(work / "c.json").layers} == {row.path for row in audit.layers}
    save_file(tensors, work / "again.safetensors")
    assert "several files of" in run("audit", ".").err


def given(model: nn.Module | None = None) -> model_forms.GivenModel:
    return model_forms.GivenModel(name="m", model=model or nn.Linear(4, 4))


def opened(text: str, **options: int | None) -> data_forms.Batches:
    return data_forms.open_data(text, given(), **({"batch_size": None, "seed": 0} | options))


def test_data_in_an_npz_file(work):
    np.savez(work / "a.npz", images=np.full((70, 2), 255, np.uint8), labels=np.zeros(70))
    np.savez(work / "b.npz", data=np.arange(6).reshape(3, 2))
    bytes_, ids = opened("npz:a.npz"), opened("npz:b.npz")
    assert [tuple(batch.shape) for batch in bytes_.loader] == [(32, 2), (32, 2)]
    assert bytes_.first.dtype == torch.float32
    assert float(bytes_.first.max()) == 1.0
    assert (ids.first.dtype, tuple(ids.first.shape)) == (torch.int64, (3, 2))


def test_data_from_the_users_code(work):
    assert len(list(opened("net.py:loader").loader)) == 2
    assert [tuple(batch.shape) for batch in opened("net.py:vectors", batch_size=10).loader] == [(10, 4)] * 4
    assert opened("net.py:pairs").first[0].shape == (32, 1, 8, 8)
    assert len(list(opened("net.py:stream").loader)) == 100, "a loader of the user's is read to its end"


def test_compare_prints_and_writes(work, run):
    for name, scale in (("a", 1.0), ("b", 10.0)):
        save_file({"head.weight": scale * torch.eye(3)}, work / "model.safetensors")
        assert run("audit", "model.safetensors", "--json", f"{name}.json").code == 0
    done = run("compare", "a.json", "b.json", "--html", "c.html")
    assert (done.code, done.err) == (0, "")
    assert "model.safetensors (a)" in done.out
    assert done.out.endswith("wrote c.html\n")
    assert "model.safetensors (b)" in (work / "c.html").read_text()


def write_cifar(folder: Path) -> None:
    """Write CIFAR-10's binary batches, of random images."""
    folder.mkdir()
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        records = np.random.default_rng(0).integers(0, 256, (4, data_sets.CIFAR_RECORD), np.uint8)
        records[:, 0] = 3
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def test_named_data_sets_say_what_was_done_to_their_values(work):
    write_cifar(work / "images")
    usual, raw = opened("cifar10:images", batch_size=4), opened("cifar10:raw:images", batch_size=4)
    mean = torch.tensor(data_sets.CIFAR_SCALE.mean).reshape(-1, 1, 1)
    deviation = torch.tensor(data_sets.CIFAR_SCALE.deviation).reshape(-1, 1, 1)
    assert torch.allclose(usual.first * deviation + mean, raw.first, atol=1e-6)
    assert 0.0 <= float(raw.first.min()) < float(raw.first.max()) <= 1.0
    assert "standardised (less the mean 0.4914, 0.4822, 0.4465, divided by the deviation" in usual.notes[0]
    assert "cifar10:raw:FOLDER leaves the values from 0 to 1" in usual.notes[0]
    assert "values from 0 to 1, not standardised" in raw.notes[0]
    assert "values from 0 to 1" in opened("digits").notes[0]


def test_a_folder_of_raw_images_is_not_written_into(work):
    write_cifar(work / "images")
    assert Path("images") in read_from("net.py:model", "cifar10:raw:images")
