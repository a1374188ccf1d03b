"""Whether to pipeline at all: slow links and little memory ask for it, fast links do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

import autopar
from autopar.compile.automatic import source_of
from autopar.errors import InfeasibleError, InputError
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.choose import choose
from autopar.pipeline.build.comparison import Chosen
from autopar.pipeline.build.predict import predict, predict_with_peaks
from autopar.pipeline.build.shapes import shapes
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Settings
from cost_models.hardware import Hardware
from tests.pipeline.build.cases import compiler_of
from tests.pipeline.build.hosts import slow_hosts

MESH = Mesh.of(2)
"""Two hosts of one device each."""


def chosen(
    hardware: Hardware,
    wishes: Pipeline | None = None,
    mesh: Mesh = MESH,
    memory: float | None = None,
) -> Chosen:
    source = source_of(*compiler_of("llama", mesh, hardware, layers=2))
    settings = Settings(memory_limit=memory)
    return choose(source, mesh, hardware, settings, wishes or Pipeline())


def hosts(bytes_per_s: float = 3e5) -> Hardware:
    return slow_hosts(bytes_per_s, per_host=1)


@pytest.fixture(scope="module")
def slow() -> Chosen:
    return chosen(hosts())


def test_a_slow_link_asks_for_stages(slow: Chosen) -> None:
    assert slow.staged is not None
    plan = slow.staged.plan
    assert len(plan.workers) > 1 and plan.microbatches > 1
    plan.check(slow.staged.stages)
    found = plan.prediction
    assert found is not None and found.table_step_s is not None and found.bound_s is not None
    assert found.step_s == min(each.step_s for each in found.compared if each.step_s is not None)
    assert found.step_s == pytest.approx(found.table_step_s, rel=0.1)
    assert found.bound_s <= found.table_step_s


@pytest.mark.slow
def test_a_microbatch_of_one_sample_may_be_another_graph() -> None:
    """BERT's token types are expanded over the batch, which for one sample is no operator."""
    hardware = hosts(1e6)
    source = source_of(*compiler_of("bert", MESH, hardware, layers=2))
    found = choose(source, MESH, hardware, Settings(), Pipeline())
    assert found.staged is not None
    plan = found.staged.plan
    plan.check(found.staged.stages)
    assert plan.microbatches < source.batch
    with pytest.raises(InputError, match="runs other operators than the batch"):
        choose(source, MESH, hardware, Settings(), Pipeline(microbatches=source.batch))


def test_the_prediction_is_of_the_plan(slow: Chosen) -> None:
    """Read back from its text, a plan predicts the same; on a slower link, more."""
    assert slow.staged is not None
    plan = PipelinePlan.from_json(slow.staged.plan.to_json())
    assert plan == slow.staged.plan and plan.prediction is not None
    again = predict(plan, slow.staged.stages, hosts(), Settings())
    assert again.step_s == pytest.approx(plan.prediction.step_s)
    slower = predict(plan, slow.staged.stages, hosts(3e4), Settings())
    assert slower.step_s > again.step_s


@pytest.mark.slow
def test_stages_have_to_be_worth_it(slow: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without stages wins where it is predicted to take little longer."""
    plain = next(each for each in slow.compared if each.what.startswith("no stages"))
    assert slow.staged is not None and slow.staged.plan.prediction is not None
    assert plain.step_s is not None and plain.step_s > 1.05 * slow.staged.plan.prediction.step_s
    monkeypatch.setattr("autopar.pipeline.build.comparison.WORTH", 1e3)
    kept = chosen(hosts())
    assert kept.staged is None and kept.plain is not None
    said = [view.mesh for view in kept.plain.plan.views if "stages are chosen only if" in view.mesh]
    assert len(said) == 1 and "1000.0 times as fast" in said[0] and "stages" in said[0]
    knowing = replace(hosts(), device=replace(hosts().device, late_s=1e-9))
    assert chosen(knowing).staged is not None


@pytest.mark.slow
def test_fast_links_ask_for_none() -> None:
    """Where sending costs nothing, a pipeline has nothing but bubbles."""
    free = chosen(slow_hosts(1e13, 0.0, per_host=4))
    assert free.staged is None or len(free.staged.plan.workers) == 1


@pytest.mark.slow
def test_memory_is_kept() -> None:
    """Every stage fits into a limit that just does; far below nothing does."""
    wide = chosen(hosts(), Pipeline("auto", "1f1b"))
    assert wide.staged is not None and wide.staged.plan.prediction is not None
    most = max(stage.nbytes for stage in wide.staged.plan.prediction.stages)
    tight = chosen(hosts(), Pipeline("auto", "1f1b"), memory=1.02 * most)
    assert tight.staged is not None and tight.staged.plan.prediction is not None
    assert all(s.nbytes <= 1.02 * most for s in tight.staged.plan.prediction.stages)
    with pytest.raises(
        InfeasibleError, match="Use more devices, a smaller batch, or a higher limit"
    ):
        chosen(hosts(), Pipeline("auto", "1f1b"), memory=0.1 * most)


class Mixing(nn.Module):
    """Samples meet in a batch norm, which refuses one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.down(self.norm(self.up(input))).sum())


def planned_mixing(**options: Any) -> Plan | PipelinePlan:
    batch = {"input": torch.zeros(16, 8)}
    return autopar.plan(Mixing(), (2,), batch, hardware=hosts(), pipeline="auto", **options)


