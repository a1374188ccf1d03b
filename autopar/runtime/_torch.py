"""Wraps private names of torch; no other file of the runtime uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore as HashStore
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import Store
from torch._C._distributed_c10d import TCPStore as TCPStore
from torch.autograd import Variable, profiler
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous as rendezvous
from torch.distributed.tensor import DTensor, Placement, _redistribute
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.modules.module import _global_forward_hooks, _IncompatibleKeys
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.torch_version import TorchVersion
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti


def after_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward that is running now has ended."""
    Variable._execution_engine.queue_callback(callback)


def backward_number() -> int:
    """Return the number of the backward that runs now in this thread; -1 if there is none."""
    return int(torch._C._current_graph_task_id())


def is_reached(tensor: torch.Tensor) -> bool:
    """Within a backward: whether it computes this tensor's gradient."""
    node = get_gradient_edge(tensor).node
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError as error:  # a leaf among the inputs of autograd.grad
        if "leaf node" not in str(error):
            raise
        return True


def detached_below_autograd(tensor: torch.Tensor) -> torch.Tensor:
    """Within a dispatch mode: return the tensor detached, with its counter of versions."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Whether the parameter has gradient hooks."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def collectives_begun(group: dist.ProcessGroup) -> int:
    """Return the number of collectives of a group that this rank has started."""
    return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]


def group_named(name: str) -> dist.ProcessGroup:
    """Return the process group of this name."""
    return _resolve_process_group(name)  # type: ignore[arg-type]


def strided_shard(dim: int, blocks: int) -> Placement:
    """Return the placement that views a dim as `blocks` equal blocks and splits each of them."""
    return _StridedShard(dim, split_factor=blocks)


def is_strided(placement: Placement) -> bool:
    """Whether a placement is a strided shard, which torch's checkpoints refuse."""
    return isinstance(placement, _StridedShard)


def spec(mesh: DeviceMesh, placements: tuple[Placement, ...], whole: torch.Tensor) -> DTensorSpec:
    """Return the spec of a DTensor with the global shape, strides and dtype of `whole` (may be meta)."""
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    return DTensorSpec(mesh, placements, tensor_meta=meta)


def dtensor(local: torch.Tensor, layout: DTensorSpec, kind: type[DTensor] = DTensor) -> DTensor:
    """Return a DTensor over this local tensor, without copies, checks or communication."""
    return kind(local, layout, requires_grad=False)


plain_function: Callable[..., Any] = torch._C._disabled_torch_function_impl
"""The default of ``__torch_function__`` for a subclass that does not override a function."""
untracked: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunctionSubclass
"""Within it no ``__torch_function__`` runs, which costs microseconds for every attribute of a tensor."""
NORMS: tuple[Any, ...] = (
    torch.linalg.vector_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm,
)  # fmt: skip
"""Functions that users compute norms of gradients with."""
NORMS_OF_MANY: tuple[Any, ...] = (torch._foreach_norm,)
GRADIENT_OF: Any = torch.Tensor.grad.__get__  # type: ignore[union-attr]
"""The function behind ``tensor.grad``."""


def dtensor_like(local: torch.Tensor, other: DTensor) -> DTensor:
    """Return a DTensor over this local tensor, laid out like `other`, with the local dtype."""
    layout = other._spec
    if layout.tensor_meta is not None and layout.tensor_meta.dtype != local.dtype:
        meta = TensorMeta(layout.tensor_meta.shape, layout.tensor_meta.stride, local.dtype)
        layout = DTensorSpec(layout.mesh, layout.placements, tensor_meta=meta)
    return dtensor(local, layout)


def laid_out_alike(one: DTensor, other: DTensor) -> bool:
    """Whether both have the same placements."""
    return one._spec is other._spec or one._spec.placements == other._spec.placements


def has_step_hooks(optimizer: torch.optim.Optimizer, but: Sequence[Callable[..., Any]]) -> bool:
    """Whether the optimizer has step hooks other than `but`."""
    hooks = (
        _global_optimizer_pre_hooks, _global_optimizer_post_hooks,
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks,
    )  # fmt: skip
    return any(hook not in but for each in hooks for hook in each.values())


def around_step(
    optimizer: torch.optim.Optimizer, before: Callable[..., Any], after: Callable[..., Any]
) -> Callable[[], None]:
    """Call `before` behind the optimizer's other hooks on a step that begins, and `after` before them.

    Return what removes both.  It has to be called from a global hook on that step.
    """
    first = optimizer.register_step_pre_hook(before)
    last = optimizer.register_step_post_hook(after)
    behind: Any = optimizer._optimizer_step_post_hooks
    behind.move_to_end(last.id, last=False)

    def remove() -> None:
        first.remove()
        last.remove()

    return remove


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether hooks are called with the results of the module's forward."""
    return bool(module._forward_hooks or _global_forward_hooks)


def has_own_hooks(module: nn.Module) -> bool:
    """Whether forward or backward hooks were registered on the module itself."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def local_of(parameter: DTensor) -> torch.Tensor:
    """Return the local tensor itself, outside autograd."""
    return parameter._local_tensor


def rehouse(parameter: DTensor) -> None:
    """Move the values to new storage; tensors that shared the old storage keep it and its values."""
    parameter._local_tensor = parameter._local_tensor.detach().clone()


def next_step_of_autograd() -> int:
    """Return the autograd sequence number of the next recorded operator of this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def profiling() -> bool:
    """Whether a PyTorch profiler is recording."""
    return bool(profiler._is_profiler_enabled)


