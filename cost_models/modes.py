"""Modes of a profile: ways to run a step that take other times than eager PyTorch on the same device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cost_models.ranges import SECONDS

CHANGED = (
    "launch_s", "issue_s", "matmul_efficiency", "memory_efficiency", "overlap", "lays_out",
)  # fmt: skip
"""Figures of the device that a mode may replace."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A named mode, such as "compiled" or "megatron": figures that replace those of the device.

    None leaves the device's own.  The figures are described in `machine.Device`.
    """

    source: str
    date: str
    launch_s: float | None = None
    issue_s: float | None = None
    matmul_efficiency: float | None = None
    memory_efficiency: float | None = None
    overlap: float | None = None
    lays_out: bool | None = None

    def changes(self) -> dict[str, Any]:
        """Return the replaced figures by name."""
        values = {name: getattr(self, name) for name in CHANGED}
        return {name: value for name, value in values.items() if value is not None}

    def figures(self, name: str) -> Iterator[tuple[str, float, str]]:
        """Yield key, value and required range of every number."""
        for key, value in self.changes().items():
            if key in ("launch_s", "issue_s"):
                yield f"{name}.{key}", value, SECONDS
            elif key != "lays_out":
                yield f"{name}.{key}", value, "between 0 and 1"
            if key.endswith("_efficiency"):
                yield f"{name}.{key}", value, "positive"
