"""The cheapest way from one sharding to another, as a chain of single-axis steps.

Costs are closed once per tensor shape and set of types (Floyd 1962, all pairs); the chain that the
solver priced is the chain that is emitted.
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

    def path(self, source: Sharding, target: Sharding) -> tuple[Step, ...]:
        """The cheapest chain itself."""
        here, end = self.index[source], self.index[target]
        if not np.isfinite(self.seconds[here, end]):
            raise InternalError(f"There is no way from {source} to {target}.")
        steps = []
        while here != end:
            there = int(self.following[here, end])
            a, b = self.forms[here], self.forms[there]
            axis = next(i for i in range(len(a)) if a[i] != b[i])
            steps.append(Step(axis, a, b))
            here = there
        return tuple(steps)


class Routes:
    """Closures for one mesh, made once per (shape, dtype, gradient, types)."""

    def __init__(self, mesh: Mesh, step_seconds: StepSeconds, weight_seconds: StepSeconds) -> None:
        self._mesh = mesh
        self._step_seconds, self._weight_seconds = step_seconds, weight_seconds
        self._closures: dict[object, Closure] = {}

    def closure(
        self, tensor: Tensor, forms: Iterable[Sharding], is_weight: bool = False
    ) -> Closure:
        """The closure over every sharding whose types occur in `forms`, axis by axis."""
        per_axis = tuple(
            tuple(sorted({f[a] for f in forms if isinstance(f[a], S)}, key=repr))
            for a in range(len(self._mesh))
        )
        key = (tensor.shape, tensor.dtype, tensor.differentiable, per_axis, is_weight)
        if key not in self._closures:
            self._closures[key] = self._close(tensor, per_axis, is_weight)
        return self._closures[key]

    def _close(
        self, tensor: Tensor, shards: tuple[tuple[Type, ...], ...], is_weight: bool
    ) -> Closure:
        plain = letters(tensor.differentiable)
        combinations = itertools.product(*((*plain, *own) for own in shards))
        every = (Sharding(types) for types in combinations)
        forms = tuple(form for form in every if form.fits(tensor.shape, self._mesh))
        seconds, following = self._single_steps(tensor, forms, is_weight)
        for middle in range(len(forms)):
            through = seconds[:, middle : middle + 1] + seconds[middle : middle + 1, :]
            better = through < seconds
            seconds[better] = through[better]
            following = np.where(better, following[:, middle : middle + 1], following)
        return Closure(forms, seconds, following)

    def _single_steps(
        self, tensor: Tensor, forms: tuple[Sharding, ...], is_weight: bool
    ) -> tuple[Array, NDArray[np.int64]]:
        """Seconds of every step on one axis.  Equal sizes and kinds cost the same: priced once."""
        price = self._weight_seconds if is_weight else self._step_seconds
        count = len(forms)
        index = {form: i for i, form in enumerate(forms)}
        local = [math.prod(form.local_shape(tensor.shape, self._mesh)) for form in forms]
        options = [{form[a] for form in forms} for a in range(len(self._mesh))]
        seconds = np.full((count, count), np.inf)
        np.fill_diagonal(seconds, 0.0)
        known: dict[object, float] = {}
        for i, form in enumerate(forms):
            for axis, kinds in enumerate(options):
                for kind in kinds:
                    there = index.get(form.with_type(axis, kind), i)
                    if there == i:
                        continue
                    step = Step(axis, form, forms[there])
                    if step.fault(self._mesh, tensor.differentiable) is not None:
                        continue
                    alike = (axis, _letter(form[axis]), _letter(kind), local[i], local[there])
                    if alike not in known:
                        known[alike] = price(step, tensor)
                    seconds[i, there] = known[alike]
        return seconds, np.tile(np.arange(count), (count, 1))


def _letter(kind: Type) -> str:
    return "S" if isinstance(kind, S) else kind.name
