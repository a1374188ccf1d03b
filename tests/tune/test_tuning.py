"""Tuning finds what is fastest on a cluster that its profile does not describe."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from autopar.compile.compiler import Compiler, captured
from autopar.errors import InfeasibleError, InputError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.plans.pipeline_plan import PipelinePlan, predicted_step_s
from autopar.plans.plan import Plan
from autopar.request import presets
from autopar.request.meta import without_weights
from autopar.request.options import Options
from autopar.sharding.asked import posed_for
from autopar.tune.ask import Ask, Used
from autopar.tune.correction import BOUNDS, Factors, corrected, fitted, parts
from autopar.tune.planner import AskPlanner
from autopar.tune.record import Attempt, Record, Setting, Trial, Tuned
from autopar.tune.search import Searching, Tuning
from autopar.verify.recomputed import RecomputedFigures
from cost_models.hardware import Hardware, digest, load, parse
from tests import models
from tests.cli.commands import fails, ok
from tests.daily import daily

MESH = Mesh.of(2)
USUAL = Tuning()
LINKS_SLOW = Factors(1.0, 30.0, 1.0)
SQUARE = Mesh.of(2, 2)
SETTING = Setting("m", "0", "x=2, y=2", "AdamW", "as the model", "h100, 0", "2.13", ("a", "a"))
FACTORIES = "tests/cli/factories.py"


class Remembering(AskPlanner):
    """Plans each ask by each profile once: tests ask for the same."""

    known: ClassVar[dict[tuple[Ask, str], Plan | PipelinePlan | None]] = {}

    def plan(self, ask: Ask, hardware: Hardware) -> Plan | PipelinePlan | None:
        key = ask, digest(hardware)
        if key not in self.known:
            self.known[key] = super().plan(ask, hardware)
        return self.known[key]


@pytest.fixture(scope="module")
def planner() -> AskPlanner:
    model, inputs, loss = models.CASES["mlp"]()
    return Remembering(model, inputs, MESH, Options.of(loss=loss), load("h100"))


def searched(
    planner: AskPlanner,
    answer: Callable[[Attempt, Hardware], float | str],
    tuning: Tuning = USUAL,
    record: Record | None = None,
) -> tuple[Tuned, Searching]:
    """A search whose steps take what `answer` says."""
    state = Searching(planner, tuning, record or Record(SETTING), lambda _: None)
    search, given = state.search(), None
    while True:
        try:
            attempt, hardware = next(search) if given is None else search.send(given)
        except StopIteration as ended:
            return ended.value, state
        given = answer(attempt, hardware)


def of_truth(planner: AskPlanner, truth: Hardware) -> Callable[[Attempt, Hardware], float]:
    """Answers with what each plan takes on a cluster of other prices."""

    def answer(attempt: Attempt, hardware: Hardware) -> float:
        made = planner.plan(attempt.ask, hardware)
        assert made is not None and made.digest == attempt.plan
        return cost_on(planner, made, truth)

    return answer


def cost_on(planner: AskPlanner, plan: Plan | PipelinePlan, truth: Hardware) -> float:
    """The step of a plan's decisions under other prices; stages are slow there."""
    if isinstance(plan, PipelinePlan):
        return 3.0 * predicted_step_s(plan)
    posed = posed_for(plan, planner.graph, truth, None)
    return RecomputedFigures(plan, posed).plan.estimate.step_s


@pytest.mark.thorough
@pytest.mark.parametrize(
    "truth",
    daily([Factors(1.0, 30.0, 1.0), Factors(9.0, 1.0, 1.0), Factors(0.3, 0.2, 1.0)], [LINKS_SLOW]),
)
def test_the_fastest_plan_of_the_cluster_is_found(planner: AskPlanner, truth: Factors) -> None:
    """Its prices are unknown to the profile: what is found is as fast as what they would lead to."""
    cluster = corrected(planner.first, truth, 1)
    best = planner.plan(Ask(), cluster)
    assert isinstance(best, Plan)
    found, state = searched(planner, of_truth(planner, cluster))
    fastest = min(trial.step_s for trial in found.trials)
    assert fastest <= best.estimate.step_s * 1.02
    assert len(state.kept.trials) < 25


def test_what_is_told_leads_to_the_fastest_plan(planner: AskPlanner) -> None:
    """The ask, planned by the profile that is returned with it, is the plan that was measured."""
    cluster = corrected(planner.first, LINKS_SLOW, 1)
    found, state = searched(planner, of_truth(planner, cluster))
    again = planner.plan(found.fastest, parse(found.hardware, "tuned"))
    best = min(state.kept.trials, key=lambda trial: trial.step_s)
    assert again is not None and again.digest == best.attempt.plan
    assert again.to_json() == found.plan
    assert Tuned.from_json(found.to_json()) == found


@pytest.mark.slow
def test_what_fails_is_told_and_not_tried_again(planner: AskPlanner) -> None:
    tried: list[str] = []

    def answer(attempt: Attempt, _: Hardware) -> float | str:
        tried.append(attempt.plan)
        return "no room" if attempt.ask == Ask() else attempt.predicted_s

    found, _ = searched(planner, answer)
    failed = [trial for trial in found.trials if trial.why]
    assert failed and all(trial.why == "no room" and not trial.measured_s for trial in failed)
    assert found.fastest != Ask()
    assert all(tried.count(trial.attempt.plan) == 1 for trial in failed)


