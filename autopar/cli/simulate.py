"""The command ``autopar simulate plan.json --bandwidth node=0.5x``: replays a plan's step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from autopar.cli.flags import AS_JSON, OWN_PROFILE, PLAN
from autopar.cli.inputs import inputs
from autopar.cli.output import console, save, writable
from autopar.cli.stages import load_plan
from autopar.cli.values import print_json
from autopar.compile.given import as_hardware
from autopar.explain.replay import MOST_MICROBATCHES, Conditions, play, refuse_other, trace_of
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.text import show_played
from cost_models.hardware import Hardware, names


def command(
    plan: PLAN,
    trace: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a trace for ui.perfetto.dev.")
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(help="AXIS=0.5x, or intra_host=, inter_host=; repeatable."),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Number of microbatches, each of the plan's size; {MOST_MICROBATCHES} at most.",
        ),
    ] = None,
    straggler: Annotated[
        list[str] | None,
        typer.Option(help="RANK=1.2x: the rank takes longer by this factor; repeatable."),
    ] = None,
    hardware: OWN_PROFILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Simulate a plan's step: the timeline and the memory of each rank. It needs only the plan file.

    Options change the bandwidth, the number of microbatches, or the speed of a rank.
    """
    writable(trace, reads=inputs(plan, hardware=hardware))
    decided = load_plan(plan)
    conditions = Conditions.of(bandwidth or (), microbatches, straggler or ())
    played = play(decided, conditions, profile_of(decided, hardware) if hardware else None)
    if trace:
        save(json.dumps(trace_of(played)) + "\n", trace)
    if as_json:
        print_json(
            {k: v for k, v in vars(replace(played, simulated=None)).items() if k != "simulated"}
        )
        return
    out = console()
    out.print(show_played(played, out.width), soft_wrap=True)
    if trace:
        console().print(f"\nwrote {trace}; open it at https://ui.perfetto.dev")


def profile_of(plan: Plan | PipelinePlan, given: str | None) -> Hardware | None:
    """Return the named profile, or else the shipped one of the plan's name; None if there is none.

    Raises `InputError` if its figures are not those that priced the plan.
    """
    if given is None and plan.hardware not in names():
        return None
    profile = as_hardware(given or plan.hardware)
    refuse_other(profile, plan.hardware, plan.hardware_digest)
    return profile
