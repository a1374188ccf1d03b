"""Assembles the page: the sections in order, charts as data, and inline styles and scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from importlib import resources

from plotly.offline import get_plotlyjs

from autopar.errors import PlanError
from autopar.explain.replay import Played, play
from autopar.ir.units import nbytes, seconds
from autopar.plans.estimate import Flow
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.html import charts, tables
from autopar.render.html.measured import tables_of
from autopar.render.html.values import Extras
from autopar.render.html.why import why
from autopar.render.text.proof import of_table, proof

LONGEST = 300_000
"""Maximum number of characters of one source on the page."""
LARGE = 14
"""Maximum number of characters of a card's value in large type."""
# Forbids browsers to load anything: the page is self-contained.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def report(plan: Plan | PipelinePlan, extras: Extras | None = None) -> str:
    """Return the HTML page."""
    return _Page(plan, extras or Extras()).text()


class _Page:
    """Collects sections and the charts in them."""

    def __init__(self, plan: Plan | PipelinePlan, extras: Extras) -> None:
        self.plan, self.extras = plan, extras
        self.figures: dict[str, charts.Figure] = {}
        self.sections: list[tuple[str, str, str]] = []
        self.stages = plan.stages if isinstance(plan, PipelinePlan) else ()
        self.played: Played | None = None
        self.silent = ""
        try:
            self.played = play(plan)
        except PlanError as error:  # a file of an older version: the page shows the reason
            self.silent = str(error)
        self.first = plan.stages[0].plan if isinstance(plan, PipelinePlan) else plan
        asked = self.played.limit_nbytes if self.played else self.first.asked.memory_limit
        self.asked_limit = asked
        self.limit = extras.limit_nbytes if asked in (None, math.inf) else asked

    def text(self) -> str:
        """Return the complete HTML: head, sections, scripts."""
        self._add_all()
        links = "".join(
            f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in self.sections
        )
        body = "".join(
            f'<section id="{name}"><h2>{escape(title)}</h2>{content}</section>'
            for name, title, content in self.sections
        )
        data = json.dumps(self.figures, separators=(",", ":")).replace("</", "<\\/")
        library = get_plotlyjs().replace("</script", "<\\/script")
        title = f"{escape(self.plan.model)} on {escape(str(self.plan.mesh))}"
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{_file('style.css')}</style></head><body>"
            f"<header><h1>{title}</h1>{self._cards()}<nav>{links}</nav></header><main>{body}</main>"
            f'<footer class="soft"><p>{self._made_by()}</p></footer>'
            f'<script type="application/json" id="figures">{data}</script>'
            f"<script>{library}</script><script>{_file('page.js')}</script></body></html>\n"
        )

    def _add_all(self) -> None:
        plan = self.plan
        workers = plan.workers if isinstance(plan, PipelinePlan) else ()
        self._add("mesh", "Mesh", tables.mesh_picture(plan.mesh, workers) + self._asked())
        if isinstance(plan, PipelinePlan):
            self._add("stages", "Stages", tables.stages(plan))
        if other := tables.compared(plan):
            self._add("compared", "Compared with", other)
        self._add("tensors", "Blocks and tensors", "".join(self._tensors()))
        self._add("why", "Explanations", self._why())
        self._add_played()
        groups, axes = tuple(self._flows()), plan.mesh.names
        sends = any(flows for _, flows in groups)
        self._add(
            "communication", "Communication by axis",
            self._chart("communication-chart", charts.communication(groups, axes)) if sends
            else "<p>Nothing is communicated.</p>",
        )  # fmt: skip
        self._add("frontier", "Time against memory", self._frontier())
        found = self.extras.roofline
        self._add(
            "roofline", "Roofline",
            self._chart("roofline-chart", charts.roofline(found)) if found
            else _hint("Pass the model to draw its operators here:", "--model MODEL"),
        )  # fmt: skip
        self._add("measured", "Prediction error", self._measured())
        if self.extras.emitted:
            self._add("source", "Source", self._sources())

    def _flows(self) -> Iterator[tuple[str, tuple[Flow, ...]]]:
        """Yield each stage's flows of a whole step: a stage's estimate is of one microbatch."""
        if isinstance(self.plan, Plan):
            yield "", self.plan.estimate.flows
            return
        for each in self.plan.stages:
            does = self.plan.schedule.workers[each.worker]
            times = sum(a.kind == "F" and a.stage == each.stage for a in does)
            times //= self.plan.schedule.batches
            yield f"stage {each.stage}, ", tuple(
                replace(flow, seconds=times * flow.seconds, nbytes=times * flow.nbytes)
                if flow.scope == "microbatch" else flow
                for flow in each.plan.estimate.flows
            )  # fmt: skip

    def _add(self, name: str, title: str, content: str) -> None:
        self.sections.append((name, title, content))

    def _chart(self, name: str, figure: charts.Figure) -> str:
        self.figures[name] = figure
        height = figure["layout"]["height"]
        return f'<div class="chart" id="{name}" style="height:{height}px"></div>'

    def _add_played(self) -> None:
        if self.played is None:
            self._add("timeline", "Timeline", f'<p class="warn">{escape(self.silent)}</p>')
            return
        notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in self.played.notes)
        alike = ", ".join(f"{escape(row.name)}" for row in self.played.rows)
        rows = f'<p class="soft">One row for ranks that do the same: {alike}.</p>'
        figure, left = charts.timeline(self.played, self.plan.mesh.names)
        drawn = self._chart("timeline-chart", figure)
        self._add("timeline", "Timeline per rank", drawn + _folded(left) + rows + notes)
        over = max(row.peak for row in self.played.rows)
        said = "" if not self.limit else f"<p>{over / self.limit:.1%} of {nbytes(self.limit)}.</p>"
        if self.limit and over > self.limit:
            has = "the limit is" if self.limit == self.asked_limit else "the device has"
            said = f'<p class="warn">Needs {nbytes(over)}, {has} {nbytes(self.limit)}.</p>'
        drawn = self._chart("memory-chart", charts.memory(self.played, self.limit))
        self._add("memory", "Memory over time", said + drawn)

    def _cards(self) -> str:
        plan = self.plan
        figures = plan.outline.figures
        step, peak = figures.get(("time", "step")), figures.get(("memory", "peak"))
        facts = {"predicted step": "unknown" if step is None else seconds(step),
                 "peak memory": "unknown" if peak is None else nbytes(peak),
                 "devices": f"{plan.mesh.world_size} x {plan.hardware}"}  # fmt: skip
        if isinstance(plan, Plan):
            e = plan.estimate
            facts["compute"] = seconds(e.compute_s)
            facts["communication"] = f"{seconds(e.exposed_s)} + {seconds(e.hidden_s)} hidden"
            sure = proof(plan.objective_s, plan.bound_s, plan.proof)
            facts["optimality"] = f"{sure}, by the solver's count"
        else:
            facts["schedule"] = f"{plan.schedule.name}, {plan.microbatches} microbatches"
            found = plan.prediction
            if found is not None:
                facts["idle"] = f"{sum(found.bubbles) / len(found.bubbles):.1%}"
            facts["optimality"] = of_table(None if found is None else found.bound_s)
        cards = "".join(_card(name, escape(value)) for name, value in facts.items())
        return f'<div class="cards">{cards}</div>'

    def _asked(self) -> str:
        first = self.first
        facts = {"preset": first.preset or "none, the solver chose", "precision": first.precision,
                 "optimizer": first.optimizer, "memory limit": self._limited(),
                 "constraints": "; ".join(map(str, first.asked.constraints)) or "none",
                 "operator times": self.plan.sources or "modelled"}  # fmt: skip
        return tables.table(("asked", ""), [(k, escape(v)) for k, v in facts.items()])

    def _limited(self) -> str:
        """Return the requested memory limit, or the device's memory, as text."""
        if self.asked_limit == math.inf:
            return "none: plans may be larger than the device"
        if self.asked_limit is not None:
            return nbytes(self.asked_limit)
        has = f"; the device has {nbytes(self.limit)}" if self.limit else ""
        return f"none asked{has}"

    def _tensors(self) -> Iterator[str]:
        whose = "a stage's first rank" if self.stages else "rank 0"
        yield (
            f'<p class="soft">A box is the whole tensor; the filled part is on {whose}; lines '
            "are splits: solid by the outermost axis, dashed by the next. <code>S(d)</code> split along "
            "dim d "
            "(<code>of=k</code>: in k equal blocks), <code>R</code> replicated, <code>I</code> "
            "invariant, <code>P</code> to be summed, <code>N</code> without gradient; again: gathered "
            "a second time for the backward.</p>"
        )
        parts = [("", self.plan)] if isinstance(self.plan, Plan) else [
            (f"stage {e.stage} on worker {e.worker}: the filled part is on rank "
             f"{self.plan.workers[e.worker].ranks[0]}", e.plan) for e in self.stages
        ]  # fmt: skip
        for title, plan in parts:
            drawn = tables.parameters(plan)
            drawn += "".join(f"<p>{line}</p>" for line in tables.recomputed(plan))
            drawn += f"<details><summary>operators</summary>{tables.operators(plan)}</details>"
            is_open = " open" if title.startswith("stage 0 on worker 0") else ""
            yield (
                f"<details{is_open}><summary>{title}</summary>{drawn}</details>" if title else drawn
            )

    def _why(self) -> str:
        return "".join(map(why, self.extras.explained)) or _hint(
            "Name tensors, operators or modules to see their alternatives, and what these would cost:",
            "--model MODEL --explain TARGET",
        )

    def _measured(self) -> str:
        found = self.extras.measured
        if found is not None and isinstance(self.plan, Plan):
            found.check(self.plan)
            return tables_of(found)
        if self.stages:
            return "<p>No step can be measured: <code>autopar profile</code> runs no pipelines.</p>"
        return _hint(
            "No step was measured. <code>autopar profile MODEL --mesh ... --run --json &gt; "
            "step.json</code> trains a few; pass the file:",
            "--measured step.json",
        )

    def _frontier(self) -> str:
        plans = self.extras.frontier
        if not plans:
            return _hint(
                "Not computed yet. <code>autopar frontier MODEL --mesh ... -o plans/</code> "
                "computes it; pass the folder:",
                "--frontier plans/",
            )
        figures = self.plan.outline.figures
        here = figures["time", "step"], figures["memory", "peak"]
        return self._chart("frontier-chart", charts.frontier(plans, here, self.limit))

    def _sources(self) -> str:
        def shown(title: str, text: str) -> str:
            cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n... cut here"
            numbers = "\n".join(map(str, range(1, cut.count("\n") + 2)))
            return (
                f'<div><p>{escape(title)}</p><div class="code"><pre class="numbers">{numbers}</pre>'
                f"<pre>{escape(cut)}</pre></div></div>"
            )

        first, others = self.extras.written[:1], self.extras.written[1:]
        both = "".join(shown(*each) for each in (*first, *self.extras.emitted))
        more = "".join(shown(*each) for each in others)
        said = "other files that its comments mention"
        folded = f'<details><summary>{said}</summary><div class="beside">{more}</div></details>'
        return f'<div class="beside">{both}</div>' + (folded if others else "")

    def _made_by(self) -> str:
        plan = self.plan
        versions = ", ".join(f"{name} {version}" for name, version in plan.versions)
        return escape(f"Plan {plan.digest} of graph {plan.graph_digest}. {versions}")


def _folded(left: int) -> str:
    """Return a note on the spans of a timeline without a bar of their own; empty if there are none."""
    if not left:
        return ""
    return (
        f'<p class="soft">{left:,} spans are {charts.FOLDED}: rows with many spans show the first and '
        "the last, and a grey bar for all between them.</p>"
    )


def _card(name: str, value: str) -> str:
    long = ' class="long"' if len(value) > LARGE else ""
    return f'<div class="card">{name}<b{long}>{value}</b></div>'


def _hint(said: str, flags: str) -> str:
    """Return a paragraph on what a section would show, and with which flags."""
    return f"<p>{said} <code>autopar report plan.json -o report.html {flags}</code></p>"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()
