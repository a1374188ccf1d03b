"""Planning time and plans of the inter-stage planner: `python benchmarks/stages.py [stages.json]`.

GPT-39B on 8 x 8 V100, where Alpa published 1.65 s for the dynamic programming between stages, and
Llama-3-405B on 2,048 x 8 H100; tables of ways come from the formulas of `gpt_stages.py`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpt_stages import GPT_39B, H100_80, LLAMA_405B, V100_16, gpt_problem, shapes_of

from autopar.pipeline.planner import (
    EAGER,
    GPIPE,
    ONE_F_ONE_B,
    ZB_H1,
    ZB_H2,
    Family,
    StageProblem,
    plan_stages,
)
from autopar.pipeline.planner.planning import equal_stages
from autopar.pipeline.planner.priced import price
from autopar.pipeline.planner.simulated import simulated_step

EVERY = (ONE_F_ONE_B, GPIPE, EAGER, ZB_H1, ZB_H2)


def gpt_39b(families: tuple[Family, ...]) -> StageProblem:
    """All shapes, all powers of two of microbatches."""
    return gpt_problem(GPT_39B, V100_16, [2**k for k in range(11)], families)


def llama_405b(families: tuple[Family, ...]) -> StageProblem:
    """At most 32 stages of 64 devices and more; 2,048 sequences leave 256 microbatches at most."""
    shapes = shapes_of(H100_80, 64)
    return gpt_problem(LLAMA_405B, H100_80, [2**k for k in range(3, 9)], families, shapes, 32)


def alpas_step(problem: StageProblem) -> float:
    """The best simulated step of 16 equal stages of 1x4, over ways, microbatches and schedules."""
    only = tuple(
        replace(table, ways=tuple(w for w in table.ways if (w.nodes, w.devices) == (1, 4)))
        for table in problem.tables
    )
    steps = [
        simulated_step(priced, stages)
        for priced in price(replace(problem, tables=tuple(t for t in only if t.ways)))
        for stages in equal_stages(priced)
        if priced.estimate(stages) < math.inf
    ]
    return min(steps)


def measured(name: str, problem: StageProblem) -> dict[str, object]:
    """The plan, and how long it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    plan = plan_stages(problem)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    families = "+".join(family.name for family in problem.families)
    print(f"{name:12} {families:36} {wall:8.2f} {cpu:8.2f} {plan.step_s:9.4f} {plan.gap:7.2%}")
    return {
        "problem": name,
        "families": families,
        "ways": [len(table.ways) for table in problem.tables],
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "plan": json.loads(plan.to_json()),
    }


def main() -> None:
    """A table on the screen, JSON in a file."""
    print(f"{'problem':12} {'families':36} {'wall s':>8} {'cpu s':>8} {'step s':>9} {'gap':>7}")
    alpa = alpas_step(gpt_39b((ONE_F_ONE_B, GPIPE)))
    rows = [
        measured("GPT-39B", gpt_39b((ONE_F_ONE_B,))),
        measured("GPT-39B", gpt_39b((ONE_F_ONE_B, GPIPE))),
        measured("GPT-39B", gpt_39b(EVERY)),
        measured("Llama-405B", llama_405b((ONE_F_ONE_B,))),
    ]
    print(f"Alpa's plan of GPT-39B (16 stages of 1x4) under the same model: {alpa:.4f} s")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(
            json.dumps({"alpas_step_s": alpa, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
