"""Reads names from a plan file: parameters, tensors, modules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KINDS = ("tensor", "module", "target")


def names_in(path: str | None, kind: str) -> list[str]:
    """Return the names of one kind in the plan's order; none if the file cannot be read as a plan."""
    try:
        content = json.loads(Path(path or "").read_text(encoding="utf-8"))
        plans = [each["plan"] for each in content["stages"]] if "stages" in content else [content]
        return list(dict.fromkeys(name for plan in plans for name in _names(plan, kind)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _names(plan: Any, kind: str) -> Iterator[str]:
    parameters = [each["name"] for each in plan["parameters"]]
    if kind != "module":
        yield from parameters
        yield from (each["node"] for each in plan["choices"])
    if kind != "tensor":
        for name in parameters:
            parts = name.split(".")[:-1]
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)))
