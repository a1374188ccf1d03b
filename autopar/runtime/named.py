"""Spans in the trace of a profiler: where none is active they cost one look."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from autopar.runtime import _torch

PREFIX = "autopar: "
"""What every name begins with."""
CHECKS = "checks | | "
"""What ranks tell each other beside the step: no operator and no collective of the plan."""


def named(name: str) -> AbstractContextManager[Any]:
    """A span in the trace of an active profiler; without one, nothing."""
    if not _torch.profiling():
        return nullcontext()
    return torch.profiler.record_function(PREFIX + name)


def label(path: str, place: str, verb: str = "", axis: str = "") -> str:
    """``transformer.h.0 | modeling_gpt2.py:304 | all_gather y``, as traces have it."""
    return " | ".join([path, place, f"{verb} {axis}".strip()])
