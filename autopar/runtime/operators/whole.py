"""Operators on parameters that torch's DTensor cannot compute on shards: computed on whole tensors.

Every rank computes the same.  Results are replicated DTensors, and what was written in place is cut
again into the parts of the ranks.  A plain tensor beside a DTensor holds whole values: those of the
first rank of the mesh, unless the operator writes to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from autopar.errors import AutoparError, InputError
from autopar.runtime import _torch, agreement
from autopar.runtime.operators import _torch as dispatch
from autopar.runtime.operators.shape_in_place import refuse_shape
from autopar.runtime.parts import Part, refuse_write

aten = torch.ops.aten
WHOLE = (
    aten._unique2.default, aten.renorm.default, aten.renorm_.default, aten.allclose.default,
    aten.index_put_.default, aten._index_put_impl_.default, aten.embedding.default,
    aten.embedding_dense_backward.default, aten.gather.default, aten.huber_loss_backward.default,
    aten.smooth_l1_loss_backward.default, aten.mse_loss_backward.default,
    aten.binary_cross_entropy_backward.default, aten.soft_margin_loss_backward.default,
)  # fmt: skip
"""Operators for which DTensor has no rule, or one that is wrong for some layouts."""
FAILURES = (RuntimeError, AssertionError, ValueError, TypeError, IndexError)
"""What torch raises where it cannot plan or run an operator on shards."""
FLATTENS = (aten.view.default, aten._unsafe_view.default)


def planned(
    plan: dispatch.Plan, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return torch's plan for the shards, or the result on whole tensors if there is no right one."""
    if dispatch.draws(operator) or dispatch.is_misplanned(operator, args):
        return on_whole(operator, args, kwargs)
    try:
        found = plan()
    except AutoparError:
        raise
    except FAILURES as error:
        if "c10d" in operator.namespace:
            refuse_collective(operator, error)
        return on_whole(operator, args, kwargs)
    is_wrong = dispatch.moves_target(operator, args, found) or dispatch.averages_uneven(
        found, tensors(args, kwargs)
    )
    return on_whole(operator, args, kwargs) if is_wrong else found


def refuse_collective(operator: Any, cause: Exception) -> NoReturn:
    """Raise `InputError` for a collective of the user on a tensor of which ranks have parts."""
    raise InputError(
        f"{operator} communicates a parameter, gradient or state of a parallel model. Leave it out: "
        "gradients are summed over the ranks already, and replicas of parameters are equal. For other "
        "purposes pass it the whole plain values, tensor.full_tensor()."
    ) from cause


