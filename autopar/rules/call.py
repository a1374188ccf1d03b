"""An operator call on one rank's shards: local arguments and operands, and keys for timing databases.

`text` is equal for calls that do the same work, `family` for calls that differ only in sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from autopar.ir.graph import Arg, Graph, Node, Ref, Tensor
from autopar.ir.mesh import Mesh
from autopar.plans.decisions import OpSharding
from autopar.rules import _torch
from autopar.rules.local import localize


@dataclass(frozen=True)
class LocalCall:
    """`op` on tensors named ``t0``, ``t1``, ...; a tensor that is read twice is one operand.

    `has_gradient`: whether any output is differentiable.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    operands: tuple[Tensor, ...]
    has_gradient: bool

    @cached_property
    def text(self) -> str:
        """``aten.mm.default(t0, t1) of float32[8, 4] grad, float32[4, 2] grad``."""
        written = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs)]
        read = ", ".join(f"{t.dtype}{list(t.shape)}{_grad(t)}" for t in self.operands)
        return f"{self._op}({', '.join(written)}) of {read}"

    @cached_property
    def family(self) -> str:
        """``aten.mm.default(t0, t1) of float32 2d grad, float32 2d grad``.

        Integers become ``int``; floats become ``float``, or ``0.0`` if zero.
        """
        written = [
            *map(_whatever_size, self.args),
            *(f"{key}={_whatever_size(value)}" for key, value in self.kwargs),
        ]
        read = ", ".join(f"{t.dtype} {len(t.shape)}d{_grad(t)}" for t in self.operands)
        return f"{self._op}({', '.join(written)}) of {read}"

    @property
    def _op(self) -> str:
        """The operator's name, with a digest of its source if it is a user's: edits change its times."""
        source = _source(self.op)
        return f"{self.op}@{source}" if source else self.op


def local_call(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> LocalCall | None:
    """Return one rank's call; None for leaves and if a local implementation replaces the operator."""
    found = on_shards(node, sharding, graph, mesh)
    if found is None:
        return None
    local, operands = found
    names = {name: f"t{place}" for place, name in enumerate(operands)}
    return LocalCall(
        node.op,
        tuple(_renamed(arg, names.__getitem__) for arg in local.args),
        tuple((key, _renamed(arg, names.__getitem__)) for key, arg in local.kwargs),
        tuple(replace(tensor, name=names[name]) for name, tensor in operands.items()),
        any(tensor.differentiable for tensor in node.outputs),
    )


def on_shards(
    node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh, alike: Collection[str] = ()
) -> tuple[Node, Mapping[str, Tensor]] | None:
    """Return the node with one rank's arguments, and its operands' shards by name.

    None in the cases of `local_call`, and if one tensor is read in two shardings.  `alike` are local
    implementations that do not prevent it.
    """
    if node.is_leaf or sharding.variant not in ("", *alike) or _is_padded_lookup(node, graph):
        return None
    forms = dict(zip(node.operands, sharding.inputs, strict=True))
    if len(set(zip(node.operands, sharding.inputs, strict=True))) > len(forms):
        return None  # one tensor in two shardings is two local tensors with the same name
    operands = {
        name: replace(tensor, shape=form.local_shape(tensor.shape, mesh), pads=())
        for name, form in forms.items()
        for tensor in [graph.tensors[name]]
    }
    args, kwargs = localize(node, sharding, graph, mesh)
    return replace(node, args=args, kwargs=kwargs), operands


def _is_padded_lookup(node: Node, graph: Graph) -> bool:
    """Whether the node is an embedding with padded rows, whose result is masked."""
    return node.op == "aten.embedding.default" and bool(graph.tensors[node.operands[0]].pads)


def _renamed(arg: Arg, name: Callable[[str], str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(name(arg.name))
    if isinstance(arg, tuple):
        return tuple(_renamed(item, name) for item in arg)
    return arg


def _whatever_size(arg: Arg) -> str:
    """Format an argument without its size; booleans and non-numbers are kept."""
    if isinstance(arg, tuple):
        return f"({', '.join(map(_whatever_size, arg))})"
    if isinstance(arg, bool) or not isinstance(arg, (int, float)):
        return repr(arg)
    return "int" if isinstance(arg, int) else "float" if arg else "0.0"


def _grad(tensor: Tensor) -> str:
    return " grad" if tensor.differentiable else ""


@cache
def _source(op: str) -> str:
    return _torch.source_digest(op) or ""
