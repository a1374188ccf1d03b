"""The cheapest assignment within a limit on bytes, and a proof of how good it is.

For a price p >= 0 per byte,  g(p) = min_x ticks(x) + p * (bytes(x) - limit)  is a lower bound on every
assignment within the limit (weak duality).  g is concave and piecewise linear; its maximum is found
exactly by walking along the lower convex hull of all (bytes, ticks), from the two assignments that
enclose the limit to the segment that crosses it; the best mixture of its ends is near the optimum.
Where a gap is left, states whose best assignment at that price costs more than what is known already
are dropped (reduced-cost fixing), and the rest is searched with Pareto sets: the answer is then optimal,
or keeps the bound of g.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autopar.errors import InfeasibleError, OverLimitError
from autopar.problem import Assignment, Problem, Proof
from autopar.solve.crossover import mixtures
from autopar.solve.dominance import Reduced, reduced, undecided
from autopar.solve.elimination import Elimination, eliminate
from autopar.solve.frontier import TooManyPoints, cheapest_within
from autopar.solve.marginals import marginals
from autopar.solve.network import Network
from autopar.solve.overlap import Balanced, balanced, halves

CLOSE = 5e-4
"""A gap, relative to the cost, that is reported and not closed."""
LEAST_BYTES = math.inf
"""The price at which nothing but bytes counts."""


@dataclass(frozen=True)
class Point:
    """One assignment of the (undominated) network."""

    states: tuple[int, ...]
    ticks: float
    nbytes: float


def solve(problem: Problem, limit: float | None = None) -> Assignment:
    """The best assignment, within `limit` bytes where one is given, with a proven lower bound.

    Raises `InfeasibleError` where nothing is allowed, or nothing fits: it names the least that would.
    """
    return Ready.of(problem).solve(limit)


def hull(problem: Problem) -> tuple[Assignment, ...]:
    """The lower convex hull of (bytes, seconds) of all assignments, from the fastest to the smallest.

    Each is optimal within its own bytes, where nothing hides.  Otherwise they are what is best of
    three hulls: with everything hidden, with nothing hidden, and at the share of the fastest.  The
    bound of each is of all within its bytes.
    """
    ready = Ready.of(problem)
    networks = _exposed(ready.left.network)
    answers = [
        ready.answer(states, bound, "hull")
        for network in networks
        for states, bound in _hull(network)
    ]
    kept: list[Assignment] = []
    for answer in sorted(answers, key=lambda one: (one.seconds, one.nbytes)):
        if not kept or answer.nbytes < kept[-1].nbytes:
            kept.append(answer)
    return tuple(kept)


@dataclass(frozen=True, eq=False)
class Ready:
    """A problem without dominated states: what several limits have in common is done once."""

    problem: Problem
    left: Reduced

    @classmethod
    def of(cls, problem: Problem) -> Ready:
        """Count ticks, drop what is dominated."""
        return cls(problem, reduced(Network.of(problem)))

    def solve(self, limit: float | None = None) -> Assignment:
        """See `solve`."""
        network, found = self.left.network, self._free
        if limit is not None and network.nbytes(found.states) > limit:
            found = balanced(network, limit, lambda exposed: _best_within(exposed, limit))
        return self.answer(found.states, found.bound, found.proof)

    @cached_property
    def _free(self) -> Balanced:
        network = self.left.network
        found = balanced(network, math.inf, lambda exposed: _best_within(exposed, math.inf))
        is_far = found.bound < (1.0 - CLOSE) * _paid(network, found.states)
        may_close = is_far and found.proof != "mini-buckets"
        return _closed_halves(network, found) if may_close else found

    def answer(self, states: tuple[int, ...], bound: float, proof: Proof) -> Assignment:
        """States and a bound of the network in terms of the problem."""
        whole = self.left.whole(states)
        seconds, nbytes = self.problem.seconds(whole), self.problem.nbytes(whole)
        bound_s = min(seconds, bound * self.left.network.tick_s)
        sizes = self.left.network.sizes
        return Assignment(whole, seconds, nbytes, bound_s, proof, (len(sizes), sum(sizes)))


def _exposed(network: Network) -> list[Network]:
    """The networks of seconds that no assignment undercuts: lower bounds, the higher the better."""
    if not network.hides:
        return [network]
    share = balanced(network, math.inf, lambda exposed: _best_within(exposed, math.inf)).share
    return [network.exposing(share) for share in sorted({0.0, share, 1.0})]


def _hull(network: Network) -> Iterator[tuple[tuple[int, ...], float]]:
    """States of the corners, and lower bounds on all assignments within their bytes."""
    free, smallest = eliminate(network), _point(network, LEAST_BYTES)
    fast = Point(free.states, network.ticks(free.states), network.nbytes(free.states))
    small, bound, _ = _within(network, smallest.nbytes, free)
    corners = [(fast, free.bound), *_between(network, fast, small), (small, bound)]
    unique = {(point.ticks, point.nbytes): (point, bound) for point, bound in corners}
    for point, bound in unique.values():
        yield point.states, bound


def best_with_each_state(problem: Problem, variable: int) -> tuple[float, ...]:
    """Seconds of the best assignment for each state of one variable; all others are free.

    Where communication hides, they are lower bounds: the highest of a few.
    Raises `InfeasibleError` where nothing is allowed, and where tables would grow too large to tell.
    """
    left = undecided(Network.of(problem))
    bounds = [_with_each_state(network, left, variable) for network in _exposed(left.network)]
    return tuple(max(ticks) * left.network.tick_s for ticks in zip(*bounds, strict=True))


def _with_each_state(network: Network, left: Reduced, variable: int) -> tuple[float, ...]:
    found = eliminate(network)
    if not found.is_exact:
        raise InfeasibleError(
            "The tables of this problem are too large to compare all alternatives. Constrain some "
            "tensors, or use fewer mesh axes."
        )
    if variable not in left.undecided:
        return (found.bound,)
    return tuple(marginals(found, network.sizes).of_states[left.undecided.index(variable)].tolist())


def _between(network: Network, fast: Point, small: Point) -> list[tuple[Point, float]]:
    """Corners of the hull strictly between two of its points (dichotomic search; Cohon 1978).

    With each comes a lower bound on all assignments within its bytes.
    """
    if fast.nbytes <= small.nbytes or fast.ticks >= small.ticks:
        return []
    price = (small.ticks - fast.ticks) / (fast.nbytes - small.nbytes)
    found = eliminate(network, price)
    corner = Point(found.states, network.ticks(found.states), network.nbytes(found.states))
    if corner.ticks + price * corner.nbytes >= fast.ticks + price * fast.nbytes - _slack(network):
        return []
    before, after = _between(network, fast, corner), _between(network, corner, small)
    return [*before, (corner, found.bound - price * corner.nbytes), *after]


def _paid(network: Network, states: tuple[int, ...]) -> float:
    return network.ticks(states) + max(0.0, network.uncovered(states))


def _closed_halves(network: Network, found: Balanced) -> Balanced:
    """The best of both halves, and the lower of their bounds, where that says more."""
    states, bound, proofs = found.states, math.inf, set[Proof]()
    for half, limit in halves(network):
        try:
            these, at_least, proof = _best_within(half, limit)
        except InfeasibleError:
            continue
        states = min(states, these, key=lambda one: _paid(network, one))
        bound = min(bound, at_least)
        proofs.add(proof)
    says_more = bound > found.bound
    return replace(
        found,
        states=states,
        bound=min(max(found.bound, bound), _paid(network, states)),
        proof="pareto" if says_more and proofs <= {"elimination", "pareto"} else "lagrange",
    )


def _best_within(network: Network, limit: float) -> tuple[tuple[int, ...], float, Proof]:
    best, bound, proof = _within(network, limit, eliminate(network))
    return best.states, bound, proof


def _within(network: Network, limit: float, free: Elimination) -> tuple[Point, float, Proof]:
    """The best assignment found within the limit, and a proven lower bound on all of them."""
    fast = Point(free.states, network.ticks(free.states), network.nbytes(free.states))
    if fast.nbytes <= limit:
        return fast, free.bound, "elimination" if free.is_exact else "mini-buckets"
    walk = _Walk(network, limit, fast, free)
    if walk.bound < (1.0 - CLOSE) * walk.best.ticks:
        closed = _closed(network, limit, walk)
        if closed is not None:
            return closed, closed.ticks, "pareto"
    return walk.best, min(walk.bound, walk.best.ticks), "lagrange"


def _point(network: Network, price: float) -> Point:
    states = eliminate(network, price).states
    return Point(states, network.ticks(states), network.nbytes(states))


def _slack(network: Network) -> float:
    """Priced bytes are rounded down, once per table."""
    return float(len(network.tables))


class _Walk:
    """Along the hull to the segment over the limit; the best assignment and the bound met there."""

    def __init__(self, network: Network, limit: float, outside: Point, free: Elimination) -> None:
        inside = _point(network, LEAST_BYTES)
        if inside.nbytes > limit:
            raise OverLimitError(
                f"No assignment fits {readable(limit)}: the smallest needs {readable(inside.nbytes)}.",
                inside.nbytes,
            )
        self.best, self.bound = inside, free.bound
        self.price, self.found = 0.0, free
        while inside.ticks > outside.ticks:
            price = (inside.ticks - outside.ticks) / (outside.nbytes - inside.nbytes)
            found = eliminate(network, price)
            if found.bound - price * limit > self.bound:
                self.bound, self.price, self.found = found.bound - price * limit, price, found
            states = found.states
            here = Point(states, network.ticks(states), network.nbytes(states))
            if here.nbytes <= limit and here.ticks < self.best.ticks:
                self.best = here
            on_line = here.ticks + price * here.nbytes
            if on_line >= outside.ticks + price * outside.nbytes - _slack(network):
                break
            if here.nbytes <= limit:
                inside = here
            else:
                outside = here
        for states in mixtures(network, outside.states, inside.states):
            here = Point(states, network.ticks(states), network.nbytes(states))
            if here.nbytes <= limit and here.ticks < self.best.ticks:
                self.best = here


def _closed(network: Network, limit: float, walk: _Walk) -> Point | None:
    """The optimum, where it can be found with Pareto sets; None where there are too many."""
    if not walk.found.is_exact:
        return None
    cutoff = walk.best.ticks + walk.price * limit + _slack(network)
    costs = marginals(walk.found, network.sizes).of_states
    hopeful = [np.flatnonzero(cost <= cutoff) for cost in costs]
    if any(len(states) == 0 for states in hopeful):
        return walk.best
    smaller = reduced(network.restricted(hopeful))
    order = eliminate(smaller.network, walk.price)
    if not order.is_exact:
        return None
    try:
        states = cheapest_within(smaller.network, limit, walk.best.ticks, walk.price, order)
    except TooManyPoints:
        return None
    if states is None:
        return walk.best
    back = tuple(
        int(kept[state]) for kept, state in zip(hopeful, smaller.whole(states), strict=True)
    )
    return Point(back, network.ticks(back), network.nbytes(back))


def readable(nbytes: float) -> str:
    """Bytes in the largest unit that fits."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
