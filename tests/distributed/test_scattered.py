"""Of gradients that are scattered in buckets, a part is kept and the rest is freed (ZeRO-2)."""

from __future__ import annotations

import pytest

from autopar.cost.filled import gradient_buckets
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import Settings, prices_of
from cost_models.hardware import load
from tests import parity
from tests.distributed import scattered_jobs as jobs
from tests.pool import Pool


def work(shape: tuple[int, ...] = (2,)) -> parity.Work:
    return parity.preset_work("deep.gpt2", shape, "zero2")


def test_two_buffers_at_a_time(pool: Pool) -> None:
    buckets, most, after = pool.run(2, jobs.most_buffers, work())[0]
    assert buckets > 4
    assert most == 2
    assert after == 0


def test_parts_alone_rest(pool: Pool) -> None:
    pool.run(2, jobs.rests, work())


@pytest.mark.thorough
def test_over_two_axes(pool: Pool) -> None:
    pool.run(4, jobs.rests, work((2, 2)))


@pytest.mark.thorough
def test_a_backward_that_fails_between_buckets(pool: Pool) -> None:
    pool.run(2, jobs.failing, work())


def test_memory_knows_the_buckets(pool: Pool) -> None:
    """The groups that are simulated are those that run."""
    made = work()
    plan, graph = Plan.from_json(made.plan), parity.reference(made.name).graph
    prices = prices_of(plan.mesh, load("cpu"), Settings(optimizer="SGD", states=0.0))
    leaves = {node.outputs[0].name: node.target for node in graph.leaves("parameter")}
    with jobs.small():
        filled = gradient_buckets(graph, plan.parameters, prices, plan.buckets)
    simulated = [{leaves[tensor] for tensor, _ in bucket.leaves} for bucket in filled]
    assert len(simulated) > 4
    assert simulated == [set(names) for names in pool.run(2, jobs.names, made)[0]]
