"""Cost tables of stages, as arrays over layer ranges: one table per number of microbatches.

Positions 0..L are the points where a chain of L layers can be cut (or the downsets of a graph,
numbered in their order).  A `StageOption` is one way to run any range of layers on one submesh shape:
a logical mesh, a sharding and a recomputation mode.  The planner chooses among several per shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autopar.errors import PlanError
from autopar.pipeline.planner.families import Family

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StageOption:
    """Costs of layer ranges [start, end), in arrays indexed by both; infinite seconds: not offered.

    forward_s, input_grad_s, weight_grad_s   seconds of one microbatch
    rest_nbytes              bytes per device, all the time
    kept_nbytes              bytes for each microbatch in flight
    kept_for_weights_nbytes  the part of these that only the weight gradient releases; None: all
    working_nbytes           bytes while an action of the stage runs
    exposed_s                once per step, after everything else (updates, last collectives)
    hideable_s               once per step, overlapping the last microbatch's backward (gradient
                             reduction)
    entry, exit              layouts (borders) in which the stage receives and sends tensors
    split_s                  additional seconds of the input gradient if the weight gradient is computed
                             separately; None: none
    """

    name: str
    nodes: int
    devices: int
    forward_s: Array
    input_grad_s: Array
    weight_grad_s: Array
    rest_nbytes: Array
    kept_nbytes: Array
    working_nbytes: Array
    exposed_s: Array
    hideable_s: Array
    kept_for_weights_nbytes: Array | None = None
    entry: int = 0
    exit: int = 0
    split_s: Array | None = None

    @property
    def size(self) -> int:
        """Number of devices of a stage."""
        return self.nodes * self.devices

    @cached_property
    def seconds(self) -> Array:
        """Seconds of forward and backward of one microbatch."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @cached_property
    def offered(self) -> NDArray[np.bool_]:
        """Mask of the ranges that the way offers."""
        return self.seconds < np.inf

    @cached_property
    def splitting_s(self) -> Array:
        """Additional seconds of a split backward."""
        return np.zeros_like(self.rest_nbytes) if self.split_s is None else self.split_s

    @property
    def late_nbytes(self) -> Array:
        """Bytes that a microbatch keeps until its weight gradient."""
        late = self.kept_for_weights_nbytes
        return self.kept_nbytes if late is None else late

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield all arrays that are present, by field name."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                yield field.name, value


@dataclass(frozen=True, eq=False)
class StageTable:
    """All ways for one number of microbatches.

    `send_s[cut, exit, entry]` is the seconds for which a microbatch's activations occupy the link at a
    cut, from a stage that sends them in layout `exit` to one that receives them in `entry`; `return_s`
    is the same for their gradients.  Each transfer arrives `latency_s` later.
    """

    microbatches: int
    ways: tuple[StageOption, ...]
    send_s: Array
    return_s: Array
    latency_s: float = 0.0

    @property
    def borders(self) -> int:
        """Number of layouts."""
        return int(self.send_s.shape[1])

    @cached_property
    def remembered(self) -> dict[Any, Any]:
        """Cache for values derived from this table; the code that derives them owns the keys."""
        return {}


