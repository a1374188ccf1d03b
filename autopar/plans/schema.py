"""What kind of plan a file holds, found out before its fields are looked at."""

from __future__ import annotations

import json

from autopar.errors import PlanError


def check_schema(text: str, source: str, wanted: int) -> None:
    """Refuse the plan of a pipeline, and a plan of another schema."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return  # what it is instead of a plan is said by whoever reads its fields
    if not isinstance(content, dict) or "model" not in content:
        return
    schema = content.get("schema")
    if "actions" in content:
        raise PlanError(
            f"{source} is the plan of a pipeline, and this asks for one without stages. Make one with "
            "`autopar plan --stages 1`; `autopar show`, `autopar emit` and `autopar verify` take either."
        )
    if schema != wanted:
        raise PlanError(
            f"{source} has plan schema {schema}; this autopar reads schema {wanted}. "
            "Make a new one with `autopar plan`."
        )
