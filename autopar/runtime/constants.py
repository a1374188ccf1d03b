"""Constants of emitted modules: each is copied to the device once, not in every step."""

from __future__ import annotations

from typing import Any

import torch


class Constants:
    """The constant tensors of one model, by their values."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, torch.dtype], tuple[torch.Tensor, int]] = {}

    def of(self, values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the tensor of these values: nested lists, or a number."""
        if torch.compiler.is_compiling():
            return torch.tensor(values, dtype=dtype, device=device)
        key = repr(values), dtype
        made, version = self._made.get(key, (None, 0))
        if made is None or made._version != version:  # a result that the user changed in place
            with torch.inference_mode(False):
                made = torch.tensor(values, dtype=dtype, device=device)
            self._made[key] = made, made._version
        return made

    def apart(self, result: torch.Tensor) -> torch.Tensor:
        """Return a result of the model; copied if it is in a constant, as NumPy writes unseen."""
        if torch.compiler.is_compiling() or not self._made:
            return result
        storage = result.untyped_storage()._cdata
        shared = any(made.untyped_storage()._cdata == storage for made, _ in self._made.values())
        return result.clone() if shared else result
