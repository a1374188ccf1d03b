"""Simulates the backward as autograd executes it, for the bytes in use in each operator's backward.

Autograd visits operators in the reverse of their forward order.  An operator consumes the gradients of
its outputs, produces those of its operands or passes the same memory on (`Saved.passes`), and frees its
saved tensors.  Gradients from several readers are accumulated in place if nothing else references the
first of them; a view's base does (`Saved.views`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from autopar.ir.graph import ITEMSIZE, SAVES_NOTHING, Node
from autopar.ir.result_layout import leaving
from autopar.memory.filling import Filling, GradientBucket
from autopar.memory.gathered import Gathered
from autopar.memory.lifetimes import Lifetimes
from autopar.memory.messages import Carried, made_by
from autopar.memory.recompute_set import Form
from autopar.memory.rerun import Rerun, reruns
from autopar.memory.shards import local_nbytes
from autopar.plans.decisions import reduction_dtype


@dataclass(frozen=True)
class Back:
    """Peak bytes in each operator's backward, by position, without parameters at rest.

    The last entry is of the end of the backward, when the last gradients are reduced.
    """

    levels: list[int]
    settled: list[int]
    """By position: bytes of the `awaited` parameter gradients that were complete before."""
    gradients: list[GradientLife]
    """All memory that gradients had."""
    alone: frozenset[int]
    """Positions of the operators whose arriving gradients nothing else references."""


@dataclass(slots=True)
class GradientLife:
    """Memory of a gradient: the form for which it was allocated, and two positions.

    It is in use from the backward of the operator at `first` to that of the one at `last`, which comes
    earlier in the graph.
    """

    form: Form
    first: int
    last: int


def back(lives: Lifetimes, awaited: Mapping[Form, int], buckets: Sequence[GradientBucket]) -> Back:
    """Simulate the whole backward.

    `awaited` maps leaves to the bytes of their gradients, which are then reported in `Back.settled`, as
    are those that `buckets` copy out.
    """
    return _Walk(lives, awaited, buckets).run()


@dataclass(frozen=True, slots=True)
class _Gradient:
    """A gradient: the index of its memory, and whether it is a view of it."""

    memory: int
    is_view: bool = False


@dataclass
class _Gradients:
    """Gradients produced but not yet consumed; several may share memory."""

    nbytes: int = 0
    place: int = 0
    """The position that the backward has reached."""
    lives: list[GradientLife] = field(default_factory=list)
    _at: dict[Form, _Gradient] = field(default_factory=dict)
    _nbytes: list[int] = field(default_factory=list)
    _users: Counter[int] = field(default_factory=Counter)

    def new(self, form: Form, nbytes: int, is_view: bool = False) -> _Gradient:
        """Allocate a gradient in memory of its own, with one user."""
        self.lives.append(GradientLife(form, self.place, -1))
        self._nbytes.append(nbytes)
        self.nbytes += nbytes
        return self.shared(_Gradient(len(self._nbytes) - 1), is_view)

    def shared(self, one: _Gradient, is_view: bool) -> _Gradient:
        """Create another gradient in the same memory, which gains a user."""
        self._users[one.memory] += 1
        return _Gradient(one.memory, is_view or one.is_view)

    def drop(self, gradient: _Gradient) -> None:
        """Remove a user of the gradient's memory, which is freed with the last one."""
        self._users[gradient.memory] -= 1
        if not self._users[gradient.memory]:
            self.lives[gradient.memory].last = self.place
            self.nbytes -= self._nbytes[gradient.memory]

    def is_alone(self, gradient: _Gradient) -> bool:
        """Return whether the gradient is the only user of its memory."""
        return self._users[gradient.memory] == 1

    def take(self, form: Form) -> _Gradient | None:
        """Remove and return the accumulated gradient of a tensor, None if there is none."""
        return self._at.pop(form, None)

    def give(self, form: Form, gradient: _Gradient, nbytes: int) -> int:
        """Accumulate into the tensor's gradient; return the bytes in use meanwhile."""
        if form not in self._at:
            self._at[form] = gradient
            return self.nbytes
        there = self._at[form]
        if self.is_alone(there) and not there.is_view:
            most = self.nbytes
        else:
            self._at[form] = self.new(form, nbytes)
            most = self.nbytes
            self.drop(there)
        self.drop(gradient)
        return most


