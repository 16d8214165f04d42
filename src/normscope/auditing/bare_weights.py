"""`audit_weights`: what stored weights alone show, one tensor in memory at a time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..bounds.linalg.operator_norms import BOUNDING
from ..bounds.linalg.weight_norms import KERNEL_NOTE, kernel_norm, matrix_norms, may_be_sampled
from ..core.bracket import Bracket
from ..core.budget import Budget, Progress
from ..core.finding import Finding, Severity, figures
from ..core.log10 import log10
from ..core.provenance import provenance
from ..doctor.symptoms.dead_layers import MANY_CHANNELS
from ..doctor.symptoms.not_finite import RESTORE
from ..products.lanczos import MISSED
from ..report.words import pluralise, shape
from ..theory.normalizers import batch_norm_eval_global, lemma1
from .audit_result import Audit, Row
from .reading_ahead import Stored, read_ahead

WEIGHTS_ONLY = "weights only: no architecture, no data"
ASSUMED_EPS = 1e-5
"""PyTorch's default for BatchNorm; a file of weights does not hold eps."""
FLOATS = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    *(getattr(torch, name) for name in dir(torch) if name.startswith("float8_")),
)
"""What a weight is stored as; float8 comes in several forms."""
_TOGETHER = 16
"""How many matrices of one shape wait on an accelerator at most until they are measured together."""
_TOGETHER_ENTRIES, _BYTES_AN_ENTRY = 1 << 30, 32
"""How many entries they have, where the device has so many bytes free for each; of these 12 are taken at most."""
SCALE = "normalizer scale"
"""The operator of a row that shows a normalizer's scale and nothing else."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_INDIRECT = re.compile(r"(weight_v|weight_orig|weight_u|original\d*)$")
"""Halves of weight_norm and spectral_norm: the weight is computed from them."""


@torch.no_grad()
def audit_weights(
    tensors: Stored,
    *,
    name: str = "weights",
    rtol: float = 5e-2,
    certify: bool = False,
    device: torch.device | str = "cpu",
    max_seconds: float | None = None,
) -> Audit:
    """Audit stored weights without a model: norms, batch-norm constants, values that are broken or zero.

    Tensors are read one after the other, so that memory stays near the largest of them, and a file may be larger than
    the machine's memory. On an accelerator the next tensors are read and copied while some are computed with, and
    matrices of one shape are measured together. Matrices get
    their spectral norm: the upper sides of large ones are SAMPLED, and with a probability of `MISSED` one or more of
    them are too small; with `certify` they are PROVEN, for several times the work. A kernel's norm depends on how it is
    run, which a file does not say: its bracket holds for every zero-padded convolution with it (see `kernel_norm`).

    Args:
        tensors: by name, each a function that reads it.
        name: how the report calls them.
        rtol: close the brackets of matrices to this.
        certify: prove the upper sides of large matrices.
        device: where norms are computed.
        max_seconds: when this is spent, the remaining norms get cheap upper sides.

    Returns:
        An audit with one row per matrix, kernel and normalizer, grouped by what they do as far as names and shapes tell
        (`roles.role_of`); `skipped` lists all that weights alone cannot show.

    Example:
        >>> audit = audit_weights({"head.weight": lambda: torch.eye(3)})
        >>> audit.layers[0].path, round(audit.layers[0].norm.upper, 6)
        ('head', 1.0)
    """
    budget = Budget(max_seconds=max_seconds, what=BOUNDING)
    missed = 0.0 if certify else MISSED / max(len(tensors), 1)
    ledger = _Ledger(tensors=tensors, rtol=rtol, missed=missed, budget=budget)
    with Progress("reading weights", total=len(tensors)) as progress:
        for key, tensor in read_ahead(tensors, torch.device(device)):
            progress.step(key)
            ledger.take(key, tensor)
        ledger.measure_all()
    return Audit(
        name=name,
        mode=None,
        parameters=ledger.parameters,
        samples=0,
        batches=0,
        layers=ledger.grouped(),
        findings=tuple(sorted(ledger.findings, key=lambda finding: -finding.severity.rank)),
        skipped=ledger.skipped(),
        notes=(*ledger.notes(), *budget.cuts),
        provenance=provenance(),
        seconds=budget.elapsed,
    )


@dataclass(slots=True, kw_only=True)
class _Ledger:
    """What has been seen so far."""

    tensors: Stored
    rtol: float
    missed: float
    """The probability with which a sampled upper side may be too small, for each matrix."""
    budget: Budget
    rows: list[tuple[str, Row]] = field(default_factory=list)
    """By what they do (`roles.ORDER`), in the order of the file."""
    findings: list[Finding] = field(default_factory=list)
    parameters: int = 0
    vectors: int = 0
    waiting: dict[tuple[int, ...], list[tuple[int, Tensor]]] = field(default_factory=lambda: defaultdict(list))
    """Matrices that are measured together, by shape: their rows, whose norms are missing yet."""
    unread: dict[str, list[str]] = field(default_factory=dict)
    """Tensors that are no weights as they stand, by the reason."""

    def take(self, key: str, tensor: Tensor) -> None:
        """Look at one tensor and let it go."""
        if key.rsplit(".", 1)[-1] not in STATISTICS:
            self.parameters += tensor.numel()
        reason = self._unusable(key, tensor)
        if reason is not None:
            self.unread.setdefault(reason, []).append(key)
            return
        tensor = _wide(tensor)
        finite = _finite(tensor)
        if not finite:
            self.findings.extend(_broken(key, tensor))
        if key.endswith("running_var") and tensor.ndim == 1:
            if tensor.numel():
                self._batch_norm(key, tensor)
        elif tensor.ndim < 2:
            self._vector(key, tensor)
        elif tensor.numel():
            self._weight(key, tensor, finite)

    def _weight(self, key: str, tensor: Tensor, finite: bool) -> None:
        """Add the row of a matrix or kernel; on an accelerator the norm of a matrix may come later."""
        row = _row(key, tensor, finite)
        self.findings.extend(_zeros(key, tensor, row))
        self.rows.append((_group(key, tensor), row))
        if finite and row.operator == "convolution":
            self._complete(len(self.rows) - 1, kernel_norm(tensor, rtol=self.rtol, budget=self.budget))
        elif finite and row.operator in ("matrix", "embedding"):
            alike = tuple(sorted(tensor.shape))
            self.waiting[alike].append((len(self.rows) - 1, tensor))
            count = len(self.waiting[alike])
            full = count == _TOGETHER or (count + 1) * tensor.numel() > room_on(tensor.device)
            if full or not may_wait(tensor, self.missed):
                self._measure(alike)

    def _measure(self, alike: tuple[int, ...]) -> None:
        """Take the norms of the matrices of one shape that wait."""
        places, matrices = zip(*self.waiting.pop(alike), strict=True)
        norms = matrix_norms(matrices, rtol=self.rtol, missed=self.missed, budget=self.budget)
        for place, norm in zip(places, norms, strict=True):
            self._complete(place, norm)

    def _complete(self, place: int, norm: Bracket) -> None:
        group, row = self.rows[place]
        self.rows[place] = group, replace(row, norm=norm)

    def measure_all(self) -> None:
        """Take the norms of all matrices that wait."""
        for alike in list(self.waiting):
            self._measure(alike)

    def _vector(self, key: str, vector: Tensor) -> None:
        """Add the row of a normalizer that is known by its scale; count what is no part of one."""
        stem, _, last = key.rpartition(".")
        if self._belongs_to_batch_norm(key):
            return
        if vector.numel() and role_of(key, vector.shape) == NORMALIZER:
            shift = self._sibling(stem, "bias")
            row = _scale_row(stem, vector, shift)
            self.rows.append((NORMALIZER, row))
            if row.dead_channels:
                self.findings.append(_dead(stem, row.dead_channels, vector.numel(), "scales (gamma) are zero"))
        else:
            shifts = last == "bias" and any(
                f"{stem}.{name}" in self.tensors and role_of(f"{stem}.{name}", vector.shape) == NORMALIZER
                for name in ("weight", "scale", "gamma")
            )
            self.vectors += not shifts

    def grouped(self) -> tuple[Row, ...]:
        """Return the rows by what they do, each group in the order of the file."""
        return tuple(row for _, row in sorted(self.rows, key=lambda pair: ORDER.index(pair[0])))

    def _unusable(self, key: str, tensor: Tensor) -> str | None:
        """Return why a tensor's values are not the weights, or None."""
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            return "no dense values: a sparse, nested or meta tensor"
        if key.endswith("num_batches_tracked"):
            return None
        if tensor.dtype not in FLOATS:
            return (
                f"{str(tensor.dtype).removeprefix('torch.')} values: indices or quantised, not the weights themselves"
            )
        stem = key.removesuffix(".weight")
        scales = (f"{key}_scale", f"{key}_scale_inv", f"{stem}.scale", f"{key}.scale")
        if tensor.element_size() == 1 and any(scale in self.tensors for scale in scales):
            return "quantised: the weight is the stored tensor times a scale stored beside it"
        return None

    def _belongs_to_batch_norm(self, key: str) -> bool:
        stem, _, last = key.rpartition(".")
        return (
            last in (*STATISTICS, "weight", "bias")
            and (f"{stem}.running_var" if stem else "running_var") in self.tensors
        )

    def _batch_norm(self, key: str, variance: Tensor) -> None:
        """Add the row of a batch normalization from its stored statistics and scale."""
        path = key.removesuffix("running_var").removesuffix(".")
        stored, shift = self._sibling(path, "weight"), self._sibling(path, "bias")
        scale, wrong = None, None
        if stored is not None:
            wrong = self._unusable(f"{path}.weight", stored) or _mismatch(stored, variance)
            scale = None if wrong else _wide(stored)
        wrong = wrong or _no_numbers(variance, scale)
        notes = [f"eps is not in the file: {ASSUMED_EPS:g} assumed"]
        if wrong:
            notes.append(f"no constant: {wrong}")
        row = Row(
            path=path,
            kind="BatchNorm",
            operator="batch_norm",
            role="normalizer",
            parameters=sum(part.numel() for part in (stored, shift) if part is not None),
            log10_printed=None if wrong else log10(lemma1(variance, ASSUMED_EPS, scale)),
            log10_exact=None if wrong else batch_norm_eval_global(scale, variance, ASSUMED_EPS).log10,
            channels=variance.numel(),
            dead_channels=None if scale is None else int((scale == 0).sum()),
            notes=tuple(notes),
        )
        self.rows.append((NORMALIZER, row))
        if row.dead_channels:
            self.findings.append(_dead(path, row.dead_channels, variance.numel(), "scales (gamma) are zero"))

    def _sibling(self, path: str, name: str) -> Tensor | None:
        read = self.tensors.get(f"{path}.{name}" if path else name)
        return None if read is None else read()

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Say what weights alone do not show."""
        left = [
            ("the network's Lipschitz bracket and Jacobians", WEIGHTS_ONLY),
            ("variances, folded and cumulative gains", WEIGHTS_ONLY),
        ]
        if self.vectors:
            left.append((f"{pluralise(self.vectors, 'vector')} (biases, scales)", WEIGHTS_ONLY))
        for reason, keys in self.unread.items():
            left.append((keys[0] if len(keys) == 1 else f"{len(keys):,} tensors, e.g. {keys[0]}", reason))
        return tuple(left)

    def notes(self) -> tuple[str, ...]:
        """Say how to read the rows."""
        found = [
            "an audit of weights alone: rows are grouped by what they do, as far as names and shapes tell, and stand "
            "in the order of the file within a group; no two of them are known to be chained"
        ]
        groups = Counter(group for group, _ in self.rows)
        if groups:
            found.append("groups: " + ", ".join(f"{groups[name]:,} {name}" for name in ORDER if groups[name]))
        rows = [row for _, row in self.rows]
        if any(row.operator == "convolution" for row in rows):
            found.append(f"kernels: {KERNEL_NOTE}")
        if any(row.operator == SCALE for row in rows):
            found.append(
                "normalizers without stored statistics are known by the names of their scales; their constants depend "
                "on eps and on the data, which are not in the file"
            )
        if any(row.operator == "batch_norm" for row in rows):
            found.append(
                f"batch normalization: constants of eval mode with the stored variances and eps = {ASSUMED_EPS:g}"
            )
        return tuple(found)


def may_wait(tensor: Tensor, missed: float) -> bool:
    """Whether a matrix is measured with others of its shape: on an accelerator many small kernels take longer."""
    return tensor.device.type != "cpu" and may_be_sampled(tensor, missed)


def room_on(device: torch.device) -> int:
    """Return how many entries of matrices may wait on a device."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return min(_TOGETHER_ENTRIES, free // _BYTES_AN_ENTRY)


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor that can be computed with: float8 has no arithmetic."""
    return tensor.float() if tensor.element_size() == 1 else tensor


def _mismatch(scale: Tensor, variance: Tensor) -> str | None:
    """Return how the scale of a batch normalization does not fit its variances, or None."""
    if scale.shape == variance.shape:
        return None
    return f"{pluralise(variance.numel(), 'variance')}, but a scale of {shape(scale.shape)}"


def _no_numbers(variance: Tensor, scale: Tensor | None) -> str | None:
    """Return what keeps a batch normalization from having a constant, or None."""
    finite = _finite(variance) and (scale is None or _finite(scale))
    if finite and not bool((variance < 0).any()):
        return None
    return "a stored variance or scale is negative, NaN or infinite"


def _group(key: str, tensor: Tensor) -> str:
    """Return the group of a tensor of two or more dimensions; halves of a reparametrised weight are no map."""
    return OTHER if _INDIRECT.search(key) else role_of(key, tensor.shape)


def _scale_row(path: str, scale: Tensor, shift: Tensor | None) -> Row:
    """Return the row of a normalizer of which only the scale is known, and perhaps the shift."""
    size = scale.abs()
    notes = ["it is taken for a normalizer by its name"]
    if _finite(scale):
        notes.append(f"scales (gamma) from {float(size.min()):.3g} to {float(size.max()):.3g} in absolute value")
    return Row(
        path=path,
        kind=f"normalizer, {'scale and shift' if shift is not None else 'scale'} {scale.numel()}",
        operator=SCALE,
        role="normalizer",
        parameters=scale.numel() + (0 if shift is None else shift.numel()),
        channels=scale.numel(),
        dead_channels=int((scale == 0).sum()),
        notes=tuple(notes),
    )


def _row(key: str, tensor: Tensor, finite: bool) -> Row:
    """Return the row of a matrix or kernel, without its norm."""
    kind, note = _kind(key, tensor)
    notes = [note] if note else []
    if not finite:
        notes.append("no norm: it holds NaN or infinite values")
    counts = kind in ("matrix", "convolution")
    return Row(
        path=key.removesuffix(".weight") if key != "weight" else key,
        kind=_described(_group(key, tensor), kind, tensor),
        operator=kind,
        role="weight",
        parameters=tensor.numel(),
        channels=tensor.shape[0] if counts else None,
        dead_channels=_zero_rows(tensor) if counts else None,
        notes=tuple(notes),
    )


def _described(group: str, kind: str, tensor: Tensor) -> str:
    """Say in a few words what a tensor is: its group, its form and its shape."""
    return f"{', '.join(dict.fromkeys((group, kind)))} {'x'.join(map(str, tensor.shape))}"


def _kind(key: str, tensor: Tensor) -> tuple[str, str]:
    """Say what a tensor of two or more dimensions is, from its name and shape, and what to note."""
    if _INDIRECT.search(key):
        return "part", "part of a reparametrised weight (weight_norm, spectral_norm): not a map by itself"
    if tensor.ndim == 2:
        if role_of(key, tensor.shape) == EMBEDDING:
            return "embedding", "a table that ids pick rows from: this is its norm as a matrix"
        return "matrix", ""
    if tensor.ndim <= 5 and key.rsplit(".", 1)[-1] in ("weight", "kernel"):
        return "convolution", ""
    return "tensor", "not named like a kernel: a table or a stack of matrices, no norm taken"


def _zero_rows(tensor: Tensor) -> int:
    return tensor.shape[0] - int(tensor.reshape(tensor.shape[0], -1).ne(0).any(dim=1).sum())


def _finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite; makes no copy, since NaN passes through minimum and maximum."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())


def _broken(key: str, tensor: Tensor) -> Iterator[Finding]:
    """Find NaN and infinite values; a mask may hold infinite ones on purpose."""
    nans = int(tensor.isnan().sum())
    infinite = 0 if "mask" in key.lower() else int(tensor.isinf().sum())
    if not nans + infinite:
        return
    yield Finding(
        code="non-finite-weights",
        severity=Severity.ERROR,
        where=key,
        seen=f"Of the {tensor.numel():,} values of {key} {nans:,} are NaN and {infinite:,} infinite.",
        why="One such value makes everything computed from it NaN, so the model's output carries nothing.",
        advice=RESTORE,
        numbers=figures(values=nans + infinite, nan=nans, size=tensor.numel()),
    )


def _zeros(key: str, tensor: Tensor, row: Row) -> Iterator[Finding]:
    """Find tensors that are all zero, and rows that are."""
    if not row.dead_channels:
        return
    if row.dead_channels < tensor.shape[0]:
        yield _dead(row.path, row.dead_channels, tensor.shape[0], "rows of weights hold only zeros")
        return
    yield Finding(
        code="dead-layer",
        severity=Severity.WARNING,
        where=row.path,
        seen=f"All {tensor.numel():,} values of {key} are zero.",
        why="Whatever comes in, the layer puts out its bias: nothing of the input passes.",
        advice="Right for a branch that starts at zero and was not trained yet (LoRA's second factor, the last layer "
        "of a residual block); otherwise look at how the file was written and at what the optimizer was given.",
        numbers=figures(size=tensor.numel()),
    )


def _dead(where: str, dead: int, channels: int, what: str) -> Finding:
    return Finding(
        code="dead-channels",
        severity=Severity.WARNING if dead >= MANY_CHANNELS * channels else Severity.INFO,
        where=where,
        seen=f"{dead:,} of {channels:,} {what} in {where}.",
        why="A row is an output channel (an input channel of a transposed convolution): nothing of the input passes "
        "through it, and it still costs memory and compute.",
        advice="Prune these channels, or look for what drove them to zero: weight decay on weights that a normalizer "
        "makes scale-free, a pruning mask, a branch that gets no gradient.",
        numbers=figures(dead=dead, channels=channels),
    )


EMBEDDING, CONVOLUTION, HEAD, NORMALIZER, OTHER = "embedding", "convolution", "output head", "normalizer", "other"

_BLOCK = r"(mlp|ffn|feed_?forward|ff|layers?[._]?\d+|blocks?[._]?\d+|h\.\d+|resblocks\.\d+)\."
"""Inside a block of a transformer, where plain names as `fc1` mean one thing."""

MATRICES: tuple[tuple[str, str], ...] = (
    ("attention q", r"q|query|wq|to_q|q_(proj|lin|a_proj|b_proj)|query_proj|linear_q"),
    ("attention k", r"k|key|wk|to_k|k_(proj|lin)|key_proj|linear_k"),
    ("attention v", r"v|value|wv|to_v|v_(proj|lin)|value_proj|linear_v"),
    (
        "attention q, k, v",
        r"qkv|qkv_proj|wqkv|to_qkv|query_key_value|c_attn|in_proj_weight|in_proj|kv|to_kv|kv_proj|kv_[ab]_proj\w*",
    ),
    (
        "attention output",
        r"o_proj|(?<!densereludense\.)wo|to_out(\.0)?|out_lin|linear_o|out_proj"
        r"|(self_?|encdec|cross_?)?(attn|attention)(\.output)?\.(c_proj|proj|dense|o|out)",
    ),
    ("MLP gate", r"gate_proj|(feed_forward|ffn|experts\.\d+)\.w1"),
    ("MLP gate and up", r"gate_up_proj"),
    (
        "MLP up",
        rf"up_proj|c_fc|dense_h_to_4h|intermediate\.dense|wi(_[01])?|fc_in|(feed_forward|ffn|experts\.\d+)\.w3"
        rf"|{_BLOCK}(fc1|lin1|linear1)",
    ),
    (
        "MLP down",
        rf"down_proj|mlp\.c_proj|dense_4h_to_h|\d\.output\.dense|densereludense\.wo|fc_out"
        rf"|(feed_forward|ffn|experts\.\d+)\.w2|{_BLOCK}(fc2|lin2|linear2)",
    ),
    (
        EMBEDDING,
        r"(\w+_)?(wte|wpe|emb|embed|embeddings?|embed_tokens|embed_positions|embed_in|embd)|tok_embeddings|shared",
    ),
    (HEAD, r"lm_head|embed_out|classifier|score|head"),
)
"""Roles of matrices and the names (the end of a path, in small letters) they go by; the first that fits counts."""

ORDER = (
    EMBEDDING,
    *(role for role, _ in MATRICES if role not in (EMBEDDING, HEAD)),
    CONVOLUTION,
    HEAD,
    NORMALIZER,
    OTHER,
)
"""The order of groups in a report."""

_MATRICES = [(role, re.compile(rf"(^|\.)({names})$")) for role, names in MATRICES]
_NORM = re.compile(r"(norm(?!al(?!i[sz]))|^(ln|bn|gn|rms)(_?\w{1,5})?$)")
_SCALES = ("weight", "scale", "gamma", "g")


def role_of(key: str, shape: Sequence[int]) -> str:
    """Return what a tensor does, one of `ORDER`.

    Args:
        key: its name in the file, e.g. `model.layers.3.self_attn.q_proj.weight`.
        shape: its shape: a matrix cannot be a normalizer's scale, nor a vector a projection.

    Example:
        >>> role_of("model.layers.3.self_attn.q_proj.weight", (2048, 2048))
        'attention q'
        >>> role_of("model.layers.3.input_layernorm.weight", (2048,))
        'normalizer'
        >>> role_of("model.layers.3.mixer.A_log", (24, 16))
        'other'
    """
    path, _, last = key.lower().rpartition(".")
    if len(shape) == 1:
        return NORMALIZER if last in _SCALES and _NORM.search(path.rpartition(".")[2]) else OTHER
    if 3 <= len(shape) <= 5:
        return CONVOLUTION if last in ("weight", "kernel") else OTHER
    if len(shape) != 2:
        return OTHER
    name = path if last in ("weight", "kernel") and path else key.lower()
    return next((role for role, names in _MATRICES if names.search(name)), OTHER)
