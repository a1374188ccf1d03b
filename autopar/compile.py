"""The compiler as one function: a captured graph becomes a plan and its Python source.

Reads like the flow of the design, one line per stage.  It needs no processes and no weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from autopar import rules
from autopar.constraints import Constraint
from autopar.emit import emit
from autopar.graph import ITEMSIZE, Graph, Node, Saved
from autopar.mesh import Mesh
from autopar.placement import S, Sharding
from autopar.plan import Conversion, OpSharding, Plan
from autopar.pricing.assemble import assemble
from autopar.pricing.build import Candidates, Priced, build
from autopar.pricing.narrow import narrow, speaks
from autopar.pricing.parameters import Storage, storages
from autopar.pricing.prices import Prices
from autopar.pricing.routes import Routes
from autopar.solve import solve
from cost_models.hardware import Hardware

T = TypeVar("T")


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
    first: bool = True
    """Whether constraints that speak of nothing in this graph are mistakes."""


def compile_graph(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    saved: Mapping[str, Saved],
) -> Compilation:
    """Rules give candidates, constraints narrow them, prices make a problem, the solver chooses."""
    master = ITEMSIZE["float32"] if settings.precision in ("bfloat16", "float16") else 0
    prices = Prices(mesh, hardware, settings.states, master)
    routes = Routes(mesh, prices.step, prices.weight_step)
    candidates = candidates_of(graph, mesh, settings)
    priced = build(graph, candidates, prices, routes, saved=saved)
    answer = solve(priced.problem, settings.memory_limit)
    plan = assemble(
        graph,
        priced.decisions(answer),
        prices,
        routes,
        saved=saved,
        optimizer=settings.optimizer,
        preset=settings.preset,
        bound_s=answer.bound_s,
        precision=settings.precision,
    )
    return Compilation(graph, priced, plan, emit(plan, graph, rules.localize))


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
