"""Communication that runs beside compute: the least A(x) + max(0, U(x)) over all assignments.

A counts what always takes time, U the *uncovered* ticks: hideable communication less the compute that
can hide it.  For a share q between 0 and 1,  g(q) = min_x A(x) + q U(x)  is a lower bound on every
assignment, as q U <= max(0, U).  g is concave; its maximum is found by walking along the lower convex
hull of all (U, A), from the best assignment with everything hidden (q = 0) to the one with nothing
hidden (q = 1).  If the former hides all that it has, or the latter leaves no compute unused, it is
optimal.  Otherwise a gap may be left.  It is closed in halves, each of which is a problem with a limit:
least A where U <= 0, and least A + U where U >= 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from autopar.errors import InfeasibleError
from autopar.problem import Array, Proof
from autopar.solve.crossover import mixtures
from autopar.solve.network import Network, Shared

Best = Callable[[Network], tuple[tuple[int, ...], float, Proof]]
"""A solver of networks in which nothing is covered: states within the limit, a bound in ticks, and how
it was got."""


@dataclass(frozen=True)
class Balanced:
    """States, a lower bound on every assignment in ticks, how and at which share it was got."""

    states: tuple[int, ...]
    bound: float
    proof: Proof
    share: float


def balanced(network: Network, limit: float, best: Best) -> Balanced:
    """The best assignment within `limit` bytes that `best` finds at any share, mixtures of its
    neighbours included, and the highest bound that it proves."""
    if not network.hides:
        return Balanced(*best(network), 1.0)
    walk = _Walk(network, limit, best)
    hidden = walk.at(0.0)
    if hidden.uncovered > 0 and (shown := walk.at(1.0)).uncovered < 0:
        walk.between(hidden, shown)
    if math.isinf(walk.ticks):
        raise InfeasibleError(
            "The tables of this problem are too large, and no allowed assignment was found without "
            "them. Constrain some tensors, or use fewer mesh axes."
        )
    return Balanced(walk.states, min(walk.bound, walk.ticks), walk.proof, walk.share)


def halves(network: Network) -> tuple[tuple[Network, float], tuple[Network, float]]:
    """Networks without uncovered ticks, and their limits in bytes, which stand for ticks here.

    The first has the assignments that hide all they have, the second those that leave nothing unused.
    """
    return (
        _rationed(network.exposing(0.0), [table.uncovered for table in network.tables]),
        _rationed(network.exposing(1.0), [-table.uncovered for table in network.tables]),
    )


def _rationed(network: Network, amounts: list[Array]) -> tuple[Network, float]:
    """With these amounts as bytes, raised to be positive, and the limit that means a sum of zero."""
    least = [float(amount.min()) for amount in amounts]
    shared = Shared(network.tick_s)
    tables = tuple(
        replace(table, nbytes=shared.nbytes(amount - low))
        for table, amount, low in zip(network.tables, amounts, least, strict=True)
    )
    return replace(network, tables=tables), -sum(least)


@dataclass(frozen=True)
class _Point:
    states: tuple[int, ...]
    ticks: float
    uncovered: float


class _Walk:
    """The best assignment and the highest bound that were met."""

    def __init__(self, network: Network, limit: float, best: Best) -> None:
        self._network, self._limit, self._best = network, limit, best
        self.states: tuple[int, ...] = ()
        self.ticks, self.bound, self.share = math.inf, -math.inf, 0.0
        self._by: Proof = "none"

    @property
    def proof(self) -> Proof:
        """At the ends of the walk a bound that is met is the optimum; elsewhere duality is weak."""
        is_met = self.share in (0.0, 1.0) and self.bound >= self.ticks
        return self._by if is_met or self._by == "mini-buckets" else "lagrange"

    def at(self, share: float) -> _Point:
        """The best assignment when uncovered ticks are paid at this share."""
        states, bound, proof = self._best(self._network.exposing(share))
        if bound > self.bound:
            self.bound, self.share, self._by = bound, share, proof
        return self._seen(states)

    def _seen(self, states: tuple[int, ...]) -> _Point:
        here = _Point(states, self._network.ticks(states), self._network.uncovered(states))
        paid = here.ticks + max(0.0, here.uncovered)
        if paid < self.ticks and self._network.nbytes(states) <= self._limit:
            self.states, self.ticks = states, paid
        return here

    def between(self, hidden: _Point, shown: _Point) -> None:
        """To the segment of the hull that crosses U = 0."""
        slack = float(len(self._network.tables))
        while shown.ticks > hidden.ticks:
            share = (shown.ticks - hidden.ticks) / (hidden.uncovered - shown.uncovered)
            here = self.at(min(1.0, share))
            if (
                here.ticks + share * here.uncovered
                >= hidden.ticks + share * hidden.uncovered - slack
            ):
                break
            if here.uncovered > 0:
                hidden = here
            else:
                shown = here
        for states in mixtures(self._network, hidden.states, shown.states):
            self._seen(states)
