"""The command ``autopar plan MODEL --mesh 2x2 -o plan.json``: computes and writes a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from autopar.api import compile_model, compile_staged
from autopar.cli.flags import (
    AS_JSON,
    ASYNCHRONOUS,
    BATCH,
    COMPRESSION,
    CONSTRAINT,
    CONSTRAINTS,
    CUT,
    DATABASE,
    HARDWARE,
    MEMORY,
    MICROBATCHES,
    MODEL,
    OPTIMIZER,
    PLAN_FILE,
    PRECISION,
    PRESET,
    RECOMPUTE,
    SCHEDULE,
    SEQUENCE,
    STAGES,
)
from autopar.cli.inputs import inputs
from autopar.cli.models import Loaded, load
from autopar.cli.output import console, save, working, writable
from autopar.cli.stages import Shape, read_pipeline, usual_pipeline
from autopar.cli.values import outlined, print_json
from autopar.compile.given import as_hardware
from autopar.errors import ConstraintError, InputError, MeshError
from autopar.ir.mesh import Mesh
from autopar.ir.units import nbytes
from autopar.pipeline.build.staged import Staged
from autopar.render.text import coverage_line, show_pipeline, show_plan
from autopar.render.text.contenders import memory_of
from autopar.request import presets
from autopar.request.constraint_file import from_file
from autopar.request.constraints import from_user
from autopar.request.options import Constraints, Options
from autopar.request.pipeline import Pipeline
from autopar.request.planning import Planning
from autopar.request.views import views
from autopar.rules import coverage, discovered
from autopar.sharding.sharding_problem import Compilation, device_memory
from autopar.solver.problem_text import to_json
from cost_models.hardware import Hardware


def command(
    model: MODEL,
    output: Annotated[Path, PLAN_FILE],
    mesh: Annotated[str | None, typer.Option(help="Mesh, such as 2x2 or node=2,gpu=8.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Number of devices, instead of --mesh: search for the best mesh."),
    ] = None,
    axes: Annotated[
        int | None,
        typer.Option(min=1, max=3, help="With --devices: most axes of a mesh; default: 2."),
    ] = None,
    hardware: HARDWARE = None,
    preset: PRESET = None,
    constraint: CONSTRAINT = None,
    constraints: CONSTRAINTS = None,
    optimizer: OPTIMIZER = "AdamW",
    precision: PRECISION = None,
    memory: MEMORY = None,
    recompute: RECOMPUTE = None,
    compression: COMPRESSION = None,
    stages: STAGES = None,
    schedule: SCHEDULE = None,
    microbatches: MICROBATCHES = None,
    cut: CUT = None,
    asynchronous: ASYNCHRONOUS = False,
    problem: Annotated[
        Path | None,
        typer.Option(help="File to write the solver's problem to, for `autopar solve`."),
    ] = None,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Decide how to split a model over a mesh, and write the plan."""
    asked = Options.of(
        optimizer=optimizer,
        precision=precision,
        memory_limit=memory,
        preset=presets.known(preset) if preset else None,
        constraints=_asked(constraint or [], constraints, mesh),
        recompute=recompute,
        compression=compression,
        planning=Planning(database),
    )
    if problem is not None and problem.resolve() == output.resolve():
        raise InputError(f"--output and --problem are both {output}: pass two files.")
    reads = inputs(constraints, database, model=model, hardware=hardware)
    writable(output, problem, reads=reads)
    shape, profile = _shape(mesh, devices, axes), as_hardware(hardware or None)
    forced = read_pipeline(stages, schedule, microbatches, cut, asynchronous)
    with working("planning"):
        made = _made(load(model, batch, sequence), shape, profile, asked, forced, problem)
    save(made.plan.to_json() + "\n", output)
    if problem and isinstance(made, Compilation):
        save(to_json(made.priced.problem) + "\n", problem)
    if as_json:
        print_json(outlined(made.plan) | {"written": output})
    else:
        _print(made, output)
    _warn(made, profile)


