"""Renders the report's tables and pictures of a plan as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from autopar.explain.pins import pins
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.ir.units import nbytes, seconds, shape
from autopar.plans.changes import gathered_again
from autopar.plans.decisions import ParameterPlan
from autopar.plans.pipeline_data import StageFigures, WorkerPlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.html.boxes import box
from autopar.render.text.fold import fold, lines
from autopar.render.text.operators import NOTHING, folded

MOST_DRAWN = 512
CELL, GAP = 26, 4
Cells = Sequence[str]


def table(
    heads: Cells, rows: Iterable[Cells], numbers: Sequence[int] = (), is_wide: bool = False
) -> str:
    """Return a table of HTML cells; the columns in `numbers` are aligned to the right.

    On a phone the rows of a wide table become cards, whose cells are labelled with their column.  The
    first cell is a name and needs no label, unless it is a number.
    """

    def cells(tag: str, row: Cells) -> str:
        marked = (' class="n"' if place in numbers else "" for place in range(len(row)))
        named = (
            f' data-is="{head}"' if is_wide and tag == "td" and head and (place or 0 in numbers) else ""
            for place, head in enumerate(heads)
        )  # fmt: skip
        every = zip(marked, named, row, strict=True)
        return "".join(f"<{tag}{mark}{name}>{cell}</{tag}>" for mark, name, cell in every)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>"
    kind = ' class="wide"' if is_wide else ""
    return f'<div class="scroll"><table{kind}>{head}<tbody>{body}</tbody></table></div>'


def parameters(plan: Plan) -> str:
    """Return a table of parameters with drawings of their shardings, and with the user's constraints.

    Repeated blocks appear once.
    """
    known, again = pins(plan), gathered_again(plan)
    marked = (
        (p.name, (_nameless(p, p.name in again), known.get(p.name, ""))) for p in plan.parameters
    )
    return table(
        ("parameter", "", "shape", "at rest", "in the step", "asked" if known else ""),
        (_row(each.label, each.count, each.value, plan.mesh) for each in lines(fold(marked))),
        (1,),
        is_wide=True,
    )


def _nameless(parameter: ParameterPlan, again: bool) -> ParameterPlan:
    """Return the parameter without what differs between layers; `again`: the backward gathers it."""
    return ParameterPlan(
        "",
        parameter.stored,
        parameter.leaf,
        (),
        parameter.shape,
        again,
        parameter.pads,
    )


def _row(
    label: str, count: int, value: tuple[ParameterPlan, str] | None, mesh: Mesh
) -> tuple[str, ...]:
    indent = len(label) - len(label.lstrip())
    name = f'<code style="padding-left:{indent / 2}em">{escape(label.strip())}</code>'
    times = f"x{count}" if count > 1 else ""
    if value is None:
        return name, times, "", "", "", ""
    parameter, asked = value
    again = " again" if parameter.regather else ""
    step = "same" if parameter.leaf == parameter.stored else _form(parameter, parameter.leaf, mesh)
    mark = f'<span class="pin">{escape(asked)}</span>' if asked else ""
    stored = _form(parameter, parameter.stored, mesh)
    return name, times, shape(parameter.shape), stored, step + again, mark


def _form(parameter: ParameterPlan, form: Sharding, mesh: Mesh) -> str:
    drawn = box(parameter.shape, form, mesh)
    return f'<div class="form">{drawn}<code>{escape(str(form))}</code></div>'


def operators(plan: Plan) -> str:
    """Return a table of the operators' input and output shardings, folded."""

    def cell(text: str) -> str:
        return "<br>".join(f"<code>{escape(part)}</code>" for part in text.split("\n"))

    rows = []
    for each in lines(folded(plan)):
        reads, makes, by, _ = each.value or NOTHING
        times = f"x{each.count}" if each.count > 1 else ""
        rows.append(
            (f"<code>{escape(each.label)}</code>", times, cell(reads), cell(makes), escape(by))
        )
    return table(("operator", "", "reads", "makes", "by"), rows, (1,), is_wide=True)


