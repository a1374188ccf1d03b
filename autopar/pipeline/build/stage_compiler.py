"""Compiles the stages of a pipeline.

Stages that differ only in names or in microbatches in flight share one planner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from autopar import rules
from autopar.emit import emit
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.nameless import nameless, renamed
from autopar.plans.plan import Plan
from autopar.sharding.in_flight import InFlightPlanner
from autopar.sharding.sharding_problem import Settings
from autopar.utils.processes import side_by_side
from cost_models.hardware import Hardware


@dataclass(frozen=True, eq=False)
class StageRequest:
    """A stage to compile on a worker's mesh, with its settings."""

    part: Graph
    mesh: Mesh
    settings: Settings

    @cached_property
    def kind(self) -> object:
        """A key that is equal for stages that are planned together.

        It includes names if there are storage or constraints of the user, which refer to names; a
        preset's constraints only to what their patterns match.
        """
        settings, storage = self.settings, sorted(self.settings.storage.items(), key=itemgetter(0))
        named = storage or not all(c.optional for c in settings.constraints)
        return (
            self.part.digest if named else (nameless(self.part), self._matched),
            str(self.mesh),
            settings.microbatches,
            settings.versions,
            settings.memory_limit,
            tuple(storage),
        )

    @property
    def _matched(self) -> tuple[tuple[int, ...], ...]:
        """The places of the nodes that each constraint matches, by the name of parameter or operator."""
        return tuple(
            tuple(
                place
                for place, node in enumerate(self.part.nodes)
                if constraint.matches(node.target) or constraint.matches(node.path)
            )
            for constraint in self.settings.constraints
        )

    @property
    def key(self) -> object:
        """A key that is equal for stages with the same plan and source."""
        return self.kind, self.part.digest, self.settings.in_flight


Made = tuple[Plan, str]
"""A stage's plan and source."""


class StageCompiler:
    """Compiles stages to plans and sources, and caches them."""

    def __init__(self, hardware: Hardware, kept: Mapping[str, Saved]) -> None:
        """`kept` is what autograd saves, by node of the graph that was cut."""
        self._hardware, self.kept = hardware, kept
        self._known: dict[object, InFlightPlanner] = {}
        self._made: dict[object, Made] = {}

    def prepare(self, every: Sequence[StageRequest]) -> None:
        """Compile independent stages, with the different kinds in parallel."""
        kinds: defaultdict[object, list[StageRequest]] = defaultdict(list)
        for asked in every:
            kinds[asked.kind].append(asked)
        groups = sorted(kinds.values(), key=len, reverse=True)
        made = side_by_side(lambda group: [self.compiled(asked) for asked in group], groups)
        for group, found in zip(groups, made, strict=True):
            self._made.update(zip((asked.key for asked in group), found, strict=True))

    def compiled(self, asked: StageRequest) -> Made:
        """Return the plan and source of a stage, from the cache if possible."""
        if asked.key not in self._made:
            self._made[asked.key] = self.compile(asked)
        return self._made[asked.key]

    def compile(self, asked: StageRequest) -> Made:
        """Compile a stage; return its plan and source."""
        part, settings = asked.part, asked.settings
        if asked.kind not in self._known:
            made = InFlightPlanner(part, asked.mesh, self._hardware, settings, self.kept)
            self._known[asked.kind] = made
        flights = self._known[asked.kind]
        _, found = flights.plan(settings.in_flight)
        plan = found if part is flights.graph else renamed(found, flights.graph, part)
        return plan, emit(plan, part, rules.localize, self.kept)
