"""Saves the state of each process besides model and optimizer: generators, scheduler, scaler, extra."""

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
    """The objects to save, each with a ``state_dict()`` or plain data (`extra`: its values)."""

    scheduler: Any
    scaler: Any
    extra: dict[str, Any]

    def _parts(self) -> dict[str, Any]:
        """Return the objects by their names in messages."""
        parts = {"scheduler": self.scheduler, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None} | {
            f"extra[{name!r}]": part for name, part in self.extra.items()
        }

    def write(self, folder: Path) -> None:
        """Write this rank's file."""
        states = {name: _state_of(part) for name, part in self._parts().items()}
        values.write(folder, f"process-{rank()}", states | {GENERATORS: generators.state()})

    def read(self, found: Checkpoint) -> dict[str, Any]:
        """Return the states for this rank.

        Raise `CheckpointError` if one is missing, or if it differs between ranks and the number of
        ranks is not that of the save.
        """
        if found.manifest is None:
            if self._parts():
                raise CheckpointError(
                    f"{found.path} was written by a version of autopar that did not save "
                    f"{next(iter(self._parts()))}: load it without."
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
        """Raise `CheckpointError` unless all ranks saved equal states.

        Only these can be loaded on another number of ranks.
        """
        first = values.read(found.folder, "process-0") if self._parts() else {}
        for number in range(1, wrote if first else 0):
            other = values.read(found.folder, f"process-{number}")
            for name in self._parts():
                if not _is_same(first[name], other.get(name)):
                    raise CheckpointError(
                        f"{found.path} was written by {wrote} ranks, each with its own {name}: "
                        "load it on as many, or leave it out."
                    )

    def snapshot(self) -> dict[str, Any]:
        """Return copies of the current states, for `restore`."""
        return {
            name: copy.deepcopy(_state_of(part)) if _loads(part) else part
            for name, part in self._parts().items()
        }

    def load(self, states: dict[str, Any]) -> None:
        """Load each object's state."""
        for name, part in self._parts().items():
            self._put(name, part, states[name])

    def restore(self, before: dict[str, Any]) -> None:
        """Restore the states that `snapshot` returned."""
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
        """Restore the process's generators if the number of ranks is that of the save.

        Warn on rank 0 if the checkpoint has no digests.
        """
        if found.manifest is None:
            if rank() == 0:
                warnings.warn(
                    f"{found.path} was written without digests: damage to it cannot be noticed. "
                    "Save again with this version of autopar.",
                    stacklevel=4,
                )
        elif found.manifest.about["ranks"] == size():
            generators.set_state(states[GENERATORS])


def _loads(part: Any) -> bool:
    return callable(getattr(part, "load_state_dict", None))


def _state_of(part: Any) -> Any:
    return part.state_dict() if callable(getattr(part, "state_dict", None)) else part


def _is_same(one: Any, other: Any) -> bool:
    """Whether two states have equal encodings."""
    found: list[Any] = []
    for each in (one, other):
        tensors: values.Tensors = {}
        found.append(
            (values.encode(each, "", tensors), {k: v.tolist() for k, v in tensors.items()})
        )
    return bool(found[0] == found[1])
