"""Converts a captured graph into a sharding problem, and a solver's assignment into a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from autopar import rules
from autopar.cost.once import Once
from autopar.cost.parameters import Storage, storages
from autopar.cost.prices import Prices
from autopar.cost.routes import Routes
from autopar.emit import emit
from autopar.ir.blocks import Recompute
from autopar.ir.graph import ITEMSIZE, Graph, Node, Saved
from autopar.ir.mesh import Mesh
from autopar.ir.pads import rests
from autopar.ir.placement import S, Sharding
from autopar.memory.intervals import Intervals
from autopar.plans.decisions import OpSharding, has_masters, reduces_low
from autopar.plans.plan import Plan
from autopar.plans.record import Padding, PlanRequest, Search
from autopar.request.compression import Compression
from autopar.request.constraints import BATCH, Constraint
from autopar.request.optimizers import Reads, is_fused
from autopar.rules.batch import BatchDims
from autopar.rules.discover import whole_gradients
from autopar.sharding.assemble import assemble
from autopar.sharding.build import build
from autopar.sharding.narrow import applies, narrow
from autopar.sharding.space import Candidates, Decisions, Priced
from autopar.sharding.timed import intervals_of
from autopar.solver import PreparedProblem, completed
from autopar.solver.gap_tolerance import THOROUGH, GapTolerance
from autopar.solver.over_time import OverTime
from autopar.solver.problem import Assignment
from cost_models.hardware import Hardware
from cost_models.measured import Times

T = TypeVar("T")


@dataclass(frozen=True)
class Compilation:
    """The outputs of all compiler stages."""

    graph: Graph
    priced: Priced
    plan: Plan
    source: str


@dataclass(frozen=True)
class Settings:
    """The user's settings, other than model and mesh."""

    optimizer: str = "AdamW"
    states: float = 2.0
    whole_states: float = 0.0
    reads: Reads = "shards"
    memory_limit: float | None = None
    preset: str = ""
    constraints: tuple[Constraint, ...] = ()
    regather: bool | None = None
    precision: str = "as the model"
    batch: Sharding | None = None
    """Sharding in which batch inputs arrive; None: replicated on every rank."""
    storage: Mapping[str, Storage] = field(default_factory=dict)
    """Storage of parameters, by the user's name, that is already decided."""
    padding: tuple[Padding, ...] | None = None
    """The only parameters to pad; None: pad where that pays."""
    pads_batch: bool = True
    """Whether the batch may be padded; False if each rank loads its own part of it."""
    microbatches: int = 1
    """Microbatches per step; costs paid once per step are divided by this number."""
    in_flight: int = 1
    """Microbatches whose activations are kept at the same time."""
    versions: int = 1
    """Versions of the weights that are kept at the same time."""
    recompute: Recompute | None = None
    """Recomputation mode of every block; None: none, or what the memory limit requires."""
    regathers: bool = False
    """Whether the backward repeats all-gathers of activations, instead of keeping their results."""
    compression: Compression | None = None
    """How gradients travel compressed."""
    first: bool = True
    """Whether a constraint that matches nothing in this graph is an error."""
    times: Times | None = None
    """Measured operator times; None: price all operators by the roofline."""
    care: GapTolerance = THOROUGH
    """Optimality gaps worth closing where a memory limit binds."""

    @property
    def asked(self) -> PlanRequest:
        """The part of the request in these settings that a plan records, to pose its problem again."""
        return PlanRequest(
            memory_limit=self.memory_limit,
            constraints=tuple(c for c in self.constraints if not c.optional),
            states=self.states,
            batch=self.batch,
            kept=not self.first,
            regathers=self.regathers,
            whole_states=self.whole_states,
            reads=self.reads,
        )


