"""A captured model as a `StageProblem`: positions, ways of every submesh, transfers, for several M.

One sweep: the folded graph is solved once or twice per mesh that a submesh may form; the few decisions
that come out are priced for every size of a microbatch and every mode of recomputation.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.blocks import MODES, Recompute, block_of, blocks
from autopar.capture.saved import saved
from autopar.graph import Graph, Tensor
from autopar.mesh import Mesh
from autopar.placement import S
from autopar.planning.posed import Settings, prices_of
from autopar.pricing.estimate import storage_bytes
from autopar.split import computing, crossing, shared, split
from autopar.stages import Family, StageProblem, StageTable
from autopar.stages.table import Array
from autopar.staging.borders import Border, latency_s, link_between, passing, tiles_of
from autopar.staging.decided import Decided, decide, of_pieces
from autopar.staging.figures import Cut, Piece, Pieces, Remembered
from autopar.staging.folded import fold
from autopar.staging.positions import Places
from autopar.staging.shapes import Shape, shapes
from autopar.staging.sizes import NotLinear, Sized, between
from autopar.staging.ways import Chain, Tie, way
from cost_models.hardware import Hardware

MOST_COUNTS = 8
"""Numbers of microbatches that are looked at."""
MOST_STAGES = 64


class Sizes:
    """The folded graph for any number of samples: two captures, and the line through both."""

    def __init__(
        self, batch: int, whole: Graph, capture: Callable[[int], Graph], kind: str = "cpu"
    ) -> None:
        """`kind`: of device."""
        self.batch, self._capture, self._kind = batch, capture, kind
        self._captured = {batch: _sized(batch, whole, kind)}
        self._known: dict[int, Sized] = {}

    def __call__(self, samples: int) -> Sized:
        """The graph of so many samples."""
        if samples not in self._known:
            is_end = samples in (1, self.batch)
            found = None if is_end else self._on_line(samples)
            self._known[samples] = found or self._at(samples)
        return self._known[samples]

    def is_like_batch(self, samples: int) -> bool:
        """Whether so many samples run the batch's operators: for one, some `expand` is nothing."""
        names = [[node.name for node in self(n).graph.nodes] for n in (samples, self.batch)]
        return names[0] == names[1]

    def least_like_batch(self, samples: int) -> int:
        """The size from `samples` on, doubled until it is like the batch."""
        while samples < self.batch and not self.is_like_batch(samples):
            samples *= 2
        return min(samples, self.batch)

    def _on_line(self, samples: int) -> Sized | None:
        """Through the batch and one sample, which may be what runs; where one is special, a part."""
        for other in (1, _largest_part(self.batch)):
            with suppress(NotLinear):
                return between(self._at(self.batch), self._at(other), samples)
        return None

    def _at(self, samples: int) -> Sized:
        """What a capture gives."""
        if samples not in self._captured:
            self._captured[samples] = _sized(samples, self._capture(samples), self._kind)
        return self._captured[samples]


