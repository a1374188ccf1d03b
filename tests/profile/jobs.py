"""What the pool's workers do in tests of traces."""

from __future__ import annotations

import copy

import torch

import autopar
from autopar.profile import run_beside
from autopar.profile.traced_step import Beside
from autopar.runtime.named import PREFIX
from autopar.runtime.pipeline.module import Pipelined
from tests import models


def traced(name: str, mesh: tuple[int, ...], preset: str | None) -> Beside:
    """A few steps of a case, beside its plan."""
    case = models.CASES[name]()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    return run_beside(parallel, case[1], optimizer, steps=2)


def names_of_stages(schedule: str) -> tuple[set[str], list[str]]:
    """What a profiler sees of a pipeline's step on this rank, and this worker's actions."""
    model, inputs, loss = models.CASES["mlp"]()
    parallel = autopar.parallelize(
        model,
        (2,),
        inputs,
        loss=loss,
        pipeline=autopar.Pipeline(2, schedule=schedule, microbatches=2),
    )
    assert isinstance(parallel, Pipelined)
    with torch.profiler.profile() as profiler:
        parallel.train_step(**inputs)
    seen = {e.name.removeprefix(PREFIX) for e in profiler.events() if e.name.startswith(PREFIX)}
    actions = parallel.plan.schedule.workers[torch.distributed.get_rank()]
    return seen, [f"stage {action.stage}: {action}" for action in actions]


def same_with_names(name: str, mesh: tuple[int, ...], preset: str) -> bool:
    """A profiled step gives what a plain one gives; the plain one knows of no names."""
    case = models.double(models.CASES[name]())
    found = []
    for profiled in (False, True):
        parallel = autopar.parallelize(
            copy.deepcopy(case[0]), mesh, case[1], loss=case[2], preset=preset
        )
        program = parallel._programs.first
        if profiled:
            with torch.profiler.profile():
                loss = parallel(**case[1])
                loss.backward()
        else:
            loss = parallel(**case[1])
            loss.backward()
        assert ("marked" in vars(program)) is profiled
        gradients = [p.grad.full_tensor() for p in parallel.parameters() if p.grad is not None]
        found.append((loss.detach(), *gradients))
    plain, named = found
    assert len(plain) == len(named) > 1
    return all(torch.equal(a, b) for a, b in zip(plain, named, strict=True))
