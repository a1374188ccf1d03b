"""fx graph -> Graph: frozen nodes, explicit regions without gradient, nothing in place.

The second half of capture.  Names are torch's own here; `naming` gives the user's at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import fx

from autopar.capture import _torch
from autopar.capture.autocast import Policies, Region
from autopar.capture.constants import lifted
from autopar.capture.inplace import Memory, functional_form, refuse_visible
from autopar.capture.tracing import Trace
from autopar.capture.where import origin_of, spoken, under_gradient
from autopar.errors import CaptureError
from autopar.graph import Arg, DType, Graph, LeafKind, Node, Ref, Tensor

DROPPED = (torch.device, torch.layout, torch.memory_format)
NEVER_ARGUMENTS = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
WITHOUT_GRADIENT = ("_like", "new_zeros", "new_ones", "new_full", "new_empty", "detach")
"""Operators that read a tensor's shape only, or cut the gradient."""
RUNNING_STATISTICS = {"instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}


def lower(trace: Trace, name: str) -> Graph:
    """The recorded graph as frozen nodes."""
    return _Lowering(trace).graph(name)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


class _Lowering:
    """Walks the fx graph once; `now` maps each fx node to the names of its present values."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.fx_nodes = list(trace.module.graph.nodes)
        for node in self.fx_nodes:
            if node.op == "call_function" and not _supported(node.target):
                raise self._refused(node, _spoken_target(node.target))
        self.memory = Memory(self.fx_nodes)
        self.now: dict[fx.Node, tuple[str, ...]] = {}
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.detached: dict[str, str] = {}
        self.mutations: dict[str, str] = {}
        self.leaf_of: dict[fx.Node, tuple[LeafKind, str]] = {}
        self.grad_enabled = trace.train
        self.results: list[str] = []
        self.regions: list[Region] = []
        self.policies = Policies()
        self.parameters: set[str] = set()
        self.cast_already: dict[tuple[str, torch.dtype], str] = {}

    def graph(self, name: str) -> Graph:
        leaves = iter(self.trace.leaves)
        for node in self.fx_nodes:
            if node.op == "placeholder":
                self._leaf(node, *next(leaves))
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self.results = [
                    self._name(cast(fx.Node, n)) for n in cast(Iterable[Any], node.args[0])
                ]
            else:
                raise self._refused(node, f"an fx node of kind {node.op!r}")
        results = list(self.results)
        loss = results.pop(0) if self.trace.has_loss else None
        count = len(self.trace.outputs)
        outputs = tuple(zip(self.trace.outputs, results[:count], strict=True))
        self.mutations.update(zip(self.trace.assigned, results[count:], strict=True))
        mutations = tuple(self.mutations.items())
        for buffer, new in mutations:
            if self.tensors[new].differentiable:
                raise CaptureError(
                    f"The new value of buffer {buffer!r} carries a gradient, which would "
                    "reach into the "
                    "step before. Compute it from .detach()ed tensors or under torch.no_grad()."
                )
        return Graph(name, tuple(self.nodes), loss, outputs, mutations=mutations)

    # ---- nodes

    def _leaf(self, node: fx.Node, kind: LeafKind, target: str) -> None:
        value = node.meta["val"]
        differentiable = kind == "parameter" and target in self.trace.trainable
        tensor = _tensor(node.name, value, differentiable)
        self.leaf_of[node] = (kind, target)
        if differentiable:
            self.parameters.add(node.name)
        self._add(Node(node.name, kind, (), (), (tensor,), target), node)

    def _constant(self, node: fx.Node) -> None:
        owner: Any = self.trace.module
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        values = lifted(owner, origin_of(node))
        arguments: tuple[Arg, ...] = (values, DType(dtype_name(owner.dtype)))
        tensor = _tensor(node.name, owner, False)
        made = Node(node.name, "constant", arguments, (), (tensor,), node.name, origin_of(node))
        self._add(made, node)

    def _call(self, node: fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            source, index = cast(tuple[fx.Node, int], node.args)
            self.now[node] = (self.now[source][index],)
        elif target is _torch.SET_GRAD_ENABLED:
            self.grad_enabled = bool(node.args[0])
        elif target is _torch.ENTER_AUTOCAST:
            self.regions.append(self._region(node))
        elif target is _torch.EXIT_AUTOCAST:
            self.regions.pop()
        else:
            self._operator(node, target)

    def _region(self, node: fx.Node) -> Region:
        device, dtype, enabled, _ = cast(tuple[str, torch.dtype | None, bool, Any], node.args)
        region = Region(device, dtype or torch.get_autocast_dtype(device), enabled)
        if enabled and device != self.trace.device:
            raise CaptureError(
                f"torch.autocast({device!r}) at {spoken(origin_of(node))}\ndoes nothing to "
                "this model, "
                f"which is captured on {self.trace.device}. Use "
                "torch.autocast(x.device.type), or pass "
                "the autocast dtype to autopar instead."
            )
        return region

    def _operator(self, node: fx.Node, overload: Any) -> None:
        op = str(overload)
        if op == "aten.batch_norm.default" and node.args[3] is not None and node.args[5]:
            return self._batch_norm(node)
        if overload._opname in RUNNING_STATISTICS:
            raise self._refused(node, f"{op}, which may update running statistics as it runs")
        written = _written(node, overload)
        if written is None:
            args, kwargs = self._arguments(node, overload)
            self._emit(node, node.name, op, args, kwargs, node.meta["val"])
            return None
        place = origin_of(node)
        geometry_only = functional_form(op)
        if geometry_only.only_geometry:
            args, kwargs = self._arguments(node, overload)
            self._emit(node, node.name, geometry_only.op, args, kwargs, node.meta["val"])
            self.now[written] = self.now[node]
            return None
        if not self.grad_enabled and self.tensors[self._name(written)].differentiable:
            raise CaptureError(
                f"{op} at {spoken(place)}\nchanges, without gradient, a tensor that has one. "
                "Compute a "
                "new tensor instead."
            )
        same = refuse_visible(self.memory, node, written, op, place)
        args, kwargs = self._arguments(node, overload)
        self._functional(node, geometry_only.op, args, kwargs)
        for alias in same:
            self.now[alias] = self.now[node]
            kind, name = self.leaf_of.get(alias, (None, ""))
            if kind == "buffer":
                self.mutations[name] = self._name(node)
            elif kind is not None:
                raise CaptureError(
                    f"{op} at {spoken(place)}\nchanges the {kind} {name!r} in place. Compute "
                    "a new tensor "
                    "instead; state that the model keeps belongs in a buffer (register_buffer)."
                )
        return None

    def _functional(self, node: fx.Node, op: str, args: Any, kwargs: Any) -> None:
        """The out-of-place form, cast back where it would promote: a write keeps its dtype."""
        self._emit(node, node.name, op, args, kwargs, node.meta["val"])

    def _batch_norm(self, node: fx.Node) -> None:
        """Training batch norm updates its running statistics as it runs: make them outputs."""
        x, weight, bias, mean, variance, _, momentum, eps, *_ = node.args
        statistics = cast(tuple[fx.Node, fx.Node], (mean, variance))
        args = tuple(self._arg(a) for a in (x, weight, bias, mean, variance, momentum, eps))
        names = tuple(f"{node.name}.{end}" for end in ("out", "running_mean", "running_var"))
        values = (node.meta["val"], *(s.meta["val"] for s in statistics))
        self._emit(
            node, node.name, "autopar.batch_norm", args, (), values, names, (True, False, False)
        )
        for statistic, name in zip(statistics, names[1:], strict=True):
            kind, target = self.leaf_of.get(statistic, (None, ""))
            if kind != "buffer":
                raise self._refused(node, "batch norm whose running statistics are not buffers")
            self.mutations[target] = name
            self.now[statistic] = (name,)
        self.now[node] = names[:1]

    # ---- pieces

    def _emit(
        self,
        node: fx.Node,
        name: str,
        op: str,
        args: tuple[Arg, ...],
        kwargs: tuple[tuple[str, Arg], ...],
        value: Any,
        names: tuple[str, ...] = (),
        gradient: tuple[bool, ...] = (),
    ) -> None:
        origin = origin_of(node)
        if not (self.grad_enabled and under_gradient(node)):
            args, kwargs = self._detach(args, origin), self._detach(kwargs, origin)
        values = value if isinstance(value, (tuple, list)) else (value,)
        if not names:
            names = (name,) if values is not value else _numbered(name, len(values))
        made = Node(name, op, args, kwargs, (), "", origin)
        flows = any(self.tensors[operand].differentiable for operand in made.operands)
        flows = flows and not op.split(".")[1].endswith(WITHOUT_GRADIENT)
        outputs = tuple(
            _tensor(n, v, flows and allowed)
            for n, v, allowed in zip(names, values, gradient or (True,) * len(names), strict=True)
        )
        self._add(Node(name, op, args, kwargs, outputs, "", origin), node)

    def _detach(self, arg: Any, origin: Any) -> Any:
        """Under no_grad every differentiable operand enters through one explicit detach."""
        if isinstance(arg, tuple):
            return tuple(self._detach(item, origin) for item in arg)
        if not isinstance(arg, Ref) or not self.tensors[arg.name].differentiable:
            return arg
        if arg.name not in self.detached:
            name = f"{arg.name}.detached"
            source = self.tensors[arg.name]
            tensor = Tensor(name, source.shape, source.dtype, False)
            self.tensors[name] = tensor
            self.nodes.append(Node(name, "aten.detach.default", (arg,), (), (tensor,), "", origin))
            self.detached[arg.name] = name
        return Ref(self.detached[arg.name])

    def _add(self, made: Node, node: fx.Node) -> None:
        self.nodes.append(made)
        self.tensors.update((tensor.name, tensor) for tensor in made.outputs)
        self.now[node] = tuple(tensor.name for tensor in made.outputs)

    def _name(self, node: fx.Node) -> str:
        return self.now[node][0]

    def _arguments(
        self, node: fx.Node, overload: Any
    ) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
        args = tuple(self._arg(a) for a in node.args if not isinstance(a, DROPPED))
        kwargs = tuple(
            (key, self._arg(value))
            for key, value in node.kwargs.items()
            if key not in NEVER_ARGUMENTS and not isinstance(value, DROPPED)
        )
        if not (self.regions and self.regions[-1].enabled):
            return args, kwargs
        casts = iter(self._casts(node, overload))
        args = tuple(self._cast(arg, casts, node) for arg in args)
        return args, tuple((key, self._cast(value, casts, node)) for key, value in kwargs)

    def _casts(self, node: fx.Node, overload: Any) -> tuple[torch.dtype | None, ...]:
        """What autocast does to each tensor operand of this operator."""
        args, kwargs = _torch.tree_map(_recorded, (tuple(node.args), dict(node.kwargs)))
        region, wanted = self.regions[-1], node.meta["val"]
        casts = self.policies.casts(overload, args, kwargs, wanted, region)
        if casts is None:
            raise self._refused(node, f"{overload} under autocast, which casts inside it")
        return casts

    def _cast(self, arg: Arg, casts: Iterator[torch.dtype | None], node: fx.Node) -> Arg:
        if isinstance(arg, tuple):
            return tuple(self._cast(item, casts, node) for item in arg)
        if not isinstance(arg, Ref):
            return arg
        dtype = next(casts)
        if dtype is None or dtype_name(dtype) == self.tensors[arg.name].dtype:
            return arg
        origin = origin_of(node)
        if not (self.grad_enabled and under_gradient(node)):
            arg = self._detach(arg, origin)
            assert isinstance(arg, Ref)
        # as autocast does: one cast per parameter, others per use, so that gradients add up wide
        key = (arg.name, dtype)
        if arg.name not in self.parameters or key not in self.cast_already:
            source = self.tensors[arg.name]
            name = f"{arg.name}.{len(self.nodes)}.{dtype_name(dtype)}"
            tensor = Tensor(name, source.shape, dtype_name(dtype), source.differentiable)
            args: tuple[Arg, ...] = (arg, DType(tensor.dtype))
            self.tensors[name] = tensor
            self.nodes.append(Node(name, "aten.to.dtype", args, (), (tensor,), "", origin))
            self.cast_already[key] = name
        return Ref(self.cast_already[key])

    def _arg(self, value: Any) -> Arg:
        if isinstance(value, fx.Node):
            return Ref(self._name(value))
        if isinstance(value, torch.dtype):
            return DType(dtype_name(value))
        if isinstance(value, (tuple, list)):
            return tuple(self._arg(item) for item in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise CaptureError(
            f"An operator has an argument of type {type(value).__name__}: {value!r}."
        )

    def _refused(self, node: fx.Node, what: str) -> CaptureError:
        return CaptureError(
            f"The model uses {what} at {spoken(origin_of(node))}\nwhich cannot be captured "
            "yet; write "
            "it with plain tensor operations, or wrap it in torch.library.custom_op."
        )


def _recorded(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, fx.Node) else value


def _supported(target: Any) -> bool:
    known = (operator.getitem, _torch.SET_GRAD_ENABLED, _torch.ENTER_AUTOCAST, _torch.EXIT_AUTOCAST)
    return target in known or _torch.is_operator(target)


def _spoken_target(target: Any) -> str:
    name = getattr(target, "__name__", str(target))
    return "torch.vmap" if "vmap" in name or "batch_dim" in name else name


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}.{index}" for index in range(count))


def _tensor(name: str, value: Any, differentiable: bool) -> Tensor:
    floating = value.is_floating_point() or value.is_complex()
    return Tensor(name, tuple(value.shape), dtype_name(value.dtype), differentiable and floating)


def _written(node: fx.Node, overload: Any) -> fx.Node | None:
    """The argument that an operator writes to, if any."""
    schema = overload._schema
    if not schema.is_mutable:
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            in_args = position < len(node.args)
            found = node.args[position] if in_args else node.kwargs.get(argument.name)
            if isinstance(found, fx.Node):
                return found
    return None
