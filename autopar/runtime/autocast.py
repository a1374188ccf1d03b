"""Autocast around a call: the casts stand in the emitted code, as the plan's precision says."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from autopar.errors import InputError


def check_autocast(device: str, precision: str) -> None:
    """Raise `InputError` where one process would compute in another precision than the plan's."""
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
    """Within, no operator is cast but where the emitted code says so."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)
