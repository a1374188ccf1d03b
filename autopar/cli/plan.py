"""``autopar plan MODEL --mesh 2x2 -o plan.json``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from autopar import presets
from autopar.api import compile_model, compile_staged
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE, Loaded, load
from autopar.cli.output import console, known, save
from autopar.cli.stages import (
    ASYNCHRONOUS,
    CUT,
    MICROBATCHES,
    SCHEDULE,
    STAGES,
    Forced,
    read_stages,
)
from autopar.constraint_file import from_file
from autopar.constraints import from_user
from autopar.errors import ConstraintError, InputError, MeshError
from autopar.given import as_hardware
from autopar.mesh import Mesh
from autopar.options import Constraints, Options
from autopar.posed import Compilation
from autopar.problem_text import to_json
from autopar.rules import coverage, discovered
from autopar.show import coverage_line, show_pipeline, show_plan
from autopar.staged import Staged
from cost_models.hardware import Hardware


def command(
    model: Annotated[str, typer.Argument(help=f"{MODEL_HELP}.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", dir_okay=False, help="Plan file to write.")
    ],
    mesh: Annotated[str | None, typer.Option(help="Such as 2x2, or node=2,gpu=8.")] = None,
    devices: Annotated[
        int | None, typer.Option(help="In place of --mesh: the best mesh of so many is searched.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Profile name or TOML file; none: this machine's.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="See `autopar presets`; none: the solver chooses.")
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=TYPES, e.g. 'used:*.weight=[R, S(0)]'; repeatable."),
    ] = None,
    constraints: Annotated[
        Path | None, typer.Option(help="TOML file with tables [pin], [forbid] and [prefer].")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="Class name in torch.optim.")] = "AdamW",
    precision: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; none: as the model.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Limit per device, e.g. 40GiB.")] = None,
    recompute: Annotated[
        str | None,
        typer.Option(help="none, selective or full, in every block; none given: as memory asks."),
    ] = None,
    stages: STAGES = None,
    schedule: SCHEDULE = None,
    microbatches: MICROBATCHES = None,
    cut: CUT = None,
    asynchronous: ASYNCHRONOUS = False,
    problem: Annotated[
        Path | None, typer.Option(help="Write what the solver solves, for `autopar solve`.")
    ] = None,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Decide how to split a model over a mesh, and write the plan."""
    asked = Options.of(
        optimizer=optimizer,
        precision=precision,
        memory_limit=memory,
        preset=known("preset", preset, presets.names()) if preset else None,
        constraints=_asked(constraint or [], constraints, mesh),
        recompute=recompute,
    )
    if problem is not None and problem.resolve() == output.resolve():
        raise InputError(f"--output and --problem are both {output}: pass two files.")
    shape, profile = _shape(mesh, devices), as_hardware(hardware or None)
    forced = Forced(read_stages(stages), schedule, microbatches, tuple(cut or ()), asynchronous)
    made = _made(load(model, batch, sequence), shape, profile, asked, forced, problem)
    save(made.plan.to_json() + "\n", output)
    if isinstance(made, Staged):
        console().print(show_pipeline(made.plan), f"\nwrote {output}", sep="\n")
        return
    if problem:
        save(to_json(made.priced.problem) + "\n", problem)
    spent = sum(found.seconds for found in discovered())
    said = coverage_line(coverage(made.graph), spent)
    console().print(show_plan(made.plan, made.graph), "", Text(said), f"\nwrote {output}", sep="\n")


def _made(
    loaded: Loaded,
    shape: Mesh | int,
    profile: Hardware,
    asked: Options,
    forced: Forced,
    problem: Path | None,
) -> Staged | Compilation:
    """A plan of the whole model, or of stages."""
    forced.check()
    options: dict[str, Any] = {
        "hardware": profile, "loss": loaded.loss, "optimizer": asked.optimizer,
        "precision": asked.precision, "memory_limit": asked.memory_limit, "preset": asked.preset,
        "constraints": asked.constraints, "recompute": asked.recompute,
    }  # fmt: skip
    stages = forced.meant(shape, profile, asked)
    if stages == 1 or (forced.stages is None and problem is not None):
        return compile_model(loaded.model, shape, loaded.inputs, **options)
    if problem is not None:
        raise InputError(
            "--problem writes the problem of one graph; with --stages there are several."
        )
    return compile_staged(
        loaded.model, shape, loaded.inputs, stages=stages, schedule=forced.schedule,
        microbatches=forced.microbatches, cuts=forced.cuts, asynchronous=forced.asynchronous,
        **options,
    )  # fmt: skip


def _shape(mesh: str | None, devices: int | None) -> Mesh | int:
    if (mesh is None) == (devices is None):
        raise MeshError("Pass --mesh, such as 2x4, or --devices, such as 8: one of the two.")
    return Mesh.parse(mesh) if mesh is not None else devices or 0


def _asked(texts: list[str], file: Path | None, mesh: str | None) -> Constraints:
    """Of flags, of a file, or of both; with both, the axes have to be known already."""
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
    """Each text is PATTERN=TYPES; types never hold a ``=`` before their ``[``."""
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
