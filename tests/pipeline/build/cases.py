"""Tiny models as sources of stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar.compile.automatic import source_of
from autopar.compile.compiler import Compiler
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.choose import Source
from autopar.request.meta import without_weights
from autopar.request.options import Options
from cost_models.hardware import Hardware, load
from tests import models


def compiler_of(
    name: str, mesh: Mesh, hardware: Hardware | str = "a100", layers: int = 6, **options: Any
) -> tuple[Compiler, Mapping[str, Any]]:
    """A compiler of a model of `tests/models.py`, and its batch."""
    model, batch, loss = getattr(models, name)(layers=layers)
    profile = load(hardware) if isinstance(hardware, str) else hardware
    asked = Options.of(loss=loss, optimizer="AdamW", **options)
    return Compiler(without_weights(model), mesh, profile, asked), batch


def source(name: str, mesh: Mesh, layers: int = 6) -> Source:
    """The model as `choose` wants it."""
    return source_of(*compiler_of(name, mesh, layers=layers))
