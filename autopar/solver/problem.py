"""The solver's problem as plain arrays: no torch, no meshes, no names of parallelisms.

Choose one state per variable so that the sum of all unary costs and all factor tables is least, and
the sums of bytes stay within limits.  It can be written by hand, saved and brute-forced.

Some bytes are allocated for the whole training run; others are *kept* from a forward to its backward,
once for every microbatch in flight.  A limit on such sums counts all of them at once.  `timed` says of
the same bytes when they are in use: a limit may hold at one time only.

Some communication overlaps with compute.  It counts as *uncovered* seconds, and the compute that can
hide it as negative ones.  Only the positive part of their sum is paid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autopar.errors import PlanError
from autopar.solver.table_groups import TableGroup, grouped

Array = NDArray[np.float64]
MOST_SECONDS = 1e100
"""Sums of more might overflow."""
MOST_BYTES = float(2**53)
"""More cannot be counted exactly in float64."""
MOST_TIMES = 2**24
"""Later times would take too much memory to add up."""

Proof = Literal[
    "elimination",
    "mini-buckets",
    "lagrange",
    "pareto",
    "hull",
    "lp",
    "branch",
    "brute force",
    "none",
]
"""How a lower bound was proven.

elimination   the optimum of all assignments
mini-buckets  the optimum of a relaxation: tables that would grow too large are minimised in parts
lagrange      weak duality: the optimum with a price per byte and per uncovered second, less the
              prices of what is allowed; or the least of that over branches that leave nothing out
pareto        the optimum within a limit, from all (seconds, bytes) that nothing beats
hull          `lagrange`, the limit being the assignment's own bytes
lp, branch    integer programming: the linear relaxation was whole, or was branched on
brute force   every assignment was enumerated
none          no solver has run; costs are not negative
"""


@dataclass(frozen=True, eq=False)
class TimedBytes:
    """Bytes, by states, that are in use from the time `start` until before `stop`."""

    start: int
    stop: int
    nbytes: Array


@dataclass(frozen=True, eq=False)
class Variable:
    """A decision with `len(seconds)` states; each state costs seconds and bytes.

    `uncovered`: seconds that hide behind other states' negative ones; `kept`: bytes per microbatch in
    flight (None: zeros).  `timed`: the bytes of one microbatch over time (None: `nbytes`, always).
    """

    name: str
    seconds: Array
    nbytes: Array
    uncovered: Array | None = None
    kept: Array | None = None
    timed: tuple[TimedBytes, ...] | None = None

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class Factor:
    """What depends on several variables' states; infinite seconds forbid, None stands for zeros."""

    scope: tuple[int, ...]
    seconds: Array
    nbytes: Array | None = None
    uncovered: Array | None = None
    kept: Array | None = None
    timed: tuple[TimedBytes, ...] | None = None

    def in_use(self, time: int) -> tuple[Array, ...]:
        """The tables of bytes that add up to those in use at a time."""
        if self.timed is None:
            return () if self.nbytes is None else (self.nbytes,)
        return tuple(each.nbytes for each in self.timed if each.start <= time < each.stop)

    def at(self, states: Sequence[int]) -> tuple[int, ...]:
        """The place in the tables of an assignment of all variables."""
        return tuple(states[index] for index in self.scope)


@dataclass(frozen=True)
class Load:
    """What is added up of all tables: `resting` * nbytes + `in_flight` * kept.

    With a `time`, bytes in use then take the place of `nbytes`.
    """

    resting: float
    in_flight: float
    time: int | None = None

    def parts(self, factor: Factor) -> tuple[tuple[float, Array], ...]:
        """The tables of a factor that count, with their weights."""
        if self.time is not None:
            found = [(self.resting, array) for array in factor.in_use(self.time)]
        else:
            found = [] if factor.nbytes is None else [(self.resting, factor.nbytes)]
        if factor.kept is not None:
            found.append((self.in_flight, factor.kept))
        return tuple((weight, array) for weight, array in found if weight)


SUMS = (Load(1.0, 0.0), Load(0.0, 1.0))
"""Bytes that rest, and bytes that are kept per microbatch: limits without times are sums of these."""


@dataclass(frozen=True)
class Limit:
    """sum of nbytes + in_flight * sum of kept <= nbytes.

    With a `time`, the first sum is of the bytes in use at that time; `in_flight` then counts the other
    microbatches, whose bytes are kept meanwhile.
    """

    nbytes: float
    in_flight: float = 1.0
    time: int | None = None

    @property
    def load(self) -> Load:
        """What may not exceed `nbytes`."""
        return Load(1.0, self.in_flight, self.time)


Limits = float | Limit | Sequence[Limit] | None
"""Accepted forms of limits: a number of bytes is one limit with one microbatch in flight."""


