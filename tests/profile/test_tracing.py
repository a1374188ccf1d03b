"""A real step beside its prediction, and the names by which it is found in a trace."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import autopar
from autopar.plans.identity import Identity
from autopar.profile.compare import compared, group_of
from autopar.profile.trace import BACKWARD, FORWARD, UPDATE, read
from autopar.profile.traced_step import Beside, Line
from autopar.render.text import step_beside, to_text
from autopar.runtime import _torch
from autopar.runtime.marks import marked
from autopar.runtime.named import PREFIX, label, named
from tests.cli.commands import ok
from tests.models import gpt2, mlp
from tests.pool import Pool
from tests.profile import jobs


def event(name: str, start: float, end: float, number: int = -1) -> SimpleNamespace:
    """As `torch.profiler` gives them; microseconds."""
    span = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    return SimpleNamespace(
        name=name, time_range=span, sequence_nr=number, thread=1, device_time_total=0,
        device_type="DeviceType.CPU",
    )  # fmt: skip


GATHER = label("h.0", "a.py:1", "all_gather", "x")
GROUP = label("h.0", "a.py:1")
EVALUATE = "autograd::engine::evaluate_function: "


def step() -> Iterator[SimpleNamespace]:
    yield event(PREFIX + FORWARD, 0, 100)
    yield event(PREFIX + GATHER, 0, 30)
    yield event("c10d::_allgather_base_", 5, 8)
    yield event("gloo:all_gather", 9, 29)
    yield event(PREFIX + GROUP, 30, 50)
    yield event("aten::mm", 31, 49, 7)
    yield event(PREFIX + BACKWARD, 100, 300)
    yield event(EVALUATE + "MmBackward0", 110, 200, 7)
    yield event(PREFIX + label("regather", "", "all_gather", "x"), 120, 150)
    yield event("c10d::_allgather_base_", 121, 122)
    yield event("gloo:all_gather", 123, 140)
    yield event(EVALUATE + "torch::autograd::AccumulateGrad", 200, 290)
    yield event(PREFIX + label("gradients", "", "reduce", "x"), 210, 280)
    yield event("c10d::_reduce_scatter_base_", 211, 212)
    yield event("gloo:_reduce_scatter_base", 213, 279)
    yield event(PREFIX + UPDATE, 300, 350)


def test_seconds_go_where_they_belong() -> None:
    found = read(list(step()), [(3, 5, GATHER), (5, 8, GROUP)])
    micro = {key: round(1e6 * value, 3) for key, value in found.forward_s.items()}
    assert micro == {GATHER: 30, GROUP: 20}
    back = {key: round(1e6 * value, 3) for key, value in found.backward_s.items()}
    regather, gradients = (
        label("regather", "", "all_gather", "x"),
        label("gradients", "", "reduce", "x"),
    )
    assert back == {GROUP: 60, regather: 30, gradients: 70, "": 20}
    assert {k: round(1e6 * v, 3) for k, v in found.collective_s.items()} == {
        ("x", "all_gather", "forward"): 20,
        ("x", "all_gather", "backward"): 17,
        ("x", "reduce_scatter", "gradients"): 66,
    }
    assert {k: round(1e6 * v) for k, v in found.parts.items()} == {
        FORWARD: 100, BACKWARD: 200, UPDATE: 50,
    }  # fmt: skip


@pytest.mark.thorough
def test_every_statement_that_computes_has_a_name(tmp_path: Path) -> None:
    model, inputs, loss = gpt2()
    made = autopar.compile_model(
        model, (2, 2), inputs, loss=loss, hardware="cpu", preset="fsdp_megatron"
    )
    module = marked(made.source, tmp_path / "emitted.py", "emitted")
    assert hasattr(module, "Block") and hasattr(module, made.graph.name)
    plain = ast.parse(made.source)
    assert "record_function" not in made.source, "what people read stays as it is"
    assigned = [n for n in ast.walk(plain) if isinstance(n, ast.Assign)]
    assert len(assigned) > 50


def test_lines_of_the_plan_are_those_of_the_emitted_comments() -> None:
    model, inputs, loss = mlp()
    made = autopar.compile_model(model, (2,), inputs, loss=loss, hardware="cpu", preset="ddp")
    for node in made.graph.nodes:
        _, place = group_of(node)
        assert node.is_leaf or not place or f"# {place}  " in made.source


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", [pytest.param("1f1b", marks=pytest.mark.slow), "zb-h1"])
def test_every_action_of_a_pipeline_has_a_name(pool: Pool, schedule: str) -> None:
    for rank, (seen, actions) in enumerate(pool.run(2, jobs.names_of_stages, schedule)):
        assert actions and not set(actions) - seen, set(actions) - seen
        assert f"wait for stage {1 - rank}" in seen and "wait for sends" in seen
        groups = [name for name in seen if " | " in name]
        assert groups, "operator groups have names inside of stages, too"


def test_without_a_profiler_a_name_is_nothing() -> None:
    assert not _torch.profiling()
    assert named("x") is not None and type(named("x")).__name__ == "nullcontext"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "mesh", "preset"),
    [
        pytest.param("gpt2", (2,), "fsdp", marks=pytest.mark.slow),
        pytest.param("gpt2", (2,), "megatron_sp", marks=pytest.mark.slow),
        pytest.param("gpt2", (2,), "context_parallel", marks=pytest.mark.slow),
        ("mlp", (2,), "ddp"),
        ("cnn", (2,), "zero2"),
    ],
)
def test_a_step_is_found_again_in_its_trace(
    pool: Pool, name: str, mesh: tuple[int, ...], preset: str
) -> None:
    found, other = pool.run(2, jobs.traced, name, mesh, preset)
    assert found == other, "every rank gets the first one's"
    check(found)


def check(found: Beside) -> None:
    """Every collective that was predicted was seen as often, none besides; no line was missed."""
    assert found.flows
    for flow in found.flows:
        assert flow.measured_s > 0 and flow.predicted_s > 0, flow
        if flow.when not in (
            "parameters",
            "gradients",
        ):  # their buckets differ in size, once a step
            assert flow.measured_calls == flow.predicted_calls, flow
    lines = [line for line in found.lines if line.source]
    assert len(lines) >= 2
    assert all(line.measured_forward_s > 0 for line in lines), lines
    assert all(line.measured_backward_s > 0 for line in lines if line.predicted_backward_s), lines
    inside = sum(line.measured_forward_s for line in found.lines)
    whole = sum(line.measured_forward_s + line.measured_backward_s for line in found.lines)
    assert 0 < inside < whole < found.traced_step_s * 1.5
    assert found.measured_update_s > 0 and found.predicted_update_s > 0
    assert json.loads(json.dumps(found.to_dict()))["flows"][0]["axis"] == found.flows[0].axis
    shown = to_text(step_beside(found))
    assert "operator groups" in shown and "collectives of a step" in shown


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "preset"), [("gpt2", "fsdp"), ("mlp", "megatron")])
def test_names_change_no_numbers(pool: Pool, name: str, preset: str) -> None:
    assert pool.run(2, jobs.same_with_names, name, (2,), preset) == [True, True]


def test_equal_lines_of_blocks_are_added_up() -> None:
    lines = tuple(
        Line(f"h.{i}", "a.py:1", "y = x", 1, "modelled", 1.0, 2.0, 3.0, 4.0) for i in range(3)
    )
    of = Identity("M", "g", "x=1", "cpu", "as the model", "AdamW", "modelled")
    found = Beside(of, "p", 9.0, 9.0, 9.0, 1.0, 1.0, lines, ())
    (row,) = [r for r in to_text(step_beside(found)).splitlines() if "a.py:1" in r]
    assert row.split() == ["h.*", "a.py:1", "x3", "3.0", "s", "6.0", "s", "9.0", "s", "12.0", "s",
                           "modelled"]  # fmt: skip


def test_the_plan_is_compared_with_an_empty_trace() -> None:
    model, inputs, loss = mlp()
    made = autopar.compile_model(model, (2,), inputs, loss=loss, hardware="cpu", preset="ddp")
    found = compared(made.plan, made.graph, read([]))
    operators = made.plan.estimate.operators
    assert sum(line.operators for line in found.lines) == len(operators)
    assert sum(line.predicted_forward_s for line in found.lines) == pytest.approx(
        sum(each.forward_s for each in operators)
    )
    assert [flow.predicted_s for flow in found.flows] == [
        flow.seconds for flow in made.plan.estimate.flows
    ]


@pytest.mark.slow
def test_the_command_runs_a_step(tmp_path: Path) -> None:
    """Which is that of the plan that the same flags make."""
    words = ["tests/cli/factories.py:good", "--mesh", "1", "--hardware", "cpu"]
    assert "step of MLP" in ok("profile", *words, "--run", "--steps", 1)
    plan, step, page = (tmp_path / name for name in ("plan.json", "step.json", "page.html"))
    step.write_text(ok("profile", *words, "--run", "--steps", 1, "--json"))
    ok("plan", *words, "-o", plan)
    assert "wrote" in ok("report", plan, "--measured", step, "-o", page)
