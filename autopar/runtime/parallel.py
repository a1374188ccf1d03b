"""The module that `autopar.parallelize` returns: the user's model as a distributed training step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.plans.plan import Plan
from autopar.request.batch import Batch
from autopar.request.model_state import ModelState
from autopar.request.weights import OF_THE_MODEL, Weights
from autopar.runtime import _torch, agreement, regather
from autopar.runtime.async_loss import in_time, late_loss
from autopar.runtime.autocast import check_autocast, no_autocast
from autopar.runtime.axes import Axes
from autopar.runtime.batch_agreement import BatchAgreement
from autopar.runtime.checkpointable import CheckpointableModule, refuse_without_gradients
from autopar.runtime.clip import clip_grad_norm_
from autopar.runtime.extra import extra_states
from autopar.runtime.failures import agree_on_failure
from autopar.runtime.gradient_groups import beside
from autopar.runtime.inference import normal_tensors, outside_inference
from autopar.runtime.leaves import Leaves
from autopar.runtime.loop_record import LoopRecord
from autopar.runtime.module import Namespace
from autopar.runtime.one_thread import in_one_thread
from autopar.runtime.only import arriving, refuse_other_gradients
from autopar.runtime.outputs import class_named, rebuild
from autopar.runtime.program import Program
from autopar.runtime.programs import Compiles, Programs, in_parts
from autopar.runtime.random import Seeds
from autopar.runtime.reducer import Reducer
from autopar.runtime.shards import placements
from autopar.runtime.state import buffers, slots, targets
from autopar.runtime.updates import check_before_steps
from autopar.runtime.weights.fill import fill
from autopar.runtime.weights.match import Dialect
from autopar.runtime.weights.saving import save as save_weights


class Parallel(CheckpointableModule):
    """Trains like the user's module: ``loss = parallel(**batch); loss.backward(); optimizer.step()``.

    Parameters are DTensors under the user's names.  `plan`, `graph` and `source` are the sharding plan,
    the captured forward graph and the emitted Python source; `source_path` is the emitted file.
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
        weights: Weights = OF_THE_MODEL,
    ) -> None:
        super().__init__()
        self.device_mesh = device_mesh
        self._device = device_mesh.device_type
        self.axes = Axes.of(device_mesh)
        self._local_input = local_input
        seed = agreement.from_first_rank(lambda: (str(torch.initial_seed()),))
        self.seeds = Seeds(int(seed[0]))
        self._synchronises, self._loop_record = True, LoopRecord()
        self._tree = Namespace(axes=self.axes)
        self._slots = list(slots(model, program.plan, program.graph, device_mesh))
        self._targets = targets(self._slots, buffers(model, device_mesh), program.plan, device_mesh)
        self._dialect = Dialect.of(model, program.graph.aliases)
        self._register(model)
        self._attributes.follow(compiler, model)
        self._programs = Programs(
            program, example, self._attributes.state(gradients=True), compiler,
            replan=replan, local_input=local_input,
        )  # fmt: skip
        self._agreement = BatchAgreement(self._programs, self._loop_record)
        self._persistent = self.state_dict().keys()
        fill(
            model, self._targets, self._dialect, persistent=self._persistent,
            weights=weights, device_mesh=device_mesh, seed=int(seed[0]),
        )  # fmt: skip
        self._leaves = Leaves(self._slots, self.axes, self._tree)
        sums = beside(self.axes, device_mesh, program.plan)
        self._reducer = Reducer(
            self._in_order(program.graph), sums, program.plan.buckets, self._recover,
            self._loop_record.note_backward, program.plan.compression,
        )  # fmt: skip
        world = dist.distributed_c10d.GroupMember.WORLD
        self._groups = ({} if world is None else {"the world": world}) | {
            f"{what} over {axis.name}": axis.group
            for what, axes in (("activations", self.axes), ("gradients", sums))
            for axis in axes.by_name.values()
        }
        self._forward_failed = False
        self._trained = {s.name: s.parameter.requires_grad for s in self._slots}
        check_before_steps(self, (slot.parameter for slot in self._slots), self._before_update)

    def _register(self, model: nn.Module) -> None:
        tensors = {name: target.tensor for name, target in self._targets.items()}
        for name, tensor in tensors.items():
            if not isinstance(tensor, nn.Parameter):
                self._tree.put(name, tensor)
        self._hold(model, tensors)

    def _in_order(self, graph: Graph) -> list[Any]:
        """Return the slots in the order in which forward first reads them; unread ones come first."""
        place = {node.target: place for place, node in enumerate(graph.parameters_as_read)}
        return sorted(self._slots, key=lambda slot: place.get(slot.name, -1))

    @property
    def plan(self) -> Plan:
        """The plan for the example inputs, with every decision."""
        return self._programs.first.plan

    @property
    def graph(self) -> Graph:
        """The forward graph captured from the example inputs."""
        return self._programs.first.graph

    @property
    def source(self) -> str:
        """The Python source emitted for the example inputs."""
        return self._programs.first.source

    @property
    def source_path(self) -> str:
        """Path of the emitted file."""
        return str(self._programs.first.path)

    @property
    def data_replicas(self) -> int:
        """Number of parts the batch is split into: ``num_replicas`` of a `DistributedSampler`."""
        return self._programs.data_replicas

    @property
    def data_rank(self) -> int:
        """Index of this rank's part of the batch: ``rank`` of a `DistributedSampler`."""
        mesh = self.plan.mesh
        place = 0
        for axis in self._programs.data_axes:
            place = place * mesh.sizes[axis] + self.axes[mesh.names[axis]].rank
        return place

    @in_one_thread
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loss, equal on all ranks; with `Batches.outputs`, the user's output object."""
        self._recover()
        check_autocast(self._device, self.plan.precision)
        self._begin_call("a training step" if torch.is_grad_enabled() else "an evaluation")
        with self._whole_or_not():
            batch = Batch.of(args, kwargs)
            self._agree(args, kwargs)
            program = self._programs.for_batch(args, kwargs, self._state())
            with self._programs.expected.explained(batch):
                return self._run(program, batch)

    @contextmanager
    def _whole_or_not(self) -> Iterator[None]:
        """Undo the effects of a forward that raises, and flag it until ranks have agreed on it."""
        drawn = self.seeds.state
        try:
            yield
        except BaseException:
            self._forward_failed, self.seeds.state = True, drawn
            raise

    def _recover(self) -> None:
        """If an earlier step failed here, check that it failed on all ranks, and discard its state."""
        if self._forward_failed or self._reducer.has_failed:
            state = hashlib.sha256(self.seeds.state.numpy().tobytes()).hexdigest()[:12]
            agree_on_failure(self._groups, f"random numbers {state}")
            self._reducer.abandon()
            self._loop_record.clear()
            self._forward_failed = False

    def _before_update(self) -> None:
        """Run before an optimizer step; raise if gradients are incomplete."""
        self._recover()
        self._reducer.refuse_lost()
        self._reducer.refuse_pending()

    def _state(self) -> ModelState:
        """Return the model's current state, which is part of the key of its programs."""
        return self._attributes.state(self.training or torch.is_grad_enabled())

    @in_one_thread
    def train_step(
        self, *, microbatches: int = 1, scaler: torch.amp.GradScaler | None = None, **batch: Any
    ) -> torch.Tensor:
        """Run forward and backward on a batch in equal microbatches; synchronise gradients once.

        Returns the loss of the whole batch, equal on all ranks, and leaves its gradients in ``.grad``.
        Raises `InputError` if microbatches would change what the model computes (batch norm, a
        contrastive loss), or if they do not divide the batch.  With a `scaler` the gradients are scaled;
        the returned loss is not.
        """
        refuse_without_gradients()
        check_autocast(self._device, self.plan.precision)
        scaled = (lambda loss: loss) if scaler is None else scaler.scale
        if microbatches == 1:
            with self._late_loss(scaler):
                loss = self._loss_of(self(**batch))
                scaled(loss).backward()
            return loss.detach()
        self.refuse_beside_forward()
        self._begin_call("a training step")
        self._loop_record.note_microbatches(microbatches)
        self._agree((), batch)
        parts = in_parts(batch, microbatches)
        counts, program = self._programs.for_parts(batch, parts[0], microbatches, self._state())
        denominators = {} if counts is None else self._denominators(counts, batch)
        losses = []
        with self._late_loss(scaler):
            for number, piece in enumerate(parts):
                last = number == microbatches - 1
                with (
                    nullcontext() if last else self.no_sync(),
                    self._programs.expected.explained(Batch.of((), batch)),
                ):
                    inputs = Batch.of((), {**piece, **denominators})
                    loss = self._loss_of(self._run(program, inputs, keeps_leaves=number > 0))
                    scaled(loss).backward()
                losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _late_loss(self, scaler: torch.amp.GradScaler | None) -> AbstractContextManager[None]:
        """Let the loss all-reduce end with the step, unless a scaler or a hook reads it earlier."""
        is_read = scaler is not None or _torch.has_forward_hooks(self)
        return nullcontext() if is_read else late_loss()

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
        results = counts.run(self._tree, inputs)
        return {key: results[name] for key, name in counts.graph.outputs}

    def _run(self, program: Program, batch: Batch, keeps_leaves: bool = False) -> Any:
        inputs = [self._input(program, batch, key) for key in program.inputs]
        training = torch.is_grad_enabled()
        if training:
            refuse_other_gradients(batch.tensors, self._slots, self._trained)
            self._reducer.refuse_lost()
        with normal_tensors():
            replaced = self._leaves.refresh(keeps_leaves)
        if replaced:
            self._reducer.rewatch()
        if training:
            self._reducer.before_forward(self._synchronises)
        with (
            self._regathering(program, training),
            no_autocast(self._device),
            nullcontext() if program.sums_loss_alone else in_time(),
            self.seeds.forward() if program.is_random else nullcontext(),
        ):
            results = program.run(self._tree, inputs)
        if training:
            self._watch(program, results)
        self._update_buffers(program, results)
        return self._result(program, results)

    def _watch(self, program: Program, results: Mapping[str, torch.Tensor]) -> None:
        """Hook the results, so that the start of every backward through one of them is noticed."""
        given = {program.graph.loss or "", *dict(program.graph.outputs).values()}
        leaves = [slot.leaf for slot in self._slots if slot.leaf.requires_grad]
        show = self._leaves.writes_shown()
        for name in given & results.keys():
            result = results[name]
            if result.requires_grad and not result.is_leaf:
                if name == program.graph.loss:
                    result.register_hook(self._loop_record.note_loss)
                result.register_hook(arriving(leaves, show, self._reducer.begin))

    def _agree(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check that ranks pass the same batch or, with local input, parts of equal shapes."""
        part = self.data_rank if self._local_input else 0
        if torch.is_grad_enabled():
            self._loop_record.note_forward(self._synchronises, self._slots[-4:])
        self._agreement.check(args, kwargs, part, self._state(), local=self._local_input)

    def _input(self, program: Program, batch: Batch, key: str) -> torch.Tensor:
        if key not in batch.tensors:
            raise InputError(
                f"The model was captured with the inputs {', '.join(program.inputs)}, but this "
                f"call has no {key!r}. Pass it as in the example inputs."
            )
        tensor = batch.tensors[key].to(self.device_mesh.device_type)
        dtype = program.dtype(key)
        return program.padded(key, tensor.to(dtype) if tensor.is_floating_point() else tensor)

    @staticmethod
    def _regathering(program: Program, training: bool) -> AbstractContextManager[None]:
        return regather.regathering() if training and program.regathers else nullcontext()

    @torch.no_grad()
    def _update_buffers(self, program: Program, results: Mapping[str, torch.Tensor]) -> None:
        for name, value in program.graph.mutations:
            self._targets[name].tensor.copy_(results[value])

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
        sizes: dict[str, Any] = {"shape": whole.shape, "stride": whole.stride()}
        return DTensor.from_local(results[name], self.device_mesh, layout, run_check=False, **sizes)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Apply `torch.compile`, with these arguments, to the emitted blocks.

        Each becomes one graph, with its collectives and its recomputation.
        """
        self._programs.compile(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank without communication.

        The next backward outside synchronises them, as in `DistributedDataParallel`.
        """
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, including sums that are not synchronised yet."""
        self._recover()
        self._reducer.zero_grad()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`.

        Returns the norm before scaling, equal on all ranks.
        """
        self._before_update()
        self._loop_record.note_clip(max_norm, norm_type)
        return clip_grad_norm_(self._slots, self.plan.mesh, self.axes, max_norm, norm_type)

    @outside_inference
    def save_weights(self, path: str | Path, *, file_size: float = 5e9) -> None:
        """Write the weights only, under the user's names, for ``from_pretrained`` and similar loaders.

        `path` is a .safetensors file, or a directory of files of at most `file_size` bytes.  Call it on
        every rank.  Tied tensors are written once.
        """
        self._begin_call("save_weights", meet=True)
        state = self.state_dict()
        once = {name: state[name] for name in self._targets if name in state}
        save_weights(Path(path), once, file_size)

    @outside_inference
    def full_state_dict(self) -> dict[str, Any]:
        """Return plain unsharded tensors under the user's names, on every rank, for the user's model.

        The results of modules' `get_extra_state` are those of this rank.
        """
        self._begin_call("full_state_dict", meet=True)
        # full_tensor() of a replicated DTensor shares its storage: training would change the result.
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
            for name, value in self.state_dict().items()
            if isinstance(value, torch.Tensor)
        } | extra_states(self._root)

    def __repr__(self) -> str:
        idle = f", {self.plan.idle}" if self.plan.idle else ""
        mesh = self.plan.mesh
        return f"Parallel({self.graph.name} on mesh ({mesh}){idle}, plan {self.plan.digest})"
