"""The compiler as one function: a captured graph becomes a plan and its Python source.

Reads like the flow of the design, one line per stage.  It needs no processes and no weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from autopar import rules
from autopar.blocks import MODES, Recompute, blocks
from autopar.constraints import Constraint
from autopar.emit import emit
from autopar.errors import OverLimitError
from autopar.graph import ITEMSIZE, Graph, Node, Saved
from autopar.mesh import Mesh
from autopar.placement import S, Sharding
from autopar.plan import Conversion, OpSharding, Plan
from autopar.pricing.assemble import assemble
from autopar.pricing.build import build
from autopar.pricing.narrow import narrow, speaks
from autopar.pricing.parameters import Storage, storages
from autopar.pricing.prices import Prices
from autopar.pricing.routes import Routes
from autopar.pricing.space import Candidates, Decisions, Priced
from autopar.problem import Assignment
from autopar.record import Asked, Search
from autopar.solve import Ready, completed, hull, readable
from cost_models.hardware import Hardware

T = TypeVar("T")
BISECTIONS = 4
NEAR = 2e-3
"""A gap, relative to the bound, that is not worth another search."""


@dataclass(frozen=True)
class Compilation:
    """Every stage's output."""

    graph: Graph
    priced: Priced
    plan: Plan
    source: str


@dataclass(frozen=True)
class Settings:
    """What the user asked for besides model and mesh."""

    optimizer: str = "AdamW"
    states: float = 2.0
    memory_limit: float | None = None
    preset: str = ""
    constraints: tuple[Constraint, ...] = ()
    regather: bool | None = None
    precision: str = "as the model"
    batch: Sharding | None = None
    """How inputs that have the batch's first dim arrive; None: whole on every rank."""
    storage: Mapping[str, Storage] = field(default_factory=dict)
    """Parameters, by the user's name, whose place is already decided."""
    recompute: Recompute | None = None
    """What every block does in the backward; None: nothing again, or what the memory limit asks for."""
    first: bool = True
    """Whether constraints that speak of nothing in this graph are mistakes."""

    @property
    def asked(self) -> Asked:
        """What a plan records of this, so that its problem can be posed again."""
        return Asked(
            memory_limit=self.memory_limit,
            constraints=tuple(c for c in self.constraints if not c.optional),
            states=self.states,
            batch=self.batch,
            kept=not self.first,
        )


@dataclass(frozen=True)
class Posed:
    """A problem, and all that is needed to read its answers."""

    graph: Graph
    settings: Settings
    prices: Prices
    routes: Routes
    saved: Mapping[str, Saved]
    priced: Priced

    @cached_property
    def ready(self) -> Ready:
        """The problem, prepared for one or several limits."""
        return Ready.of(self.priced.problem)

    def compilation(self, answer: Assignment, limit: float | None = None) -> Compilation:
        """What an answer within a limit on bytes means: the plan and its source."""
        decisions = self.priced.decisions(answer)
        objective_s = self.answer(decisions).seconds
        plan = replace(
            self.assembled(decisions),
            objective_s=objective_s,
            bound_s=min(answer.bound_s, objective_s),
            proof=answer.proof,
            bound_nbytes=limit,
            asked=replace(self.settings.asked, recompute=self.priced.candidates.recompute),
            search=Search(*self.priced.candidates.count(), *answer.left),
        )
        return Compilation(self.graph, self.priced, plan, emit(plan, self.graph, rules.localize))

    def assembled(self, decisions: Decisions) -> Plan:
        """The plan that follows from decisions, whoever made them."""
        return assemble(
            self.graph,
            decisions,
            self.prices,
            self.routes,
            saved=self.saved,
            optimizer=self.settings.optimizer,
            preset=self.settings.preset,
            precision=self.settings.precision,
        )

    def answer(self, decisions: Decisions) -> Assignment:
        """The fastest assignment that has these decisions: what is left are forms of shared tensors."""
        return completed(self.priced.problem, self.priced.states(decisions))


def pose(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    saved: Mapping[str, Saved],
    recompute: tuple[Recompute, ...] | None = None,
) -> Posed:
    """Rules give candidates, constraints narrow them, prices make a problem.

    `recompute`: what each block may do in the backward; None: what the settings say.
    """
    master = ITEMSIZE["float32"] if settings.precision in ("bfloat16", "float16") else 0
    prices = Prices(mesh, hardware, settings.states, master)
    routes = Routes(mesh, prices.step, prices.weight_step)
    modes = recompute or (settings.recompute or "none",)
    candidates = replace(candidates_of(graph, mesh, settings), recompute=modes)
    priced = build(graph, candidates, prices, routes, saved=saved)
    return Posed(graph, settings, prices, routes, saved, priced)


def compile_graph(
    graph: Graph, mesh: Mesh, hardware: Hardware, settings: Settings, saved: Mapping[str, Saved]
) -> Compilation:
    """The best plan, within the memory limit where one is set.

    Blocks may be recomputed where the limit binds.
    """
    plain = pose(graph, mesh, hardware, settings, saved)
    limit = settings.memory_limit
    made = plain.compilation(plain.ready.solve())
    if limit is None or made.plan.estimate.memory_nbytes <= limit:
        return made
    if settings.recompute is None and blocks(graph):
        return _within(pose(graph, mesh, hardware, settings, saved, MODES), limit)
    return _within(plain, limit)


