"""The plan: everything that was decided, as data.  Written by api, read by emit, runtime and show.

A plan is JSON with a schema version and the digest of the graph it belongs to; it never holds code.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from autopar.errors import PlacementError, PlanError
from autopar.ir.blocks import Recompute, blocks
from autopar.ir.conversion import Step, Traffic
from autopar.ir.graph import Graph
from autopar.ir.pads import Pad, rests
from autopar.ir.placement import P, R, S, Sharding
from autopar.plans.changes import Difference, Outline, Outlined, difference, outline, outline_of
from autopar.plans.estimate import Estimate, Flow, Parts
from autopar.plans.record import Asked, Padded, Padding, Search, Share, View, idle
from autopar.plans.schema import check_schema
from autopar.plans.sound import check_sound
from autopar.plans.texts import MeshText, ShardingText
from autopar.plans.timing import OpTime, Timing, summed_up
from autopar.render.notebook import Shown
from autopar.solver.problem import Proof
from autopar.utils.reading import first_fault, text_of

if TYPE_CHECKING:
    from autopar.explain.explanation import Explanation

SCHEMA = 3


@dataclass(frozen=True, slots=True)
class OpSharding:
    """How one operator is computed on shards: a sharding per operand and per output.

    `variants` names, per mesh axis, the local implementation that the sharding needs on that axis
    (such as ``vocab_parallel``), or ``""`` where the plain operator is right on local tensors.
    """

    inputs: tuple[ShardingText, ...]
    outputs: tuple[ShardingText, ...]
    variants: tuple[str, ...]

    @property
    def variant(self) -> str:
        """The one variant that this sharding uses, or ``""``."""
        return next(filter(None, self.variants), "")

    def __str__(self) -> str:
        used = f"  via {self.variant}" if self.variant else ""
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}{used}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The sharding chosen for one node of the graph."""

    node: str
    sharding: OpSharding


