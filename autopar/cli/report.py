"""The command ``autopar report plan.json -o report.html``: a plan as one HTML page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from autopar import rules
from autopar.capture.saved import saved
from autopar.cli.explain import explained_of
from autopar.cli.flags import AS_JSON, BATCH, DATABASE, MODEL_HELP, OWN_PROFILE, PLAN, SEQUENCE
from autopar.cli.inputs import inputs
from autopar.cli.match import graph_of
from autopar.cli.output import console, save, working, writable
from autopar.cli.simulate import profile_of
from autopar.cli.stages import load_plan, microbatch_of, staged
from autopar.cli.values import print_json
from autopar.emit import emit
from autopar.errors import InputError
from autopar.explain.explained import hardware_of
from autopar.explain.explanation import Explanation
from autopar.ir.graph import Graph
from autopar.plans.identity import Identity
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.profile.traced_step import Beside
from autopar.render.html import Extras, report, roofline, roofline_of_stages, written


def command(
    plan: PLAN,
    output: Annotated[Path, typer.Option("-o", "--output", dir_okay=False, help="Page to write.")],
    model: Annotated[
        str | None, typer.Option(help=f"For roofline and sources: {MODEL_HELP}.")
    ] = None,
    frontier: Annotated[
        Path | None, typer.Option(help="Folder that `autopar frontier -o` wrote.")
    ] = None,
    explained: Annotated[
        list[str] | None,
        typer.Option(
            "--explain", help="With --model: explain this parameter, operator or block; repeatable."
        ),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="Output of `autopar profile --run --json`.")
    ] = None,
    hardware: OWN_PROFILE = None,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Write one self-contained page: mesh, stages, sharding, timeline, memory, communication.

    It needs no network, and only the plan file. With --model it also shows the roofline, and your source
    next to the emitted one, and explains the targets of --explain.
    """
    if explained and model is None:
        raise InputError("--explain solves for the model's plan again: pass --model as well.")
    if database and not explained:
        raise InputError("--database is used by --explain only: pass both, or neither.")
    plans = sorted(frontier.glob("*.json")) if frontier else ()
    writable(output, reads=inputs(plan, measured, database, *plans, model=model, hardware=hardware))
    decided = load_plan(plan)
    curve = _frontier(frontier, decided) if frontier else ()
    beside = _measured(measured, decided) if measured else None
    profile = profile_of(decided, hardware)
    limit = None if profile is None else profile.device.memory_bytes
    extras = Extras(frontier=curve, limit_nbytes=limit, measured=beside)
    if model is not None:
        read = _Model(model, decided, hardware, database, batch, sequence)
        with working("reading the model"):
            extras = read.added(extras)
        why = tuple(map(read.explained, explained or ()))
        extras = replace(extras, explained=why)
    path = save(report(decided, extras), output)
    size = path.stat().st_size
    if as_json:
        print_json({"written": path, "nbytes": size})
    else:
        console().print(f"wrote {path} ({size / 1e6:.1f} MB)", soft_wrap=True)


class _Model:
    """The parts of a report that need the model."""

    def __init__(
        self,
        name: str,
        plan: Plan | PipelinePlan,
        hardware: str | None,
        database: Path | None,
        batch: int | None,
        sequence: int | None,
    ) -> None:
        self.plan, self.hardware, self.database = plan, hardware, database
        self.graph: Graph
        if isinstance(plan, PipelinePlan):
            self.graph = microbatch_of(plan, name, batch, sequence)
        else:
            self.graph = graph_of(plan, name, batch, sequence)

    def added(self, extras: Extras) -> Extras:
        """Return the extras with sources and the roofline."""
        extras = replace(extras, written=written(self.graph))
        profile = hardware_of(self.plan, self.hardware)
        if isinstance(self.plan, PipelinePlan):
            made = staged(self.plan, self.graph)
            drawn = roofline_of_stages(self.plan, made.stages, profile)
            emitted = tuple(
                (f"emitted, stage {stage} on worker {worker}", text)
                for (stage, worker), text in sorted(made.sources.items())
            )
            return replace(extras, roofline=drawn, emitted=emitted)
        drawn = roofline(self.plan, self.graph, profile)
        kept = saved(self.graph, profile.device.kind)
        source = emit(self.plan, self.graph, rules.localize, kept)
        return replace(extras, roofline=drawn, emitted=(("emitted", source),))

    def explained(self, target: str) -> Explanation:
        """Return the explanation that `autopar explain` prints."""
        return explained_of(self.plan, self.graph, target, self.hardware, self.database)


def _measured(path: Path, plan: Plan | PipelinePlan) -> Beside:
    """Load a measured step; raise `InputError` if it is not one of this plan."""
    if isinstance(plan, PipelinePlan):
        raise InputError(
            "--measured applies to plans without stages only: `autopar profile` runs no pipelines."
        )
    found = Beside.load(path)
    found.check(plan, str(path))
    return found


def _frontier(folder: Path, plan: Plan | PipelinePlan) -> tuple[Plan, ...]:
    """Load the plans of a folder; raise `InputError` unless they are of the same curve as the plan."""
    if isinstance(plan, PipelinePlan):
        raise InputError(
            "--frontier applies to plans without stages only: `autopar frontier` makes no "
            "pipelines."
        )
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; `autopar frontier MODEL -o {folder}` makes one."
        )
    found = tuple(Plan.load(path) for path in sorted(folder.glob("*.json")))
    if not found:
        raise InputError(f"{folder} holds no plans; `autopar frontier MODEL -o` fills a folder.")
    for other in found:
        differs = Identity.of(other).differences(Identity.of(plan))
        if differs:
            raise InputError(
                f"{folder} holds plans of another frontier, such as {other.digest}:\n- "
                + "\n- ".join(differs)
                + "\nMake the plan's own: `autopar frontier MODEL -o`, with the flags that made the "
                "plan."
            )
    return found
