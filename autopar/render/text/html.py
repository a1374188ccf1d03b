"""Renders values as the command line prints them: as text, and as HTML for notebooks.

Like the command line it sets no colours, so tables are readable in light and dark themes.
"""

from __future__ import annotations

import io
from functools import singledispatch

from rich.console import Console, RenderableType

from autopar.explain.compare import Comparison, Contender
from autopar.explain.explanation import Explanation
from autopar.explain.replay import Played
from autopar.plans.changes import Difference
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.text.changes import show_difference
from autopar.render.text.contenders import contenders
from autopar.render.text.explanation import explanation
from autopar.render.text.pipeline import show_pipeline
from autopar.render.text.plan import show_plan
from autopar.render.text.played import show_played
from autopar.render.text.table import WIDTH, to_text

CODE = '<pre style="line-height: normal; overflow-x: auto; white-space: pre">{code}</pre>'


def as_html(renderable: RenderableType) -> str:
    """Return the output of a console of 100 columns, as one ``<pre>`` that needs no style sheet."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, highlight=False)
    console.print(renderable)
    return console.export_html(code_format=CODE, inline_styles=True)


@singledispatch
def drawn(value: object) -> RenderableType:
    """Return a value as a rich renderable."""
    raise TypeError(f"There is no drawing of a {type(value).__name__}.")


drawn.register(Plan)(show_plan)
drawn.register(PipelinePlan)(show_pipeline)
drawn.register(Difference)(show_difference)
drawn.register(Explanation)(explanation)
drawn.register(Played)(show_played)


@drawn.register
def _of_one(way: Contender) -> RenderableType:
    return contenders([(way.name, way.plan, way.why)])


@drawn.register
def _of_all(found: Comparison) -> RenderableType:
    return contenders([(way.name, way.plan, way.why) for way in found], found.limit_nbytes)


def text(value: object) -> str:
    """Return a value as `print` shows it."""
    return to_text(drawn(value)).rstrip("\n")


def html(value: object) -> str:
    """Return a value as a notebook shows it."""
    return as_html(drawn(value))
