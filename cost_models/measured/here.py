"""The machine at hand, as a setting."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from cost_models.measured.values import Setting


def here(kind: str, threads: int = 1, ranks: int = 1) -> Setting:
    """This machine's CPU, shared by so many ranks of so many threads, or its first GPU (``cuda``)."""
    import torch

    software = f"torch {torch.__version__}"
    if kind == "cpu":
        return Setting(processor(), "cpu", 0.0, software, threads, ranks, cores())
    found = torch.cuda.get_device_properties(0)
    built = torch.version.hip or torch.version.cuda
    return Setting(found.name, kind, float(found.total_memory), f"{software}, runtime {built}")


def processor() -> str:
    """What the system calls the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0
