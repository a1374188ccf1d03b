"""Finds the files that a command reads, so that its output cannot overwrite them."""

from __future__ import annotations

from pathlib import Path


def inputs(
    *files: Path | None, model: str | None = None, hardware: str | None = None
) -> tuple[Path, ...]:
    """Return these files, the model's and the profile's, without those that are not given."""
    return tuple(filter(None, (*files, _source(model or ""), _profile(hardware or ""))))


def _source(model: str) -> Path | None:
    """Return the file of MODEL; that of a module is looked for in the current directory."""
    if model.startswith("hf:"):
        return Path(model.removeprefix("hf:"))
    where = model.rpartition(":")[0]
    if where.endswith(".py"):
        return Path(where)
    return Path(where.replace(".", "/") + ".py") if where else None


def _profile(hardware: str) -> Path | None:
    """Return the file of a profile, or None if a shipped profile is named."""
    return Path(hardware) if Path(hardware).suffix == ".toml" else None
