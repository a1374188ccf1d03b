"""The table of docs/model_zoo.md, written from the JSON alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE = {"float64": 1e-9, "float32": 2e-5}
ORDERS, ROUNDING = 4.0, 100.0
"""How many times what one process differs from itself is still taken for rounding; and how many
times the tolerance, at most."""
REFUSALS = ("CaptureError", "InputError", "ConstraintError", "InfeasibleError")
"""Answers in the user's terms."""
PLANS = ("free", "fsdp", "megatron")
HEAD = """# The model zoo

<!-- written by benchmarks/model_zoo: no row is edited by hand -->

    python benchmarks/model_zoo --page docs/model_zoo.md

Model classes of `transformers` that train, at most two of each model type, made from their default
configuration with small sizes and three layers. Each is trained for three steps of SGD with momentum
in float64 on two ranks and in one process. A row is in parity if losses, last gradients and weights
differ by at most 1e-9 of the largest value. If a kernel has no float64, float32 is used, and the
tolerance is 2e-5. A larger difference is accepted up to four times *itself*, and at most 100 times the
tolerance. *Itself* is the difference of one process to itself when its samples come in reverse order.

Parentheses give the shares of forward FLOPs and of stored weight bytes that are sharded. *Divides
nothing* means that both are zero; such a row proves nothing. *free* is the solver's plan with the cost
of communication set to zero, so that it shards as much as possible. Each row has the commit at which
it was measured.

"""


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """All of it."""
    ran = [row for row in results if "single" not in row["plans"]]
    plans = [plan for plan in PLANS if any(plan in row["plans"] for row in ran)]
    lines = [
        f"| class | task | {' | '.join(plans)} | commit |",
        f"| --- | --- | {' | '.join('---:' for _ in plans)} | --- |",
        *(line(row, plans) for row in ran),
    ]
    text = HEAD + counts(results, ran, plans) + "\n".join(lines) + "\n"
    notes = [note for row in ran for note in failures(row)]
    if notes:
        text += "\n## What is refused or fails\n\n" + "\n".join(notes) + "\n"
    untried = [row for row in results if "single" in row["plans"]]
    if untried:
        text += (
            "\n## Not trained\n\nOne process does not train these from such a configuration and "
        )
        text += "batch:\n\n"
        text += "".join(f"- {row['name']}: {_short(row['plans']['single'])}\n" for row in untried)
    return text


def counts(
    results: Sequence[Mapping[str, Any]], ran: Sequence[Mapping[str, Any]], plans: Sequence[str]
) -> str:
    """How many of each answer, by plan."""
    commits = sorted({row["commit"] for row in ran})
    text = (
        f"{len(results)} classes were tried; one process trains {len(ran)} of them. "
        f"Measured at {', '.join(commits)}.\n\n"
        "| plan | in parity | divides nothing | refused | wrong numbers | another error |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
    )
    kinds = ("parity", "nothing", "refused", "wrong", "failed")
    for plan in plans:
        found = [verdict(row["plans"][plan]) for row in ran if plan in row["plans"]]
        text += f"| {plan} | {' | '.join(str(found.count(kind)) for kind in kinds)} |\n"
    return text + "\n"


def verdict(found: Mapping[str, Any]) -> str:
    """What came of a plan, in a word."""
    if "failed" in found:
        return "refused" if found["failed"].startswith(REFUSALS) else "failed"
    if not in_parity(found):
        return "wrong"
    return "parity" if found["flops"] or found["stored"] else "nothing"


def line(row: Mapping[str, Any], columns: Sequence[str] = PLANS) -> str:
    """One class."""
    plans = row["plans"]
    if "single" in plans:
        return f"| {row['name']} | {row['task'].lower()} | not tried: {plans['single'][:120]} |"
    cells = [cell(plans.get(name)) for name in columns]
    return f"| {row['name']} | {row['task'].lower()} | {' | '.join(cells)} | {row['commit']} |"


def cell(found: Mapping[str, Any] | None) -> str:
    """The error, or what came instead."""
    if found is None:
        return ""
    kind = verdict(found)
    if "failed" in found:
        return "refused" if kind == "refused" else "**failed**"
    divided = f"{int(100 * found['flops'])}%, {int(100 * found['stored'])}%"
    share = f" ({'divides nothing' if kind == 'nothing' else divided})"
    error = f"{found['error']:.0e}{' float32' if found['dtype'] == 'float32' else ''}"
    if kind != "wrong" and found["error"] > TOLERANCE[found["dtype"]]:
        error += f", itself {found['itself']:.0e}"
    return (f"**{error}**" if kind == "wrong" else error) + share


def in_parity(found: Mapping[str, Any]) -> bool:
    """Equal to one process, as far as one process is equal to itself."""
    if "error" not in found:
        return False
    least = TOLERANCE[found["dtype"]]
    return found["error"] <= max(least, min(ORDERS * found.get("itself", 0.0), ROUNDING * least))


def _short(text: str) -> str:
    """One line of a message, without paths."""
    return _brief(text)[:160]


def _brief(text: str) -> str:
    return re.sub(r"/\S*/(site-packages/|(?=(tests|autopar)/))", "", " ".join(text.split()))[:500]


def failures(row: Mapping[str, Any]) -> list[str]:
    """Each plan's message, once."""
    said: dict[str, list[str]] = {}
    for plan, found in row["plans"].items():
        if "failed" in found:
            said.setdefault(_brief(found["failed"]), []).append(plan)
        elif verdict(found) == "wrong":
            itself = f"{found['itself']:.0e}" if "itself" in found else "an unknown amount"
            said.setdefault(
                f"differs by {found['error']:.0e}; one process, its samples in the opposite order, "
                f"differs from itself by {itself} (a forward that draws random numbers does).",
                [],
            ).append(plan)
    return [f"- {row['name']}, {', '.join(plans)}: {text}" for text, plans in said.items()]
