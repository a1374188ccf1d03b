"""The fields of a plan, and properties derived from them alone."""

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
from autopar.request.compression import Compression
from autopar.solver.problem import Proof

SCHEMA = 3


@dataclass(frozen=True)
class PlanData:
    """A model, a mesh, and every decision needed to run the model on the mesh."""

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
    """The solver's objective: like `estimate`, but buckets and shared forms are priced separately."""
    bound_s: float = 0.0
    """A proven lower bound on the objective of every plan that the request allows."""
    proof: Proof = "none"
    """How the bound was proven; see `autopar.solver.problem.Proof`."""
    bound_nbytes: float | None = None
    """The bound holds for plans within this many bytes, as the solver counts them; None: for all."""
    asked: PlanRequest = field(default_factory=PlanRequest)
    search: Search = field(default_factory=Search)
    shares: tuple[Share, ...] = ()
    """One per mesh axis."""
    padding: tuple[Padding, ...] = ()
    """Parameters and inputs that are longer in the step than in the model."""
    padded: tuple[Padded, ...] = ()
    """The sets of paddings that were compared, if mesh axes do not divide some size."""
    views: tuple[View, ...] = ()
    """The meshes that were compared, if only the devices were given."""
    hardware_digest: str = ""
    """Digest of the hardware profile's figures; profiles of the same name may differ."""
    times: Timing | None = None
    """The measured operator times that were used; None: all times are modelled."""
    versions: tuple[tuple[str, str], ...] = ()
    precision: str = "float32"
    recompute: tuple[BlockPlan, ...] = ()
    """The blocks with recomputation; blocks that are not listed keep all their activations."""
    buckets: int = 8
    """Minimum number of gradient buckets, as long as each is large enough to be worth its latency."""
    prefetch: bool = False
    """Whether a loop over blocks gathers the weights of the next block while one runs."""
    compression: Compression | None = None
    """How gradients travel compressed where ranks sum them once per step; a step is then not exact."""
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and global shapes of the inputs that are not scalars; () in old plans."""
    schema: int = SCHEMA

    @cached_property
    def choice(self) -> dict[str, OpSharding]:
        """The sharding of each node."""
        return {choice.node: choice.sharding for choice in self.choices}

    @cached_property
    def parameter(self) -> dict[str, ParameterPlan]:
        """Each parameter's plan, by its name in the user's module."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def recompute_of(self) -> dict[str, Recompute]:
        """The recomputation mode of each listed block, by its path."""
        return {block.path: block.recompute for block in self.recompute}

    def sharding(self, graph: Graph, tensor: str) -> Sharding:
        """Return the sharding in which a tensor is produced."""
        node = graph.producer[tensor]
        names = [made.name for made in node.outputs]
        return self.choice[node.name].outputs[names.index(tensor)]

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits that identify all decisions; estimates and versions are not included."""
        body = (self.graph_digest, str(self.mesh), self.choices, self.parameters, self.conversions)
        # A plan without prefetch has the digest that it always had.
        decided = (body, self.precision, self.recompute, *(["prefetch"] if self.prefetch else []))
        decided += () if self.compression is None else (str(self.compression),)
        return hashlib.sha256(repr(decided).encode()).hexdigest()[:12]
