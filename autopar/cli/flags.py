"""Arguments and flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL_HELP = "file.py:factory, package.module:factory, or hf:CONFIG.json"

MODEL = Annotated[str, typer.Argument(help=f"{MODEL_HELP}.")]
PLAN = Annotated[Path, typer.Argument(help="Plan file.")]
PLAN_FILE = typer.Option("-o", "--output", dir_okay=False, help="Plan file to write.")
BATCH = Annotated[int | None, typer.Option(min=1, help="Global batch of hf: models.")]
SEQUENCE = Annotated[int | None, typer.Option(min=1, help="Sequence length of hf: models.")]

MESH = Annotated[str, typer.Option(help="Mesh, such as 2x2 or node=2,gpu=8.")]
HARDWARE = Annotated[
    str | None,
    typer.Option(help="Hardware profile, by name or TOML file; default: this machine's."),
]
PRICED_WITH = Annotated[
    str | None, typer.Option(help="Hardware profile to predict with; default: the plan's.")
]
OWN_PROFILE = Annotated[
    str | None, typer.Option(help="Hardware profile of the plan, if it was a TOML file.")
]
DATABASE = Annotated[
    Path | None,
    typer.Option(
        "--database", dir_okay=False, help="Database of measured times, from `autopar profile`."
    ),
]

OPTIMIZER = Annotated[
    str,
    typer.Option(help="Class in torch.optim, such as 'SGD(momentum=0.9)' or 'AdamW(fused=True)'."),
]
PRECISION = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, float16, or bfloat16/bfloat16 (gradients are reduced in it, too); "
        "default: as in the model."
    ),
]
MEMORY = Annotated[
    str | None,
    typer.Option(help="Limit per device, such as 40GiB, or none; default: the device's memory."),
]

PRESET = Annotated[
    str | None,
    typer.Option(help="Preset (`autopar presets`) or TOML file; default: the solver chooses."),
]
CONSTRAINT = Annotated[
    list[str] | None,
    typer.Option(help="PATTERN=TYPES, e.g. 'used:*.weight=[R, S(0)]'; repeatable."),
]
CONSTRAINTS = Annotated[
    Path | None, typer.Option(help="TOML file with tables [pin], [forbid] and [prefer].")
]
RECOMPUTE = Annotated[
    str | None,
    typer.Option(help="none, gathers, selective or full; default: by the memory limit."),
]
COMPRESSION = Annotated[
    str | None,
    typer.Option(help="Gradients travel as powersgd:RANK, int8 or fp8; steps are not exact."),
]

STAGES = Annotated[
    str | None,
    typer.Option(
        help="auto, a number of stages, or their meshes, such as 1+3 or 2x2+4; default: auto "
        "across hosts, one stage within a host."
    ),
]
SCHEDULE = Annotated[
    str | None,
    typer.Option(help="Pipeline schedule: 1f1b, gpipe, zb-h1, ...; default: the planner chooses."),
]
MICROBATCHES = Annotated[
    int | None, typer.Option(min=1, help="Number of microbatches in a step of a pipeline.")
]
CUT = Annotated[list[str] | None, typer.Option(help="First operator of a stage; repeatable.")]
ASYNCHRONOUS = Annotated[
    bool,
    typer.Option(
        "--asynchronous",
        help="Permit asynchronous schedules, which update weights without waiting.",
    ),
]

AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
