"""The stages of one architecture, in a process of its own; each is told when it is done."""

from __future__ import annotations

import json
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from measures import operators, split, without_latency
from refusals import refusal

import autopar
from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.compile.outputs import with_outputs
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.request import presets
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Compilation, Settings
from cost_models.hardware import Hardware, load
from tests import parity
from tests.architectures import ARCHITECTURES
from tests.pool import Pool, WorkerError

PRESETS = (None, "fsdp", "megatron")
SEEDS = (0, 1, 2)
"""Of the random plans under which steps are taken besides the presets."""
STEP_LIMIT_S = 200.0
LOCAL = re.compile(r"\S*/(?:site-packages|tests|autopar)/")
"""Where a file lies on the machine that wrote the table, which is nobody's business."""


def run(name: str, mesh: str, hardware: str) -> None:
    """Run all stages; the first that fails is the last."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for stage, work in stages(name, Mesh.parse(mesh), load(hardware)):
        print(json.dumps({"stage": stage, "status": "running"}), flush=True)
        started = time.perf_counter()
        try:
            content = work()
        except BaseException as error:
            more = refusal(name) if stage == "capture" else {}
            content = {"stage": stage, "status": "failed", **told(error), **more}
            print(json.dumps(content), flush=True)
            return
        took = round(time.perf_counter() - started, 2)
        print(json.dumps({"stage": stage, "status": "ok", "seconds": took, **content}), flush=True)


def stages(
    name: str, mesh: Mesh, hardware: Hardware
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Capture and plan in the dtypes that the library gives; then steps on two ranks."""
    model, inputs, loss = ARCHITECTURES[name]()
    graphs: list[Graph] = []

    def record() -> dict[str, Any]:
        graphs.append(with_outputs(capture(model, inputs, loss=loss), ()))
        return {"class": type(model).__name__, **operators(graphs[0])}

    def decided(prices: Hardware, settings: Settings) -> Compilation:
        return compile_graph(graphs[0], mesh, prices, settings, saved(graphs[0]))

    def decide() -> dict[str, Any]:
        plan = decided(hardware, Settings()).plan
        return {"proof": str(plan.proof), "step_s": plan.estimate.step_s}

    def freely(preset: str | None) -> dict[str, Any]:
        constraints = presets.load(preset, mesh) if preset else ()
        settings = Settings(preset=preset or "", constraints=constraints)
        return split(decided(without_latency(hardware), settings).plan, graphs[0])

    yield "capture", record
    yield "plan", decide
    yield "free", lambda: freely(None)
    yield "weights", lambda: freely("fsdp_megatron")
    yield "step", lambda: stepped(name)


def stepped(name: str) -> dict[str, Any]:
    """Steps on two ranks under the solver's plan, presets and random plans: the worst error of all."""
    key = f"architectures.{name}"
    works = [parity.preset_work(key, (2,), preset) for preset in PRESETS]
    works += [parity.random_work(key, (2,), seed) for seed in SEEDS]
    pool = Pool()
    try:
        errors = pool.run(2, parity.check_all, works, limit_s=STEP_LIMIT_S)
    except WorkerError as error:
        raise WorkerError(", ".join(str(error).strip().splitlines()[-2:])) from None
    finally:
        pool.stop()
    dtype = "float32" if key in parity.SINGLE else "float64"
    return {"plans": len(works), "steps": parity.STEPS, "dtype": dtype, "worst": max(errors)}


def told(error: BaseException) -> dict[str, str]:
    """Type and message without local paths, and the innermost lines of autopar."""
    frames = traceback.extract_tb(error.__traceback__)
    root = str(Path(autopar.__file__).parent)
    inner = [f for f in frames if f.filename.startswith(root)]
    return {
        "error": LOCAL.sub("", f"{type(error).__name__}: {error}"),
        "frames": " <- ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(inner[-4:])),
    }
