"""Determines what recomputed blocks run again in the backward, and what they hold until then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autopar.ir.blocks import Block, Recompute, block_of, blocks, is_expensive, is_hub
from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved
from autopar.ir.mesh import Mesh
from autopar.ir.placement import P, Sharding
from autopar.plans.decisions import Conversion, OpSharding
from autopar.plans.grouping import groups

Form = tuple[str, Sharding]
"""A tensor in one of its shardings."""


@dataclass(frozen=True)
class RecomputeSet:
    """What the recomputed blocks run again, and what is held until then."""

    nodes: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)
    """By block, the operators that run again in the backward."""
    computed: frozenset[str] = frozenset()
    """Those of them whose results are recomputed, not found in the cache."""
    conversions: frozenset[int] = frozenset()
    """Indices of the conversions that run again."""
    inputs: Mapping[str, frozenset[Form]] = field(default_factory=dict)
    """By block, the forms that it reads from outside."""
    results: Mapping[str, frozenset[Form]] = field(default_factory=dict)
    """By selective block, the results that it keeps until it runs again."""
    reduced: frozenset[Form] = frozenset()
    """Partial sums in selective blocks whose reductions are kept: no second run computes them."""

    @cached_property
    def node_names(self) -> frozenset[str]:
        """All operators that run again, and so save nothing in the first forward."""
        return frozenset(node.name for nodes in self.nodes.values() for node in nodes)

    @cached_property
    def held(self) -> frozenset[Form]:
        """The forms that are held until blocks run again."""
        return frozenset().union(*self.inputs.values(), *self.results.values())

    @property
    def caching(self) -> Iterator[Node]:
        """The operators of selective blocks, some of which cache internal results."""
        return (node for path in self.results for node in self.nodes[path])


NOTHING = RecomputeSet()
"""No block is recomputed."""


def again(
    graph: Graph,
    shardings: Mapping[str, OpSharding],
    conversions: tuple[Conversion, ...],
    recompute: Mapping[str, Recompute],
    saved: Mapping[str, Saved],
    mesh: Mesh,
    precision: str,
) -> RecomputeSet:
    """Compute the recompute set.

    As in emitted code, a conversion belongs to the block that first needs its result.
    """
    chosen = [block for block in blocks(graph) if recompute.get(block.path, "none") != "none"]
    if not chosen:
        return NOTHING
    found = {block.path: block.run_again(saved) for block in chosen}
    nodes = {path: group for path, group in found.items() if group}
    chosen = [block for block in chosen if block.path in nodes]
    walk = _Walk(graph, shardings, conversions, saved)
    run = {node.name for group in nodes.values() for node in group}
    selective = [b.path for b in chosen if recompute[b.path] == "selective"]
    kept = {n.name for path in selective for n in nodes[path] if is_expensive(n)}
    results, reduced = {}, set[Form]()
    for block in chosen:
        if block.path in selective:
            made = _cached(nodes[block.path], shardings, saved)
            results[block.path] = frozenset(walk.kept_of(made, block, reduced))
    repeated = {
        place
        for place, c in enumerate(conversions)
        if walk.reader.get(place) in run and (c.tensor, c.source) not in reduced
    }
    return RecomputeSet(
        nodes,
        frozenset(run - kept),
        frozenset(_together(repeated, graph, conversions, mesh, precision)),
        {block.path: frozenset(walk.inputs(block, run)) for block in chosen},
        results,
        frozenset(reduced),
    )


def _cached(
    nodes: Iterable[Node], shardings: Mapping[str, OpSharding], saved: Mapping[str, Saved]
) -> Iterator[Form]:
    """Yield the expensive results of a selective block, as they are computed."""
    for node in nodes:
        for place in saved.get(node.name, SAVES_NOTHING).cached:
            yield node.outputs[place].name, shardings[node.name].outputs[place]


class _Walk:
    """Finds the block in which each form is created, and the first reader of each conversion."""

    def __init__(
        self,
        graph: Graph,
        shardings: Mapping[str, OpSharding],
        conversions: tuple[Conversion, ...],
        saved: Mapping[str, Saved],
    ) -> None:
        self._graph, self._shardings = graph, shardings
        self._to: dict[Form, tuple[int, Conversion]] = {
            (c.tensor, c.target): (place, c) for place, c in enumerate(conversions)
        }
        self._of: defaultdict[str, list[Conversion]] = defaultdict(list)
        for c in conversions:
            self._of[c.tensor].append(c)
        self._home: dict[Form, tuple[str, int] | None] = {}
        self.reader: dict[int, str] = {}
        self._conversions, self._saved = conversions, saved
        self._from: defaultdict[Form, list[int]] = defaultdict(list)
        for place, c in enumerate(conversions):
            self._from[c.tensor, c.source].append(place)
        self._reads: defaultdict[str, list[Form]] = defaultdict(list)
        for node in graph.nodes:
            self._visit(node)

    def inputs(self, block: Block, run: set[str]) -> set[Form]:
        """Return the forms from outside that a block's recomputation reads."""
        inside = block_of(block.nodes[0].origin)
        return {
            form
            for node in block.nodes
            if node.name in run
            for form in self._reads[node.name]
            if self._home[form] != inside and not self._rests(form)
        }

    def kept_of(self, made: Iterable[Form], block: Block, reduced: set[Form]) -> Iterator[Form]:
        """Yield what a selective block keeps of its results; add partial sums that it does not keep.

        Of a partial sum that the block only reduces, the reduction is kept: it is never larger, and
        the second run need not communicate.
        """
        inside = {node.name for node in block.nodes}
        for form in made:
            passed: set[Form] = set()
            sums = self._reductions(form, inside, passed)
            if not sums:
                yield form
                continue
            reduced |= passed
            yield from self.kept_of(sums, block, reduced)

    def _reductions(self, form: Form, inside: set[str], passed: set[Form]) -> list[Form]:
        """Return the reductions of a partial sum, or of views of it; none if anything else reads it.

        `passed`: the partial sum and these views.
        """
        passed.add(form)
        found = []
        for node in self._graph.consumers[form[0]]:
            sharding = self._shardings[node.name]
            read = [*zip(node.operands, sharding.inputs, strict=True)]
            if node.name not in inside or form not in read:
                continue
            shares = self._saved.get(node.name, SAVES_NOTHING).shares
            if len(node.outputs) != 1 or not shares or shares[0] != read.index(form):
                return []
            seen = (node.outputs[0].name, sharding.outputs[0])
            sums = self._reductions(seen, inside, passed)
            if not sums:
                return []
            found += sums
        for place in self._from[form]:
            conversion = self._conversions[place]
            if self.reader.get(place) not in inside:
                continue
            if conversion.source[conversion.axis] is not P:
                return []
            found.append((conversion.tensor, conversion.target))
        return found

    def _rests(self, form: Form) -> bool:
        """Return whether it is a parameter as it enters the step, not gathered by another block."""
        maker = self._graph.producer[form[0]]
        return maker.op == "parameter" and form[1] == self._shardings[maker.name].outputs[0]

    def _visit(self, node: Node) -> None:
        sharding = self._shardings[node.name]
        for form in zip(node.operands, sharding.inputs, strict=True):
            self._reach(form, node)
        for tensor, made in zip(node.outputs, sharding.outputs, strict=True):
            self._home[tensor.name, made] = block_of(node.origin)
            if is_hub(node, self._graph):
                for c in self._of[tensor.name]:
                    self._home[c.tensor, c.target] = None

    def _reach(self, form: Form, node: Node) -> None:
        """Record what the operator reads: the form, or the form from which its conversions start."""
        while form not in self._home:
            place, conversion = self._to[form]
            self._home[form] = block_of(node.origin)
            self.reader[place] = node.name
            form = (form[0], conversion.source)
        self._reads[node.name].append(form)


def _together(
    places: set[int],
    graph: Graph,
    conversions: tuple[Conversion, ...],
    mesh: Mesh,
    precision: str,
) -> set[int]:
    """Add the conversions of weights that share a collective with a conversion in `places`."""
    tensors = {conversions[place].tensor for place in places}
    for group in groups(graph, conversions, mesh, precision):
        members = {member.tensor for member in group.members}
        if members & tensors:
            places |= {place for place, c in enumerate(conversions) if c.tensor in members}
    return places
