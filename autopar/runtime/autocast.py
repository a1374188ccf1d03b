"""Handles autocast around a call: the emitted code has the casts, by the plan's precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from autopar.errors import InputError


def check_autocast(device: str, precision: str) -> None:
    """Raise `InputError` if the active autocast differs from the plan's precision."""
    if not torch.is_autocast_enabled(device):
        return
    dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    if precision != f"autocast {dtype}":
        raise InputError(
            f"torch.autocast({device!r}, dtype=torch.{dtype}) is on around this call, but the step was "
            f"planned for the precision {precision!r}. Pass autopar.parallelize "
            f"precision=torch.autocast({device!r}, dtype=torch.{dtype}), or call the parallel model "
            "outside of autocast."
        )


def no_autocast(device: str) -> AbstractContextManager[None]:
    """Disable autocast inside: only the emitted code casts."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)
