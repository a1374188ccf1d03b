"""Saves and restores a process's global random generators: Python's, NumPy's and torch's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def state() -> dict[str, Any]:
    """Return the states of all generators."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def set_state(found: dict[str, Any]) -> None:
    """Restore the states that `state` returned."""
    random.setstate(found["python"])
    np.random.set_state(found["numpy"])
    torch.set_rng_state(found["torch"])
    if found["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"][0])
