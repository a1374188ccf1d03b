"""A model planned for many batches and memories: captured once per batch, without processes or weights.

Stands on `api`, which captures, and on `landscape`, which plans.
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
"""Samples: the bytes of larger batches overflow, here or in torch."""


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
    """The best plan for every size of the batch and every memory per device, one after the other.

    `memories` are in bytes, `planning` may name measured times of operators.  The example inputs are
    resized: their first dim is the batch.  A point that no plan meets has none, and says how much
    memory would do.
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
    """Batches as they are tried, each with its best plan; the largest with a plan is what fits.

    Without stages, and with a limit per device in bytes or as ``"40GiB"``; None is what it has.  Raises
    `InputError` for no limit at all, within which everything fits.
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
    """A model's compiler, and the inputs that are resized."""

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
            states=options.states,
            precision=str(options.precision),
            times=compiler.times,
        )
        return landscape(graphs, compiler.mesh, compiler.hardware, settings, memories)


def resized(inputs: Any, batch: int) -> Any:
    """Example inputs of another batch, without values: the first tensor's first dim is the batch's.

    Raises `InputError` where no tensor has a batch, and for more than `MOST` samples.
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
