"""Explains one choice of a plan: lists the alternatives, each with the best plan that contains it.

The min-marginals of the elimination give a lower bound on the cost of every alternative in one pass.
The problem is then solved again, constrained to one alternative at a time: for the alternatives with
the lowest bounds, and for the one that splits nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from autopar.errors import InfeasibleError, InputError
from autopar.explain.explanation import Alternative, Explanation, Kind
from autopar.explain.pins import pinned_names, pins
from autopar.explain.replanner import ConstrainedReplanner
from autopar.explain.sentences import sentence
from autopar.explain.spoken import describe
from autopar.explain.target import Module, chosen, found
from autopar.explain.ways import TargetOption, presets_of, recomputations, ways_of
from autopar.explain.words import words
from autopar.ir.graph import Node
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import ShardingProblem
from autopar.solver import best_with_each_state
from autopar.solver.problem import Limit
from autopar.utils.messages import argument

ROWS = 4
"""Default number of alternatives for which the problem is solved again."""
Watch = Callable[[Iterable[Alternative], int], Iterable[Alternative]]


def explain(
    plan: Plan,
    posed: ShardingProblem,
    target: str,
    rows: int = ROWS,
    watch: Watch = lambda every, total: every,
    unit: str = "a step",
) -> Explanation:
    """Return the plan's choice for `target` and each alternative's cost, with all else re-optimized.

    `target` is a tensor, an operator, a parameter or a module: its name as `autopar show` prints it,
    the end of a name (``up_proj.weight``) or a pattern.  It must be unambiguous; of layers that differ
    only in their index the first is explained.  `posed` is the plan's problem.  For an operator or a
    parameter the problem is solved again for `rows` candidates, those with the lowest bounds of
    different kinds, and for the one that splits nothing; for a module, for all alternatives.  Mesh,
    padding and constraints stay fixed.  `watch` wraps the iterable of alternatives, to show progress;
    `unit` names what the seconds refer to.
    """
    if rows < 1:
        raise InputError(f"{argument('rows', rows)}: pass 1 or more alternatives.")
    meant = found(plan, posed.graph, target)
    again = ConstrainedReplanner(plan, posed)
    of = _OfModule(again, meant) if isinstance(meant, Module) else _OfNode(again, meant, rows)
    total, made = of.alternatives()
    every = tuple(watch(made, total))
    ordered = sorted(every, key=_place)
    pinned = pins(plan) | pinned_names(plan, (meant.path,))
    asked = pinned.get(of.name) or pinned.get(meant.path, "")
    said = sentence(of.name, ordered, asked, unit)
    return Explanation(of.name, meant.path, of.kind, said, tuple(ordered), unit=unit)


def _place(alternative: Alternative) -> tuple[int, float]:
    """Sort key: the chosen one, then solved ones by step time, then those without a plan by bound."""
    if alternative.is_chosen:
        return 0, 0.0
    if alternative.more_s is not None:
        return 1, alternative.more_s
    return 2, math.inf if alternative.bound_s is None else alternative.bound_s


def _solved(
    again: ConstrainedReplanner, known: Alternative, way: TargetOption, said: Callable[[Plan], str]
) -> Alternative:
    """Return the alternative with the best plan that contains it, or with the reason why none exists."""
    if way.states is None:
        return replace(known, why="its constraints allow nothing here")
    if known.bound_s == math.inf:
        return replace(known, why="excluded by other fixed choices")
    try:
        made = again.best(way.states)
    except InfeasibleError as error:
        return replace(known, why=str(error))
    again.check(made, known.bound_s)
    difference = again.difference(made)
    return replace(known, words=said(made), plan=made, difference=difference)


def _as_planned(
    again: ConstrainedReplanner, types: str, words: str, bound_s: float | None
) -> Alternative:
    plan = again.stated
    return Alternative(types, words, True, bound_s, plan, again.difference(plan))


@dataclass(frozen=True)
class _OfNode:
    """Alternatives of an operator or a parameter: its candidates."""

    again: ConstrainedReplanner
    node: Node
    rows: int

    @property
    def kind(self) -> Kind:
        return "parameter" if self.node.op == "parameter" else "operator"

    @property
    def name(self) -> str:
        """Display name: the parameter's name, or that of the operator's first output."""
        return self.node.target if self.node.op == "parameter" else self.node.outputs[0].name

    def alternatives(self) -> tuple[int, Iterator[Alternative]]:
        """Return the number of alternatives and an iterator that makes them one at a time."""
        bounded = sorted(self._bounded(), key=lambda pair: pair[0])
        return len(bounded), self._each(bounded)

    def _bounded(self) -> Iterator[tuple[float, TargetOption]]:
        """Yield each option with a lower bound on the cost of plans that contain it."""
        posed, plan = self.again.posed, self.again.plan
        index = posed.priced.names.index(self.node.name)
        limits: tuple[Limit, ...] = ()
        if plan.bound_nbytes is not None:
            over_time, most = (
                posed.over_time(),
                np.full(posed.priced.problem.times, plan.bound_nbytes),
            )
            over_time.bound_s(most)
            limits = over_time.limits(most)
        bounds = best_with_each_state(posed.priced.problem, index, limits)
        for way in ways_of(self.node, posed, plan):
            states = way.states or {}
            yield min(bounds[state] for state in states[self.node.name]), way

    def _each(self, bounded: list[tuple[float, TargetOption]]) -> Iterator[Alternative]:
        mine = chosen(self.again.plan, self.node)
        wanted = self._wanted([way for _, way in bounded], mine)
        for bound_s, way in bounded:
            if way.types == mine:
                yield _as_planned(self.again, mine, self._said(self.again.stated), bound_s)
                continue
            known = Alternative(way.types, "", False, bound_s)
            yield _solved(self.again, known, way, self._said) if way in wanted else known

    def _wanted(self, ways: list[TargetOption], mine: str) -> list[TargetOption]:
        """Return the options to solve for.

        The cheapest of each kind other than the chosen one's come first, then the next cheapest; the
        option that splits nothing is always included.
        """
        seen = {way.kind for way in ways if way.types == mine}
        others = [way for way in ways if way.types != mine]
        firsts: dict[Hashable, TargetOption] = {}
        for way in others:
            if way.kind not in seen:
                firsts.setdefault(way.kind, way)
        rest = [way for way in others if way not in firsts.values()]
        wanted = [*firsts.values(), *rest][: self.rows]
        whole = [way for way in others if way.is_whole and way not in wanted]
        return [*wanted, *whole[:1]]

    def _said(self, plan: Plan) -> str:
        return describe(plan, self.again.posed.graph, self.node)


@dataclass(frozen=True)
class _OfModule:
    """Alternatives of a module: its recomputation modes, and the usual ways to shard it (presets)."""

    again: ConstrainedReplanner
    module: Module

    @property
    def kind(self) -> Kind:
        return "block"

    @property
    def name(self) -> str:
        return self.module.path

    def alternatives(self) -> tuple[int, Iterator[Alternative]]:
        """Return the number of alternatives and an iterator that makes them one at a time."""
        ways = (
            *recomputations(self.module, self.again.rich),
            *presets_of(self.module, self.again.posed),
        )
        mine = [way for way in ways if way.states is not None and self.again.does(way.states)]
        others = [way for way in ways if way not in mine]
        return 1 + len(others), self._each(mine, others)

    def _each(self, mine: list[TargetOption], others: list[TargetOption]) -> Iterator[Alternative]:
        names = ", ".join(way.types for way in mine)
        types = f"as planned: {names}" if names else "as planned"
        yield _as_planned(self.again, types, self._said(self.again.stated), None)
        for way in others:
            yield _solved(self.again, Alternative(way.types, "", False), way, self._said)

    def _said(self, plan: Plan) -> str:
        """Describe the module's sharding and recomputation; if only the latter differs, just that."""
        split, mine = (self._split(each) for each in (plan, self.again.stated))
        again, before = (self._recomputed(each) for each in (plan, self.again.stated))
        if plan is not self.again.stated and split == mine and again != before:
            return again or "not recomputed"
        return ", ".join(filter(None, (split, again)))

    def _split(self, plan: Plan) -> str:
        mesh = plan.mesh
        axes = words(plan, self.again.posed.graph, self.module.nodes)
        said = (f"{axes[a]} on axis {mesh.names[a]}" for a, n in enumerate(mesh.sizes) if n > 1)
        return ", and ".join(said) or "on one device"

    def _recomputed(self, plan: Plan) -> str:
        """Describe the recomputation of the module's blocks."""
        modes = {m for path, m in plan.recompute_of.items() if _within(path, self.module.path)}
        again = {"selective": "selectively recomputed", "full": "recomputed"}
        return " or ".join(sorted(again[mode] for mode in modes))


def _within(path: str, module: str) -> bool:
    return f"{path}.".startswith(f"{module}.")
