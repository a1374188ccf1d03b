"""Wraps private names of DTensor's dispatch: plans and handlers of operators, methods of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial, partialmethod
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.utils._mode_utils import no_dispatch

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def handle_operators(handlers: Mapping[Any, Handler]) -> None:
    """Install handlers that replace DTensor operators, as torch's own loss_parallel does."""
    dispatcher = DTensor._op_dispatcher
    dispatcher._custom_op_handlers = {**dispatcher._custom_op_handlers, **handlers}


def add_handlers(operators: Iterable[Any], handler: Handler) -> None:
    """Install a handler of those operators that have none."""
    installed = DTensor._op_dispatcher._custom_op_handlers
    handle_operators({each: handler for each in operators if each not in installed})


def wrap_handlers(wrapper: Callable[[Handler, Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Let `wrapper` call the handlers that are installed now."""
    installed = DTensor._op_dispatcher._custom_op_handlers
    handle_operators({each: partial(wrapper, standing) for each, standing in installed.items()})


def unhandled(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a DTensor operator without its handler."""
    handlers = DTensor._op_dispatcher._custom_op_handlers
    handler = handlers.pop(operator, None)
    try:
        return operator(*args, **kwargs)
    finally:
        if handler is not None:
            handlers[operator] = handler


Plan = Callable[[], Any]


Planner = Callable[[Plan, Any, tuple[Any, ...], dict[str, Any]], Any]


def plan_operators(planner: Planner) -> None:
    """Let `planner` return the plan of a DTensor operator, or its result instead.

    Its first argument is a function that returns torch's plan.  Plans are cached, results are not.
    """
    dispatcher: Any = DTensor._op_dispatcher
    standing = dispatcher._propagate_op_sharding_dispatch_slow_path

    def planned(operator: Any, args: Any, kwargs: Any, info: Any, is_cached: bool) -> Any:
        plan = partial(standing, operator, args, kwargs, info, is_cached)
        return planner(plan, operator, args, kwargs)

    dispatcher._propagate_op_sharding_dispatch_slow_path = planned


def moves_target(operator: Any, args: tuple[Any, ...], plan: Any) -> bool:
    """Whether an operator in place would write into another layout of its target, which is a copy."""
    target = args[0] if args else None
    if not operator._schema.name.endswith("_") or not isinstance(target, DTensor):
        return False
    redistributed, made = (
        getattr(plan, "redistribute_schema", None),
        getattr(plan, "output_spec", None),
    )
    found = [] if redistributed is None else [redistributed.args_schema[0]]
    if isinstance(made, DTensorSpec) and made.shape == target.shape:
        found.append(made)
    return any(isinstance(e, DTensorSpec) and e.placements != target.placements for e in found)


def draws(operator: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def is_misplanned(operator: Any, args: tuple[Any, ...]) -> bool:
    """Whether torch's plan is wrong for any layout.

    An `out=` tensor takes the layout of the result.  No dims in a list, which mean all, count as none.
    """
    arguments = operator._schema.arguments
    return any(each.is_out for each in arguments) or any(
        argument.name == "dim" and isinstance(value, list) and not value
        for argument, value in zip(arguments, args, strict=False)
    )


def is_view(operator: Any) -> bool:
    """Whether an operator returns views of its arguments."""
    return bool(operator._schema._is_view_op())


@cache
def written_places(operator: Any) -> tuple[tuple[int, str], ...]:
    """Return places and names of the arguments that an operator writes to."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def operators_of_several() -> Iterator[Any]:
    """Yield torch's operators that take more than one tensor."""
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        kinds = [str(argument.type) for argument in schema.arguments]
        tensors = sum(kind in ("Tensor", "Optional[Tensor]") for kind in kinds)
        lists = sum(kind in ("List[Tensor]", "List[Optional[Tensor]]") for kind in kinds)
        if name != schema.name and tensors + 2 * lists > 1:
            yield getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")


def take_view(tensor: DTensor, view: DTensor) -> None:
    """Make a DTensor what a view of it is, with the view's shape."""
    tensor._local_tensor, tensor._spec = view._local_tensor, view._spec
    shape, strides = view.shape, view.stride()
    with no_dispatch():
        tensor.as_strided_(shape, strides)


def averages_uneven(plan: Any, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a plan averages the means of shards, and these are of different sizes."""
    made = getattr(plan, "output_spec", None)
    if not isinstance(made, DTensorSpec) or not any(
        isinstance(kind, Partial) and kind.reduce_op == "avg" for kind in made.placements
    ):
        return False
    return any(
        isinstance(kind, Shard) and each.shape[kind.dim] % each.device_mesh.size(axis)
        for each in tensors
        if isinstance(each, DTensor)
        for axis, kind in enumerate(each.placements)
    )


def watch_data(check: Callable[[DTensor, Any], None]) -> None:
    """Call `check` before ``tensor.data = value`` of a DTensor."""
    standing: Any = torch.Tensor.data

    def assign(tensor: DTensor, value: Any) -> None:
        check(tensor, value)
        standing.__set__(tensor, value)

    DTensor.data = property(standing.__get__, assign)  # type: ignore[assignment]


def replace_methods(methods: Mapping[str, Callable[..., Any]]) -> None:
    """Replace methods of DTensor; a new one takes the tensor, its arguments and `standing=`."""
    for name, method in methods.items():
        standing = getattr(DTensor, name)
        setattr(DTensor, name, partialmethod(method, standing=standing))
