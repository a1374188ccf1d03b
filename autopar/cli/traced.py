"""Traces a training step for ``autopar profile --run``, in local processes or under torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from autopar.api import captured_by
from autopar.cli.models import built
from autopar.cli.output import console, working
from autopar.cli.values import print_json
from autopar.compile.given import as_hardware
from autopar.cost.timed import setting_here
from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.profile import Run
from autopar.render.text import step_beside
from autopar.request.options import Options
from cost_models.calibrate import processes
from cost_models.calibrate.cluster import is_launched
from cost_models.measured import Setting
from cost_models.measured.here import cores

LIMIT_S = 1800.0
STEPS = 5
RANKS_PER_CORE = 8
"""Maximum: more local processes take minutes to start, and their step times mean nothing."""


def run(
    model: str,
    sizes: tuple[int | None, int | None],
    mesh: Mesh,
    options: Mapping[str, Any],
    steps: int | None,
    as_json: bool,
) -> None:
    """Trace a step and print it with its prediction; `sizes` are batch and sequence of hf: models.

    Under torchrun every process already is a rank, and only rank 0 prints.
    """
    job = Run(partial(loaded_to_train, model, *sizes), mesh, dict(options), steps or STEPS)
    setting_here(as_hardware(options["hardware"]), mesh)
    if is_launched():
        found = job()
        if os.environ["RANK"] != "0":
            return
    else:
        refuse_many(mesh.world_size)
        with working("capturing the model"):
            _try_out(job)
        with working(f"{job.steps} steps on {mesh.world_size} processes, which start first"):
            found = processes.run(mesh.world_size, job, limit_s=LIMIT_S)
    if as_json:
        print_json(found.to_dict())
    else:
        console().print(step_beside(found))


def refuse_many(ranks: int) -> None:
    """Raise `InputError` if this machine has too few cores for this number of processes."""
    most = RANKS_PER_CORE * cores()
    if ranks > most:
        raise InputError(
            f"A mesh of {ranks} devices takes {ranks} processes; on this machine's {cores()} cores "
            f"{most} are the most. Pass a smaller --mesh, or start the command with torchrun on "
            "machines that have as many devices."
        )


def refuse_crowd(setting: Setting) -> Setting:
    """Return the setting; raise `InputError` if there are too few cores for all its ranks' threads."""
    most = RANKS_PER_CORE * cores()
    if setting.kind == "cpu" and setting.ranks * setting.threads > most:
        raise InputError(
            f"{setting.ranks} ranks of {setting.threads} threads would be timed at once; on this "
            f"machine's {cores()} cores {most} threads are the most. Pass a smaller --mesh or fewer "
            "--threads, or measure on a machine like the mesh's hosts."
        )
    return setting


def refuse_flags(given: Mapping[str, Any], why: str) -> None:
    """Raise `InputError` for the first flag that is given: all of these would have no effect."""
    for flag, value in given.items():
        if value not in (None, False):
            raise InputError(f"{flag} {why}: leave it out.")


def _try_out(job: Run) -> None:
    """Raise errors in this process that otherwise every process would raise once it has started."""
    model, inputs, loss = job.load()
    options = {name: value for name, value in job.options.items() if name != "hardware"}
    asked = Options.of(loss=loss, **options)
    compiler, _ = captured_by(model, job.mesh, inputs, job.options["hardware"], asked)
    compiler.settings(None)


def loaded_to_train(model: str, batch: int | None, sequence: int | None) -> tuple[Any, Any, Any]:
    """Load the model in one of the processes; raise `InputError` if it has nothing to train."""
    loaded = built(model, batch, sequence)
    if not any(parameter.requires_grad for parameter in loaded.model.parameters()):
        raise InputError(
            f"{type(loaded.model).__name__} has no parameter with requires_grad: these steps train. "
            "Leave some parameters unfrozen."
        )
    return loaded.model, loaded.inputs, loaded.loss
