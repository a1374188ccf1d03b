"""The compiler as one function: a captured graph becomes a plan and its Python source.

Reads like the flow of the design, one line per stage.  It needs no processes and no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar import rules
from autopar.constraints import Constraint
from autopar.emit import emit
from autopar.graph import Graph, Saved
from autopar.mesh import Mesh
from autopar.plan import OpSharding, Plan
from autopar.pricing.assemble import assemble
from autopar.pricing.build import Candidates, Priced, build
from autopar.pricing.narrow import narrow
from autopar.pricing.parameters import Storage, storages
from autopar.pricing.prices import Prices
from autopar.pricing.routes import Routes
from autopar.solve import within
from cost_models.hardware import Hardware


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
    memory_limit: float | None = None
    preset: str = ""
    constraints: tuple[Constraint, ...] = ()
    regather: bool | None = None
    precision: str = "float32"
    local_inputs: bool = False


def compile_graph(
    graph: Graph,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    saved: Mapping[str, Saved],
) -> Compilation:
    """Rules give candidates, constraints narrow them, prices make a problem, the solver chooses."""
    prices = Prices(mesh, hardware)
    routes = Routes(mesh, prices.step)
    candidates = candidates_of(graph, mesh, settings)
    priced = build(graph, candidates, prices, routes, saved=saved, optimizer=settings.optimizer)
    answer = within(priced.problem, settings.memory_limit)
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
    every = rules.candidates(graph, mesh, local_inputs=settings.local_inputs)
    storage = {
        node.name: _storages(graph, node.name, every, mesh, settings.regather)
        for node in graph.leaves("parameter")
    }
    operators, parameters = narrow(every, storage, graph, mesh, settings.constraints)
    return Candidates(operators, parameters)


def _storages(
    graph: Graph,
    name: str,
    every: Mapping[str, tuple[OpSharding, ...]],
    mesh: Mesh,
    regather: bool | None,
) -> tuple[Storage, ...]:
    leaves = tuple(o.outputs[0] for o in every[name] if o.outputs[0].rests(mesh))
    found = storages(graph.node[name].outputs[0], leaves, mesh)
    if regather is None:
        return found
    return tuple(s for s in found if s.regather == regather or not s.leaf.is_split)
