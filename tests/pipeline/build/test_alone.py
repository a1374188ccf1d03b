"""A plan without stages is sought as far as it may win: bounds end a search, and never one too many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.compile.automatic import source_of
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.choose import choose
from autopar.pipeline.build.comparison import Chosen
from autopar.pipeline.build.single_stage import SingleStagePlanner
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Compilation
from cost_models.hardware import load
from tests.pipeline.build.cases import compiler_of
from tests.pipeline.build.hosts import slow_hosts

MESH = Mesh.of(2, 2)


def alone(memory: float | None = None) -> SingleStagePlanner:
    compiler, batch = compiler_of("llama", MESH, layers=2)
    settings = replace(compiler.settings(None), memory_limit=memory)
    return SingleStagePlanner(source_of(compiler, batch).whole, MESH, load("a100"), settings)


@pytest.fixture(scope="module")
def free() -> Compilation:
    found = alone().soon()
    assert found is not None
    return found


def test_what_fits_is_found_soon(free: Compilation) -> None:
    roomy = alone(2 * free.plan.estimate.memory_nbytes).soon()
    assert roomy is not None and roomy.plan.choices == free.plan.choices


@pytest.mark.slow
def test_where_the_limit_binds_the_search_ends_by_the_bound(free: Compilation) -> None:
    """No plan that takes less than a known one is ever given up; one that is far too slow is."""
    tight = alone(0.7 * free.plan.estimate.memory_nbytes)
    assert tight.soon() is None
    found = tight.after_all()
    assert found is not None
    seconds = found.plan.objective_s
    assert found.plan.estimate.memory_nbytes <= 0.7 * free.plan.estimate.memory_nbytes
    again = tight.after_all(below=1.001 * seconds)
    assert again is not None and again.plan.objective_s == seconds
    assert tight.after_all(below=0.5 * found.plan.bound_s) is None


@pytest.mark.slow
def test_the_best_of_all_that_was_compared_wins() -> None:
    """Where memory is short and links are fast, what is sought last wins all the same."""
    compiler, batch = compiler_of("llama", MESH, slow_hosts(1e13, 0.0, per_host=4), layers=2)
    source = source_of(compiler, batch)
    settings = compiler.settings(None)
    roomy = choose(source, MESH, compiler.hardware, settings, Pipeline())
    memory = 0.9 * _nbytes(roomy)
    tight = choose(
        source, MESH, compiler.hardware, replace(settings, memory_limit=memory), Pipeline()
    )
    assert _step(tight) == min(each.step_s for each in tight.compared if each.step_s is not None)
    assert _nbytes(tight) <= memory


def _nbytes(chosen: Chosen) -> float:
    if chosen.plain is not None:
        return chosen.plain.plan.estimate.memory_nbytes
    assert chosen.staged is not None and chosen.staged.plan.prediction is not None
    return max(stage.nbytes for stage in chosen.staged.plan.prediction.stages)


def _step(chosen: Chosen) -> float:
    if chosen.plain is not None:
        return chosen.plain.plan.estimate.step_s
    assert chosen.staged is not None and chosen.staged.plan.prediction is not None
    return chosen.staged.plan.prediction.step_s
