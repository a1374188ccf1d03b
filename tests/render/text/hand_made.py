"""A plan written by hand: what is shown of it changes only when showing changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.pipeline.schedules import build, chain, lower
from autopar.plans.decisions import BlockPlan, Choice, Conversion, OpSharding, ParameterPlan
from autopar.plans.estimate import Estimate, Flow, Parts
from autopar.plans.pipeline_data import (
    Joined,
    Passed,
    Prediction,
    StageFigures,
    StagePlan,
    WorkerPlan,
)
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.plans.record import PlanRequest, Search, Share
from autopar.request.constraints import Constraint

LAYERS = 6


def plan() -> Plan:
    """Six layers, tensor parallel on y and sharded over x; the last layer's norm rests whole."""
    return Plan(
        model="TinyLM",
        graph_digest="0123456789ab",
        mesh=Mesh.of(2, 4),
        hardware="h100",
        optimizer="AdamW",
        preset="fsdp_megatron",
        choices=tuple(_choices()),
        parameters=tuple(_parameters()),
        conversions=tuple(_conversions()),
        estimate=_estimate(),
        objective_s=0.0412,
        bound_s=0.0411,
        proof="lagrange",
        asked=PlanRequest(40 * 2**30, (Constraint.of("stored", "scale", "I", "x"),)),
        search=Search(1234, 56, 7, 89),
        shares=(Share("x", 0.99, 0.875, 0.125), Share("y", 0.75, 0.5, 0.5)),
        versions=(("autopar", "0.1.0"), ("torch", "2.11.0"), ("python", "3.11.7")),
    )


def _sharding(text: str) -> Sharding:
    return Sharding.parse(text)


def _parameter(name: str, shape: tuple[int, ...], stored: str, leaf: str = "") -> ParameterPlan:
    return ParameterPlan(name, _sharding(stored), _sharding(leaf or stored), shape=shape)


def _parameters() -> Iterator[ParameterPlan]:
    yield _parameter("model.embed.weight", (512, 64), "[S(0), S(1)]")
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield _parameter(f"{at}.mlp.up.weight", (256, 64), "[S(0, of=4), S(0)]")
        yield _parameter(f"{at}.mlp.down.weight", (64, 256), "[S(0), S(1)]")
        stored = "[S(0), I]" if layer < LAYERS - 1 else "[I, I]"
        yield _parameter(f"{at}.norm.weight", (64,), stored, "[R, I]")
    yield _parameter("scale", (), "[I, I]", "[R, I]")


def _choice(node: str, inputs: str, outputs: str, variants: tuple[str, ...] = ("", "")) -> Choice:
    reads = tuple(_sharding(f"[{part}]") for part in inputs.split("; ") if part)
    return Choice(node, OpSharding(reads, (_sharding(f"[{outputs}]"),), variants))


def _choices() -> Iterator[Choice]:
    for parameter in _parameters():
        name = parameter.name.replace(".", "_")
        yield Choice(name, OpSharding((), (parameter.leaf,), ("", "")))
    yield _choice("input_ids", "", "N, N")
    yield _choice("mask", "N, N", "N, N")
    yield _choice("embed", "R, S(1); S(0), N", "S(0), S(2)")
    for suffix in ("", *(f"_{layer}" for layer in range(1, LAYERS))):
        yield _choice(f"ln_1{suffix}", "S(0), I; R, I", "S(0), I")
        yield _choice(f"up{suffix}", "S(0), R; R, S(0)", "S(0), S(2)")
        yield _choice(f"gelu{suffix}", "S(0), S(2)", "S(0), S(2)")
        yield _choice(f"mul{suffix}", "S(0), S(2)", "S(0), S(2)")
        yield _choice(f"down{suffix}", "S(0), S(2); R, S(1)", "S(0), P")
    yield _choice("loss", "S(0), S(2); S(0), N", "P, I", ("", "vocab_parallel"))


def _conversion(
    tensor: str, axis: int, source: str, target: str, again: bool = False
) -> Conversion:
    return Conversion(tensor, axis, _sharding(source), _sharding(target), again)


def _conversions() -> Iterator[Conversion]:
    yield _conversion("model_embed_weight", 0, "[S(0), S(1)]", "[R, S(1)]")
    yield _conversion("input_ids", 0, "[N, N]", "[S(0), N]")
    for layer in range(LAYERS):
        at, suffix = f"model_layers_{layer}", f"_{layer}" if layer else ""
        yield _conversion(f"{at}_mlp_up_weight", 0, "[S(0, of=4), S(0)]", "[R, S(0)]", True)
        yield _conversion(f"{at}_mlp_down_weight", 0, "[S(0), S(1)]", "[R, S(1)]", True)
        yield _conversion(f"ln_1{suffix}", 1, "[S(0), I]", "[S(0), R]")
        yield _conversion(f"down{suffix}", 1, "[S(0), P]", "[S(0), I]")


