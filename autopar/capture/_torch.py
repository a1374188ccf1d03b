"""Every private torch name that capture needs. The rest of capture uses public torch only."""

from __future__ import annotations

import contextlib
import inspect
import logging
import operator
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

import torch
import torch.autograd.function
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Silence torch's log of a failing fake operator; the raised error has the same traceback."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


TORCH_FOLDERS = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
"""Folders whose code is not the user's: torch, and autopar, which calls the model."""
DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
REGISTERED = "torch._library.autograd"
"""The module of the `Function` classes that `register_autograd` creates."""
COMMUNICATES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""Namespaces of the operators by which ranks communicate."""
READ_DATA: Callable[..., Any] = vars(torch._C.TensorBase)["data"].__get__
WRITE_DATA: Callable[..., Any] = vars(torch._C.TensorBase)["data"].__set__
HISTORY: tuple[Callable[..., Any], ...] = (
    *(
        vars(torch._C.TensorBase)[name].__get__
        for name in ("is_leaf", "grad_fn", "_base", "_version")
    ),
    torch.Tensor._is_view,
)
"""Accessors that show a tensor's autograd history."""
TRUTH: Callable[..., Any] = torch.Tensor.__bool__
SET_GRAD_ENABLED: Callable[..., Any] = torch._C._set_grad_enabled
ENTER_AUTOCAST: Callable[..., Any] = torch.amp.autocast_mode._enter_autocast
EXIT_AUTOCAST: Callable[..., Any] = torch.amp.autocast_mode._exit_autocast


