"""Determines which workers of a pipeline hold each tensor of the model, and in which layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.ir.placement import I, Sharding
from autopar.plans.decisions import ParameterPlan
from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.stage_tensor import Marks
from autopar.runtime.pipeline.targets import Spread
from autopar.runtime.pipeline.tiles import Layout
from autopar.runtime.sharded_parameter import ShardedParameter
from autopar.runtime.shards import held
from autopar.runtime.state import buffers, slot


@dataclass(frozen=True)
class Ownership:
    """The tensors of all workers, from the view of this rank."""

    built: Built
    device_mesh: DeviceMesh

    def holders(self, name: str) -> tuple[int, ...]:
        """Return the workers that hold a parameter; an unused one is held with the first stage."""
        return self.built.holders.get(name) or self.built.plan.schedule.holders[0][:1]

    def is_owner(self, name: str) -> bool:
        """Whether this rank's worker is the first that holds a parameter, and so counts and saves it."""
        return self.holders(name)[0] == self.built.worker

    def slots(self, model: nn.Module, marks: Marks) -> Iterator[ShardedParameter]:
        """Yield the parameters of this rank's stages, in the model's order, marked as such."""
        worker, mesh = self.built.worker, self.built.plan.workers[self.built.worker].mesh
        dtypes = {
            node.target: node.outputs[0].dtype
            for program in self.built.programs.values()
            for node in program.graph.leaves("parameter")
        }
        for name, parameter in model.named_parameters():
            if worker in self.holders(name):
                entry = self._entry(name, worker)
                dtype = dtypes.get(name)
                yield marks.on(slot(parameter, entry, dtype, mesh, self.device_mesh))

    def targets(self, model: nn.Module, slots: Iterable[ShardedParameter]) -> dict[str, Spread]:
        """Return every tensor of the model: this rank's part of it, or a meta tensor."""
        mine = {slot.name: slot for slot in slots}
        workers = self.built.plan.workers
        mesh = workers[self.built.worker].mesh
        coordinate = tuple(self.device_mesh.get_coordinate() or ())
        found: dict[str, Spread] = {}
        for name, parameter in model.named_parameters():
            source = workers[self.holders(name)[0]].ranks[0]
            if name not in mine:
                found[name] = Spread(name, torch.empty_like(parameter, device="meta"), (), source)
                continue
            stored = self._entry(name, self.built.worker).stored
            sizes = enumerate(parameter.shape)
            runs = tuple(held(size, dim, stored, mesh, coordinate) for dim, size in sizes)
            found[name] = Spread(name, mine[name].parameter, runs, source)
        for name, buffer in buffers(model, self.device_mesh).items():
            everything = tuple((slice(0, size),) for size in buffer.shape)
            found[name] = Spread(name, buffer, everything, self._buffer_source(name))
        return found

    def layouts(self) -> Mapping[str, tuple[tuple[int, Layout], ...]]:
        """Return the layout on each worker, for parameters that several workers hold."""
        workers = self.built.plan.workers
        return {
            name: tuple(
                (w, Layout(workers[w].ranks, workers[w].mesh, self._entry(name, w).stored))
                for w in found
            )
            for name, found in self.built.holders.items()
            if len(found) > 1
        }

    def _entry(self, name: str, worker: int) -> ParameterPlan:
        """Return the plan of a parameter on a worker; replicated if none of its stages has one."""
        plan = self.built.plan
        for (_, where), stage in sorted(plan.of.items()):
            if where == worker and name in stage.parameter:
                return stage.parameter[name]
        whole = Sharding.all(I, plan.workers[worker].mesh)
        return ParameterPlan(name, whole, whole)

    def _buffer_source(self, name: str) -> int:
        """Return a rank whose copy of a buffer is current: one that updates it."""
        plan = self.built.plan
        for stage, graph in enumerate(self.built.stages.graphs):
            if name in dict(graph.mutations):
                return plan.workers[plan.schedule.holders[stage][0]].ranks[0]
        return 0
