"""The cheapest way from one sharding to another, as a chain of single-axis steps.

Costs are closed once per tensor shape and set of types, from all forms to those that are asked for;
the chain that the solver priced is the chain that is emitted.  Which steps there are does not depend
on the tensor's size (`sharding_graph.py`): each kind of step is priced once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np

from autopar.cost.chains import Chains
from autopar.cost.sharding_graph import Kind, Web, web_of
from autopar.errors import InternalError
from autopar.ir.conversion import Step
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.solver.problem import Array

StepSeconds = Callable[[Step, Tensor], float]
WeightSeconds = Callable[[Step, Tensor, float], float]
"""Of a weight's step, by how many of its size travel together."""
ALL = 1e6
"""So many weights travel together that the latency of each is next to nothing."""
Forms = Iterable[Sharding]


class Closure:
    """The cheapest conversions among the shardings of one tensor."""

    def __init__(self, web: Web, seconds: Array) -> None:
        """`seconds`: of each kind of step of the web."""
        self.forms, self.index = web.forms, web.index
        self._kinds = tuple(web.kinds.values())
        self._chains = Chains(web.steps, seconds)

    def matrix(self, sources: Forms, targets: Forms) -> Array:
        """Seconds from every source to every target."""
        return self._chains.seconds(self._numbers(sources), self._numbers(targets))

    def cost(self, source: Sharding, target: Sharding) -> float:
        """Seconds of the cheapest chain."""
        return float(self.matrix((source,), (target,))[0, 0])

    def along(self, of_step: Callable[[Step], float], sources: Forms, targets: Forms) -> Array:
        """From every source to every target the sum over the chain's steps; zero where there is none.

        `of_step` has to say the same of all steps of a kind.
        """
        return self._chains.along(
            lambda kind: of_step(self._kinds[kind]), self._numbers(sources), self._numbers(targets)
        )

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
        self._prices: dict[object, float] = {}

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
            web = web_of(self._mesh, per_axis, tensor.shape, tensor.differentiable)
            seconds = [self._seconds(*kind, tensor, together) for kind in web.kinds.items()]
            self._closures[key] = Closure(web, np.array(seconds))
        return self._closures[key]

    def _seconds(self, kind: Kind, step: Step, tensor: Tensor, together: float) -> float:
        """Of every step of a kind, on every tensor that looks like this one to a collective."""
        size = math.prod(tensor.shape)
        key = (kind, size, tensor.dtype, tensor.differentiable, together)
        if key not in self._prices:
            self._prices[key] = self._price(step, tensor, together)
        return self._prices[key]

    def _price(self, step: Step, tensor: Tensor, together: float) -> float:
        if together:
            return self._weight_seconds(step, tensor, together)
        return self._step_seconds(step, tensor)
