"""The command ``autopar profile MODEL --mesh 2x2``: times operators, or a traced step."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.api import captured_by, compile_staged
from autopar.cli.flags import (
    AS_JSON,
    BATCH,
    CUT,
    DATABASE,
    HARDWARE,
    MEMORY,
    MESH,
    MICROBATCHES,
    MODEL,
    PLAN_FILE,
    PRECISION,
    SCHEDULE,
    SEQUENCE,
)
from autopar.cli.inputs import inputs
from autopar.cli.models import Loaded, load
from autopar.cli.output import console, save, working, writable
from autopar.cli.stages import read_pipeline
from autopar.cli.traced import refuse_crowd, refuse_flags, run
from autopar.cli.values import outlined, print_json
from autopar.compile.given import as_hardware
from autopar.cost.prices import Prices
from autopar.cost.timed import default_database, refuse_fewer_threads, setting_here
from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.staged import Staged
from autopar.profile import ProfiledPlan, Timing, profile, profile_stages
from autopar.render.text import show_pipeline, show_plan, timings
from autopar.request.options import ONE_STAGE, Options
from autopar.request.pipeline import Pipeline
from autopar.request.planning import Planning
from autopar.sharding.sharding_problem import Compilation, prices_of
from cost_models.hardware import Hardware
from cost_models.measured import Database, Setting


def command(
    model: MODEL,
    mesh: MESH,
    output: Annotated[Path | None, PLAN_FILE] = None,
    hardware: HARDWARE = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Time only this preset's plan; default: the solver's and all presets'."),
    ] = None,
    stages: Annotated[
        str | None,
        typer.Option(help="Time stages: auto, a number, or meshes such as 1+3; default: none."),
    ] = None,
    schedule: SCHEDULE = None,
    microbatches: MICROBATCHES = None,
    cut: CUT = None,
    precision: PRECISION = None,
    memory: MEMORY = None,
    database: DATABASE = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each rank on a CPU; default: 1.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Time all candidates' operators, not only those of plans."),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Time operators again that the database already has.")
    ] = False,
    running: Annotated[
        bool,
        typer.Option("--run", help="Compare a traced step with the prediction, locally."),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to trace, with --run; default: 5.")
    ] = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Time a model's operators on this device, as one rank of the mesh runs them, and plan with that.

    On a CPU it times as many processes at once as the mesh has ranks on a host.  The times go to a
    database (by default among autopar's cached files), which `plan --database` reads.

    With --run the model trains a few steps instead, in one gloo process per device of the mesh, or under
    torchrun (`torchrun ... -m -- autopar profile ... --run`). The command compares the trace of a step
    with the prediction, line by line. With --database the prediction uses these times.
    """
    pipeline = read_pipeline(stages, schedule, microbatches, cut) or ONE_STAGE
    options: dict[str, Any] = {"hardware": hardware, "preset": preset, "precision": precision,
                               "memory_limit": memory}  # fmt: skip
    if running:
        _refuse_stages(pipeline, "--run")
        refuse_flags({"--output": output, "--threads": threads, "--all": every, "--again": again},
                     "is for timing operators, which --run does not do")  # fmt: skip
        options |= {"planning": Planning(database)}
        run(model, (batch, sequence), Mesh.parse(mesh), options, steps, as_json)
        return
    refuse_flags({"--steps": steps}, "applies to --run only")
    database = _checked(database or default_database(), output, model, hardware)
    devices, known = Mesh.parse(mesh), as_hardware(hardware or None)
    setting = _setting(database, known, devices, threads or 1)
    loaded = load(model, batch, sequence)
    timing = Timing(
        database, setting, again,
        imports=_imports(model), tell=lambda text: print(text, file=sys.stderr), during=working,
    )  # fmt: skip
    options |= {"hardware": known, "loss": loaded.loss}
    if pipeline.is_one_stage:
        found, prices = _whole(loaded, devices, options, timing, every)
    else:
        if every:
            _refuse_stages(pipeline, "--all")
        found = profile_stages(partial(_staged, loaded, devices, pipeline, options), timing)
        prices = Prices(devices, known)
    _told(found, prices, timing.database, output, as_json)