def _estimate() -> Estimate:
    flows = (
        Flow("x", "all_gather", "forward", "step", 1, 4096, 3.2e-5),
        Flow("x", "all_gather", "forward", "microbatch", 13, 5 * 2**20, 2.1e-3),
        Flow("x", "reduce_scatter", "backward", "step", 1, 4096, 3.0e-5),
        Flow("y", "all_reduce", "forward", "microbatch", 6, 3 * 2**30, 1.25),
    )
    return Estimate(
        compute_s=0.04,
        exposed_s=1.252132,
        hidden_s=3.0e-5,
        flows=flows,
        parameter_nbytes=60_000,
        gradient_nbytes=60_000,
        optimizer_nbytes=120_000,
        activation_nbytes=3 * 2**30,
        working_nbytes=700,
        parts=Parts(0.012, 0.024, 0.004, (("x", 3.0e-5),), 0.02),
    )


def other() -> Plan:
    """The same model without tensor parallelism, in bfloat16, with two blocks run again."""
    one = plan()
    up = [replace(p, stored=_sharding("[S(0), S(0)]")) for p in one.parameters if ".up" in p.name]
    changed = {p.name: p for p in up}
    return replace(
        one,
        mesh=Mesh.of(8, 1),
        precision="bfloat16",
        parameters=tuple(changed.get(p.name, p) for p in one.parameters),
        choices=tuple(
            replace(c, sharding=replace(c.sharding, outputs=(_sharding("[S(0), R]"),)))
            if c.node.startswith("gelu") else c
            for c in one.choices
        ),
        recompute=tuple(BlockPlan(f"model.layers.{n}", "full") for n in range(2)),
        estimate=replace(
            one.estimate,
            exposed_s=0.5,
            flows=tuple(
                replace(f, seconds=0.497868) if f.collective == "all_reduce" else f
                for f in one.estimate.flows
            ),
            activation_nbytes=2**30,
        ),
    )  # fmt: skip


def pipeline(stages: int = 2, microbatches: int = 4) -> PipelinePlan:
    """The layers in equal stages on four devices each, under 1F1B."""
    one = plan()
    held = [p for p in one.parameters if p.name != "scale"]
    share = -(-len(held) // stages)
    parts = [tuple(held[s * share : (s + 1) * share]) for s in range(stages)]
    figures = tuple(StageFigures(s, s, 0.01, 0.012, 0.008, 0.02, stages - s, 2.0**30 * (s + 1))
                    for s in range(stages))  # fmt: skip
    workers = tuple(
        WorkerPlan(tuple(range(4 * s, 4 * s + 4)), Mesh.of(1, 4)) for s in range(stages)
    )
    return PipelinePlan(
        "TinyLM", "0123456789ab", Mesh.of(stages, 4), tuple(f"up_{3 * s}" for s in range(1, stages)),
        microbatches, str(lower(build("1f1b", stages, microbatches), chain(stages))), workers,
        tuple(StagePlan(s, s, replace(one, parameters=part, mesh=workers[s].mesh, choices=(),
                                      conversions=(), recompute=(), estimate=_stage_estimate(s)))
              for s, part in enumerate(parts)),
        Prediction(0.2, (0.25,) * stages, figures, 0.15, passed=tuple(
            Passed(s - 1, s, 0.001, 0.002) for s in range(1, stages)
        ), joined=tuple(Joined(s - 1, s, "intra_host", 1e-5) for s in range(1, stages))), "h100",
        memory_limit=one.asked.memory_limit,
    )  # fmt: skip


def _stage_estimate(stage: int) -> Estimate:
    flow = Flow("y", "all_reduce", "forward", "microbatch", 4, 2**20, 0.002)
    back = Flow("y", "all_reduce", "backward", "microbatch", 4, 2**20, 0.003)
    reduced = Flow("y", "all_reduce", "backward", "step", 1, 2**22, 0.015)
    rest = (stage + 1) * 2**26
    return Estimate(0.025, 0.02, 0.0, (reduced, flow, back), rest, rest, 2 * rest, 2**27, 2**20)


def of_all_collectives() -> tuple[Plan, tuple[Flow, ...]]:
    """The plan with every collective on every axis, beside its own; and these."""
    own = plan()
    kinds = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    flows = tuple(
        Flow(axis, kind, "forward", "microbatch", 1, 8, 1e-3)
        for axis in own.mesh.names
        for kind in kinds
    )
    return own.with_estimate(replace(own.estimate, flows=(*own.estimate.flows, *flows))), flows