@dataclass(frozen=True, slots=True)
class Conversion:
    """One step that makes another form of a tensor from a form that exists already.

    `regather`: the backward repeats the gather instead of keeping its result.
    """

    tensor: str
    axis: int
    source: ShardingText
    target: ShardingText
    regather: bool = False

    @property
    def step(self) -> Step:
        """The conversion as a step of the algebra."""
        return Step(self.axis, self.source, self.target)


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """A parameter at rest and in the step.

    `stored` (S or I per axis) is what the optimizer and checkpoints see; `leaf` (S, R or I) is what
    forward and backward see.  `steps` lead from stored to leaf, once per training step; their
    backward is the gradient's reduction.  `shape` is the global one, in the model; where `pads` say
    so the step's is larger, and `stored` is meant of that one: see `autopar.ir.pads.rests`.  `regather`
    says what was decided of gathers at its uses; the conversions say where one is needed again.
    """

    name: str
    stored: ShardingText
    leaf: ShardingText
    steps: tuple[Conversion, ...] = ()
    shape: tuple[int, ...] = ()
    regather: bool = field(default=False, repr=False)  # digests are of what is emitted
    pads: tuple[Pad, ...] = field(default=(), repr=False)  # the graph's digest knows of them


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What the backward finds of a block: all that was kept, or less, which is computed again."""

    path: str
    recompute: Recompute


@dataclass(frozen=True)
class Plan(Shown):
    """A model, a mesh, and every decision that makes one from the other."""

    model: str
    graph_digest: str
    mesh: MeshText
    hardware: str
    optimizer: str
    preset: str
    choices: tuple[Choice, ...]
    parameters: tuple[ParameterPlan, ...]
    conversions: tuple[Conversion, ...]
    estimate: Estimate
    objective_s: float = 0.0
    """What the solver minimised: as `estimate`, but each bucket and each shared form priced apart."""
    bound_s: float = 0.0
    """A proven lower bound on the objective of every plan that was allowed."""
    proof: Proof = "none"
    """How the bound was got; see `autopar.solver.problem.Proof`."""
    bound_nbytes: float | None = None
    """The bound is of plans within so many bytes, as the solver counts them; None: of all."""
    asked: Asked = field(default_factory=Asked)
    search: Search = field(default_factory=Search)
    shares: tuple[Share, ...] = ()
    """By mesh axis."""
    padding: tuple[Padding, ...] = ()
    """Parameters and inputs that are longer in the step than in the model."""
    padded: tuple[Padded, ...] = ()
    """The sets of paddings that were compared, where some size is awkward."""
    views: tuple[View, ...] = ()
    """The meshes that were compared, where only the devices were given."""
    hardware_digest: str = ""
    """Of the profile's figures, which its name may not tell."""
    times: Timing | None = None
    """The measured times that operators were priced by; None: all are modelled."""
    versions: tuple[tuple[str, str], ...] = ()
    precision: str = "float32"
    recompute: tuple[BlockPlan, ...] = ()
    """The blocks that do not keep all they made; of others nothing is said."""
    buckets: int = 8
    """Gradients are summed in so many collectives at least, as far as each is worth its latency."""
    schema: int = SCHEMA

    @cached_property
    def choice(self) -> dict[str, OpSharding]:
        """The sharding of each node."""
        return {choice.node: choice.sharding for choice in self.choices}

    @cached_property
    def parameter(self) -> dict[str, ParameterPlan]:
        """Each parameter's plan, by the user's name."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def recompute_of(self) -> dict[str, Recompute]:
        """What recomputed blocks do, by their path."""
        return {block.path: block.recompute for block in self.recompute}

    def sharding(self, graph: Graph, tensor: str) -> Sharding:
        """The sharding in which a tensor is made."""
        node = graph.producer[tensor]
        names = [made.name for made in node.outputs]
        return self.choice[node.name].outputs[names.index(tensor)]

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits of all decisions; estimates and versions do not count."""
        body = (self.graph_digest, str(self.mesh), self.choices, self.parameters, self.conversions)
        return hashlib.sha256(repr((body, self.precision, self.recompute)).encode()).hexdigest()[
            :12
        ]

    def to_json(self) -> str:
        """The plan as text."""
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str, source: str = "plan") -> Plan:
        """Read a plan; raise `PlanError` naming `source` and the first thing that is wrong."""
        check_schema(text, source, SCHEMA)
        try:
            plan = _adapter().validate_json(text)
        except ValidationError as error:
            raise PlanError(
                f"{source} is not an autopar plan: {first_fault(error)}. "
                "Make a new one with `autopar plan`."
            ) from None
        check_sound(plan, source)
        return plan

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file."""
        return cls.from_json(text_of(path, "the plan"), str(path))

    def check(self, graph: Graph) -> None:
        """Raise `PlanError` unless the plan belongs to this graph and every sharding fits."""
        if self.graph_digest != graph.digest:
            raise PlanError(
                f"This plan was made for {self.model} with graph digest {self.graph_digest}, but the "
                f"model at hand is {graph.name} with digest {graph.digest}: other sizes, batch, "
                "version or code. Make a new plan for it."
            )
        if self.buckets < 1:
            raise PlanError(
                f"The plan's gradients make {self.buckets} buckets; there is one at least."
            )
        missing = [node.name for node in graph.nodes if node.name not in self.choice]
        if missing or len(self.choices) != len(graph.nodes):
            raise PlanError(f"The plan's choices do not match the graph's nodes: {missing[:5]} ...")
        for node in graph.nodes:
            choice = self.choice[node.name]
            if (len(choice.inputs), len(choice.outputs)) != (len(node.operands), len(node.outputs)):
                raise PlanError(f"{node.path} reads and makes other tensors than {choice} says.")
            pairs = [
                *zip(node.operands, choice.inputs, strict=True),
                *zip((t.name for t in node.outputs), choice.outputs, strict=True),
            ]
            for name, sharding in pairs:
                self._check_fit(graph, node.path, name, sharding)
        self._check_parameters(graph)
        self._check_conversions(graph)
        known = {block.path for block in blocks(graph)} if self.recompute else set()
        for path in self.recompute_of:
            if path not in known:
                raise PlanError(f"{graph.name} has no block {path!r} that could be recomputed.")

    def _check_fit(self, graph: Graph, where: str, name: str, sharding: Sharding) -> None:
        tensor = graph.tensors[name]
        try:
            sharding.check(tensor.shape, self.mesh)
        except PlacementError as error:
            raise PlanError(f"{where}: tensor {name}: {error}") from None
        allowed = {"R", "I", "P"} if tensor.differentiable else {"N", "P"}
        for kind in sharding:
            if not isinstance(kind, S) and kind.name not in allowed:
                raise PlanError(
                    f"{where}: tensor {name} {'has' if tensor.differentiable else 'has no'} gradient "
                    f"and cannot be {kind} in {sharding}."
                )

    def _check_parameters(self, graph: Graph) -> None:
        for node in graph.leaves("parameter"):
            parameter = self.parameter.get(node.target)
            if parameter is None:
                raise PlanError(f"The plan does not say how to store parameter {node.target!r}.")
            pads = node.outputs[0].pads
            unfit = not rests(parameter.stored, pads, self.mesh) or parameter.pads != pads
            if unfit or any(kind in (R, P) for kind in parameter.stored):
                raise PlanError(
                    f"Parameter {node.target!r} cannot be stored as {parameter.stored}."
                )
            if P in parameter.leaf.types or parameter.leaf != self.choice[node.name].outputs[0]:
                raise PlanError(f"Parameter {node.target!r} cannot enter as {parameter.leaf}.")
            at = parameter.stored
            for conversion in parameter.steps:
                self._check_step(graph, conversion)
                if conversion.source != at:
                    raise PlanError(
                        f"Parameter {node.target!r}: {conversion} does not start at {at}."
                    )
                if not _enters(conversion):
                    raise PlanError(f"Parameter {node.target!r} cannot enter by {conversion}.")
                at = conversion.target
            if at != parameter.leaf:
                raise PlanError(f"Parameter {node.target!r}: its steps end at {at}, not its leaf.")

    def _check_conversions(self, graph: Graph) -> None:
        forms: dict[str, set[Sharding]] = {}
        for node in graph.nodes:
            for tensor, sharding in zip(node.outputs, self.choice[node.name].outputs, strict=True):
                forms[tensor.name] = {sharding}
        for conversion in self.conversions:
            self._check_step(graph, conversion)
            made = forms[conversion.tensor]
            if conversion.source not in made or conversion.target in made:
                raise PlanError(
                    f"{conversion} starts from a form that is not made, or repeats one."
                )
            made.add(conversion.target)
        for node in graph.nodes:
            for name, wanted in zip(node.operands, self.choice[node.name].inputs, strict=True):
                if wanted not in forms[name]:
                    raise PlanError(f"{node.path} wants {name} as {wanted}, which is never made.")

    def _check_step(self, graph: Graph, conversion: Conversion) -> None:
        tensor = graph.tensors.get(conversion.tensor)
        if tensor is None:
            raise PlanError(
                f"The plan converts a tensor that the graph lacks: {conversion.tensor!r}."
            )
        axis = conversion.axis
        for sharding in (conversion.source, conversion.target):
            self._check_fit(graph, "conversion", conversion.tensor, sharding)
        if not 0 <= axis < len(self.mesh):
            raise PlanError(f"The mesh ({self.mesh}) has no axis number {axis}: {conversion}.")
        fault = conversion.step.fault(self.mesh, tensor.differentiable)
        if fault:
            raise PlanError(f"{conversion.tensor} cannot be converted: {fault} ({conversion}).")

    @property
    def idle(self) -> str:
        """``axis x (4 devices) splits no work``, of the axes of which that is so."""
        return idle(self.shares, self.mesh)

    @property
    def sources(self) -> str:
        """Where its operators' seconds are from, summed up."""
        return summed_up(self.estimate.operators, self.times)

    def with_estimate(self, estimate: Estimate) -> Plan:
        """The same decisions with other predictions."""
        return replace(self, estimate=estimate)

    @property
    def outline(self) -> Outline:
        """Names and texts, by which plans are compared."""
        return outline(self)

    def diff(self, other: Outlined) -> Difference:
        """What `other`, a plan of the same model, decides differently, and what that costs."""
        return difference(self.outline, outline_of(other))

    def explain(
        self,
        target: str,
        model: Any,
        example_inputs: Any = None,
        *,
        loss: Any = None,
        hardware: Any = None,
        database: Any = None,
        rows: int | None = None,
    ) -> Explanation:
        """Why `target` (a tensor, operator, parameter or module) is as it is, and what else it might be.

        `model`, `example_inputs` and `loss` are as `parallelize` was given them; `hardware` and
        `database` say what priced the plan, where its own names do not find it.  Every alternative that
        is solved for (`rows`) has the best plan with it, everything else decided anew, and how that
        differs.
        """
        from autopar.explain.explained import (
            explain_plan,  # reads plans: loaded when it is asked for
        )

        more = {} if rows is None else {"rows": rows}
        return explain_plan(
            self, target, model, example_inputs, loss=loss, hardware=hardware, database=database,
            **more,
        )  # fmt: skip


def _enters(conversion: Conversion) -> bool:
    """From rest to leaf a parameter is gathered (S -> R, I, N) or only used differently (I -> R)."""
    source, target = conversion.source[conversion.axis], conversion.target[conversion.axis]
    return not isinstance(target, S) and (isinstance(source, S) or target is R)


def reduction_dtype(tensor: str, graph: Graph, precision: str) -> str | None:
    """The dtype in which a parameter's gradient is summed, where it is not the tensor's own."""
    low = graph.producer[tensor].op == "parameter" and precision in ("bfloat16", "float16")
    return "float32" if low else None


def total(traffic: Iterable[Traffic]) -> Counter[tuple[int, str, str]]:
    """Bytes by (axis, collective, direction)."""
    sums: Counter[tuple[int, str, str]] = Counter()
    for part in traffic:
        sums[part.axis, part.collective, part.direction] += part.nbytes
    return sums


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Made when it is first needed: that takes a while."""
    return TypeAdapter(Plan)


__all__ = [
    "BlockPlan", "Choice", "Conversion", "Estimate", "Flow", "OpSharding", "OpTime", "ParameterPlan",
    "Parts", "Plan", "Timing", "reduction_dtype", "total",
]  # fmt: skip
