"""The command ``autopar calibrate -o profile.toml``: measures a machine or a cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from autopar.cli.flags import AS_JSON
from autopar.cli.inputs import inputs
from autopar.cli.output import console, save, writable
from autopar.cli.values import print_json
from autopar.errors import InputError
from autopar.render.text.calibrated import links
from cost_models.hardware import load, to_text


def command(
    output: Annotated[
        Path, typer.Option("-o", "--output", dir_okay=False, help="TOML file to write.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and repetitions.")] = False,
    group: Annotated[
        int | None,
        typer.Option(
            "--group",
            metavar="N",
            help="Under torchrun: treat N consecutive ranks as one host, for example the hosts "
            "of a rack.",
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="On accelerators, under torchrun: the profile whose links are measured."),
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Measure this machine's cores and gloo, print the fits, and write a hardware profile.

    Under torchrun it measures the cluster: the hosts and the network between them. On accelerators it
    measures only the links.
    """
    from cost_models.calibrate import calibrate
    from cost_models.calibrate.cluster import calibrate_cluster, is_launched

    writable(output, reads=inputs(hardware=hardware))
    if output.suffix != ".toml" and (output.is_file() or not output.exists()):
        raise InputError(f"Cannot write {output}: profiles are TOML files, named something.toml.")
    if is_launched():
        measured = calibrate_cluster(quick, group, load(hardware) if hardware else None)
        if os.environ["RANK"] != "0":
            return
    elif group is not None or hardware is not None:
        hint = "--group" if group is not None else "--hardware"
        raise typer.BadParameter(
            "it applies to the ranks of a cluster; start them with torchrun", param_hint=hint
        )
    else:
        measured = calibrate(quick=quick, progress=lambda text: print(text, file=sys.stderr))
    measured.check()
    save(to_text(measured), output)
    if as_json:
        print_json({"profile": measured, "written": output})
        return
    console().print(links(measured))
    typer.echo(f"\n{measured.source}\nwrote {output}; use it with --hardware {output}")
