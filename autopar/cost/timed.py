"""Selects the measured times of a database that are valid for a profile's device on a mesh."""

from __future__ import annotations

from pathlib import Path

from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.plans.timing import Timing
from autopar.utils.cache import cache_directory
from autopar.utils.messages import argument
from cost_models.errors import CostModelError
from cost_models.hardware import Hardware, named
from cost_models.measured import Database, Setting, Times, here


def default_database() -> Path:
    """Return the path at which `autopar profile` stores times by default."""
    return cache_directory() / "profile.sqlite"


def timing_of(times: Times | None) -> Timing | None:
    """Return a plan's record of the times that priced it."""
    return None if times is None else Timing(str(times.setting), times.digest)


def times_for(path: Path, hardware: Hardware, mesh: Mesh) -> Times:
    """Return the times of this device under this version of torch; `InputError` if there are none.

    On a CPU they must have been measured with as many ranks per host as the mesh places there.  Of
    several thread counts the smallest is taken, as profiles describe one thread.
    """
    database = Database(path)
    wanted = setting_for(hardware, mesh)
    try:
        every = database.settings()
        fitting = [found for found in every if _fits(found, wanted, hardware)]
        if fitting:
            chosen = min(fitting, key=lambda found: found.threads)
            return Times(chosen, database.read(chosen))
    except CostModelError as error:
        raise InputError(str(error)) from None
    there = "\n- ".join(map(str, every))
    raise InputError(
        f"The profile database {path} has no times of {wanted}.\n"
        f"It has times of\n- {there or 'nothing'}\n"
        "Measure on that device, with `autopar profile MODEL --mesh ...` of as many ranks per host; or "
        "leave the database out, and operators are modelled. A profile of your own may name its device "
        "as the database does."
    )


def setting_for(hardware: Hardware, mesh: Mesh) -> Setting:
    """Return the setting that times must match: the profile's device; ``cpu`` is this machine."""
    device = hardware.device
    if device.kind != "cpu":
        return Setting(device.name, device.kind, device.memory_bytes, _software())
    ranks = min(mesh.world_size, hardware.devices_per_host)
    machine = here("cpu", 1, ranks)
    if device.name == "cpu":
        return machine
    return Setting(device.name, "cpu", 0.0, machine.software, 1, ranks, hardware.cores)


def setting_here(hardware: Hardware, mesh: Mesh, threads: int = 1) -> Setting:
    """Return the setting of a rank on this machine; `InputError` if it is not the profile's device."""
    wanted = setting_for(hardware, mesh)
    try:
        found = here(wanted.kind, threads, wanted.ranks)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"The profile {hardware.device.name!r} is of a {wanted.kind} device, and this machine has "
            f"none that PyTorch can use: {error}. Measure on such a machine, or pass "
            f"another {argument('hardware')}."
        ) from None
    if not _fits(found, wanted, hardware):
        raise InputError(
            f"The profile {hardware.device.name!r} is not of this machine, which is {found}: its times "
            f"would be another device's. Pass the profile of this machine as {argument('hardware')}, or "
            "measure on that one."
        )
    return found


def refuse_fewer_threads(path: Path, setting: Setting, hardware: Hardware, mesh: Mesh) -> None:
    """Raise `InputError` if plans would prefer existing times to those about to be measured."""
    if not path.is_file():
        return
    wanted = setting_for(hardware, mesh)
    fitting = [each for each in Database(path).settings() if _fits(each, wanted, hardware)]
    fewest = min((each.threads for each in fitting), default=setting.threads)
    if fewest < setting.threads:
        raise InputError(
            f"The profile database {path} has times of this device with {fewest} "
            f"thread{'s' * (fewest > 1)} per rank, which plans would take instead of those with "
            f"{setting.threads}. Name another {argument('database')} for these."
        )


def _fits(found: Setting, wanted: Setting, hardware: Hardware) -> bool:
    is_device = found.device == wanted.device
    if wanted.kind != "cpu":
        is_device |= named(found.device, found.memory_bytes) == hardware.device.name
        is_device &= found.software.partition(", ")[0] == wanted.software
    else:
        is_device &= found.software == wanted.software and found.ranks == wanted.ranks
        is_device &= found.cores == wanted.cores or not wanted.cores
    return is_device and found.kind == wanted.kind


def _software() -> str:
    return here("cpu").software
