"""The module that `autopar.parallelize` returns: the user's model as a distributed training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autopar.batch import Batch
from autopar.errors import InputError
from autopar.graph import Graph
from autopar.plan import Plan
from autopar.runtime import agreement, checkpoint, context, regather
from autopar.runtime.clip import clip_grad_norm_
from autopar.runtime.leaves import Leaves
from autopar.runtime.module import Namespace
from autopar.runtime.outputs import class_named, rebuild
from autopar.runtime.program import Program
from autopar.runtime.programs import Compiles, Programs, in_parts
from autopar.runtime.random import Seeds
from autopar.runtime.reducer import Reducer
from autopar.runtime.shards import own_part, placements
from autopar.runtime.state import from_first_rank, register, slots


class Parallel(nn.Module):
    """Trains like the user's module: ``loss = parallel(**batch); loss.backward(); optimizer.step()``.

    Parameters are DTensors under the user's names.  `plan`, `graph` and `source` are what was
    decided, captured and emitted; `source_path` is where the emitted file lies.
    """

    def __init__(
        self,
        model: nn.Module,
        device_mesh: DeviceMesh,
        program: Program,
        compiler: Compiles,
        *,
        example: Batch,
        replan: bool = True,
        local_input: bool = False,
    ) -> None:
        super().__init__()
        self.device_mesh = device_mesh
        self.axes = context.Axes.of(device_mesh)
        self._programs = Programs(
            program, example, compiler, replan=replan, local_input=local_input
        )
        self._local_input = local_input
        self._agreed = False
        seed = agreement.from_first_rank(lambda: (str(torch.initial_seed()),))
        self.seeds = Seeds(int(seed[0]))
        self._synchronises = True
        self._tree = Namespace()
        self._slots = list(slots(model, program.plan, program.graph, device_mesh))
        self._register(model, program.graph)
        self._leaves = Leaves(self._slots, self.axes, self._tree)
        self._reducer = Reducer(self._in_order(program.graph), self.axes, self._leaves.step_ended)

    def _register(self, model: nn.Module, graph: Graph) -> None:
        persistent = set(model.state_dict())
        device = self.device_mesh
        tensors: dict[str, torch.Tensor] = {slot.name: slot.parameter for slot in self._slots}
        for name, buffer in model.named_buffers():
            tensors[name] = from_first_rank(buffer.detach(), device)
            self._tree.put(name, tensors[name])
        tensors |= {other: tensors[name] for other, name in graph.aliases}
        register(self, tensors, persistent)

    def _in_order(self, graph: Graph) -> list[Any]:
        """Slots in the order in which forward first reads them."""
        first = {
            node.target: min(
                (order[r.name] for r in graph.consumers[node.outputs[0].name]), default=0
            )
            for order in [{node.name: place for place, node in enumerate(graph.nodes)}]
            for node in graph.leaves("parameter")
        }
        return sorted(self._slots, key=lambda slot: first.get(slot.name, -1))

    @property
    def plan(self) -> Plan:
        """Everything that was decided."""
        return self._programs.first.plan

    @property
    def graph(self) -> Graph:
        """The captured forward pass."""
        return self._programs.first.graph

    @property
    def source(self) -> str:
        """The emitted Python."""
        return self._programs.first.source

    @property
    def source_path(self) -> str:
        """Where the emitted file lies."""
        return str(self._programs.first.path)

    @property
    def data_replicas(self) -> int:
        """Into how many parts the batch is split: ``num_replicas`` of a `DistributedSampler`."""
        return self._programs.data_replicas

    @property
    def data_rank(self) -> int:
        """Which part of the batch is this rank's: ``rank`` of a `DistributedSampler`."""
        mesh = self.plan.mesh
        place = 0
        for axis in self._programs.data_axes:
            place = place * mesh.sizes[axis] + self.axes[mesh.names[axis]].rank
        return place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The loss, equal on all ranks; with `outputs=`, the user's output object."""
        batch = Batch.of(args, kwargs)
        program = self._programs.for_batch(args, kwargs, self.training)
        self._agree(batch)
        return self._run(program, batch)

    def train_step(self, *, microbatches: int = 1, **batch: Any) -> torch.Tensor:
        """Forward and backward of a batch in equal parts, gradients synchronised once.

        Gives the loss of the whole batch, equal on all ranks, and leaves its gradients.  Raises
        `InputError` where parts would change what the model computes (batch norm, a contrastive
        loss) or do not divide the batch.
        """
        if microbatches == 1:
            loss = self._loss_of(self(**batch))
            loss.backward()
            return loss.detach()
        parts = in_parts(batch, microbatches)
        counts, program = self._programs.for_parts(batch, parts[0], microbatches)
        denominators = {} if counts is None else self._denominators(counts, batch)
        total: torch.Tensor | None = None
        for number, piece in enumerate(parts):
            last = number == microbatches - 1
            with nullcontext() if last else self.no_sync():
                loss = self._loss_of(self._run(program, Batch.of((), {**piece, **denominators})))
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    @staticmethod
    def _loss_of(result: Any) -> torch.Tensor:
        if isinstance(result, Mapping):
            result = result["loss"]
        loss: torch.Tensor = result if isinstance(result, torch.Tensor) else result.loss
        return loss

    @torch.no_grad()
    def _denominators(self, counts: Program, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        whole = Batch.of((), batch)
        inputs = [self._input(counts, whole, key) for key in counts.inputs]
        with context.on(self.axes):
            results = counts.run(self._tree, self._leaves.by_name, inputs)
        return {key: results[name] for key, name in counts.graph.outputs}

    def _run(self, program: Program, batch: Batch) -> Any:
        inputs = [self._input(program, batch, key) for key in program.inputs]
        training = torch.is_grad_enabled()
        if self._leaves.refresh(keep=training):
            self._reducer.rewatch()
        if training:
            self._reducer.before_forward(self._synchronises)
        with (
            context.on(self.axes),
            self._regathering(program, training),
            self._no_autocast(),
            self.seeds.forward() if program.is_random else nullcontext(),
        ):
            results = program.run(self._tree, self._leaves.by_name, inputs)
        self._update_buffers(program, results)
        return self._result(program, results)

    def _agree(self, batch: Batch) -> None:
        """At the first step, ranks that should have the same batch must have it."""
        if not self._agreed and not self._local_input:
            agreement.same("the batch of the first step", batch.digest)
        self._agreed = True

    def _input(self, program: Program, batch: Batch, key: str) -> torch.Tensor:
        if key not in batch.tensors:
            raise InputError(
                f"The model was captured with the inputs {', '.join(program.inputs)}, but this "
                f"call has no {key!r}. Pass it the way the example inputs were passed."
            )
        tensor = batch.tensors[key].to(self.device_mesh.device_type)
        dtype = program.dtype(key)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    @staticmethod
    def _regathering(program: Program, training: bool) -> AbstractContextManager[None]:
        return regather.regathering() if training and program.regathers else nullcontext()

    def _no_autocast(self) -> AbstractContextManager[None]:
        """Casts stand in the emitted code."""
        device = self.device_mesh.device_type
        if not torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device, enabled=False)

    @torch.no_grad()
    def _update_buffers(self, program: Program, results: Mapping[str, torch.Tensor]) -> None:
        for name, value in program.graph.mutations:
            self.get_buffer(name).copy_(results[value])

    def _result(self, program: Program, results: Mapping[str, torch.Tensor]) -> Any:
        graph = program.graph
        loss = None if graph.loss is None else results[graph.loss]
        if not graph.outputs:
            return loss
        wanted = {path: self._distributed(program, name, results) for path, name in graph.outputs}
        return rebuild(class_named(graph.returns), loss, wanted)

    def _distributed(
        self, program: Program, name: str, results: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        tensor = program.graph.tensors[name]
        layout = placements(program.result_form(name), program.plan.mesh)
        whole = torch.empty(tensor.shape, device="meta")
        return DTensor.from_local(
            results[name],
            self.device_mesh,
            layout,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """`torch.compile` the emitted blocks, with its arguments.

        Collectives stay outside of what is compiled: a block without any becomes one graph.
        """
        self._programs.compile(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of what runs inside are added up on each rank and synchronised by the next
        backward outside, as in `DistributedDataParallel`."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, sums that were not synchronised yet included."""
        self._reducer.zero_grad()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`.

        Returns the norm before scaling, equal on all ranks.
        """
        return clip_grad_norm_(self._slots, self.plan.mesh, self.axes, max_norm, norm_type)

    def save(
        self, path: str | Path, optimizer: torch.optim.Optimizer | None = None, step: int = 0
    ) -> None:
        """Write a checkpoint directory that any mesh, preset or plain PyTorch model can read.

        It holds model, optimizer, step and random state; an interrupted write leaves the old one.
        """
        checkpoint.save(path, self, optimizer, step)

    def load(self, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Read a checkpoint that was written on any mesh; give its step."""
        return checkpoint.load(path, self, optimizer)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load this module's own state, or a plain model's: whole tensors are cut on the way."""
        laid_out = {key: self._laid_out(key, value) for key, value in state_dict.items()}
        return super().load_state_dict(laid_out, strict, assign)

    def _laid_out(self, key: str, value: Any) -> Any:
        name = dict(self.graph.aliases).get(key, key)
        slot = next((slot for slot in self._slots if slot.name == name), None)
        if slot is None or isinstance(value, DTensor) or value.shape != slot.parameter.shape:
            return value
        whole = value.to(self.device_mesh.device_type)
        coordinate = tuple(self.device_mesh.get_coordinate() or ())
        entry = self.plan.parameter.get(name)
        if entry is None:
            return slot.as_gradient(whole)
        return slot.as_gradient(own_part(whole, entry.stored, self.plan.mesh, coordinate))

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Plain tensors under the user's names, whole on every rank: loads into the user's model."""
        # A replicated DTensor gives its own storage as the full tensor: training would change it.
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
            for name, value in self.state_dict().items()
        }

    def __repr__(self) -> str:
        return f"Parallel({self.graph.name} on mesh ({self.plan.mesh}), plan {self.plan.digest})"
