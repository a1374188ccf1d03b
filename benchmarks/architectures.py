"""Every architecture of `tests/architectures`: is it captured, planned, and computed right on shards?

python benchmarks/architectures.py --parts plan equal 2 -o benchmarks/architectures.json

Each runs in a process of its own with a time limit; a stage that fails is kept with its error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import autopar
from autopar import presets
from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.compile import compile_graph
from autopar.compiler import with_outputs
from autopar.graph import Graph, Node, short
from autopar.mesh import Mesh
from autopar.plan import Plan
from autopar.posed import Settings
from autopar.rules import discovered, flops, registered, rule_of
from cost_models.hardware import Hardware, Link, load
from tests import models, parity
from tests.architectures import ARCHITECTURES, FAMILIES
from tests.capture.compare import captured_equals_eager
from tests.pool import Pool
from tests.wide import Wide

STAGES = ("build", "capture", "plan", "splits", "megatron", "equal", "parity 1", "parity 2")
"""`splits`: what a plan splits where communication is free, that is, all that rules allow;
`megatron`: the same with every parameter split where that preset can.
`equal`: the captured graph against the model.  `parity n`: a step on n ranks against one process."""
PRESETS = (None, "fsdp", "megatron")
SEEDS = (0, 1, 2)
"""Of the random plans that parity tries besides the presets."""
LIMIT_S = 120.0


def main() -> None:
    """Run all, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of ARCHITECTURES; none: all")
    parser.add_argument("--mesh", default="2x2")
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument(
        "--parts", nargs="+", default=["plan"], help="plan, equal, and steps on ranks: 1, 2"
    )
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds per process")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    found = []
    print(HEADER)
    for name in options.names or ARCHITECTURES:
        found.append(outside(name, options))
        print(line(found[-1]), flush=True)
    print(without_rule(found))
    print(failures(found))
    if options.output:
        options.output.write_text(json.dumps(document(found, options), indent=1) + "\n")
    return None


# ---- one architecture, in this process


def inside(options: argparse.Namespace) -> None:
    """Run the stages of one architecture; one JSON line per stage, so that a kill loses one only."""
    name, part = options.inside.split(":")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if part == "plan":
        steps = planning(name, Mesh.parse(options.mesh), load(options.hardware))
    elif part == "equal":
        steps = {"equal": lambda: equal(name)}
    else:
        steps = {f"parity {part}": lambda: stepped(name, int(part))}
    for stage, run in steps.items():
        print(json.dumps({"stage": stage, "status": "running"}), flush=True)
        started = time.perf_counter()
        try:
            content = run()
        except BaseException as error:
            print(json.dumps({"stage": stage, "status": "failed", **told(error)}), flush=True)
            return
        took = round(time.perf_counter() - started, 3)
        print(json.dumps({"stage": stage, "status": "ok", "seconds": took, **content}), flush=True)


def planning(name: str, mesh: Mesh, hardware: Hardware) -> dict[str, Callable[[], dict[str, Any]]]:
    """Build, capture and plan, in the dtypes that the library gives."""
    have: dict[str, Any] = {}

    def build() -> dict[str, Any]:
        have["model"], have["inputs"], have["loss"] = ARCHITECTURES[name]()
        parameters = sum(p.numel() for p in have["model"].parameters())
        return {"class": type(have["model"]).__name__, "parameters": parameters}

    def record() -> dict[str, Any]:
        graph = capture(have["model"], have["inputs"], loss=have["loss"])
        have["graph"] = with_outputs(graph, ())
        return operators(have["graph"])

    def decide() -> dict[str, Any]:
        made = compile_graph(have["graph"], mesh, hardware, Settings(), saved(have["graph"]))
        return {**shares(made.plan), "lines": made.source.count("\n")}

    def decide_freely() -> dict[str, Any]:
        graph, free = have["graph"], without_latency(hardware)
        return shares(compile_graph(graph, mesh, free, Settings(), saved(graph)).plan)

    def decide_on_weights() -> dict[str, Any]:
        graph, free = have["graph"], without_latency(hardware)
        settings = Settings(preset="megatron", constraints=presets.load("megatron", mesh))
        return shares(compile_graph(graph, mesh, free, settings, saved(graph)).plan)

    return {
        "build": build,
        "capture": record,
        "plan": decide,
        "splits": decide_freely,
        "megatron": decide_on_weights,
    }


def without_latency(hardware: Hardware) -> Hardware:
    """Communication and calls for nothing: what a plan then leaves whole cannot be split."""
    link = Link(bytes_per_s=1e18, latency_s=0.0)
    device = replace(hardware.device, launch_s=0.0)
    return replace(hardware, device=device, intra_host=link, inter_host=link, shared={})


