"""Graph, candidates and prices -> Problem.

Variables: one per node (its sharding), one per parameter (its storage), and one per tensor that
several nodes read: the form in which it is materialised once for all of them, so that q, k and v
share one all-gather.  Factors: the cost of converting a tensor between two decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autopar.graph import Graph, Node, Saved, Tensor
from autopar.placement import I, N, P, Sharding
from autopar.plan import OpSharding
from autopar.pricing.operators import local_nbytes, operator_seconds
from autopar.pricing.parameters import Storage, storage_nbytes, storage_seconds
from autopar.pricing.prices import Prices
from autopar.pricing.routes import Closure, Routes
from autopar.problem import Array, Assignment, Factor, Problem, Variable


@dataclass(frozen=True)
class Candidates:
    """What may be chosen: shardings per operator, storages per parameter (both by node name)."""

    operators: Mapping[str, tuple[OpSharding, ...]]
    parameters: Mapping[str, tuple[Storage, ...]]


@dataclass(frozen=True)
class Decisions:
    """One sharding per operator and one storage per parameter."""

    operators: Mapping[str, OpSharding]
    parameters: Mapping[str, Storage]


@dataclass(frozen=True)
class Priced:
    """The problem, and what the states of its first variables mean."""

    problem: Problem
    names: tuple[str, ...]
    candidates: Candidates

    def decisions(self, assignment: Assignment) -> Decisions:
        """Read an assignment back."""
        operators: dict[str, OpSharding] = {}
        parameters: dict[str, Storage] = {}
        for name, state in zip(self.names, assignment.states, strict=False):
            if name in self.candidates.parameters:
                parameters[name] = self.candidates.parameters[name][state]
            else:
                operators[name] = self.candidates.operators[name][state]
        return Decisions(operators, parameters)


def build(
    graph: Graph,
    candidates: Candidates,
    prices: Prices,
    routes: Routes,
    *,
    saved: Mapping[str, Saved],
) -> Priced:
    """Price every candidate and every conversion between candidates."""
    builder = _Builder(graph, candidates, prices, routes, saved)
    for node in graph.nodes:
        builder.add_node(node)
    for name in graph.tensors:
        builder.add_conversions(name)
    problem = Problem(tuple(builder.variables), tuple(builder.factors))
    return Priced(problem, tuple(node.name for node in graph.nodes), candidates)


def required(tensor: Tensor, graph: Graph, made: Sharding) -> Sharding | None:
    """The form in which a result must leave the graph, given how it was made.

    The loss is the same on all ranks; other outputs may stay sharded but not partial; a buffer's new
    value is whole.
    """
    whole = I if tensor.differentiable else N
    if tensor.name == graph.loss or tensor.name in dict(graph.mutations).values():
        return Sharding((whole,) * len(made))
    if tensor.name in (name for _, name in graph.outputs):
        return Sharding(tuple(whole if kind is P else kind for kind in made))
    return None


@dataclass
class _Builder:
    graph: Graph
    candidates: Candidates
    prices: Prices
    routes: Routes
    saved: Mapping[str, Saved]

    def __post_init__(self) -> None:
        self.variables: list[Variable] = []
        self.factors: list[Factor] = []
        self._index: dict[str, int] = {}
        self._costs: dict[object, tuple[Array, Array]] = {}
        self._tables: dict[object, Array] = {}
        self._kept: set[str] = set()

    def add_node(self, node: Node) -> None:
        """A variable for the node's sharding, or for the parameter's storage."""
        if node.op == "parameter":
            seconds, nbytes = self._parameter_costs(node)
        else:
            seconds, nbytes = self._operator_costs(node)
        self._index[node.name] = len(self.variables)
        self.variables.append(Variable(node.name, seconds, nbytes))

    def _parameter_costs(self, node: Node) -> tuple[Array, Array]:
        tensor = node.outputs[0]
        options = self.candidates.parameters[node.name]
        key = (tensor.shape, tensor.dtype, tensor.differentiable, options)
        if key not in self._costs:
            seconds = [
                storage_seconds(tensor, option, self.routes, self.prices) for option in options
            ]
            nbytes = [storage_nbytes(tensor, option, self.prices).total for option in options]
            self._costs[key] = np.array(seconds), np.array(nbytes, dtype=float)
        return self._costs[key]

    def _operator_costs(self, node: Node) -> tuple[Array, Array]:
        options = self.candidates.operators[node.name]
        operands = tuple(self.graph.tensors[name] for name in node.operands)
        kept = self._newly_kept(node)
        shapes = tuple((t.shape, t.dtype, t.differentiable) for t in (*operands, *node.outputs))
        key = (node.op, repr(node.args), node.kwargs, shapes, id(options), kept)
        if key not in self._costs:
            tensors = (*operands, *node.outputs)
            seconds = [
                operator_seconds(node, option, self.graph, self.prices) for option in options
            ]
            nbytes = [
                sum(
                    local_nbytes(tensors[i], (*option.inputs, *option.outputs)[i], self.prices.mesh)
                    for i in kept
                )
                for option in options
            ]
            self._costs[key] = np.array(seconds), np.array(nbytes, dtype=float)
        return self._costs[key]

    def _newly_kept(self, node: Node) -> tuple[int, ...]:
        """Operands and outputs that this node is the first to keep for the backward."""
        saved = self.saved.get(node.name, Saved())
        outputs = (len(node.operands) + i for i in saved.outputs)
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        fresh = []
        for place in (*saved.operands, *outputs):
            name = names[place]
            if name not in self._kept and self.graph.producer[name].op != "parameter":
                self._kept.add(name)
                fresh.append(place)
        return tuple(fresh)

    def add_conversions(self, name: str) -> None:
        """Factors between the decision that makes a tensor and those that read it."""
        tensor = self.graph.tensors[name]
        producer = self.graph.producer[name]
        made = self._made_forms(producer, name)
        readers = [
            (node, place)
            for node in self.graph.consumers[name]
            for place, operand in enumerate(node.operands)
            if operand == name
        ]
        wanted = [self._read_forms(node, place) for node, place in readers]
        required_forms = tuple(required(tensor, self.graph, form) for form in made)
        ends = tuple(form for form in required_forms if form is not None)
        forms = {*made, *ends, *(form for option in wanted for form in option)}
        closure = self.routes.closure(tensor, forms, is_weight=producer.op == "parameter")
        source = self._index[producer.name]
        if ends:
            self._require(source, closure, made, required_forms)
        # From one known form without gradient every slice is nearly free: sharing it saves nothing,
        # and would join all layers that read a mask or a rotary table.
        is_fixed = len(set(made)) == 1 and not tensor.differentiable
        shared = len(readers) > 1 and producer.op != "parameter" and not is_fixed
        if shared and self._undecided(made, wanted):
            source, made = self._materialise(tensor, closure, source, made, wanted)
        for (node, _), read in zip(readers, wanted, strict=True):
            self._convert(source, self._index[node.name], producer, closure, made, read)

    def _undecided(self, made: tuple[Sharding, ...], wanted: list[tuple[Sharding, ...]]) -> bool:
        return len(made) > 1 or any(len(set(forms)) > 1 for forms in wanted)

    def _made_forms(self, producer: Node, name: str) -> tuple[Sharding, ...]:
        if producer.op == "parameter":
            return tuple(s.leaf for s in self.candidates.parameters[producer.name])
        place = [tensor.name for tensor in producer.outputs].index(name)
        return tuple(o.outputs[place] for o in self.candidates.operators[producer.name])

    def _read_forms(self, node: Node, place: int) -> tuple[Sharding, ...]:
        return tuple(option.inputs[place] for option in self.candidates.operators[node.name])

    def _require(
        self,
        source: int,
        closure: Closure,
        made: tuple[Sharding, ...],
        ends: tuple[Sharding | None, ...],
    ) -> None:
        seconds = [
            0.0 if end is None else closure.cost(form, end)
            for form, end in zip(made, ends, strict=True)
        ]
        self.factors.append(Factor((source,), np.array(seconds)))

    def _materialise(
        self,
        tensor: Tensor,
        closure: Closure,
        source: int,
        made: tuple[Sharding, ...],
        wanted: list[tuple[Sharding, ...]],
    ) -> tuple[int, tuple[Sharding, ...]]:
        """A variable for the form that all readers share; returns its index and its forms."""
        forms = tuple(dict.fromkeys((*made, *(form for option in wanted for form in option))))
        shared = len(self.variables)
        zeros = np.zeros(len(forms))
        self.variables.append(Variable(f"form of {tensor.name}", zeros, zeros))
        self.factors.append(Factor((source, shared), self._table(closure, made, forms)))
        return shared, forms

    def _convert(
        self,
        source: int,
        reader: int,
        producer: Node,
        closure: Closure,
        made: tuple[Sharding, ...],
        forms: tuple[Sharding, ...],
    ) -> None:
        if source == reader:
            return
        seconds = self._table(closure, made, forms)
        nbytes = None
        if producer.op == "parameter":
            seconds, nbytes = self._parameter_table(producer, closure, forms)
        self.factors.append(Factor((source, reader), seconds, nbytes))

    def _table(
        self, closure: Closure, made: tuple[Sharding, ...], forms: tuple[Sharding, ...]
    ) -> Array:
        key = (id(closure), made, forms)
        if key not in self._tables:
            self._tables[key] = closure.matrix(made, forms)
        return self._tables[key]

    def _parameter_table(
        self, node: Node, closure: Closure, forms: tuple[Sharding, ...]
    ) -> tuple[Array, Array]:
        """Gathers of a weight at its use: kept they cost bytes, regathered they cost seconds."""
        tensor = node.outputs[0]
        options = self.candidates.parameters[node.name]
        seconds = np.empty((len(options), len(forms)))
        nbytes = np.zeros_like(seconds)
        unique = tuple(dict.fromkeys(forms))
        columns = [unique.index(form) for form in forms]
        for row, option in enumerate(options):
            costs, kept = zip(
                *(self._use(tensor, closure, option, form) for form in unique), strict=True
            )
            seconds[row] = np.array(costs)[columns]
            nbytes[row] = np.array(kept)[columns]
        return seconds, nbytes

    def _use(
        self, tensor: Tensor, closure: Closure, option: Storage, form: Sharding
    ) -> tuple[float, float]:
        key = (id(closure), option.leaf, option.regather, form)
        if key not in self._costs:
            steps = closure.path(option.leaf, form)
            seconds = sum(self.prices.weight_step(step, tensor, option.regather) for step in steps)
            keeps = bool(steps) and not option.regather
            nbytes = local_nbytes(tensor, form, self.prices.mesh) if keeps else 0
            self._costs[key] = np.array(seconds), np.array(float(nbytes))
        found = self._costs[key]
        return float(found[0]), float(found[1])