def fake_mode() -> FakeTensorMode:
    """Return a mode whose tensors have shapes and dtypes but no memory: weights are never allocated."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def fake_mode_of(*values: Any) -> Iterator[None]:
    """Enter the fake mode of the recorded tensors among `values`, if there are any."""
    leaves = tree_flatten(values)[0]
    mode = next((leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor)), None)
    with mode or contextlib.nullcontext():
        yield


def trace(function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """Return the pre-dispatch ATen graph of a function of fake tensors; composite operators are kept."""
    make = make_fx(function, tracing_mode="real", pre_dispatch=True, _allow_non_fake_inputs=True)
    return make(*args)


@dataclass(frozen=True)
class Run:
    """An operator that a trace is about to record."""

    original: Callable[..., Any]
    mode: Any
    arguments: tuple[Any, ...]

    def __call__(self) -> Any:
        """Record the operator and run it."""
        return self.original(self.mode, *self.arguments)

    def in_parts(self) -> Any:
        """Record and run the decomposition; NotImplemented if the operator itself has a formula."""
        func, _, args, kwargs = self.arguments
        module: Any = proxy_tensor
        if not module.autograd_would_have_decomposed(func, tree_leaves((args, kwargs))):
            return NotImplemented
        with self.mode:
            return func.decompose(*args, **kwargs)


Answer = Callable[["Tracer", Any, tuple[Any, ...], dict[str, Any], Run], Any]


@contextlib.contextmanager
def operators_answered(answer: Answer) -> Iterator[None]:
    """Within the context, let `answer` give each traced operator's result; it may call `run`."""
    module: Any = proxy_tensor
    original = module.proxy_call

    def call(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
        run = Run(original, mode, (func, pre_dispatch, args, kwargs))
        return answer(mode.tracer, func, args, kwargs, run)

    module.proxy_call = call
    try:
        yield
    finally:
        module.proxy_call = original


class Tracer(Protocol):
    """The state of a trace: its graph and the nodes of its tensors."""

    graph: fx.Graph
    tensor_tracker: MutableMapping[torch.Tensor, Any]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the proxy of a node's result."""


def node_of(tracer: Tracer, tensor: torch.Tensor) -> fx.Node | None:
    """Return the node that made a tensor; None if the tensor's values are known or it has no node."""
    tracked = tracer.tensor_tracker.get(tensor)
    if tracked is None or tracked.constant is not None:
        return None
    node: fx.Node = tracked.proxy.node
    return node


def record(
    tracer: Tracer,
    target: Any,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    values: Any,
    name: str | None = None,
) -> None:
    """Add a node whose result, a tensor or a list of tensors, was made outside the trace."""
    node = tracer.graph.create_node("call_function", target, *arguments, name=name)
    # Snapshots: torch returns another tensor while something references a factory's result.
    node.meta["val"] = tree_map(_snapshot, values)
    if isinstance(values, torch.Tensor):
        tracer.tensor_tracker[values] = proxy_tensor._ProxyTensor(tracer.proxy(node), None)
        return
    for index, value in enumerate(values):
        record(tracer, operator.getitem, ((node, index), {}), value)


@contextlib.contextmanager
def _beside_the_trace() -> Iterator[None]:
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        yield


def fake_of(
    like: FakeTensor, shape: Any, stride: Any, offset: int, dtype: torch.dtype, device: torch.device,
    *, shares: bool, gradient: bool,
) -> torch.Tensor:  # fmt: skip
    """Return a new tensor of the same trace; with `shares`, it uses the storage of `like`."""
    with _beside_the_trace():
        if shares:
            made = torch.empty(0, dtype=dtype, device="meta")
            made.set_(like.untyped_storage(), offset, shape, stride)
        else:
            made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        made.requires_grad_(gradient)
        return FakeTensor(like.fake_mode, made, device)


def _snapshot(value: Any) -> Any:
    """Return another tensor of the same shape, strides, dtype and storage."""
    if not isinstance(value, FakeTensor):
        return value
    return fake_of(
        value, value.shape, value.stride(), int(value.storage_offset()), value.dtype,
        value.fake_device, shares=True, gradient=False,
    )  # fmt: skip


def graph_in_progress() -> fx.Graph | None:
    """Return the fx graph that is being traced."""
    mode = get_proxy_mode()
    return None if mode is None else mode.tracer.graph


def newest_node(graph: fx.Graph) -> fx.Node:
    """Return the last node of a graph in constant time; the root if the graph is empty."""
    return graph._root._prev


def previous_node(node: fx.Node) -> fx.Node:
    """Return the node before this one; the root comes before the first node."""
    return node._prev


def storage_id(tensor: torch.Tensor) -> int:
    """Return an id that is equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)


def sums_in_place(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether autograd, without a dispatch mode, would add two gradients in place.

    It does so if nothing else references the first storage; here `storage` is a second reference.
    """
    if func is not torch.ops.aten.add.Tensor or torch.is_grad_enabled():
        return False
    storage = args[0].untyped_storage()
    in_backward = torch._C._current_autograd_node() is not None
    return in_backward and bool(torch._C._storage_Use_Count(storage._cdata) <= 2)


def is_operator(target: object) -> bool:
    """Return whether an fx target is one overload of a dispatcher operator."""
    return isinstance(target, torch._ops.OpOverload)


def communicates(target: object) -> bool:
    """Return whether an fx target is an operator by which ranks communicate."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace in COMMUNICATES


def operator_name(overload: Any) -> str:
    """Return ``batch_norm`` for any overload of ``aten::batch_norm``."""
    return str(overload._opname)


def plain_name(overload: Any) -> str:
    """Return the name that torch gives to nodes of an operator."""
    return str(overload.overloadpacket.__name__)


def is_mutable(overload: Any) -> bool:
    """Return whether an operator writes to any argument."""
    return bool(overload._schema.is_mutable)


def writes_to(overload: Any) -> tuple[tuple[int, str], ...]:
    """Return (position, name) of the arguments that an operator writes to."""
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def is_view(overload: Any) -> bool:
    """Return whether the results share memory with an operand and no operand is written to."""
    return any(r.alias_info is not None for r in overload._schema.returns) and not is_mutable(
        overload
    )


def without_out(overload: Any) -> str | None:
    """Return the overload that computes the same without ``out=``; None if there is none."""
    taken = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
    for name in overload.overloadpacket.overloads():
        other = getattr(overload.overloadpacket, name)
        if [(a.name, str(a.type)) for a in other._schema.arguments] == taken:
            return str(other)
    return None


def is_out(overload: Any) -> bool:
    """Return whether an operator writes its result into an argument ``out=``."""
    return any(argument.is_out for argument in overload._schema.arguments)


def has_storage(value: object) -> bool:
    """Return whether a traced value is a tensor with a storage."""
    return isinstance(value, torch.Tensor) and torch._C._has_storage(value)


def is_fake(value: object) -> bool:
    """Return whether a value is a tensor of a trace."""
    return isinstance(value, FakeTensor)


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor belongs to torch.vmap or another torch.func transform."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def known_value(tensor: object) -> torch.Tensor | None:
    """Return the values of a constant, or None if only its shape is known."""
    if not isinstance(tensor, torch.Tensor):
        return None
    if isinstance(tensor, FakeTensor):
        constant = tensor.constant
        return constant if isinstance(constant, torch.Tensor) else None
    return None if tensor.is_meta else tensor


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Within the context, functions made by `torch.compile` run uncompiled and can be traced."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    with contextlib.ExitStack() as stack:
        if dynamo is not None:
            stack.enter_context(dynamo.config.patch(error_on_nested_fx_trace=False))
        yield


@contextlib.contextmanager
def unfaked() -> Iterator[None]:
    """Within the context, tensors are real even if a fake mode is active."""
    with torch._C._DisableTorchDispatch():
        yield


Applied = Callable[[Any, tuple[Any, ...]], Any]
"""Returns the result of `cls.apply(*args)`, given `cls` and `args`."""


class _Answered:
    @classmethod
    def apply(cls, *args, **kwargs):  # type: ignore[no-untyped-def]
        """Replaces the code of `Function.apply`, with its globals; needs the same closure cell."""
        __class__  # type: ignore[name-defined]  # noqa: B018
        return _autopar_apply(cls, args, kwargs)  # type: ignore[name-defined]  # noqa: F821


@contextlib.contextmanager
def functions_answered(answer: Applied) -> Iterator[None]:
    """Call `answer` for the result of every `autograd.Function.apply` of a trace.

    Replacing the attribute `apply` would miss aliases that were bound before capture, such as
    ``reverse = GradientReversal.apply``. Therefore the function object stays, and its code object
    is replaced.
    """
    module: Any = torch.autograd.function
    function: Any = module.Function.apply.__func__
    code, defaults = function.__code__, module._is_setup_context_defined
    original = FunctionType(code, module.__dict__, "apply", None, function.__closure__)

    def apply(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = torch._C._are_functorch_transforms_active()
        beside = graph_in_progress() is None or module._autopar_apply is not apply
        if beside or active or not torch.is_grad_enabled():
            return original(cls, *args, **kwargs)
        if kwargs and defaults(cls.setup_context):
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, {}
        return original(cls, *args, **kwargs) if kwargs else answer(cls, args)

    module._autopar_apply = apply
    function.__code__ = _Answered.apply.__func__.__code__  # type: ignore[attr-defined]
    try:
        yield
    finally:
        function.__code__ = code
        del module._autopar_apply


@contextlib.contextmanager
def functions_as_they_are() -> Iterator[None]:
    """Within the context, `Function.apply` has its original behaviour."""
    module: Any = torch.autograd.function
    answering = module._autopar_apply
    module._autopar_apply = lambda cls, args, kwargs: answering(cls, args, kwargs)
    try:
        yield
    finally:
        module._autopar_apply = answering


untraced = proxy_tensor.disable_proxy_modes_tracing
"""Context in which operators run without being recorded."""
