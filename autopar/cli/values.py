"""Converts values of the library to JSON, for the commands' --json."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import typer

from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.sharding.landscape import Point


def print_json(value: Any) -> None:
    """Print a value of the library as JSON on standard output."""
    typer.echo(json.dumps(plain(value), indent=1))


def plain(value: Any) -> Any:
    """Convert to JSON data: dataclasses to objects, non-finite numbers to null, other types to text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def outlined(plan: Plan | PipelinePlan) -> dict[str, Any]:
    """Return a plan's outline as JSON data: names, texts and figures; the plan's file has the rest."""
    found = plan.outline
    figures = [{"kind": k, "name": name, "value": v} for (k, name), v in found.figures.items()]
    return vars(found) | {"figures": figures}


def outlined_point(point: Point) -> dict[str, Any]:
    """Return a point as JSON data: batch, limit, and the outline of its plan if there is one."""
    return {
        "batch": point.batch,
        "limit_nbytes": point.limit_nbytes,
        "smallest_nbytes": point.smallest_nbytes,
        "plan": None if point.made is None else outlined(point.made.plan),
    }
