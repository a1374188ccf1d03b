"""Builds the solver's problem from a graph, its candidates and prices.

Variables: the sharding of each node, the storage of each parameter, and the recomputation mode of each
block that may be recomputed.  A tensor with several readers has one more variable: the sharding in
which it is materialised once for all of them, so that q, k and v share one all-gather.

Factors: the cost of converting a tensor between two decisions, the seconds that recomputation adds to
an operator, and the bytes that it saves.

Equal layers have equal tables.  Each table is computed once and shared as one object, by whose identity
the solver recognises equal tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autopar.cost.once import Once, signature
from autopar.cost.prices import Prices
from autopar.cost.routes import Closure, Routes
from autopar.ir.blocks import Block, blocks
from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved, Tensor
from autopar.ir.placement import Sharding
from autopar.ir.result_layout import leaving
from autopar.memory.shards import local_nbytes
from autopar.plans.grouping import companions
from autopar.sharding.draining import Draining
from autopar.sharding.reductions import KeptReductions
from autopar.sharding.space import Candidates, Priced
from autopar.sharding.states import StateCosts
from autopar.sharding.timed import TimedCosts
from autopar.sharding.uses import Forms, Tables, Uses
from autopar.solver.problem import Array, Factor, Problem, TimedBytes, Variable


def build(
    graph: Graph,
    candidates: Candidates,
    prices: Prices,
    routes: Routes,
    *,
    saved: Mapping[str, Saved],
    once: Once,
) -> Priced:
    """Price every candidate and every conversion between candidates.

    `once` caches tables for this graph and these prices; problems with other recomputation modes may
    share it.
    """
    builder = _Builder(graph, candidates, prices, routes, saved, once)
    if candidates.recompute != ("none",):
        for block in blocks(graph):
            builder.add_block(block)
    for node in graph.nodes:
        builder.add_node(node)
    names = tuple(variable.name for variable in builder.variables)
    for name in graph.tensors:
        builder.add_conversions(name)
    problem = Problem(tuple(builder.variables), tuple(builder.factors))
    return Priced(problem, names, candidates)


def required(tensor: Tensor, graph: Graph, made: Sharding) -> Sharding | None:
    """Return the sharding in which a result must leave, given how it is made; None for other tensors."""
    return leaving(tensor, graph, made) if tensor.name in graph.results else None


class _Builder:
    def __init__(
        self,
        graph: Graph,
        candidates: Candidates,
        prices: Prices,
        routes: Routes,
        saved: Mapping[str, Saved],
        once: Once,
    ) -> None:
        self.graph, self.candidates, self.prices, self.routes = graph, candidates, prices, routes
        self.saved = saved
        self.variables: list[Variable] = []
        self.factors: list[Factor] = []
        self._index: dict[str, int] = {}
        self._once = once
        self._costs = StateCosts(graph, candidates, prices, routes, saved, self._once)
        self._together = companions(graph)
        self._uses = Uses(candidates, prices, self._together, once)
        self._timed = TimedCosts(graph, candidates, prices, saved, once)
        self._reductions = KeptReductions(graph, candidates, prices, saved, self._timed, once)
        self._draining = Draining(self._timed.intervals, prices, once)
        self._kept: set[str] = set()
        self._block_of: dict[str, int] = {}
        """For each operator that a recomputation would run again: the variable of its block."""

    def add_block(self, block: Block) -> None:
        """Add a variable for the block's recomputation mode."""
        index, modes = len(self.variables), self.candidates.recompute
        zeros = self._once(lambda: np.zeros(len(modes)), "modes", also=modes)
        self.variables.append(Variable(block.path, zeros, zeros))
        self._block_of |= {node.name: index for node in block.run_again(self.saved)}
        self._timed.add_block(block)
        self._reductions.add_block(block)

    def add_node(self, node: Node) -> None:
        """Add a variable for the node's sharding, or for the parameter's storage."""
        self._index[node.name] = len(self.variables)
        if node.op == "parameter":
            costs = self._costs.of_storages(node)
            storages = self.candidates.parameters[node.name]
            timed = self._draining.of_storages(node, storages, costs[1])
            self.variables.append(Variable(node.name, *costs, timed=timed))
            return
        seconds, kept, uncovered = self._costs.of_operator(node, self._newly_kept(node))
        nothing, timed_alone = self._zeros(seconds), self._timed.of_operator(node)
        if node.name not in self._block_of:
            made = Variable(node.name, seconds, nothing, uncovered, kept, timed_alone)
            self.variables.append(made)
            return
        self.variables.append(Variable(node.name, seconds, nothing, uncovered, timed=timed_alone))
        scope = (self._index[node.name], self._block_of[node.name])
        reduced = self._reductions.places(node)
        again, kept, covers = self._costs.of_recomputation(node, kept, reduced)
        timed_again = self._timed.of_recomputation(node, self._costs.cached(node, reduced))
        self.factors.append(Factor(scope, again, None, covers, kept, timed_again))

    def _newly_kept(self, node: Node) -> tuple[int, ...]:
        """Return positions of operands and outputs that no earlier node keeps for the backward."""
        saved = self.saved.get(node.name, SAVES_NOTHING)
        outputs = (len(node.operands) + i for i in saved.outputs)
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        fresh = []
        for place in (*saved.operands, *outputs):
            name = names[place]
            if name not in self._kept and self.graph.producer[name].op != "parameter":
                self._kept.add(name)
                fresh.append(place)
        return tuple(fresh)

    def add_conversions(self, name: str) -> None:
        """Add factors between the decision that makes a tensor and those that read it."""
        tensor = self.graph.tensors[name]
        producer = self.graph.producer[name]
        made = self._made_forms(producer, name)
        readers = [
            (node, place)
            for node in self.graph.consumers[name]
            for place, operand in enumerate(node.operands)
            if operand == name
        ]
        wanted = [self._read_forms(node, place) for node, place in readers]
        ends = self._required_forms(tensor, made)
        closure = self._closure(tensor, producer, made, ends, wanted)
        source = self._index[producer.name]
        if any(end is not None for end in ends):
            self._require(source, closure, made, ends)
        if producer.op == "parameter":
            self._use(producer, closure, readers, wanted)
            return
        # Slices of a tensor without gradient whose sharding is known are nearly free.  A shared form
        # would save nothing, and would couple all layers that read a mask or a rotary table.
        is_fixed = len(set(made)) == 1 and not tensor.differentiable
        if len(readers) > 1 and not is_fixed and self._undecided(made, wanted):
            source, made = self._materialise(tensor, closure, source, made, wanted, readers)
        elif readers and self._reductions.keeps(tensor):
            (node, _), read = readers.pop(0), wanted.pop(0)
            scope = (source, self._index[node.name], self._block_of[producer.name])
            self.factors.append(self._reductions.factor(scope, tensor, [node], closure, made, read))
        for (node, _), read in zip(readers, wanted, strict=True):
            self._convert(source, node, tensor, closure, made, read)
        self._hold(tensor, producer)

    def _required_forms(self, tensor: Tensor, made: Forms) -> tuple[Sharding | None, ...]:
        results = self.graph.results
        if tensor.name not in results:
            return (None,) * len(made)
        return tuple(required(tensor, self.graph, form) for form in made)

    def _closure(
        self,
        tensor: Tensor,
        producer: Node,
        made: Forms,
        ends: tuple[Sharding | None, ...],
        wanted: list[Forms],
    ) -> Closure:
        together = self._together.get(tensor.name, 0)
        finals = tuple(dict.fromkeys(form for form in ends if form is not None))

        def closed() -> Closure:
            forms = {*made, *finals, *(form for option in wanted for form in option)}
            return self.routes.closure(tensor, forms, together)

        also = (signature(tensor), finals, together)
        return self._once(closed, "closure", made, *wanted, also=also)

    def _undecided(self, made: Forms, wanted: list[Forms]) -> bool:
        return len(made) > 1 or any(len(set(forms)) > 1 for forms in wanted)

    def _made_forms(self, producer: Node, name: str) -> Forms:
        if producer.op == "parameter":
            return self._uses.leaves(producer)
        place = [tensor.name for tensor in producer.outputs].index(name)
        options = self.candidates.operators[producer.name]
        return self._once(
            lambda: tuple(o.outputs[place] for o in options), "made", options, also=place
        )

    def _read_forms(self, node: Node, place: int) -> Forms:
        options = self.candidates.operators[node.name]
        return self._once(
            lambda: tuple(o.inputs[place] for o in options), "read", options, also=place
        )

    def _require(
        self, source: int, closure: Closure, made: Forms, ends: tuple[Sharding | None, ...]
    ) -> None:
        seconds = [
            0.0 if end is None else closure.cost(form, end)
            for form, end in zip(made, ends, strict=True)
        ]
        self.factors.append(Factor((source,), np.array(seconds)))

    def _materialise(
        self,
        tensor: Tensor,
        closure: Closure,
        source: int,
        made: Forms,
        wanted: list[Forms],
        readers: list[tuple[Node, int]],
    ) -> tuple[int, Forms]:
        """Add a variable for the sharding that all readers share; return its index and its shardings."""
        forms = self._shared_forms(made, wanted)
        shared, block = self._add_form(tensor, forms), self._common_block(readers)
        nodes = [node for node, _ in readers]
        if self._reductions.keeps(tensor):
            scope = (source, shared, self._block_of[self.graph.producer[tensor.name].name])
            self.factors.append(self._reductions.factor(scope, tensor, nodes, closure, made, forms))
            return shared, forms
        timed = self._timed.of_conversion(tensor, nodes, closure, made, forms)
        self._add_table((source, shared), block, tensor, closure, made, forms, timed)
        return shared, forms

    def _shared_forms(self, made: Forms, wanted: list[Forms]) -> Forms:
        return self._once(
            lambda: tuple(dict.fromkeys((*made, *(f for option in wanted for f in option)))),
            "shared",
            made,
            *wanted,
        )

    def _add_form(self, tensor: Tensor, forms: Forms) -> int:
        zeros = self._once(lambda: np.zeros(len(forms)), "zeros", forms)
        self.variables.append(Variable(f"form of {tensor.name}", zeros, zeros))
        return len(self.variables) - 1

    def _convert(
        self,
        source: int,
        reader: Node,
        tensor: Tensor,
        closure: Closure,
        made: Forms,
        forms: Forms,
    ) -> None:
        ends, block = (source, self._index[reader.name]), self._block_of.get(reader.name)
        timed = self._timed.of_conversion(tensor, [reader], closure, made, forms)
        self._add_table(ends, block, tensor, closure, made, forms, timed)

    def _use(
        self, weight: Node, closure: Closure, readers: list[tuple[Node, int]], wanted: list[Forms]
    ) -> None:
        """Add the gathers of a weight at its uses; several uses may share one gathered copy."""
        source = self._index[weight.name]
        if len(readers) > 1:
            self._share(weight, closure, readers, wanted)
            return
        for (node, _), forms in zip(readers, wanted, strict=True):
            block = self._block_of.get(node.name)
            tables = self._uses.tables(weight, closure, forms, block is not None)
            timed = self._timed_use(weight, [node], closure, forms, block)
            self._add_use((source, self._index[node.name]), block, tables, timed)

    def _share(
        self, weight: Node, closure: Closure, readers: list[tuple[Node, int]], wanted: list[Forms]
    ) -> None:
        """Add a variable for the sharding that readers share; other shardings cost their own gather."""
        source = self._index[weight.name]
        forms = self._shared_forms((), wanted)
        shared = self._add_form(weight.outputs[0], forms)
        block = self._common_block(readers)
        tables = self._uses.tables(weight, closure, forms, block is not None)
        timed = self._timed_use(weight, [node for node, _ in readers], closure, forms, block)
        self._add_use((source, shared), block, tables, timed)
        for (node, _), read in zip(readers, wanted, strict=True):
            block = self._block_of.get(node.name)
            in_block = block is not None
            tables = self._uses.beside(weight, closure, forms, read, in_block)
            leaves = self._uses.leaves(weight)
            timed = self._timed.of_lone_use(weight, node, closure, leaves, forms, read, in_block)
            self._add_use((source, shared, self._index[node.name]), block, tables, timed)

    def _timed_use(
        self, weight: Node, readers: list[Node], closure: Closure, forms: Forms, block: int | None
    ) -> tuple[TimedBytes, ...]:
        leaves = self._uses.leaves(weight)
        return self._timed.of_use(weight, readers, closure, leaves, forms, block is not None)

    def _add_use(
        self,
        scope: tuple[int, ...],
        block: int | None,
        tables: Tables,
        timed: tuple[TimedBytes, ...],
    ) -> None:
        seconds, nbytes = tables
        scope = scope if block is None else (*scope, block)
        self.factors.append(Factor(scope, seconds, nbytes, timed=timed))

    def _add_table(
        self,
        ends: tuple[int, int],
        block: int | None,
        tensor: Tensor,
        closure: Closure,
        made: Forms,
        forms: Forms,
        timed: tuple[TimedBytes, ...],
    ) -> None:
        """Add a conversion's costs; within a block, for each recomputation mode if they differ."""
        modes = self.candidates.recompute

        def once() -> Array:
            return closure.matrix(made, forms)

        def each_mode() -> Array | None:
            forward = closure.along(lambda step: self.prices.forward(step, tensor), made, forms)
            if not forward.any():
                return None
            repeated = np.array([mode != "none" for mode in modes])
            more: Array = forward[..., None] * repeated
            return closure.matrix(made, forms)[..., None] + more

        every = None
        if block is not None:
            every = self._once(each_mode, "tables", closure, made, forms, also=modes)
        if block is None or every is None:
            seconds = self._once(once, "table", closure, made, forms)
            self.factors.append(Factor(ends, seconds, timed=timed))
        else:
            timed = tuple(replace(each, nbytes=self._in_each_mode(each.nbytes)) for each in timed)
            self.factors.append(Factor((*ends, block), every, timed=timed))

    def _in_each_mode(self, table: Array) -> Array:
        count = len(self.candidates.recompute)
        return self._once(lambda: np.stack([table] * count, axis=-1), "modes of", table, also=count)

    def _common_block(self, readers: list[tuple[Node, int]]) -> int | None:
        """Return the variable of the block that all readers are in, where a shared form is made."""
        found = {self._block_of.get(node.name) for node, _ in readers}
        return found.pop() if len(found) == 1 else None

    def _hold(self, tensor: Tensor, producer: Node) -> None:
        """Add the bytes of a tensor that recomputed blocks keep because they read it from outside."""
        if producer.is_leaf or not tensor.differentiable:
            return
        here = self._block_of.get(producer.name)
        readers = {self._block_of.get(node.name) for node in self.graph.consumers[tensor.name]}
        for block in sorted(index for index in readers if index is not None and index != here):
            made = self._made_forms(producer, tensor.name)

            def held(made: Forms = made) -> Array:
                nbytes = [local_nbytes(tensor, form, self.prices.mesh) for form in made]
                repeated = [mode != "none" for mode in self.candidates.recompute]
                return np.outer(nbytes, repeated).astype(float)

            also = (signature(tensor), self.candidates.recompute)
            kept = self._once(held, "held", made, also=also)
            reader = next(
                node
                for node in self.graph.consumers[tensor.name]
                if self._block_of.get(node.name) == block
            )
            timed = self._timed.of_held(tensor, reader, kept)
            scope = (self._index[producer.name], block)
            self.factors.append(Factor(scope, self._zeros(kept), kept=kept, timed=timed))

    def _zeros(self, like: Array) -> Array:
        return self._once(lambda: np.zeros(like.shape), "zeros", like)
