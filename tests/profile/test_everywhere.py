"""Measured times reach every command that prices, or the command says why they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autopar.api import compile_model, compile_staged
from autopar.cli.app import app
from autopar.cost.operators import call_of
from autopar.cost.timed import setting_here
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.request.pipeline import Pipeline
from autopar.request.planning import Planning
from autopar.sharding.sharding_problem import Compilation
from cost_models.hardware import load
from cost_models.measured import Database, Pass, Timed
from tests.models import mlp

CPU = load("cpu")
MODEL = "tests/cli/factories.py:good"
FORWARD_S = 1.0


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def ok(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def staged(**options: Any) -> Staged:
    """The MLP in two stages."""
    model, inputs, loss = mlp()
    pipeline = Pipeline(2, microbatches=2)
    made = compile_staged(model, 2, inputs, pipeline=pipeline, hardware="cpu", loss=loss, **options)
    assert isinstance(made, Staged)
    return made


def timed(plan: Plan, graph: Any) -> list[Timed]:
    """Every call of a plan takes a second forward and two backward."""
    found = []
    for choice in plan.choices:
        call = call_of(graph.node[choice.node], choice.sharding, graph, plan.mesh)
        if call is not None:
            back = None if call.backward is None else Pass(2 * FORWARD_S, 0.0)
            found.append(Timed(call, Pass(FORWARD_S, 0.0), back, 3, "2026-11-22"))
    return found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Invented times of what two stages run, and one stage on two devices."""
    path = tmp_path_factory.mktemp("times") / "times.sqlite"
    made, (model, inputs, loss) = staged(), mlp()
    whole = compile_model(model, (2,), inputs, loss=loss, hardware="cpu")
    assert isinstance(whole, Compilation)
    pairs = [(each.plan, made.stages.graphs[each.stage]) for each in made.plan.stages]
    store = Database(path)
    for plan, graph in (*pairs, (whole.plan, whole.graph)):
        store.write(setting_here(CPU, made.plan.mesh), timed(plan, graph))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, database: Path) -> dict[str, Path]:
    """Plans of one and of two stages, by the roofline and by times."""
    folder = tmp_path_factory.mktemp("plans")
    found = {}
    for kind, more in (
        ("whole", ("--stages", 1)),
        ("staged", ("--stages", 2, "--microbatches", 2)),
    ):
        for how, times in (("modelled", ()), ("timed", ("--database", database))):
            path = folder / f"{kind}_{how}.json"
            said = ok("plan", MODEL, "--mesh", 2, "--hardware", "cpu", *more, *times, "-o", path)
            assert (" measured (" in said) == (how == "timed"), said
            found[f"{kind} {how}"] = path
    return found


def test_stages_are_priced_by_times(files: dict[str, Path]) -> None:
    plan = PipelinePlan.load(files["staged timed"])
    assert plan.times is not None and plan.prediction is not None
    for each, figures in zip(plan.stages, plan.prediction.stages, strict=True):
        times = [op for op in each.plan.estimate.operators if op.source == "measured"]
        assert times and all(op.forward_s == FORWARD_S for op in times)
        assert figures.forward_s >= len(times) * FORWARD_S
    modelled = PipelinePlan.load(files["staged modelled"])
    assert modelled.times is None and modelled.prediction is not None
    assert plan.prediction.step_s > 1000 * modelled.prediction.step_s


def test_stages_are_chosen_by_times(database: Path) -> None:
    model, inputs, loss = mlp()
    made = compile_staged(
        model,
        2,
        inputs,
        pipeline="auto",
        hardware="cpu",
        loss=loss,
        planning=Planning(database=database),
    )
    assert made.plan.times is not None


@pytest.mark.parametrize("kind", ["whole", "staged"])
def test_verify_needs_the_same_times(kind: str, files: dict[str, Path], database: Path) -> None:
    path = files[f"{kind} timed"]
    ok("verify", path, MODEL, "--no-bound", "--database", database)
    refused = run("verify", path, MODEL, "--no-bound", "--database", path.parent / "none.sqlite")
    assert refused.exit_code == 1 and "none.sqlite" in refused.stderr
    ok("verify", files[f"{kind} modelled"], MODEL, "--no-bound")


@pytest.mark.parametrize("kind", ["whole", "staged"])
def test_a_difference_names_the_times(kind: str, files: dict[str, Path]) -> None:
    said = ok("diff", files[f"{kind} modelled"], files[f"{kind} timed"])
    assert "operator times" in said and "measured on" in said
    assert "operator times" not in ok("diff", files[f"{kind} timed"], files[f"{kind} timed"])


@pytest.mark.parametrize("kind", ["whole", "staged"])
def test_simulation_and_report_say_whose_times(
    kind: str, files: dict[str, Path], tmp_path: Path
) -> None:
    assert "measured (" in ok("simulate", files[f"{kind} timed"])
    assert "measured (" not in ok("simulate", files[f"{kind} modelled"])
    page = tmp_path / "report.html"
    ok("report", files[f"{kind} timed"], "-o", page)
    assert "operator times" in page.read_text() and "measured on" in page.read_text()


@pytest.mark.slow
def test_explain_frontier_and_map_take_times(files: dict[str, Path], database: Path) -> None:
    ok("explain", files["whole timed"], MODEL, "up.weight", "--database", database)
    curve = ok("frontier", MODEL, "--mesh", 2, "--hardware", "cpu", "--database", database)
    without = ok("frontier", MODEL, "--mesh", 2, "--hardware", "cpu")
    assert curve != without
    grid = ("map", MODEL, "--mesh", 2, "--hardware", "cpu", "--batches", 8, "--memories", "1GiB")
    assert ok(*grid, "--database", database) != ok(*grid)


def test_plans_by_other_times_are_priced_again(files: dict[str, Path], database: Path) -> None:
    words = ("compare", MODEL, "--mesh", 2, "--hardware", "cpu", "--preset", "ddp", "--json")
    given = ("--plan", files["whole timed"], "--plan", files["staged timed"])
    rows = {row["name"]: row for row in json.loads(run(*words, *given).stdout)["plans"]}
    whole, pipeline = rows[str(files["whole timed"])], rows[str(files["staged timed"])]
    assert whole["operator times"] == "modelled" and "priced again" in whole["remark"]
    assert pipeline["digest"] is None and "--database" in pipeline["remark"]
    said = run(*words, *given, "--database", database)
    rows = {row["name"]: row for row in json.loads(said.stdout)["plans"]}
    assert all("measured on" in row["operator times"] for row in rows.values())
    assert not any(row["remark"] for row in rows.values())


def test_ranks_that_do_not_plan_need_no_database(database: Path) -> None:
    """What ranks agree upon speaks of no times, so a database may lie on the first host alone."""
    from autopar.compile.compiler import Compiler
    from autopar.compile.pipeline_compiler import PipelineCompiler
    from autopar.pipeline.build.pipeline_spec import PipelineSpec
    from autopar.request.meta import without_weights
    from autopar.request.options import Options

    model, _, loss = mlp()
    options = Options(loss=loss, planning=Planning(database.parent / "not there.sqlite"))
    plan = staged().plan
    compiler = Compiler(without_weights(model, None), plan.mesh, CPU, options)
    PipelineCompiler(compiler, PipelineSpec.like(plan))
    assert compiler.asked(None).times is None
