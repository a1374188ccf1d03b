"""The command ``autopar export plan.json --to megatron``: a plan as another tool's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli.flags import AS_JSON, PLAN
from autopar.cli.output import console, save, writable
from autopar.cli.stages import load_plan
from autopar.cli.values import print_json
from autopar.explain.configuration import configuration_of
from autopar.request.configurations.tool import TOOLS


def command(
    plan: PLAN,
    to: Annotated[str, typer.Option(help=f"Tool: {', '.join(TOOLS)}.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", dir_okay=False, help="File to write; default: print it."),
    ] = None,
    host: Annotated[int, typer.Option(min=1, help="Number of devices of a host.")] = 8,
    as_json: AS_JSON = False,
) -> None:
    """Write the nearest configuration that another tool can run, and say what it could not express."""
    tool = TOOLS.named(to)
    writable(output, reads=(plan,))
    found = configuration_of(load_plan(plan))
    written = tool.write(found.configuration, host)
    said = (*found.said, *written.said)
    if output:
        save(written.text, output)
    if as_json:
        print_json({
            "text": written.text, "said": said, "configuration": found.configuration,
            "written": output,
        })  # fmt: skip
        return
    if output is None:
        typer.echo(written.text, nl=False)
    out = console(stderr=output is None)
    for sentence in said:
        out.print(sentence, markup=False, soft_wrap=True)
    if output:
        out.print(f"wrote {output}")
