"""Traces a training step on every rank: under ``torchrun``, or in local gloo processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autopar.api import parallelize
from autopar.ir.mesh import Mesh
from autopar.profile.compare import compared
from autopar.profile.trace import BACKWARD, FORWARD, UPDATE, part, traced
from autopar.profile.traced_step import Beside
from autopar.runtime.parallel import Parallel


def run_beside(parallel: Parallel, batch: Any, optimizer: Any, steps: int = 5) -> Beside:
    """Train some steps and compare rank 0's with the plan; a collective call, equal on all ranks."""
    args = batch if isinstance(batch, tuple) else ()
    kwargs = {} if isinstance(batch, tuple) else batch

    def step() -> None:
        with part(FORWARD):
            loss = Parallel._loss_of(parallel(*args, **kwargs))
        with part(BACKWARD):
            loss.backward()
        with part(UPDATE):
            optimizer.step()
            optimizer.zero_grad()

    trace = traced(step, steps)
    found = [compared(parallel.plan, parallel.graph, trace)]
    dist.broadcast_object_list(found, src=0)
    return found[0]


@dataclass(frozen=True)
class Run:
    """The work of every process: build the model, parallelize it, and trace it.

    `load` returns model, example inputs and loss; it must be picklable.
    """

    load: Callable[[], tuple[nn.Module, Any, Any]]
    mesh: Mesh
    options: dict[str, Any]
    steps: int

    def __call__(self) -> Beside:
        torch.manual_seed(0)
        model, inputs, loss = self.load()
        parallel = parallelize(model, self.mesh, inputs, loss=loss, **self.options)
        assert isinstance(parallel, Parallel)
        optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4)
        return run_beside(parallel, inputs, optimizer, self.steps)
