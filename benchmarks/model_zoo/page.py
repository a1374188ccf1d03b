"""The table of docs/model_zoo.md, written from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE = {"float64": 1e-9, "float32": 2e-5}
REFUSALS = ("CaptureError", "InputError", "ConstraintError", "InfeasibleError")
"""Answers in the user's terms."""
HEAD = """# The model zoo

<!-- written by benchmarks/model_zoo: no row is edited by hand -->

    python benchmarks/model_zoo --page docs/model_zoo.md

Model classes of `transformers` that train, at most two of each model type, made from their default
configuration with small sizes and three layers. Each is trained for three steps of SGD with momentum
in float64 on two ranks and in one process. A row is in parity where losses, the last gradients and the
weights differ by at most 1e-9 of the largest; in float32, where a kernel of the library's knows no
float64, by 2e-5. *free* is the solver's plan where communication costs nothing, so that it splits all
that it can; the share of FLOPs that it splits is in parentheses.

"""


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """All of it."""
    ran = [row for row in results if "single" not in row["plans"]]
    equal = [row for row in ran if all(map(in_parity, row["plans"].values()))]
    lines = [
        "| class | task | free | fsdp | megatron | commit |", "| --- | --- | ---: | ---: | ---: | --- |",
        *map(line, ran),
    ]  # fmt: skip
    text = HEAD + f"{len(equal)} of {len(ran)} classes are in parity under every plan.\n\n"
    text += "\n".join(lines) + "\n"
    notes = [note for row in ran for note in failures(row)]
    if notes:
        text += "\n## What is refused or fails\n\n" + "\n".join(notes) + "\n"
    untried = [row for row in results if "single" in row["plans"]]
    if untried:
        text += (
            "\n## Not tried\n\nOne process cannot train these from such a configuration and batch: "
        )
        text += ", ".join(f"`{row['name']}`" for row in untried) + ".\n"
    return text


def line(row: Mapping[str, Any]) -> str:
    """One class."""
    plans = row["plans"]
    if "single" in plans:
        return f"| {row['name']} | {row['task'].lower()} | not tried: {plans['single'][:120]} |"
    cells = [cell(name, plans.get(name)) for name in ("free", "fsdp", "megatron")]
    return f"| {row['name']} | {row['task'].lower()} | {' | '.join(cells)} | {row['commit']} |"


def cell(plan: str, found: Mapping[str, Any] | None) -> str:
    """The error, or what came instead."""
    if found is None:
        return ""
    if "failed" in found:
        return "refused" if found["failed"].startswith(REFUSALS) else "**failed**"
    share = f" ({int(100 * found['flops'])}%)" if plan == "free" else ""
    error = f"{found['error']:.0e}{', float32' if found['dtype'] == 'float32' else ''}"
    return (error if in_parity(found) else f"**{error}**") + share


def in_parity(found: Mapping[str, Any]) -> bool:
    """Equal to one process."""
    return "error" in found and found["error"] <= TOLERANCE[found["dtype"]]


def failures(row: Mapping[str, Any]) -> list[str]:
    """Each plan's message, once."""
    said: dict[str, list[str]] = {}
    for plan, found in row["plans"].items():
        if "failed" in found:
            said.setdefault(" ".join(found["failed"].split())[:500], []).append(plan)
    return [f"- {row['name']}, {', '.join(plans)}: {text}" for text, plans in said.items()]
