"""When the memory of a graph's tensors is in use, before any sharding is decided.

These are the lifetimes of the graph on one device (`Lifetimes`, `backward`), where each tensor has one
form.  A plan adds those of what its conversions allocate.

Time has a step per operator of the forward, then two per operator of the backward, in reverse order: one
while it runs, and one while the gradients that it made are converted and handed on.  Before the backward
of a block, there is a step for each of its operators that may run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from autopar.ir.blocks import Block, blocks
from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, Sharding
from autopar.memory.backward import Back, GradientLife, back
from autopar.memory.lifetimes import Lifetimes
from autopar.memory.recompute_set import Form
from autopar.memory.saved_tensors import SavedTensors
from autopar.plans.buckets import NBYTES
from autopar.plans.decisions import OpSharding
from autopar.plans.grouping import runs_of

ONE = Mesh.of(1)
WHOLE = Sharding((I,))
"""The only form of a tensor on one device."""
Interval = tuple[int, int]
"""The first time, and the one after the last."""


@dataclass(frozen=True)
class Rerun:
    """The second forward of a block: its first and last position, and the first one that saves."""

    first: int
    last: int
    saving: int


@dataclass(frozen=True)
class Intervals:
    """The times at which tensors of a graph are in use."""

    graph: Graph
    saved: Mapping[str, Saved]

    @property
    def times(self) -> int:
        """The number of times."""
        return self._backwards[0] + 2 if self._backwards else 0

    def forward(self, place: int) -> int:
        """Return the time at which the operator at a position runs."""
        return place

    def backward(self, place: int) -> int:
        """Return the time at which its backward runs."""
        return self._backwards[place] if place >= 0 else self.times

    def handing(self, place: int) -> int:
        """Return the time at which its operands' gradients are converted and handed on."""
        return self.backward(place) + 1

    def again(self, place: int) -> int:
        """Return the time at which the operator of a recomputed block runs again."""
        return self._agains[place]

    def backwards(self, place: int) -> tuple[int, ...]:
        """Return all times of a backward, with those at which its block runs again before it."""
        again = len(self._reruns.get(place, ()))
        return tuple(range(self.backward(place) - again, self.handing(place) + 1))

    @cached_property
    def _backwards(self) -> list[int]:
        """By position: the time of the backward."""
        found, time = [0] * len(self.graph.nodes), len(self.graph.nodes)
        for place in reversed(range(len(found))):
            time += len(self._reruns.get(place, ()))
            found[place] = time
            time += 2
        return found

    @cached_property
    def _agains(self) -> Mapping[int, int]:
        """By position of an operator that may run again: the time."""
        return {
            place: self.backward(last) - len(places) + number
            for last, places in self._reruns.items()
            for number, place in enumerate(places)
        }

    @cached_property
    def _reruns(self) -> Mapping[int, list[int]]:
        """By the last position that a block may run again: all these positions."""
        runs = (block.run_again(self.saved) for block in blocks(self.graph))
        places = [[self.place[node.name] for node in run] for run in runs if run]
        return {each[-1]: each for each in places}

    def until_backward(self, since: int, place: int) -> Interval:
        """Return the interval that ends with the backward of the operator at a position."""
        return since, self.backward(place) + 1

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The position of each node."""
        return {node.name: place for place, node in enumerate(self.graph.nodes)}

    @cached_property
    def lives(self) -> Lifetimes:
        """The lifetimes on one device."""
        shardings = {
            node.name: OpSharding(
                (WHOLE,) * len(node.operands), (WHOLE,) * len(node.outputs), ("",)
            )
            for node in self.graph.nodes
        }
        return Lifetimes(SavedTensors(self.graph, shardings, (), ONE, self.saved))

    @cached_property
    def _back(self) -> Back:
        return back(self.lives, {}, ())

    def is_alone(self, node: Node) -> bool:
        """Return whether nothing else references the gradients that arrive at an operator."""
        return self.place[node.name] in self._back.alone

    def newly_kept(self, node: Node) -> tuple[int, ...]:
        """Return the operands and outputs whose memory no earlier operator keeps for the backward."""
        return self._kept[node.name]

    @cached_property
    def _kept(self) -> Mapping[str, tuple[int, ...]]:
        lives = self.lives
        seen = set(lives.resting | lives.given | lives.staying)
        found = {}
        for node in self.graph.nodes:
            fresh = []
            for position, name in _saved_by(node, self._saved(node)):
                storage = lives.keeps.storage[name, WHOLE]
                if storage not in seen:
                    seen.add(storage)
                    fresh.append(position)
            found[node.name] = tuple(fresh)
        return found

    def storage_ratio(self, name: str) -> float:
        """Return the bytes of a tensor's storage relative to its own: a part of q, k and v keeps all."""
        own = self.graph.tensors[name].nbytes
        return self.lives.nbytes(self.lives.keeps.storage[name, WHOLE]) / own if own else 1.0

    def storage(self, name: str) -> str:
        """Return the tensor whose memory a tensor is a view of; its own name if of none."""
        return self.lives.keeps.storage[name, WHOLE][0]

    def saver(self, name: str) -> int | None:
        """Return the position of the operator that keeps a tensor's memory, None if none does."""
        return self.lives.saver.get(self.lives.keeps.storage[name, WHOLE])

    def made(self, node: Node, output: int) -> Interval | None:
        """Return when an output is in use before it is kept; None if its memory is another's."""
        form = node.outputs[output].name, WHOLE
        lives, place = self.lives, self.place[node.name]
        if lives.keeps.storage[form] != form or form in lives.resting:
            return None
        if form in lives.given | lives.staying:
            return 0, self.times
        saver = lives.saver.get(form)
        end = lives.until(form) + 1 if saver is None else saver
        return self.forward(place), self.forward(end)

    def is_view(self, node: Node) -> bool:
        """Return whether an operator's output is in the memory of an operand."""
        outputs = ((tensor.name, WHOLE) for tensor in node.outputs)
        return any(self.lives.keeps.storage[form] != form for form in outputs)

    def read(self, name: str) -> int:
        """Return the last position at which a tensor's memory is in use if it is not kept.

        Variables are deleted behind the line of the user's code that reads them last.
        """
        storage = self.lives.keeps.storage[name, WHOLE]
        if storage in self.lives.used:
            return self.line_end(self.lives.used[storage][1])
        # In the memory of a weight, which is at rest: only what this tensor's readers need ends.
        readers = (self.place[node.name] for node in self.graph.consumers[name])
        return self.line_end(max(readers, default=self.place[self.graph.producer[name].name]))

    def line_end(self, place: int) -> int:
        """Return the last position of the same line of the user's code."""
        return self.lives.functions.line_ends[place]

    def gradients_of(self, name: str) -> list[Interval]:
        """Return when gradients of a tensor are in use, from when they are handed on."""
        return [
            self.until_backward(self.handing(life.first), life.last)
            for life in self._gradients[name, WHOLE]
        ]

    def makes_gradient(self, node: Node) -> Iterator[int]:
        """Yield the operands for whose gradients an operator's backward allocates memory."""
        place, seen = self.place[node.name], set()
        for position, name in enumerate(node.operands):
            lives = self._gradients[name, WHOLE]
            if name not in seen and any(life.first == place for life in lives):
                seen.add(name)
                yield position

    @cached_property
    def _gradients(self) -> Mapping[Form, list[GradientLife]]:
        found: defaultdict[Form, list[GradientLife]] = defaultdict(list)
        for life in self._back.gradients:
            found[life.form].append(life)
        return found

    def rerun(self, block: Block) -> Rerun | None:
        """Return where a recomputed block runs again; None if nothing of it would."""
        again = block.run_again(self.saved)
        if not again:
            return None
        saving = (node for node in again if not self._saved(node).is_nothing)
        first, last = self.place[again[0].name], self.place[again[-1].name]
        return Rerun(first, last, self.place[next(saving).name])

    def function_end(self, place: int) -> int:
        """Return the last position of the emitted function that contains a position."""
        return self.lives.functions.ends[self.lives.functions.of[place]]

    def weight_savers(self, name: str) -> list[int]:
        """Return the positions of the operators that save a weight."""
        readers = {self.place[node.name]: node for node in self.graph.consumers[name]}
        return sorted(
            place
            for place, node in readers.items()
            if any(node.operands[i] == name for i in self._saved(node).operands)
        )

    def gathered(self, name: str) -> tuple[int, int]:
        """Return the positions at which a weight is gathered in the forward and in the backward.

        Weights of one run of statements are gathered together, when the first of them is read.
        """
        runs = self._runs
        return runs[self._run_of[name]] if name in self._run_of else self._alone(name)

    def is_one_message(self, name: str) -> bool:
        """Return whether a weight's gradient is copied into one message with others of its run."""
        return self._message[self._run_of[name]] if name in self._run_of else False

    @cached_property
    def _message(self) -> Mapping[int, bool]:
        nbytes: defaultdict[int, list[int]] = defaultdict(list)
        for name, run in self._run_of.items():
            nbytes[run].append(self.graph.tensors[name].nbytes)
        return {run: len(each) > 1 and sum(each) <= NBYTES for run, each in nbytes.items()}

    @cached_property
    def _run_of(self) -> Mapping[str, int]:
        return runs_of(self.graph)

    @cached_property
    def _runs(self) -> Mapping[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for name, run in self._run_of.items():
            first, last = self._alone(name)
            before, after = found.get(run, (first, last))
            found[run] = min(before, first), max(after, last)
        return found

    def _alone(self, name: str) -> tuple[int, int]:
        return self.first_read(name), max(self.weight_savers(name), default=-1)

    def first_read(self, name: str) -> int:
        """Return the position of the first operator that reads a weight."""
        return min(self.place[node.name] for node in self.graph.consumers[name])

    def _saved(self, node: Node) -> Saved:
        return self.saved.get(node.name, SAVES_NOTHING)


def _saved_by(node: Node, saved: Saved) -> Iterator[tuple[int, str]]:
    """Yield the operands and outputs that an operator saves: positions, outputs last, and names."""
    names = (*node.operands, *(tensor.name for tensor in node.outputs))
    outputs = (len(node.operands) + i for i in saved.outputs)
    for position in (*saved.operands, *outputs):
        yield position, names[position]
