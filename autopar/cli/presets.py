"""``autopar presets``."""

from __future__ import annotations

import typer

from autopar import presets


def command() -> None:
    """List the presets and what each is."""
    for name in presets.names():
        typer.echo(f"{name:15} {presets.describe(name)}")
