"""Lowers an fx graph to a `Graph`: immutable nodes, explicit regions without gradient, nothing in place.

This is the second half of capture. Names are torch's here; `naming` replaces them later.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import fx

from autopar.capture import _torch
from autopar.capture.autocast import Policies, Region
from autopar.capture.builder import Builder, Kwargs, dtype_name, looks_like
from autopar.capture.constants import lifted
from autopar.capture.inplace import Memory, changes_only_geometry, functional_form, written
from autopar.capture.strided import STRIDED, window
from autopar.capture.tracing import Trace
from autopar.capture.views import put_back
from autopar.capture.where import around, location, origin_of, under_gradient
from autopar.errors import CaptureError
from autopar.ir.graph import Arg, DType, Graph, LeafKind, Node, Ref
from autopar.ops.functions import NAMESPACE, without_gradient

DROPPED = (torch.device, torch.layout, torch.memory_format)
NEVER_ARGUMENTS = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
FOR_BACKWARD = {
    "native_layer_norm": (1, 2), "native_group_norm": (1, 2), "_fused_rms_norm": (1,),
    "nll_loss_forward": (1,), "nll_loss2d_forward": (1,),
    "_scaled_dot_product_flash_attention_for_cpu": (1,), "_scaled_dot_product_efficient_attention": (1,),
}  # fmt: skip
"""Results of kernels that carry no gradient: only the backward formulas read them."""
RUNNING_STATISTICS = {"instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
"""Operators that may update a buffer although their schema does not say so."""


def lower(trace: Trace, name: str, homes: Mapping[int, str] | None = None) -> Graph:
    """Return the recorded graph as immutable nodes; `homes` maps ids of other tensors to their paths."""
    return _Lowering(trace, homes or {}).graph(name)


class _Lowering:
    """Walks the fx graph once; `now` maps each fx node to the names of its current values."""

    def __init__(self, trace: Trace, homes: Mapping[int, str]) -> None:
        self.trace = trace
        self.homes = homes
        self.fx_nodes = list(trace.module.graph.nodes)
        for node in self.fx_nodes:
            if node.op == "call_function" and _torch.communicates(node.target):
                raise _communicating(node)
            if node.op == "call_function" and not _supported(node.target):
                raise _refused(node, getattr(node.target, "__name__", str(node.target)))
        self.memory = Memory(self.fx_nodes)
        self.builder = Builder()
        self.now: dict[fx.Node, tuple[str, ...]] = {}
        self.leaf_of: dict[fx.Node, tuple[LeafKind, str]] = {}
        self.mutations: dict[str, str] = {}
        self.grad_enabled = trace.train
        self.regions: list[Region] = []
        self.policies = Policies()

    def graph(self, name: str) -> Graph:
        """Lower all nodes; the last fx node holds the results."""
        leaves = iter(self.trace.leaves)
        *body, end = self.fx_nodes
        for node in body:
            if node.op == "placeholder":
                self._leaf(node, *next(leaves))
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function":
                self._call(node)
            else:
                raise _refused(node, f"an fx node of kind {node.op!r}")
        results = [self._name(node) for node in end.args[0]]
        loss = results.pop(0) if self.trace.results.has_loss else None
        count = len(self.trace.results.outputs)
        outputs = tuple(zip(self.trace.results.outputs, results[:count], strict=True))
        self.mutations.update(zip(self.trace.results.assigned, results[count:], strict=True))
        self._check_mutations()
        mutations = tuple(self.mutations.items())
        return Graph(name, tuple(self.builder.nodes), loss, outputs, mutations=mutations)

    def _check_mutations(self) -> None:
        for buffer, new in self.mutations.items():
            if self.builder.tensors[new].differentiable:
                raise CaptureError(
                    f"The new value of buffer {buffer!r} carries a gradient, so backward would "
                    "reach into the previous step. Compute it from .detach()ed tensors or under "
                    "torch.no_grad()."
                )

    # ---- leaves

    def _leaf(self, node: fx.Node, kind: LeafKind, target: str) -> None:
        differentiable = kind == "parameter" and target in self.trace.trainable
        tensor = looks_like(node.name, node.meta["val"], differentiable)
        self.leaf_of[node] = (kind, target)
        self.builder.leaf(Node(node.name, kind, (), (), (tensor,), target))
        self.now[node] = (node.name,)

    def _constant(self, node: fx.Node) -> None:
        owner: Any = self.trace.module
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        if id(owner) in self.trace.originals:
            # Reached through a Python list, say, not as a module's attribute: the same tensor.
            self.now[node] = self.now[self.fx_nodes[self.trace.originals[id(owner)]]]
            self.leaf_of[node] = self.trace.leaves[self.trace.originals[id(owner)]]
            return
        origin = origin_of(node)
        args: tuple[Arg, ...] = (
            lifted(owner, origin, self.homes.get(id(owner))),
            DType(dtype_name(owner.dtype)),
        )
        tensor = looks_like(node.name, owner, False)
        self.builder.leaf(Node(node.name, "constant", args, (), (tensor,), node.name, origin))
        self.now[node] = (node.name,)

    # ---- calls

    def _call(self, node: fx.Node) -> None:
        target = node.target
        known = around(node)
        self.grad_enabled = self.grad_enabled if known is None else known
        if target is operator.getitem:
            source, index = cast(tuple[fx.Node, int], node.args)
            self.now[node] = (self.now[source][index],)
        elif target is _torch.SET_GRAD_ENABLED:
            self.grad_enabled = bool(node.args[0])
        elif target is _torch.ENTER_AUTOCAST:
            self.regions.append(self._region(node))
        elif target is _torch.EXIT_AUTOCAST:
            self.regions.pop()
        elif "val" in node.meta:
            self._operator(node, target)
        # If not, it made a Python number, which later nodes contain as a literal.

    def _region(self, node: fx.Node) -> Region:
        device, dtype, enabled, _ = cast(tuple[str, torch.dtype | None, bool, Any], node.args)
        if enabled and device != self.trace.device:
            raise CaptureError(
                f"torch.autocast({device!r}) at {location(origin_of(node))}\nhas no effect on this "
                f"model, which is captured on {self.trace.device}. Use "
                "torch.autocast(x.device.type), or give autopar the autocast dtype instead."
            )
        return Region(device, dtype or torch.get_autocast_dtype(device), enabled)

    def _operator(self, node: fx.Node, overload: Any) -> None:
        op = str(overload)
        if op == "aten.batch_norm.default" and node.args[3] is not None and node.args[5]:
            return self._batch_norm(node)
        if _torch.operator_name(overload) in RUNNING_STATISTICS and node.args[3] is not None:
            raise _refused(node, f"{op}, which may update running statistics as it runs")
        if op == STRIDED:
            return self._strided(node)
        target = written(node, overload)
        args, kwargs = self._arguments(node, overload)
        _refuse_sparse(node, op, (args, dict(kwargs)))
        if target is None:
            self._emit(node, op, args, kwargs)
        elif changes_only_geometry(op):
            self._emit(node, functional_form(op), args, kwargs)
            self.now[target] = self.now[node]
        elif _torch.is_out(overload):
            self._write(node, target, self._without_out(node, overload, target), args, kwargs[:-1])
        else:
            self._write(node, target, functional_form(op), args, kwargs)
        return None

    def _without_out(self, node: fx.Node, overload: Any, target: fx.Node) -> str:
        """Return the functional operator; raise `CaptureError` if writing into ``out=`` would cast."""
        op = _torch.without_out(overload)
        given = {a.meta["val"].dtype for a in node.all_input_nodes if a.meta["val"].dim()}
        if (
            op is None
            or given != {target.meta["val"].dtype}
            or next(reversed(node.kwargs)) != "out"
        ):
            raise _refused(node, f"{overload}, which writes into out= in an unsupported way")
        return op

    def _write(
        self, node: fx.Node, target: fx.Node, op: str, args: tuple[Arg, ...], kwargs: Kwargs
    ) -> None:
        """Emit the new value of the written tensor, then of every tensor that it is a view of."""
        write = self.memory.write(node, target)
        self._check_gradient(node, target, [other for same in write.same for other in same])
        self._emit(node, op, args, kwargs)
        name = self._name(node)
        for link, (view, same) in enumerate(zip(write.chain, write.same, strict=True)):
            if link:
                name = self._put_back(node, write.chain[link - 1], view, name)
            for alias in same:
                self.now[alias] = (name,)
                self._mutated(node, alias, name)

    def _check_gradient(self, node: fx.Node, target: fx.Node, seen: list[fx.Node]) -> None:
        """Raise `CaptureError` if a tensor with a gradient is changed and autograd does not see it."""
        gradient = self.builder.tensors[self._name(target)].differentiable
        others = [alias for alias in seen if self.memory.read_after(alias, node)]
        flags = {self.builder.tensors[self._name(alias)].differentiable for alias in others}
        hidden = gradient and not self._with_gradient(node)
        if hidden or (flags and target not in others and True in flags and not gradient):
            raise CaptureError(
                f"{node.target} at {location(origin_of(node))}\nchanges a tensor that carries a "
                "gradient without autograd's knowledge. Compute a new tensor instead."
            )

    def _put_back(self, node: fx.Node, view: fx.Node, parent: fx.Node, part: str) -> str:
        """Emit the parent's value after its view has become `part`, and return its name."""
        way = put_back(view)
        assert way is not None
        name = f"{part}.in.{parent.name}"
        args: tuple[Arg, ...] = (Ref(part), *(self._arg(item) for item in way.rest))
        args = args if way.whole else (Ref(self._name(parent)), *args)
        values = {name: parent.meta["val"]}
        gradient = self._with_gradient(node)
        self.builder.emit(way.op, args, (), values, origin_of(node), gradient=gradient)
        return name

    def _mutated(self, node: fx.Node, alias: fx.Node, name: str) -> None:
        """Make a buffer's new value a result; raise `CaptureError` if another leaf is changed."""
        if alias.op == "get_attr":
            kind, target = "constant", "a tensor that is not registered in any module"
        elif alias in self.leaf_of:
            kind, target = self.leaf_of[alias]
        else:
            return
        if kind == "buffer":
            self.mutations[target] = name
            return
        raise CaptureError(
            f"{node.target} at {location(origin_of(node))}\nchanges the {kind} {target!r} in place. "
            "Compute a new tensor instead; state that the model keeps belongs in a buffer "
            "(register_buffer)."
        )

    def _batch_norm(self, node: fx.Node) -> None:
        """Emit training batch norm with the new running statistics as outputs."""
        x, weight, bias, mean, variance, _, momentum, eps, *_ = node.args
        statistics = cast(tuple[fx.Node, fx.Node], (mean, variance))
        args = tuple(self._arg(a) for a in (x, weight, bias, mean, variance, momentum, eps))
        ends = ("out", "running_mean", "running_var")
        names = tuple(f"{node.name}.{end}" for end in ends)
        looks = (node.meta["val"], *(s.meta["val"] for s in statistics))
        values = dict(zip(names, looks, strict=True))
        gradient, cut = self._with_gradient(node), names[1:]
        origin = origin_of(node)
        self.builder.emit(
            "autopar.batch_norm", args, (), values, origin, gradient=gradient, cut=cut
        )
        for statistic, name in zip(statistics, names[1:], strict=True):
            kind, target = self.leaf_of.get(statistic, (None, ""))
            if kind != "buffer":
                raise _refused(node, "batch norm whose running statistics are not buffers")
            self.mutations[target] = name
            self.now[statistic] = (name,)
        self.now[node] = names[:1]

    def _strided(self, node: fx.Node) -> None:
        """Emit `as_strided` on dims in memory order: its strides are those of one process's memory."""
        names = ("self", "size", "stride", "storage_offset")
        given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        x = given["self"].meta["val"]
        read = window(x, tuple(given["size"]), tuple(given["stride"]), given.get("storage_offset"))
        if read is None:
            raise _refused(
                node, "as_strided that reads outside of its tensor (call .contiguous() on it first)"
            )
        ordered: Arg = self._arg(given["self"])
        if read.order != tuple(range(x.dim())):
            name = f"{node.name}.ordered"
            looks = {name: x.permute(read.order)}
            self.builder.emit(
                "aten.permute.default", (ordered, read.order), (), looks, origin_of(node),
                gradient=self._with_gradient(node),
            )  # fmt: skip
            ordered = Ref(name)
        self._emit(node, "autopar.strided", (ordered, read.size, read.stride, read.offset), ())

    # ---- pieces

    def _emit(self, node: fx.Node, op: str, args: tuple[Arg, ...], kwargs: Kwargs) -> None:
        value = node.meta["val"]
        if isinstance(value, (tuple, list)):
            values = {f"{node.name}.{index}": item for index, item in enumerate(value)}
        else:
            values = {node.name: value}
        gradient = self._with_gradient(node)
        origin = origin_of(node)
        cut = tuple(name for name, lost in zip(values, without_gradient(op), strict=False) if lost)
        cut += tuple([*values][at] for at in FOR_BACKWARD.get(op.split(".")[1], ()))
        self.now[node] = self.builder.emit(
            op, args, kwargs, values, origin, gradient=gradient, cut=cut
        )

    def _with_gradient(self, node: fx.Node) -> bool:
        return self.grad_enabled and under_gradient(node)

    def _name(self, node: fx.Node) -> str:
        return self.now[node][0]

    def _arguments(self, node: fx.Node, overload: Any) -> tuple[tuple[Arg, ...], Kwargs]:
        args = tuple(self._arg(a) for a in node.args if not isinstance(a, DROPPED))
        kwargs = tuple(
            (key, self._arg(value))
            for key, value in node.kwargs.items()
            if key not in NEVER_ARGUMENTS and not isinstance(value, DROPPED)
        )
        # A Function casts inside, as it did when it was traced.
        if not (self.regions and self.regions[-1].enabled) or overload.namespace == NAMESPACE:
            return args, kwargs
        casts = iter(self._casts(node, overload))
        args = tuple(self._cast(arg, casts, node) for arg in args)
        return args, tuple((key, self._cast(value, casts, node)) for key, value in kwargs)

    def _casts(self, node: fx.Node, overload: Any) -> tuple[torch.dtype | None, ...]:
        """Return the dtype to which autocast casts each tensor operand of this operator."""
        args, kwargs = _torch.tree_map(_recorded, (tuple(node.args), dict(node.kwargs)))
        region, wanted = self.regions[-1], node.meta["val"]
        casts = self.policies.casts(overload, args, kwargs, wanted, region)
        if casts is None:
            raise _refused(node, f"{overload} under autocast, which casts inside it")
        return casts

    def _cast(self, arg: Arg, casts: Iterator[torch.dtype | None], node: fx.Node) -> Arg:
        if isinstance(arg, tuple):
            return tuple(self._cast(item, casts, node) for item in arg)
        if not isinstance(arg, Ref):
            return arg
        origin, gradient = origin_of(node), self._with_gradient(node)
        return self.builder.cast(arg, next(casts), origin, gradient=gradient)

    def _arg(self, value: Any) -> Arg:
        if isinstance(value, fx.Node):
            return Ref(self._name(value))
        if isinstance(value, torch.dtype):
            return DType(dtype_name(value))
        if isinstance(value, (tuple, list)):
            return tuple(self._arg(item) for item in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        kind = type(value).__name__
        remedy = f" Write torch.tensor({value!r})." if isinstance(value, complex) else ""
        raise CaptureError(f"An operator has an argument of type {kind}: {value!r}.{remedy}")


def _recorded(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, fx.Node) else value


def _supported(target: Any) -> bool:
    markers = (_torch.SET_GRAD_ENABLED, _torch.ENTER_AUTOCAST, _torch.EXIT_AUTOCAST)
    return target is operator.getitem or target in markers or _torch.is_operator(target)


def _communicating(node: fx.Node) -> CaptureError:
    return CaptureError(
        f"The model communicates with other ranks itself: {node.target} at "
        f"{location(origin_of(node))}\nautopar passes it the whole batch and adds the "
        "communication that its plan needs. Write the computation of one process, without "
        "collectives in forward and loss."
    )


SPARSE_AT = {
    "aten.embedding.default": 4,
    "aten.embedding_bag.default": 5,
    "aten.embedding_bag.padding_idx": 5,
}
"""Position of the argument that requests a sparse gradient of the table."""


def _refuse_sparse(
    node: fx.Node, op: str, given: tuple[tuple[Arg, ...], Mapping[str, Arg]]
) -> None:
    """Refuse sparse gradients: optimizers treat rows without a gradient differently if it is dense."""
    place = SPARSE_AT.get(op)
    if place is None:
        return
    args, kwargs = given
    if args[place] if len(args) > place else kwargs.get("sparse", False):
        raise CaptureError(
            f"The embedding at {location(origin_of(node))}\nhas sparse=True. Gradients of a "
            "parallel step are dense, and optimizers such as Adam treat rows without a gradient "
            "differently then. Set sparse=False (module.sparse = False), and use Adam instead "
            "of SparseAdam."
        )


def _refused(node: fx.Node, what: str) -> CaptureError:
    return CaptureError(
        f"The model uses {what} at {location(origin_of(node))}\nwhich cannot be captured; write it "
        "with plain tensor operations, or wrap it in torch.library.custom_op."
    )
