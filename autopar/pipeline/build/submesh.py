"""Finds a few sharding decisions for one logical mesh of a submesh, with the costs of each.

Meshes share little work, so different meshes can be processed in parallel.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autopar.cost.estimate import storage_bytes
from autopar.cost.spent import Spent
from autopar.ir.blocks import Recompute
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.figures import Cut, Pieces, Remembered
from autopar.pipeline.build.sizes import Sized, Sizes
from autopar.pipeline.build.submesh_sharding import SubmeshSharding, decide, of_pieces
from autopar.pipeline.build.ways import Tie
from autopar.sharding.sharding_problem import Settings, prices_of
from cost_models.hardware import Hardware

Figures = Mapping[Recompute, tuple[Spent, ...]]
"""The costs of each piece of the folded graph, by recomputation mode."""


@dataclass(frozen=True, eq=False)
class ShardingOption:
    """A sharding decision with the figures of its pieces, by number of microbatches that it fits."""

    decided: SubmeshSharding
    figures: Mapping[int, Figures]
    ties: tuple[Tie, ...]


@dataclass(frozen=True, eq=False)
class SubmeshQuery:
    """The inputs of the sweep, common to all submeshes.

    cuts      the folded graph in pieces, by number of microbatches
    modes     recomputation modes that blocks may use
    readers   pieces that read the same parameter, by its name
    """

    sizes: Sizes
    cuts: Mapping[int, tuple[Sized, Cut]]
    modes: tuple[Recompute, ...]
    readers: Mapping[str, tuple[int, ...]]
    hardware: Hardware
    settings: Settings

    def prepare(self, mesh: Mesh) -> None:
        """Compute the graphs needed for a mesh's decisions; they are cached for other meshes."""
        for samples in self._samples(mesh):
            self.sizes(samples)

    def decisions(self, mesh: Mesh) -> list[SubmeshSharding]:
        """Return the distinct decisions for microbatches of several sizes."""
        found: dict[object, SubmeshSharding] = {}
        for samples in self._samples(mesh):
            count = self.sizes.batch // samples
            for each in decide(self.sizes(samples), mesh, self.hardware, self.settings, count):
                found.setdefault(each.laid, each)
        return list(found.values())

    def offers(self, mesh: Mesh, decisions: Sequence[SubmeshSharding]) -> list[ShardingOption]:
        """Return options for all decisions of one mesh, including those that fit no microbatch size."""
        prices = prices_of(mesh, self.hardware, self.settings)
        pieces = Pieces(prices, self.settings.precision)
        seconds: defaultdict[int, Remembered] = defaultdict(Remembered)
        return [self._offer(decided, pieces, seconds) for decided in decisions]

    def _offer(
        self, decided: SubmeshSharding, pieces: Pieces, seconds: Mapping[int, Remembered]
    ) -> ShardingOption:
        fitting = {
            count: cut for count, (sized, cut) in self.cuts.items() if decided.fits(sized.graph)
        }
        if not fitting:
            return ShardingOption(decided, {}, ())
        first, cut = self.cuts[next(iter(fitting))]
        chosen = of_pieces(decided, first.graph, cut.pieces)
        parts = pieces.of(chosen, (fitting[max(fitting)], fitting[min(fitting)]))
        figures = {
            count: {
                mode: tuple(part.spent(cut, count, mode, seconds[count]) for part in parts)
                for mode in self.modes
            }
            for count, cut in fitting.items()
        }
        return ShardingOption(decided, figures, tuple(self._ties(decided, first.graph)))

    def _samples(self, mesh: Mesh) -> tuple[int, ...]:
        """Return the microbatch sizes for which a mesh's decisions are searched.

        One size is that of the outer axis, which then shards the batch while an inner axis shards
        tensors.  Another is a single sample for one axis within a host, which then shards tensors.
        """
        inside = len(mesh) == 1 and mesh.world_size <= self.hardware.devices_per_host
        wanted = (mesh.sizes[0], 1) if inside else (mesh.sizes[0],)
        return tuple(dict.fromkeys(self.sizes.least_like_batch(each) for each in wanted))

    def _ties(self, decided: SubmeshSharding, graph: Graph) -> Iterator[Tie]:
        prices = prices_of(decided.mesh, self.hardware, self.settings)
        leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
        for name, pieces in self.readers.items():
            if name in leaf:
                rests = decided.parameter[name]
                nbytes = storage_bytes(leaf[name], rests, prices, graph).total
                for first, later in itertools.pairwise(pieces):
                    yield first, later, nbytes
