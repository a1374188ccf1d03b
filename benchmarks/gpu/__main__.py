"""Figures of the GPU at hand: operators, steps, memory.

    python benchmarks/gpu -o benchmarks/gpu_h100.json

Times the distinct operators of GPT-2-XL and Llama-3-8B and says how far the profile's roofline is from
them, by operator; then trains both on one device, the module as it was and as emitted, eagerly and under
`torch.compile`, and sets step time and peak memory beside the plan's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
import torch.distributed as dist
from ops import classes, measure, table
from steps import Case, line, run

from autopar.utils.cache import write as to_file
from cost_models.hardware import Hardware, detect, load, save
from cost_models.measured.curves import curves

CASES = (
    Case("GPT-2-XL", None, 4, 1024, precision="bfloat16"),
    Case("GPT-2-XL", 12, 4, 1024, precision="bfloat16", compiled=True),
    Case("GPT-2-XL", 12, 4, 1024),
    Case("GPT-2-XL", 12, 4, 1024, recompute="full"),
    Case("Llama-3-8B", 8, 2, 4096, "bfloat16"),
    Case("Llama-3-8B", 8, 2, 4096, "bfloat16", recompute="selective"),
    Case("Llama-3-8B", 8, 2, 4096, "bfloat16", compiled=True),
)


def main() -> None:
    """Measure what is asked for, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=("ops", "steps"), default=("ops", "steps"))
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of steps' cases; none: all")
    parser.add_argument("--database", type=Path, help="SQLite file that keeps the times")
    parser.add_argument("--profile", type=Path, help="TOML file for the profile with its curves")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    hardware = load(detect())
    content: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(0),
        "software": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
    }
    with tempfile.TemporaryDirectory() as scratch:
        path = asked.database or Path(scratch) / "times.sqlite"
        if "ops" in asked.parts:
            content |= operators(hardware, path, asked.profile)
            write(content, asked.output)
        if "steps" in asked.parts:
            alone(Path(scratch) / "store")
            content["steps"] = []
            for number in asked.cases or range(len(CASES)):
                known = path if path.is_file() else None
                content["steps"].append(run(CASES[number], hardware, known))
                write(content, asked.output)
            dist.destroy_process_group()
    show(content)


def operators(hardware: Hardware, path: Path, profile: Path | None) -> dict[str, Any]:
    """Times, errors by class, and the profile that they make."""
    every = measure(hardware, path)
    if profile is not None:
        told = replace(hardware.device, curves=curves(every, hardware.device))
        save(replace(hardware, device=told), profile)
    return {
        "classes": classes(every, hardware.device),
        "operators": [asdict(timed) for timed in every],
    }


def alone(store: Path) -> None:
    """The default group of one rank."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)


def write(content: dict[str, Any], output: Path | None) -> None:
    """As far as it is; whole or not at all."""
    if output is None:
        return
    to_file(json.dumps(content, indent=1) + "\n", output)


def show(content: dict[str, Any]) -> None:
    """The tables."""
    print(f"{content['device']}, {content['software']}, {content['date']}")
    if "classes" in content:
        print(table(content["classes"]))
    for row in content.get("steps", ()):
        print(line(row))


if __name__ == "__main__":
    main()
