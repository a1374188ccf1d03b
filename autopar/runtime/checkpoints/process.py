"""What each process has of its own beside model and optimizer: generators, scheduler, scaler, extra."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopar.errors import CheckpointError
from autopar.runtime.checkpoints import generators, values
from autopar.runtime.checkpoints.opening import Checkpoint
from autopar.runtime.checkpoints.ranks import rank, size

GENERATORS = "generators"


@dataclass(frozen=True)
class Process:
    """`scheduler`, `scaler` and the values of `extra` have a ``state_dict()`` or are data."""

    scheduler: Any
    scaler: Any
    extra: dict[str, Any]

    def _parts(self) -> dict[str, Any]:
        """By what messages call them."""
        parts = {"scheduler": self.scheduler, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None} | {
            f"extra[{name!r}]": part for name, part in self.extra.items()
        }

    def write(self, folder: Path) -> None:
        """This rank's file."""
        states = {name: _state_of(part) for name, part in self._parts().items()}
        values.write(folder, f"process-{rank()}", states | {GENERATORS: generators.state()})

    def read(self, found: Checkpoint) -> dict[str, Any]:
        """The states for this rank; raise `CheckpointError` where one is not there, or not for it."""
        if found.manifest is None:
            if self._parts():
                raise CheckpointError(
                    f"{found.path} was written by an autopar that kept no {next(iter(self._parts()))}: "
                    "load it without."
                )
            return {}
        wrote = int(found.manifest.about["ranks"])
        own = values.read(found.folder, f"process-{rank() if rank() < wrote else 0}")
        absent = [name for name in self._parts() if name not in own]
        if absent:
            kept = ", ".join(name for name in own if name != GENERATORS) or "none of these"
            raise CheckpointError(
                f"{found.path} has no {absent[0]}: it was saved with {kept}. Pass what was saved."
            )
        if wrote != size():
            self._same_on_all(found, wrote)
        return dict(own)

    def _same_on_all(self, found: Checkpoint, wrote: int) -> None:
        """On another number of ranks only what all of them had is anybody's."""
        first = values.read(found.folder, "process-0") if self._parts() else {}
        for number in range(1, wrote if first else 0):
            other = values.read(found.folder, f"process-{number}")
            for name in self._parts():
                if not _is_same(first[name], other.get(name)):
                    raise CheckpointError(
                        f"{found.path} was written by {wrote} ranks, of which each had another {name}: "
                        "load it on as many, or leave it out."
                    )

    def snapshot(self) -> dict[str, Any]:
        """What `restore` sets again."""
        return {
            name: copy.deepcopy(_state_of(part)) if _loads(part) else part
            for name, part in self._parts().items()
        }

    def load(self, states: dict[str, Any]) -> None:
        """Give each its state."""
        for name, part in self._parts().items():
            self._put(name, part, states[name])

    def restore(self, before: dict[str, Any]) -> None:
        """As `snapshot` found them."""
        for name, part in self._parts().items():
            self._put(name, part, before[name])

    def _put(self, name: str, part: Any, state: Any) -> None:
        if _loads(part):
            part.load_state_dict(state)
            return
        key = next((key for key in self.extra if f"extra[{key!r}]" == name), None)
        if key is None:
            raise CheckpointError(f"{name} has no load_state_dict: pass the object itself.")
        self.extra[key] = state

    def resume(self, found: Checkpoint, states: dict[str, Any]) -> None:
        """The process' generators go on, where there are as many processes as then."""
        if found.manifest is None:
            if rank() == 0:
                warnings.warn(
                    f"{found.path} was written without digests: damage to it cannot be noticed. Save "
                    "again with this autopar.",
                    stacklevel=4,
                )
        elif found.manifest.about["ranks"] == size():
            generators.set_state(states[GENERATORS])


def _loads(part: Any) -> bool:
    return callable(getattr(part, "load_state_dict", None))


def _state_of(part: Any) -> Any:
    return part.state_dict() if callable(getattr(part, "state_dict", None)) else part


def _is_same(one: Any, other: Any) -> bool:
    """Of equal encodings."""
    found: list[Any] = []
    for each in (one, other):
        tensors: values.Tensors = {}
        found.append(
            (values.encode(each, "", tensors), {k: v.tolist() for k, v in tensors.items()})
        )
    return bool(found[0] == found[1])
