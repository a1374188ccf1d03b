"""From model code to emitted stages: `python benchmarks/pipelines.py [gpt39b|llama405b|layer_graphs]`.

GPT-39B (48 layers, hidden 8192, 64 heads, sequence 1024, batch 1024) on 8 x 8 V100, for which Alpa
published 2,393 s of planning, and Llama-3-405B on 2,048 hosts of 8 H100.  With `layer_graphs`, also what
`layer_graphs.py` measures: graphs of other planners, whose layers have known costs.  `-o FILE` writes
all rows as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from layer_graphs import measured as measured_graphs

from autopar.api import compile_staged
from autopar.cli.output import save
from autopar.cli.stages import stage_pages
from autopar.compile.automatic import source_of
from autopar.compile.compiler import Compiler
from autopar.errors import InfeasibleError
from autopar.ir.mesh import Mesh
from autopar.pipeline.build import choose
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.predict import predict
from autopar.pipeline.build.single_stage import SingleStagePlanner
from autopar.pipeline.build.staged import Staged, compile_pipeline
from autopar.pipeline.planner import plan_stages
from autopar.request.meta import without_weights
from autopar.request.options import Options
from autopar.request.pipeline import Pipeline
from autopar.utils.gc import uncollected
from cost_models.hardware import load

PHASES: tuple[tuple[Any, str], ...] = (
    (choose.StageTableBuilder, "tabled"),
    (choose, "compiled"),
    (SingleStagePlanner, "soon"),
    (SingleStagePlanner, "after_all"),
)
"""Functions whose time is told apart; `after_all` may run within `soon`.  The planner, which may run in
another process beside `soon`, is timed once more by itself."""
GRAPHS = "layer_graphs"
ALPAS_MICROBATCHES = (64, 128, 256, 512, 1024)
"""It published none; each is tried."""


def gpt39b() -> tuple[Any, dict[str, Any]]:
    """Alpa's GPT-39B (table 4), in half precision, on 8 x 8 V100."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=48, n_embd=8192, n_head=64, n_positions=1024, vocab_size=51200,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    return model, {"mesh": "8x8", "hardware": "v100", "precision": "float16", "batch": (1024, 1024)}


def llama405b() -> tuple[Any, dict[str, Any]]:
    """Llama-3-405B, 2,048 sequences of 8,192 tokens, on 2,048 x 8 H100."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    asked = {"mesh": "2048x8", "hardware": "h100", "precision": "bfloat16", "batch": (2048, 8192)}
    return model, asked


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "gpt39b": gpt39b,
    "llama405b": llama405b,
}


def timed(
    spent: dict[str, float], found: dict[str, Any], name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, with its wall time added up and its last result kept."""

    def run(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            found[name] = function(*args, **kwargs)
            return found[name]
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start

    return run


def cpu_seconds() -> float:
    """Of this process and of those that it has started and ended."""
    return sum(os.times()[:4])


def measured(name: str) -> dict[str, Any]:
    """Plan, emit, and what took how long."""
    spent: dict[str, float] = {}
    returned: dict[str, Any] = {}
    for where, phase in PHASES:
        setattr(where, phase, timed(spent, returned, phase, getattr(where, phase)))
    wall, cpu = time.perf_counter(), cpu_seconds()
    model, asked = MODELS[name]()
    ids = torch.zeros(asked["batch"], dtype=torch.int64, device="meta")
    made = compile_staged(
        model, asked["mesh"], {"input_ids": ids, "labels": ids}, hardware=asked["hardware"],
        precision=asked["precision"], pipeline="auto",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(made, Staged):
            for page, text in stage_pages(made).items():
                save(text, Path(folder) / page)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    planner = time.perf_counter()
    plan_stages(returned["tabled"].problem)
    planner = time.perf_counter() - planner
    row: dict[str, Any] = {
        "model": name, **{key: asked[key] for key in ("mesh", "hardware", "precision")},
        "wall_s": round(wall, 2), "cpu_s": round(cpu, 2),
        "phases_wall_s": {key: round(value, 2) for key, value in spent.items()},
        "planner_s": round(planner, 2),
        "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__,
    }  # fmt: skip
    if isinstance(made, Staged) and made.plan.prediction is not None:
        found = made.plan.prediction
        row |= {
            "stages": [str(worker.mesh) for worker in made.plan.workers],
            "schedule": made.plan.schedule.name, "microbatches": made.plan.microbatches,
            "step_s": found.step_s, "table_step_s": found.table_step_s, "bound_s": found.bound_s,
            "bubbles": found.bubbles,
            "compared": [(each.what, each.step_s) for each in found.compared],
        }  # fmt: skip
    return row


def alpas_step() -> float:
    """The predicted step of Alpa's published plan of GPT-39B, 16 stages of 1x4, within the memory."""
    model, asked = gpt39b()
    ids = torch.zeros(asked["batch"], dtype=torch.int64, device="meta")
    hardware, mesh = load(asked["hardware"]), Mesh.parse(asked["mesh"])
    options = Options.of(precision=asked["precision"], memory_limit=hardware.device.memory_bytes)
    bare = without_weights(model, options.precision.compute)
    compiler = Compiler(bare, mesh, hardware, options)
    source, settings = (
        source_of(compiler, {"input_ids": ids, "labels": ids}),
        compiler.settings(None),
    )
    steps = []
    for microbatches in ALPAS_MICROBATCHES:
        wanted = PipelineSpec.of(mesh, Pipeline([(4,)] * 16, "1f1b", microbatches))
        with suppress(InfeasibleError):
            graph = source.parted(microbatches)
            made = compile_pipeline(graph, mesh, hardware, settings, wanted)
            step = predict(made.plan, made.stages, hardware, settings).step_s
            print(f"Alpa's plan in {microbatches} microbatches: {step:.1f} s", flush=True)
            steps.append(step)
    return min(steps)


def main() -> None:
    """A line on the screen, JSON in a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["gpt39b"], choices=[*MODELS, GRAPHS])
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    with uncollected():
        rows = [measured(name) for name in asked.names if name in MODELS]
        for row in rows:
            if row["model"] == "gpt39b":
                row["alpas_plan_step_s"] = alpas_step()
    if GRAPHS in asked.names:
        rows += [{"model": name, **row} for name, row in measured_graphs().items()]
    for row in rows:
        print(json.dumps(row, indent=1))
    if asked.output:
        asked.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
