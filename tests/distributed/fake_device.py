"""Steps on fake tensors of a device that is not the CPU, over a fake process group.

The device is torch's backend for others' accelerators without kernels, so everything but the shapes,
dtypes and devices is missing.  An operator that mixes devices raises, and so does one whose result the
host has to read (``item``, ``tolist``, ``nonzero``, masks of unknown size).  What custom operators do
inside is not seen: `routed_experts` reads the number of rows of each expert on the host.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch
import torch.distributed as dist
import torch.utils.backend_registration as backends
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autopar.ir.graph import Graph, Tensor
from autopar.plans.plan import Plan
from autopar.runtime import _torch
from autopar.runtime.axes import Axes
from autopar.runtime.constants import Constants
from autopar.runtime.module import Namespace
from autopar.runtime.program import Program, load
from autopar.runtime.regather import regathering
from autopar.utils.cache import write
from tests import parity, peaks

DEVICE = "gpu"


class _Backend(backends._DummyBackendModule):
    """Says that there is one such device; its random numbers are never drawn."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass


def register() -> None:
    """Give this process the device; it cannot be taken away again."""
    backends._setup_privateuseone_for_python_backend(DEVICE, _Backend())


class _Elsewhere(TorchDispatchMode):
    """Collects the operators that make or read a tensor on another device than `DEVICE`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, made)) if isinstance(t, torch.Tensor)]
        if any(tensor.device.type != DEVICE for tensor in tensors):
            self.found.append(str(func))
        return made


def elsewhere(
    name: str, preset: str, shape: int | tuple[int, ...], makes_on: str = DEVICE
) -> list[str]:
    """Run a step of a case under a preset; return the operators with tensors of other devices.

    `makes_on`: the device on which emitted code makes tensors.
    """
    plan, work = peaks.planned(name, shape, None, preset)
    graph = parity.reference(name).graph
    with tempfile.TemporaryDirectory() as folder:
        program = load(plan, graph, work.source, write(work.source, Path(folder) / "emitted.py"))
    mesh = plan.mesh
    with _torch.fake_world(mesh.world_size), _replaced():
        cpus = init_device_mesh("cpu", mesh.sizes, mesh_dim_names=mesh.names)
        axes = Axes(Axes.of(cpus).by_name, makes_on)
        with FakeTensorMode(), _Elsewhere() as others:
            _step(program, plan, graph, Namespace(axes=axes))
    return others.found


def _step(program: Program, plan: Plan, graph: Graph, tree: Namespace) -> None:
    trained = []
    for node in (*graph.leaves("parameter"), *graph.leaves("buffer")):
        form, tensor = plan.choice[node.name].outputs[0], node.outputs[0]
        local = _empty(tensor, form.local_shape(tensor.shape, plan.mesh))
        if node.op == "parameter" and tensor.differentiable:
            trained.append(local.requires_grad_())
        tree.put(node.target, local)
    inputs = [_empty(n.outputs[0], n.outputs[0].shape) for n in graph.leaves("input")]
    with regathering() if program.regathers else nullcontext():
        results = program.run(tree, inputs)
    assert graph.loss is not None
    results[graph.loss].backward()
    gradients = [leaf.grad for leaf in trained if leaf.grad is not None]
    assert gradients
    assert all(gradient.device.type == DEVICE for gradient in gradients)


def _empty(tensor: Tensor, shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=getattr(torch, tensor.dtype), device=DEVICE)


@contextmanager
def _replaced() -> Iterator[None]:
    """Replace what fake tensors lack: coalesced collectives, and constants, which are copied once."""

    def gather(
        made: Sequence[torch.Tensor],
        parts: Sequence[torch.Tensor],
        group: dist.ProcessGroup,
        waits: bool = True,
    ) -> Callable[[], object]:
        for whole, part in zip(made, parts, strict=True):
            _torch.all_gather_single(whole.view(-1), part.reshape(-1), group=group)
        return lambda: None

    def scatter(
        made: Sequence[torch.Tensor],
        wholes: Sequence[torch.Tensor],
        group: dist.ProcessGroup,
        waits: bool = True,
    ) -> Callable[[], object]:
        for part, whole in zip(made, wholes, strict=True):
            _torch.reduce_scatter_single(part.view(-1), whole.reshape(-1), group=group)
        return lambda: None

    def constant(_: Any, values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(numpy.shape(values), dtype=dtype, device=device)

    with (
        mock.patch.object(Constants, "of", constant),
        mock.patch.object(_torch, "all_gather_coalesced", gather),
        mock.patch.object(_torch, "reduce_scatter_many", scatter),
    ):
        yield
