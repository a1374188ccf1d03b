"""Plans a model for many batch sizes and memory limits, without processes or weights.

The model is captured once per batch size by `Compiler`; `autopar.sharding.landscape` makes the plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autopar.compile.compiler import Compiler
from autopar.compile.given import MeshLike, as_hardware, as_mesh, offered_inputs
from autopar.errors import InputError
from autopar.request.batch import leaves_of, mapped
from autopar.request.meta import without_weights
from autopar.request.optimizers import OptimizerLike
from autopar.request.options import Options
from autopar.request.planning import Planning
from autopar.sharding.landscape import Point, landscape
from autopar.sharding.largest import largest
from autopar.sharding.sharding_problem import Settings, device_memory
from cost_models.hardware import Hardware

MOST = 2**40
"""Most samples per batch: the byte counts of larger batches overflow, here or in torch."""


def plan_landscape(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: Any = None,
    *,
    batches: Sequence[int],
    memories: Sequence[float],
    hardware: str | Hardware | None = None,
    loss: Callable[..., Any] | None = None,
    optimizer: OptimizerLike = torch.optim.AdamW,
    precision: Any = None,
    planning: Planning | None = None,
) -> Iterator[Point]:
    """Yield the best plan for each batch size and each memory limit per device.

    `memories` are in bytes; `planning` may name measured operator times.  The example inputs are
    resized along their first dim.  An infeasible point has no plan and gives the memory that would
    suffice.
    """
    options = Options.of(
        loss=loss, optimizer=optimizer, precision=precision, planning=planning,
    )  # fmt: skip
    swept = _Swept.of(model, mesh, example_inputs, hardware, options)
    return swept.landscape(batches, memories)


def largest_batch(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: Any = None,
    *,
    memory_limit: float | str | None = None,
    hardware: str | Hardware | None = None,
    loss: Callable[..., Any] | None = None,
    optimizer: OptimizerLike = torch.optim.AdamW,
    precision: Any = None,
    planning: Planning | None = None,
) -> Iterator[Point]:
    """Yield the batch sizes that are tried, each with its best plan; the largest with a plan fits.

    Plans have no stages.  `memory_limit` is per device, in bytes or as ``"40GiB"``; None is the
    device's memory.  Raises `InputError` for ``"none"``, as every batch fits without a limit.
    """
    options = Options.of(
        loss=loss, optimizer=optimizer, precision=precision, memory_limit=memory_limit,
        planning=planning,
    )  # fmt: skip
    if options.memory_limit == math.inf:
        raise InputError("Without a limit every batch fits: pass one such as '40GiB', or None.")
    swept = _Swept.of(model, mesh, example_inputs, hardware, options)
    where, profile = swept.compiler.mesh, swept.compiler.hardware
    limit = options.memory_limit or device_memory(where, profile)

    def at(batch: int) -> Point:
        (point,) = swept.landscape((batch,), (limit,))
        return point

    return largest(at, where.world_size)


@dataclass(frozen=True)
class _Swept:
    """A model's compiler, and the example inputs to resize."""

    compiler: Compiler
    inputs: Any

    @classmethod
    def of(
        cls,
        model: nn.Module,
        mesh: MeshLike,
        example_inputs: Any,
        hardware: str | Hardware | None,
        options: Options,
    ) -> _Swept:
        inputs = example_inputs if example_inputs is not None else offered_inputs(model)
        bare = without_weights(model, options.precision.compute)
        return cls(Compiler(bare, as_mesh(mesh), as_hardware(hardware), options), inputs)

    def landscape(self, batches: Sequence[int], memories: Sequence[float]) -> Iterator[Point]:
        compiler, options = self.compiler, self.compiler.options
        graphs = ((batch, compiler.graph(resized(self.inputs, batch))) for batch in batches)
        settings = Settings(
            optimizer=options.optimizer,
            states=options.update.states,
            whole_states=options.update.whole_states,
            reads=options.update.reads,
            precision=str(options.precision),
            times=compiler.times,
        )
        return landscape(graphs, compiler.mesh, compiler.hardware, settings, memories)


def resized(inputs: Any, batch: int) -> Any:
    """Return the example inputs on the meta device with another batch size.

    The batch size is the first tensor's first dim; every tensor with the same first dim is resized.
    Raises `InputError` if no tensor has dims, and for more than `MOST` samples.
    """
    if batch > MOST:
        raise InputError(f"A batch of {batch} is too large: pass {MOST} at most.")
    tensors = [v for _, v in leaves_of(inputs, "") if isinstance(v, torch.Tensor) and v.dim()]
    if not tensors:
        raise InputError("The example inputs have no tensor whose first dim could be the batch.")
    size = tensors[0].shape[0]

    def of_batch(value: Any, _: str) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size:
            return value.new_empty((batch, *value.shape[1:]), device="meta")
        return value

    changed = mapped(inputs, "", of_batch)
    return tuple(changed) if isinstance(inputs, tuple) else changed