@pytest.mark.thorough
def test_a_model_that_refuses_one_sample_is_planned() -> None:
    plan = planned_mixing()
    assert not isinstance(plan, PipelinePlan) or plan.microbatches == 1


def test_why_the_batch_stayed_whole_is_said() -> None:
    """Where memory is short and microbatches, which would keep less, are not allowed."""
    with pytest.raises(
        InfeasibleError, match=r"(?s)batch was not divided.*norm.*mixes the samples"
    ):
        planned_mixing(memory_limit=1000)


@pytest.mark.slow
def test_wishes_are_heard(slow: Chosen) -> None:
    assert slow.staged is not None
    cuts = slow.staged.plan.cuts[:1]
    made = chosen(hosts(), Pipeline("auto", "gpipe", 4, cuts)).staged
    assert made is not None
    assert (made.plan.schedule.name, made.plan.microbatches) == ("gpipe", 4)
    assert set(made.plan.cuts) <= set(cuts)
    with pytest.raises(InputError, match="3 equal microbatches"):
        chosen(hosts(), Pipeline(microbatches=3))
    with pytest.raises(InputError, match=r"takes the schedules.*zb-v"):
        chosen(hosts(), Pipeline("auto", "chimera"))
    with pytest.raises(InputError, match="zb-h2, not 'zb-v'"):
        chosen(hosts(), Pipeline("auto", "zb-v", cuts=cuts))


@pytest.mark.slow
def test_a_v_is_taken_where_it_is_asked_for() -> None:
    found = chosen(hosts(), Pipeline("auto", "zb-v", 4)).staged
    assert found is not None
    plan = found.plan
    plan.check(found.stages)
    assert (plan.schedule.name, plan.microbatches, len(plan.workers)) == ("zb-v", 4, 2)
    assert [holders for holders in plan.schedule.holders] == [(0,), (1,), (1,), (0,)]
    with pytest.raises(
        InfeasibleError, match=r"no such pipeline was found: .*2 devices of 1000 bytes"
    ):
        chosen(hosts(), Pipeline("auto", "zb-v"), memory=1000.0)
    with pytest.raises(InfeasibleError, match=r"the mesh has 1 devices .*\. Leave schedule= out"):
        chosen(hosts(), Pipeline("auto", "zb-v"), Mesh.of(1))


@pytest.mark.thorough
def test_an_interleaved_pipeline_is_taken_where_it_is_asked_for() -> None:
    """Of three layers, on two workers: the table's step is near that of the compiled stages, and the
    memory that is predicted is that of the plan's own simulation."""
    hardware = hosts(3e6)
    source = source_of(*compiler_of("llama", MESH, hardware, layers=3))
    asked = Pipeline("auto", "interleaved", 4)
    found = choose(source, MESH, hardware, Settings(), asked).staged
    assert found is not None
    plan, prediction = found.plan, found.plan.prediction
    plan.check(found.stages)
    assert plan.schedule.name == "interleaved" and len(plan.workers) == 2
    assert plan.schedule.stages >= 4 and plan.schedule.stages % 2 == 0
    assert all(stages[1] - stages[0] == 2 for stages in plan.schedule.held)
    assert prediction is not None and prediction.table_step_s is not None
    assert prediction.step_s == pytest.approx(prediction.table_step_s, rel=0.05)
    _, peaks = predict_with_peaks(plan, found.stages, hardware, Settings())
    assert prediction.peaks == peaks and plan.outline.figures["memory", "peak"] == max(peaks)
    with pytest.raises(
        InfeasibleError, match=r"several stages on each .*no such pipeline was found"
    ):
        chosen(hosts(), Pipeline("auto", "interleaved"), memory=1000.0)


@pytest.mark.slow
def test_a_v_keeps_tied_weights_on_one_worker() -> None:
    """The sum of the embedding's gradients over a slow link is what other schedules wait for."""
    hardware = hosts(1e6)
    source = source_of(*compiler_of("gpt2", MESH, hardware, layers=4))
    found = choose(source, MESH, hardware, Settings(), Pipeline()).staged
    assert found is not None and found.plan.prediction is not None
    assert found.plan.schedule.name == "zb-v" and not found.plan.prediction.copied
    best = {
        each.what: each.step_s for each in found.plan.prediction.compared if each.step_s is not None
    }
    assert min(best.values()) == found.plan.prediction.step_s and len(best) > 1


def test_shapes_of_a_cluster() -> None:
    found = shapes(Mesh.of(4, 8), 8)
    assert [(s.hosts, s.devices) for s in found] == [
        (1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8),
    ]  # fmt: skip
    assert all(mesh.world_size == shape.size for shape in found for mesh in shape.meshes)
    assert Mesh.of(2, 4) in found[3].meshes and Mesh.of(4, 8) in found[-1].meshes
    assert [s.size for s in shapes(Mesh.of(3), 8)] == [1, 2, 3]
    assert min(s.size for s in shapes(Mesh.of(2048, 8), 8)) == 256


def test_a_crowded_host_is_slower() -> None:
    """Stages are priced on hosts that other stages use, too."""
    from cost_models.hardware import load

    profile = load("cpu")
    alone, crowded = profile.device_shared_by(1), profile.filled(4).device_shared_by(1)
    assert crowded.flops_per_s["float32"] < alone.flops_per_s["float32"]
    assert crowded == replace(profile.device_shared_by(4))