def test_where_nothing_runs_it_is_said_why(planner: AskPlanner) -> None:
    with pytest.raises(InfeasibleError, match="autopar: the disk burns"):
        searched(planner, lambda *_: "the disk burns")


def test_time_that_is_over_ends_it(planner: AskPlanner) -> None:
    state = Searching(planner, Tuning(seconds=1e9), Record(SETTING), lambda _: None)
    search = state.search()
    next(search)
    state.began -= 2e9
    with pytest.raises(StopIteration) as ended:
        search.send(1.0)
    assert ended.value.value.ends == "1e+09 s have passed" and len(state.kept.trials) == 1


@pytest.mark.slow
def test_close_plans_run_in_turns(planner: AskPlanner) -> None:
    """A plan that was lucky once does not win: the median over turns decides."""
    turns: dict[str, int] = {}

    def answer(attempt: Attempt, _: Hardware) -> float:
        turns[attempt.plan] = turns.get(attempt.plan, 0) + 1
        lucky = attempt.ask == Ask("ddp") and turns[attempt.plan] == 1
        return 0.95 if lucky else 2.0 if attempt.ask == Ask("ddp") else 1.0

    found, _ = searched(planner, answer, Tuning(most=50))
    assert found.fastest != Ask("ddp")
    assert max(turns.values()) == 3


