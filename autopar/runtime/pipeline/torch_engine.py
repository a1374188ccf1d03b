"""Runs our stages and action list on PyTorch's pipeline engine, as an independent check.

`torch_step` is equivalent to `Pipelined.train_step` on the runtime of `torch.distributed.pipelining`.
Torch receives, runs, differentiates and sends; the action list and the stages' programs are ours.  The
reductions over a worker's mesh and over copies of tied weights, after the last backward, are also
ours.  `limits.py` defines which plans it supports.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from autopar.pipeline.schedules.torch_csv import torch_csv
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.runtime import _torch
from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.limits import check_limits, layout_of
from autopar.runtime.pipeline.module import Pipelined
from autopar.runtime.pipeline.relays import Relays
from autopar.runtime.pipeline.step import Step


def torch_step(parallel: Pipelined, **batch: Any) -> torch.Tensor:
    """Run one training step on torch's engine; return the loss, equal on all ranks.

    Gradients are set on the parameters.  Raises `InputError` on all ranks for a plan that torch's
    engine does not support.
    """
    return parallel.step_on(_engine, batch)


def _engine(built: Built) -> Callable[[Step], None]:
    relays = Relays(built.stages)
    actions = torch_csv(built.plan.schedule)  # refuses unsupported schedules first
    check_limits(built.plan, relays)
    return partial(_run, built, relays, actions)


def _run(built: Built, relays: Relays, actions: str, step: Step) -> None:
    numbers = torch.arange(built.plan.microbatches)
    with _peers(built.plan) as group, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        path.write_text(actions)
        stages = [_stage(built, step, relays, number, group) for number in sorted(step.stages)]
        engine = _torch.pipeline_engine(stages, len(numbers), _loss, path, step.reduce)
        losses: list[torch.Tensor] = []
        engine.step(microbatch=numbers, target=numbers, losses=losses, return_outputs=False)
    step.losses = {number: loss.detach() for number, loss in enumerate(losses)}


@contextmanager
def _peers(plan: PipelinePlan) -> Iterator[dist.ProcessGroup]:
    """Make the group of ranks at the same position of every worker, within which stages communicate."""
    mine: dist.ProcessGroup | None = None
    for ranks in zip(*(worker.ranks for worker in plan.workers), strict=True):
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            mine = group
    assert mine is not None
    try:
        yield mine
    finally:
        dist.destroy_process_group(mine)


def _stage(
    built: Built, step: Step, relays: Relays, number: int, group: dist.ProcessGroup
) -> PipelineStage:
    module = _StageModule(step, number, relays.into(number), relays.out_of(number))
    results = relays.out_of(number) or (built.stages.graphs[number].loss or "",)
    return PipelineStage(
        module,
        number,
        len(built.stages.graphs),
        step.device,
        input_args=_examples(built, relays, number, relays.into(number)),
        output_args=_examples(built, relays, number, results),
        group=group,
    )


def _examples(
    built: Built, relays: Relays, stage: int, names: Sequence[str]
) -> tuple[torch.Tensor, ...]:
    """Return meta tensors for the tensors at a stage boundary, so that torch need not infer shapes."""
    found = []
    for name in names:
        graph = built.stages.graphs[relays.made_by.get(name, stage)]
        tensor = graph.tensors[name]
        layout = layout_of(built.plan, relays.stages, relays.made_by.get(name, stage), name)
        shape = layout.form.local_shape(tensor.shape, layout.mesh)
        example = torch.empty(shape, dtype=getattr(torch, tensor.dtype), device="meta")
        found.append(example.requires_grad_(tensor.differentiable))
    return tuple(found)


class _StageModule(nn.Module):
    """One stage as torch's engine calls it: from the previous stage's tensors to those of the next.

    `microbatch` is a number; the step has the inputs.
    """

    def __init__(self, step: Step, number: int, into: Sequence[str], out: Sequence[str]) -> None:
        super().__init__()
        self._step, self._number, self._into, self._out = step, number, into, out
        self._stage = step.stages[number]
        self._stage.splits = False  # torch itself defers weight gradients

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """Yield the leaves whose gradients W computes; torch requests them if a backward is split."""
        named = self._stage.leaves.by_name
        graph = self._stage.program.graph
        for node in graph.leaves("parameter"):
            if named[node.target].requires_grad:
                yield named[node.target]

    def forward(self, *received: torch.Tensor, microbatch: torch.Tensor) -> Any:
        """Return the loss, or the tensors for the next stage."""
        passing = {
            name: _entered(tensor) for name, tensor in zip(self._into, received, strict=True)
        }
        own = {name: passing[name] for name in self._stage.receives}
        results = self._step.compute(self._number, int(microbatch), own)
        self._stage.flights.clear()  # torch keeps what its backward needs
        graph = self._stage.program.graph
        if not self._out:
            assert graph.loss is not None
            return _entered(results[graph.loss])
        return tuple(_entered((passing | results)[name]) for name in self._out)


def _entered(tensor: torch.Tensor) -> torch.Tensor:
    """Make a boundary tensor and its gradient contiguous, since torch sends both as they are."""
    crossed: torch.Tensor = _Border.apply(tensor)
    return crossed


class _Border(torch.autograd.Function):
    """A contiguous copy, never a view: torch detaches results in place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous()


def _loss(result: torch.Tensor, _: Mapping[str, Any]) -> torch.Tensor:
    return result
