"""`torch.distributed.pipelining`: a stage per rank, or per rank of each replica, cut by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from contender import Contender, NotPossible, Place, Setting, Weights, share_of
from cuts import CUTS, Stage
from models import Batch, Model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

SCHEDULES = {
    "GPipe": (ScheduleGPipe, 1), "1F1B": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2), "ZB-V": (ScheduleZBVZeroBubble, 2),
}  # fmt: skip
"""Each with its stages per rank."""
V = "ZB-V"
"""Ranks hold the second half of its stages in the opposite order."""


def settings(place: Place) -> Iterator[Setting]:
    """What is tried."""
    tried = [
        ("GPipe", 2), ("GPipe", 4), ("GPipe", 8), ("1F1B", 4), ("1F1B", 8), (V, 4), (V, 8),
        ("interleaved", 4),
    ]  # fmt: skip
    for schedule, count in tried:
        if count >= place.ranks:
            yield _setting(schedule, count, place.ranks)
    if len(place.sizes) > 1:
        for schedule, count in tried[:-1]:
            yield _setting(schedule, count, len(place.sizes))


def _setting(schedule: str, microbatches: int, stages: int) -> Setting:
    name = f"{stages} ranks deep, {schedule}, {microbatches} microbatches"
    made = partial(pipeline, schedule=schedule, microbatches=microbatches, deep=stages)
    return Setting("pipelining", name, made)


def pipeline(
    model: Model, place: Place, *, schedule: str, microbatches: int, deep: int
) -> Contender:
    """Consecutive racks, or ranks, hold consecutive stages; ranks of one place are replicas."""
    samples = model.sizes.batch * deep // place.ranks
    if samples < microbatches:
        raise NotPossible(f"{microbatches} microbatches of {samples} samples")
    stages_in_all, blocks = deep * SCHEDULES[schedule][1], model.blocks_in_all
    if blocks < stages_in_all:
        raise NotPossible(f"{blocks} blocks for {stages_in_all} stages")
    if schedule == V and not CUTS[model.name].splits:
        raise NotPossible("torch goes through its graph a second time where backwards are split")
    replicas = place.ranks // deep
    mesh = init_device_mesh("cpu", (deep, replicas), mesh_dim_names=("stage", "data"))
    kind, per_rank = SCHEDULES[schedule]
    own = dist.get_rank() // replicas
    cut = CUTS[model.name]
    numbers = (own, 2 * deep - 1 - own) if schedule == V else range(own, stages_in_all, deep)
    stages = [Stage(model.make(), cut, number, stages_in_all) for number in numbers]
    _share(stages)
    placed = [
        PipelineStage(
            stage, stage.number, stages_in_all, torch.device("cpu"),
            group=mesh["stage"].get_group(),
        )
        for stage in stages
    ]  # fmt: skip
    given: Any = placed if per_rank > 1 else placed[0]
    runs = kind(given, n_microbatches=microbatches, loss_fn=cut.loss, scale_grads=False)
    shared = _tied(stages, mesh["stage"].get_group())
    part = dist.get_rank() % replicas
    parameters = list(dict.fromkeys(p for stage in stages for p in stage.parameters()))
    is_last = stages[-1].is_last

    def step(batch: Batch) -> torch.Tensor | None:
        mine = share_of(batch, part, replicas)
        losses: list[torch.Tensor] = []
        runs.step(
            *([mine[cut.reads]] if own == 0 else []),
            target=mine["labels"] if is_last else None,
            losses=losses if is_last else None,
            **cut.beside(stages[0].model, mine),
        )
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= microbatches
        if replicas > 1:
            _average(parameters, mesh["data"].get_group())
        for parameter, group in shared:
            dist.all_reduce(parameter.grad, group=group)
        return torch.stack(losses).mean() if is_last else None

    return Contender(step, parameters, lambda: _collected(stages))


def _share(stages: list[Stage]) -> None:
    """What two stages of a rank hold is one parameter, whose gradient is divided once: torch's own
    `scale_grads` goes through stages, so it is off."""
    first: dict[str, nn.Parameter] = {}
    for stage in stages:
        for name, parameter in stage.names().items():
            stage.hold(name, first.setdefault(name, parameter))


def _average(parameters: list[nn.Parameter], group: Any) -> None:
    """Gradients of replicas, in one bucket: torch's DDP does not survive a stage's microbatches here
    (its reducer counts parameters twice)."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(bucket, group=group)
    bucket /= dist.get_world_size(group)
    parts = bucket.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _tied(stages: list[Stage], group: Any) -> list[tuple[nn.Parameter, Any]]:
    """Parameters that several stages hold: summing their gradients is left to the user."""
    held = {name for stage in stages for name in stage.names()}
    by_rank: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(by_rank, sorted(held), group=group)
    ranks = dist.get_process_group_ranks(group)
    columns: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(columns, ranks)
    found = []
    for name in sorted({name for names in by_rank for name in names}):
        places = [place for place, names in enumerate(by_rank) if name in names]
        if len(places) < 2:
            continue
        for column in sorted({tuple(column) for column in columns}):  # new_group is of all ranks
            made = dist.new_group([column[place] for place in places])
            if column == tuple(ranks) and name in held:
                holder = next(stage for stage in stages if name in stage.names())
                found.append((holder.names()[name], made))
    return found


def _collected(stages: list[Stage]) -> Weights:
    """Those of all stages, on rank 0."""
    mine = {name: value.detach() for stage in stages for name, value in stage.names().items()}
    every: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, every)
    return {name: value for held in every or [mine] for name, value in held.items()}