def limits_of(given: Limits) -> tuple[Limit, ...]:
    """Return all limits; raise `PlanError` if one is NaN or its `in_flight` is negative or infinite."""
    if isinstance(given, Sequence):
        limits = tuple(given)
    elif given is None or isinstance(given, Limit):
        limits = () if given is None else (given,)
    else:
        limits = (Limit(given),)
    for limit in limits:
        if math.isnan(limit.nbytes) or not 0.0 <= limit.in_flight < math.inf:
            raise PlanError(
                f"{limit} is not a limit: it needs a number of bytes and in_flight >= 0."
            )
        if limit.time is not None and limit.time < 0:
            raise PlanError(f"{limit} is not a limit: times are counted from 0.")
    return limits


def loads_of(limits: Limits) -> tuple[Load, ...]:
    """Return the loads of all limits, or, where none has a time, the sums that they are made of."""
    given = limits_of(limits)
    if all(limit.time is None for limit in given):
        return SUMS
    return tuple(dict.fromkeys(limit.load for limit in given))


@dataclass(frozen=True, eq=False)
class Problem:
    """min  sum seconds[x] + max(0, sum uncovered[x])   subject to every `Limit`.

    Each sum runs over all variables, at their states, and all factors, at those of their scope.
    """

    variables: tuple[Variable, ...]
    factors: tuple[Factor, ...]

    def check(self) -> None:
        """Raise `PlanError` unless shapes agree, costs are numbers or infinite, and bytes count up."""
        for variable in self.variables:
            what = f"Variable {variable.name!r}"
            if variable.seconds.ndim != 1 or variable.size == 0:
                raise PlanError(
                    f"{what} needs a list of seconds, one per state, not {variable.seconds}."
                )
            if variable.nbytes.shape != variable.seconds.shape:
                raise PlanError(f"{what} needs equally many seconds and bytes.")
            _check_costs(what, variable.seconds, variable.nbytes)
            _check_kept(what, variable.kept, variable.seconds.shape)
            _check_uncovered(what, variable.uncovered, variable.seconds.shape)
            _check_timed(what, variable.timed, variable.seconds.shape)
        for factor in self.factors:
            what = f"Factor {factor.scope}"
            if any(not 0 <= index < len(self.variables) for index in factor.scope):
                raise PlanError(f"{what} refers to a variable that does not exist.")
            if len(set(factor.scope)) != len(factor.scope):
                raise PlanError(f"{what} names a variable twice.")
            shape = tuple(self.variables[index].size for index in factor.scope)
            if factor.seconds.shape != shape:
                raise PlanError(f"{what} has a table {factor.seconds.shape}, not {shape}.")
            if factor.nbytes is not None and factor.nbytes.shape != shape:
                raise PlanError(f"{what} has bytes {factor.nbytes.shape}, not {shape}.")
            _check_costs(what, factor.seconds, factor.nbytes)
            _check_kept(what, factor.kept, factor.seconds.shape)
            _check_uncovered(what, factor.uncovered, factor.seconds.shape)
            _check_timed(what, factor.timed, factor.seconds.shape)

    @property
    def tables(self) -> Iterator[Factor]:
        """Everything that is added up: variables as factors over themselves, and the factors."""
        for index, v in enumerate(self.variables):
            yield Factor((index,), v.seconds, v.nbytes, v.uncovered, v.kept, v.timed)
        yield from self.factors

    @cached_property
    def alike(self) -> tuple[TableGroup[Factor], ...]:
        """The tables, grouped by identity of their arrays."""
        return grouped(
            ((id(t.seconds), id(t.nbytes), id(t.uncovered), id(t.kept)), t, t.scope)
            for t in self.tables
        )

    def seconds(self, states: tuple[int, ...]) -> float:
        """The objective of one assignment."""
        return self._sum("seconds", states) + max(0.0, self.uncovered(states))

    def uncovered(self, states: tuple[int, ...]) -> float:
        """Seconds of hideable communication beyond the compute that can hide it; negative: spare."""
        return self._sum("uncovered", states)

    def nbytes(self, states: tuple[int, ...], in_flight: float = 1.0) -> float:
        """The bytes of one assignment, with so many microbatches in flight, as a sum."""
        return self._sum("nbytes", states) + in_flight * self._sum("kept", states)

    def load(self, states: tuple[int, ...], load: Load) -> float:
        """The bytes of one assignment that a limit counts."""
        if load.time is None:
            return load.resting * self.nbytes(states, 0.0) + load.in_flight * self._sum(
                "kept", states
            )
        parts = ((table, load.parts(table)) for table in self.tables)
        return float(
            sum(w * float(array[t.at(states)]) for t, found in parts for w, array in found)
        )

    @cached_property
    def times(self) -> int:
        """The number of times; zero where no bytes have any."""
        return max((each.stop for t in self.tables for each in t.timed or ()), default=0)

    def course(self, states: tuple[int, ...], in_flight: float = 0.0) -> Array:
        """Bytes in use at each time, [times], beside those of so many other microbatches."""
        chosen = np.array(states, dtype=np.intp)
        steps = np.zeros(self.times + 1)
        steps[0] = in_flight * self._sum("kept", states)
        for array, scopes, starts, stops in self._uses:
            nbytes = array[tuple(chosen[scopes])]
            np.add.at(steps, starts, nbytes)
            np.subtract.at(steps, stops, nbytes)
        total: Array = np.cumsum(steps)[:-1]
        return total

    def in_use(self, states: tuple[int, ...], time: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """The scope of each table with bytes in use at a time, and the bytes."""
        for table in self.tables:
            nbytes = sum(float(array[table.at(states)]) for array in table.in_use(time))
            if nbytes:
                yield table.scope, nbytes

    @cached_property
    def _uses(self) -> list[tuple[Array, NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
        """Each table of bytes, with the scopes, [dims, uses], the starts and the stops of its uses."""
        found: dict[int, list[tuple[tuple[int, ...], int, int]]] = {}
        arrays: dict[int, Array] = {}
        for table in self.tables:
            always = () if table.nbytes is None else (TimedBytes(0, self.times, table.nbytes),)
            for each in always if table.timed is None else table.timed:
                arrays[id(each.nbytes)] = each.nbytes
                use = table.scope, each.start, each.stop
                found.setdefault(id(each.nbytes), []).append(use)
        return [
            (
                arrays[key],
                np.array([scope for scope, _, _ in uses], dtype=np.intp).T,
                np.array([start for _, start, _ in uses], dtype=np.intp),
                np.array([stop for _, _, stop in uses], dtype=np.intp),
            )
            for key, uses in found.items()
        ]

    def _sum(self, part: str, states: tuple[int, ...]) -> float:
        """Over all tables, added up in their order."""
        chosen = np.array(states, dtype=np.intp)
        found = np.zeros(len(self.variables) + len(self.factors))
        for alike in self.alike:
            array = getattr(alike.content, part)
            if array is not None:
                found[alike.numbers] = array[tuple(chosen[alike.scopes])]
        return float(sum(found.tolist()))


@dataclass(frozen=True)
class Assignment:
    """A solver's answer: one state per variable, its cost, and a proven lower bound on any answer.

    `left` counts the variables that still had a choice after pruning, and their states.
    """

    states: tuple[int, ...]
    seconds: float
    nbytes: float
    bound_s: float
    proof: Proof
    left: tuple[int, int] = (0, 0)


def _check_costs(what: str, seconds: Array, nbytes: Array | None) -> None:
    if np.any(np.isnan(seconds)) or np.any(np.isneginf(seconds)):
        raise PlanError(f"{what} has a cost that is not a number.")
    if np.any(np.isfinite(seconds) & (np.abs(seconds) > MOST_SECONDS)):
        raise PlanError(f"{what} has a cost beyond {MOST_SECONDS:g}: use null to forbid.")
    if nbytes is not None and not np.all((nbytes >= 0) & (nbytes <= MOST_BYTES)):
        raise PlanError(f"{what} has bytes that are not between 0 and 2^53.")


def _check_kept(what: str, kept: Array | None, shape: tuple[int, ...]) -> None:
    if kept is None:
        return
    if kept.shape != shape:
        raise PlanError(f"{what} has kept bytes {kept.shape}, not {shape}.")
    if not np.all((kept >= 0) & (kept <= MOST_BYTES)):
        raise PlanError(f"{what} has kept bytes that are not between 0 and 2^53.")


def _check_timed(what: str, timed: tuple[TimedBytes, ...] | None, shape: tuple[int, ...]) -> None:
    for each in timed or ():
        if each.nbytes.shape != shape:
            raise PlanError(f"{what} has timed bytes {each.nbytes.shape}, not {shape}.")
        if not np.all((each.nbytes >= 0) & (each.nbytes <= MOST_BYTES)):
            raise PlanError(f"{what} has timed bytes that are not between 0 and 2^53.")
        if not 0 <= each.start <= each.stop <= MOST_TIMES:
            raise PlanError(
                f"{what} has bytes in use from {each.start} to {each.stop}: times go from 0 to "
                f"{MOST_TIMES}, and the second may not be the smaller one."
            )


def _check_uncovered(what: str, uncovered: Array | None, shape: tuple[int, ...]) -> None:
    if uncovered is None:
        return
    if uncovered.shape != shape:
        raise PlanError(f"{what} has uncovered seconds {uncovered.shape}, not {shape}.")
    if not np.all(np.abs(uncovered) <= MOST_SECONDS):
        raise PlanError(f"{what} has uncovered seconds that are not finite, or too large.")
