"""Distinct operators of GPT-2-XL and Llama-3-8B: timed, and how far the roofline is from them."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from models import batch_of, built

from autopar.api import captured_by
from autopar.cost.timed import setting_here
from autopar.profile import Timing, profile
from autopar.request.options import Options
from cost_models.curves import operator
from cost_models.hardware import Hardware
from cost_models.machine import Device
from cost_models.measured import Database, Timed
from cost_models.measured.curves import curves
from cost_models.ops import op_seconds


@dataclass(frozen=True)
class Wanted:
    """One plan whose operators are timed."""

    model: str
    rows: int
    tokens: int
    devices: int
    preset: str
    dtype: torch.dtype = torch.float32
    precision: str | None = None


WANTED = (
    Wanted("GPT-2-XL", 4, 1024, 1, "ddp", precision="bfloat16"),
    Wanted("GPT-2-XL", 4, 1024, 1, "ddp"),
    Wanted("Llama-3-8B", 2, 4096, 1, "ddp", torch.bfloat16),
    Wanted("GPT-2-XL", 8, 1024, 4, "fsdp", precision="bfloat16"),
    Wanted("Llama-3-8B", 4, 2048, 8, "megatron", torch.bfloat16),
)
"""The last two are there for other local sizes."""


def measure(hardware: Hardware, path: Path, wanted: Iterable[Wanted] = WANTED) -> list[Timed]:
    """All that these plans run on a rank."""
    for one in wanted:
        started = time.perf_counter()
        model = built(one.model, 2, one.dtype, "meta")  # layers are alike
        options = Options.of(preset=one.preset, precision=one.precision, memory_limit="none")
        inputs = batch_of(one.rows, one.tokens, "meta")
        compiler, graph = captured_by(model, one.devices, inputs, hardware, options)
        timing = Timing(path, setting_here(hardware, compiler.mesh))
        found = profile(compiler, graph, timing)
        for each in found.refused:
            print(f"not timed: {each.call.text}: {each.reason}", file=sys.stderr)
        took_s = time.perf_counter() - started
        print(f"{one}: {len(found.timed)} calls timed in {took_s:.0f} s", file=sys.stderr)
    database = Database(path)
    (setting,) = database.settings()
    return list(database.read(setting).values())


def off_by(timed: Timed, device: Device) -> Iterator[tuple[str, float]]:
    """Of each pass the modelled seconds relative to the measured ones, minus one."""
    for name, work, took in (
        ("forward", timed.call.forward, timed.forward),
        ("backward", timed.call.backward, timed.backward),
    ):
        if work is not None and took is not None and work.nbytes:
            modelled_s = op_seconds(
                work.flops, work.nbytes, work.dtype, device, work.op, work.direction
            )
            yield name, modelled_s / took.seconds - 1


def other_half(every: list[Timed], device: Device) -> dict[str, list[float]]:
    """Errors of curves that were made of the calls that are not asked for: every second one."""
    ordered = sorted(every, key=lambda timed: (timed.call.op, timed.call.forward.nbytes))
    found: dict[str, list[float]] = defaultdict(list)
    for part in (0, 1):
        told = replace(device, curves=curves(ordered[part::2], device))
        for timed in ordered[1 - part :: 2]:
            found[operator(timed.call.op)] += [abs(e) for _, e in off_by(timed, told)]
    return found


def classes(every: list[Timed], device: Device) -> list[dict[str, Any]]:
    """By operator: calls, seconds, and errors of the roofline, of curves, of curves from other calls."""
    bare = replace(device, curves=())
    told = replace(device, curves=curves(every, device))
    unseen = other_half(every, bare)
    by_class: dict[str, list[Timed]] = defaultdict(list)
    for timed in every:
        by_class[operator(timed.call.op)].append(timed)
    rows = []
    for name, members in by_class.items():
        roofline = [abs(e) for timed in members for _, e in off_by(timed, bare)]
        if not roofline:
            continue
        curve = [abs(e) for timed in members for _, e in off_by(timed, told)]
        rows.append(
            {
                "operator": name,
                "calls": len(members),
                "seconds": sum(map(_seconds, members)),
                "roofline": _spread(roofline),
                "curve": _spread(curve),
                "curve from other calls": _spread(unseen[name]),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: -row["seconds"])


def _seconds(timed: Timed) -> float:
    return timed.forward.seconds + (timed.backward.seconds if timed.backward else 0.0)


def _spread(errors: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(errors), 4), "worst": round(max(errors), 4)}


def table(rows: list[dict[str, Any]]) -> str:
    """What a person reads."""
    lines = [
        f"{'operator':32}{'calls':>6}{'ms':>9}{'roofline':>16}{'curve':>16}{'from others':>16}"
    ]
    for row in rows:
        errors = "".join(
            f"{row[key]['median']:>8.0%}{row[key]['worst']:>8.0%}"
            for key in ("roofline", "curve", "curve from other calls")
        )
        lines.append(f"{row['operator']:32}{row['calls']:>6}{row['seconds'] * 1e3:>9.2f}{errors}")
    return "\n".join(lines)
