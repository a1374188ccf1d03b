"""The command ``autopar stages layers.json``: splits layers with known costs into pipeline stages."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.cli.flags import AS_JSON
from autopar.cli.output import console, save, working, writable
from autopar.cli.values import plain, print_json
from autopar.errors import InfeasibleError, InputError, PlanError
from autopar.pipeline.planner.read import read_workload, unread_keys
from autopar.pipeline.planner.throughput import Effort, ThroughputPlan, least_load
from autopar.pipeline.planner.workload import Workload
from autopar.render.text.loaded import loaded
from autopar.utils.io import text_of


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help="Costs of layers and devices as JSON, in the format of autopar, dnn-partitioning "
            "or Piper. A file may be compressed with gzip."
        ),
    ],
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="End the search after so long. Default: when the plan is proved, or after a fixed "
            "amount of work, so that the answer is the same on every machine.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", dir_okay=False, help="File to write the plan to, as JSON."),
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Split a graph of layers into pipeline stages of least load.

    It prints the stages, the seconds per microbatch of a full pipeline, and a bound: no split is faster.
    """
    started = time.perf_counter()
    writable(output, reads=[file])
    text = text_of(file, "the layers")
    workload, unread = _read(text, file)
    effort = Effort()
    if seconds is not None:
        effort = replace(effort, seconds=max(0.0, seconds - (time.perf_counter() - started)))
    try:
        with working("solving"):
            found = least_load(workload, effort)
    except InfeasibleError as error:
        raise InfeasibleError(f"{file}: {error}") from None
    took_s = time.perf_counter() - started
    content = {**_content(workload, found), "unread": unread, "took_s": took_s}
    if output is not None:
        save(json.dumps(plain(content), indent=1) + "\n", output)
    if as_json:
        print_json(content)
    else:
        console().print(loaded(workload, found, took_s, unread))


def _read(text: str, file: Path) -> tuple[Workload, tuple[str, ...]]:
    """Return a file's workload and the keys that are not read; raise errors that name the file."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON: {error}.") from None
    try:
        workload = read_workload(text, content)
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from None
    if workload is None:
        raise InputError(
            f"{file} has no costs of layers: it needs `layers` (autopar's format), or `nodes` with "
            "`fpgaLatency` (dnn-partitioning) or with `TMPCs` (Piper). For other problems there is "
            "`autopar solve`."
        )
    return workload, unread_keys(text, content)


def _content(workload: Workload, found: ThroughputPlan) -> dict[str, Any]:
    """Return the plan as JSON data, with the names of layers and pools."""
    stages = [
        {
            "pool": workload.pools[stage.pool].name,
            "devices": stage.devices,
            "replicas": stage.replicas,
            "in_flight": stage.in_flight,
            "load_s": stage.load_s,
            "layers": list(stage.layers),
            "names": [workload.layers[layer].name for layer in stage.layers],
            "options": list(stage.options),
        }
        for stage in found.stages
    ]
    return {
        "load_s": found.load_s,
        "throughput_per_s": 1 / found.load_s if found.load_s > 0 else None,
        "bound_s": found.bound_s,
        "gap": found.gap,
        "method": found.method,
        "downsets": found.downsets,
        "ranges": found.ranges,
        "stages": stages,
    }