def _redistribute_blocks() -> None:
    """Patch redistribution of strided shards for torch before 2.13.

    It interprets them as an order of mesh axes, and fails if they are not.  Blocks of a dim, such as
    query, key and value in one weight, are not: they are gathered axis by axis, as torch 2.13 does.
    """
    planner: Any = _redistribute.DTensorRedistributePlanner
    by_order = planner.generate_graph_based_transform_infos

    def in_any_case(self: Any, source: DTensorSpec, target: DTensorSpec, shape: Any) -> Any:
        try:
            return by_order(self, source, target, shape)
        except ValueError as error:
            if "use_strided_shard_as_shard_order" not in str(error):
                raise
            return self.generate_greedy_transform_infos(source, target)

    planner.generate_graph_based_transform_infos = in_any_case


if torch.__version__ < TorchVersion("2.13"):
    _redistribute_blocks()


all_gather_single: Callable[..., Any] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
"""All-gather of equal tensors into one; torch 2.13 renamed it."""
reduce_scatter_single: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)
"""Reduce-scatter of one tensor in equal parts; torch 2.13 renamed it."""


def all_gather_coalesced(
    made: Sequence[torch.Tensor],
    parts: Sequence[torch.Tensor],
    group: dist.ProcessGroup,
    waits: bool = True,
) -> Callable[[], object]:
    """All-gather each of these parts into its own tensor, all in one coalesced collective.

    Return what waits for it, unless that was done (`waits`).
    """
    return _together(all_gather_single, made, parts, group, waits)


def is_gloo(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether gloo carries the group's messages of this device."""
    has_backend = device.type in {known.type for known in group._device_types}
    return has_backend and bool(group._get_backend(device).name() == "gloo")


def reduce_scatter_many(
    made: Sequence[torch.Tensor],
    wholes: Sequence[torch.Tensor],
    group: dist.ProcessGroup,
    waits: bool = True,
) -> Callable[[], object]:
    """Reduce-scatter each of these tensors, all in one coalesced collective.

    Return what waits for it, unless that was done (`waits`).
    """
    return _together(reduce_scatter_single, made, wholes, group, waits)


def _together(
    collective: Callable[..., Any],
    made: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    group: dist.ProcessGroup,
    waits: bool,
) -> Callable[[], object]:
    """Run a collective on each pair of tensors, flat, all in one; return what waits for it."""
    if len(made) == 1:
        work = collective(made[0].view(-1), given[0].reshape(-1), group=group, async_op=not waits)
        return nothing if work is None else work.wait
    with dist.distributed_c10d._coalescing_manager(group, async_ops=not waits) as manager:
        for into, tensor in zip(made, given, strict=True):
            collective(into.view(-1), tensor.reshape(-1), group=group)
    return nothing if waits else manager.wait


def nothing() -> None:
    """Wait for what is done already."""


@contextmanager
def fake_world(size: int) -> Iterator[None]:
    """Run inside with a fake process group of `size` ranks, without data; this process is rank 0."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


disable_current_modes = _python_dispatch._disable_current_modes
"""A context in which no dispatch mode sees what is computed."""
IncompatibleKeys = _IncompatibleKeys
"""The result type of `load_state_dict`."""


def unscale(gradients: list[torch.Tensor], found: torch.Tensor, factor: torch.Tensor) -> None:
    """Multiply gradients of one dtype by `factor` in place; set `found` to 1 if any is not finite."""
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, factor)


def wrapper(kind: type[torch.Tensor], like: torch.Tensor) -> Any:
    """Return a tensor of a subclass that has the looks of another tensor, and no data of its own."""
    return torch.Tensor._make_wrapper_subclass(
        kind, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
    )


def storage_of(tensor: torch.Tensor) -> int:
    """Return an identifier of the tensor's storage, which works on the meta device too."""
    return int(tensor.untyped_storage()._cdata)


def users(tensor: torch.Tensor) -> int:
    """Return the number of tensors that share this tensor's storage, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) - 1


def assert_async(holds: torch.Tensor, message: str) -> None:
    """Fail with this message unless `holds` is true; asynchronously on a GPU."""
    torch._assert_async(holds, message)


def store() -> Store:
    """Return the key-value store of the default group."""
    return dist.distributed_c10d._get_default_store()


def pipeline_engine(
    stages: Sequence[PipelineStage],
    microbatches: int,
    loss: Callable[..., torch.Tensor],
    actions: Path,
    reduce: Callable[[int], None],
) -> PipelineScheduleMulti:
    """Return torch's interpreter of a pipeline schedule, a CSV file with explicit communication.

    Gradients of microbatches are summed; `reduce` is called with the stage index at REDUCE_GRAD actions.
    """
    from torch.distributed.pipelining import schedules

    engine = schedules._PipelineScheduleRuntime(
        list(stages), n_microbatches=microbatches, loss_fn=loss, scale_grads=False
    )
    engine._load_csv(str(actions), format="compute_comms")
    engine.register_custom_function(
        schedules.REDUCE_GRAD, lambda action, _: reduce(action.stage_index)
    )
    return engine
