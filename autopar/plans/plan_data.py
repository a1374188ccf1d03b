"""The fields of a plan, and what follows from them alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from autopar.ir.blocks import Recompute
from autopar.ir.graph import Graph
from autopar.ir.placement import Sharding
from autopar.plans.decisions import BlockPlan, Choice, Conversion, OpSharding, ParameterPlan
from autopar.plans.estimate import Estimate
from autopar.plans.record import Padded, Padding, PlanRequest, Search, Share, View
from autopar.plans.texts import MeshText
from autopar.plans.timing import Timing
from autopar.solver.problem import Proof

SCHEMA = 3


@dataclass(frozen=True)
class PlanData:
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
    asked: PlanRequest = field(default_factory=PlanRequest)
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
