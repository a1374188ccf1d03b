"""``autopar plan MODEL --mesh 2x2 -o plan.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autopar.api import compile_model
from autopar.cli.models import MODEL_HELP, load
from autopar.errors import ConstraintError
from autopar.runtime.program import write
from autopar.show import show_plan


def command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    mesh: Annotated[str, typer.Option(help="such as 2x2, or node=2,gpu=8")],
    output: Annotated[Path, typer.Option("-o", "--output", help="plan file to write")],
    hardware: Annotated[str | None, typer.Option(help="profile name or TOML file")] = None,
    preset: Annotated[str | None, typer.Option(help="see `autopar presets`")] = None,
    constraint: Annotated[
        list[str] | None, typer.Option(help="PATTERN=SHARDING, e.g. 'used:*.weight=[R, S(0)]'")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="class name in torch.optim")] = "AdamW",
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16")] = None,
    memory: Annotated[str | None, typer.Option(help="limit per device, e.g. 40GiB")] = None,
    batch: Annotated[int | None, typer.Option(help="global batch of hf: models")] = None,
    sequence: Annotated[int | None, typer.Option(help="sequence length of hf: models")] = None,
) -> None:
    """Decide how to split a model, and write the plan."""
    loaded = load(model, batch, sequence)
    made = compile_model(
        loaded.model,
        mesh,
        loaded.inputs,
        hardware=hardware,
        loss=loaded.loss,
        optimizer=optimizer,
        precision=precision,
        memory_limit=memory,
        preset=preset,
        constraints=dict(map(_constraint, constraint or ())),
    )
    write(made.plan.to_json(), output)
    console = Console(highlight=False)
    console.print(show_plan(made.plan))
    console.print(f"\nwrote {output}")


def _constraint(text: str) -> tuple[str, str]:
    pattern, _, sharding = text.partition("=")
    if not pattern or not sharding:
        raise ConstraintError(f"Cannot read the constraint {text!r}: write 'PATTERN=[S(0), R]'.")
    return pattern, sharding
