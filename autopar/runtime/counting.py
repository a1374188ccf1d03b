"""Counts the collectives that run, sharing no code with the plan that it verifies.

A dispatch mode sees every c10d operator with its tensors and group.  Bytes are those of the larger
side, as in the plan: the output of an all-gather, the input of a reduce-scatter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.runtime._torch import TorchDispatchMode
from autopar.runtime.gradient_groups import description
from autopar.runtime.kernels import RUNS

KINDS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
}
"""The collective of each c10d and functional operator."""
OTHERS = {"wait_tensor", "_wrap_tensor_autograd", "barrier", "broadcast_", "send", "recv_"}
"""Operators that do not communicate tensors of the step along a mesh axis."""
BATCHES = "autopar batches"
"""The group over which ranks compare their batches; plans do not include its traffic."""


class CountTraffic(TorchDispatchMode):
    """``with CountTraffic(mesh) as traffic: ...`` counts bytes by (axis, collective, direction).

    Everything counts as forward until ``traffic.direction = "backward"``.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        names = mesh.mesh_dim_names or ()
        self.direction = "forward"
        self.nbytes: Counter[tuple[str, str, str]] = Counter()
        self.sent: Counter[tuple[str, str, str]] = Counter()
        """The same, but of all-to-alls what leaves this rank: parts may be uneven."""
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self._axis_of: dict[str, str] = {mesh.get_group(name).group_name: name for name in names}
        self._axis_of |= {description(name): name for name in names}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace in ("c10d", "_c10d_functional", "c10d_functional") and name not in OTHERS:
            self._count(name, func, args, kwargs or {})
        if namespace == "autopar" and name in RUNS:
            with self:  # its collectives are counted, too
                return RUNS[name](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        if name not in KINDS:
            raise NotImplementedError(f"CountTraffic does not know the collective {func}.")
        bound = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | dict(
            kwargs
        )
        group = bound.get("process_group", bound.get("group_name"))
        if not isinstance(group, str) and _group(group).group_desc == BATCHES:
            return
        # Uneven parts are those of a dispatch, which waits at once, or of an exchange with one rank.
        to_one = (
            name == "alltoall_base_" and bound["input_split_sizes"] and bound.get("async_op", True)
        )
        key = (self._axis(group), "permute" if to_one else KINDS[name], self.direction)
        sides = [_nbytes(value) for key_, value in bound.items() if key_ not in ("process_group",)]
        larger = max(sides, default=0)
        if name == "all_gather_into_tensor":
            larger *= bound["group_size"]
        self.nbytes[key] += larger
        self.sent[key] += _nbytes(bound.get("input")) if KINDS[name] == "all_to_all" else larger
        self.calls[key] += 1

    def _axis(self, group: Any) -> str:
        if isinstance(group, str):
            return self._axis_of.get(group, group)
        found = _group(group)
        for name in (found.group_name, found.group_desc):
            if name in self._axis_of:
                return self._axis_of[name]
        return str(found.group_name)


def _group(boxed: Any) -> dist.ProcessGroup:
    return boxed if isinstance(boxed, dist.ProcessGroup) else dist.ProcessGroup.unbox(boxed)


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    return 0