def _warn(made: Staged | Compilation, profile: Hardware) -> None:
    """Warn if a step exceeds the device's memory, or if no parameter is trained."""
    plan, out = made.plan, console(stderr=True)
    needed, own = memory_of(plan), device_memory(plan.mesh, profile)
    if needed > own:
        out.print(
            f"warning: a step needs {nbytes(needed)}, a device of {plan.hardware} has {nbytes(own)}."
        )
    graphs = made.stages.graphs if isinstance(made, Staged) else (made.graph,)
    leaves = (node for graph in graphs for node in graph.leaves("parameter"))
    if not any(node.outputs[0].differentiable for node in leaves):
        out.print(
            f"warning: {plan.model} has no parameter with requires_grad, so this is the plan of a step "
            "that trains nothing.",
            soft_wrap=True,
        )


def _print(made: Staged | Compilation, output: Path) -> None:
    """Print the plan's tables, and the sources of the operators' rules."""
    if isinstance(made, Staged):
        shown: tuple[RenderableType, ...] = (show_pipeline(made.plan, made.stages.graphs),)
    else:
        spent = sum(found.seconds for found in discovered())
        said = coverage_line(coverage(made.graph), spent)
        shown = (show_plan(made.plan, made.graph), "", Text(said))
    console().print(*shown, f"\nwrote {output}", sep="\n")


def _made(
    loaded: Loaded,
    shape: Shape,
    profile: Hardware,
    asked: Options,
    forced: Pipeline | None,
    problem: Path | None,
) -> Staged | Compilation:
    """Compute a plan without stages, or a pipeline."""
    pipeline = forced or usual_pipeline(shape, profile, asked)
    options: dict[str, Any] = {
        "hardware": profile, "loss": loaded.loss, "optimizer": asked.optimizer,
        "precision": asked.precision, "memory_limit": asked.memory_limit, "preset": asked.preset,
        "constraints": asked.constraints, "recompute": asked.recompute,
        "compression": asked.compression,
        "planning": asked.planning,
    }  # fmt: skip
    if pipeline.is_one_stage or (forced is None and problem is not None):
        return compile_model(loaded.model, shape, loaded.inputs, **options)
    if problem is not None:
        raise InputError(
            "--problem writes the problem of one graph; with --stages there are several."
        )
    return compile_staged(loaded.model, shape, loaded.inputs, pipeline=pipeline, **options)


def _shape(mesh: str | None, devices: int | None, axes: int | None) -> Shape:
    if (mesh is None) == (devices is None):
        raise MeshError("Pass either --mesh, such as 2x4, or --devices, such as 8.")
    if mesh is not None and axes is not None:
        raise MeshError("--axes applies to --devices only: a --mesh has the axes that it names.")
    if mesh is not None:
        return Mesh.parse(mesh)
    return devices or 0 if axes is None else views(devices or 0, axes)


def _asked(texts: list[str], file: Path | None, mesh: str | None) -> Constraints:
    """Return the constraints of the flags, the file, or both; both together need --mesh for its axes."""
    flags = _constraints(texts)
    if file is None:
        return flags
    if not flags and mesh is None:
        return file
    if mesh is None:
        raise ConstraintError("Constraints in a file and as flags need --mesh: they name its axes.")
    shape = Mesh.parse(mesh)
    named = tuple(replace(c, at=f"--constraint {c.pattern!r}") for c in from_user(flags, shape))
    return (*from_file(file, shape), *named)


def _constraints(texts: list[str]) -> dict[str, str | dict[str, str]]:
    """Parse texts PATTERN=TYPES; a ``=`` of types, as in ``S(0, of=3)``, is never the first one."""
    found: dict[str, str | dict[str, str]] = {}
    for text in texts:
        pattern, _, sharding = text.partition("=")
        if not pattern or not sharding:
            raise ConstraintError(
                f"Cannot read the constraint {text!r}: write 'PATTERN=[S(0), R]', a type per axis."
            )
        if pattern in found:
            raise ConstraintError(f"There are two constraints on {pattern!r}; write one.")
        found[pattern] = sharding
    return found
