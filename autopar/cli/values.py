"""What commands print for programs: values of the library as JSON."""

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
    """A value of the library as JSON on the standard output."""
    typer.echo(json.dumps(plain(value), indent=1))


def plain(value: Any) -> Any:
    """Dataclasses as objects, what is not finite as null, all else as JSON has it or as text."""
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
    """What JSON says of a plan: names, texts and figures; its file has the rest."""
    found = plan.outline
    figures = [{"kind": k, "name": name, "value": v} for (k, name), v in found.figures.items()]
    return vars(found) | {"figures": figures}


def outlined_point(point: Point) -> dict[str, Any]:
    """A batch and a limit; of the plan that meets them its outline."""
    return {
        "batch": point.batch,
        "limit_nbytes": point.limit_nbytes,
        "smallest_nbytes": point.smallest_nbytes,
        "plan": None if point.made is None else outlined(point.made.plan),
    }
