"""Describes the local machine as a setting of measured times."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from cost_models.measured.values import Setting

TOLD_APART = {
    "cpu family": "family", "model": "model", "stepping": "stepping", "cache size": "cache",
    "CPU implementer": "implementer", "CPU part": "part", "CPU revision": "revision",
}  # fmt: skip
"""Lines of /proc/cpuinfo, on x86 and on ARM, and their labels."""
WIDEST = ("avx512f", "avx2", "avx")
"""Vector instruction sets, widest first; a hypervisor may hide some."""


def here(kind: str, threads: int = 1, ranks: int = 1) -> Setting:
    """Return the setting of this CPU under `ranks` ranks of `threads` threads, or of the first GPU."""
    import torch

    software = f"torch {torch.__version__}"
    if kind == "cpu":
        return Setting(processor(), "cpu", 0.0, software, threads, ranks, cores())
    found = torch.cuda.get_device_properties(0)
    built = torch.version.hip or torch.version.cuda
    return Setting(found.name, kind, float(found.total_memory), f"{software}, runtime {built}")


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's model name with the properties that distinguish CPUs of the same name.

    A virtual machine may report just `AMD EPYC` for several generations.
    """
    try:
        first, _, _ = cpuinfo.read_text().partition("\n\n")
    except OSError:
        first = ""
    parts = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in parts}
    name = facts.get("model name") or platform.processor() or platform.machine()
    told = [f"{short} {facts[key]}" for key, short in TOLD_APART.items() if facts.get(key)]
    told += [each for each in WIDEST if each in facts.get("flags", "").split()][:1]
    return f"{name} ({', '.join(told)})" if told else name


def cores() -> int:
    """Return the number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0
