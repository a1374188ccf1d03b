"""Loads hardware profiles by name, from files, or for the local machine; each has source and date."""

from __future__ import annotations

import difflib
import os
import re
import uuid
from importlib import resources
from pathlib import Path

from cost_models import files
from cost_models.errors import ProfileError, UnknownHardwareError
from cost_models.fits import Fit
from cost_models.machine import Device, Hardware, Link, Share, Tier
from cost_models.profile_text import digest, parse, to_text

__all__ = [
    "Device", "Fit", "Hardware", "Link", "Share", "Tier",
    "detect", "digest", "load", "named", "names", "parse", "save", "text", "to_text",
]  # fmt: skip


OTHERS = re.compile("pcie|nvl|cnx|fhhl|mig|grid|[0-9]+[abcq]")
"""Suffixes in drivers' device names that no profile describes: PCIe cards, parts of a device (MIG), and
virtual devices (with 10 GB: A100-10C)."""
MEMORY_OFF = 0.1
"""Largest relative deviation of a driver's memory size from the profile's: drivers may report GiB, or
leave out reserved memory."""


def names() -> tuple[str, ...]:
    """Return the names of all profiles shipped with the package, sorted."""
    folder = resources.files("cost_models").joinpath("profiles").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder if f.name.endswith(".toml")))


def load(name_or_path: str | Path) -> Hardware:
    """Load a profile by name, or from a TOML file; "h100:compiled" is a profile in one of its modes."""
    path, mode = _parted(name_or_path)
    found = parse(*_read(path))
    return found.in_mode(mode) if mode else found


def _parted(name_or_path: str | Path) -> tuple[str | Path, str]:
    """Return a profile's name or path, and the mode after the colon; "" without one."""
    path, colon, mode = str(name_or_path).rpartition(":")
    if not colon or Path(name_or_path).is_file() or not (path in names() or path.endswith(".toml")):
        return name_or_path, ""
    return path, mode


def text(name_or_path: str | Path) -> str:
    """Return a profile's TOML source, with the comments that say where its numbers come from."""
    written, source = _read(_parted(name_or_path)[0])
    parse(written, source)
    return written


def _read(name_or_path: str | Path) -> tuple[str, str]:
    """Return a profile's text, and its name for error messages."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        try:
            return files.text(path), str(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnknownHardwareError(
                f"Cannot read the profile {path}: {reason}. Pass one of {', '.join(names())} or a "
                "file that `autopar calibrate -o mine.toml` wrote."
            ) from None
    if path.suffix or path.is_file():
        raise UnknownHardwareError(
            f"{path} is not a hardware profile: profiles are TOML files, named something.toml. "
            f"Pass one of {', '.join(names())} or a file that `autopar calibrate -o mine.toml` "
            "wrote."
        )
    if str(name_or_path) not in names():
        close = difflib.get_close_matches(str(name_or_path).lower(), names(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownHardwareError(
            f"There is no hardware profile {str(name_or_path)!r}.{hint} Known: {', '.join(names())}. "
            "Measure your own with `autopar calibrate -o mine.toml`, or write one after the pattern of "
            "`autopar hardware h100`, and pass that path."
        )
    file = resources.files("cost_models").joinpath("profiles", f"{name_or_path}.toml")
    return file.read_text(encoding="utf-8"), f"profile {name_or_path}"


def save(hardware: Hardware, path: str | Path) -> None:
    """Write a profile atomically: an interrupted write leaves the old file intact."""
    hardware.check()
    target, written = Path(path), to_text(hardware)
    if not target.parent.is_dir():
        raise ProfileError(f"Cannot write {target}: there is no folder {target.parent}.")
    if target.is_dir():
        raise ProfileError(f"Cannot write {target}: it is a folder. Name a file, as mine.toml.")
    if target.suffix != ".toml":
        raise ProfileError(
            f"Cannot write {target}: profiles are read from files named something.toml."
        )
    try:
        _replace(target, written)
    except OSError as error:
        raise ProfileError(
            f"Cannot write {target}: {error.strerror or error}. Name a file where you may write."
        ) from None


def _replace(target: Path, written: str) -> None:
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(written)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def detect() -> str:
    """Return the name of the local machine's profile; raise `UnknownHardwareError` without one."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    found = torch.cuda.get_device_properties(0)
    name = named(found.name, found.total_memory)
    if name is None:
        raise UnknownHardwareError(
            f"No profile fits this machine's {found.name!r} with {found.total_memory / 1e9:.1f} GB. "
            f"Name one of {', '.join(names())}, or a file of yours: start from what "
            "`autopar hardware h100` prints."
        )
    return name


def named(device: str, memory_bytes: float) -> str | None:
    """Return the profile for a driver's device name; of several, the one with matching memory.

    None for PCIe cards of the same name, which are slower and have other links; for parts of a device
    (MIG) and virtual devices; and if no profile's memory matches.
    """
    words = set(re.split("[^a-z0-9]+", device.lower()))
    if any(map(OTHERS.fullmatch, words)):
        return None
    of_name = (name for name in names() if name != "cpu" and name.split("_")[0] in words)
    off_by = {name: abs(memory_bytes / load(name).device.memory_bytes - 1) for name in of_name}
    nearest = min(off_by, key=off_by.__getitem__, default=None)
    return nearest if nearest is not None and off_by[nearest] <= MEMORY_OFF else None
