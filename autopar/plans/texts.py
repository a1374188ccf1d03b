"""Annotated types that store shardings and meshes in JSON as their text."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding

ShardingText = Annotated[
    Sharding,
    BeforeValidator(lambda value: Sharding.parse(value) if isinstance(value, str) else value),
    PlainSerializer(str, return_type=str),
]
MeshText = Annotated[
    Mesh,
    BeforeValidator(lambda value: Mesh.parse(value) if isinstance(value, str) else value),
    PlainSerializer(str, return_type=str),
]