@dataclass(frozen=True, eq=False)
class StageProblem:
    """A chain with `positions` cuts (both ends included) on `devices` devices of `memory_nbytes` each.

    Submeshes must fill the devices exactly.  `most_stages` None: as many as there are layers.
    """

    positions: int
    devices: int
    memory_nbytes: float
    tables: tuple[StageTable, ...]
    families: tuple[Family, ...]
    most_stages: int | None = None

    def of_one_stage(self) -> StageProblem:
        """Return the problem restricted to one stage on all devices, under the first family."""
        whole = [
            replace(table, ways=tuple(way for way in table.ways if way.size == self.devices))
            for table in self.tables
        ]
        tables = tuple(table for table in whole if table.ways) or self.tables
        return replace(self, tables=tables, families=self.families[:1], most_stages=1)

    def check(self) -> Self:
        """Return the problem; raise `PlanError` if shapes or figures are invalid, or it is empty."""
        if self.positions < 2 or self.devices < 1 or not self.memory_nbytes > 0:
            raise PlanError(
                f"{self.positions} positions on {self.devices} devices of {self.memory_nbytes} bytes: "
                "there must be a layer, a device and memory"
            )
        if not self.tables or not self.families:
            raise PlanError("a problem needs a table of ways and a family of schedules")
        if self.most_stages is not None and self.most_stages < 1:
            raise PlanError(f"at most {self.most_stages} stages; a pipeline has at least one")
        for table in self.tables:
            if (right := ("checked", self.positions)) not in table.remembered:
                self._check_table(table)
                table.remembered[right] = True
        return self

    def _check_table(self, table: StageTable) -> None:
        where = f"table for {table.microbatches} microbatches"
        if table.microbatches < 1 or not table.ways:
            raise PlanError(f"{where}: there must be at least one of them, and a way")
        borders = table.borders
        for name, array in (("send_s", table.send_s), ("return_s", table.return_s)):
            if array.shape != (self.positions, borders, borders):
                raise PlanError(
                    f"{where}: {name} has shape {array.shape}, not {self.positions, borders, borders}"
                )
            _check_figures(f"{where}: {name}", array, np.ones(array.shape, dtype=bool))
        if not 0 <= table.latency_s < np.inf:
            raise PlanError(f"{where}: a latency of {table.latency_s} s")
        # Ways that offer the same ranges may share arrays; each shared array is checked once.
        seen: set[object] = set()
        for way in table.ways:
            at = f"{where}, way {way.name!r} on {way.nodes}x{way.devices}"
            if min(way.nodes, way.devices) < 1 or not min(way.entry, way.exit) >= 0:
                raise PlanError(f"{at}: sizes are at least 1 and borders at least 0")
            if max(way.entry, way.exit) >= borders:
                raise PlanError(f"{at}: borders {way.entry}, {way.exit}; there are {borders}")
            self._check_way(at, way, seen)

    def _check_way(self, at: str, way: StageOption, seen: set[object]) -> None:
        for name, array in way.arrays():
            if array.shape != (self.positions, self.positions):
                raise PlanError(
                    f"{at}: {name} has shape {array.shape}, not {self.positions} squared"
                )
        if np.isnan(way.seconds).any():
            first = tuple(int(i) for i in np.argwhere(np.isnan(way.seconds))[0])
            raise PlanError(f"{at}: the seconds at {first} are not a number")
        if np.tril(way.offered).any():
            raise PlanError(f"{at}: a range that does not end behind its start; make it infinite")
        offered = way.offered.tobytes()
        for name, array in way.arrays():
            if (same := (id(array), offered)) not in seen:
                _check_figures(f"{at}: {name}", array, way.offered)
                seen.add(same)
        if ((way.late_nbytes > way.kept_nbytes) & way.offered).any():
            raise PlanError(f"{at}: keeps more for weight gradients than it keeps")


def _check_figures(where: str, array: Array, offered: NDArray[np.bool_]) -> None:
    right = (array >= 0) & (array < np.inf)
    if not (right | ~offered).all():
        first = tuple(int(i) for i in np.argwhere(offered & ~right)[0])
        raise PlanError(f"{where}: {array[first]} at {first}; figures are finite and at least 0")


def no_transfers(positions: int, borders: int = 1) -> Array:
    """Return an array of transfers that take no time."""
    return np.zeros((positions, borders, borders))


def ranges(positions: int, figure: Callable[[int, int], float], outside: float = 0.0) -> Array:
    """Return an array with a figure for each range [start, end), and `outside` elsewhere."""
    made = np.full((positions, positions), outside)
    for start in range(positions):
        for end in range(start + 1, positions):
            made[start, end] = figure(start, end)
    return made