def _setting(database: Path, hardware: Hardware, mesh: Mesh, threads: int) -> Setting:
    """Return the setting to time.

    Raises `InputError` if this is not the profile's machine, if it has too few cores, or if the database
    has times with fewer threads, which plans would use instead.
    """
    found = refuse_crowd(setting_here(hardware, mesh, threads))
    refuse_fewer_threads(database, found, hardware, mesh)
    return found


def _checked(database: Path, output: Path | None, model: str, hardware: str | None) -> Path:
    """Return the database; raise before measuring if it or the output cannot be used."""
    writable(output, reads=inputs(database, model=model, hardware=hardware))
    writable(database, makes=database == default_database())
    if database.is_file():
        Database(database).settings()
    return database


def _told(
    found: ProfiledPlan, prices: Prices, database: Path, output: Path | None, as_json: bool
) -> None:
    """Write the plan to its file, and print the results."""
    if output is not None:
        save(found.made.plan.to_json() + "\n", output)
    if as_json:
        print_json(_content(found, database) | {"written": output})
        return
    _print(found, prices, database)
    if output is not None:
        console().print(f"\nwrote {output}", soft_wrap=True)


def _whole(
    loaded: Loaded, mesh: Mesh, options: dict[str, Any], timing: Timing, every: bool
) -> tuple[ProfiledPlan, Prices]:
    """Time the operators of plans without stages; return the best plan and its prices."""
    hardware, asked = options["hardware"], {k: v for k, v in options.items() if k != "hardware"}
    with working("capturing the model"):
        compiler, graph = captured_by(
            loaded.model, mesh, loaded.inputs, hardware, Options.of(**asked)
        )
    found = profile(compiler, graph, timing, every=every)
    return found, prices_of(mesh, hardware, compiler.settings(None))


def _staged(
    loaded: Loaded, mesh: Mesh, pipeline: Pipeline, options: dict[str, Any], database: Path | None
) -> Staged | Compilation:
    """Plan a pipeline with the times of a database, or of the roofline if it is None."""
    return compile_staged(
        loaded.model, mesh, loaded.inputs, pipeline=pipeline, planning=Planning(database), **options
    )


def _refuse_stages(pipeline: Pipeline, flag: str) -> None:
    if not pipeline.is_one_stage:
        raise InputError(f"{flag} applies to plans without stages only: leave --stages out.")


def _content(found: ProfiledPlan, path: Path) -> dict[str, Any]:
    """Return the results as JSON data; times are in seconds."""
    return {
        "timed": found.timed,
        "refused": [{"call": each.call.text, "reason": each.reason} for each in found.refused],
        "known": found.known,
        "database": path,
        "plan": outlined(found.made.plan),
    }


def _print(found: ProfiledPlan, prices: Prices, path: Path) -> None:
    """Print the new times, the calls that could not be timed, and the best plan by these times."""
    out = console()
    if found.timed:
        out.print(timings(found.timed, prices.own), "", sep="\n")
    for each in found.refused:
        out.print(f"not timed: {each.call.text}: {each.reason}", markup=False, soft_wrap=True)
    out.print(
        f"{len(found.timed)} calls timed, {found.known} of the plan's were already known; times "
        f"are in {path}\n"
    )
    made = found.made
    if isinstance(made, Staged):
        out.print(show_pipeline(made.plan, made.stages.graphs))
    else:
        out.print(show_plan(made.plan, made.graph))


def _imports(model: str) -> tuple[str, ...]:
    """Return the module or file that registers the model's own operators."""
    return () if model.startswith("hf:") else (model.rpartition(":")[0],)