def operators(graph: Graph) -> dict[str, Any]:
    """Counts, and how those are used that have no rule or one that lets nothing be split."""
    nodes = [node for node in graph.nodes if not node.is_leaf]
    whole = [node for node in nodes if rule_of(node, graph).source == "none"]
    stiff = [node for node in nodes if is_stiff(node, graph)]
    work = {node.name: flops(node, graph) for node in nodes}
    total = sum(work.values())
    return {
        "nodes": len(nodes),
        "operators": dict(Counter(short(node.op) for node in nodes)),
        "rules": sources(nodes, graph),
        "experiments": round(sum(found.seconds for found in discovered()), 3),
        "without rule": uses(whole, graph, work, total),
        "rule splits nothing": uses(stiff, graph, work, total),
    }


def sources(nodes: list[Node], graph: Graph) -> dict[str, dict[str, float]]:
    """By whose word a rule is: the share of calls, and of distinct operators, that have such a rule."""
    calls = Counter(rule_of(node, graph).source for node in nodes)
    kinds = Counter(source for _, source in {(n.op, rule_of(n, graph).source) for n in nodes})
    return {
        source: {
            "calls": round(calls[source] / max(len(nodes), 1), 4),
            "operators": round(kinds[source] / max(kinds.total(), 1), 4),
        }
        for source in ("declared", "user", "discovered", "none")
        if calls[source]
    }


def is_stiff(node: Node, graph: Graph) -> bool:
    """A rule that lets nothing of a differentiable tensor with many elements be split."""
    instance = rule_of(node, graph)
    sizes = [math.prod(tensor.shape) for tensor in node.outputs if tensor.differentiable]
    return instance.declared and max(sizes, default=0) > 1 and not instance.shardable


def uses(
    nodes: list[Node], graph: Graph, work: Mapping[str, int], total: int
) -> dict[str, dict[str, Any]]:
    """By overload: how often, what share of the operations, and each distinct call with its line."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        entry = found.setdefault(node.op, {"count": 0, "work": 0.0, "calls": []})
        entry["count"] += 1
        entry["work"] += work[node.name] / max(total, 1)
        entry["declines"] = is_registered(node.op)
        entry["gradient"] = entry.get("gradient", False) or node.outputs[0].differentiable
        call = called(node, graph)
        if len(entry["calls"]) < 4 and call["call"] not in [c["call"] for c in entry["calls"]]:
            entry["calls"].append(call)
    return found


def is_registered(op: str) -> bool:
    """Whether there is a rule under this name, which then had nothing to say of these arguments."""
    return short(op) in registered() or ".".join(op.split(".")[1:]) in registered()


def called(node: Node, graph: Graph) -> dict[str, Any]:
    """The call with shapes for names, and where the model makes it."""
    arguments = [*map(repr, node.args), *(f"{key}={value!r}" for key, value in node.kwargs)]
    text = f"{node.op}({', '.join(arguments)})"
    seen = {name: graph.tensors[name] for name in node.operands}
    for name, tensor in sorted(seen.items(), key=lambda item: -len(item[0])):
        mark = "" if tensor.differentiable else " no grad"
        text = text.replace(name, f"<{tensor.dtype}{list(tensor.shape)}{mark}>")
    made = ", ".join(str(list(tensor.shape)) for tensor in node.outputs)
    origin = node.origin
    place = f"{Path(origin.file).name}:{origin.line}" if origin.file else ""
    return {"call": f"{text} -> {made}", "line": place, "code": origin.code, "in": origin.module}


def shares(plan: Plan) -> dict[str, Any]:
    """What each axis splits, and the plan's own figures."""
    split = {
        share.axis: {
            "flops": round(share.flops, 4),
            "stored": round(share.stored, 4),
            "used": round(share.used, 4),
        }
        for share in plan.shares
    }
    gap = plan.objective_s / plan.bound_s - 1 if plan.bound_s else math.inf
    return {
        "shares": split,
        "step_s": plan.estimate.step_s,
        "proof": str(plan.proof),
        "gap": round(gap, 6),
    }


def equal(name: str) -> dict[str, Any]:
    """The captured graph, interpreted in float64, gives the model's loss, gradients and buffers."""
    with Wide():
        captured_equals_eager(*models.double(ARCHITECTURES[name]()))
    return {}


def stepped(name: str, ranks: int) -> dict[str, Any]:
    """A step under the solver's plan, presets and random plans, on gloo ranks."""
    key, shape = f"architectures.{name}", (ranks,)
    works = [parity.preset_work(key, shape, preset) for preset in PRESETS]
    works += [parity.random_work(key, shape, seed) for seed in SEEDS if ranks > 1]
    pool, wrong = Pool(), []
    try:
        for work in works:
            try:
                pool.run(ranks, parity.check_all, [work])
            except BaseException as error:
                wrong.append({"plan": work.label, **told(error)})
    finally:
        pool.stop()
    if wrong:
        raise AssertionError(f"{len(wrong)} of {len(works)} plans: " + json.dumps(wrong, indent=1))
    return {"plans": len(works)}


