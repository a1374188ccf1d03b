"""What the pieces of a decision spend, in every size of a microbatch and every mode of recomputation.

Which collectives are issued and which tensors are kept does not depend on the size, and their bytes are
linear in it: they are counted for the smallest and the largest size, and lie on the line between.  (The
largest operator's bytes are a maximum of lines, and the line between two of its values is above it.)
Seconds are priced for each size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autopar.blocks import Recompute, blocks
from autopar.conversion import Traffic
from autopar.graph import Graph, Node, Saved
from autopar.plan import Conversion, OpSharding
from autopar.pricing.keeps import Keeps
from autopar.pricing.operators import OperatorSeconds, operator_seconds
from autopar.pricing.prices import Prices
from autopar.pricing.recomputed import Again, again
from autopar.pricing.spent import Issued, Once, SecondsOf, Spent, issued, once, spent
from autopar.staging.decided import PieceChoices


@dataclass(frozen=True, eq=False)
class Cut:
    """A graph for microbatches of one size, in pieces."""

    samples: int
    pieces: tuple[Graph, ...]
    saved: Mapping[str, Saved]


@dataclass(frozen=True)
class Outline:
    """What a piece computes again in one mode, and its conversions then."""

    again: Again
    conversions: tuple[Conversion, ...]


@dataclass(eq=False)
class Figures:
    """Of one decision, written out for pieces; `ends`: the smallest and the largest that it fits."""

    chosen: Sequence[PieceChoices]
    ends: tuple[Cut, Cut]
    prices: Prices
    precision: str
    _once: dict[int, Once] = field(default_factory=dict, init=False)
    _outlines: dict[tuple[int, Recompute], Outline] = field(default_factory=dict, init=False)
    _counted: dict[tuple[int, Recompute, int], Issued] = field(default_factory=dict, init=False)

    def spent(self, cut: Cut, mode: Recompute, seconds_of: SecondsOf) -> list[Spent]:
        """What every piece spends where all blocks do the same in the backward."""
        return [self._piece(place, cut, mode, seconds_of) for place in range(len(cut.pieces))]

    def _piece(self, place: int, cut: Cut, mode: Recompute, seconds_of: SecondsOf) -> Spent:
        if place not in self._once:
            parameters = self.chosen[place].parameters
            self._once[place] = once(cut.pieces[place], parameters, self.prices, self.precision)
        return spent(
            cut.pieces[place], self.chosen[place].choices, self._issued(place, cut, mode),
            self._once[place], self._outline(place, cut, mode).again, self.prices, seconds_of,
        )  # fmt: skip

    def _issued(self, place: int, cut: Cut, mode: Recompute) -> Issued:
        few, many = (self._count(place, end, mode) for end in self.ends)
        if cut.samples == self.ends[0].samples:
            return few
        if cut.samples == self.ends[1].samples:
            return many
        if not _are_alike(few, many):
            return self._count(place, cut, mode)
        low, high = (end.samples for end in self.ends)
        return _between(few, many, cut.samples - low, high - low)

    def _count(self, place: int, cut: Cut, mode: Recompute) -> Issued:
        key = place, mode, cut.samples
        if key not in self._counted:
            piece, chosen = cut.pieces[place], self.chosen[place]
            shardings = {choice.node: choice.sharding for choice in chosen.choices}
            outline = self._outline(place, cut, mode)
            keeps = Keeps(
                piece, shardings, outline.conversions, self.prices.mesh, cut.saved, outline.again
            )
            self._counted[key] = issued(piece, chosen.choices, keeps, self.prices, self.precision)
        return self._counted[key]

    def _outline(self, place: int, cut: Cut, mode: Recompute) -> Outline:
        if (place, mode) not in self._outlines:
            piece, chosen = cut.pieces[place], self.chosen[place]
            self._outlines[place, mode] = _outline(
                piece, chosen, self.prices, cut.saved, self.precision, mode
            )
        return self._outlines[place, mode]


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
    keeps = Keeps(piece, shardings, chosen.conversions, prices.mesh, saved, run_again)
    return Outline(run_again, keeps.effective())


def _are_alike(few: Issued, many: Issued) -> bool:
    return [(replace(part, nbytes=0), own) for part, own in few.sent] == [
        (replace(part, nbytes=0), own) for part, own in many.sent
    ]


def _between(few: Issued, many: Issued, part: int, whole: int) -> Issued:
    """On the line, `part` of `whole` above the smaller one."""

    def at(low: float, high: float) -> float:
        return low + (high - low) * part / whole

    pairs = zip(few.sent, many.sent, strict=True)
    sent = tuple((_sized(a, int(at(a.nbytes, b.nbytes))), own) for (a, own), (b, _) in pairs)
    return Issued(
        sent,
        at(few.kept_nbytes, many.kept_nbytes),
        at(few.working_nbytes, many.working_nbytes),
    )


def _sized(part: Traffic, nbytes: int) -> Traffic:
    return Traffic(part.axis, part.collective, part.direction, nbytes)


class Remembered:
    """Seconds of operators of one graph on one mesh; candidates are the same objects for many."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[OperatorSeconds, OpSharding]] = {}

    def __call__(
        self, node: Node, sharding: OpSharding, graph: Graph, prices: Prices
    ) -> OperatorSeconds:
        key = node.name, id(sharding)
        if key not in self._known:
            self._known[key] = operator_seconds(node, sharding, graph, prices), sharding
        return self._known[key][0]
