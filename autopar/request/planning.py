"""The `planning=` option: how plans are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Planning:
    """The inputs and permissions of planning.

    - `database`: a file of operator times that `autopar profile` measured on this device.
    - `allow_undivided`: permits a preset, a constraint or local batches that shard nothing.
    - `source`: an emitted file that was edited by hand, which runs instead of the emitted source.
    """

    database: Path | None = None
    allow_undivided: bool = False
    source: Path | None = None

    def __post_init__(self) -> None:
        for name in ("database", "source"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else Path(given))
