"""Whether a captured graph is the one a domain was recorded with: one digest per operator."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from ...graph.ir import Graph, Node, Ref, Unit, leaves


def digests(graph: Graph) -> dict[str, str]:
    """Return a digest of every operator of a float64 graph: what it is, what it reads, its constants."""
    found = {item.name: hashlib.sha256(f"input {item.shape}".encode()).hexdigest() for item in graph.inputs}
    return found | {node.name: _digest(node) for node in graph}


def _digest(node: Node) -> str:
    digest = hashlib.sha256(f"{node.op} {node.index} {node.shape} {list(node.kwargs)}".encode())
    data = node.op.data if isinstance(node.op, Unit) else {}
    for leaf in leaves((node.args, node.kwargs, data)):
        digest.update(_bytes(leaf))
    return digest.hexdigest()


def _bytes(leaf: Any) -> bytes:
    if isinstance(leaf, Tensor):
        plain = leaf.detach().cpu().contiguous()
        return f"{plain.dtype} {tuple(plain.shape)}".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(leaf, Ref):
        return f"ref {leaf.name}".encode()
    return repr(leaf).encode() if isinstance(leaf, int | float | str | bool | None | torch.dtype) else b""
