"""Lifetimes of storages in the forward of an emitted module, as positions of graph nodes.

A variable lives until its function returns: a block's, or the whole forward.  Emitted code therefore
deletes variables that are not saved, read or returned any more: `Lifetimes.freed` lists them, and the
operators after which that happens.  There is at most one ``del`` per line of the user's code, and none
for small tensors.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from autopar.ir.graph import SAVES_NOTHING, Graph, LeafKind, Saved
from autopar.ir.placement import Sharding
from autopar.memory.functions import Functions
from autopar.memory.messages import Carried, collectives, made_by
from autopar.memory.of_rank import of_rank
from autopar.memory.recompute_set import Form, again
from autopar.memory.saved_tensors import SavedTensors
from autopar.plans.decisions import Conversion
from autopar.plans.plan import Plan

HELD: tuple[LeafKind, ...] = ("buffer", "constant")
"""Leaves that the module owns, besides parameters."""
WORTH = 16
"""A storage is deleted only if it is at least 1/16 of the largest storage of its function."""


@dataclass(frozen=True)
class Lifetimes:
    """Where storages are created, read, saved and freed."""

    keeps: SavedTensors

    @classmethod
    def of(cls, plan: Plan, graph: Graph, saved: Mapping[str, Saved]) -> Lifetimes:
        """Build the lifetimes of a finished plan."""
        shardings = {choice.node: choice.sharding for choice in plan.choices}
        saved = of_rank(saved, graph, shardings, plan.conversions, plan.mesh)
        run_again = again(
            graph, shardings, plan.conversions, plan.recompute_of, saved, plan.mesh, plan.precision
        )
        return cls(
            SavedTensors(
                graph,
                shardings,
                plan.conversions,
                plan.mesh,
                saved,
                run_again,
                plan.precision,
                plan.prefetch,
            )
        )

    def freed_behind(self) -> Mapping[str, tuple[Form, ...]]:
        """Return the deleted forms, by the operator whose statement the ``del`` follows."""
        found: defaultdict[str, list[Form]] = defaultdict(list)
        for form in self._first:
            storage = self.keeps.storage[form]
            if storage in self.freed:
                found[self.graph.nodes[self.freed[storage]].name].append(form)
        return {name: tuple(forms) for name, forms in found.items()}

    def until(self, storage: Form) -> int:
        """Return the last position at which a variable holds a storage that is not saved."""
        if storage in self.staying:
            return self.end
        if storage in self.freed:
            return self.freed[storage]
        made, (_, last) = self._home(storage), self.used[storage]
        functions = self.functions
        read = functions.of[last]
        if made == read:
            return functions.ends[made]
        # A block's result is its caller's variable; in a loop the next block overwrites it.
        return functions.ends[read] if functions.loop(made, read) else self.end

    @cached_property
    def freed(self) -> Mapping[Form, int]:
        """The storages that are deleted, with the last position at which they exist."""
        largest: Counter[int] = Counter()
        dead: dict[Form, int] = {}
        for storage in self.used:
            home = self._home(storage)
            largest[home] = max(largest[home], self.nbytes(storage))
            behind = self._dead_behind(storage)
            if behind is not None and behind < self.functions.ends[home]:
                dead[storage] = behind
        return {
            storage: place
            for storage, place in dead.items()
            if WORTH * self.nbytes(storage) >= largest[self._home(storage)]
        }

    def _dead_behind(self, storage: Form) -> int | None:
        """Return the end of the user's line that reads it last, or None if it may not be deleted.

        A storage may be deleted if it is no leaf's, is not saved, and lives in one function only.
        """
        if self.graph.producer[storage[0]].is_leaf or storage in self.saver:
            return None
        homes = {self._home(form) for form in self._forms[storage]}
        last = self.used[storage][1]
        if homes != {self.functions.of[last]} or self.graph.nodes[last].is_leaf:
            return None
        return self.functions.line_ends[last]

    @cached_property
    def saver(self) -> Mapping[Form, int]:
        """The position in whose backward each saved storage is freed: where it is first saved.

        A recomputed block frees its inputs at its first operator that saves anything.
        """
        found: dict[Form, int] = {}
        again = self.keeps.again
        for place, node in enumerate(self.graph.nodes):
            if node.name not in again.node_names:
                for storage in self.keeps.saved_by([node]):
                    found.setdefault(storage, place)
        for path, forms in again.inputs.items():
            first = self.saving[path][0]
            for storage in {self.keeps.storage[form] for form in forms}:
                found[storage] = min(found.get(storage, first), first)
        for c in reversed(self.keeps.conversions):
            target = self.keeps.storage[c.tensor, c.target]
            if c.regather and target in found:
                source, place = self.keeps.storage[c.tensor, c.source], found[target]
                found[source] = min(found.get(source, place), place)
        return {storage: place for storage, place in found.items() if storage in self.used}

    @cached_property
    def running(self) -> Mapping[str, list[int]]:
        """For every recomputed block, the positions that run again."""
        place_of = {node.name: place for place, node in enumerate(self.graph.nodes)}
        every = self.keeps.again.nodes.items()
        return {path: sorted(place_of[node.name] for node in nodes) for path, nodes in every}

    @cached_property
    def saving(self) -> Mapping[str, list[int]]:
        """Those of `running` that save something; the last position always does."""
        nodes, saved = self.graph.nodes, self.keeps.saved
        return {
            path: [place for place in places if not saved[nodes[place].name].is_nothing]
            for path, places in self.running.items()
        }

    @cached_property
    def cached(self) -> Mapping[str, frozenset[Form]]:
        """For every selective block, the cached storages that only its second run needs."""
        return {
            path: frozenset(self.keeps.storage[form] for form in forms) - self.saver.keys()
            for path, forms in self.keeps.again.results.items()
        }

    @cached_property
    def begun(self) -> Mapping[int, list[Form]]:
        """The storages that come into existence at each position."""
        found: defaultdict[int, list[Form]] = defaultdict(list)
        for storage, (first, _) in self.used.items():
            found[first].append(storage)
        return found

    @cached_property
    def used(self) -> Mapping[Form, tuple[int, int]]:
        """First and last position at which each storage is created or read, without parameters."""
        found: dict[Form, tuple[int, int]] = {}
        for form, place in self._first.items():
            storage = self.keeps.storage[form]
            begin, end = found.get(storage, (place, place))
            found[storage] = min(begin, place), max(end, self._last[form])
        return {storage: life for storage, life in found.items() if storage not in self.resting}

    @cached_property
    def resting(self) -> frozenset[Form]:
        """Parameters as they enter the step."""
        return self._entering("parameter")

    @cached_property
    def staying(self) -> frozenset[Form]:
        """Buffers and constants, which the module owns throughout."""
        return self._entering(*HELD)

    @cached_property
    def given(self) -> frozenset[Form]:
        """The batch in the caller's form; forms converted from it belong to the step."""
        return self._entering("input")

    def _entering(self, *kinds: LeafKind) -> frozenset[Form]:
        """Return the leaves of these kinds, as they enter the step."""
        return frozenset(
            (node.outputs[0].name, self.keeps.shardings[node.name].outputs[0])
            for kind in kinds
            for node in self.graph.leaves(kind)
        )

    @cached_property
    def regathered(self) -> frozenset[Form]:
        """The forms that are gathered again for the backward."""
        return frozenset((c.tensor, c.target) for c in self.keeps.conversions if c.regather)

    @property
    def converted(self) -> list[tuple[int, Conversion]]:
        """The conversions in execution order, each with the position of its first reader."""
        to = {made_by(c): c for c in self.keeps.conversions}
        return [(place, to[form]) for form, place in self._first.items() if form in to]

    @property
    def leaving(self) -> list[Conversion]:
        """The conversions of results that no operator of the graph reads."""
        return [c for c in self.keeps.conversions if (c.tensor, c.target) not in self._first]

    @cached_property
    def _uses(self) -> tuple[dict[Form, int], dict[Form, int]]:
        """Positions where each form is created and last read; a conversion is at its first reader."""
        source = {(c.tensor, c.target): c.source for c in self.keeps.conversions}
        first: dict[Form, int] = {}
        last: dict[Form, int] = {}

        def reach(name: str, form: Sharding, place: int) -> None:
            if (name, form) not in first:
                reach(name, source[name, form], place)
                first[name, form] = place
            last[name, form] = place

        for place, node in enumerate(self.graph.nodes):
            sharding = self.keeps.shardings[node.name]
            for name, read in zip(node.operands, sharding.inputs, strict=True):
                reach(name, read, place)
            for tensor, made in zip(node.outputs, sharding.outputs, strict=True):
                first[tensor.name, made] = last[tensor.name, made] = place
        results = set(self.graph.results)
        last |= {form: self.end for form in last if form[0] in results}
        return first, last

    @cached_property
    def collectives(self) -> tuple[Carried, ...]:
        """The conversions, grouped into the collectives that execute them."""
        return tuple(collectives(self.keeps))

    @cached_property
    def looped(self) -> Mapping[int, Carried]:
        """Each block's first gather in loops that prefetch, by the block's function.

        See `autopar.emit.render.first_gather`.  The gradients of these weights are reduced while the
        backward goes on.
        """
        found: dict[int, Carried] = {}
        loop = self.functions.loop
        for collective in self.collectives if self.keeps.prefetch else ():
            forms = [form for form in map(made_by, collective.conversions) if form in self._first]
            if collective.may_start_early and forms:
                function = self.functions.of[self._first[forms[0]]]
                if loop(function - 1, function) or loop(function, function + 1):
                    found.setdefault(function, collective)
        return found

    @cached_property
    def early(self) -> Mapping[int, Carried]:
        """Those of `looped` that start while the block before runs: all but those of first blocks."""
        loop = self.functions.loop
        return {at: each for at, each in self.looped.items() if loop(at - 1, at)}

    @cached_property
    def issued(self) -> Mapping[Form, int]:
        """The positions at which the forms of `early` gathers exist: where the previous block begins."""
        return {
            self.keeps.storage[form]: self.functions.begins[function - 1]
            for function, collective in self.early.items()
            for form in map(made_by, collective.conversions)
        }

    @cached_property
    def gathering(self) -> Counter[int]:
        """By position, the largest message in which its operands are gathered, in bytes."""
        return self._messages(self.collectives)

    @cached_property
    def gathering_again(self) -> Counter[int]:
        """The same of a recomputed block's second run, which finds its reductions in the cache."""
        reduced = self.keeps.again.reduced
        again = [
            collective
            for collective in self.collectives
            if not any((c.tensor, c.source) in reduced for c in collective.conversions)
        ]
        return self._messages(again)

    def _messages(self, sent: Iterable[Carried]) -> Counter[int]:
        found = Counter[int]()
        for collective in sent:
            form = made_by(collective.conversions[0])
            if form in self._first:
                place = self._first[form]
                found[place] = max(found[place], collective.forward_nbytes)
        return found

    def forward_nbytes(self, place: int, again: bool = False) -> int:
        """Return the temporary bytes, besides storages, of an operator and its operands' gathers.

        `again`: in the second run of its block.
        """
        within = self.within(place).forward_nbytes
        message = (self.gathering_again if again else self.gathering)[place]
        if not message:
            return within
        node = self.graph.nodes[place]
        made = {tensor.name for tensor in node.outputs}
        own = sum(self.nbytes(form) for form in self.begun.get(place, ()) if form[0] in made)
        own += self.keeps.extra_nbytes(node)
        return max(within, message - own)

    @property
    def _made(self) -> Mapping[Form, int]:
        """The position of the statement that creates each form."""
        return self._uses[0]

    @cached_property
    def _first(self) -> Mapping[Form, int]:
        """The position at which each form first exists: all forms of a collective appear together."""
        first = dict(self._made)
        for collective in self.collectives:
            forms = [form for form in map(made_by, collective.conversions) if form in first]
            first |= dict.fromkeys(forms, min((first[form] for form in forms), default=0))
        return first

    @property
    def _last(self) -> Mapping[Form, int]:
        return self._uses[1]

    @cached_property
    def _forms(self) -> Mapping[Form, list[Form]]:
        """The forms that live in each storage."""
        found: defaultdict[Form, list[Form]] = defaultdict(list)
        for form in self._first:
            found[self.keeps.storage[form]].append(form)
        return found

    def _home(self, form: Form) -> int:
        """Return the function in which a form is created."""
        functions = self.functions
        return 0 if form[0] in functions.hubs else functions.of[self._made[form]]

    @cached_property
    def functions(self) -> Functions:
        """The functions of the emitted module."""
        to = {made_by(c): c for c in self.keeps.conversions}
        written = tuple((place, to[form]) for form, place in self._made.items() if form in to)
        return Functions(self.graph, self.keeps.shardings, written)

    def within(self, place: int) -> Saved:
        """Return what is known of an operator, including its temporary memory."""
        return self.keeps.saved.get(self.graph.nodes[place].name, SAVES_NOTHING)

    def nbytes(self, storage: Form) -> int:
        """Return a storage's bytes on one rank."""
        if storage not in self._sizes:
            self._sizes[storage] = self.keeps.storage_nbytes(storage)
        return self._sizes[storage]

    @cached_property
    def _sizes(self) -> dict[Form, int]:
        return {}

    @property
    def end(self) -> int:
        """The last position."""
        return len(self.graph.nodes) - 1

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.keeps.graph
