"""The graph: a model's forward pass with its loss, as frozen nodes over named tensors.

Every node applies one operator and names its outputs; arguments refer to tensors by name.  A graph is
plain data without torch.  It prints as a program, and its digest identifies the model of a plan.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal

from autopar.errors import InternalError
from autopar.ir.pads import Pad

ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
LeafKind = Literal["parameter", "buffer", "input", "constant", "received"]
LEAVES: tuple[LeafKind, ...] = ("parameter", "buffer", "input", "constant", "received")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor: global shape, dtype, and whether a gradient flows through it.

    `pads` lists the padded parts of the shape; see `autopar.sharding.padding`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    differentiable: bool
    pads: tuple[Pad, ...] = field(default=(), repr=False)  # digests cover only the shape

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.itemsize

    def __str__(self) -> str:
        mark = "" if self.differentiable else " no grad"
        return f"{self.name}: {self.dtype}{list(self.shape)}{mark}"


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a tensor."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DType:
    """An argument that is a dtype."""

    name: str

    def __repr__(self) -> str:
        return f"torch.{self.name}"


Arg = Ref | DType | int | float | bool | str | None | tuple["Arg", ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Source location of a node in the user's code: module path, file, line and the line's text."""

    module: str = ""
    file: str = ""
    line: int = 0
    code: str = ""


@dataclass(frozen=True)
class Node:
    """An operator call or a leaf.

    `op` is an overload name such as ``aten.linear.default``, or a leaf kind.  The `target` of a leaf is
    its name in the user's module, or the key of the input.  A constant stores its values in `args[0]`.
    A tensor that comes from another pipeline stage is a leaf of kind ``received``.
    """

    name: str
    op: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[Tensor, ...] = ()
    target: str = ""
    origin: Origin = Origin()

    @property
    def is_leaf(self) -> bool:
        """Whether this node introduces a tensor instead of computing one."""
        return self.op in LEAVES

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors the node reads, in argument order, with repetitions."""
        return tuple(_refs((self.args, tuple(value for _, value in self.kwargs))))

    @property
    def path(self) -> str:
        """The node's name in the user's terms, against which constraints are matched."""
        if self.is_leaf:
            return self.target
        return f"{self.origin.module}/{bare(self.op)}" if self.origin.module else bare(self.op)

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs)]
        call = f"{self.op}({', '.join([repr(self.target), *arguments] if self.is_leaf else arguments)})"
        names = ", ".join(tensor.name for tensor in self.outputs)
        types = ", ".join(f"{t.dtype}{list(t.shape)}" for t in self.outputs)
        return f"{names} = {call}  # {types}  {self.origin.module}"


@cache
def short(op: str) -> str:
    """Return ``linear`` for ``aten.linear.default``, ``mine::linear`` for another library's operator.

    Properties of operators are looked up by this name, in which libraries are kept apart.
    """
    namespace, _, rest = op.partition(".")
    name = bare(op)
    return name if namespace in ("aten", "autopar") or not rest else f"{namespace}::{name}"


def bare(op: str) -> str:
    """Return ``linear`` for ``aten.linear.default`` and ``mine.linear.default``; for display only."""
    return op.split(".")[1] if "." in op else op


RANDOM = ("dropout", "rand", "bernoulli", "multinomial", "normal", "uniform", "exponential")


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operators that apply dropout between their layers."""


def is_random(node: Node) -> bool:
    """Whether the operator draws random numbers."""
    name = short(node.op)
    if name == "scaled_dot_product_attention":
        chance = node.args[4] if len(node.args) > 4 else dict(node.kwargs).get("dropout_p", 0.0)
        return chance != 0.0
    if name in RECURRENT:
        first = 6 if node.op.endswith(".data") else 5
        chance, train = node.args[first : first + 2]
        return bool(train) and chance != 0.0
    if node.op.startswith("autopar_functions."):
        return name.endswith("_random")  # the class name may contain any of the words in RANDOM
    return not node.is_leaf and any(word in name for word in RANDOM)


def _refs(arg: Arg) -> Iterator[str]:
    if isinstance(arg, Ref):
        yield arg.name
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _refs(item)


