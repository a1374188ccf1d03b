"""autopar: an auto-parallelism compiler for PyTorch."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from autopar.utils.gc import uncollected
from autopar.utils.shown import RENDERERS

if TYPE_CHECKING:
    from autopar.api import compile_model, parallelize, plan
    from autopar.errors import AutoparError
    from autopar.ir.mesh import Mesh
    from autopar.ir.placement import I, N, P, R, S, Sharding
    from autopar.plans.plan import Plan
    from autopar.request.batches import Batches
    from autopar.request.compression import Compression
    from autopar.request.pipeline import Pipeline
    from autopar.request.planning import Planning
    from autopar.request.weights import Weights
    from autopar.rules import rule
    from autopar.runtime.parallel import Parallel

    __version__: str
    from autopar.sharding.sharding_problem import Compilation

__all__ = [
    "AutoparError", "Batches", "Compilation", "Compression", "I", "Mesh", "N", "P", "Parallel",
    "Pipeline", "Plan", "Planning", "R", "S", "Sharding", "Weights", "compile_model", "parallelize",
    "plan", "rule",
]  # fmt: skip

RENDERERS.append("autopar.render.text.html")

_HOMES = {
    "api": ("compile_model", "parallelize", "plan"),
    "errors": ("AutoparError",),
    "ir.mesh": ("Mesh",),
    "ir.placement": ("I", "N", "P", "R", "S", "Sharding"),
    "sharding.sharding_problem": ("Compilation",),
    "plans.plan": ("Plan",),
    "request.batches": ("Batches",),
    "request.compression": ("Compression",),
    "request.pipeline": ("Pipeline",),
    "request.planning": ("Planning",),
    "request.weights": ("Weights",),
    "rules": ("rule",),
    "runtime.parallel": ("Parallel",),
}


def __getattr__(name: str) -> Any:
    """Imported when it is first asked for: torch takes seconds, and the shell's TAB must not wait."""
    if name == "__version__":
        return version("autopar")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    where = f"autopar.{home or name}"
    try:
        with uncollected():
            module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name != where:
            raise
        raise AttributeError(f"module 'autopar' has no attribute {name!r}") from None
    found = getattr(module, name) if home else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