def mesh_picture(mesh: Mesh, workers: Sequence[WorkerPlan] = ()) -> str:
    """Return an SVG with a square per device, the last axis to the right; workers alternate in shade."""
    across = mesh.sizes[-1]
    down = mesh.world_size // across
    axes = escape(", ".join(f"{axis.name} ({axis.size})" for axis in mesh))
    if mesh.world_size > MOST_DRAWN:
        return f"<p>{mesh.world_size} devices as {axes}: too many to draw.</p>"
    worker_of = {rank: number for number, each in enumerate(workers) for rank in each.ranks}
    step = CELL + GAP
    parts = []
    for rank in range(mesh.world_size):
        x, y = rank % across * step + 40, rank // across * step + 22
        shade = " odd" if workers and worker_of[rank] % 2 else ""
        whose = f", worker {worker_of[rank]}" if workers else ""
        parts.append(
            f'<rect class="device{shade}" x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="3">'
            f"<title>rank {rank}{whose}</title></rect>"
            f'<text x="{x + CELL / 2}" y="{y + CELL / 2 + 4}" text-anchor="middle">{rank}</text>'
        )
    outer = escape(" x ".join(mesh.names[:-1]))
    wide, high = across * step + 44, down * step + 26
    return (
        f'<svg class="mesh" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" '
        f'aria-label="{axes}"><text x="40" y="14">{escape(mesh.names[-1])} →</text>'
        f'<text x="2" y="38">{outer + " ↓" if outer else ""}</text>{"".join(parts)}</svg>'
    )


def stages(plan: PipelinePlan) -> str:
    """Return a table with one row per stage and worker."""
    figures = {(f.stage, f.worker): f for f in plan.prediction.stages} if plan.prediction else {}
    return table(
        ("stage", "ranks", "mesh", "forward", "input gradient", "weight gradient", "once a step",
         "memory", "in flight", "modules"),
        [_stage(plan, each.stage, each.worker, each.plan, figures.get((each.stage, each.worker)))
         for each in plan.stages],
        (0, 3, 4, 5, 6, 7, 8), is_wide=True,
    )  # fmt: skip


def _stage(
    plan: PipelinePlan, stage: int, worker: int, own: Plan, f: StageFigures | None
) -> tuple[str, ...]:
    names = [p.name.rpartition(".")[0] for p in own.parameters]
    ends = " … ".join(dict.fromkeys((names[0], names[-1]))) if names else "no parameters"
    ranks = plan.workers[worker].ranks
    cells = [""] * 6
    if f is not None:
        cells = [seconds(s) for s in (f.forward_s, f.input_grad_s, f.weight_grad_s, f.once_s)]
        cells += [nbytes(f.nbytes), str(f.in_flight)]
    return (str(stage), f"{ranks[0]}-{ranks[-1]}", escape(str(own.mesh)), *cells,
            f'<code class="path">{escape(ends)}</code>')  # fmt: skip


def compared(plan: Plan | PipelinePlan) -> str:
    """Return a table of the alternatives that were compared (meshes, stages); '' if there are none."""
    if isinstance(plan, PipelinePlan):
        found = plan.prediction.compared if plan.prediction else ()
        return _ways((other.what, other.step_s) for other in found)
    others = [(view.mesh, view.objective_s) for view in plan.views]
    if not others or str(plan.mesh) in (name for name, _ in others):
        return _ways(others)
    return _ways([(f"this plan, no stages on {plan.mesh}", plan.estimate.step_s), *others])


def _ways(found: Iterable[tuple[str, float | None]]) -> str:
    rows = [(escape(what), "does not fit" if s is None else seconds(s)) for what, s in found]
    return table(("way", "step"), rows, (1,)) if rows else ""


def recomputed(plan: Plan) -> Iterator[str]:
    """Yield one sentence per recomputation mode, with its blocks."""
    found: dict[str, list[str]] = {}
    for block in plan.recompute:
        found.setdefault(block.recompute, []).append(block.path)
    for mode, paths in found.items():
        folded_paths = ", ".join(each.name for each in fold((path + ".", 0) for path in paths))
        count = "1 block is" if len(paths) == 1 else f"{len(paths)} blocks are"
        yield f"{count} recomputed ({escape(mode)}): {escape(folded_paths)}"
