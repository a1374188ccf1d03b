"""Finds the cheapest conversion from one sharding to another, as a chain of single-axis steps.

Costs are computed once per tensor shape and set of types, from all forms to the requested ones.  The
chain that the solver prices is the chain that is emitted.  The set of steps does not depend on the
tensor's size (`sharding_graph.py`), and each kind of step is priced once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

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
"""Seconds of a weight's step, given the size of its collective relative to the weight."""
Priced = tuple[float, Step]
"""Seconds of a step, and the step with the collectives that take them."""
ALL = 1e6
"""Relative size of a collective so large that a weight's share of the latency is negligible."""
Forms = Iterable[Sharding]


class Closure:
    """The cheapest conversions between the shardings of one tensor."""

    def __init__(self, web: Web, kinds: Sequence[Priced]) -> None:
        """`kinds` has a step of each kind, in the web's order."""
        self.forms, self.index = web.forms, web.index
        self._edges, self._kinds = web.steps, [step for _, step in kinds]
        self._chains = Chains(web.steps, np.array([seconds for seconds, _ in kinds]))

    def matrix(self, sources: Forms, targets: Forms) -> Array:
        """Return the seconds of the cheapest chains, sources x targets."""
        return self._chains.seconds(self._numbers(sources), self._numbers(targets))

    def cost(self, source: Sharding, target: Sharding) -> float:
        """Return the seconds of the cheapest chain."""
        return float(self.matrix((source,), (target,))[0, 0])

    def along(self, of_step: Callable[[Step], float], sources: Forms, targets: Forms) -> Array:
        """Return `of_step` summed over each cheapest chain (sources x targets); 0 if there is none.

        `of_step` must be equal for all steps of one kind.
        """
        return self._chains.along(
            lambda kind: of_step(self._kinds[kind]), self._numbers(sources), self._numbers(targets)
        )

    def path(self, source: Sharding, target: Sharding) -> tuple[Step, ...]:
        """Return the steps of the cheapest chain; raise `InternalError` if there is none."""
        if not math.isfinite(self.cost(source, target)):
            raise InternalError(f"There is no way from {source} to {target}.")
        stops = self._chains.path(self.index[source], self.index[target])
        return tuple(itertools.starmap(self._step, itertools.pairwise(stops)))

    def _numbers(self, forms: Forms) -> list[int]:
        return [self.index[form] for form in forms]

    def _step(self, here: int, there: int) -> Step:
        (kind,) = self._edges.kinds(np.array([here]), np.array([there]))
        return replace(self._kinds[int(kind)], source=self.forms[here], target=self.forms[there])


class Routes:
    """The closures of one mesh, one per (shape, dtype, differentiable, types, together)."""

    def __init__(
        self, mesh: Mesh, step_seconds: StepSeconds, weight_seconds: WeightSeconds
    ) -> None:
        self._mesh = mesh
        self._step_seconds, self._weight_seconds = step_seconds, weight_seconds
        self._closures: dict[object, Closure] = {}
        self._prices: dict[object, Priced] = {}

    def closure(self, tensor: Tensor, forms: Forms, together: float = 0) -> Closure:
        """Return the closure over all shardings whose splits occur in `forms` on the same axis.

        `together` is the size of a weight's collective relative to the weight, 0 for other tensors.
        """
        per_axis = tuple(
            tuple(sorted({f[a] for f in forms if isinstance(f[a], S)}, key=repr))
            for a in range(len(self._mesh))
        )
        key = (tensor.shape, tensor.dtype, tensor.differentiable, per_axis, together)
        if key not in self._closures:
            web = web_of(self._mesh, per_axis, tensor.shape, tensor.differentiable)
            kinds = [self._cheapest(*kind, tensor, together) for kind in web.kinds.items()]
            self._closures[key] = Closure(web, kinds)
        return self._closures[key]

    def _cheapest(self, kind: Kind, step: Step, tensor: Tensor, together: float) -> Priced:
        """Return a kind of step by the cheapest collectives, cached for tensors of this size.

        Those tensors may have other dims: what is cached are the seconds and the collectives.
        """
        size = math.prod(tensor.shape)
        key = (kind, size, tensor.dtype, tensor.differentiable, together, not tensor.shape)
        if key not in self._prices:
            self._prices[key] = self._priced(step, tensor, together)
        seconds, like = self._prices[key]
        return seconds, replace(step, forward=like.forward, backward=like.backward)

    def _priced(self, step: Step, tensor: Tensor, together: float) -> Priced:
        """Weights share messages and losses are summed late, so that autopar's collectives do it."""
        if together:
            return self._weight_seconds(step, tensor, together), step
        ways = step.ways(tensor.differentiable) if tensor.shape else (step,)
        return min(((self._step_seconds(way, tensor), way) for way in ways), key=itemgetter(0))
