"""Named spans in profiler traces; without an active profiler they cost one check."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from autopar.runtime import _torch

PREFIX = "autopar: "
"""Prefix of every span's name."""
PERMUTE = "permute"
"""Span of an exchange with one rank, which the backend calls an all-to-all."""
CHECKS = "checks | | "
"""Span of checks between ranks, which are no operators or collectives of the plan."""


def named(name: str) -> AbstractContextManager[Any]:
    """Return a span for the trace of an active profiler; a null context without one."""
    if not _torch.profiling():
        return nullcontext()
    return torch.profiler.record_function(PREFIX + name)


def label(path: str, place: str, verb: str = "", axis: str = "") -> str:
    """Return a span's label, such as ``transformer.h.0 | modeling_gpt2.py:304 | all_gather y``."""
    return " | ".join([path, place, f"{verb} {axis}".strip()])
