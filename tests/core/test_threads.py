"""What a block changes in the process leaves other threads alone, and is put back in whatever order blocks end."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import stat
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
import torch._dynamo  # `uncompiled` has something to do once it was imported

from normscope.core.files import write_text
from normscope.core.threads import (
    full_precision,
    ignore_warnings,
    math_attention,
    silence_loggers,
    uncompiled,
    without_cudnn,
)


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_warnings_of_this_thread_alone_are_ignored():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with ignore_warnings():
            warnings.warn("here", stacklevel=1)
            in_thread(lambda: warnings.warn("there", stacklevel=1))
        warnings.warn("after", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["there", "after"]


@pytest.mark.parametrize("ends_first", ["outer", "inner"])
def test_filters_of_warnings_are_as_found_where_blocks_of_two_threads_overlap(ends_first):
    before, held = list(warnings.filters), warnings.filters
    ours, theirs = ignore_warnings(), warnings.catch_warnings()
    ours.__enter__()
    theirs.__enter__()
    warnings.simplefilter("error")
    for block in (ours, theirs) if ends_first == "outer" else (theirs, ours):
        block.__exit__(None, None, None)
    assert warnings.filters == before
    assert warnings.filters is held


def test_loggers_are_silent_for_this_thread_alone(caplog):
    logger = logging.getLogger("tests.speaks")
    with contextlib.suppress(ValueError), silence_loggers("tests.speaks"):
        logger.error("here")
        in_thread(lambda: logger.error("there"))
        raise ValueError
    logger.error("after")
    assert caplog.messages == ["there", "after"]
    assert logger.filters == []


def precision() -> object:
    return torch.get_float32_matmul_precision()


def attention() -> object:
    return torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()


def stance() -> object:
    return torch._dynamo.eval_frame._stance.stance


def cudnn() -> object:
    return torch.backends.cudnn.enabled


@pytest.mark.parametrize(
    ("setting", "value", "found", "inside"),
    [
        (full_precision, precision, "medium", "highest"),
        (math_attention, attention, (True, True), (False, False)),
        (uncompiled, stance, "default", "force_eager"),
        (without_cudnn, cudnn, True, False),
    ],
)
def test_settings_outlive_no_block_where_blocks_of_two_threads_overlap(setting, value, found, inside):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        first, second = setting(), setting()
        in_thread(first.__enter__)
        second.__enter__()
        in_thread(lambda: first.__exit__(None, None, None))
        assert value() == inside  # the second block is not over
        second.__exit__(None, None, None)
        assert value() == found
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("backend", "value"), [("cuda", "tf32"), ("mkldnn", "bf16"), ("cuda", "ieee")])
def test_precision_set_by_the_newer_names_is_no_obstacle_and_is_put_back(backend, value):
    matmul = getattr(torch.backends, backend).matmul  # after this torch refuses to read the older names
    held = torch.get_float32_matmul_precision()
    try:
        matmul.fp32_precision = value
        with full_precision():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == value
        with full_precision():
            assert matmul.fp32_precision == "ieee"
    finally:
        torch.set_float32_matmul_precision(held)  # the older name sets the newer ones, too
    assert torch.get_float32_matmul_precision() == held


@pytest.mark.parametrize(
    ("part", "value"), [("cudnn.conv", "ieee"), ("mkldnn.matmul", "bf16"), ("", "ieee"), ("cudnn", "ieee")]
)
def test_older_names_of_precision_can_be_read_again_once_the_user_undoes_the_newer_ones(part, value):
    changed = operator.attrgetter(part)(torch.backends) if part else torch.backends
    held = changed.fp32_precision
    before = all_precisions(), torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    try:
        changed.fp32_precision = value
        with full_precision():
            assert set(all_precisions()) == {"ieee"}
            assert not torch.backends.cudnn.allow_tf32  # torch.export reads it
    finally:
        changed.fp32_precision = held
    assert before == (all_precisions(), torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision())


def all_precisions() -> list[str]:
    backends = torch.backends
    products = [backends.cuda.matmul] + [getattr(backends.mkldnn, name) for name in ("conv", "rnn", "matmul")]
    parts = backends, backends.cudnn, backends.mkldnn, backends.cudnn.conv, backends.cudnn.rnn, *products
    return [part.fp32_precision for part in parts]


def test_a_file_gets_the_permissions_of_the_umask_without_changing_it(tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("other threads would make files open to all"))
        write_text(tmp_path / "new", "text")
        (tmp_path / "old").write_text("old")
        (tmp_path / "old").chmod(0o604)
        write_text(tmp_path / "old", "text")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "old")] == [0o640, 0o604]
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]
