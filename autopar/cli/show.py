"""The command ``autopar show plan.json [MODEL]``: prints a plan or a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from autopar.cli.flags import AS_JSON, BATCH, MODEL_HELP, PLAN, SEQUENCE
from autopar.cli.match import graph_of
from autopar.cli.output import console
from autopar.cli.stages import load_plan, stages_of
from autopar.cli.values import outlined, plain, print_json
from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.plans.focus import holding, refuse_elsewhere, stage_plan, tensor_facts, within_block
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.text import (
    coverage_line,
    show_block,
    show_operators,
    show_pipeline,
    show_plan,
    show_tensor,
)
from autopar.rules import coverage


@dataclass(frozen=True)
class _Part:
    """A plan without stages, or one stage's; `of` describes a stage that was found by a name."""

    plan: Plan
    graph: Graph | None
    of: str = ""
    stage: int | None = None

    def content(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return JSON data: what was found, with its stage in a pipeline."""
        return found if self.stage is None else {"stage": self.stage} | found


def command(
    plan: PLAN,
    model: Annotated[
        str | None, typer.Argument(help=f"Model, to name operators by module: {MODEL_HELP}.")
    ] = None,
    stage: Annotated[
        int | None, typer.Option(min=0, help="For a pipeline: show the plan of this stage.")
    ] = None,
    block: Annotated[
        str | None, typer.Option(help="Show only this module, such as model.layers.0.mlp.")
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option(help="Show only this parameter or tensor: types, parts, conversions."),
    ] = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Print a plan as tables: costs, parameters, communication, operators, conversions.

    Repeated blocks are folded. Constrained tensors are marked.
    """
    if model is None and (batch is not None or sequence is not None):
        raise InputError("--batch and --sequence belong to a MODEL: pass it after the plan.")
    if tensor is not None and block is not None:
        raise InputError("Pass --block or --tensor, not both.")
    decided = load_plan(plan)
    name = block if tensor is None else tensor
    if isinstance(decided, PipelinePlan):
        graphs = stages_of(decided, model, batch, sequence).graphs if model else ()
        if stage is None and name is None:
            _print_pipeline(decided, graphs, as_json)
            return
        part = _stage(decided, graphs, stage, name)
    elif stage is not None:
        raise InputError("This plan has no stages: leave --stage out.")
    else:
        part = _Part(decided, graph_of(decided, model, batch, sequence) if model else None)
    _print(part, block, tensor, as_json)


def _print_pipeline(plan: PipelinePlan, graphs: tuple[Graph, ...], as_json: bool) -> None:
    if as_json:
        print_json(outlined(plan))
    else:
        console().print(show_pipeline(plan, graphs))


def _stage(
    plan: PipelinePlan, graphs: tuple[Graph, ...], stage: int | None, name: str | None
) -> _Part:
    """Return the requested stage, or the one that contains the requested name."""
    number = holding(plan, name or "", graphs) if stage is None else stage
    if name is not None:
        refuse_elsewhere(plan, number, name, graphs)
    own = stage_plan(plan, number)
    said = f"stage {number} of {plan.schedule.stages}" if stage is None else ""
    return _Part(own, graphs[number] if graphs else None, said, number)


def _print(part: _Part, block: str | None, tensor: str | None, as_json: bool) -> None:
    """Print the whole plan, or the requested tensor or block."""
    plan, graph = part.plan, part.graph
    shown: list[RenderableType] = [part.of, ""] if part.of else []
    if tensor is not None:
        found = tensor_facts(plan, tensor, graph)
        content = plain(found)
        shown.append(show_tensor(found))
    elif block is not None:
        inside = within_block(plan, graph, block)
        content = outlined(inside)
        shown.append(show_block(inside, graph))
    else:
        content = outlined(plan)
        shown += [show_plan(plan, graph), "", show_operators(plan, graph)]
        if graph is not None:
            shown += ["", Text(coverage_line(coverage(graph)))]
    if as_json:
        print_json(part.content(content))
    else:
        console().print(*shown, sep="\n")
