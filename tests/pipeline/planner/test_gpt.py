"""GPT-39B on 64 V100 under the alpha-beta model of `benchmarks/gpt_stages.py`, against Alpa's plan.

Alpa's published plan is 16 stages of 1x4 (Zheng et al., OSDI 2022).  It is given the best ways,
number of microbatches and schedule that the same model knows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.pipeline.planner import GPIPE, ONE_F_ONE_B, plan_stages

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_no_worse_than_alpas_plan() -> None:
    import stages

    problem = stages.gpt_39b((ONE_F_ONE_B, GPIPE))
    plan = plan_stages(problem)
    assert plan.step_s <= stages.alpas_step(problem)
    assert plan.gap < 0.01
    assert all(stage.nbytes <= problem.memory_nbytes for stage in plan.stages)


def test_formulas() -> None:
    """One microbatch of one sample on one device: 72 b s h^2 + 12 b s^2 h FLOP forward and backward."""
    from gpt_stages import GPT_39B, V100_16, gpt_table

    table = gpt_table(GPT_39B, V100_16, 1024, [(1, 1)])
    way = next(way for way in table.ways if way.name == "dp1 tp1")
    h, s = GPT_39B.hidden, GPT_39B.sequence
    work = 72 * s * h**2 + 12 * s**2 * h
    assert way.seconds[1, 3] == pytest.approx(2 * work / V100_16.flops_per_s)
    assert way.rest_nbytes[1, 2] == pytest.approx(16 * 12 * h**2)
