"""Random initialisation of parameters with the values that one process would draw, whatever the layout.

If every rank drew its own part, replicas would differ and shards would repeat each other.  So every rank
draws the whole parameter, and rank 0's values are distributed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from autopar.errors import InputError
from autopar.runtime import _torch
from autopar.runtime.numbers import NUMBER, whole_number
from autopar.runtime.operators import _torch as dispatch
from autopar.runtime.operators import whole
from autopar.runtime.operators.shape_in_place import PAIRS, reshaped
from autopar.runtime.operators.tensor_methods import replace_methods
from autopar.runtime.parts import VIEWS, viewed

aten = torch.ops.aten
IN_PLACE = (
    aten.normal_.default, aten.uniform_.default, aten.bernoulli_.float, aten.exponential_.default,
    aten.cauchy_.default, aten.log_normal_.default, aten.geometric_.default, aten.random_.default,
    getattr(aten.random_, "from"), aten.random_.to,
)  # fmt: skip
FILLS = (aten.fill_.Tensor, aten.fill_.Scalar)
LIKE = (aten.rand_like.default, aten.randn_like.default)


class _Meshes:
    """The meshes of parallel models: `whole` without pipeline stages, `of_stages` with them."""

    whole: ClassVar[WeakSet[DeviceMesh]] = WeakSet()
    of_stages: ClassVar[WeakSet[DeviceMesh]] = WeakSet()
    handled: ClassVar[bool] = False


def draw_whole(mesh: DeviceMesh, *, is_stage: bool) -> None:
    """Draw random values of this mesh's DTensors whole from now on.

    With `is_stage` they are refused, as ranks of other stages hold other parameters.
    """
    (_Meshes.of_stages if is_stage else _Meshes.whole).add(mesh)
    if not _Meshes.handled:
        _Meshes.handled = True
        dispatch.wrap_handlers(_standing)
        dispatch.handle_operators(dict.fromkeys((*IN_PLACE, *LIKE), _draw))
        dispatch.handle_operators(dict.fromkeys(VIEWS, _view))
        dispatch.handle_operators({NUMBER: _number})
        dispatch.handle_operators(dict.fromkeys(PAIRS, partial(_ours, reshaped)))
        dispatch.handle_operators(dict.fromkeys(whole.WHOLE, partial(_ours, whole.on_whole)))
        dispatch.handle_operators(dict.fromkeys(FILLS, partial(_ours, whole.fill_)))
        dispatch.handle_operators(dict.fromkeys(whole.FLATTENS, partial(_ours, whole.flattened)))
        dispatch.add_handlers(dispatch.operators_of_several(), partial(_ours, whole.mixed))
        dispatch.plan_operators(_planned)
        replace_methods(lambda tensor: _is_ours((tensor,), {}))


def _ours(
    run: dispatch.Handler, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operator our way if a tensor is on the mesh of a parallel model."""
    is_ours = _is_ours(args, kwargs)
    return (run if is_ours else dispatch.unhandled)(operator, args, kwargs)


def _is_ours(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    first = next((e for e in whole.tensors(args, kwargs) if isinstance(e, DTensor)), None)
    return first is not None and (
        first.device_mesh in _Meshes.whole or first.device_mesh in _Meshes.of_stages
    )


def _planned(
    plan: dispatch.Plan, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if not _is_ours(args, kwargs):
        return plan()
    if dispatch.draws(operator):
        _refuse_draws_of_stages(operator, args, kwargs)
    return whole.planned(plan, operator, args, kwargs)


def _standing(
    standing: dispatch.Handler, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operator by torch's own handler, or on whole tensors where that refuses it."""
    try:
        return standing(operator, args, kwargs)
    except RuntimeError:
        if not _is_ours(args, kwargs):
            raise
    return whole.on_whole(operator, args, kwargs)


def _number(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mesh = args[0].device_mesh
    if mesh in _Meshes.whole or mesh in _Meshes.of_stages:
        return whole_number(operator, args, kwargs, mesh in _Meshes.of_stages)
    return dispatch.unhandled(operator, args, kwargs)


def _view(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mesh = args[0].device_mesh
    is_ours = mesh in _Meshes.whole or mesh in _Meshes.of_stages
    return (viewed if is_ours else dispatch.unhandled)(operator, args, kwargs)


def _draw(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    assert isinstance(tensor, DTensor)
    _refuse_draws_of_stages(operator, args, kwargs)
    if tensor.device_mesh not in _Meshes.whole:
        return dispatch.unhandled(operator, args, kwargs)
    plain = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    drawn = operator(empty, *args[1:], **plain)
    cut = distribute_tensor(drawn, tensor.device_mesh, tensor.placements)
    if operator in LIKE:
        return cut
    with torch.no_grad():
        _torch.local_of(tensor).copy_(_torch.local_of(cut))
    return tensor


def _refuse_draws_of_stages(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = (each for each in whole.tensors(args, kwargs) if isinstance(each, DTensor))
    if any(each.device_mesh in _Meshes.of_stages for each in given):
        raise InputError(
            f"{operator} draws random values for a parameter of a pipeline, whose ranks hold "
            "different stages: the values would differ from those of one process. Initialise "
            "the model before autopar.parallelize, pass it weights=autopar.Weights(init=...), "
            "or pass the values to parallel.load_state_dict."
        )
