"""Reads files with the costs of layers, in the format of autopar, Piper or dnn-partitioning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autopar.pipeline.planner.read_dnn_partitioning import read_dnn_partitioning
from autopar.pipeline.planner.read_piper import read_piper
from autopar.pipeline.planner.workload import Workload
from autopar.pipeline.planner.workload_text import from_json

READERS: Mapping[str, Callable[[str], Workload]] = {
    "layers": from_json, "TMPCs": read_piper, "fpgaLatency": read_dnn_partitioning,
}  # fmt: skip
"""Readers by a key that identifies their format, at the top level or in the first of its ``nodes``."""


def read_workload(text: str, content: object) -> Workload | None:
    """Return the workload of a file, or None if it is in none of these formats.

    `content` is its parsed JSON.  Raises `PlanError` if the file is damaged.
    """
    reader = _reader(content)
    return None if reader is None else reader(text)


def _reader(content: object) -> Callable[[str], Workload] | None:
    if not isinstance(content, dict):
        return None
    nodes: Any = content.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else {}
    keys = {*content, *(first if isinstance(first, dict) else ())}
    return next((reader for key, reader in READERS.items() if key in keys), None)
