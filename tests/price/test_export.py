"""A plan that is written for another tool and read again costs what it did, if the tool can run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import autopar
from autopar.errors import PlanError
from autopar.explain.configuration import configuration_of
from autopar.plans.plan import Plan
from autopar.price import job_of, price
from autopar.request.configurations.tool import TOOLS, read_file
from autopar.request.layers import Layers
from tests.daily import daily
from tests.mixtures import MIXTURES
from tests.price.jobs import configuration, job, priced

DEEP = 4
"""Layers, so that stages may have one each and several."""
CASES = {
    "ddp": configuration(dp=4),
    "zero": configuration(dp=4, zero=1),
    "fsdp": configuration(dp=4, zero=3),
    "fsdp, recomputed": configuration(dp=4, zero=3, recompute="full", precision="bfloat16"),
    "hybrid": configuration(dp=4, zero=3, replicas=2),
    "tensor": configuration(tp=2, dp=2, zero=1),
    "tensor and sequence": configuration(tp=2, dp=2, zero=1, sequence_parallel=True),
    "fsdp and tensor": configuration(tp=2, dp=2, zero=3, sequence_parallel=True),
    "context": configuration(dp=2, cp=2, zero=3),
    "context and tensor": configuration(dp=2, cp=2, tp=2, zero=1, sequence_parallel=True),
    "microbatches": configuration(dp=2, zero=1, microbatch=1),
    "1f1b": configuration(tp=2, pp=2, dp=2, zero=1, microbatch=1, sequence_parallel=True),
    "interleaved": configuration(pp=2, dp=2, zero=1, virtual=2, microbatch=1),
    "unequal": configuration(pp=2, dp=2, zero=1, microbatch=1, layers=Layers((1, 3))),
}
EXPRESSED = {
    "megatron": [
        "ddp", "zero", "fsdp", "fsdp, recomputed", "tensor", "tensor and sequence",
        "context and tensor", "microbatches", "1f1b", "interleaved", "unequal",
    ],
    "torchtitan": ["ddp", "fsdp", "fsdp, recomputed", "hybrid", "fsdp and tensor", "context"],
    "accelerate": ["ddp", "fsdp", "fsdp, recomputed", "hybrid", "tensor", "1f1b"],
    "deepspeed": ["ddp", "zero", "fsdp", "tensor", "microbatches"],
}  # fmt: skip
"""What each tool can run."""
EVERY_DAY = (("megatron", "unequal"), ("torchtitan", "fsdp"), ("deepspeed", "fsdp"))
TOLD = {
    "megatron": (), "torchtitan": ("devices",),
    "accelerate": ("microbatch", "optimizer"), "deepspeed": ("devices", "recompute"),
}  # fmt: skip
"""What a tool is told elsewhere than in the file: by its launcher, or by the program."""


def test_a_dtype_of_reductions_is_said() -> None:
    """No configuration states that gradients are reduced in the precision of the step."""
    for precision, expected in (("bfloat16/bfloat16", True), ("bfloat16", False)):
        found = configuration_of(priced("llama", 2, configuration(dp=2, precision=precision)).plan)
        assert found.configuration.precision == "bfloat16"
        assert (
            any("does not state a dtype of reductions" in said for said in found.said) == expected
        )


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(CASES, ["fsdp", "unequal", "context"]))
def test_a_plan_is_described_by_what_it_was_made_of(name: str) -> None:
    """The configuration comes back from the plan alone: from types, stages and shapes."""
    found = configuration_of(priced("llama", DEEP, CASES[name]).plan)
    expected = priced("llama", DEEP, CASES[name]).configuration
    counts = found.configuration.layers.stages
    assert counts == {"unequal": (1, 3), "1f1b": (2, 2), "interleaved": (1, 1, 1, 1)}.get(name, ())
    assert replace(found.configuration, layers=expected.layers, sequence=None) == expected
    assert not found.said


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tool", "name"),
    daily([(t, name) for t, names in EXPRESSED.items() for name in names], EVERY_DAY),
)
def test_round_trips(tmp_path: Path, tool: str, name: str) -> None:
    before = priced("llama", DEEP, CASES[name])
    described = configuration_of(before.plan).configuration
    path = tmp_path / f"written{TOOLS[tool].suffixes[-1]}"
    path.write_text(TOOLS[tool].write(described, 8).text)
    told = {field: getattr(before.configuration, field) for field in TOLD[tool]}
    found = read_file(path).configuration.stating(**told)
    # Written from the plan, a configuration has the layers of each stage and tokens of a sample.
    after = priced("llama", DEEP, replace(found.settled(8), sequence=None))
    assert after.figures.step_s == pytest.approx(before.figures.step_s, rel=0.02)
    assert after.figures.peak_nbytes == pytest.approx(before.figures.peak_nbytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_experts(tmp_path: Path, zero: int) -> None:
    """Experts are divided among data-parallel ranks; what that divides of weights is no ZeRO."""
    model, inputs, _ = MIXTURES["mixtral"]()
    made = job_of(model, inputs, hardware="h100")
    before = price(made, configuration(dp=4, ep=2, zero=zero))
    plan = before.plan
    assert isinstance(plan, Plan)
    assert "expert_dispatch" in {choice.sharding.variants[1] for choice in plan.choices}
    found = configuration_of(plan)
    assert replace(found.configuration, sequence=None) == before.configuration and not found.said
    for tool in TOOLS:
        path = tmp_path / f"written{TOOLS[tool].suffixes[-1]}"
        written = TOOLS[tool].write(found.configuration, 8)
        path.write_text(written.text)
        says = any("does not divide experts among 2 ranks" in said for said in written.said)
        assert says == (tool in ("accelerate", "deepspeed"))
        assert read_file(path).configuration.ep == (1 if says else 2)


@pytest.mark.thorough
def test_a_chosen_plan_is_described_by_what_most_of_it_is() -> None:
    """The solver's own plan: a description that can be priced, and says what it leaves out."""
    made = job()
    plan = autopar.plan(made.model, (2, 2), made.inputs, hardware="h100")
    found = configuration_of(plan)
    again = price(made, found.configuration)
    assert again.configuration.devices == 4
    assert isinstance(plan, Plan) and again.figures.step_s >= plan.estimate.step_s * (1 - 1e-9)


@pytest.mark.slow
def test_stages_of_different_meshes_are_said() -> None:
    made = job()
    plan = autopar.plan(
        made.model, 3, made.inputs, hardware="h100", pipeline=autopar.Pipeline([1, 2], "1f1b", 4)
    )
    assert any("Stages have different meshes" in said for said in configuration_of(plan).said)


@pytest.mark.slow
def test_samples_that_ranks_do_not_divide_are_said() -> None:
    made = job()
    six = {key: value[:6] for key, value in made.inputs.items()}
    plan = autopar.plan(made.model, 4, six, hardware="h100", preset="ddp")
    found = configuration_of(plan)
    said = "The 4 data-parallel ranks do not divide 6 samples; the configuration has 1 on each."
    assert said in found.said
    assert (found.configuration.microbatch, found.configuration.batch) == (1, 4)


@pytest.mark.slow
def test_a_plan_without_the_shapes_of_its_inputs() -> None:
    plan = priced("llama", DEEP, CASES["ddp"]).plan
    assert isinstance(plan, Plan)
    with pytest.raises(PlanError, match="does not record the shapes of its inputs"):
        configuration_of(replace(plan, inputs=()))
