"""Disk cache of discovered rules, one file per operator and argument pattern.

A file is valid for one schema, one version of torch and, for a user's operator, the files that define
it.  Invalid and unreadable files are replaced by new experiments.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from autopar.errors import InputError
from autopar.rules.discover.settle import Finding
from autopar.utils.cache import cache_directory, write

SWITCH = "AUTOPAR_DISCOVERY"
MODES = ("on", "off", "fresh")
"""`off`: no experiments; `fresh`: experiments without reading the disk cache."""
VERSION = 2
"""Version of the trials; findings of another version are discarded."""
Key = Mapping[str, str]


def mode() -> str:
    """Return the mode set by $AUTOPAR_DISCOVERY."""
    said = os.environ.get(SWITCH) or "on"
    if said not in MODES:
        raise InputError(
            f"{SWITCH}={said!r} is unknown: set it to {', '.join(MODES)}, or unset it."
        )
    return said


def path_of(key: Key) -> Path:
    """Return the path of a finding."""
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:24]
    return folder() / f"{digest}.json"


def folder() -> Path:
    """Return the folder of all findings."""
    return cache_directory() / "rules"


def read(key: Key) -> Finding | None:
    """Return a finding from disk; None if there is no valid one."""
    content = _content(path_of(key))
    if content is None or content.get("key") != dict(key) or content.get("version") != VERSION:
        return None
    return _finding(content.get("finding"))


def keep(key: Key, finding: Finding) -> None:
    """Write a finding; write errors are ignored, as they only cost another experiment."""
    content = {"version": VERSION, "key": dict(key), "finding": asdict(finding)}
    with contextlib.suppress(OSError):
        write(json.dumps(content, indent=1) + "\n", path_of(key))


def everything() -> tuple[tuple[dict[str, str], Finding], ...]:
    """Return all findings on disk, ordered by operator."""
    found: list[tuple[dict[str, str], Finding]] = []
    for path in sorted(folder().glob("*.json")):
        content = _content(path)
        finding = _finding(content.get("finding")) if content else None
        key = content.get("key") if content else None
        if finding is not None and isinstance(key, dict) and isinstance(key.get("op"), str):
            found.append((key, finding))
    return tuple(sorted(found, key=lambda item: item[0]["op"]))


def _content(path: Path) -> dict[str, object] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _finding(content: object) -> Finding | None:
    """Parse a finding written by `asdict`, with its types checked; None if invalid."""
    if not isinstance(content, dict):
        return None
    try:
        return Finding(
            text=str(content["text"]),
            linear=tuple(tuple(int(i) for i in group) for group in content["linear"]),
            sizes=tuple((str(name), int(size)) for name, size in content["sizes"]),
            least=int(content["least"]),
            reason=str(content["reason"]),
            trials=int(content["trials"]),
            ran=bool(content["ran"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
