"""The check that would catch us, of pipelines: steps of stages against the single process."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.distributed.tensor import DTensor

import autopar
from autopar import rules
from autopar.capture.saved import saved
from autopar.cost.issued import traffic
from autopar.emit import emit
from autopar.ir.blocks import Recompute
from autopar.pipeline.build.stage_compiler import StageCompiler, StageRequest
from autopar.plans.decisions import total
from autopar.plans.plan import Plan
from autopar.runtime.counting import CountTraffic
from autopar.runtime.pipeline.module import Pipelined
from cost_models.hardware import Hardware
from tests.parity import CASES, Reference, check_weights, close, reference, sgd
from tests.random_plans import random_plan
from tests.wide import Wide


@dataclass(frozen=True)
class Line:
    """One pipeline to be checked.  `seed`: of random plans; None: the solver's."""

    name: str
    mesh: tuple[int, ...]
    stages: int | Sequence[Any]
    schedule: str | None
    microbatches: int | None
    seed: int | None = None
    cuts: tuple[str, ...] = ()
    least_workers: int = 1
    hardware: Hardware | str = field(default="cpu", repr=False)
    preset: str | None = None
    recompute: Recompute | None = None


def check_lines(lines: list[Line]) -> None:
    """Check pipelines one after the other; an error says which."""
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    for line in lines:
        try:
            check_line(line)
        except Exception as error:
            error.add_note(str(line))
            raise


def check_line(line: Line) -> None:
    """Loss, gradients, weights, buffers, local sizes and traffic are what they should be."""
    case = reference(line.name)
    parallel = pipelined(line, case)
    assert len(parallel.plan.workers) >= line.least_workers
    check_local_sizes(parallel)
    optimizer = sgd(parallel, case.rate)
    with CountTraffic(parallel.device_mesh) as counted:
        for batch, want in zip(case.batches, case.losses, strict=True):
            optimizer.zero_grad()
            close(parallel.train_step(**batch), want, "loss")
            optimizer.step()
    check_gradients(parallel, case)
    if not parallel.plan.schedule.splits_backward:
        check_traffic(parallel, counted, len(case.batches))
    check_weights(parallel, case)  # type: ignore[arg-type]
    for key, buffer in case.buffers.items():
        if key in parallel._persistent:
            close(parallel.full_state_dict()[key], buffer, f"buffer {key}")


def pipelined(line: Line, case: Reference) -> Pipelined:
    """The model as stages."""
    loss = CASES[line.name]()[2]
    asked = autopar.Pipeline(line.stages, line.schedule, line.microbatches, line.cuts)
    with Wide(), random_stages(line.seed):
        parallel = autopar.parallelize(
            case.model, line.mesh, case.inputs, loss=loss, optimizer="SGD", hardware=line.hardware,
            pipeline=asked, preset=line.preset, recompute=line.recompute,
        )  # fmt: skip
    assert isinstance(parallel, Pipelined)
    return parallel


@contextlib.contextmanager
def random_stages(seed: int | None) -> Iterator[None]:
    """Stages get random valid plans instead of the solver's."""
    if seed is None:
        yield
        return

    def compile(self: StageCompiler, asked: StageRequest) -> tuple[Plan, str]:
        plan = random_plan(asked.part, asked.mesh, seed, self.kept, settings=asked.settings)
        return plan, emit(plan, asked.part, rules.localize, self.kept)

    with mock.patch.object(StageCompiler, "compile", compile):
        yield


def check_local_sizes(parallel: Pipelined) -> None:
    """Every rank holds its own stages' parameters, in the shards that their plans say."""
    built = parallel._first
    read = {name for names in built.parameters.values() for name in names}
    here = dict(parallel.named_parameters())
    assert read <= here.keys()
    for (_, worker), plan in parallel.plan.of.items():
        if worker == built.worker:
            for entry in plan.parameters:
                parameter = here[entry.name]
                assert isinstance(parameter, DTensor)
                want = entry.stored.local_shape(tuple(parameter.shape), plan.mesh)
                assert tuple(parameter.to_local().shape) == want, entry.name


def check_gradients(parallel: Pipelined, case: Reference) -> None:
    """This rank's gradients against the single process, relative to the largest entry in the model."""
    scale = max(float(g.abs().max()) for g in case.gradients.values() if g is not None)
    for key, parameter in parallel.named_parameters():
        want, gradient = case.gradients[key], parameter.grad
        if want is None:
            assert gradient is None, f"{key} has a gradient that the single process lacks"
            continue
        assert isinstance(gradient, DTensor), f"{key} has no gradient"
        close(gradient.full_tensor(), want, f"gradient of {key}", scale)


def check_traffic(parallel: Pipelined, counted: CountTraffic, steps: int) -> None:
    """Bytes by axis and kind equal the prediction, microbatches included; not on `tests.strict`."""
    if dist.get_backend() == "strict":
        return
    built = parallel._first
    actions = parallel.plan.schedule.workers[built.worker]
    runs = Counter(action.stage for action in actions if action.kind == "F")
    want: Counter[tuple[str, str]] = Counter()
    seen: set[str] = set()
    for stage, program in sorted(built.programs.items()):
        plan, graph = program.plan, program.graph
        predicted = traffic(plan, graph, saved(graph))
        for (axis, kind, _), nbytes in total(predicted.microbatch).items():
            want[plan.mesh.names[axis], kind] += nbytes * runs[stage] * steps
        if seen & set(built.parameters[stage]):
            return  # weights of several stages on one worker travel once
        seen |= set(built.parameters[stage])
        for (axis, kind, _), nbytes in total(predicted.step).items():
            want[plan.mesh.names[axis], kind] += nbytes * steps
    got: Counter[tuple[str, str]] = Counter()
    for (axis, kind, _), nbytes in counted.nbytes.items():
        if axis in parallel.axes.by_name:  # the loss is summed over the world
            got[axis, kind] += nbytes
    if built.counts is None:
        assert +got == +want, f"counted {got}, predicted {want}"
