"""The bytes of decisions over time: what a microbatch needs while it runs, for the solver.

Each table of the problem gets what its decisions alone say.  An operator has what it keeps for the
backward, its outputs until then, gradients, and its own working memory.  A conversion has what it
makes, and a gathered weight its copies and their gradients.  The memory of a finished plan
(`autopar.memory`) is more precise: it knows which conversions share a message, and which tensors are
kept in two shardings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autopar.cost.once import Once, signature
from autopar.cost.prices import Prices
from autopar.cost.routes import Closure
from autopar.ir.blocks import Block
from autopar.ir.conversion import Step
from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved, Tensor
from autopar.ir.placement import S, Sharding, Type
from autopar.memory.intervals import Intervals, Rerun
from autopar.memory.shards import extra_nbytes, local_nbytes, split
from autopar.plans.decisions import OpSharding
from autopar.rules import rule_of, variant_memory
from autopar.sharding.space import Candidates
from autopar.sharding.uses import Forms
from autopar.solver.problem import Array, TimedBytes

Timed = tuple[TimedBytes, ...]


def intervals_of(graph: Graph, saved: Mapping[str, Saved], once: Once) -> Intervals:
    """Return when the tensors of a graph are in use; equal requests get one object."""
    return once(lambda: Intervals(graph, saved), "intervals", graph, saved)


class TimedCosts:
    """The bytes over time of one graph's candidates; equal nodes share their arrays."""

    def __init__(
        self,
        graph: Graph,
        candidates: Candidates,
        prices: Prices,
        saved: Mapping[str, Saved],
        once: Once,
    ) -> None:
        self.intervals = intervals_of(graph, saved, once)
        self._graph, self._candidates, self._mesh = graph, candidates, prices.mesh
        self._saved, self._once = saved, once
        self._again: dict[str, Rerun] = {}
        """By operator that may run again: where its block does."""

    def add_block(self, block: Block) -> None:
        """Note that a block may be recomputed."""
        again = self.intervals.rerun(block)
        if again is not None:
            names = (node.name for node in block.run_again(self._saved))
            self._again |= dict.fromkeys(names, again)

    def of_operator(self, node: Node) -> Timed:
        """Return the bytes of an operator's candidates, apart from what depends on recomputation."""
        return tuple(_nonzero(self._of_operator(node)))

    def _of_operator(self, node: Node) -> Iterator[TimedBytes]:
        at, place = self.intervals, self.intervals.place[node.name]
        for output, tensor in enumerate(node.outputs):
            if (made := at.made(node, output)) is not None:
                yield TimedBytes(*made, self._made_nbytes(node, output))
            for since, until in at.gradients_of(tensor.name):
                yield TimedBytes(since, until, self._local(node, len(node.operands) + output))
        if node.is_leaf:
            return
        kept = self._kept_nbytes(node)
        forward, backward = at.forward(place), at.backward(place)
        if node.name in self._again:
            yield TimedBytes(forward, self._read_end(node), kept)
            yield TimedBytes(at.backward(self._again[node.name].last), backward + 1, kept)
        else:
            yield TimedBytes(forward, backward + 1, kept)
        during, after = self._working(node)
        yield TimedBytes(forward, forward + 1, during)
        yield TimedBytes(backward, backward + 1, after)
        for position in at.makes_gradient(node):
            is_weight = self._graph.producer[node.operands[position]].op == "parameter"
            yield TimedBytes(backward, backward + 1 + is_weight, self._local(node, position))

    def of_recomputation(self, node: Node, cached: Array) -> Timed:
        """Return what an operator needs until its block has run again, by candidate and mode.

        `cached`: the bytes that selective recomputation keeps, by candidate.
        """
        at, place, rerun = self.intervals, self.intervals.place[node.name], self._again[node.name]
        kept, inside = self._kept_nbytes(node), self._kept_nbytes(node, cached=False)
        until = at.backward(rerun.last)
        before = self._by_mode(none=kept, selective=cached)
        found = [TimedBytes(self._read_end(node), until, before)]
        found.append(TimedBytes(at.again(place), until, self._by_mode(selective=inside, full=kept)))
        if place < rerun.last:
            work, _ = self._working(node)
            again = self._by_mode(selective=work, full=work)
            found.append(TimedBytes(at.again(place), at.again(place) + 1, again))
            found += self._made_again(node, rerun)
        return tuple(_nonzero(found))

    def _made_again(self, node: Node, rerun: Rerun) -> Iterator[TimedBytes]:
        """Yield the outputs of an operator that runs again, until they are kept or read last."""
        at, place = self.intervals, self.intervals.place[node.name]
        for output in range(len(node.outputs)):
            made = at.made(node, output)
            if made is not None:
                end = at.again(min(made[1], rerun.last + 1) - 1) + 1
                nbytes = self._made_nbytes(node, output)
                is_cached = output in self._saved_of(node).cached
                table = self._by_mode(selective=0.0 * nbytes if is_cached else nbytes, full=nbytes)
                yield TimedBytes(at.again(place), end, table)

    def _by_mode(self, **arrays: Array) -> Array:
        """Return one table over candidates and modes; a mode without an array needs nothing."""
        modes = self._candidates.recompute
        some = next(iter(arrays.values()))

        def stacked() -> Array:
            return np.stack([arrays.get(mode, np.zeros(len(some))) for mode in modes], axis=-1)

        also = (tuple(arrays), modes)
        return self._once(stacked, "timed modes", *arrays.values(), also=also)

    def of_held(self, tensor: Tensor, reader: Node, held: Array) -> Timed:
        """Return when a recomputed block holds a tensor from outside; `reader` is one of its readers."""
        at, rerun = self.intervals, self._again[reader.name]
        saver, since = at.saver(tensor.name), at.forward(at.read(tensor.name)) + 1
        until = at.backward(rerun.saving) + 1
        if saver is not None:
            there = self._again.get(self._graph.nodes[saver].name)
            if there is None:
                return ()  # kept whether the block runs again or not
            if there == rerun:
                until = at.again(saver)  # from then on it is among what that operator keeps
        return tuple(_nonzero([TimedBytes(since, until, held)]))

    def of_conversion(
        self, tensor: Tensor, readers: Sequence[Node], closure: Closure, made: Forms, forms: Forms
    ) -> Timed:
        """Return the bytes of a conversion for these readers, [made, forms]."""
        at = self.intervals
        places = [at.place[reader.name] for reader in readers]
        first, last, saver = min(places), max(places), at.saver(tensor.name)
        new, between, old = self._converted(tensor, closure, made, forms)
        is_kept = saver is not None and saver in places
        end = self._conversion_end(tensor, readers)
        # Variables of results are not deleted.
        is_result = tensor.name in self._graph.results
        until = at.read(tensor.name) if is_result else at.line_end(first)
        found = [
            TimedBytes(at.forward(first), at.forward(end), new),
            TimedBytes(at.forward(first), at.forward(until) + 1, between),
        ]
        if is_kept and saver == first:
            # The made form exists until it is converted; after that the operator's own bytes count.
            found.append(TimedBytes(at.forward(first), at.forward(first) + 1, old))
        if tensor.name in self._graph.reached:
            found.append(TimedBytes(at.handing(last), at.handing(first) + 1, new))
        return tuple(_nonzero(found))

    def _conversion_end(self, tensor: Tensor, readers: Sequence[Node]) -> int:
        """Return the position from which on a converted tensor exists only if it is kept."""
        at = self.intervals
        places = [at.place[reader.name] for reader in readers]
        saver, end = at.saver(tensor.name), at.line_end(max(places)) + 1
        if any(at.is_view(reader) for reader in readers):
            end = at.read(tensor.name) + 1
        return saver if saver is not None and min(places) <= saver < end else end

    def until_run_again(self, tensor: Tensor, readers: Sequence[Node]) -> tuple[int, int]:
        """Return when a conversion's result exists only because the second run of its block needs it."""
        at, maker = self.intervals, self._graph.producer[tensor.name]
        since = at.forward(self._conversion_end(tensor, readers))
        return since, at.backward(self._again[maker.name].last)

    def _converted(
        self, tensor: Tensor, closure: Closure, made: Forms, forms: Forms
    ) -> tuple[Array, Array, Array]:
        """Return the bytes of what conversions make, of the forms in between, and of their sources."""

        def tables() -> tuple[Array, Array, Array]:
            moved = _moved(made, forms)
            new = np.where(moved, self._nbytes(tensor, forms), 0.0)
            between = self._on_the_way(tensor, closure, made, forms) - new
            sources = np.array(self._nbytes(tensor, made), dtype=float)
            return new, np.maximum(between, 0.0), np.where(moved, sources[:, None], 0.0)

        return self._once(tables, "timed conversion", closure, made, forms, also=signature(tensor))

    def of_use(
        self,
        weight: Node,
        readers: Sequence[Node],
        closure: Closure,
        leaves: Forms,
        forms: Forms,
        in_block: bool,
    ) -> Timed:
        """Return the bytes of a weight's gathered copies, [storages, forms] and [modes] in a block."""
        at, tensor = self.intervals, weight.outputs[0]
        options = self._candidates.parameters[weight.name]
        places = [at.place[reader.name] for reader in readers]
        first, again = at.gathered(tensor.name)
        savers = [place for place in at.weight_savers(tensor.name) if place in places]
        modes = self._candidates.recompute if in_block else ("none",)

        def by_mode(which: Callable[[str], NDArray[np.bool_] | bool], on_the_way: bool) -> Array:
            held = np.array(self._nbytes(tensor, forms), dtype=float)
            moved = np.where(_moved(leaves, forms), held, 0.0)
            if on_the_way:
                moved = self._on_the_way(tensor, closure, leaves, forms)
            found = [np.where(which(mode), moved, 0.0) for mode in modes]
            return np.stack(found, axis=-1) if in_block else found[0]

        def table(
            name: str,
            which: Callable[[str], NDArray[np.bool_] | bool] = lambda _: True,
            on_the_way: bool = False,
        ) -> Array:
            also = (name, signature(tensor), modes, in_block)
            return self._once(
                lambda: by_mode(which, on_the_way), "timed use", options, closure, forms, also=also
            )

        regathers = np.array([option.regather for option in options])[:, None]
        end = max(at.function_end(place) for place in places) + 1
        every = table("every form", on_the_way=True)
        found = [TimedBytes(at.forward(first), at.forward(end), every)]
        if tensor.name in self._graph.reached:
            since, until = at.handing(max(places)) + 1, at.handing(first) + 1
            found.append(TimedBytes(since, until, table("all")))
            if at.is_one_message(tensor.name):
                found.append(TimedBytes(until - 1, until, table("all")))
        if savers:
            until = at.backward(savers[0]) + 1
            kept = table("kept", lambda mode: ~regathers & (mode == "none"))
            found.append(TimedBytes(at.forward(end), until, kept))
            twice = table("again", lambda mode: regathers & (mode == "none"))
            found.append(TimedBytes(at.backward(again), until, twice))
        if in_block:
            rerun = self._again[readers[0].name]
            end = at.backward(savers[0] if savers else rerun.last) + bool(savers)
            twice = table("rerun", lambda mode: mode != "none")
            found.append(TimedBytes(at.again(rerun.first), end, twice))
        return tuple(_nonzero(found))

    def of_lone_use(
        self, weight: Node, reader: Node, closure: Closure, leaves: Forms, shared: Forms, read: Forms,
        in_block: bool,
    ) -> Timed:  # fmt: skip
        """Return the bytes of a copy that one reader does not share, [storages, shared, read]."""

        def alone(table: Array) -> Array:
            differs = np.array([[form != each for each in read] for form in shared])
            wide = differs.reshape(*differs.shape, *(1,) * (table.ndim - 2))
            return np.where(wide, table[:, None], 0.0)

        def of_reader(each: TimedBytes) -> TimedBytes:
            make = partial(alone, each.nbytes)
            return replace(each, nbytes=self._once(make, "timed alone", each.nbytes, shared, read))

        return tuple(map(of_reader, self.of_use(weight, [reader], closure, leaves, read, in_block)))

    def _on_the_way(self, tensor: Tensor, closure: Closure, leaves: Forms, forms: Forms) -> Array:
        """Return the bytes of all forms that conversions make, each in memory of its own."""
        places = {leaf: place for place, leaf in enumerate(dict.fromkeys(leaves))}

        def made(step: Step) -> float:
            is_new = _allocated(step.source) != _allocated(step.target)
            return float(local_nbytes(tensor, step.target, self._mesh)) if is_new else 0.0

        return closure.along(made, places, forms)[[places[leaf] for leaf in leaves]]

    def _read_end(self, node: Node) -> int:
        """Return the time at which the first forward needs nothing more of what an operator keeps."""
        at = self.intervals
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        places = [at.read(names[position]) for position in at.newly_kept(node)]
        return at.forward(max([at.place[node.name], *places])) + 1

    def _kept_nbytes(self, node: Node, cached: bool = True) -> Array:
        """Return the bytes that are kept for the backward because of an operator.

        Without `cached`, less the results that selective recomputation keeps anyway.
        """
        options, saved = self._options(node), self._saved_of(node)
        positions = self.intervals.newly_kept(node)
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        if not cached:
            positions = tuple(place for place in positions if not self._is_cached(names[place]))
        arrays = [self._local(node, position) for position in positions]
        ratios = tuple(self.intervals.storage_ratio(names[position]) for position in positions)

        def total() -> Array:
            extra = [extra_nbytes(saved, node, o, self._graph, self._mesh) for o in options]
            parts = (array * ratio for array, ratio in zip(arrays, ratios, strict=True))
            return sum(parts, np.array(extra, dtype=float))

        also = (saved.extra_nbytes, saved.like, ratios)
        rule = rule_of(node, self._graph)
        return self._once(total, "timed kept", options, rule, *arrays, also=also)

    def _is_cached(self, name: str) -> bool:
        """Return whether selective recomputation keeps a tensor, or what it is a view of."""
        name = self.intervals.storage(name)
        maker = self._graph.producer[name]
        place = [tensor.name for tensor in maker.outputs].index(name)
        return place in self._saved_of(maker).cached

    def _made_nbytes(self, node: Node, output: int) -> Array:
        """Return the bytes of an output's storage, which may have more than its elements."""
        spare, array = self._saved_of(node).spare, self._local(node, len(node.operands) + output)
        if not spare or not spare[output]:
            return array
        more = self._divided(node, spare[output])
        return self._once(lambda: array + more, "timed spare", array, more)

    def _working(self, node: Node) -> tuple[Array, Array]:
        """Return the bytes that the forward and the backward allocate and free."""
        saved = self._saved_of(node)
        early = saved.early_nbytes if self.intervals.is_alone(node) else 0
        after = max(0, saved.backward_nbytes - early)
        options, graph, mesh = self._options(node), self._graph, self._mesh
        also = [variant_memory(node, option, graph, mesh) for option in options]
        return (
            np.maximum(self._divided(node, saved.forward_nbytes), [each.forward for each in also]),
            np.maximum(self._divided(node, after), [each.backward for each in also]),
        )

    def _divided(self, node: Node, nbytes: int) -> Array:
        """Return bytes that are divided among the ranks that divide an operator's work."""
        options = self._options(node)
        return self._once(
            lambda: np.array([nbytes // split(option, self._mesh) for option in options], dtype=float),
            "timed work", options, rule_of(node, self._graph), also=nbytes,
        )  # fmt: skip

    def _local(self, node: Node, position: int) -> Array:
        """Return the bytes of an operand or output on one rank, by candidate."""
        options = self._options(node)
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        tensor = self._graph.tensors[names[position]]

        def local() -> Array:
            forms = [(*option.inputs, *option.outputs)[position] for option in options]
            return np.array(self._nbytes(tensor, forms), dtype=float)

        return self._once(local, "timed local", options, also=(position, signature(tensor)))

    def _nbytes(self, tensor: Tensor, forms: Sequence[Sharding]) -> list[int]:
        return [local_nbytes(tensor, form, self._mesh) for form in forms]

    def _options(self, node: Node) -> tuple[OpSharding, ...]:
        return self._candidates.operators[node.name]

    def _saved_of(self, node: Node) -> Saved:
        return self._saved.get(node.name, SAVES_NOTHING)


def _nonzero(found: Sequence[TimedBytes] | Iterator[TimedBytes]) -> Iterator[TimedBytes]:
    return (each for each in found if each.start < each.stop and each.nbytes.any())


def _moved(made: Forms, forms: Forms) -> NDArray[np.bool_]:
    """Return for each pair of forms whether a conversion allocates memory."""
    numbers: dict[tuple[Type | None, ...], int] = {}
    sources, targets = (
        np.array([numbers.setdefault(_allocated(form), len(numbers)) for form in of])
        for of in (made, forms)
    )
    moved: NDArray[np.bool_] = sources[:, None] != targets[None]
    return moved


def _allocated(form: Sharding) -> tuple[Type | None, ...]:
    """Return the types, with None for all under which every rank holds the same values."""
    return tuple(None if _is_replicated(kind) else kind for kind in form)


def _is_replicated(kind: Type) -> bool:
    return not isinstance(kind, S) and kind.name in "RIN"
