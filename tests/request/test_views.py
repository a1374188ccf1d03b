"""Given only devices, every mesh that they make is compared."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import autopar
from autopar.errors import MeshError, OverLimitError
from autopar.plans.record import View
from autopar.request.views import views
from tests import models


def test_all_meshes_of_some_devices() -> None:
    assert [mesh.sizes for mesh in views(8)] == [(8,), (2, 4), (4, 2)]
    assert [mesh.sizes for mesh in views(8, 3)] == [(8,), (2, 4), (4, 2), (2, 2, 2)]
    assert [mesh.sizes for mesh in views(7)] == [(7,)]
    assert [mesh.sizes for mesh in views(1)] == [(1,)]
    assert len(views(64)) == 6 and all(mesh.world_size == 64 for mesh in views(64, 3))
    with pytest.raises(MeshError, match="0 devices"):
        views(0)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_the_best_mesh_wins(name: str) -> None:
    model, inputs, loss = models.ALL[name]()
    found = autopar.plan(model, 8, inputs, loss=loss, hardware="h100")
    assert [view.mesh for view in found.views] == ["x=8", "x=2, y=4", "x=4, y=2"]
    for view in found.views:
        alone = autopar.plan(model, view.mesh, inputs, loss=loss, hardware="h100")
        assert alone.objective_s == pytest.approx(view.objective_s)
    assert found.objective_s == min(view.objective_s for view in found.views)
    assert {str(found.mesh): found.objective_s}.items() <= {
        view.mesh: view.objective_s for view in found.views
    }.items()


@pytest.mark.thorough
def test_among_meshes_that_are_named() -> None:
    model, inputs, loss = models.mlp()
    meshes = [autopar.Mesh.of(8), autopar.Mesh.of(2, 2, 2)]
    found = autopar.plan(model, meshes, inputs, loss=loss, hardware="h100")
    assert [view.mesh for view in found.views] == ["x=8", "x=2, y=2, z=2"]
    assert found.objective_s == min(view.objective_s or math.inf for view in found.views)
    with pytest.raises(MeshError, match="x=8 has 8, x=2, y=2 has 4"):
        autopar.plan(model, [meshes[0], autopar.Mesh.of(2, 2)], inputs, loss=loss)
    with pytest.raises(MeshError, match="at least one axis"):
        autopar.plan(model, [], inputs, loss=loss)


def test_presets_speak_of_axes() -> None:
    model, inputs, loss = models.mlp()
    found = autopar.plan(model, 8, inputs, loss=loss, hardware="h100", preset="ddp")
    assert found.mesh.sizes == (8,) and found.views == ()


@pytest.mark.slow
def test_meshes_on_which_nothing_fits() -> None:
    model, inputs, loss = models.mlp()
    free = autopar.plan(model, 4, inputs, loss=loss, hardware="h100")
    limit = 0.4 * free.estimate.memory_nbytes
    found = autopar.plan(model, 4, inputs, loss=loss, hardware="h100", memory_limit=limit)
    assert found.estimate.memory_nbytes <= limit
    assert math.isfinite(found.objective_s) and len(found.views) == 2
    again = autopar.Plan.from_json(replace(found, views=(View("x=4", None),)).to_json())
    assert again.views == (View("x=4", None),)
    with pytest.raises(OverLimitError, match="No plan fits 1000 bytes"):
        autopar.plan(model, 4, inputs, loss=loss, hardware="h100", memory_limit=1000)
