"""Converts a captured model to a `StageProblem`: positions, ways of every submesh and transfers.

There is one table per number of microbatches.  All come from one sweep: the folded graph is solved
once or twice for each mesh that a submesh can form.  The few resulting sharding decisions are priced
for every microbatch size and recomputation mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.ir.blocks import MODES, Recompute, block_of, blocks
from autopar.ir.graph import Graph, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.ir.split import computing, crossing, shared, split
from autopar.pipeline.build.borders import Border, latency_s, link_between, passing, tiles_of
from autopar.pipeline.build.figures import Cut
from autopar.pipeline.build.folded import fold
from autopar.pipeline.build.positions import Places
from autopar.pipeline.build.shapes import Shape, shapes
from autopar.pipeline.build.sizes import Sized, Sizes
from autopar.pipeline.build.submesh import ShardingOption, SubmeshQuery
from autopar.pipeline.build.submesh_sharding import SubmeshSharding
from autopar.pipeline.build.ways import Chain, Ranges, way
from autopar.pipeline.planner import Family, StageProblem, StageTable
from autopar.pipeline.planner.table import Array
from autopar.sharding.sharding_problem import Settings, prices_of
from autopar.utils.processes import side_by_side
from cost_models.hardware import Hardware

MOST_COUNTS = 8
"""The maximum number of different microbatch counts."""
MOST_STAGES = 64


def counts(batch: int) -> tuple[int, ...]:
    """Return the numbers of microbatches considered: the largest powers of two that divide the batch."""
    powers = [2**k for k in range(1, batch.bit_length()) if batch % 2**k == 0]
    return tuple(powers[-MOST_COUNTS:]) or (1,)


@dataclass(frozen=True, eq=False)
class ModelStageTable:
    """A stage problem, with the places of its positions and the sharding decisions of its ways."""

    problem: StageProblem
    places: Places
    decided: Mapping[str, SubmeshSharding]
    """By way name."""


Mix = tuple[Recompute, ...]
"""Recomputation modes, which are assigned to blocks in turn."""
Named = tuple[str, Shape, ShardingOption]
"""Name, submesh shape and sharding option."""


@dataclass(frozen=True, eq=False)
class StageTableBuilder:
    """Builds the cost tables of a model on a mesh."""

    whole: Graph
    places: Places
    sizes: Sizes
    mesh: Mesh
    hardware: Hardware
    settings: Settings
    memory_nbytes: float

    def tabled(self, families: tuple[Family, ...], many: Sequence[int]) -> ModelStageTable:
        """Return the table for these families and numbers of microbatches.

        Raises `PlanError` if the problem is empty.
        """
        found = shapes(self.mesh, self.hardware.devices_per_host)
        offers = self._offers({mesh.sizes: mesh for shape in found for mesh in shape.meshes}, many)
        every = [
            (shape, offer)
            for shape in found
            for mesh in shape.meshes
            for offer in offers[mesh.sizes]
        ]
        named = [
            (f"{'x'.join(map(str, offer.decided.mesh.sizes))} #{number}", shape, offer)
            for number, (shape, offer) in enumerate(every)
        ]
        problem = StageProblem(
            len(self.places.positions), self.mesh.world_size, self.memory_nbytes,
            self._tables(named), families, MOST_STAGES,
        )  # fmt: skip
        decided = {
            way_name(name, mix): offer.decided
            for name, _, offer in named
            for mix in self._mixes
            if offer.figures
        }
        return ModelStageTable(problem.check(), self.places, decided)

    def least_alone_nbytes(self) -> float:
        """Return the bytes of the sweep's smallest plan on the whole mesh without microbatches.

        It is the solver's plan of least memory, with maximum recomputation.
        """
        shape = Shape(1, self.mesh.world_size, (self.mesh,))
        offers = self._offers({self.mesh.sizes: self.mesh}, (1,))[self.mesh.sizes]
        return min(
            (
                float((way.rest_nbytes + way.kept_nbytes + way.working_nbytes)[0, -1])
                for table in self._tables([("alone", shape, offer) for offer in offers])
                for way in table.ways
            ),
            default=0.0,
        )

    def _offers(
        self, meshes: Mapping[tuple[int, ...], Mesh], many: Sequence[int]
    ) -> dict[tuple[int, ...], list[ShardingOption]]:
        """Return the options of each mesh by its sizes; the largest, which take longest, are first."""
        asked = self._asked(many)
        for mesh in meshes.values():
            asked.prepare(mesh)

        def of_mesh(mesh: Mesh) -> list[ShardingOption]:
            known = self._decided.get(mesh.sizes)
            return asked.offers(mesh, asked.decisions(mesh) if known is None else known)

        order = sorted(meshes.values(), key=lambda mesh: (len(mesh), mesh.world_size), reverse=True)
        found = {
            mesh.sizes: offers
            for mesh, offers in zip(order, side_by_side(of_mesh, order), strict=True)
        }
        for sizes, offers in found.items():
            self._decided[sizes] = [offer.decided for offer in offers]
        return found

    def _asked(self, many: Sequence[int]) -> SubmeshQuery:
        sized = {count: self.sizes(self.sizes.batch // count) for count in many}
        cuts = {count: (each, self.cut(each)) for count, each in sized.items()}
        modes = tuple(dict.fromkeys(mode for mix in self._mixes for mode in mix))
        return SubmeshQuery(self.sizes, cuts, modes, self._readers, self.hardware, self.settings)

    @cached_property
    def _decided(self) -> dict[tuple[int, ...], list[SubmeshSharding]]:
        """Cached decisions by mesh sizes."""
        return {}

    def _tables(self, offers: Sequence[Named]) -> tuple[StageTable, ...]:
        """Return a table of all ways for each number of microbatches that some decision fits."""
        counted = sorted({count for _, _, offer in offers for count in offer.figures})
        return tuple(
            self._table(count, [each for each in offers if count in each[2].figures])
            for count in counted
        )

    def _table(self, count: int, offers: Sequence[Named]) -> StageTable:
        """Return the table of all ways for one number of microbatches."""
        sized = self.sizes(self.sizes.batch // count)
        at_cut = dict(crossing(sized.graph))
        across = [at_cut[self._stands[self.places.cut(p)]] for p in range(1, self._last)]
        read = [_border(offer.decided, sized.graph, across) for _, _, offer in offers]
        borders = sorted(set(read))
        crossed = [(), *across, ()]
        ranges = Ranges(self._chain)
        meshes = {offer.decided.mesh: None for _, _, offer in offers}
        handled = {mesh: self._handled(crossed, mesh) for mesh in meshes}
        ways = [
            way(
                way_name(name, mix),
                offer.decided.mesh,
                shape.hosts,
                ranges,
                self._chain.in_turn([offer.figures[count][mode] for mode in mix]),
                offer.ties,
                borders.index(border),
                handled[offer.decided.mesh],
            )
            for (name, shape, offer), border in zip(offers, read, strict=True)
            for mix in self._mixes
        ]
        link = link_between(self.hardware, self.mesh.world_size)
        send, back = passing(crossed, borders, link)
        return StageTable(count, tuple(ways), send, back, latency_s(link, self.hardware))

    def _handled(self, crossed: Sequence[Sequence[Tensor]], mesh: Mesh) -> tuple[Array, Array]:
        """Return [position]: a rank's own seconds for the crossing tensors, and for their gradients."""
        prices = prices_of(mesh, self.hardware, self.settings)
        forward = [prices.messages(len(tensors)) for tensors in crossed]
        back = [prices.messages(sum(t.differentiable for t in tensors)) for tensors in crossed]
        return np.array(forward), np.array(back)

    def cut(self, sized: Sized) -> Cut:
        """Return the graph in pieces; repeated calls return the same object."""
        if sized.samples not in self._cuts:
            pieces = split(sized.graph, self._folded_cuts).graphs
            self._cuts[sized.samples] = Cut(sized.samples, tuple(pieces), sized.saved)
        return self._cuts[sized.samples]

    @cached_property
    def _cuts(self) -> dict[int, Cut]:
        return {}

    @cached_property
    def _mixes(self) -> tuple[Mix, ...]:
        """The recomputation modes of blocks: the same for all, or two adjacent modes in turn."""
        asked = self.settings.recompute
        modes = (asked,) if asked else MODES if blocks(self.whole) else MODES[:1]
        pairs = itertools.pairwise(modes)
        return (*((mode,) for mode in modes), *(mix for pair in pairs for mix in _between(*pair)))

    @property
    def _last(self) -> int:
        return len(self.places.positions) - 1

    @cached_property
    def _stands(self) -> Mapping[str, str]:
        return fold(self.whole).stands_for

    @cached_property
    def _folded_cuts(self) -> tuple[str, ...]:
        """The first operators of the folded graph's pieces, in its order."""
        order = [node.name for node in self.sizes(self.sizes.batch).graph.nodes]
        begins = {self._stands[cut] for cut in self.places.pieces}
        return tuple(sorted(begins, key=order.index))

    @cached_property
    def _chain(self) -> Chain:
        number = {name: place + 1 for place, name in enumerate(self._folded_cuts)}
        like = (0, *(number[self._stands[cut]] for cut in self.places.pieces))
        blocks_of = [block_of(self.whole.node[cut].origin) for cut in self.places.pieces]
        numbers = (0, *(block[1] if block else 0 for block in blocks_of))
        return Chain(like, numbers, self.places.positions)

    @cached_property
    def _readers(self) -> Mapping[str, tuple[int, ...]]:
        """The pieces that read a parameter, by the user's name; only parameters read by several."""
        everywhere = shared(self.whole)
        starts = set(self.places.pieces)
        piece, of = 0, {}
        for node in computing(self.whole):
            piece += node.name in starts
            if node.name not in everywhere:
                of[node.name] = piece
        found = {
            node.target: tuple(
                sorted(
                    {of[r.name] for r in self.whole.consumers[node.outputs[0].name] if r.name in of}
                )
            )
            for node in self.whole.leaves("parameter")
        }
        return {name: pieces for name, pieces in found.items() if len(pieces) > 1}


def _between(one: Recompute, other: Recompute) -> tuple[Mix, ...]:
    """Return two mixes: the other mode in one and in two of every three blocks."""
    return (one, one, other), (one, other, other)


def way_name(name: str, mix: Mix) -> str:
    """Return the name of an option's way with one mix; without recomputation the option's own name."""
    return name if mix == ("none",) else f"{name} {'+'.join(mix)}"


def _border(decided: SubmeshSharding, graph: Graph, across: Sequence[Sequence[object]]) -> Border:
    """Return how a decision shards the tensors that cross cuts, in the form of their first reader."""
    forms = []
    for name in dict.fromkeys(t.name for tensors in across for t in tensors):  # type: ignore[attr-defined]
        reader = next(iter(graph.consumers[name]), None)
        form = decided.made(graph, name)
        if reader is not None:
            inputs = decided.choice[reader.name].inputs
            form = dict(zip(reader.operands, inputs, strict=True))[name]
        tiles = 1
        for axis, kind in enumerate(form):
            tiles *= decided.mesh.sizes[axis] if isinstance(kind, S) else 1
        forms.append((graph.tensors[name], tiles))
    return Border(decided.mesh.world_size, tiles_of(forms))
