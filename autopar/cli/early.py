"""Validates command-line values without importing torch, which takes two seconds.

Each value is parsed by the command's own parser, so the error message is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from autopar.cli.messages import Flags
from autopar.cli.model_files import check_model
from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.request import presets
from autopar.request.pipeline import StagesLike
from autopar.utils.io import text_of
from autopar.utils.messages import worded
from cost_models.hardware import load

plan_text = partial(text_of, what="the plan")
READERS: Mapping[str, Callable[[str], object]]
"""Parsers by parameter name."""


def check(given: Mapping[str, Any]) -> None:
    """Raise the error that the command would raise for the values of these parameters.

    None and an empty string mean that a value is not given.
    """
    for name, value in given.items():
        for word in value if isinstance(value, list) else (value,):
            if word and name in READERS:
                with worded(Flags()):
                    READERS[name](word)


def read_stages(written: str | None) -> StagesLike | None:
    """Parse ``auto``, a number of stages, or one mesh per stage: ``1+3``, ``2x2+4``."""
    if written is None or written == "auto":
        return "auto" if written else None
    try:
        if "+" not in written and "x" not in written:
            return int(written)
        return [tuple(int(size) for size in part.split("x")) for part in written.split("+")]
    except ValueError:
        raise InputError(
            f"Cannot read --stages {written!r}: write auto, a number such as 4, or a mesh for each "
            "stage such as 1+3 or 2x2+4."
        ) from None


READERS = {
    "mesh": Mesh.parse, "hardware": load, "model": check_model, "stages": read_stages,
    "preset": presets.known, "plan": plan_text, "before": plan_text, "after": plan_text,
}  # fmt: skip