def mixed(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator; plain tensors beside DTensors become replicated ones."""
    given, targets = list(tensors(args, kwargs)), list(_targets(operator, args, kwargs))
    if any(isinstance(each, Part) for each in targets):
        refuse_write(operator.__name__)
    if not any(map(_is_plain, given)):
        return _on_shards(operator, args, kwargs)
    if any(map(_is_plain, targets)):
        return on_whole(operator, args, kwargs)
    like = next(each for each in given if isinstance(each, DTensor))
    _meet(operator, given, is_sent=True)
    args, kwargs = _torch.tree_map_only(torch.Tensor, lambda x: _sent(x, like), (args, kwargs))
    return _on_shards(operator, args, kwargs)


def _on_shards(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator as torch plans it; if that fails, and nothing was written, on whole tensors."""
    try:
        return dispatch.unhandled(operator, args, kwargs)
    except AutoparError:
        raise
    except FAILURES:
        if next(_targets(operator, args, kwargs), None) is not None:
            raise
    return on_whole(operator, args, kwargs)


def on_whole(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on whole tensors; keep this rank's parts of those that it writes to."""
    like = next(each for each in tensors(args, kwargs) if isinstance(each, DTensor))
    targets = list(_targets(operator, args, kwargs))
    if any(isinstance(each, Part) for each in targets):
        refuse_write(operator.__name__)
    sends = not any(map(_is_plain, targets))
    _meet(operator, list(tensors(args, kwargs)), is_sent=sends)
    written: dict[int, tuple[DTensor, torch.Tensor]] = {}

    def given(value: torch.Tensor) -> torch.Tensor:
        if not isinstance(value, DTensor):
            return _whole(_sent(value, like)) if sends else value
        whole = _whole(value)
        if any(value is each for each in targets):
            whole = written.setdefault(id(value), (value, whole.clone()))[1]
        return whole

    whole_args, whole_kwargs = _torch.tree_map_only(torch.Tensor, given, (args, kwargs))
    made = operator(*whole_args, **whole_kwargs)
    if dispatch.draws(operator):  # generators of the ranks may differ
        _torch.tree_map_only(torch.Tensor, lambda x: _sent(x, like), (made, *written.values()))
    for target, whole in written.values():
        _write(operator, target, whole)
    if not sends:
        return made
    places = {id(whole): target for target, whole in written.values()}
    kind = Part if dispatch.is_view(operator) and not _is_whole(like) else DTensor

    def result(value: torch.Tensor) -> torch.Tensor:
        return places[id(value)] if id(value) in places else _replicated(value, like, kind)

    return _torch.tree_map_only(torch.Tensor, result, made)


def fill_(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fill with one value; refuse it in a gathered copy (Python's ``p[0] = 1`` fills a view of `p`)."""
    tensor = args[0]
    if isinstance(tensor, Part):
        refuse_write(operator.__name__)
    if operator is aten.fill_.Tensor and isinstance(tensor, DTensor):
        value = args[1]
        _torch.local_of(tensor).fill_(_whole(value) if isinstance(value, DTensor) else value)
        return tensor
    return dispatch.unhandled(operator, args, kwargs)


def flattened(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a view; of uneven shards, which DTensor cannot flatten, a read-only copy is gathered."""
    try:
        return dispatch.unhandled(operator, args, kwargs)
    except RuntimeError as error:
        if "unevenly sharded" not in str(error) or type(args[0]) is not DTensor:
            raise
    return on_whole(operator, args, kwargs)


def _write(operator: Any, target: DTensor, whole: torch.Tensor) -> None:
    if whole.shape != target.shape:
        refuse_shape(operator, target)
    cut = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    _torch.local_of(target).copy_(_torch.local_of(cut))


def _targets(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operator writes to."""
    for place, name in dispatch.written_places(operator):
        value = args[place] if place < len(args) else kwargs.get(name)
        yield from tensors((value,), {})


def tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments and in lists of them."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, torch.Tensor))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is no DTensor, and no number, which DTensor accepts."""
    return not isinstance(tensor, DTensor) and (tensor.dim() > 0 or tensor.numel() != 1)


def _is_whole(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, DTensor) or all(
        isinstance(kind, Replicate) for kind in tensor.placements
    )


def _meet(operator: Any, given: list[torch.Tensor], *, is_sent: bool) -> None:
    """Raise, instead of waiting for ever, if other ranks do not call the operator; not within stages."""
    sends = is_sent and any(map(_is_plain, given))
    if all(map(_is_whole, given)) and not sends:
        return
    mesh = next(each for each in given if isinstance(each, DTensor)).device_mesh
    agreement.begin_together(f"{operator} on a parameter", mesh)


def _sent(value: torch.Tensor, like: DTensor) -> DTensor:
    """Return a plain tensor as a DTensor with the values of the first rank."""
    if isinstance(value, DTensor):
        return value
    mesh = like.device_mesh
    places = (Replicate(),) * mesh.ndim
    if value.dim() == 0:
        return _torch.dtensor(value, _torch.spec(mesh, places, value))
    if value.layout is not torch.strided:
        raise InputError(
            f"A tensor of layout {value.layout} is used with a parameter, gradient or state of a "
            "parallel model, which has no sparse operators. Pass tensor.to_dense()."
        )
    plain = value.detach().to(like.device).contiguous()
    return distribute_tensor(plain, mesh, places)


def _whole(value: DTensor) -> torch.Tensor:
    local = _torch.local_of(value).detach()
    if _is_whole(value):
        return local
    return DTensor.full_tensor(_torch.dtensor(local, value._spec))


def _replicated(made: torch.Tensor, like: DTensor, kind: type[DTensor] = DTensor) -> DTensor:
    mesh = like.device_mesh
    return _torch.dtensor(made, _torch.spec(mesh, (Replicate(),) * mesh.ndim, made), kind)