@dataclass(frozen=True)
class ShardingProblem:
    """A sharding problem, with everything needed to interpret its assignments."""

    graph: Graph
    settings: Settings
    prices: Prices
    routes: Routes
    saved: Mapping[str, Saved]
    priced: Priced
    once: Once
    """Prices shared by problems of the same graph and mesh."""

    def solve(self, nbytes: float | None = None) -> Assignment:
        """Return the best answer with at most so many bytes at each time, as the solver counts them."""
        if nbytes is None:
            return self.ready.solve(care=self.settings.care)
        most = np.full(self.priced.problem.times, nbytes)
        return self.over_time().solve(most, self.settings.care.within_limits)

    @property
    def intervals(self) -> Intervals:
        """When the tensors of the graph are in use: the times of the problem."""
        return intervals_of(self.graph, self.saved, self.once)

    def over_time(self) -> OverTime:
        """Return the problem for limits at every time."""
        return OverTime(self.priced.problem, self.settings.in_flight - 1)

    @cached_property
    def ready(self) -> PreparedProblem:
        """The problem, prepared for limits on sums of bytes, or none."""
        return PreparedProblem.of(self.priced.problem)

    def flying(self, in_flight: int) -> ShardingProblem:
        """Return the same problem with `in_flight` microbatches in flight."""
        return self.asking(replace(self.settings, in_flight=in_flight))

    def recomputing(self, modes: tuple[Recompute, ...]) -> ShardingProblem:
        """Return the problem of the same graph in which every block may use any of these modes."""
        candidates = replace(self.priced.candidates, recompute=modes)
        priced = build(
            self.graph, candidates, self.prices, self.routes, saved=self.saved, once=self.once
        )
        return replace(self, priced=priced)

    def asking(self, settings: Settings) -> ShardingProblem:
        """Return the same problem under settings that differ only in limits; `ready` is shared."""
        made = replace(self, settings=settings)
        vars(made)["ready"] = self.ready
        return made

    def compilation(self, answer: Assignment) -> Compilation:
        """Return the plan of an answer, with its source."""
        return self.emitted(self.plan(answer))

    def emitted(self, plan: Plan) -> Compilation:
        """Return a plan with its source."""
        return Compilation(
            self.graph, self.priced, plan, emit(plan, self.graph, rules.localize, self.saved)
        )

    def plan(self, answer: Assignment, limit: float | None = None) -> Plan:
        """Return the plan of an answer, with its objective and bound.

        `limit`: the bytes at each time, as the solver counts them, within which the bound holds.
        """
        decisions = self.priced.decisions(answer)
        objective_s = self.answer(decisions).seconds
        return replace(
            self.assembled(decisions),
            objective_s=objective_s,
            bound_s=min(answer.bound_s, objective_s),
            proof=answer.proof,
            bound_nbytes=limit,
            asked=self.asked,
            search=Search(*self.priced.candidates.count(), *answer.left),
        )

    @property
    def asked(self) -> PlanRequest:
        """The whole request that a plan records, to pose its problem again."""
        graph = self.graph
        outputs = tuple(path for path, _ in graph.outputs) if graph.loss is not None else ()
        return replace(
            self.settings.asked, recompute=self.priced.candidates.recompute, outputs=outputs
        )

    def assembled(self, decisions: Decisions, prefetch: bool | None = None) -> Plan:
        """Return the plan that follows from decisions, from any source."""
        return assemble(
            self.graph,
            decisions,
            self.prices,
            self.routes,
            saved=self.saved,
            optimizer=self.settings.optimizer,
            preset=self.settings.preset,
            precision=self.settings.precision,
            in_flight=self.settings.in_flight,
            memory_limit=self.settings.memory_limit,
            prefetch=prefetch,
            regathers=self.settings.regathers,
        )

    def answer(self, decisions: Decisions) -> Assignment:
        """Return the fastest assignment with these decisions.

        They leave open the shardings in which tensors are shared by several readers.
        """
        return completed(self.priced.problem, self.priced.states(decisions))