@pytest.mark.parametrize("planted", [(1.0, 1.0, 1.0), (2.5, 0.5, 4.0), (0.4, 3.0, 1.2)])
def test_planted_factors_are_found(planted: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(0)
    every = [tuple(row) for row in rng.uniform(0.1, 1.0, (40, 3)) * [1.0, 2.0, 2.0]]
    steps = [(row, float(np.dot(row, planted))) for row in every]
    assert fitted(steps).values == pytest.approx(planted, rel=0.02)  # type: ignore[arg-type]


def test_what_no_step_tells_stays_as_it_is() -> None:
    assert fitted([]) == Factors()
    found = fitted([((1.0, 0.0, 0.0), 3.0), ((2.0, 0.0, 0.0), 6.0)])
    assert found.compute == pytest.approx(3.0) and found.values[1:] == (1.0, 1.0)
    alike = fitted([((1.0, 0.5, 0.0), 3.0), ((2.0, 1.0, 0.0), 6.0)])
    assert alike.values == pytest.approx((2.0, 2.0, 1.0))


def test_factors_have_bounds() -> None:
    assert fitted([((1.0, 0.5, 0.0), 1e6), ((1.0, 0.1, 0.0), 1e6)]).compute == BOUNDS[1]
    assert fitted([((1.0, 1.0, 0.0), 1e-9)] * 9).values[:2] == (BOUNDS[0], BOUNDS[0])
    steps = [((1.0, 1.0, 0.0), 1.0), ((1.0, 3.0, 0.0), 1.0), ((1.0, 9.0, 0.0), 1.0)]
    found = fitted(steps)
    assert found.intra_host == BOUNDS[0] and 0.5 < found.compute < 1.0, (
        "the other is fitted to what is left"
    )


@pytest.mark.parametrize("name", daily(["h100", "a100", "cpu"], ["h100"]))
def test_a_corrected_profile_prices_as_its_factors_say(name: str) -> None:
    """All factors alike: every step takes so many times as long."""
    model, inputs, loss = models.CASES["gpt2"]()
    first = load(name)
    slower = corrected(first, Factors(2.0, 2.0, 2.0), 3)
    slower.check()
    assert "corrected by 3 measured steps" in slower.source and digest(slower) != digest(first)
    for preset in ("ddp", "fsdp", "megatron"):
        options = Options.of(loss=loss, preset=preset)
        plans = [
            Compiler(_bare(model), Mesh.of(2, 2), hardware, options).compile(
                _graph(model, inputs, options)
            )
            for hardware in (first, slower)
        ]
        before, after = (made.plan.estimate.step_s for made in plans)
        assert after == pytest.approx(2.0 * before, rel=1e-6)
    assert corrected(first, Factors(), 0) is first


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    return without_weights(model, None)


def _graph(model: torch.nn.Module, inputs: Any, options: Options) -> Graph:
    return captured(_bare(model), inputs, options)


def test_parts_are_of_the_whole_step() -> None:
    """Compute and exposed communication sum to the step, whichever links it crosses."""
    model, inputs, loss = models.CASES["gpt2"]()
    options = Options.of(loss=loss, preset="fsdp_megatron")
    graph = _graph(model, inputs, options)
    for per_host in (1, 2, 4):
        hardware = replace(load("h100"), devices_per_host=per_host)
        plan = Compiler(_bare(model), SQUARE, hardware, options).compile(graph).plan
        compute, intra, inter = parts(plan, hardware)
        assert compute + intra + inter == pytest.approx(plan.estimate.step_s)
        assert (intra > 0, inter > 0) == {1: (False, True), 2: (True, True), 4: (True, False)}[
            per_host
        ]


def test_asks_say_what_they_ask_for() -> None:
    asks = (
        Ask(), Ask("zero2"), Ask(stages=2, schedule="zb-h1"),
        Ask("ddp").but(Used("h.*.up.weight", "x", "S(0)")).but(Used("h.*.up.weight", "x", "S(1)")),
    )  # fmt: skip
    assert [str(ask) for ask in asks] == [
        "autopar", "zero2", "2 stages, zb-h1", "ddp, h.*.up.weight as S(1) on x",
    ]  # fmt: skip
    assert asks[3].arguments() == {
        "preset": "ddp", "constraints": {"used:h.*.up.weight": {"x": "S(1)"}},
    }  # fmt: skip


def test_every_ask_is_planned(planner: AskPlanner) -> None:
    """The presets that can be, stages, and other types of each weight: no plan twice."""
    found = planner.attempts(planner.first, Factors(), Ask(), ())
    assert len({each.plan for each in found}) == len(found)
    asked = {each.ask for each in found}
    assert any(ask.stages == 2 for ask in asked) and any(ask.used for ask in asked)
    assert len([ask for ask in asked if ask.preset in presets.names()]) > 3
    steps = [each.predicted_s for each in found]
    assert steps == sorted(steps) and found[0].ask == Ask()
    first = planner.plan(Ask(), planner.first)
    assert first is not None and steps[0] == predicted_step_s(first)
    rest = planner.attempts(planner.first, Factors(), Ask(), {found[0].plan})
    assert [each.plan for each in rest] == [each.plan for each in found[1:]]


def test_a_record_is_gone_on_from(planner: AskPlanner, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    cluster = corrected(planner.first, LINKS_SLOW, 1)
    tuning = Tuning(record=path)
    found, _ = searched(planner, of_truth(planner, cluster), tuning)
    kept = Record.load(path, SETTING)
    assert kept.trials == found.trials and kept.begun is None

    def never(attempt: Attempt, _: Hardware) -> float | str:
        assert any(trial.attempt == attempt for trial in kept.trials), attempt
        return next(trial.step_s for trial in kept.trials if trial.attempt == attempt)

    again, _ = searched(planner, never, tuning, kept)
    assert again.fastest == found.fastest and again.plan == found.plan


@pytest.mark.slow
def test_a_trial_that_ended_its_process_is_not_run_again(
    planner: AskPlanner, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    state = Searching(planner, Tuning(record=path), Record(SETTING), lambda _: None)
    attempt, _ = next(state.search())
    (ended,) = Record.load(path, SETTING).trials
    assert ended == Trial(attempt, why="its process ended during the trial")
    tried: list[str] = []

    def answer(attempt: Attempt, _: Hardware) -> float:
        tried.append(attempt.plan)
        return 1.0

    searched(planner, answer, Tuning(most=2), Record.load(path, SETTING))
    assert attempt.plan not in tried


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d | {"setting": d["setting"] | {"torch": "1.0"}}, "torch: 1.0 in the file"),
        (lambda d: d | {"schema": 9}, "schema 9, not 1"),
        (lambda d: d | {"trials": [{"measured_s": [-1]}]}, "is not a record of tuning"),
        (lambda d: [], "is not a record of tuning"),
    ],
)  # fmt: skip
def test_other_records_are_refused(
    change: Callable[[dict[str, object]], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    Record(SETTING).save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(InputError, match=words):
        Record.load(path, SETTING)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_tunes(tmp_path: Path) -> None:
    """On two processes: a plan and a profile that lead to each other, and steps that were measured."""
    plan, profile, record = tmp_path / "plan.json", tmp_path / "mine.toml", tmp_path / "record.json"
    given = (
        "tune", f"{FACTORIES}:good", "--mesh", "2", "-o", plan, "--profile", profile, "--record", record,
        "--most", 2, "--steps", 1, "--json",
    )  # fmt: skip
    said = json.loads(ok(*given))
    assert all(trial["measured_s"] for trial in said["trials"]) and len(said["trials"]) >= 2
    assert str(profile) in said["call"]
    assert "FAILS" not in ok("verify", plan, f"{FACTORIES}:good", "--hardware", profile)
    assert json.loads(record.read_text())["trials"] == said["trials"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mesh", "1", "-o", "a.json"), "there is nothing to tune"),
        (("--mesh", "2", "-o", "a.json", "--profile", "a.txt"), "named something.toml"),
        (("--mesh", "2", "-o", "a.json", "--record", "a.json"), "the same file"),
        (("--mesh", "2", "-o", "no/a.json"), "no"),
        (("--mesh", "4096", "-o", "a.json"), "are the most"),
        (("--mesh", "2", "-o", "a.json", "--optimizer", "Adamw"), "torch.optim has no optimizer"),
    ],
)
def test_bad_input_of_the_command(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories = Path(FACTORIES).resolve()
    monkeypatch.chdir(tmp_path)
    assert said in fails("tune", f"{factories}:good", *words)
    assert not list(tmp_path.iterdir())
