"""Start the processes, collect their figures, make a profile of them."""

from __future__ import annotations

import datetime
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from cost_models.calibrate.fit import fit_line
from cost_models.calibrate.measure import QUICK, Effort, Measured, measure
from cost_models.errors import CostModelError
from cost_models.hardware import Device, Fit, Hardware, Link

LIMIT_S = 120.0
NOMINAL_ETHERNET_BYTES_PER_S, NOMINAL_ETHERNET_LATENCY_S = 125e6, 1e-4
"""Between hosts nothing is measured: gigabit Ethernet is assumed, and the profile says so."""
OVERLAP = 0.3
"""Share of compute under which gloo's threads hide communication where cores are shared; assumed."""


def calibrate(
    quick: bool = False,
    ranks: Sequence[int] = (2, 4),
    progress: Callable[[str], None] | None = None,
) -> Hardware:
    """Measure this machine's cores and gloo among 1 and `ranks` local processes.

    Raises `CostModelError` where a process fails or takes longer than two minutes.
    """
    tell = progress or (lambda _: None)
    effort = QUICK if quick else Effort()
    found: dict[int, list[Measured]] = {}
    for count in (1, *ranks):
        tell(f"measuring with {count} process{'es' if count > 1 else ''} ...")
        found[count] = _run(count, effort)
    return _profile(found)


def _run(count: int, effort: Effort) -> list[Measured]:
    """The figures of `count` processes that measure at the same time."""
    context = get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory(prefix="autopar_calibrate_") as folder:
        store = str(Path(folder) / "store")
        workers = [
            context.Process(target=_worker, args=(rank, count, store, effort, answers), daemon=True)
            for rank in range(count)
        ]
        for worker in workers:
            worker.start()
        try:
            return _collect(answers, workers)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()


def _collect(answers: Any, workers: Sequence[Any]) -> list[Measured]:
    found: list[Measured] = []
    end = time.monotonic() + LIMIT_S
    while len(found) < len(workers):
        if time.monotonic() > end:
            raise CostModelError(
                f"Calibration took longer than {LIMIT_S:.0f} s; is the machine busy?"
            )
        try:
            answer = answers.get(timeout=1.0)
        except Exception:
            if any(worker.exitcode not in (0, None) for worker in workers):
                raise CostModelError("A calibration process died; see its output above.") from None
            continue
        if isinstance(answer, str):
            raise CostModelError(f"A calibration process failed: {answer}")
        found.append(answer)
    return found


def _worker(rank: int, count: int, store: str, effort: Effort, answers: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        limit = datetime.timedelta(seconds=LIMIT_S)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=limit
        )
        answers.put(measure(effort))
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


def _profile(found: dict[int, list[Measured]]) -> Hardware:
    alone = found[1][0]
    fits, worst = _fits({count: group for count, group in found.items() if count > 1})
    fastest = max(fits, key=lambda fit: fit.bytes_per_s)
    cores = os.cpu_count() or 1
    return Hardware(
        device=Device(
            name="cpu",
            kind="cpu",
            memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            flops_per_s=alone.flops_per_s,
            bytes_per_s=alone.bytes_per_s,
            launch_s=alone.launch_s,
            overlap=OVERLAP,
        ),
        devices_per_host=64,
        intra_host=Link(fastest.bytes_per_s, min(fit.latency_s for fit in fits), fits),
        inter_host=Link(NOMINAL_ETHERNET_BYTES_PER_S, NOMINAL_ETHERNET_LATENCY_S),
        source=(
            f"measured by autopar calibrate on {cores} cores ({platform.machine()}), one thread per "
            f"rank; fitted collectives are off by {worst:.0%} at most; between hosts: gigabit "
            "Ethernet assumed"
        ),
        date=datetime.date.today().isoformat(),
        shared={count: _shares(group, alone) for count, group in found.items()},
    )


def _shares(group: list[Measured], alone: Measured) -> dict[str, float]:
    """What is left of the device for each of the processes that ran together."""
    flops = [m.flops_per_s["float32"] / alone.flops_per_s["float32"] for m in group]
    return {
        "flops": round(median(flops), 4),
        "bytes": round(median(m.bytes_per_s / alone.bytes_per_s for m in group), 4),
        "launch": round(median(m.launch_s / alone.launch_s for m in group), 4),
    }


def _fits(found: dict[int, list[Measured]]) -> tuple[tuple[Fit, ...], float]:
    fits, worst = [], 0.0
    for count, group in found.items():
        for kind, ranks in group[0].collectives:
            sizes = sorted(group[0].collectives[kind, ranks])
            slowest = [max(m.collectives[kind, ranks][size] for m in group) for size in sizes]
            line = fit_line(sizes, slowest)
            worst = max(worst, line.error)
            fits.append(Fit(kind, ranks, line.latency_s, line.bytes_per_s, count))
    return tuple(_not_below_gather(fit, fits) for fit in fits), worst


def _not_below_gather(fit: Fit, fits: list[Fit]) -> Fit:
    """An all-reduce contains an all-gather; where small messages say otherwise it is noise, and
    would make planners sum zeros instead of gathering shards."""
    if fit.collective != "all_reduce":
        return fit
    gather = next(
        other
        for other in fits
        if (other.collective, other.ranks, other.host_ranks)
        == ("all_gather", fit.ranks, fit.host_ranks)
    )
    return replace(
        fit,
        latency_s=max(fit.latency_s, gather.latency_s),
        bytes_per_s=min(fit.bytes_per_s, gather.bytes_per_s),
    )
