"""The cheapest way from one sharding to another, as a chain of single-axis steps.

Costs are closed once per tensor shape and set of types, all pairs at once; the chain that the solver
priced is the chain that is emitted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.conversion import Step, letters
from autopar.errors import InternalError
from autopar.graph import Tensor
from autopar.mesh import Mesh
from autopar.placement import S, Sharding, Type
from autopar.problem import Array

StepSeconds = Callable[[Step, Tensor], float]
WeightSeconds = Callable[[Step, Tensor, float], float]
"""Of a weight's step, by how many weights travel together."""
ALL = math.inf
"""So many weights travel together that the latency of each is nothing."""


@dataclass(frozen=True)
class Closure:
    """All pairs' cheapest conversions among the shardings of one tensor."""

    forms: tuple[Sharding, ...]
    seconds: Array
    following: NDArray[np.int64]

    @cached_property
    def index(self) -> dict[Sharding, int]:
        """Row of each sharding."""
        return {form: i for i, form in enumerate(self.forms)}

    def matrix(self, sources: tuple[Sharding, ...], targets: tuple[Sharding, ...]) -> Array:
        """Seconds from every source to every target."""
        rows = [self.index[form] for form in sources]
        columns = [self.index[form] for form in targets]
        return self.seconds[np.ix_(rows, columns)]

    def cost(self, source: Sharding, target: Sharding) -> float:
        """Seconds of the cheapest chain."""
        return float(self.seconds[self.index[source], self.index[target]])

    def along(self, of_step: Callable[[Step], float]) -> Array:
        """For every pair the sum over the steps of its chain; zero where there is none."""
        known: dict[tuple[int, int], float] = {}
        count = len(self.forms)
        total = np.zeros((count, count))
        here, end = np.indices((count, count))
        here = np.where(np.isfinite(self.seconds), here, end)
        while (going := here != end).any():
            there = self.following[here, end]
            for a, b in {*zip(here[going].tolist(), there[going].tolist(), strict=True)}:
                if (a, b) not in known:
                    known[a, b] = of_step(self._step(a, b))
            sums = np.zeros((count, count))
            for (a, b), value in known.items():
                sums[a, b] = value
            total += np.where(going, sums[here, there], 0.0)
            here = np.where(going, there, here)
        return total

    def _step(self, here: int, there: int) -> Step:
        a, b = self.forms[here], self.forms[there]
        return Step(next(i for i in range(len(a)) if a[i] != b[i]), a, b)

    def path(self, source: Sharding, target: Sharding) -> tuple[Step, ...]:
        """The cheapest chain itself."""
        here, end = self.index[source], self.index[target]
        if not np.isfinite(self.seconds[here, end]):
            raise InternalError(f"There is no way from {source} to {target}.")
        steps = []
        while here != end:
            there = int(self.following[here, end])
            steps.append(self._step(here, there))
            here = there
        return tuple(steps)


class Routes:
    """Closures for one mesh, made once per (shape, dtype, gradient, types)."""

    def __init__(
        self, mesh: Mesh, step_seconds: StepSeconds, weight_seconds: WeightSeconds
    ) -> None:
        self._mesh = mesh
        self._step_seconds, self._weight_seconds = step_seconds, weight_seconds
        self._closures: dict[object, Closure] = {}

    def closure(self, tensor: Tensor, forms: Iterable[Sharding], together: float = 0) -> Closure:
        """The closure over every sharding whose types occur in `forms`, axis by axis.

        `together`: of a weight, how many travel with it; 0: not a weight.
        """
        per_axis = tuple(
            tuple(sorted({f[a] for f in forms if isinstance(f[a], S)}, key=repr))
            for a in range(len(self._mesh))
        )
        key = (tensor.shape, tensor.dtype, tensor.differentiable, per_axis, together)
        if key not in self._closures:
            self._closures[key] = self._close(tensor, per_axis, together)
        return self._closures[key]

    def _close(
        self, tensor: Tensor, shards: tuple[tuple[Type, ...], ...], together: float
    ) -> Closure:
        plain = letters(tensor.differentiable)
        combinations = itertools.product(*((*plain, *own) for own in shards))
        every = (Sharding(types) for types in combinations)
        forms = tuple(form for form in every if form.fits(tensor.shape, self._mesh))
        steps = self._single_steps(tensor, forms, together)
        return Closure(forms, *_all_pairs(forms, steps))

    def _price(self, step: Step, tensor: Tensor, together: float) -> float:
        if together:
            return self._weight_seconds(step, tensor, together)
        return self._step_seconds(step, tensor)

    def _single_steps(
        self, tensor: Tensor, forms: tuple[Sharding, ...], together: float
    ) -> list[tuple[NDArray[np.int64], Array]]:
        """By axis: for each form those that reach it in one step on the axis, and the seconds.

        Steps of equal kinds between equal sizes cost the same and are priced once.
        """
        index = {form: i for i, form in enumerate(forms)}
        local = [math.prod(form.local_shape(tensor.shape, self._mesh)) for form in forms]
        known: dict[object, float] = {}
        found = []
        for axis in range(len(self._mesh)):
            kinds = sorted({form[axis] for form in forms}, key=repr)
            before = np.zeros((len(forms), len(kinds)), dtype=np.int64)
            seconds = np.full(before.shape, np.inf)
            for i, form in enumerate(forms):
                for k, kind in enumerate(kinds):
                    here = index.get(form.with_type(axis, kind), i)
                    if here == i:
                        continue
                    step = Step(axis, forms[here], form)
                    if step.fault(self._mesh, tensor.differentiable) is not None:
                        continue
                    alike = (axis, _letter(kind), _letter(form[axis]), local[here], local[i])
                    if alike not in known:
                        known[alike] = self._price(step, tensor, together)
                    before[i, k], seconds[i, k] = here, known[alike]
            found.append((before, seconds))
        return found


def _all_pairs(
    forms: tuple[Sharding, ...], steps: list[tuple[NDArray[np.int64], Array]]
) -> tuple[Array, NDArray[np.int64]]:
    """Cheapest chains by relaxing all last steps, axis by axis, until nothing gets cheaper.

    (Bellman and Ford for all sources at once: chains are short, forms are many.)
    """
    count = len(forms)
    seconds = np.full((count, count), np.inf)
    np.fill_diagonal(seconds, 0.0)
    following = np.tile(np.arange(count), (count, 1))
    rows = np.arange(count)[:, None]
    improved = True
    while improved:
        improved = False
        for before, last in steps:
            for via, cost in zip(before.T, last.T, strict=True):
                through = seconds[:, via] + cost
                better = through < seconds
                if better.any():
                    improved = True
                    first = np.where(via == rows, np.arange(count), following[:, via])
                    following[better] = first[better]
                    seconds[better] = through[better]
    return seconds, following


def _letter(kind: Type) -> str:
    return "S" if isinstance(kind, S) else kind.name
