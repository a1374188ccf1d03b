"""The command ``autopar hardware [NAME]``: prints hardware profiles."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from autopar.cli.flags import AS_JSON
from autopar.cli.output import console
from autopar.render.text.table import row, table
from cost_models.hardware import Hardware, Link, load, names, text


def command(
    name: Annotated[
        str | None, typer.Argument(help="Profile name or TOML file; default: list all profiles.")
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """List the hardware profiles, or print one with the sources of its figures."""
    if as_json:
        asked = names() if name is None else (name,)
        figures = {each: asdict(load(each)) for each in asked}
        typer.echo(json.dumps(figures if name is None else figures[name], indent=1))
    elif name is not None:
        typer.echo(text(name), nl=False)
    else:
        _list({each: load(each) for each in names()})


def _list(profiles: dict[str, Hardware]) -> None:
    numbers = ("memory", "TFLOP/s", "GB/s", "n")
    made = table("hardware profiles", "name", *numbers, "in a host", "between hosts", "date",
                 right=numbers)  # fmt: skip
    for column in made.columns[-3:-1]:
        column.no_wrap = False
    for name, profile in profiles.items():
        device = profile.device
        row(made, name, f"{device.memory_bytes / 1e9:.0f} GB", f"{_peak(profile) / 1e12:.4g}",
            f"{device.bytes_per_s / 1e9:.4g}", str(profile.devices_per_host),
            _link(profile.intra_host), _link(profile.inter_host), profile.date)  # fmt: skip
    console().print(made)
    console().print(
        "TFLOP/s are dense, in bfloat16 or else float16; n devices share a host; links are per device "
        "and direction. `autopar hardware NAME` prints the sources; docs/hardware.md says how to write "
        "your own."
    )


def _peak(profile: Hardware) -> float:
    """Return the highest FLOP/s of bfloat16, float16 and float32."""
    peaks = profile.device.flops_per_s
    return max(peaks.get(dtype, 0.0) for dtype in ("bfloat16", "float16", "float32"))


def _link(link: Link) -> str:
    return f"{link.bytes_per_s / 1e9:.3g} GB/s {link.kind}".strip()