@dataclass(frozen=True, slots=True)
class Saved:
    """What autograd saves of one node for its backward, and the node's other memory behaviour.

    Operands and outputs are given by position, sizes in bytes of the unsharded node.

    operands, outputs   saved for the backward
    extra_nbytes   saved storages that are neither operands nor outputs (statistics, scores)
    like    the part of `extra_nbytes` that is sharded as an operand is (a copy, a mask in another
            dtype): (operand, bytes)
    copied  saved operands that are copied if they are not in row-major order
    forward_nbytes, backward_nbytes   temporary storage allocated and freed within the node
    early_nbytes   incoming gradients and saved tensors freed before the peak, unless held elsewhere
    shares  for each output, the operand whose storage it shares
    passes  for each operand, the output whose gradient's storage its own gradient shares; in both, None
            or a missing entry means a storage of its own
    views   operands whose gradient is a view, into which autograd never accumulates in place
    cached  outputs that selective recomputation keeps; `cached_nbytes` is what it keeps in addition
    spare   for each output, the bytes of its storage beyond its elements (a write into the copy of a
            view copies the whole storage behind it; a loss may share one with its terms).  Empty if none
    turned  outputs that are not in row-major order
    """

    operands: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    extra_nbytes: int = 0
    like: tuple[tuple[int, int], ...] = ()
    copied: tuple[int, ...] = ()
    forward_nbytes: int = 0
    backward_nbytes: int = 0
    early_nbytes: int = 0
    shares: tuple[int | None, ...] = ()
    passes: tuple[int | None, ...] = ()
    views: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()
    cached_nbytes: int = 0
    spare: tuple[int, ...] = ()
    turned: tuple[int, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is saved for the backward."""
        return not (self.operands or self.outputs or self.extra_nbytes)


SAVES_NOTHING = Saved()
"""The default for nodes without an entry."""


@dataclass(frozen=True)
class Graph:
    """A forward pass: nodes in execution order, the loss, and the model's return value as named tensors.

    `aliases` maps the other names of a tied parameter to its name in the graph.
    `outputs` maps the path of each tensor in the return value to the tensor's name.
    """

    name: str
    nodes: tuple[Node, ...]
    loss: str | None
    outputs: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    mutations: tuple[tuple[str, str], ...] = field(default=())
    """(buffer's name in the user's module, name of the tensor that is its new value)."""
    returns: str = ""
    """``module:class`` of the model's return value; informative, not part of the digest."""
    sends: tuple[str, ...] = ()
    """Tensors sent to later pipeline stages."""

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by name."""
        return {tensor.name: tensor for node in self.nodes for tensor in node.outputs}

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that produces each tensor."""
        return {tensor.name: node for node in self.nodes for tensor in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each tensor."""
        readers: dict[str, dict[str, Node]] = {name: {} for name in self.tensors}
        for node in self.nodes:
            for name in node.operands:
                readers[name][node.name] = node
        return {name: tuple(nodes.values()) for name, nodes in readers.items()}

    @cached_property
    def node(self) -> Mapping[str, Node]:
        """Every node by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def reached(self) -> frozenset[str]:
        """Tensors that receive a gradient from the results.

        The values of a `topk` of which only the indices are used receive none.
        """
        return self.reached_from(self.results)

    @cached_property
    def parameters_as_read(self) -> tuple[Node, ...]:
        """Parameters in the order in which the forward first reads them; unread ones come first."""
        at = {node.name: place for place, node in enumerate(self.nodes)}

        def first(leaf: Node) -> int:
            readers = self.consumers[leaf.outputs[0].name]
            return min((at[reader.name] for reader in readers), default=-1)

        return tuple(sorted(self.leaves("parameter"), key=first))

    def reached_from(self, names: Iterable[str]) -> frozenset[str]:
        """Return the tensors that receive a gradient from the named ones, including those."""
        found = {name for name in names if self.tensors[name].differentiable}
        for node in reversed(self.nodes):
            if any(tensor.name in found for tensor in node.outputs):
                found |= {name for name in node.operands if self.tensors[name].differentiable}
        return frozenset(found)

    @cached_property
    def adding(self) -> Mapping[str, tuple[int, ...]]:
        """For each node of the backward, the operands whose gradient is added to an existing one.

        Maps node names, in backward order, to operand positions.  Gradients from later stages arrive
        first, and count as one gradient however many stages send them.
        """
        arrived = {name for name in self.sends if name in self.reached}
        found: dict[str, tuple[int, ...]] = {}
        for node in reversed(self.nodes):
            if not any(tensor.name in self.reached for tensor in node.outputs):
                continue
            places = []
            for place, name in enumerate(node.operands):
                if name in arrived:
                    places.append(place)
                elif name in self.reached:
                    arrived.add(name)
            found[node.name] = tuple(places)
        return found

    def leaves(self, kind: LeafKind) -> tuple[Node, ...]:
        """Return the nodes of one leaf kind, in order."""
        return tuple(node for node in self.nodes if node.op == kind)

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the tensors that leave the graph: loss, outputs, new buffer values, sent tensors."""
        loss = () if self.loss is None else (self.loss,)
        rest = (*(name for _, name in self.outputs), *(name for _, name in self.mutations))
        return tuple(dict.fromkeys((*loss, *rest, *self.sends)))

    @property
    def is_stage(self) -> bool:
        """Whether this is one pipeline stage: it receives tensors from other stages or sends some."""
        return bool(self.sends or self.leaves("received"))

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The leaves supplied by each call: inputs and tensors received from other stages."""
        return (*self.leaves("input"), *self.leaves("received"))

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits that change if the computation changes."""
        text = "\n".join(
            f"{n.name}={n.op}{n.target}{n.args!r}{n.kwargs!r}{n.outputs!r}" for n in self.nodes
        )
        ends = f"{self.loss}{self.outputs}{self.aliases}{self.mutations}"
        ends += str(self.sends) if self.sends else ""
        return hashlib.sha256((text + ends).encode()).hexdigest()[:12]

    def with_gradients(self, frozen: Collection[str] = ()) -> Graph:
        """Return the graph with gradient flags as in training.

        All floating-point parameters that are not in `frozen` require gradients, and so do the
        floating-point tensors computed from them.
        """
        flows: set[str] = set()
        nodes = []
        for node in self.nodes:
            trained = node.op == "parameter" and node.target not in frozen
            reached = trained or any(name in flows for name in node.operands)
            outputs = tuple(
                replace(t, differentiable=reached and "float" in t.dtype) for t in node.outputs
            )
            flows |= {tensor.name for tensor in outputs if tensor.differentiable}
            nodes.append(replace(node, outputs=outputs))
        return replace(self, nodes=tuple(nodes))

    def __str__(self) -> str:
        lines = [f"graph {self.name}:", *(f"    {node}" for node in self.nodes)]
        return "\n".join([*lines, f"    return {', '.join(self.results)}"])

    def check(self) -> None:
        """Raise `InternalError` unless the graph is well formed.

        Names are unique, tensors are produced before they are read, dtypes are known, and leaves have
        targets.
        """
        made: set[str] = set()
        for index, node in enumerate(self.nodes):
            for name in node.operands:
                if name not in made:
                    raise InternalError(
                        f"{name!r} is read before it is made:\n{self._around(index)}"
                    )
            for tensor in node.outputs:
                if tensor.name in made:
                    raise InternalError(f"{tensor.name!r} is made twice:\n{self._around(index)}")
                if tensor.dtype not in ITEMSIZE:
                    raise InternalError(f"{tensor} has an unknown dtype:\n{self._around(index)}")
                made.add(tensor.name)
            if node.is_leaf and not node.target:
                raise InternalError(f"leaf without a target:\n{self._around(index)}")
        for name in self.results:
            if name not in made:
                raise InternalError(f"result {name!r} is never made.")

    def _around(self, index: int) -> str:
        first = max(0, index - 5)
        window = self.nodes[first : index + 5]
        return "\n".join(
            f"{'>' if first + i == index else ' '} {node}" for i, node in enumerate(window)
        )
