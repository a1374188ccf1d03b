"""Which files a command reads, by what is named on its line."""

from __future__ import annotations

from pathlib import Path


def inputs(
    *files: Path | None, model: str | None = None, hardware: str | None = None
) -> tuple[Path, ...]:
    """These files, the model's and the profile's; what is not given, or no file, is left out."""
    return tuple(filter(None, (*files, _source(model or ""), _profile(hardware or ""))))


def _source(model: str) -> Path | None:
    """The file that a MODEL is read from; of a package's module, where the folder you are in has it."""
    if model.startswith("hf:"):
        return Path(model.removeprefix("hf:"))
    where = model.rpartition(":")[0]
    if where.endswith(".py"):
        return Path(where)
    return Path(where.replace(".", "/") + ".py") if where else None


def _profile(hardware: str) -> Path | None:
    """The profile's file, unless it is named as autopar's own are."""
    return Path(hardware) if Path(hardware).suffix == ".toml" else None
