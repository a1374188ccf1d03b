"""Methods of a model without stages that a pipeline does not have; each names the alternative."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from autopar.errors import InputError


class WithoutStages:
    """Refuses what works only without stages."""

    def no_sync(self) -> NoReturn:
        """Raise `InputError`, which says what to do instead."""
        raise InputError(
            "A pipeline has no no_sync(): every train_step adds to the existing gradients. Call "
            "it several times before optimizer.step()."
        )

    def save_weights(self, path: str | Path, *, file_size: float = 5e9) -> NoReturn:
        """Raise `InputError`, which says what to do instead."""
        raise InputError(
            "A pipeline has no save_weights() yet. Call parallel.full_state_dict() on every "
            "rank and write it on one of them (safetensors.torch.save_file), or call "
            "parallel.save(path)."
        )
