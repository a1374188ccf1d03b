"""Formats numbers with units, shapes and shardings for display."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from autopar.ir.placement import Sharding


def seconds(value: float) -> str:
    """Format seconds as ``41.2 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * factor >= 1:
            return f"{value * factor:.1f} {unit}"
    return f"{value * 1e6:.1f} µs" if value else "0 s"


def nbytes(value: float) -> str:
    """Format bytes as ``1.3 GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def shape(sizes: Iterable[int]) -> str:
    """Format a shape as ``32x64``, or ``scalar`` if there are no dims."""
    return "x".join(map(str, sizes)) or "scalar"


def form(sharding: Sharding, width: int = 32) -> str:
    """Format a sharding as ``[S(0), R]``, with line breaks between types if it is too wide."""
    return f"[{joined(map(str, sharding), width)}]".replace("\n", "\n ")


def wrapped(label: str, width: int) -> str:
    """Wrap a long dotted name: break it before ``.``, ``/`` or ``...`` and indent the further lines.

    A part that is longer than a line is broken before its ``_``.
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
    """Join the parts with commas, wrapped to `width`; no part is broken."""
    texts = [""]
    for part in parts:
        longer = f"{texts[-1]}, {part}" if texts[-1] else part
        if texts[-1] and len(longer) > width:
            texts[-1] += ","
            texts.append(part)
        else:
            texts[-1] = longer
    return "\n".join(texts)
