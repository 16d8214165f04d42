"""Files to write: never one that is read, never a device replaced by a file."""

import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from normscope.auditing.audit_result import Audit
from normscope.cli.messages import check_targets
from normscope.core.errors import InputError
from normscope.core.files import write_text


@pytest.fixture
def inputs(work):
    """A folder with every kind of input, and links to one of them."""
    save_file({"a.weight": torch.eye(2)}, work / "m.safetensors")
    (work / "m.safetensors.index.json").write_text('{"weight_map": {"a.weight": "m.safetensors"}}')
    np.savez(work / "x.npz", x=np.zeros((4, 64)))
    (work / "vit").mkdir()
    (work / "vit/config.json").write_text("{}")
    Audit(name="a", mode=None, parameters=0, samples=0, batches=0).to_json(work / "a.json")
    os.link(work / "a.json", work / "hard.json")
    os.symlink("a.json", work / "soft.json")
    return work


@pytest.mark.parametrize(
    "arguments",
    [
        "audit m.safetensors --json m.safetensors",
        "audit m.safetensors.index.json --html m.safetensors",
        "audit m.safetensors.index.json --html m.safetensors.index.json",
        "audit net.py:build --data digits --html net.py",
        "audit net:build --data digits --html ./net.py",
        "audit net.py:build --data npz:x.npz --json x.npz",
        "audit vit --json vit/config.json",
        "show a.json --html a.json",
        "show a.json --html hard.json",
        "show soft.json --html a.json",
        "compare a.json hard.json --html soft.json",
    ],
)
def test_what_is_read_is_not_overwritten(arguments, inputs, run):
    files = [path for path in inputs.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    done = run(*arguments.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("normscope: cannot write ")
    assert {path: path.read_bytes() for path in files} == before


def test_reports_and_audits_beside_a_model_may_be_written_again(inputs):
    folder = inputs / "vit"
    (folder / "report.html").write_text("old")
    os.rename(inputs / "a.json", folder / "a.json")
    check_targets(folder / "report.html", folder / "a.json", inputs=[folder])
    with pytest.raises(InputError, match="it is there already"):
        check_targets(folder / "config.json", inputs=[folder])


def test_a_link_stays_a_link_and_a_file_keeps_its_permissions(tmp_path):
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real.html")
    write_text(link, "new")
    assert link.is_symlink()
    assert (real.read_text(), stat.S_IMODE(real.stat().st_mode)) == ("new", 0o640)
    (tmp_path / "dangling").symlink_to("made")
    write_text(tmp_path / "dangling", "new")
    assert (tmp_path / "made").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "link.html", "made", "real.html"]


def test_pipes_and_devices_are_written_to_and_stay(inputs, run):
    pipe, got = inputs / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    assert run("show", "a.json", "--html", "pipe").code == 0
    reader.join(10)
    assert got[0].startswith("<!")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    null = Path("/dev/null")
    assert run("audit", "m.safetensors", "--html", null, "--json", null).code == 0
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_device_may_be_asked_for_twice_and_a_file_may_not(tmp_path):
    null = Path("/dev/null")
    check_targets(null, null)
    check_targets(None, tmp_path / "a.html", inputs=[tmp_path])
    (tmp_path / "there.json").write_text("text")
    for name in ("new.html", "there.json"):
        with pytest.raises(InputError, match="two files of the same name"):
            check_targets(tmp_path / name, tmp_path / name)
    with pytest.raises(InputError, match="it is a folder"):
        check_targets(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        check_targets(tmp_path / "none" / "a.html")
    with pytest.raises(InputError, match=r"cannot write .*null"):
        check_targets(tmp_path / "a\0b")