def _largest_part(batch: int) -> int:
    return next((batch // part for part in range(2, batch) if batch % part == 0), 1)


def _sized(samples: int, graph: Graph, kind: str) -> Sized:
    folded = fold(graph).graph
    return Sized(samples, folded, saved(folded, kind))


def counts(batch: int) -> tuple[int, ...]:
    """The largest powers of two that divide the batch."""
    powers = [2**k for k in range(1, batch.bit_length()) if batch % 2**k == 0]
    return tuple(powers[-MOST_COUNTS:]) or (1,)


@dataclass(frozen=True, eq=False)
class Tabled:
    """The problem, and what its positions and ways mean."""

    problem: StageProblem
    places: Places
    decided: Mapping[str, Decided]
    """By the name of a way."""


Mix = tuple[Recompute, ...]
"""Modes of recomputation that blocks take in turn."""


@dataclass(frozen=True, eq=False)
class Offer:
    """A decision for submeshes of one shape; `name`: of its way in each mix of modes."""

    shape: Shape
    decided: Decided
    pieces: tuple[Piece, ...]
    name: Mapping[Mix, str]
    ties: tuple[Tie, ...]


@dataclass(frozen=True, eq=False)
class Sweep:
    """Everything that ways are made from."""

    whole: Graph
    places: Places
    sizes: Sizes
    mesh: Mesh
    hardware: Hardware
    settings: Settings
    memory_nbytes: float

    def tabled(self, families: tuple[Family, ...], many: Sequence[int]) -> Tabled:
        """The problem; raise where nothing could ever be planned."""
        decisions = [
            (shape, decided)
            for shape in shapes(self.mesh, self.hardware.devices_per_host)
            for mesh in shape.meshes
            for decided in self._decisions(mesh)
        ]
        known: dict[str, Decided] = {}
        tables = self._tables(many, decisions, known)
        problem = StageProblem(
            len(self.places.positions), self.mesh.world_size, self.memory_nbytes, tables,
            families, MOST_STAGES,
        )  # fmt: skip
        return Tabled(problem.check(), self.places, known)

    def least_alone_nbytes(self) -> float:
        """What the smallest plan of the sweep takes without stages and microbatches, on the mesh itself.

        It is the solver's answer for least bytes, with as much recomputation as there can be.
        """
        shape = Shape(1, self.mesh.world_size, (self.mesh,))
        decisions = [(shape, decided) for decided in self._decisions(self.mesh)]
        return min(
            (
                float((way.rest_nbytes + way.kept_nbytes + way.working_nbytes)[0, -1])
                for table in self._tables((1,), decisions, {})
                for way in table.ways
            ),
            default=0.0,
        )

    def _decisions(self, mesh: Mesh) -> list[Decided]:
        """Of microbatches of several sizes; the same objects, however often they are asked for."""
        if mesh.sizes not in self._decided:
            self._decided[mesh.sizes] = self._sought(mesh)
        return self._decided[mesh.sizes]

    @cached_property
    def _decided(self) -> dict[tuple[int, ...], list[Decided]]:
        return {}

    def _sought(self, mesh: Mesh) -> list[Decided]:
        batch, per_host = self.sizes.batch, self.hardware.devices_per_host
        found: dict[object, Decided] = {}
        least = (self.sizes.least_like_batch(n) for n in _samples(mesh, per_host))
        for samples in dict.fromkeys(least):
            for each in decide(
                self.sizes(samples), mesh, self.hardware, self.settings, batch // samples
            ):
                found.setdefault(each.laid, each)
        return list(found.values())

    def _tables(
        self,
        many: Sequence[int],
        decisions: Sequence[tuple[Shape, Decided]],
        known: dict[str, Decided],
    ) -> tuple[StageTable, ...]:
        """All ways, for each number of microbatches that some decision fits; `known` by name."""
        sizes = {count: self.sizes(self.sizes.batch // count) for count in many}
        fitting: defaultdict[int, list[Offer]] = defaultdict(list)
        for number, (shape, decided) in enumerate(decisions):
            fits = [count for count, sized in sizes.items() if decided.fits(sized.graph)]
            if fits:
                ends = self.cut(sizes[max(fits)]), self.cut(sizes[min(fits)])
                offer = self._offer(number, shape, decided, sizes[fits[0]], ends)
                known.update((name, decided) for name in offer.name.values())
            for count in fits:
                fitting[count].append(offer)
        return tuple(self._table(count, sizes[count], fitting[count]) for count in sorted(fitting))

    def _offer(
        self, number: int, shape: Shape, decided: Decided, sized: Sized, ends: tuple[Cut, Cut]
    ) -> Offer:
        chosen = of_pieces(decided, sized.graph, self.cut(sized).pieces)
        if decided.mesh not in self._pieces:
            prices = prices_of(decided.mesh, self.hardware, self.settings)
            self._pieces[decided.mesh] = Pieces(prices, self.settings.precision)
        pieces = self._pieces[decided.mesh].of(chosen, ends)
        name = f"{'x'.join(map(str, decided.mesh.sizes))} #{number}"
        names = {mix: " ".join((name, *_said(mix))) for mix in self._mixes}
        return Offer(shape, decided, pieces, names, tuple(self._ties(decided, sized.graph)))

    def _table(self, count: int, sized: Sized, offers: Sequence[Offer]) -> StageTable:
        """All ways for one number of microbatches."""
        at_cut = dict(crossing(sized.graph))
        across = [at_cut[self._stands[self.places.cut(p)]] for p in range(1, self._last)]
        read = [_border(each.decided, sized.graph, across) for each in offers]
        borders = sorted(set(read))
        cut = self.cut(sized)
        crossed = [(), *across, ()]
        seconds: defaultdict[Mesh, Remembered] = defaultdict(Remembered)
        ways = [
            way(
                name,
                each.decided.mesh,
                each.shape.hosts,
                self._chain,
                self._chain.in_turn(
                    [
                        [p.spent(cut, mode, seconds[each.decided.mesh]) for p in each.pieces]
                        for mode in mix
                    ]
                ),
                each.ties,
                borders.index(border),
                self._handled(crossed, each.decided.mesh),
            )
            for each, border in zip(offers, read, strict=True)
            for mix, name in each.name.items()
        ]
        link = link_between(self.hardware, self.mesh.world_size)
        send, back = passing(crossed, borders, link)
        return StageTable(count, tuple(ways), send, back, latency_s(link, self.hardware))

    def _handled(self, crossed: Sequence[Sequence[Tensor]], mesh: Mesh) -> tuple[Array, Array]:
        """[position] of one rank's own seconds for what crosses there, and for its gradients."""
        prices = prices_of(mesh, self.hardware, self.settings)
        forward = [prices.messages(len(tensors)) for tensors in crossed]
        back = [prices.messages(sum(t.differentiable for t in tensors)) for tensors in crossed]
        return np.array(forward), np.array(back)

    def cut(self, sized: Sized) -> Cut:
        """In pieces; the same object, however often it is asked for."""
        if sized.samples not in self._cuts:
            pieces = split(sized.graph, self._folded_cuts).graphs
            self._cuts[sized.samples] = Cut(sized.samples, tuple(pieces), sized.saved)
        return self._cuts[sized.samples]

    @cached_property
    def _cuts(self) -> dict[int, Cut]:
        return {}

    @cached_property
    def _pieces(self) -> dict[Mesh, Pieces]:
        return {}

    @cached_property
    def _mixes(self) -> tuple[Mix, ...]:
        """What blocks may do in the backward: all the same, or in turn two modes that are neighbours."""
        asked = self.settings.recompute
        modes = (asked,) if asked else MODES if blocks(self.whole) else MODES[:1]
        return (*((mode,) for mode in modes), *itertools.pairwise(modes))

    @property
    def _last(self) -> int:
        return len(self.places.positions) - 1

    @cached_property
    def _stands(self) -> Mapping[str, str]:
        return fold(self.whole).stands_for

    @cached_property
    def _folded_cuts(self) -> tuple[str, ...]:
        """Where pieces of the folded graph begin, in its order."""
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
        """Parameters that several pieces read, by the user's name."""
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

    def _ties(self, decided: Decided, graph: Graph) -> Iterator[Tie]:
        prices = prices_of(decided.mesh, self.hardware, self.settings)
        leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
        for name, pieces in self._readers.items():
            if name in leaf:
                rests = decided.parameter[name]
                nbytes = storage_bytes(leaf[name], rests, prices, graph).total
                for first, later in itertools.pairwise(pieces):
                    yield first, later, nbytes


def _said(mix: Mix) -> tuple[str, ...]:
    """In words; nothing where nothing is recomputed."""
    return () if mix == ("none",) else ("+".join(mix),)


def _samples(mesh: Mesh, per_host: int) -> tuple[int, ...]:
    """Sizes of microbatches for which a mesh's decisions are sought.

    As many as the outer axis has devices: it divides the batch, an inner one divides tensors.  One: an
    axis inside a host divides tensors, too.
    """
    inside = len(mesh) == 1 and mesh.world_size <= per_host
    return (mesh.sizes[0], 1) if inside else (mesh.sizes[0],)


def _border(decided: Decided, graph: Graph, across: Sequence[Sequence[object]]) -> Border:
    """How a decision divides what crosses cuts: as it is first read there."""
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