def _within(posed: Posed, limit: float) -> Compilation:
    """The best plan within the limit.

    The solver counts what rests and what is kept.  What is alive besides is known of a plan only, but
    for the least of it.  A plan that exceeds the limit is made again with less; then, what the solver
    may use is sought between what was too much and what was enough.
    """
    too_much = allowed = least = limit - posed.priced.least_working
    first = _solved(posed, allowed, limit)
    made = posed.compilation(first, least)
    while (excess := made.plan.estimate.memory_nbytes - limit) > 0:
        too_much, allowed = allowed, allowed - excess
        made = posed.compilation(_proven(posed, allowed, limit, first), least)
    enough = allowed
    for _ in range(BISECTIONS):
        if enough == least or made.plan.objective_s <= (1.0 + NEAR) * first.bound_s:
            break
        allowed = (enough + too_much) / 2
        other = posed.compilation(_proven(posed, allowed, limit, first), least)
        if other.plan.estimate.memory_nbytes > limit:
            too_much = allowed
        else:
            enough = allowed
            made = min(made, other, key=lambda each: each.plan.objective_s)
    return made


def _proven(posed: Posed, allowed: float, limit: float, first: Assignment) -> Assignment:
    """An answer within what the solver may use, with the bound of all that could."""
    return replace(_solved(posed, allowed, limit), bound_s=first.bound_s, proof=first.proof)


def _solved(posed: Posed, allowed: float, limit: float) -> Assignment:
    try:
        return posed.ready.solve(allowed)
    except OverLimitError as error:
        beside = limit - allowed
        least = error.least_nbytes + beside
        raise OverLimitError(
            f"No plan fits {readable(limit)} per device: the smallest needs {readable(least)}, "
            f"{readable(beside)} of it while the largest operator runs. Use more devices, a smaller "
            "batch, or a higher limit.",
            least,
        ) from None


def frontier(
    graph: Graph, mesh: Mesh, hardware: Hardware, settings: Settings, saved: Mapping[str, Saved]
) -> tuple[Compilation, ...]:
    """Plans from the fastest to the smallest: the corners of the solver's convex hull.

    Left out is what another beats in both, once overlap and the largest operator are counted.
    """
    modes = MODES if settings.recompute is None else None
    posed = pose(graph, mesh, hardware, replace(settings, memory_limit=None), saved, modes)
    every = map(posed.compilation, hull(posed.priced.problem))
    kept: list[Compilation] = []
    for made in sorted(every, key=lambda made: made.plan.estimate.step_s):
        if not kept or made.plan.estimate.memory_nbytes < kept[-1].plan.estimate.memory_nbytes:
            kept.append(made)
    return tuple(kept)


def candidates_of(graph: Graph, mesh: Mesh, settings: Settings) -> Candidates:
    """Everything that may be chosen, after the constraints have spoken."""
    every = dict(rules.candidates(graph, mesh, local_inputs=settings.batch is not None))
    if settings.batch is not None:
        _arrive(every, graph, settings.batch)
    storage = {
        node.name: _storages(graph, node.name, every, mesh, settings)
        for node in graph.leaves("parameter")
    }
    spoken = settings.constraints
    if not settings.first:
        spoken = tuple(c for c in spoken if speaks(c, graph))
    operators, parameters = narrow(every, storage, graph, mesh, spoken)
    return Candidates(_shared(operators), _shared(parameters))


def _shared(options: Mapping[str, T]) -> dict[str, T]:
    """Equal candidates as one object: what is priced for one layer serves the next."""
    known: dict[T, T] = {}
    first = {id(option): known.setdefault(option, option) for option in _unique(options.values())}
    return {name: first[id(option)] for name, option in options.items()}


def _unique(values: Iterable[T]) -> Iterable[T]:
    """Without repetitions of the same object, which need no hashing."""
    return {id(value): value for value in values}.values()


def batch_inputs(graph: Graph) -> tuple[Node, ...]:
    """The inputs whose first dim is the batch: as long as that of the first input."""
    inputs = [node for node in graph.leaves("input") if node.outputs[0].shape]
    return tuple(n for n in inputs if n.outputs[0].shape[0] == inputs[0].outputs[0].shape[0])


def batch_form(plan: Plan, graph: Graph) -> Sharding:
    """How a plan for whole batches splits their first dim: what its inputs are sliced to."""
    inputs = {node.outputs[0].name for node in batch_inputs(graph)}
    sliced = {c.axis for c in plan.conversions if c.tensor in inputs and _is_batch_slice(c)}
    return next(
        form
        for form in rules.batch_forms(plan.mesh)
        if {axis for _, axis in form.cuts(0)} == sliced
    )


def arriving(plan: Plan, graph: Graph) -> Sharding | None:
    """How the batch arrives under a plan; None where it comes whole."""
    forms = (plan.choice[node.name].outputs[0] for node in batch_inputs(graph))
    return next((form for form in forms if form.is_split), None)


def _is_batch_slice(conversion: Conversion) -> bool:
    target = conversion.target[conversion.axis]
    return isinstance(target, S) and target.dim == 0


def _arrive(every: dict[str, tuple[OpSharding, ...]], graph: Graph, form: Sharding) -> None:
    """Fix how the inputs come."""
    split = {node.name for node in batch_inputs(graph)}
    for node in graph.leaves("input"):
        options = every[node.name]
        every[node.name] = tuple(
            o
            for o in options
            if (o.outputs[0] == form if node.name in split else not o.outputs[0].is_split)
        )


def _storages(
    graph: Graph,
    name: str,
    every: Mapping[str, tuple[OpSharding, ...]],
    mesh: Mesh,
    settings: Settings,
) -> tuple[Storage, ...]:
    node = graph.node[name]
    if node.target in settings.storage:
        return (settings.storage[node.target],)
    leaves = tuple(o.outputs[0] for o in every[name] if o.outputs[0].rests(mesh))
    found = storages(node.outputs[0], leaves, mesh)
    if settings.regather is None:
        return found
    return tuple(s for s in found if s.regather == settings.regather or not s.leaf.is_split)
