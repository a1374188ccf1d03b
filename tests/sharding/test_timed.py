"""The solver's bytes over time against the memory of the plan that its answer becomes."""

from __future__ import annotations

import pytest

from autopar.ir.blocks import Recompute, is_expensive
from autopar.ir.mesh import Mesh
from autopar.ir.placement import P
from autopar.request import presets
from autopar.sharding.sharding_problem import Settings, ShardingProblem, pose
from cost_models.hardware import load
from tests import parity

CLOSE = 0.01
"""Of the plan's peak."""
PRESETS = ("", "ddp", "zero2", "fsdp", "megatron", "megatron_sp")


def posed(name: str, preset: str = "", recompute: Recompute | None = None) -> ShardingProblem:
    case, mesh = parity.reference(name, steps=1), Mesh.of(2)
    constraints = presets.load(preset, mesh) if preset else ()
    regather = presets.regathers(preset) if preset else None
    asked = Settings(
        preset=preset, constraints=tuple(constraints), regather=regather, recompute=recompute
    )
    # A plan asks each kernel what it saves on shards, where that is no fixed share of the whole.
    return pose(case.graph, mesh, load("h100"), asked, dict(case.saved))


def peaks(problem: ShardingProblem) -> tuple[float, int]:
    """The peak that the solver counts, and the plan's; gathers ahead are no decision of the solver."""
    answer = problem.solve()
    plan = problem.assembled(problem.priced.decisions(answer), prefetch=False)
    counted = problem.priced.problem.course(answer.states)
    return float(counted.max()), plan.estimate.memory_nbytes


def differs(*case: str, why: str) -> object:
    return pytest.param(*case, marks=pytest.mark.xfail(strict=True, reason=why))


EXACT = [(name, preset) for name in ("mlp", "gpt2") for preset in PRESETS]
UNLIKE = {
    ("mlp", "fsdp"): "the message of gradients at the end of the backward is not counted",
    ("gpt2", "megatron"): "a kept tensor in two shardings is counted once",
    ("gpt2", "megatron_sp"): "a kept tensor in two shardings is counted once",
}
"""Cases in which a plan knows more than its decisions one by one: 1 to 11 % more bytes."""


@pytest.mark.parametrize(
    ("name", "preset"),
    [case for case in EXACT if case not in UNLIKE]
    + [differs(*case, why=why) for case, why in UNLIKE.items()],
)
def test_the_solvers_peak_is_the_plans(name: str, preset: str) -> None:
    counted, nbytes = peaks(posed(name, preset))
    assert counted == pytest.approx(nbytes, rel=CLOSE)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_the_peak_of_recomputed_blocks(mode: Recompute) -> None:
    counted, nbytes = peaks(posed("gpt2", "", mode))
    assert counted == pytest.approx(nbytes, rel=CLOSE)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("preset", ["megatron", "megatron_sp"])
def test_partial_sums_are_kept_reduced(name: str, preset: str) -> None:
    """Of a row-parallel product, selective recomputation keeps what its reduction leaves."""
    problem = posed(name, preset, "selective")
    plan = problem.assembled(problem.priced.decisions(problem.solve()), prefetch=False)
    reduced = {
        (c.tensor, c.source)
        for c in plan.conversions
        if c.source[c.axis] is P and is_expensive(problem.graph.producer[c.tensor])
    }
    assert reduced
    counted, nbytes = peaks(problem)
    # In gpt2 a kept tensor is in two shardings, of which the solver counts one.
    assert counted == pytest.approx(nbytes, rel=0.02 if name == "gpt2" else CLOSE)
