"""Is an awkward size worth padding?  Complete plans are compared, with it and without.

Padding costs what it costs in the padded graph: its operations, bytes and memory are priced like any
others.  Every size has one decision for the whole model (all layers' heads, say).
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
"""Padding has to save one per cent of the step: within a prediction's error the simpler plan wins."""
Kept = Mapping[str, Saved]
Choice = tuple[Padding, ...]
"""The leaves to be padded for one proposal; none where it is declined."""
Refusal = InfeasibleError | ConstraintError | PaddingError
Compile = Callable[[Graph, Kept | None], Compilation]


def best_padded(
    graph: Graph, mesh: Mesh, settings: Settings, saved: Kept, compiled: Compile
) -> Compilation:
    """The best of the plans with and without padding; `compiled` makes one of a graph.

    It is given what operators keep where that is known."""
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
    """What an earlier plan has padded, as far as this graph has it."""
    leaves = {node.target for node in graph.leaves("parameter")}
    return tuple(p for p in settings.padding or () if p.leaf in leaves)


def _search(found: tuple[Proposal, ...], trials: _Trials) -> None:
    """All sizes padded, as little as that plan's cuts need; then each size the other way."""
    made = trials.plan(tuple(proposal.choices[0] for proposal in found))
    chosen = tuple(_needed(proposal, made) for proposal in found)
    trials.plan(chosen)
    for place, choice in enumerate(chosen):
        other = () if trials.best[place] else choice
        trials.plan((*trials.best[:place], other, *trials.best[place + 1 :]))


def _needed(proposal: Proposal, made: Compilation | None) -> Choice:
    """The least padding that a plan's cuts need; nothing where it cuts no padded dim."""
    if made is None:
        return proposal.choices[0]
    ranks = max(_cuts(proposal, made), default=1)
    fitting = [choice for choice in proposal.choices if choice[0].pad.to % ranks == 0]
    return fitting[-1] if ranks > 1 and fitting else ()


def _cuts(proposal: Proposal, made: Compilation) -> Iterator[int]:
    """Into how many parts the plan splits the proposal's dims, wherever it does."""
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
    """Plans that were made, by what they pad, and which of them is best."""

    def __init__(self, graph: Graph, saved: Kept, fixed: Choice, compiled: Compile) -> None:
        self._graph, self._saved, self._fixed, self._compiled = graph, saved, fixed, compiled
        self._made: dict[tuple[Choice, ...], Compilation | Refusal] = {}
        self.best: tuple[Choice, ...] = ()

    def plan(self, choices: tuple[Choice, ...]) -> Compilation | None:
        """Plan with one choice per proposal, and keep it if it is the best by enough."""
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
        """The best plan, with what it was compared with."""
        made = self._made[self.best]
        if not isinstance(made, Compilation):
            raise self._telling(made)
        compared = tuple(Padded(_words(key), _stated(each)) for key, each in self._made.items())
        record = compared if len(compared) > 1 else ()
        return replace(made, plan=replace(made.plan, padded=record))

    def _telling(self, plain: Refusal) -> Refusal:
        """Where only a padded size has the types that are asked for, what clashes there tells more."""
        if not isinstance(plain, ConstraintError):
            return plain
        return next((each for each in self._made.values() if isinstance(each, ClashError)), plain)


def _stated(made: Compilation | Refusal) -> float | None:
    return made.plan.objective_s if isinstance(made, Compilation) else None


def _wasted(choices: Iterable[Choice]) -> float:
    """How much is padded, as a measure of which of two plans is simpler."""
    return sum(choice[0].wasted for choice in choices if choice)


def _words(choices: Iterable[Choice]) -> str:
    """``6 -> 8, 257 -> 260``."""
    sizes = (choice[0].pad for choice in choices if choice)
    return ", ".join(f"{pad.size} -> {pad.to}" for pad in sizes) or "nothing"
