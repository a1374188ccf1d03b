"""Numbers with units, and types, as people read them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from autopar.ir.placement import Sharding


def seconds(value: float) -> str:
    """``41.2 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * factor >= 1:
            return f"{value * factor:.1f} {unit}"
    return f"{value * 1e6:.1f} µs" if value else "0 s"


def nbytes(value: float) -> str:
    """``1.3 GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def shape(sizes: Iterable[int]) -> str:
    """``32x64``; a tensor without dims is a scalar."""
    return "x".join(map(str, sizes)) or "scalar"


def form(sharding: Sharding, width: int = 32) -> str:
    """``[S(0), R]``; on meshes of many axes broken between types."""
    return f"[{joined(map(str, sharding), width)}]".replace("\n", "\n ")


def wrapped(label: str, width: int) -> str:
    """A long dotted name on several lines, broken before ``.``, ``/`` or ``...`` and indented.

    A part that is too long by itself is broken before its ``_``.
    """
    indent = " " * (len(label) - len(label.lstrip()) + 4)
    texts = [""]
    parts = re.split(r"(?= \.\.\. )|(?<=[^./ ])(?=[./])", label)
    pieces = (re.split(r"(?<=\w)(?=_)", p) if len(p) > width - len(indent) else [p] for p in parts)
    for part in itertools.chain.from_iterable(pieces):
        if len(texts[-1] + part) > width and texts[-1].strip():
            texts.append(indent + part.lstrip(" "))
        else:
            texts[-1] += part
    return "\n".join(texts)


def joined(parts: Iterable[str], width: int = 36) -> str:
    """The parts with commas, on as many lines as it takes; no part is broken."""
    texts = [""]
    for part in parts:
        longer = f"{texts[-1]}, {part}" if texts[-1] else part
        if texts[-1] and len(longer) > width:
            texts[-1] += ","
            texts.append(part)
        else:
            texts[-1] = longer
    return "\n".join(texts)
