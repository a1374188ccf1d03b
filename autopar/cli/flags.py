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

MESH = Annotated[str, typer.Option(help="Such as 2x2, or node=2,gpu=8.")]
HARDWARE = Annotated[
    str | None, typer.Option(help="Profile name or TOML file; none: this machine's.")
]
PRICED_WITH = Annotated[str | None, typer.Option(help="Profile to price with; none: the plan's.")]
OWN_PROFILE = Annotated[
    str | None, typer.Option(help="The plan's own profile, if it is a file of yours.")
]
DATABASE = Annotated[
    Path | None,
    typer.Option("--database", dir_okay=False, help="Measured times, from `autopar profile`."),
]

OPTIMIZER = Annotated[
    str,
    typer.Option(help="Class in torch.optim, or e.g. 'SGD(momentum=0.9)', 'AdamW(fused=True)'."),
]
PRECISION = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; none: as the model.")
]
MEMORY = Annotated[
    str | None,
    typer.Option(help="Limit per device, e.g. 40GiB, or none; not given: what it has."),
]

STAGES = Annotated[
    str | None,
    typer.Option(
        help="auto, a number of stages, or their meshes, such as 1+3 or 2x2+4; none: auto across "
        "hosts, one stage within a host."
    ),
]
SCHEDULE = Annotated[
    str | None, typer.Option(help="Of stages: 1f1b, gpipe, zb-h1, ...; none: chosen.")
]
MICROBATCHES = Annotated[
    int | None, typer.Option(min=1, help="Parts of the batch in a step of stages.")
]
CUT = Annotated[
    list[str] | None, typer.Option(help="Operator that a stage begins with; repeatable.")
]
ASYNCHRONOUS = Annotated[
    bool, typer.Option("--asynchronous", help="Permit schedules that update without waiting.")
]

AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
