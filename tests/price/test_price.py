"""A configuration's price is that of the plan which it amounts to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import ConstraintError, InputError
from autopar.ir.mesh import Mesh
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.price import choice, job_of, price
from autopar.price.figures import figures_of
from autopar.request.layers import Layers
from cost_models.hardware import load
from tests import models
from tests.models import BATCH, HIDDEN, SEQUENCE
from tests.price.jobs import FUSED, configuration, job, priced

TP = configuration(tp=2, dp=2, zero=1, sequence_parallel=True)
STAGED = configuration(
    tp=2, pp=2, dp=2, virtual=2, zero=1, microbatch=1, schedule="interleaved", precision="bfloat16"
)


@pytest.mark.thorough
def test_it_is_priced_as_plan_prices() -> None:
    """The same step and bytes as of the preset on the same mesh."""
    found = priced("llama", 2, TP)
    model, inputs, loss = models.llama(2)
    mesh = Mesh.of(2, 2, names=("data", "tensor"))
    plan = autopar.plan(
        model, mesh, inputs, loss=loss, hardware="h100", preset="zero2_megatron_sp",
        optimizer=FUSED, precision="float32", recompute="gathers",
    )  # fmt: skip
    assert isinstance(plan, Plan) and found.plan.digest == plan.digest
    assert found.figures.step_s == plan.estimate.step_s
    assert found.figures.peak_nbytes == plan.estimate.memory_nbytes
    assert found.figures.bubble == 0.0
    assert found.figures.tokens_per_s == BATCH * SEQUENCE / plan.estimate.step_s
    assert found.figures.samples_per_s == BATCH / plan.estimate.step_s
    assert found.fits and not found.said


@pytest.mark.thorough
def test_stages_are_cut_between_layers() -> None:
    """Two stages on each of two workers, a layer in each; the figures are those of the plan."""
    found = priced("llama", 4, STAGED)
    plan = found.plan
    assert isinstance(plan, PipelinePlan) and plan.prediction is not None
    assert plan.schedule.name == "interleaved" and plan.schedule.stages == 4
    assert str(plan.mesh) == "stage=2, data=2, tensor=2"
    assert {str(worker.mesh) for worker in plan.workers} == {"data=2, tensor=2"}
    for stage, each in enumerate(plan.stages):
        layers = {p.name.split(".")[2] for p in each.plan.parameters if ".layers." in p.name}
        assert layers == {str(stage)}
    assert found.configuration.accumulation == plan.microbatches == BATCH // 2
    assert found.figures.step_s == plan.prediction.step_s
    assert found.figures.bubble == pytest.approx(sum(plan.prediction.bubbles) / 2)
    assert found.figures.peak_nbytes == int(max(plan.prediction.peaks))


@pytest.mark.slow
def test_microbatches_without_stages() -> None:
    """Gradients are accumulated: one stage, whose memory is that of one microbatch."""
    whole = priced("llama", 2, configuration(dp=2, zero=1))
    parts = priced("llama", 2, configuration(dp=2, zero=1, microbatch=1))
    assert isinstance(parts.plan, PipelinePlan) and parts.plan.schedule.stages == 1
    assert parts.plan.microbatches == parts.configuration.accumulation == BATCH // 2
    assert parts.figures.bubble == 0.0
    assert parts.figures.peak_nbytes < whole.figures.peak_nbytes
    assert parts.figures.step_s > whole.figures.step_s


def test_the_memory_of_a_worker_is_not_that_of_all_its_stages_at_their_peaks() -> None:
    prediction = priced("llama", 4, STAGED).plan.prediction  # type: ignore[union-attr]
    assert prediction is not None
    sums = [sum(f.nbytes for f in prediction.stages if f.worker == worker) for worker in (0, 1)]
    assert all(peak < total for peak, total in zip(prediction.peaks, sums, strict=True))


def test_model_flops_utilisation() -> None:
    """Of a product alone: three times its operations, over what all devices could do."""
    model = nn.Linear(HIDDEN, HIDDEN, bias=False)
    made = job_of(model, {"input": torch.zeros(BATCH, HIDDEN)}, hardware="h100", loss=torch.sum)
    found = price(made, configuration(dp=2))
    operations = 2 * BATCH * HIDDEN**2 + BATCH * HIDDEN
    peak = 2 * load("h100").device.flops_per_s["float32"]
    most = 3 * operations / (found.figures.step_s * peak)
    assert 0.6 * most < found.figures.mfu <= most, "the input has no gradient"
    assert found.figures.tokens_per_s is None, "the batch has no token ids"


def test_recomputation_does_no_useful_work() -> None:
    none, full = (priced("llama", 2, replace(TP, recompute=mode)) for mode in ("none", "full"))  # type: ignore[arg-type]
    assert full.figures.step_s > none.figures.step_s
    work = [each.figures.mfu * each.figures.step_s for each in (none, full)]
    assert work[0] == pytest.approx(work[1], rel=1e-9)


def test_recomputed_attention_is_spoken_of() -> None:
    (said,) = priced("llama", 2, replace(TP, recompute="attention")).said
    assert "Attention is one fused operator here" in said
    assert (
        priced("llama", 2, replace(TP, recompute="attention")).plan == priced("llama", 2, TP).plan
    )


@pytest.mark.slow
def test_what_an_axis_does_not_divide_is_said() -> None:
    """Three ranks of tensor parallelism divide neither heads nor features."""
    made = job_of(*models.llama(2)[:2], hardware="h100")
    with pytest.raises((ConstraintError, InputError)) as refused:
        price(made, configuration(tp=3, dp=1))
    assert "tensor" in str(refused.value)


def test_a_step_that_does_not_fit_is_priced() -> None:
    made = replace(job(), hardware=_small())
    found = price(made, TP)
    assert found.figures == priced("llama", 2, TP).figures and not found.fits


def _small():
    h100 = load("h100")
    return replace(h100, device=replace(h100.device, memory_bytes=1e5))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"dp": 2, "batch": 16}, "batch=16: the model's example inputs have 8 samples"),
        ({"dp": 1, "pp": 2, "schedule": "zb-h1", "virtual": 2}, "zb-h1 has 1 stage on each worker"),
        ({"dp": 1, "pp": 8}, "2 layers cannot be divided among 8 stages"),
        ({"dp": 1, "pp": 2, "layers": Layers((1, 2))}, "has 3 layers; the model has 2"),
        ({"dp": 1, "pp": 2, "schedule": "2f2b"}, "No schedule is called '2f2b'"),
    ],
)
def test_what_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        price(job(), configuration(**values))


@pytest.mark.slow
def test_our_choice_is_no_slower() -> None:
    found = priced("llama", 2, TP)
    ours = choice(job(), found.configuration)
    assert ours.figures is not None and ours.figures.step_s <= found.figures.step_s
    assert ours.plan is not None and ours.plan.mesh.world_size == 4


@pytest.mark.slow
def test_no_choice_fits() -> None:
    ours = choice(replace(job(), hardware=_small()), TP.settled(BATCH))
    assert ours.plan is None and "fit" in ours.why


@pytest.mark.slow
def test_hybrid_sharding() -> None:
    """Each axis has its own preset."""
    found = priced("llama", 2, configuration(tp=2, dp=4, replicas=2, zero=3))
    assert found.plan.preset == "ddp+fsdp+megatron"  # type: ignore[union-attr]
    forms = {str(p.stored) for p in found.plan.parameters if p.name.endswith("up_proj.weight")}  # type: ignore[union-attr]
    (form,) = forms
    assert form.startswith("[I, S(")


def test_figures_are_of_the_plan_that_is_given() -> None:
    made = job().compiled(TP, Mesh.of(2), preset="ddp")
    assert figures_of(made, load("h100"), 8, None).tokens_per_s is None
