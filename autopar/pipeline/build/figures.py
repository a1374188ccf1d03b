"""Costs of the pieces under a sharding decision, for every microbatch size and recomputation mode.

The collectives issued and the tensors kept do not depend on the microbatch size, and their bytes are
linear in it.  They are counted for the smallest and the largest size and interpolated between.  (The
working set is a maximum of linear functions, so its interpolation is an upper bound.)  Seconds are
priced for each size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from autopar.cost.issued import Copied, Sent
from autopar.cost.operators import OperatorSeconds, operator_seconds
from autopar.cost.prices import Prices
from autopar.cost.spent import Issued, SecondsOf, Spent, issued, once, spent
from autopar.ir.blocks import Recompute, blocks
from autopar.ir.graph import Graph, Node, Saved
from autopar.memory.of_rank import divided
from autopar.memory.recompute_set import RecomputeSet, again
from autopar.memory.saved_tensors import SavedTensors
from autopar.pipeline.build.nameless import nameless
from autopar.pipeline.build.submesh_sharding import PieceChoices
from autopar.plans.decisions import Conversion, OpSharding

Sized = TypeVar("Sized", Sent, Copied)


@dataclass(frozen=True, eq=False)
class Cut:
    """A graph for one microbatch size, in pieces."""

    samples: int
    pieces: tuple[Graph, ...]
    saved: Mapping[str, Saved]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """A key per piece, equal for pieces that differ in names only."""
        return tuple(map(nameless, self.pieces))


@dataclass(frozen=True)
class Outline:
    """What a piece recomputes in one mode, and its conversions in that mode."""

    again: RecomputeSet
    conversions: tuple[Conversion, ...]


class Piece:
    """The costs of one piece under one decision."""

    def __init__(
        self,
        place: int,
        chosen: PieceChoices,
        ends: tuple[Cut, Cut],
        prices: Prices,
        precision: str,
    ) -> None:
        """`ends` are the smallest and the largest microbatch size that the decision fits."""
        self._place, self._chosen, self._ends = place, chosen, ends
        self._prices, self._precision = prices, precision
        piece = ends[0].pieces[place]
        self._once = once(piece, chosen.parameters, prices, precision)
        self._forgets = bool(blocks(piece))
        self._outlines: dict[Recompute, Outline] = {}
        self._counted: dict[tuple[int, Recompute], Issued] = {}
        self._spent: dict[tuple[int, Recompute], Spent] = {}

    def spent(self, cut: Cut, count: int, mode: Recompute, seconds_of: SecondsOf) -> Spent:
        """Return the costs in one of `count` microbatches if its blocks use this recomputation mode."""
        mode = mode if self._forgets else "none"
        key = cut.samples, mode
        if key not in self._spent:
            self._spent[key] = spent(
                cut.pieces[self._place], self._chosen.choices, self._issued(cut, mode),
                self._once, self._outline(cut, mode).again, self._prices, count, seconds_of,
            )  # fmt: skip
        return self._spent[key]

    def _issued(self, cut: Cut, mode: Recompute) -> Issued:
        few, many = (self._count(end, mode) for end in self._ends)
        if cut.samples == self._ends[0].samples:
            return few
        if cut.samples == self._ends[1].samples:
            return many
        if not _are_alike(few, many):
            return self._count(cut, mode)
        low, high = (end.samples for end in self._ends)
        return _between(few, many, cut.samples - low, high - low)

    def _count(self, cut: Cut, mode: Recompute) -> Issued:
        key = cut.samples, mode
        if key not in self._counted:
            piece, chosen = cut.pieces[self._place], self._chosen
            shardings = {choice.node: choice.sharding for choice in chosen.choices}
            outline = self._outline(cut, mode)
            mesh = self._prices.mesh
            saved = divided(cut.saved, piece, shardings, mesh)
            keeps = SavedTensors(piece, shardings, outline.conversions, mesh, saved, outline.again)
            self._counted[key] = issued(piece, chosen.choices, keeps, self._prices, self._precision)
        return self._counted[key]

    def _outline(self, cut: Cut, mode: Recompute) -> Outline:
        if mode not in self._outlines:
            piece = cut.pieces[self._place]
            self._outlines[mode] = _outline(
                piece, self._chosen, self._prices, cut.saved, self._precision, mode
            )
        return self._outlines[mode]


class Pieces:
    """Pieces under decisions on one mesh; pieces that differ in names only share one object."""

    def __init__(self, prices: Prices, precision: str) -> None:
        self._prices, self._precision = prices, precision
        self._known: dict[object, Piece] = {}

    def of(self, chosen: Sequence[PieceChoices], ends: tuple[Cut, Cut]) -> tuple[Piece, ...]:
        """Return the pieces of a decision; `ends` are the smallest and the largest size that it fits."""
        return tuple(self._at(place, each, ends) for place, each in enumerate(chosen))

    def _at(self, place: int, chosen: PieceChoices, ends: tuple[Cut, Cut]) -> Piece:
        kinds = tuple((end.samples, end.kinds[place]) for end in ends)
        key = kinds, chosen.nameless(ends[0].pieces[place])
        if key not in self._known:
            self._known[key] = Piece(place, chosen, ends, self._prices, self._precision)
        return self._known[key]


def _outline(
    piece: Graph,
    chosen: PieceChoices,
    prices: Prices,
    saved: Mapping[str, Saved],
    precision: str,
    mode: Recompute,
) -> Outline:
    recompute = {block.path: mode for block in blocks(piece)} if mode != "none" else {}
    shardings = {choice.node: choice.sharding for choice in chosen.choices}
    run_again = again(
        piece, shardings, chosen.conversions, recompute, saved, prices.mesh, precision
    )
    keeps = SavedTensors(piece, shardings, chosen.conversions, prices.mesh, saved, run_again)
    return Outline(run_again, keeps.effective())


def _are_alike(few: Issued, many: Issued) -> bool:
    def kinds(issued: Issued) -> tuple[list[Sent], list[Copied]]:
        return [each.sized(0) for each in issued.sent], [each.sized(0) for each in issued.copied]

    return kinds(few) == kinds(many)


def _between(few: Issued, many: Issued, part: int, whole: int) -> Issued:
    """Interpolate linearly at the fraction part / whole from `few` to `many`."""

    def at(low: float, high: float) -> float:
        return low + (high - low) * part / whole

    def all_at(low: Sequence[Sized], high: Sequence[Sized]) -> tuple[Sized, ...]:
        pairs = zip(low, high, strict=True)
        return tuple(a.sized(int(at(a.nbytes, b.nbytes))) for a, b in pairs)

    return Issued(
        all_at(few.sent, many.sent),
        all_at(few.copied, many.copied),
        at(few.kept_nbytes, many.kept_nbytes),
        at(few.working_nbytes, many.working_nbytes),
    )


class Remembered:
    """A cache of the seconds of operators of one graph on one mesh.

    The key is the identity of the sharding, since many decisions share candidate objects.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[OperatorSeconds, OpSharding]] = {}

    def __call__(
        self, node: Node, sharding: OpSharding, graph: Graph, prices: Prices
    ) -> OperatorSeconds:
        key = node.name, id(sharding)
        if key not in self._known:
            self._known[key] = operator_seconds(node, sharding, graph, prices), sharding
        return self._known[key][0]
