"""The cheapest way from one sharding to another, as a chain of single-axis steps.

Costs are closed once per tensor shape and set of types, from all forms to those that are asked for;
the chain that the solver priced is the chain that is emitted.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from autopar.conversion import Step, letters
from autopar.errors import InternalError
from autopar.graph import Tensor
from autopar.mesh import Mesh
from autopar.placement import S, Sharding, Type
from autopar.pricing.chains import Chains, Edges
from autopar.problem import Array

StepSeconds = Callable[[Step, Tensor], float]
WeightSeconds = Callable[[Step, Tensor, float], float]
"""Of a weight's step, by how many weights travel together."""
ALL = math.inf
"""So many weights travel together that the latency of each is nothing."""
Forms = Iterable[Sharding]


class Closure:
    """The cheapest conversions among the shardings of one tensor."""

    def __init__(self, forms: tuple[Sharding, ...], edges: Edges) -> None:
        self.forms = forms
        self._chains = Chains(len(forms), edges)

    @cached_property
    def index(self) -> dict[Sharding, int]:
        """Number of each sharding."""
        return {form: i for i, form in enumerate(self.forms)}

    def matrix(self, sources: Forms, targets: Forms) -> Array:
        """Seconds from every source to every target."""
        return self._chains.seconds(self._numbers(sources), self._numbers(targets))

    def cost(self, source: Sharding, target: Sharding) -> float:
        """Seconds of the cheapest chain."""
        return float(self.matrix((source,), (target,))[0, 0])

    def along(self, of_step: Callable[[Step], float], sources: Forms, targets: Forms) -> Array:
        """From every source to every target the sum over the chain's steps; zero where there is none."""

        def of_edge(here: int, there: int) -> float:
            return of_step(self._step(here, there))

        return self._chains.along(of_edge, self._numbers(sources), self._numbers(targets))

    def path(self, source: Sharding, target: Sharding) -> tuple[Step, ...]:
        """The cheapest chain itself."""
        if not math.isfinite(self.cost(source, target)):
            raise InternalError(f"There is no way from {source} to {target}.")
        stops = self._chains.path(self.index[source], self.index[target])
        return tuple(itertools.starmap(self._step, itertools.pairwise(stops)))

    def _numbers(self, forms: Forms) -> list[int]:
        return [self.index[form] for form in forms]

    def _step(self, here: int, there: int) -> Step:
        a, b = self.forms[here], self.forms[there]
        return Step(next(i for i in range(len(a)) if a[i] != b[i]), a, b)


class Routes:
    """Closures for one mesh, made once per (shape, dtype, gradient, types)."""

    def __init__(
        self, mesh: Mesh, step_seconds: StepSeconds, weight_seconds: WeightSeconds
    ) -> None:
        self._mesh = mesh
        self._step_seconds, self._weight_seconds = step_seconds, weight_seconds
        self._closures: dict[object, Closure] = {}

    def closure(self, tensor: Tensor, forms: Forms, together: float = 0) -> Closure:
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
        return Closure(forms, list(self._edges(tensor, forms, together)))

    def _price(self, step: Step, tensor: Tensor, together: float) -> float:
        if together:
            return self._weight_seconds(step, tensor, together)
        return self._step_seconds(step, tensor)

    def _edges(
        self, tensor: Tensor, forms: tuple[Sharding, ...], together: float
    ) -> Iterator[tuple[int, int, float]]:
        """(from, to, seconds) of every step between two forms that differ on one axis.

        Steps of equal kinds between equal sizes cost the same and are priced once.
        """
        local = [math.prod(form.local_shape(tensor.shape, self._mesh)) for form in forms]
        known: dict[object, float | None] = {}
        for axis, here, there in _neighbours(forms, len(self._mesh)):
            a, b = forms[here][axis], forms[there][axis]
            alike = (axis, *_kinds(a, b, forms[here], forms[there]), local[here], local[there])
            if alike not in known:
                known[alike] = self._possible(
                    Step(axis, forms[here], forms[there]), tensor, together
                )
            seconds = known[alike]
            if seconds is not None:
                yield here, there, seconds

    def _possible(self, step: Step, tensor: Tensor, together: float) -> float | None:
        if step.fault(self._mesh, tensor.differentiable) is not None:
            return None
        return self._price(step, tensor, together)


def _kinds(a: Type, b: Type, here: Sharding, there: Sharding) -> tuple[object, ...]:
    """What a step's existence and price depend on besides sizes.

    Only where one dim is split in two ways does it matter how the other axes split it.
    """
    if isinstance(a, S) and isinstance(b, S):
        return (here, there) if a.dim == b.dim else ("S", "S")
    return ("S" if isinstance(a, S) else a, "S" if isinstance(b, S) else b)


def _neighbours(forms: tuple[Sharding, ...], axes: int) -> Iterator[tuple[int, int, int]]:
    """(axis, from, to) of all ordered pairs of forms that differ on exactly one axis."""
    for axis in range(axes):
        alike: defaultdict[object, list[int]] = defaultdict(list)
        for number, form in enumerate(forms):
            alike[form.types[:axis], form.types[axis + 1 :]].append(number)
        for numbers in alike.values():
            for here, there in itertools.permutations(numbers, 2):
                yield axis, here, there
