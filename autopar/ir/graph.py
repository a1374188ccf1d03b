"""The graph: a model's forward pass with its loss, as frozen nodes over named tensors.

Every node applies one operator and names its outputs; arguments refer to tensors by name.  It is
plain data without torch, prints as a program and has a digest, so a plan can say whom it belongs to.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
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

    `pads` say which part of the shape is padding; see `autopar.sharding.padding`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    differentiable: bool
    pads: tuple[Pad, ...] = field(default=(), repr=False)  # digests are of the shape

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
    """Where the user wrote it: module path, file, line and the line's text."""

    module: str = ""
    file: str = ""
    line: int = 0
    code: str = ""


@dataclass(frozen=True)
class Node:
    """One operator applied.  `op` is an overload name such as ``aten.linear.default``, or a leaf kind.

    A leaf (parameter, buffer, input, constant) has `target`: its name in the user's module, or the
    key of the input.  A constant carries its values in `args[0]`.  A tensor that comes from another
    stage is a leaf too: received.
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
        """Whether this node brings a tensor into the graph instead of computing one."""
        return self.op in LEAVES

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors it reads, in the order they appear, repetitions included."""
        return tuple(_refs((self.args, tuple(value for _, value in self.kwargs))))

    @property
    def path(self) -> str:
        """What constraints match: the user's name for it."""
        if self.is_leaf:
            return self.target
        return f"{self.origin.module}/{bare(self.op)}" if self.origin.module else bare(self.op)

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs)]
        call = f"{self.op}({', '.join([repr(self.target), *arguments] if self.is_leaf else arguments)})"
        names = ", ".join(tensor.name for tensor in self.outputs)
        types = ", ".join(f"{t.dtype}{list(t.shape)}" for t in self.outputs)
        return f"{names} = {call}  # {types}  {self.origin.module}"


def short(op: str) -> str:
    """``linear`` for ``aten.linear.default``; ``mine::linear`` for another library's operator.

    What is known of an operator is looked up by this name, and another library may use any word.
    """
    namespace, _, rest = op.partition(".")
    name = bare(op)
    return name if namespace in ("aten", "autopar") or not rest else f"{namespace}::{name}"


def bare(op: str) -> str:
    """``linear`` for ``aten.linear.default`` and for ``mine.linear.default``: a word for people."""
    return op.split(".")[1] if "." in op else op


RANDOM = ("dropout", "rand", "bernoulli", "multinomial", "normal", "uniform", "exponential")


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""They drop out between their layers."""


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
        return name.endswith("_random")  # a class may have any word in its name
    return not node.is_leaf and any(word in name for word in RANDOM)


def _refs(arg: Arg) -> Iterator[str]:
    if isinstance(arg, Ref):
        yield arg.name
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _refs(item)


@dataclass(frozen=True, slots=True)
class Saved:
    """What autograd keeps of one node for its backward: which operands, which outputs, what else.

    `extra_nbytes` counts storages that are neither (statistics, scores) on the whole, unsplit node;
    `like` has those of them that are split as an operand is (a copy, a mask in another dtype): its
    place, and bytes.
    `copied` are those of the operands of which it keeps a copy where they do not lie in row-major order.
    `forward_nbytes` and `backward_nbytes` are made and let go again while it runs.  When most is in use,
    `early_nbytes` of the gradients that came in and of what was kept are gone, if nobody else holds it.
    `shares` says of each output in which operand's storage it lies, `passes` of each operand in which
    output's gradient its own gradient lies; None, or nothing said: in a storage of its own.
    `views` are the operands whose gradient is a view, to which autograd never adds in place.
    `cached` are the outputs that selective recomputation keeps, `cached_nbytes` what it keeps besides.
    `spare` says of each output what its storage has beyond its elements, where any has: what is put
    into a copy of a view comes with a copy of all that the view looks into.
    `turned` are the outputs that do not lie in row-major order.
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
        """Whether nothing is kept."""
        return not (self.operands or self.outputs or self.extra_nbytes)


SAVES_NOTHING = Saved()
"""Of nodes of which nothing is said."""


@dataclass(frozen=True)
class Graph:
    """A forward pass: nodes in order, the loss, and the user's output object as named tensors.

    `aliases` maps a tied parameter's other names to the one name that is in the graph.
    `outputs` maps the path of each tensor in what the model returned to the tensor's name.
    """

    name: str
    nodes: tuple[Node, ...]
    loss: str | None
    outputs: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    mutations: tuple[tuple[str, str], ...] = field(default=())
    """(buffer's name in the user's module, tensor that is its new value)."""
    returns: str = ""
    """``module:class`` of what the model returned; informative, not part of the digest."""
    sends: tuple[str, ...] = ()
    """Tensors that later stages of a pipeline use."""

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by name."""
        return {tensor.name: tensor for node in self.nodes for tensor in node.outputs}

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that makes each tensor."""
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
        """Tensors that a gradient arrives at: not the values of a `topk` that is asked for places."""
        return self.reached_from(self.results)

    @cached_property
    def parameters_as_read(self) -> tuple[Node, ...]:
        """In the order in which the forward first reads them; those that it never reads come first."""
        at = {node.name: place for place, node in enumerate(self.nodes)}

        def first(leaf: Node) -> int:
            readers = self.consumers[leaf.outputs[0].name]
            return min((at[reader.name] for reader in readers), default=-1)

        return tuple(sorted(self.leaves("parameter"), key=first))

    def reached_from(self, names: Iterable[str]) -> frozenset[str]:
        """Tensors that gradients of these arrive at, themselves among them."""
        found = {name for name in names if self.tensors[name].differentiable}
        for node in reversed(self.nodes):
            if any(tensor.name in found for tensor in node.outputs):
                found |= {name for name in node.operands if self.tensors[name].differentiable}
        return frozenset(found)

    @cached_property
    def adding(self) -> Mapping[str, tuple[int, ...]]:
        """Nodes that go back after others have, by name: places of operands whose gradients theirs are
        added to.  What later stages send back is there first, as one gradient however many they are."""
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
        """Nodes of one leaf kind, in order."""
        return tuple(node for node in self.nodes if node.op == kind)

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the tensors that leave the graph: loss, outputs, new values of buffers, sent ones."""
        loss = () if self.loss is None else (self.loss,)
        rest = (*(name for _, name in self.outputs), *(name for _, name in self.mutations))
        return tuple(dict.fromkeys((*loss, *rest, *self.sends)))

    @property
    def is_stage(self) -> bool:
        """Whether this is a part of a model: something comes from other stages, or goes there."""
        return bool(self.sends or self.leaves("received"))

    @property
    def arguments(self) -> tuple[Node, ...]:
        """The leaves that a call brings: inputs, and what other stages send."""
        return (*self.leaves("input"), *self.leaves("received"))

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits that change when anything that is computed changes."""
        text = "\n".join(
            f"{n.name}={n.op}{n.target}{n.args!r}{n.kwargs!r}{n.outputs!r}" for n in self.nodes
        )
        ends = f"{self.loss}{self.outputs}{self.aliases}{self.mutations}"
        ends += str(self.sends) if self.sends else ""
        return hashlib.sha256((text + ends).encode()).hexdigest()[:12]

    def with_gradients(self, frozen: Collection[str] = ()) -> Graph:
        """The graph with gradients as if it were trained: floating parameters, but for the `frozen`, and
        what they reach."""
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
        """Raise `InternalError` unless names are unique and every tensor is made before it is read."""
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