def pose(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    saved: Mapping[str, Saved],
    recompute: tuple[Recompute, ...] | None = None,
) -> ShardingProblem:
    """Build the sharding problem: candidates from rules, narrowed by constraints, with cost tables.

    `recompute`: recomputation modes allowed for each block; None: as in the settings.
    """
    prices = prices_of(mesh, hardware, settings)
    routes = Routes(mesh, prices.step, prices.weight_step)
    modes = recompute or (settings.recompute or "none",)
    candidates = replace(candidates_of(graph, mesh, settings), recompute=modes)
    once = Once()
    priced = build(graph, candidates, prices, routes, saved=saved, once=once)
    return ShardingProblem(graph, settings, prices, routes, saved, priced, once)


def prices_of(mesh: Mesh, hardware: Hardware, settings: Settings) -> Prices:
    """Return the prices of this mesh and hardware under the user's settings."""
    master = ITEMSIZE["float32"] if has_masters(settings.precision) else 0
    return Prices(
        mesh, hardware, settings.states, master, settings.microbatches, settings.versions,
        settings.times, is_fused(settings.optimizer), settings.regathers,
        settings.whole_states, settings.reads, settings.compression,
        reduces_low(settings.precision),
    )  # fmt: skip


def device_memory(mesh: Mesh, hardware: Hardware) -> float:
    """Return the memory of one device, in bytes."""
    return prices_of(mesh, hardware, Settings()).device.memory_bytes


def candidates_of(graph: Graph, mesh: Mesh, settings: Settings) -> Candidates:
    """Return all candidates that the constraints allow."""
    found = rules.candidates(graph, mesh, local_inputs=settings.batch is not None)
    every = whole_gradients(graph, found)
    if settings.batch is not None:
        _arrive(every, graph, settings.batch)
    storage = {
        node.name: _storages(graph, node.name, every, mesh, settings)
        for node in graph.leaves("parameter")
    }
    constraints = settings.constraints
    if not settings.first:
        constraints = tuple(c for c in constraints if applies(c, graph))
    where = {c.place: where_is(c.place, graph) for c in constraints if c.place}
    operators, parameters = narrow(every, storage, graph, mesh, constraints, where)
    return Candidates(_shared(operators), _shared(parameters))


def _shared(options: Mapping[str, T]) -> dict[str, T]:
    """Return equal candidates as one object, so that the prices of one layer serve the next."""
    known: dict[T, T] = {}
    first = {id(option): known.setdefault(option, option) for option in _unique(options.values())}
    return {name: first[id(option)] for name, option in options.items()}


def _unique(values: Iterable[T]) -> Iterable[T]:
    """Return the values without repetitions of the same object, which takes no hashing of values."""
    return {id(value): value for value in values}.values()


def batch_inputs(graph: Graph) -> tuple[Node, ...]:
    """Return the inputs whose first dim is the batch: those as long as the first input."""
    inputs = [node for node in graph.leaves("input") if node.outputs[0].shape]
    return tuple(n for n in inputs if n.outputs[0].shape[0] == inputs[0].outputs[0].shape[0])


def where_is(place: str, graph: Graph) -> BatchDims:
    """Return every operator's splits by samples or by positions (a place of a constraint).

    Samples are dim 0 of the batch's inputs and of tensors received from other stages.  Positions are
    dim 1 of ids [samples, positions] and of features [samples, positions, width].
    """
    leaves = (*batch_inputs(graph), *graph.leaves("received"))
    tensors = [node.outputs[0] for node in leaves]
    if place == BATCH:
        return rules.batch_dims(graph, {tensor.name: S(0) for tensor in tensors})
    of_positions = [t for t in tensors if len(t.shape) == (3 if "float" in t.dtype else 2)]
    return rules.batch_dims(graph, {tensor.name: S(1) for tensor in of_positions})


def _arrive(every: dict[str, tuple[OpSharding, ...]], graph: Graph, form: Sharding) -> None:
    """Restrict the candidates of inputs to the given sharding of the batch."""
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
    pads = node.outputs[0].pads
    leaves = tuple(o.outputs[0] for o in every[name] if rests(o.outputs[0], pads, mesh))
    found = storages(node.outputs[0], leaves, mesh)
    if settings.regather is None:
        return found
    return tuple(s for s in found if s.regather == settings.regather or not s.leaf.is_split)
