"""Reads and writes Megatron-LM's ``--pipeline-model-parallel-layout``.

Stages are separated by ``|``; in each, ``t`` is a layer, ``E`` the embedding, ``L`` the loss and ``m`` a
layer that predicts further tokens.  ``t*3`` and ``(t|)*3`` repeat.
"""

from __future__ import annotations

import re

from autopar.errors import InputError

_REPEATED = re.compile(r"(?:\(([^()]*)\)|([tmEL|]))\*(\d{1,4})")


def counts(layout: str, source: str) -> tuple[int, ...]:
    """Return the layers of each stage; raise `InputError` for a text that is no layout."""
    text = re.sub(r"[\s,\"']", "", layout)
    while found := _REPEATED.search(text):
        text = text[: found.start()] + (found[1] or found[2]) * int(found[3]) + text[found.end() :]
        if len(text) > 10**5:
            break
    if not re.fullmatch(r"[tmEL|]+", text):
        raise InputError(
            f"{source}: --pipeline-model-parallel-layout {layout!r} cannot be read; write it as in "
            '"Et*3|(tt|)*6t*3L".'
        )
    return tuple(stage.count("t") for stage in text.split("|"))


def text(stages: tuple[int, ...]) -> str:
    """Return the layout of stages with these numbers of layers."""
    parts = [f"t*{count}" if count else "" for count in stages]
    parts[0] = f"E{parts[0]}"
    parts[-1] += "L"
    return "|".join(parts)
