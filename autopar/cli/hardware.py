"""``autopar hardware [NAME]``."""

from __future__ import annotations

from typing import Annotated

import typer

from cost_models.hardware import load, names, to_text


def command(
    name: Annotated[str | None, typer.Argument(help="profile name or TOML file")] = None,
) -> None:
    """List the hardware profiles, or print one."""
    if name is not None:
        typer.echo(to_text(load(name)))
        return
    for known in names():
        profile = load(known)
        typer.echo(f"{known:8} {profile.date}  {profile.source}")
