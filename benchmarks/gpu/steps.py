"""A training step on one GPU: the original module against the emitted one, its memory and prediction."""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from models import batch_of, built

import autopar
from autopar.plans.estimate import Estimate
from cost_models.hardware import Hardware

WARM, STEPS = 3, 10


@dataclass(frozen=True)
class Case:
    """A model on one device; `precision` None trains it as it is."""

    model: str
    layers: int | None
    rows: int
    tokens: int
    dtype: str = "float32"
    precision: str | None = None
    recompute: str | None = None
    compiled: bool = False


@dataclass(frozen=True)
class Found:
    """Seconds of a step, median and half the distance of the quartiles, the last loss, and peaks."""

    step_s: float
    spread: float
    loss: float
    peak_nbytes: int
    """By `torch.cuda.max_memory_allocated`, within a step."""


def measured(make: Callable[[], Callable[[], torch.Tensor]]) -> Found:
    """Build a step, warm up, time it, and let go of all of it."""
    gc.collect()
    torch.cuda.empty_cache()
    step = make()
    for _ in range(WARM):
        loss = step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(STEPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        loss = step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    found = Found(middle, (high - low) / 2 / middle, float(loss), torch.cuda.max_memory_allocated())
    del step, loss
    gc.collect()
    torch.cuda.empty_cache()
    return found


def stepping(
    module: Any, batch: dict[str, Any], precision: str | None = None
) -> Callable[[], torch.Tensor]:
    """One step of fused AdamW; the loss as a plain tensor."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        if precision is None:
            out = module(**batch)
        else:
            with torch.autocast("cuda", getattr(torch, precision)):
                out = module(**batch)
        loss = out if torch.is_tensor(out) else out.loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def run(case: Case, hardware: Hardware, database: Path | None) -> dict[str, Any]:
    """All that is asked of a case; original and emitted module in turns, twice."""
    dtype = getattr(torch, case.dtype)
    batch = batch_of(case.rows, case.tokens, "cuda")
    estimates: dict[str, Estimate] = {}

    def original() -> Callable[[], torch.Tensor]:
        model = built(case.model, case.layers, dtype, "cuda")
        if case.compiled:
            model.compile()
        return stepping(model, batch, case.precision)

    def emitted() -> Callable[[], torch.Tensor]:
        model = built(case.model, case.layers, dtype, "cuda")
        options: dict[str, Any] = {"hardware": hardware, "precision": case.precision,
                                   "recompute": case.recompute, "memory_limit": "none"}  # fmt: skip
        priced = autopar.parallelize(
            model, 1, batch, planning=autopar.Planning(database=database), **options
        )
        if database is not None:
            estimates["with times"] = priced.plan.estimate
        if case.compiled:
            priced.compile()
        return stepping(priced, batch)

    found: dict[str, list[Found]] = {"original": [], "emitted": []}
    for _ in range(1 if case.compiled else 2):
        if case.recompute is None:
            found["original"].append(measured(original))
        found["emitted"].append(measured(emitted))
    bare = autopar.plan(
        built(case.model, case.layers, dtype, "meta"), 1, batch, hardware=hardware,
        precision=case.precision, recompute=case.recompute, memory_limit="none",
    )  # fmt: skip
    estimates["by the profile"] = bare.estimate
    row = {
        "case": asdict(case),
        **{key: [asdict(one) for one in every] for key, every in found.items() if every},
        "predicted_s": {key: e.step_s for key, e in estimates.items()},
        "predicted_nbytes": bare.estimate.memory_nbytes,
    }
    print(line(row), file=sys.stderr, flush=True)
    return row


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    case = row["case"]
    ours = min(one["step_s"] for one in row["emitted"])
    peak = row["emitted"][-1]["peak_nbytes"]
    memory = row["predicted_nbytes"] / peak - 1
    predicted = row["predicted_s"]
    parts = [
        f"{case['model']}, {case['layers'] or 'all'} layers, {case['rows']} x {case['tokens']}, "
        f"{case['precision'] or case['dtype']}, recompute {case['recompute']}, "
        f"compiled {case['compiled']}:",
        f"emitted {ours * 1e3:.1f} ms",
    ]
    if "original" in row:
        theirs = min(one["step_s"] for one in row["original"])
        same = row["emitted"][-1]["loss"] - row["original"][-1]["loss"]
        again = row["original"][-1]["step_s"] / row["original"][0]["step_s"]
        parts.append(
            f"original {theirs * 1e3:.1f}, ratio {ours / theirs:.3f} (original again {again:.3f}), "
            f"losses differ by {same:.1e}, "
            f"original's peak {row['original'][-1]['peak_nbytes'] / 1e9:.2f} GB"
        )
    parts += [
        f"predicted {key} {s * 1e3:.1f} ({s / ours - 1:+.0%})" for key, s in predicted.items()
    ]
    parts.append(
        f"peak {peak / 1e9:.2f} GB, predicted {row['predicted_nbytes'] / 1e9:.2f} ({memory:+.1%})"
    )
    return ", ".join(parts)
