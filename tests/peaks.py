"""The most bytes that a step has in use, counted by a tracker that knows nothing of plans."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from autopar.ir.blocks import Recompute
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.request import presets
from autopar.request.compression import Compression
from autopar.runtime.parallel import Parallel
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Settings
from cost_models.hardware import load as load_hardware
from tests import parity
from tests.live import Allocations, LiveBytes

STEPS = 4
"""That are looked at."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes: what rests between steps, and the most in use in each phase of one.

    `allocated` is the most of a step as the allocator has it: what kernels take for themselves too.
    """

    rest: int
    forward: int
    backward: int
    update: int
    allocated: int

    @property
    def most(self) -> int:
        """Of the whole step."""
        return max(self.forward, self.backward, self.update)


def planned(
    name: str,
    shape: int | tuple[int, ...],
    recompute: Recompute | None = None,
    preset: str = "",
    limit: float | None = None,
    compression: str | None = None,
) -> tuple[Plan, parity.Work]:
    """A plan of a case, on so many ranks or a mesh, that remembers a momentum, as the steps do."""
    case = parity.reference(name)
    mesh = Mesh.of(shape) if isinstance(shape, int) else Mesh.of(*shape)
    settings = Settings(
        optimizer="SGD",
        states=1.0,
        preset=preset,
        constraints=presets.load(preset, mesh) if preset else (),
        regather=presets.regathers(preset) if preset else None,
        recompute=recompute,
        memory_limit=limit,
        compression=Compression.of(compression),
    )
    made = compile_graph(case.graph, mesh, load_hardware("cpu"), settings, case.saved)
    label = f"{name} on {mesh}, recompute {recompute}"
    return made.plan, parity.Work(name, label, made.plan.to_json(), made.source)


def peaks(work: parity.Work, keeps_gradients: bool = True) -> Peaks:
    """Of the third step and those behind it; the two before give gradients and states their place.

    `keeps_gradients`: they are set to zero between steps, not dropped.  The least of several steps
    counts: gloo's threads may still hold a message when somebody who waited for it goes on.
    """
    case = parity.reference(work.name)
    return peaks_of(parity.parallel_of(work), case.inputs, case.rate, keeps_gradients)


def peaks_of(
    parallel: Parallel, inputs: Mapping[str, Any], rate: float, keeps_gradients: bool = True
) -> Peaks:
    """Of a parallel model, as `peaks`."""
    given = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    buffers = list(parallel.buffers())
    optimizer = parity.sgd(parallel, rate)
    gc.collect()
    gc.disable()
    try:
        with LiveBytes() as live:
            live.count(_local(p) for p in parallel.parameters())
            live.count(parallel._leaves.by_name.values())
            live.count(given)
            live.count(buffers)
            for _ in range(2):
                parallel(**inputs).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=not keeps_gradients)
            steps = []
            for _ in range(STEPS):
                live.most = there = live.nbytes
                loss = parallel(**inputs)
                forward, live.most = live.most, live.nbytes
                loss.backward()
                del loss
                backward, live.most = live.most, live.nbytes
                optimizer.step()
                steps.append((forward, backward, live.most))
                optimizer.zero_grad(set_to_none=not keeps_gradients)
        allocated = _allocated(parallel, inputs, there)
    finally:
        gc.enable()
    rest = there - sum(tensor.nbytes for tensor in (*given, *buffers))
    return Peaks(rest, *map(min, zip(*steps, strict=True)), allocated)


def _allocated(parallel: Parallel, inputs: Mapping[str, Any], there: int) -> int:
    """The most that forward and backward of another step have allocated, for kernels too."""
    with Allocations(there) as forward:
        loss = parallel(**inputs)
    with Allocations(forward.nbytes) as backward:
        loss.backward()
        del loss
    return max(forward.most, backward.most)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
