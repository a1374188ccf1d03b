"""Rewrites a graph with some dims padded: the same loss, outputs and gradients, with larger tensors.

Parameters are padded with zeros when they enter the step, and inputs with copies of their last entry.
If an operator would see the padding, it is overwritten first: ``where(real, x, 0)`` before a sum, the
ignored index for targets.  The operators stay those of the original graph, so all later stages (rules,
prices, emitted code) depend on the padding only through the sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autopar.errors import PaddingError
from autopar.ir.graph import Arg, Graph, Node, Ref, Tensor
from autopar.ir.pads import Pad, padded_shape
from autopar.plans.record import Padding
from autopar.rules.declare import rule_of
from autopar.rules.instance import Instance
from autopar.rules.local import with_sizes
from autopar.rules.padding import ignored_index, singular_places, target_place
from autopar.sharding.padding.spread import Pads, Touch, spread, touches
from autopar.sharding.padding.states import State, check_gradients, made_state, to_be_zeroed


def padded(graph: Graph, padding: Iterable[Padding]) -> Graph:
    """Return the graph with these parameters and inputs padded, and all dims that share their factors.

    Raises `PaddingError` if an operator cannot be prevented from seeing the padding.
    """
    wanted = tuple(padding)
    if not wanted:
        return graph
    leaf = {node.target: node for node in graph.nodes if node.op in ("parameter", "input")}
    seeds: dict[str, tuple[Pad, ...]] = {}
    for one in wanted:
        if one.leaf not in leaf:
            raise PaddingError(f"{graph.name} has no parameter or input {one.leaf!r} to pad.")
        tensor = leaf[one.leaf].outputs[0]
        if one.pad.dim >= len(tensor.shape) or tensor.shape[one.pad.dim] != one.pad.whole:
            raise PaddingError(f"{one.leaf} of shape {list(tensor.shape)} has no {one.pad}.")
        seeds[tensor.name] = (*seeds.get(tensor.name, ()), one.pad)
    return _Rewriter(graph, spread(graph, seeds)).run()


def padding_of(graph: Graph) -> tuple[Padding, ...]:
    """Return the padding of the graph's parameters and inputs, from which `padded` makes the graph."""
    return tuple(
        Padding(node.target, pad)
        for node in graph.nodes
        if node.op in ("parameter", "input")
        for pad in node.outputs[0].pads
    )


