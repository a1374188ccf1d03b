"""Decides which sizes to pad by comparing complete plans with and without the padding.

The cost of padding is that of the padded graph: its operations, bytes and memory are priced like any
others.  Each size has one decision for the whole model, for instance for the heads of all layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from autopar.errors import ClashError, ConstraintError, InfeasibleError, PaddingError
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.plans.record import Padded, Padding
from autopar.sharding.padding import Proposal, padded, proposals
from autopar.sharding.sharding_problem import Compilation, Settings

WORTH = 0.99
"""Padding must save one per cent of the step: within a prediction's error the simpler plan wins."""
Kept = Mapping[str, Saved]
Choice = tuple[Padding, ...]
"""The parameters and inputs to pad for one proposal; empty if it is declined."""
Refusal = InfeasibleError | ConstraintError | PaddingError
Compile = Callable[[Graph, Kept | None], Compilation]


def best_padded(
    graph: Graph, mesh: Mesh, settings: Settings, saved: Kept, compiled: Compile
) -> Compilation:
    """Return the best of the plans with and without padding; `compiled` makes the plan of a graph.

    Its second argument is what operators save, or None if that is not known.
    """
    fixed = _fixed(graph, settings)
    inputs = settings.pads_batch and settings.batch is None
    found = proposals(padded(graph, fixed), mesh, inputs=inputs)
    if settings.padding is not None:
        found = tuple(proposal for proposal in found if proposal.is_batch)
    trials = _Trials(graph, saved, fixed, compiled)
    trials.plan(((),) * len(found))
    if found:
        _search(found, trials)
    return trials.chosen()


def _fixed(graph: Graph, settings: Settings) -> Choice:
    """Return the padding of an earlier plan for the parameters that this graph has."""
    leaves = {node.target for node in graph.leaves("parameter")}
    return tuple(p for p in settings.padding or () if p.leaf in leaves)


def _search(found: tuple[Proposal, ...], trials: _Trials) -> None:
    """Pad all sizes, then only as much as that plan's splits need, then flip each size's decision."""
    made = trials.plan(tuple(proposal.choices[0] for proposal in found))
    chosen = tuple(_needed(proposal, made) for proposal in found)
    trials.plan(chosen)
    for place, choice in enumerate(chosen):
        other = () if trials.best[place] else choice
        trials.plan((*trials.best[:place], other, *trials.best[place + 1 :]))


def _needed(proposal: Proposal, made: Compilation | None) -> Choice:
    """Return the least padding that the plan's splits need; empty if it splits no padded dim."""
    if made is None:
        return proposal.choices[0]
    ranks = max(_cuts(proposal, made), default=1)
    fitting = [choice for choice in proposal.choices if choice[0].pad.to % ranks == 0]
    return fitting[-1] if ranks > 1 and fitting else ()


def _cuts(proposal: Proposal, made: Compilation) -> Iterator[int]:
    """Yield the number of parts into which the plan splits the proposal's dims, in each sharding."""
    plan, graph = made.plan, made.graph
    forms = [
        (tensor, form)
        for node in graph.nodes
        for tensor, form in zip(node.outputs, plan.choice[node.name].outputs, strict=True)
    ]
    forms += [(graph.tensors[c.tensor], c.target) for c in plan.conversions]
    for node in graph.leaves("parameter"):
        forms.append((node.outputs[0], plan.parameter[node.target].stored))
    for tensor, form in forms:
        for pad in tensor.pads:
            if pad.size == proposal.size:
                yield math.prod(plan.mesh.sizes[axis] for _, axis in form.cuts(pad.dim))


class _Trials:
    """The plans that were made, by their padding, and the best of them."""

    def __init__(self, graph: Graph, saved: Kept, fixed: Choice, compiled: Compile) -> None:
        self._graph, self._saved, self._fixed, self._compiled = graph, saved, fixed, compiled
        self._made: dict[tuple[Choice, ...], Compilation | Refusal] = {}
        self.best: tuple[Choice, ...] = ()

    def plan(self, choices: tuple[Choice, ...]) -> Compilation | None:
        """Return the plan with one choice per proposal; it becomes the best if it is enough faster.

        A plan with less padding becomes the best even if it is slightly slower.
        """
        if choices not in self._made:
            self._made[choices] = self._try([one for choice in choices for one in choice])
            if not self.best:
                self.best = choices
            more = _wasted(choices) > _wasted(self.best)
            if self._seconds(choices) < self._seconds(self.best) * (WORTH if more else 1 / WORTH):
                self.best = choices
        made = self._made[choices]
        return made if isinstance(made, Compilation) else None

    def _try(self, padding: Iterable[Padding]) -> Compilation | Refusal:
        every = (*self._fixed, *padding)
        try:
            graph = padded(self._graph, every)
            return self._compiled(graph, None if every else self._saved)
        except (InfeasibleError, ConstraintError, PaddingError) as error:
            return error

    def _seconds(self, choices: tuple[Choice, ...]) -> float:
        made = self._made[choices]
        return made.plan.objective_s if isinstance(made, Compilation) else math.inf

    def chosen(self) -> Compilation:
        """Return the best plan with a record of the alternatives; raise its error if it has none."""
        made = self._made[self.best]
        if not isinstance(made, Compilation):
            raise self._telling(made)
        compared = tuple(Padded(_words(key), _stated(each)) for key, each in self._made.items())
        record = compared if len(compared) > 1 else ()
        return replace(made, plan=replace(made.plan, padded=record))

    def _telling(self, plain: Refusal) -> Refusal:
        """Return the error to raise if no plan was made.

        If the unpadded graph lacks the types that a constraint requires, a clash of constraints on a
        padded graph is more informative.
        """
        if not isinstance(plain, ConstraintError):
            return plain
        return next((each for each in self._made.values() if isinstance(each, ClashError)), plain)


def _stated(made: Compilation | Refusal) -> float | None:
    return made.plan.objective_s if isinstance(made, Compilation) else None


def _wasted(choices: Iterable[Choice]) -> float:
    """Return how much is padded; the plan with less is the simpler one."""
    return sum(choice[0].wasted for choice in choices if choice)


def _words(choices: Iterable[Choice]) -> str:
    """Return a text such as ``6 -> 8, 257 -> 260``."""
    sizes = (choice[0].pad for choice in choices if choice)
    return ", ".join(f"{pad.size} -> {pad.to}" for pad in sizes) or "nothing"
