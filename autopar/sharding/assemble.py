"""Assembles a plan from decisions: the conversions in their order, and the estimate of the step."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from autopar.cost.estimate import estimate
from autopar.cost.parameters import gather_steps, gradient_shares
from autopar.cost.prices import Prices
from autopar.cost.routes import Routes
from autopar.cost.shares import shares
from autopar.cost.timed import timing_of
from autopar.ir.blocks import Recompute
from autopar.ir.conversion import Step
from autopar.ir.graph import Graph, Saved, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.pads import true_shape
from autopar.ir.placement import Sharding
from autopar.memory.of_rank import of_rank
from autopar.memory.recompute_set import again
from autopar.memory.saved_tensors import SavedTensors
from autopar.plans.decisions import BlockPlan, Choice, Conversion, OpSharding, ParameterPlan
from autopar.plans.estimate import Estimate
from autopar.plans.grouping import companions, is_gather
from autopar.plans.plan import Plan
from autopar.plans.record import Padding
from autopar.sharding.build import required
from autopar.sharding.space import Decisions
from cost_models.hardware import digest

WORTH = 0.99
"""Weights are prefetched if the step is shorter by one per cent: it takes memory and code."""


@dataclass(frozen=True)
class LaidOut:
    """Decisions as choices, parameter plans and conversions.

    Every gather that may be repeated has `regather` set, even if the backward does not need its result.
    """

    choices: tuple[Choice, ...]
    parameters: tuple[ParameterPlan, ...]
    conversions: tuple[Conversion, ...]


def lay_out(graph: Graph, decisions: Decisions, routes: Routes, regathers: bool = False) -> LaidOut:
    """Return the sharding of every node, and the conversions of every parameter and tensor."""
    return LaidOut(
        tuple(Choice(node.name, _sharding(graph, decisions, node.name)) for node in graph.nodes),
        tuple(_parameters(graph, decisions, routes)),
        tuple(_conversions(graph, decisions, routes, regathers)),
    )


def assemble(
    graph: Graph,
    decisions: Decisions,
    prices: Prices,
    routes: Routes,
    *,
    saved: Mapping[str, Saved],
    optimizer: str,
    preset: str = "",
    precision: str = "float32",
    in_flight: int = 1,
    memory_limit: float | None = None,
    prefetch: bool | None = None,
    regathers: bool = False,
) -> Plan:
    """Return the plan of these decisions with its estimated step, without a solver's bound.

    If `prefetch` is None, weights are prefetched where that shortens the step, within the limit.
    `regathers`: the backward repeats all-gathers of activations that it needs.
    """
    laid = lay_out(graph, decisions, routes, regathers)
    choices, parameters, wanted = laid.choices, laid.parameters, laid.conversions
    shardings = {choice.node: choice.sharding for choice in choices}
    saved = of_rank(saved, graph, shardings, wanted, prices.mesh)
    recompute = decisions.recompute
    run_again = again(graph, shardings, wanted, recompute, saved, prices.mesh, precision)
    conversions = SavedTensors(graph, shardings, wanted, prices.mesh, saved, run_again).effective()

    @cache
    def estimated(early: bool) -> Estimate:
        return estimate(
            graph, choices, parameters, conversions, prices, saved, precision, recompute, in_flight,
            early,
        )  # fmt: skip

    if prefetch is None:
        can_start_early = prices.microbatches == 1 and _gathers_weights(graph, conversions)
        prefetch = can_start_early and _is_worth_it(estimated, memory_limit)
    prefetch = prefetch and _gathers_ahead(estimated(True))
    plan = Plan(
        model=graph.name,
        graph_digest=graph.digest,
        mesh=prices.mesh,
        hardware=prices.hardware.device.name,
        optimizer=optimizer,
        preset=preset,
        choices=choices,
        parameters=parameters,
        conversions=conversions,
        estimate=estimated(prefetch),
        buckets=gradient_shares(graph, prices),
        prefetch=prefetch,
        compression=prices.compression,
        shares=shares(graph, choices, parameters, prices.mesh),
        hardware_digest=digest(prices.hardware),
        times=timing_of(prices.times),
        versions=versions(),
        precision=precision,
        inputs=_inputs(graph),
        padding=tuple(_padding(graph, choices, parameters, conversions, prices.mesh)),
        recompute=_recomputed(recompute),
    )
    plan.check(graph)
    return plan


def _inputs(graph: Graph) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the names and global shapes of the inputs, without scalars."""
    outputs = ((leaf.target, leaf.outputs[0].shape) for leaf in graph.leaves("input"))
    return tuple((name, shape) for name, shape in outputs if shape)


def _recomputed(modes: Mapping[str, Recompute]) -> tuple[BlockPlan, ...]:
    return tuple(BlockPlan(path, mode) for path, mode in modes.items() if mode != "none")