class _Walk:
    """The simulation, from the last operator to the first."""

    def __init__(
        self, lives: Lifetimes, awaited: Mapping[Form, int], buckets: Sequence[GradientBucket]
    ) -> None:
        self._lives, self._keeps, self._graph = lives, lives.keeps, lives.graph
        self._awaited, self._settled = awaited, 0
        self._filling = Filling(buckets)
        self._gradients = _Gradients()
        self._reruns = reruns(lives)
        self._held = self._on_its_way = 0
        self._alone: set[int] = set()
        self._late = {id(each) for each in lives.looped.values() if each.reduced_nbytes}
        self._goes = Counter[int]()
        """Bytes of saved tensors, by the position after whose backward they are freed."""
        for place, nbytes in self._kept():
            self._goes[place] += nbytes
            self._held += nbytes
        self._held += sum(again.cached_nbytes for again in self._reruns.values())

    def run(self) -> Back:
        """Visit all positions in reverse."""
        self._gradients.place = self._lives.end
        for form in self._results():
            self._gradients.give(form, self._gradients.new(form, self._gradient_nbytes(form)), 0)
        for conversion in reversed(self._lives.leaving):
            self._convert(Carried((conversion,), 0, 0))
        found = [0] * len(self._graph.nodes)
        settled = [0] * len(self._graph.nodes)
        for place in reversed(range(len(self._graph.nodes))):
            settled[place] = self._settled + self._filling.kept_nbytes
            self._gradients.place = place
            if place in self._reruns:
                found[place] = self._run_again(self._reruns[place]) + self._gathered.before(place)
            node = self._graph.nodes[place]
            if not node.is_leaf:
                found[place] = max(found[place], self._back(node, place))
        end = self._held + self._gradients.nbytes + self._filled(self._filling.finish)
        settled.append(self._settled + self._filling.kept_nbytes)
        return Back([*found, end], settled, self._gradients.lives, frozenset(self._alone))

    def _kept(self) -> Iterator[tuple[int, int]]:
        """Yield the bytes that the forward keeps, with the position after whose backward they go."""
        there = (self._lives.given | self._lives.staying) & self._lives.used.keys()
        # Never freed here: the caller references the batch, the module its buffers.
        yield -1, sum(map(self._nbytes, there))
        for storage, place in self._lives.saver.items():
            if storage not in self._lives.regathered | there:
                yield place, self._nbytes(storage)
        for place, node in enumerate(self._graph.nodes):
            if not node.is_leaf and node.name not in self._keeps.again.node_names:
                yield place, self._keeps.extra_nbytes(node)

    def _run_again(self, again: Rerun) -> int:
        """Run a block's second forward; return the peak."""
        self._held -= again.cached_nbytes
        most = self._held + self._gradients.nbytes + again.most_nbytes
        self._held += sum(again.kept.values())
        self._goes.update(again.kept)
        return most

    def _back(self, node: Node, place: int) -> int:
        """Run an operator's backward and those of its operands' conversions; return the peak."""
        gradients, forms = self._gradients, self._keeps.shardings[node.name]
        outputs = zip((t.name for t in node.outputs), forms.outputs, strict=True)
        arrived = [gradients.take(form) for form in outputs]
        made: dict[Form, _Gradient] = {}
        before = self._gathered.arriving(place) + gradients.nbytes
        if any(gradient is not None for gradient in arrived):
            made = self._made(node, arrived)
        while_it_runs = self._gathered.nbytes(place) + gradients.nbytes
        within = self._lives.within(place)
        while_it_runs += within.backward_nbytes
        if all(gradient is None or gradients.is_alone(gradient) for gradient in arrived):
            self._alone.add(place)
            while_it_runs -= within.early_nbytes
        level = self._held + max(before, while_it_runs)
        for gradient in arrived:
            if gradient is not None:
                gradients.drop(gradient)
        self._held -= self._goes.pop(place, 0)
        return max(level, self._gathered.still(place) + self._hand_on(made, place))

    def _hand_on(self, made: Mapping[Form, _Gradient], place: int) -> int:
        """Pass on the gradients of operands, through conversions, to parameters; return the peak."""
        level = 0
        for form, gradient in made.items():
            level = max(level, self._give(form, gradient))
        converted = {
            (c.tensor, c.source) for each in self._converted[place] for c in each.conversions
        }
        ready = (form for form in self._read_first[place] if form not in converted)
        level = max(level, self._settle(ready))
        for collective in self._converted[place]:
            level = max(level, self._convert(collective))
        return max(level, self._settle(self._read_first[place]))

    def _settle(self, forms: Iterable[Form]) -> int:
        """Accumulate the complete gradients of parameters into the parameters' own; return the peak."""
        level = 0
        for form in forms:
            arrived = self._gradients.take(form)
            if arrived is not None:
                there = self._held + self._gradients.nbytes + self._widened_nbytes(form)
                level = max(level, there + self._filled(partial(self._filling.arrive, form)))
                self._gradients.drop(arrived)
                self._settled += self._awaited.get(form, 0)
        return level

    def _widened_nbytes(self, form: Form) -> int:
        """Return the bytes of a parameter's gradient in the dtype in which it is summed, if another."""
        wide = reduction_dtype(form[0], self._graph, self._keeps.precision)
        itemsize = self._graph.tensors[form[0]].itemsize
        if wide is None or ITEMSIZE[wide] == itemsize:
            return 0
        return self._gradient_nbytes(form) * ITEMSIZE[wide] // itemsize

    def _filled(self, fill: Callable[[], int]) -> int:
        """Fill buckets; return by how much the bytes in use rise meanwhile."""
        before = self._filling.nbytes
        most = fill()
        self._held += self._filling.nbytes - before
        return most - before

    def _made(self, node: Node, arrived: list[_Gradient | None]) -> dict[Form, _Gradient]:
        """Create the gradients of an operator's operands."""
        saved = self._keeps.saved.get(node.name, SAVES_NOTHING)
        passes = saved.passes or (None,) * len(node.operands)
        forms = zip(node.operands, self._keeps.shardings[node.name].inputs, strict=True)
        made: dict[Form, _Gradient] = {}
        for place, (form, source) in enumerate(zip(forms, passes, strict=True)):
            if form in made or not self._graph.tensors[form[0]].differentiable:
                continue
            one = None if source is None else arrived[source]
            is_view = place in saved.views
            made[form] = (
                self._gradients.new(form, self._gradient_nbytes(form), is_view)
                if one is None
                else self._gradients.shared(one, is_view)
            )
        return made

    def _give(self, form: Form, gradient: _Gradient) -> int:
        return self._held + self._gradients.give(form, gradient, self._gradient_nbytes(form))

    def _convert(self, collective: Carried) -> int:
        """Turn the gradients of conversions' targets into those of their sources; return the peak."""
        taken = [(c, self._gradients.take(made_by(c))) for c in collective.conversions]
        arrived = [(c, gradient) for c, gradient in taken if gradient is not None]
        if not arrived:
            return 0
        if len(taken) == 1 and arrived[0][0].step.hands_on_gradient:
            conversion, gradient = arrived[0]
            return self._give(
                (conversion.tensor, conversion.source), replace(gradient, is_view=True)
            )
        if id(collective) in self._late:
            self._held -= self._on_its_way
            self._on_its_way = 0
        sources = [(c.tensor, c.source) for c, _ in arrived]
        made = [
            (source, self._gradients.new(source, self._gradient_nbytes(source)))
            for source in sources
        ]
        level = self._held + self._gradients.nbytes + collective.backward_nbytes
        for _, gradient in arrived:
            self._gradients.drop(gradient)
        if id(collective) in self._late:
            # Message and results are held until the next one of the loop starts.
            self._on_its_way = collective.reduced_nbytes
            self._held += self._on_its_way
        level = max(level, *(self._give(source, gradient) for source, gradient in made))
        if id(collective) in self._late:
            results = sum(map(self._gradient_nbytes, sources))  # at first among the gradients
            self._on_its_way += results
            self._held += results
        return level

    @cached_property
    def _converted(self) -> Mapping[int, list[Carried]]:
        """The collectives at each position, in the order of the backward."""
        of = {made_by(c): each for each in self._lives.collectives for c in each.conversions}
        found: defaultdict[int, dict[int, Carried]] = defaultdict(dict)
        for place, conversion in reversed(self._lives.converted):
            collective = of[made_by(conversion)]
            found[place][id(collective)] = collective
        return defaultdict(list, {place: list(each.values()) for place, each in found.items()})

    @cached_property
    def _read_first(self) -> Mapping[int, list[Form]]:
        """The parameters by their first reader, in whose backward their gradients are completed."""
        found: dict[Form, int] = {}
        for place, node in enumerate(self._graph.nodes):
            forms = zip(node.operands, self._keeps.shardings[node.name].inputs, strict=True)
            each = (c for collective in self._converted[place] for c in collective.conversions)
            sources = [(c.tensor, c.source) for c in each]
            for form in (*forms, *sources):
                if form in self._lives.resting:
                    found.setdefault(form, place)
        by_place: defaultdict[int, list[Form]] = defaultdict(list)
        for form, place in found.items():
            by_place[place].append(form)
        return by_place

    @cached_property
    def _gathered(self) -> Gathered:
        return Gathered.of(self._lives)

    def _results(self) -> Iterator[Form]:
        """Yield the forms of differentiable results as they leave the module."""
        for name in dict.fromkeys(self._graph.results):
            tensor, maker = self._graph.tensors[name], self._graph.producer[name]
            if tensor.differentiable:
                place = [t.name for t in maker.outputs].index(name)
                made = self._keeps.shardings[maker.name].outputs[place]
                yield name, leaving(tensor, self._graph, made)

    def _gradient_nbytes(self, form: Form) -> int:
        """Return the bytes of the elements: spare bytes of the tensor's storage are not allocated."""
        return local_nbytes(self._graph.tensors[form[0]], form[1], self._keeps.mesh)

    def _nbytes(self, storage: Form) -> int:
        return self._lives.nbytes(storage)
