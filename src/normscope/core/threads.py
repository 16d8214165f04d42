"""Settings, warnings and loggers of the whole process and of torch, changed so that other threads are left alone."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_CALLING_FOR_OTHERS = ("__torch_function__", "without_dropout")
"""Functions of this package that call a function of torch for the model."""
_issued: ContextVar[set[object] | None] = ContextVar("issued", default=None)
"""The warnings that were issued for the code of a model, in a block of `warnings_at_callers`."""


class _MessagesOfThread(logging.Filter):
    """Selects messages of the thread that made it, or modules that warn in it, for `warnings` and for loggers."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._thread, self._pattern = threading.get_ident(), re.compile(pattern)

    def match(self, text: str) -> bool:
        """Whether a text is of this thread and begins with the pattern; `warnings` asks this of a pattern."""
        return threading.get_ident() == self._thread and self._pattern.match(text) is not None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is of another thread, and is let through."""
        return threading.get_ident() != self._thread


@contextlib.contextmanager
def ignore_warnings(pattern: str = "") -> Iterator[None]:
    """Run a block in which warnings of this thread are ignored; those of other threads are shown.

    `warnings.catch_warnings` would hide them for all threads. Where two of its blocks overlap, the later end puts
    back what the earlier block had set.

    Args:
        pattern: a regular expression; only warnings that begin with it are ignored.
    """
    with _filtering(("ignore", _MessagesOfThread(pattern), Warning, None, 0)):
        yield


@contextlib.contextmanager
def _filtering(entry: Any) -> Iterator[None]:
    """Run a block with an entry in front of the filters of `warnings`."""
    entered: list[object] = warnings.filters  # type: ignore[assignment]
    entered.insert(0, entry)
    try:
        yield
    finally:
        for filters in (entered, warnings.filters):  # another thread may have begun or ended a `catch_warnings`
            while entry in filters:
                filters.remove(entry)  # type: ignore[union-attr]


@contextlib.contextmanager
def warnings_at_callers() -> Iterator[None]:
    """Run a block in which no warning of torch names a file of this package.

    Where this package listens to a model, it calls torch's functions in the place of the model, so that their warnings
    name a file of this package. Such a warning is shown once, for the line of the model's code, as if nobody listened.
    Warnings of what this package computes for itself are not shown, as the user can do nothing about them.
    `ignore_warnings` hides all of them, from everywhere: it is for blocks in which no code of the model runs for its
    user.
    """
    issued = _issued.get()
    token = _issued.set(set() if issued is None else issued)
    try:
        with _shown_at_callers(), _filtering(("always", None, Warning, _MessagesOfThread(r"normscope\."), 0)):
            yield
    finally:
        _issued.reset(token)


@contextlib.contextmanager
def _showing_at_callers() -> Iterator[None]:
    """Run a block in which warnings that name a file of this package name the model's code instead, or are dropped."""
    before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any, **named: Any) -> None:
        issued, is_ours = _issued.get(), str(message).startswith("normscope")
        if is_ours or not filename.startswith(_PACKAGE) or issued is None:
            before(message, category, filename, lineno, *rest, **named)
        elif (caller := _caller_of(filename)) is not None:
            line = str(message), category, caller.f_code.co_filename, caller.f_lineno
            if line not in issued:
                issued.add(line)
                registry = caller.f_globals.setdefault("__warningregistry__", {})
                warnings.warn_explicit(message, *line[1:], caller.f_globals.get("__name__"), registry)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = before


def _caller_of(filename: str) -> FrameType | None:
    """Return the code of the model for which a mode in a file of this package called what warns; None for other calls.

    A function of torch that is written in Python calls the mode, which calls the function again: who called it counts.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.overrides":
            frame = frame.f_back
        elif not frame.f_code.co_filename.startswith(_PACKAGE):
            return frame
        elif frame.f_code.co_name not in _CALLING_FOR_OTHERS:
            return None
        frame = None if frame is None else frame.f_back
    return None


@contextlib.contextmanager
def silence_loggers(*loggers: str) -> Iterator[None]:
    """Run a block in which some loggers drop what this thread logs."""
    of_thread = _MessagesOfThread("")
    for name in loggers:
        logging.getLogger(name).addFilter(of_thread)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(of_thread)


def shared_setting(
    change: Callable[[], contextlib.AbstractContextManager[object]],
) -> Callable[[], contextlib._GeneratorContextManager[None]]:
    """Make a context that changes a setting of the whole process safe for threads whose blocks overlap.

    The first thread to enter changes the setting and the last to leave puts it back. If each did both, the last to
    leave would put back what the first had set, and the setting would outlive all blocks.
    """
    lock, users, held = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        nonlocal users
        with lock:
            if users == 0:
                held.enter_context(change())
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if users == 0:
                    held.close()

    shared.__doc__ = change.__doc__
    return shared


_shown_at_callers = shared_setting(_showing_at_callers)


@shared_setting
@contextmanager
def full_precision() -> Iterator[None]:
    """Run a block with float32 products in float32, and put the user's settings back.

    On CUDA devices torch lets convolutions round their operands to TF32, which has 10 bits: two ways to the same value
    then differ by 1e-3 of it, where float32 differs by 1e-6.
    """
    backends = cast(Any, torch.backends)
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    products = cudnn.conv, cudnn.rnn, backends.cuda.matmul, mkldnn.conv, mkldnn.rnn, mkldnn.matmul
    parts = backends, cudnn, mkldnn, *products  # a part that says "none" follows the one above it
    held = []
    for part in parts:
        held.append(part.fp32_precision)
        part.fp32_precision = "none"
    # torch refuses to read an older name that disagrees with the newer ones. Beside "none" only cuDNN's can: it may
    # allow TF32. Both are put back, or torch.export, which reads them, would fail after the next change of a newer one.
    matmul, allowed = torch.get_float32_matmul_precision(), True
    with contextlib.suppress(RuntimeError):
        allowed = cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = False
        for part in parts:
            part.fp32_precision = "ieee"
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32 = allowed
        for part, value in zip(parts, held, strict=True):
            part.fp32_precision = value


@shared_setting
def math_attention() -> AbstractContextManager[None]:
    """Run a block with attention computed by its formula: the other backends have no second derivative."""
    return sdpa_kernel(SDPBackend.MATH)


@shared_setting
@contextmanager
def without_cudnn() -> Iterator[None]:
    """Run a block without cuDNN, whose recurrent layers have no second derivative."""
    before = torch.backends.cudnn.enabled
    try:
        torch.backends.cudnn.enabled = False
        yield
    finally:
        torch.backends.cudnn.enabled = before


@shared_setting
def uncompiled() -> AbstractContextManager[None]:
    """Run a block in which compiled modules run as they were written, so that everything in them can be seen.

    Where nothing was compiled yet there is nothing to do, and torch's compiler, which takes a second, is not imported.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
