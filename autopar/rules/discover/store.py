"""What was found lies on disk, one file per operator and pattern of arguments.

A file is valid for one schema, one version of torch and, for an operator of the user's, the files that
define it; anything else, and what cannot be read, is found again and written anew.
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
"""`off`: no experiments; `fresh`: experiments, without a look at the disk."""
VERSION = 2
"""Of what a claim has to stand: findings of other trials are made again."""
Key = Mapping[str, str]


def mode() -> str:
    """What $AUTOPAR_DISCOVERY says."""
    said = os.environ.get(SWITCH) or "on"
    if said not in MODES:
        raise InputError(
            f"{SWITCH}={said!r} is unknown: set it to {', '.join(MODES)}, or unset it."
        )
    return said


def path_of(key: Key) -> Path:
    """Where a finding lies."""
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:24]
    return folder() / f"{digest}.json"


def folder() -> Path:
    """Where all findings lie."""
    return cache_directory() / "rules"


def read(key: Key) -> Finding | None:
    """A finding from disk; None where there is none that can be trusted."""
    content = _content(path_of(key))
    if content is None or content.get("key") != dict(key) or content.get("version") != VERSION:
        return None
    return _finding(content.get("finding"))


def keep(key: Key, finding: Finding) -> None:
    """Write a finding; a disk that takes no files costs an experiment next time, nothing else."""
    content = {"version": VERSION, "key": dict(key), "finding": asdict(finding)}
    with contextlib.suppress(OSError):
        write(json.dumps(content, indent=1) + "\n", path_of(key))


def everything() -> tuple[tuple[dict[str, str], Finding], ...]:
    """All that lies on disk, by operator."""
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
    """Read what `asdict` wrote, kinds checked."""
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
