"""The machine at hand, as a setting."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from cost_models.measured.values import Setting

TOLD_APART = {
    "cpu family": "family", "model": "model", "stepping": "stepping", "cache size": "cache",
    "CPU implementer": "implementer", "CPU part": "part", "CPU revision": "revision",
}  # fmt: skip
"""Lines of /proc/cpuinfo, on x86 and on ARM, and what we call them."""
WIDEST = ("avx512f", "avx2", "avx")
"""Vector instructions, the widest first: a hypervisor may hide them."""


def here(kind: str, threads: int = 1, ranks: int = 1) -> Setting:
    """This machine's CPU, shared by so many ranks of so many threads, or its first GPU (``cuda``)."""
    import torch

    software = f"torch {torch.__version__}"
    if kind == "cpu":
        return Setting(processor(), "cpu", 0.0, software, threads, ranks, cores())
    found = torch.cuda.get_device_properties(0)
    built = torch.version.hip or torch.version.cuda
    return Setting(found.name, kind, float(found.total_memory), f"{software}, runtime {built}")


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the system calls the CPU, and what tells CPUs of one name apart, where it says so.

    A virtual machine's may be called `AMD EPYC`, whichever of several generations runs it.
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
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0
