"""Finds a few sharding decisions for a graph on one logical mesh, trading time for memory.

They are solutions for the folded graph: the fastest, one of the smallest memory, and corners of the
lower convex hull between them, with the activations of several microbatches counted.  Each decision is
then divided into pieces, and applies to every batch size that it divides evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.errors import InfeasibleError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.pipeline.build.sizes import Sized
from autopar.plans.decisions import Choice, Conversion, OpSharding, ParameterPlan
from autopar.sharding.assemble import LaidOut, lay_out
from autopar.sharding.sharding_problem import Settings, ShardingProblem, pose
from autopar.solver import corners
from autopar.solver.problem import Assignment
from cost_models.hardware import Hardware

POINTS = 4
"""The maximum number of corners of a hull."""
IN_FLIGHT = 4
"""Microbatches whose activations are counted in a hull."""


@dataclass(frozen=True, eq=False)
class SubmeshSharding:
    """Decisions for the folded graph on one mesh."""

    mesh: Mesh
    laid: LaidOut

    @cached_property
    def choice(self) -> Mapping[str, OpSharding]:
        """The sharding of each operator, by node name."""
        return {choice.node: choice.sharding for choice in self.laid.choices}

    @cached_property
    def parameter(self) -> Mapping[str, ParameterPlan]:
        """The plan of each parameter, by the user's name."""
        return {parameter.name: parameter for parameter in self.laid.parameters}

    def made(self, graph: Graph, tensor: str) -> Sharding:
        """Return the sharding in which a tensor is produced."""
        node = graph.producer[tensor]
        names = [output.name for output in node.outputs]
        return self.choice[node.name].outputs[names.index(tensor)]

    def fits(self, graph: Graph) -> bool:
        """Return whether all shardings are possible for the shapes of this graph."""
        forms = {
            (tensor.shape, form)
            for choice in self.laid.choices
            for tensor, form in zip(
                graph.node[choice.node].outputs, choice.sharding.outputs, strict=True
            )
        }
        forms |= {
            (graph.tensors[name].shape, form)
            for choice in self.laid.choices
            for name, form in zip(
                graph.node[choice.node].operands, choice.sharding.inputs, strict=True
            )
        }
        return all(form.fits(shape, self.mesh) for shape, form in forms)


@dataclass(frozen=True, eq=False)
class PieceChoices:
    """The part of a decision that concerns one piece of the graph."""

    choices: tuple[Choice, ...]
    parameters: tuple[ParameterPlan, ...]
    conversions: tuple[Conversion, ...]

    def nameless(self, piece: Graph) -> object:
        """Return a key that is equal for equal decisions about pieces that differ in names only."""
        number = {name: place for place, name in enumerate(piece.tensors)}

        def steps(conversions: tuple[Conversion, ...]) -> tuple[Conversion, ...]:
            return tuple(replace(each, tensor=str(number[each.tensor])) for each in conversions)

        return (
            tuple(choice.sharding for choice in self.choices),
            tuple(replace(each, name="", steps=steps(each.steps)) for each in self.parameters),
            steps(self.conversions),
        )


def decide(
    sized: Sized, mesh: Mesh, hardware: Hardware, settings: Settings, microbatches: int
) -> tuple[SubmeshSharding, ...]:
    """Return the decisions to consider; none if no sharding is allowed."""
    asked = replace(
        settings, microbatches=microbatches, in_flight=1, memory_limit=None, padding=(),
        pads_batch=False, recompute=None,
    )  # fmt: skip
    try:
        posed = pose(sized.graph, mesh, hardware, asked, sized.saved)
        answers = corners(posed.ready, POINTS, IN_FLIGHT)
    except InfeasibleError:
        return ()
    return tuple(_decided(posed, answer) for answer in answers)


def _decided(posed: ShardingProblem, answer: Assignment) -> SubmeshSharding:
    decisions = posed.priced.decisions(answer)
    return SubmeshSharding(posed.prices.mesh, lay_out(posed.graph, decisions, posed.routes))


def of_pieces(
    decided: SubmeshSharding, graph: Graph, pieces: Sequence[Graph]
) -> tuple[PieceChoices, ...]:
    """Return a decision for `graph`, divided into its pieces."""
    return tuple(_of_piece(decided, graph, piece) for piece in pieces)


def _of_piece(decided: SubmeshSharding, graph: Graph, piece: Graph) -> PieceChoices:
    mesh = decided.mesh
    choices = []
    for node in piece.nodes:
        if node.op == "received":
            form = decided.made(graph, node.outputs[0].name)
            choices.append(Choice(node.name, OpSharding((), (form,), ("",) * len(mesh))))
        else:
            choices.append(Choice(node.name, decided.choice[node.name]))
    wanted = {
        (name, form)
        for choice in choices
        for name, form in zip(piece.node[choice.node].operands, choice.sharding.inputs, strict=True)
    }
    here: list[Conversion] = []
    for conversion in reversed(decided.laid.conversions):
        ends = piece.loss == conversion.tensor
        if ends or (conversion.tensor, conversion.target) in wanted:
            wanted.add((conversion.tensor, conversion.source))
            here.append(conversion)
    parameters = tuple(decided.parameter[n.target] for n in piece.leaves("parameter"))
    return PieceChoices(tuple(choices), parameters, tuple(reversed(here)))