def _gathers_weights(graph: Graph, conversions: tuple[Conversion, ...]) -> bool:
    weights = {leaf.outputs[0].name for leaf in graph.leaves("parameter")}
    return any(
        c.tensor in weights and is_gather(c.source[c.axis], c.target[c.axis]) for c in conversions
    )


def _gathers_ahead(early: Estimate) -> bool:
    return early.parts is not None and bool(early.parts.prefetched)


def _is_worth_it(estimated: Callable[[bool], Estimate], memory_limit: float | None) -> bool:
    plain, early = estimated(False), estimated(True)
    fits = memory_limit is None or early.memory_nbytes <= memory_limit
    return fits and early.step_s < WORTH * plain.step_s


def _padding(
    graph: Graph,
    choices: tuple[Choice, ...],
    parameters: tuple[ParameterPlan, ...],
    conversions: tuple[Conversion, ...],
    mesh: Mesh,
) -> Iterator[Padding]:
    """Yield the padded parameters and inputs, with the axes that split the padded dim anywhere."""
    forms: defaultdict[str, list[Sharding]] = defaultdict(list)
    for choice in choices:
        for tensor, form in zip(
            graph.node[choice.node].outputs, choice.sharding.outputs, strict=True
        ):
            forms[tensor.name].append(form)
    for conversion in conversions:
        forms[conversion.tensor].append(conversion.target)
    for parameter in parameters:
        forms[parameter.name].append(parameter.stored)
    for node in graph.nodes:
        for tensor in node.outputs if node.op in ("parameter", "input") else ():
            for pad in tensor.pads:
                found = (*forms[tensor.name], *forms[node.target])
                cut = {axis for form in found for _, axis in form.cuts(pad.dim)}
                split = sorted(axis for axis in cut if mesh.sizes[axis] > 1)
                yield Padding(node.target, pad, tuple(mesh.names[axis] for axis in split))


def versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of Python and of the packages that determine a plan."""
    packages = ((name, version(name)) for name in ("autopar", "torch", "spmd_types"))
    return (*packages, ("python", platform.python_version()))


def _sharding(graph: Graph, decisions: Decisions, name: str) -> OpSharding:
    if name in decisions.parameters:
        leaf = decisions.parameters[name].leaf
        return OpSharding((), (leaf,), ("",) * len(leaf))
    return decisions.operators[name]


def _parameters(graph: Graph, decisions: Decisions, routes: Routes) -> Iterator[ParameterPlan]:
    for node in graph.leaves("parameter"):
        tensor, storage = node.outputs[0], decisions.parameters[node.name]
        steps = gather_steps(tensor, storage, routes)
        yield ParameterPlan(
            node.target,
            storage.stored,
            storage.leaf,
            tuple(Conversion(tensor.name, s.axis, s.source, s.target) for s in steps),
            true_shape(tensor.shape, tensor.pads),
            storage.regather,
            tensor.pads,
        )


def _conversions(
    graph: Graph, decisions: Decisions, routes: Routes, regathers: bool
) -> Iterator[Conversion]:
    together = companions(graph)
    for node in graph.nodes:
        made = _sharding(graph, decisions, node.name).outputs
        storage = decisions.parameters.get(node.name)
        for tensor, form in zip(node.outputs, made, strict=True):
            wanted = _wanted(graph, decisions, tensor, form)
            for step in conversion_tree(tensor, form, wanted, routes, together.get(tensor.name, 0)):
                again = is_gather(step.source[step.axis], step.target[step.axis]) and (
                    regathers if storage is None else storage.regather
                )
                yield Conversion(
                    tensor.name, step.axis, step.source, step.target, again, step.forward, step.backward
                )  # fmt: skip


def _wanted(
    graph: Graph, decisions: Decisions, tensor: Tensor, made: Sharding
) -> tuple[Sharding, ...]:
    """Return the shardings in which a tensor is read, in the order of its readers, then as a result."""
    forms: dict[Sharding, None] = {}
    for reader in graph.consumers[tensor.name]:
        inputs = decisions.operators[reader.name].inputs
        for name, form in zip(reader.operands, inputs, strict=True):
            if name == tensor.name:
                forms[form] = None
    end = required(tensor, graph, made)
    if end is not None:
        forms[end] = None
    return tuple(forms)


def conversion_tree(
    tensor: Tensor,
    made: Sharding,
    wanted: tuple[Sharding, ...],
    routes: Routes,
    together: float = 0,
) -> tuple[Step, ...]:
    """Return steps to every wanted sharding, each from the cheapest sharding that exists by then.

    `together`: for a weight, how many weights of its size share a message; 0: not a weight.
    """
    closure = routes.closure(tensor, {made, *wanted}, together)
    there = {made: None}
    left = [form for form in wanted if form != made]
    steps: list[Step] = []
    while left:
        source, target = min(
            ((source, target) for target in left for source in there),
            key=lambda pair: closure.cost(*pair),
        )
        for step in closure.path(source, target):
            if step.target not in there:
                there[step.target] = None
                steps.append(step)
        left = [form for form in left if form not in there]
    return tuple(steps)
