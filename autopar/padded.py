"""Is an awkward size worth padding?  Complete plans are compared, with it and without.

Padding costs what it costs in the padded graph: its operations, bytes and memory are priced like any
others.  Every size has one decision for the whole model (all layers' heads, say), and the sizes are
decided one after the other, from all padded and from none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from autopar.capture.saved import saved as kept_of
from autopar.errors import ConstraintError, InfeasibleError, PaddingError
from autopar.graph import Graph, Saved
from autopar.mesh import Mesh
from autopar.padding import Proposal, padded, proposals
from autopar.posed import Compilation, Settings
from autopar.record import Padded, Padding

WORTH = 0.99
"""Padding has to save one per cent of the step: within a prediction's error the simpler plan wins."""
Kept = Mapping[str, Saved]
Choice = tuple[Padding, ...]
Refusal = InfeasibleError | ConstraintError | PaddingError


def best_padded(
    graph: Graph,
    mesh: Mesh,
    settings: Settings,
    saved: Kept,
    compiled: Callable[[Graph, Kept], Compilation],
) -> Compilation:
    """The best of the plans with and without padding; `compiled` makes one of a graph."""
    fixed = _fixed(graph, settings)
    found = proposals(padded(graph, fixed), mesh, inputs=settings.batch is None)
    if settings.padding is not None:
        found = tuple(proposal for proposal in found if proposal.is_batch)
    trials = _Trials(graph, saved, fixed, compiled)
    trials.best(())
    if found:
        _search(found, trials)
    return trials.chosen()


def _fixed(graph: Graph, settings: Settings) -> Choice:
    """What an earlier plan has padded, as far as this graph has it."""
    leaves = {node.target for node in graph.leaves("parameter")}
    return tuple(p for p in settings.padding or () if p.leaf in leaves)


def _search(found: Iterable[Proposal], trials: _Trials) -> None:
    """All of them, then each alone, then each of its other sizes, on the best so far."""
    every = tuple(p for proposal in found for p in proposal.choices[0])
    trials.best(every)
    for proposal in found:
        for choice in (*proposal.choices, ()):
            others = tuple(p for p in trials.padding if not _same(p, proposal))
            trials.best((*others, *choice))


def _same(padding: Padding, proposal: Proposal) -> bool:
    names = {(p.leaf, p.pad.dim) for choice in proposal.choices for p in choice}
    return (padding.leaf, padding.pad.dim) in names


class _Trials:
    """Plans that were made, by what they pad, and the best of them."""

    def __init__(
        self, graph: Graph, saved: Kept, fixed: Choice, compiled: Callable[[Graph, Kept], Compilation]
    ) -> None:
        self._graph, self._saved, self._fixed, self._compiled = graph, saved, fixed, compiled
        self._made: dict[frozenset[Padding], Compilation | Refusal] = {}
        self._best: frozenset[Padding] = frozenset()
        self.padding: Choice = ()

    def best(self, padding: Choice) -> None:
        """Plan with this padding; keep it if it is the best by enough."""
        key = frozenset(padding)
        if key in self._made:
            return
        self._made[key] = self._try(padding)
        before, here = self._seconds(self._best), self._seconds(key)
        if here < before * (WORTH if len(key) > len(self._best) else 1.0 / WORTH):
            self._best, self.padding = key, padding

    def _try(self, padding: Choice) -> Compilation | Refusal:
        every = (*self._fixed, *padding)
        try:
            graph = padded(self._graph, every)
            return self._compiled(graph, kept_of(graph) if every else self._saved)
        except (InfeasibleError, ConstraintError, PaddingError) as error:
            return error

    def _seconds(self, key: frozenset[Padding]) -> float:
        made = self._made[key]
        return made.plan.objective_s if isinstance(made, Compilation) else math.inf

    def chosen(self) -> Compilation:
        """The best plan, with what it was compared with."""
        made = self._made[self._best]
        if not isinstance(made, Compilation):
            raise made
        compared = tuple(Padded(_words(key), self._seconds(key)) for key in self._made)
        record = compared if len(compared) > 1 else ()
        return replace(made, plan=replace(made.plan, padded=record))


def _words(padding: Iterable[Padding]) -> str:
    """``6 -> 8, 257 -> 260``."""
    sizes = sorted({(p.pad.size, p.pad.to) for p in padding})
    return ", ".join(f"{size} -> {to}" for size, to in sizes) or "nothing"