def told(error: BaseException) -> dict[str, str]:
    """Type, message, and the innermost lines of autopar."""
    frames = traceback.extract_tb(error.__traceback__)
    root = str(Path(autopar.__file__).parent)
    inner = [f"{f.filename}:{f.lineno} {f.name}" for f in frames if f.filename.startswith(root)]
    cause = error.__cause__
    return {
        "error": f"{type(error).__name__}: {error}",
        "cause": f"{type(cause).__name__}: {cause}" if cause is not None else "",
        "frames": " <- ".join(reversed(inner[-6:])),
    }


# ---- all of them, each in a process


def outside(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process found before it ended or its time was over."""
    family = next(f for f, makers in FAMILIES.items() if ARCHITECTURES[name] in makers)
    result: dict[str, Any] = {"name": name, "family": family}
    for part in options.parts:
        result |= child(name, part, options)
    return result


def child(name: str, part: str, options: argparse.Namespace) -> dict[str, Any]:
    """The stages of one process."""
    command = [
        sys.executable, __file__, "--inside", f"{name}:{part}", "--mesh", options.mesh,
        "--hardware", options.hardware,
    ]  # fmt: skip
    # A session of its own: ranks that hang end with their parent.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=options.limit)
        ending = f"exit code {process.returncode}: {err[-2000:]}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        ending = f"not done after {options.limit:g} s"
    found = {}
    for text in out.splitlines():
        if text.startswith('{"stage"'):
            said = json.loads(text)
            found[said.pop("stage")] = said
    for said in found.values():
        if said["status"] == "running":
            said.update(status="failed", error=ending)
    return found or {"build": {"status": "failed", "error": ending}}


# ---- what is printed

HEADER = (
    f"{'architecture':17}{'nodes':>5}{'kinds':>6}{'declared':>10}{'found':>7}{'none':>6}"
    f"{'capture':>9}{'plan':>9}"
    f"{'flops split':>14}{'megatron':>11}  {'equal':8}{'1 rank':8}{'2 ranks':8}"
)
"""`declared`, `found`, `none`: calls by whose word their rule is.  Of `flops split` each mesh axis has a
number; of `megatron` the last one, of parameter bytes."""


def line(found: Mapping[str, Any]) -> str:
    """One architecture."""
    recorded = found.get("capture", {})
    shares = recorded.get("rules", {})
    text = (
        f"{found['name']:17}{recorded.get('nodes', ''):>5}{len(recorded.get('operators', ())):>6}"
    )
    for source, width in (("declared", 10), ("discovered", 7), ("none", 6)):
        share = shares.get(source, {}).get("calls", 0.0)
        text += f"{f'{share:.0%}' if shares else '':>{width}}"
    text += f"{timed(recorded):>9}{timed(found.get('plan', {})):>9}"
    split = found.get("splits", {}).get("shares", {}).values()
    used = [share["used"] for share in found.get("megatron", {}).get("shares", {}).values()]
    flops_split = " ".join(f"{share['flops']:.0%}" for share in split)
    text += f"{flops_split:>14}"
    text += f"{''.join(f'{share:.0%}' for share in used[-1:]):>11}"
    checks = (found.get(stage, {}).get("status", "-") for stage in STAGES[5:])
    return text + "  " + "".join(f"{check:8}" for check in checks)


def timed(stage: Mapping[str, Any]) -> str:
    """Seconds, or that it failed."""
    return f"{stage['seconds']:.2f} s" if "seconds" in stage else stage.get("status", "-")


def without_rule(found: list[dict[str, Any]]) -> str:
    """Operators without a rule, those first that most architectures need."""
    users: dict[str, list[str]] = {}
    for entry in found:
        for op, use in entry.get("capture", {}).get("without rule", {}).items():
            mark = op if use["gradient"] else f"{op} (no grad)"
            users.setdefault(mark, []).append(entry["name"])
    lines = ["", "operators without a rule"]
    for op, names in sorted(users.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"  {op:40}{len(names):>3}  {', '.join(names)}")
    return "\n".join(lines)


def failures(found: list[dict[str, Any]]) -> str:
    """Every stage that failed, with its error."""
    lines = ["", "failures"]
    for entry in found:
        for stage in STAGES:
            said = entry.get(stage, {})
            if said.get("status") == "failed":
                lines.append(f"  {entry['name']}, {stage}: {said['error']}")
    return "\n".join(lines)


def document(found: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """What is written."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, one thread",
        "mesh": options.mesh,
        "hardware": options.hardware,
        "results": found,
    }


if __name__ == "__main__":
    main()
