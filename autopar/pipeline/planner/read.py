"""Reads files with the costs of layers, in the format of autopar, Piper or dnn-partitioning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from autopar.pipeline.planner.read_dnn_partitioning import (
    read_dnn_partitioning,
    unread_in_dnn_partitioning,
)
from autopar.pipeline.planner.read_piper import read_piper, unread_in_piper
from autopar.pipeline.planner.workload import Workload
from autopar.pipeline.planner.workload_text import from_json


class Format(NamedTuple):
    """A format of files: a key that identifies it, at the top level or in the first of its ``nodes``.

    `unread` lists the keys of a file that are not read.
    """

    key: str
    read: Callable[[str], Workload]
    unread: Callable[[str], Iterable[str]]


FORMATS = (
    Format("layers", from_json, lambda text: ()),
    Format("TMPCs", read_piper, unread_in_piper),
    Format("fpgaLatency", read_dnn_partitioning, unread_in_dnn_partitioning),
)
KEYS = {"maxDevices": "TMPCs", "maxFPGAs": "fpgaLatency"}
"""Keys of whole files of these formats, for files whose first node is damaged."""


def read_workload(text: str, content: object) -> Workload | None:
    """Return the workload of a file, or None if it is in none of these formats.

    `content` is its parsed JSON.  Raises `PlanError` if the file is damaged.
    """
    found = _format_of(content)
    return None if found is None else found.read(text)


def unread_keys(text: str, content: object) -> tuple[str, ...]:
    """Return the keys of a file of these formats that are not read, each with the place where it is."""
    found = _format_of(content)
    return () if found is None else tuple(sorted(set(found.unread(text))))


def _format_of(content: object) -> Format | None:
    if not isinstance(content, dict):
        return None
    nodes: Any = content.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else {}
    keys = {*content, *(first if isinstance(first, dict) else ())}
    keys |= {KEYS[key] for key in keys & KEYS.keys()}
    return next((each for each in FORMATS if each.key in keys), None)
