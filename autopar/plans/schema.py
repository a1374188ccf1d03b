"""Checks the kind and schema version of a plan file before its fields are read."""

from __future__ import annotations

import json

from autopar.errors import PlanError


def check_schema(text: str, source: str, wanted: int) -> None:
    """Raise `PlanError` for a pipeline plan, or a plan of another schema."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return  # the caller reports the fault when it reads the fields
    if not isinstance(content, dict) or "model" not in content:
        return
    schema = content.get("schema")
    if "actions" in content:
        raise PlanError(
            f"{source} is the plan of a pipeline, but a plan without stages is needed here. Make "
            "one with `autopar plan --stages 1`; `autopar show`, `autopar emit` and `autopar "
            "verify` take either."
        )
    if schema != wanted:
        raise PlanError(
            f"{source} has plan schema {schema}; this autopar reads schema {wanted}. "
            "Make a new one with `autopar plan`."
        )
