"""The plan: all decisions as data.  Written by api, read by emit, runtime and show.

A plan is stored as JSON with a schema version and the digest of its graph; it never contains code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autopar.errors import PlacementError, PlanError
from autopar.ir.blocks import blocks
from autopar.ir.graph import Graph
from autopar.ir.pads import rests
from autopar.ir.placement import P, R, S, Sharding
from autopar.ir.units import nbytes, seconds
from autopar.plans.changes import Difference, Outline, Outlined, difference, outline, outline_of
from autopar.plans.decisions import Conversion
from autopar.plans.estimate import Estimate
from autopar.plans.plan_data import SCHEMA, PlanData
from autopar.plans.record import idle
from autopar.plans.schema import check_schema
from autopar.plans.sound import check_sound
from autopar.plans.timing import summed_up
from autopar.utils.io import first_fault, text_of
from autopar.utils.shown import Shown


@dataclass(frozen=True)
class Plan(PlanData, Shown):
    """A model, a mesh, and every decision needed to run the model on the mesh."""

    def __repr__(self) -> str:
        """Return a one-line summary; `print` shows the tables."""
        e = self.estimate
        return (
            f"<Plan {self.digest} of {self.model} on ({self.mesh}) of {self.hardware}: step "
            f"{seconds(e.step_s)}, {nbytes(e.memory_nbytes)} per device>"
        )

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str, source: str = "plan") -> Plan:
        """Read a plan; raise `PlanError` with `source` and the first fault if it is invalid."""
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
                f"This plan was made for {self.model} with graph digest {self.graph_digest}, but "
                f"this model is {graph.name} with digest {graph.digest}: other sizes, batch, "
                "version or code. Make a new plan for it."
            )
        if self.buckets < 1:
            raise PlanError(
                f"The plan's gradients make {self.buckets} buckets; at least one is needed."
            )
        missing = [node.name for node in graph.nodes if node.name not in self.choice]
        if missing or len(self.choices) != len(graph.nodes):
            raise PlanError(f"The plan's choices do not match the graph's nodes: {missing[:5]} ...")
        for node in graph.nodes:
            choice = self.choice[node.name]
            if (len(choice.inputs), len(choice.outputs)) != (len(node.operands), len(node.outputs)):
                raise PlanError(f"{node.path} reads and makes other tensors than {choice} lists.")
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
                    raise PlanError(f"{node.path} needs {name} as {wanted}, which is never made.")

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
        """A message such as ``axis x (4 devices) splits no work``, or "" if every axis splits some."""
        return idle(self.shares, self.mesh)

    @property
    def sources(self) -> str:
        """A summary of the sources of the operator times."""
        return summed_up(self.estimate.operators, self.times)

    def with_estimate(self, estimate: Estimate) -> Plan:
        """Return the plan with the same decisions and another estimate."""
        return replace(self, estimate=estimate)

    @property
    def outline(self) -> Outline:
        """The names and texts by which plans are compared."""
        return outline(self)

    def diff(self, other: Outlined) -> Difference:
        """Return how `other`, a plan of the same model, differs in decisions and costs."""
        return difference(self.outline, outline_of(other))


def _enters(conversion: Conversion) -> bool:
    """Return whether a step may lead from rest to leaf: a gather (S -> R, I, N), or I -> R."""
    source, target = conversion.source[conversion.axis], conversion.target[conversion.axis]
    return not isinstance(target, S) and (isinstance(source, S) or target is R)


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Return the type adapter; built on first use, since this is slow."""
    return TypeAdapter(Plan)
