"""Runs a training program, segment by segment, in workers; compares both sides after every action.

A program is code: its `repr` is what `replay` takes.
"""

from __future__ import annotations

import copy
import io
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from tests.habits import training_built, training_program
from tests.habits.training_model import LAYOUTS, Setting, fresh
from tests.habits.training_program import ACTIONS, Action, Training
from tests.pool import Pool

TOLERANCE = 1e-9
LIMIT_S = 600.0
"""For a segment: planning on a busy machine takes long."""
FAST = "/dev/shm"
RESUME = "resume"
"""An action with a layout: save, start other processes, load there."""


@dataclass(frozen=True)
class Program:
    """A setting and the actions that follow."""

    setting: Setting
    actions: tuple[Action, ...]

    @property
    def segments(self) -> list[tuple[Setting, list[Action]]]:
        """What processes of one layout do."""
        made: list[tuple[Setting, list[Action]]] = [(self.setting, [])]
        for action in self.actions:
            if action[0] == RESUME:
                made.append((replace(self.setting, layout=action[1]), []))
            else:
                made[-1][1].append(action)
        return made

    def __str__(self) -> str:
        actions = "".join(f"        {action!r},\n" for action in self.actions)
        return f"Program(\n    {self.setting!r},\n    (\n{actions}    ),\n)"


def run(pool: Pool, program: Program) -> None:
    """Raise, with the program as code, where the two sides differ."""
    carried: bytes | None = None
    with tempfile.TemporaryDirectory(dir=FAST if os.access(FAST, os.W_OK) else None) as folder:
        try:
            for place, (setting, actions) in enumerate(program.segments, 1):
                ranks = LAYOUTS[setting.layout].ranks
                job = (setting, actions, folder, carried, place < len(program.segments))
                carried = pool.run(ranks, run_segment, *job, limit_s=LIMIT_S)[0]
        except Exception as error:
            error.add_note(f"replay with tests.habits.training_run.replay(\n{program})")
            raise


def replay(program: Program) -> None:
    """Run one program, in processes of its own."""
    pool = Pool()
    try:
        run(pool, program)
    finally:
        pool.stop()


def run_segment(
    setting: Setting, actions: list[Action], folder: str, carried: bytes | None, goes_on: bool
) -> bytes | None:
    """Go on from what an earlier segment carried over; give what a later one needs."""
    plain = Training(
        setting, lambda: copy.deepcopy(fresh(setting.model)), is_parallel=False, folder=Path(folder)
    )
    parallel = Training(
        setting, lambda: training_built.parallel(setting), is_parallel=True, folder=Path(folder)
    )
    if carried is not None:
        _go_on(plain, parallel, carried)
    for place, (name, *arguments) in enumerate(actions):
        try:
            want = ACTIONS[name](plain, *arguments)
            got = ACTIONS[name](parallel, *arguments)
            if name == "killed_save":
                for side in (parallel, plain):
                    training_program.loaded(side, got)
            else:
                _compare(got, want, "result")
            _compare_sides(parallel, plain)
        except Exception as error:
            error.add_note(f"in {setting.layout}, action {place}: {name}{tuple(arguments)}")
            raise
    return _carried(plain, parallel) if goes_on else None


def _carried(plain: Training, parallel: Training) -> bytes:
    for side in (plain, parallel):
        training_program.save(side)
    buffer = io.BytesIO()
    states, how = training_program.state_of(plain), training_program.standing(plain)
    torch.save((states, how, plain.saves), buffer)
    return buffer.getvalue()


def _go_on(plain: Training, parallel: Training, carried: bytes) -> None:
    states, how, saves = torch.load(io.BytesIO(carried), weights_only=False)
    training_program.put_on(plain, states)
    plain.saved[saves] = states
    for side in (plain, parallel):
        training_program.stand(side, how)
        side.saves = saves
    _compare(training_program.load(parallel), torch.tensor(float(saves)), "number of the save")
    _compare_sides(parallel, plain)


def _compare_sides(parallel: Training, plain: Training) -> None:
    whole = plain.parameters
    buffers, plain_buffers = (dict(s.module.named_buffers()) for s in (parallel, plain))
    if not parallel.is_staged:
        assert (parallel.parameters.keys(), buffers.keys()) == (whole.keys(), plain_buffers.keys())
    for name, got in parallel.parameters.items():
        assert got.requires_grad == whole[name].requires_grad, name
        _compare(got, whole[name], f"weight {name}")
        _compare(got.grad, whole[name].grad, f"gradient of {name}")
    for name, got in buffers.items():
        _compare(got, plain_buffers[name], f"buffer {name}")
    ours, theirs = (
        [{k: v for k, v in group.items() if k != "params"} for group in s.optimizer.param_groups]
        for s in (parallel, plain)
    )
    assert ours == theirs, f"groups {ours} beside {theirs} of one process"


@torch.no_grad()
def _compare(got: Any, want: Any, what: str) -> None:
    if isinstance(got, Mapping):
        assert got.keys() <= want.keys(), what
        for name, value in got.items():
            _compare(value, want[name], f"{what} {name}")
        return
    assert (got is None) == (want is None), f"{what}: {got} beside {want} of one process"
    if want is None:
        return
    scale = max(1.0, float(want.double().abs().max()))
    here, there = _alike(got.detach(), want.detach())
    assert here.shape == there.shape, f"{what}: {here.shape} beside {there.shape} of one process"
    if here.numel():
        difference = float((here.double() - there.double()).abs().max())
        assert difference <= TOLERANCE * scale, f"{what}: {difference:.1e} beside {scale:.1e}"


def _alike(got: torch.Tensor, want: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of both, without a word to other ranks where that can be."""
    if not isinstance(got, DTensor):
        return got, want
    if not all(type(placement) in (Shard, Replicate) for placement in got.placements):
        return got.full_tensor(), want
    mesh = got.device_mesh
    for axis, placement in enumerate(got.placements):
        if isinstance(placement, Shard):
            size = want.shape[placement.dim]
            most = math.ceil(size / mesh.size(axis))
            start = min(size, most * mesh.get_local_rank(axis))
            want = want.narrow(placement.dim, start, min(most, size - start))
    return got.to_local(), want
