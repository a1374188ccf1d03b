"""What a stage's last backward hides of the sums of its gradients, under schedules of both sorts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.compile.automatic import source_of
from autopar.cost.spent import Spent
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.predict import costs
from autopar.pipeline.build.staged import compile_pipeline
from autopar.request.pipeline import Pipeline
from autopar.sharding.sharding_problem import Settings
from tests.pipeline.build.cases import compiler_of
from tests.pipeline.build.hosts import slow_hosts

HOSTS = slow_hosts(1e6, 1e-3, per_host=1)
SPENT = Spent(
    forward_s=1.0, input_grad_s=3.0, weight_grad_s=1.0, exposed_s=0.0, hideable_s=10.0, covers_s=8.0,
    kept_nbytes=0, working_nbytes=0, rest_nbytes=0,
)  # fmt: skip


@pytest.mark.parametrize(("schedule", "hidden_s"), [("1f1b", 8.0), ("zb-h1", 2.0)])
def test_only_weights_hide_sums_of_a_backward_in_two_halves(schedule: str, hidden_s: float) -> None:
    """They take a quarter of this backward, and so much of what it covers is beside them."""
    mesh = Mesh.of(2)
    graph = source_of(*compiler_of("llama", mesh, HOSTS, layers=2)).parted(2)
    made = compile_pipeline(
        graph, mesh, HOSTS, Settings(), PipelineSpec.of(mesh, Pipeline(2, schedule, 2))
    )
    for hideable_s in (10.0, 1.0):
        spent = replace(SPENT, hideable_s=hideable_s)
        found = costs(made.plan, made.stages, {(0, 0): spent, (1, 1): spent}, HOSTS)
        want = max(0.0, hideable_s - hidden_s)
        assert [stage.reduction for stage in found.stages] == pytest.approx([want, want])