class _Rewriter:
    def __init__(self, graph: Graph, pads: Pads) -> None:
        self._graph, self._pads = graph, pads
        self._state: dict[tuple[str, int], State] = {}
        self._touched: dict[str, list[tuple[Touch, Instance]]] = {}
        self._first: list[Node] = []
        self._nodes: list[Node] = []
        self._made: dict[str, Tensor] = {}
        self._real: dict[object, str] = {}
        self._masked: dict[object, str] = {}
        self._masks: list[str] = []
        self._names = {*graph.tensors, *(node.name for node in graph.nodes)}

    def run(self) -> Graph:
        """Return the rewritten graph: pad leaves and operators in order, and slice the outputs."""
        for node in self._graph.nodes:
            if node.is_leaf:
                self._append(self._leaf(node))
            else:
                self._operator(node)
        outputs = tuple((path, self._cut(name)) for path, name in self._graph.outputs)
        made = replace(self._graph, nodes=(*self._first, *self._nodes), outputs=outputs)
        made.check()
        check_gradients(made, self._touched, self._state_of, self._masks)
        return made

    def _append(self, node: Node) -> None:
        self._nodes.append(node)
        self._made |= {tensor.name: tensor for tensor in node.outputs}

    def _state_of(self, name: str, dim: int) -> State:
        return self._state[name, dim]

    def _tensor(self, tensor: Tensor) -> Tensor:
        pads = tuple(pad for _, pad in sorted(self._pads.get(tensor.name, {}).items()))
        return replace(tensor, shape=padded_shape(tensor.shape, pads), pads=pads)

    def _leaf(self, node: Node) -> Node:
        made = self._tensor(node.outputs[0])
        for pad in made.pads:
            self._state[made.name, pad.dim] = "zero" if node.op == "parameter" else "copy"
        return replace(node, outputs=(made,))

    def _operator(self, node: Node) -> None:
        found = tuple(touches(node, self._graph, self._pads))
        if not found:
            self._append(node)
            return
        instance = rule_of(node, self._graph)
        reads = list(node.operands)
        counted: tuple[Arg, ...] = ()
        for touch in found:
            for place, fill in self._fills(node, instance, touch, reads):
                reads[place] = self._mask(node, reads[place], touch.read[place], fill)
            if touch.way == "counted":
                counted = (self._entries(touch, "Classes"),)
            if touch.way == "unread":
                self._entries(touch, "Rows of a table")
        outputs = tuple(map(self._tensor, node.outputs))
        args, kwargs = with_sizes(node, tuple(tensor.shape for tensor in outputs))
        names = iter(reads)
        args, kwargs = _reading(args, names), tuple((k, _put(v, names)) for k, v in kwargs)
        if counted:
            args = (*args, *(None, -100, 0.0)[len(args) - 2 :], *counted)
        self._append(replace(node, args=args, kwargs=kwargs, outputs=outputs))
        self._touched[node.name] = [(touch, instance) for touch in found]
        for touch in found:

            def state(place: int, touch: Touch = touch) -> State:
                return self._state[reads[place], touch.read[place].dim]

            for place, pad in touch.made.items():
                key = (node.outputs[place].name, pad.dim)
                self._state[key] = made_state(node, instance, touch, state)

    def _fills(
        self, node: Node, instance: Instance, touch: Touch, reads: list[str]
    ) -> list[tuple[int, int | float]]:
        """Return the operands whose padding must be overwritten, with the values."""

        def state(place: int) -> State:
            return self._state[reads[place], touch.read[place].dim]

        if touch.way == "zeros":
            return [(place, 0) for place in to_be_zeroed(instance, touch, state)]
        if touch.way == "alike":
            return [(place, 0) for place in touch.read if state(place) != "zero"]
        if touch.way == "ignored":
            return [(target_place(node), ignored_index(node))]
        if touch.way == "regular":
            singular = (place for place in singular_places(node) if place in touch.read)
            wrong = [place for place in singular if state(place) != "copy"]
            if wrong:
                raise PaddingError(
                    f"{node.path} ({node.op}) may meet no number in the padding but true entries, "
                    f"and the padding of {reads[wrong[0]]} holds others."
                )
        return []

    def _entries(self, touch: Touch, what: str) -> int:
        """Return the number of true entries, which indices refer to; they must come first."""
        pad = touch.read[0]
        if not pad.is_plain:
            raise PaddingError(f"{what} are padded at their end only, not {pad}.")
        return pad.size

    def _mask(self, reader: Node, name: str, pad: Pad, fill: int | float) -> str:
        """Return the name of ``where(real, x, fill)``, made once for all readers in one module."""
        key = (name, pad, fill, reader.origin.module)
        if key in self._masked:
            return self._masked[key]
        source = self._made[name]
        made = replace(source, name=self._fresh(f"{name}_kept"))
        real = self._real_entries(pad, len(source.shape))
        value = float(fill) if "float" in source.dtype else fill
        args = (Ref(real), Ref(name), value)
        self._append(
            Node(made.name, "aten.where.ScalarOther", args, (), (made,), "", reader.origin)
        )
        self._masks.append(made.name)
        for other in source.pads:
            before = self._state[name, other.dim]
            keeps = before != "zero" or fill == 0
            self._state[made.name, other.dim] = before if keeps else "finite"
        self._state[made.name, pad.dim] = "zero" if fill == 0 else "finite"
        self._masked[key] = made.name
        return made.name

    def _real_entries(self, pad: Pad, rank: int) -> str:
        """Return the name of a mask of a dim's true entries, shaped to broadcast over later dims."""
        behind = rank - 1 - pad.dim
        key = (pad.at(0), behind)
        if key in self._real:
            return self._real[key]
        stem = f"real_{pad.size}_of_{pad.to}"
        counts = self._add(stem, "aten.arange.default", (pad.to,), (pad.to,), "int64")
        here = self._add(stem, "aten.lt.Scalar", (Ref(counts), pad.size), (pad.to,), "bool")
        if not pad.is_plain:
            apart = (1, pad.to, 1)
            here = self._add(stem, "aten.reshape.default", (Ref(here), apart), apart, "bool")
            wide = (pad.before, pad.to, pad.after)
            here = self._add(stem, "aten.expand.default", (Ref(here), wide), wide, "bool")
        shape = (pad.padded, *(1,) * behind)
        if behind or not pad.is_plain:
            here = self._add(stem, "aten.reshape.default", (Ref(here), shape), shape, "bool")
        self._real[key] = here
        return here

    def _add(
        self, stem: str, op: str, args: tuple[Arg, ...], shape: tuple[int, ...], dtype: str
    ) -> str:
        """Add a node in front of all others, and return its tensor's name."""
        tensor = Tensor(self._fresh(stem), shape, dtype, False)
        self._first.append(Node(tensor.name, op, args, (), (tensor,)))
        return tensor.name

    def _cut(self, name: str) -> str:
        """Return the name of a result without its padding."""
        for pad in self._pads.get(name, {}).values():
            if not pad.is_plain:
                raise PaddingError(f"The output {name} would be padded inside a dim: {pad}.")
            source = self._made[name]
            sizes = list(source.shape)
            sizes[pad.dim] = pad.size
            left = tuple(other for other in source.pads if other != pad)
            made = replace(source, name=self._fresh(f"{name}_cut"), shape=tuple(sizes), pads=left)
            args = (Ref(name), pad.dim, 0, pad.size)
            self._append(Node(made.name, "aten.slice.Tensor", args, (), (made,)))
            name = made.name
        return name

    def _fresh(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name


def _reading(args: tuple[Arg, ...], names: Iterable[str]) -> tuple[Arg, ...]:
    """Return the arguments with their tensors replaced by those called `names`, in order."""
    return tuple(_put(arg, names) for arg in args)


def _put(arg: Arg, names: Iterable[str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(next(iter(names)))
    return _reading(arg, names) if isinstance(arg, tuple) else arg


__all__ = ["padded", "padding_of"]
