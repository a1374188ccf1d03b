"""The table of docs/architectures.md, written from the JSON alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ENOUGH = 0.95
"""Below, the page says what stays whole."""
HEAD = """# Architectures

<!-- written by benchmarks/architectures: no row is edited by hand -->

    python benchmarks/architectures --page docs/architectures.md

Tiny instances of architectures as their libraries build them from a configuration
(`tests/architectures`), with loss, in train mode, planned on a {mesh} mesh with the {hardware} profile;
{machine}, {date}.

- *operators*: distinct ones; of these the share whose rule is declared by autopar, found by experiment,
  or missing (computed whole).
- *FLOPs*: what each axis splits where communication is free, so what rules allow.
- *parameters*: bytes that `x` splits at rest and `y` splits in use under the `fsdp_megatron` preset,
  where communication is free; every reading of a parameter counts.
- *plan*: seconds from the graph to the solver's plan and its source.
- *worst error*: of the losses of {steps} steps of SGD with momentum, each on another batch, of the last
  gradients, of weights and buffers, against one process, on two ranks, in float64 where nothing else
  is said, under {plans} plans: the solver's, `fsdp`, `megatron` and random ones. In all of them the
  bytes that collectives moved equal the prediction.

"""
COLUMNS = (
    "architecture", "nodes", "operators", "declared", "found", "none", "FLOPs x", "FLOPs y",
    "parameters x", "parameters y", "capture", "plan", "worst error",
)  # fmt: skip


def page(document: Mapping[str, Any]) -> str:
    """All of it."""
    results: Sequence[Mapping[str, Any]] = document["results"]
    plans = max((found.get("step", {}).get("plans", 0) for found in results), default=0)
    steps = max((found.get("step", {}).get("steps", 0) for found in results), default=0)
    text = HEAD.format(**{**document, "results": None}, plans=plans, steps=steps)
    lines = [row(COLUMNS), row(["---", *["---:"] * (len(COLUMNS) - 1)]), *map(line, results)]
    text += "\n".join(lines) + "\n"
    for title, notes in (
        ("What stays whole", [note for found in results for note in reasons(found)]),
        ("Operators without a rule", without_rule(results)),
        ("What fails", [note for found in results for note in failures(found)]),
    ):
        if notes:
            text += f"\n## {title}\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"
    return text + "".join(map(refused, results))


def row(cells: Sequence[object]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def line(found: Mapping[str, Any]) -> str:
    """One architecture."""
    recorded = found.get("capture", {})
    rules = recorded.get("rules", {})
    shares = [
        percent(rules.get(s, 0.0)) if rules else "" for s in ("declared", "discovered", "none")
    ]
    flops = [percent(share) for _, share, _ in free(found)] or ["", ""]
    weights = [percent(share) for _, share, _ in in_use(found)] or ["", ""]
    return row(
        (
            found["name"], recorded.get("nodes", ""), recorded.get("operators", ""), *shares,
            *flops, *weights, timed(recorded), timed(found.get("plan", {})), worst(found),
        )
    )  # fmt: skip


def free(found: Mapping[str, Any]) -> list[tuple[str, float, list[str]]]:
    """By axis: the share of operations that can be split, and what stays whole."""
    axes = axes_of(found.get("free", {}))
    return [(f"FLOPs on {axis}", s["flops"], s["whole flops"]) for axis, s in axes.items()]


def in_use(found: Mapping[str, Any]) -> list[tuple[str, float, list[str]]]:
    """The share of parameter bytes that the first axis splits at rest, and the last one in use."""
    axes = axes_of(found.get("weights", {}))
    ways = zip(axes.items(), ("stored", "used"), strict=False)
    return [
        (f"parameters on {axis}", share[way], share["whole parameters"])
        for (axis, share), way in ways
    ]


def axes_of(stage: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage says of each axis."""
    return {axis: share for axis, share in stage.items() if isinstance(share, dict)}


def percent(share: float) -> str:
    """Rounded down, so that 100% is all."""
    return f"{int(share * 100 + 1e-9)}%"


def timed(stage: Mapping[str, Any]) -> str:
    """Seconds, or that it failed."""
    return f"{stage['seconds']:.1f} s" if "seconds" in stage else stage.get("status", "")


def worst(found: Mapping[str, Any]) -> str:
    """The worst error of all plans, or what came of it."""
    step = found.get("step", {})
    if "worst" not in step:
        return step.get("status", "")  # type: ignore[no-any-return]
    notes = [f"{step['worst']:.0e}"]
    if step.get("dtype") == "float32":
        notes.append("float32")
    return ", ".join(notes)


def reasons(found: Mapping[str, Any]) -> Iterator[str]:
    """Where less is split than enough, what is not."""
    for what, share, whole in (*free(found), *in_use(found)):
        if share < ENOUGH:
            yield f"{found['name']}, {what} ({percent(share)}): {', '.join(f'`{w}`' for w in whole)}"


def without_rule(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Operators that are computed whole on every rank, and where."""
    users: dict[str, list[str]] = {}
    for found in results:
        for name in found.get("capture", {}).get("without rule", ()):
            users.setdefault(name, []).append(found["name"])
    ordered = sorted(users.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"`{name}`: {', '.join(names)}" for name, names in ordered]


def failures(found: Mapping[str, Any]) -> Iterator[str]:
    """The stage that failed, with its error's first lines."""
    for stage, said in found.items():
        if isinstance(said, dict) and said.get("status") == "failed":
            text = " ".join(said["error"].split())
            yield f"{found['name']}, {stage}: {text[:500]}"


def refused(found: Mapping[str, Any]) -> str:
    """What PyTorch's ways of capture say of it, and what a user can do."""
    said = found.get("capture", {})
    if "ways" not in said:
        return ""
    text = f"\n## {found['name']}: PyTorch's own two ways of capture\n"
    for way, trace in said["ways"].items():
        text += f"\n`{way}`:\n\n```text\n{trace}\n```\n"
    for name, words in said["workarounds"].items():
        text += f"\nWhat a user can do, tried (row `{name}`): {words}\n"
    return text if said["workarounds"] else f"{text}\nNo workaround was found.\n"
