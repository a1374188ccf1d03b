"""Operators timed on this machine, and plans priced by those times."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import autopar
from autopar.api import captured_by
from autopar.cli.app import app
from autopar.cost.operators import call_of
from autopar.cost.timed import refuse_fewer_threads, setting_here, times_for
from autopar.errors import InputError
from autopar.ir.graph import Ref, Tensor
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.profile import ProfiledPlan, Timing, measure, profile
from autopar.profile import profiled_plan as wanted
from autopar.profile.bench import Pool, bench
from autopar.render.text import header, to_text
from autopar.request.options import Options
from autopar.rules import LocalCall, local_call
from autopar.sharding.asked import posed_for
from autopar.sharding.sharding_problem import Compilation
from autopar.verify import certify
from cost_models.hardware import load
from cost_models.measured import Call, Database, Pass, Setting, Timed, Times, Work
from cost_models.measured.cold import COLD_NBYTES
from cost_models.measured.timer import Effort
from tests.models import mlp

CPU = load("cpu")
QUICK = Effort(rows=3, row_s=0.0005)
ONE = Mesh.of(1)


@pytest.fixture(scope="module")
def made() -> Compilation:
    """The MLP on two devices, all operators modelled."""
    model, inputs, loss = mlp()
    return autopar.compile_model(model, (2,), inputs, loss=loss, hardware="cpu", preset="megatron")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ProfiledPlan]:
    """The MLP on one device, timed here."""
    path = tmp_path_factory.mktemp("times") / "times.sqlite"
    model, inputs, loss = mlp()
    compiler, graph = captured_by(model, ONE, inputs, CPU, Options(loss=loss))
    return path, profile(compiler, graph, Timing(path, setting_here(CPU, ONE), effort=QUICK))


def invented(made: Compilation, setting: Setting, skip: str = "") -> list[Timed]:
    """Every call of a plan takes a second forward and two backward."""
    found = []
    for choice in made.plan.choices:
        call = call_of(made.graph.node[choice.node], choice.sharding, made.graph, made.plan.mesh)
        if call is not None and (not skip or skip not in call.op):
            backward = None if call.backward is None else Pass(2.0, 0.0)
            found.append(Timed(call, Pass(1.0, 0.0), backward, 3, "2026-11-21"))
    return found


def planned(database: Path, **options: object) -> Plan:
    model, inputs, loss = mlp()
    found = autopar.plan(
        model,
        (2,),
        inputs,
        loss=loss,
        hardware="cpu",
        preset="megatron",
        planning=autopar.Planning(database=database),
        **options,
    )
    assert isinstance(found, Plan)
    return found


def test_a_plan_takes_measured_seconds_and_says_so(made: Compilation, tmp_path: Path) -> None:
    path, setting = tmp_path / "times.sqlite", setting_here(CPU, Mesh.of(2))
    Database(path).write(setting, invented(made, setting))
    plan = planned(path)
    assert plan.times is not None and plan.times.setting == str(setting)
    known = Database(path).read(setting)
    count = 0
    for each in plan.estimate.operators:
        node = made.graph.node[each.node]
        call = call_of(node, plan.choice[each.node], made.graph, plan.mesh)
        if call is None or call.text not in known:
            assert each.source != "measured", each
            continue
        count += 1
        assert (each.source, each.forward_s) == ("measured", 1.0)
        assert each.backward_s == 2.0 * any(tensor.differentiable for tensor in node.outputs)
    assert count >= 5
    spent = sum(each.forward_s + each.backward_s for each in plan.estimate.operators)
    assert plan.estimate.compute_s > spent > 2 * count
    assert Plan.from_json(plan.to_json()) == plan
    told = json.loads(plan.to_json())["estimate"]["operators"]
    assert "measured" in {each["source"] for each in told}
    shown = to_text(header(plan))
    assert f"{count} measured" in shown and str(setting).split(",")[0] in shown


@pytest.mark.slow
def test_a_run_that_is_stopped_keeps_what_it_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, setting = tmp_path / "times.sqlite", setting_here(CPU, ONE)
    model, inputs, loss = mlp()
    began: list[int] = []

    def stopped(pairs: Any, *rest: Any) -> Any:
        began.append(len(pairs))
        if len(began) == 3:
            raise KeyboardInterrupt
        return measure(pairs, *rest)

    monkeypatch.setattr(wanted, "AT_ONCE", 2)
    monkeypatch.setattr(wanted, "measure", stopped)
    compiler, graph = captured_by(model, ONE, inputs, CPU, Options(loss=loss))
    with pytest.raises(KeyboardInterrupt):
        profile(compiler, graph, Timing(path, setting, effort=QUICK))
    assert began == [2, 2, 2]
    assert len(Database(path).read(setting)) == 4


def test_without_a_database_all_is_modelled(made: Compilation) -> None:
    sources = {each.source for each in made.plan.estimate.operators}
    assert sources == {"modelled"} and made.plan.times is None
    assert "modelled (100.0% of their seconds)" in to_text(header(made.plan))


def test_what_was_not_timed_is_interpolated_or_modelled(made: Compilation, tmp_path: Path) -> None:
    path, setting = tmp_path / "times.sqlite", setting_here(CPU, Mesh.of(2))
    known = invented(made, setting, skip="gelu")
    far = [
        replace(t, call=replace(t.call, text=f"of another size: {t.call.text}"))
        if "linear" in t.call.op
        else t
        for t in known
    ]
    Database(path).write(setting, far)
    sources = {each.node: each.source for each in planned(path).estimate.operators}
    ops: dict[str, set[str]] = {}
    for node, source in sources.items():
        ops.setdefault(made.graph.node[node].op.split(".")[1], set()).add(source)
    assert "interpolated" in ops["linear"] and "measured" not in ops["linear"]
    assert ops["gelu"] == {"modelled"} and ops["layer_norm"] == {"measured"}


@pytest.mark.parametrize("other", ["device", "software", "ranks"])
def test_times_of_elsewhere_are_refused_by_name(
    made: Compilation, tmp_path: Path, other: str
) -> None:
    path, setting = tmp_path / "times.sqlite", setting_here(CPU, Mesh.of(2))
    foreign = replace(setting, **{other: 77 if other == "ranks" else "something else"})
    Database(path).write(foreign, invented(made, foreign))
    with pytest.raises(InputError) as refused:
        planned(path)
    assert str(setting) in str(refused.value) and str(foreign) in str(refused.value)


def test_another_devices_profile_takes_no_times_of_this_one(
    made: Compilation, tmp_path: Path
) -> None:
    path, setting = tmp_path / "times.sqlite", setting_here(CPU, Mesh.of(2))
    Database(path).write(setting, invented(made, setting))
    with pytest.raises(InputError, match="no times of h100"):
        times_for(path, load("h100"), Mesh.of(2))
    gpu = Setting("NVIDIA H100 80GB HBM3", "cuda", 80e9, f"{setting.software}, runtime 12.8")
    Database(path).write(gpu, invented(made, gpu))
    assert times_for(path, load("h100"), Mesh.of(2)).setting == gpu


def test_a_certificate_needs_the_same_times(made: Compilation, tmp_path: Path) -> None:
    path, setting = tmp_path / "times.sqlite", setting_here(CPU, Mesh.of(2))
    Database(path).write(setting, invented(made, setting))
    plan = planned(path)
    times = times_for(path, CPU, Mesh.of(2))
    checks = certify(plan, posed_for(plan, made.graph, CPU, times))
    assert all(check.ok for check in checks), [c for c in checks if not c.ok]
    (failed,) = (c for c in certify(plan, posed_for(plan, made.graph, CPU)) if not c.ok)
    assert failed.name == "times" and "database=" in failed.what
    one = plan.estimate.operators[0]
    forged = replace(plan.estimate, operators=(replace(one, source="modelled"),
                                               *plan.estimate.operators[1:]))  # fmt: skip
    found = certify(
        plan.with_estimate(forged), posed_for(plan, made.graph, CPU, times), bound=False
    )
    assert [c.name for c in found if not c.ok] == ["estimate"]


def test_profiling_times_all_that_the_best_plan_runs(profiled: tuple[Path, ProfiledPlan]) -> None:
    path, found = profiled
    assert not found.refused and found.timed
    assert {each.source for each in found.made.plan.estimate.operators} == {"measured"}
    assert all(t.forward.seconds > 0 and t.rows == 3 for t in found.timed)
    assert all((t.backward is None) == (t.call.backward is None) for t in found.timed)
    kept = Database(path).read(setting_here(CPU, ONE))
    assert set(kept) == {t.call.text for t in found.timed}


@pytest.mark.slow
def test_what_is_known_is_not_timed_again(profiled: tuple[Path, ProfiledPlan]) -> None:
    path, first = profiled
    model, inputs, loss = mlp()
    compiler, graph = captured_by(model, ONE, inputs, CPU, Options(loss=loss))
    setting = setting_here(CPU, ONE)
    second = profile(compiler, graph, Timing(path, setting, effort=QUICK))
    assert not second.timed and second.known > 0
    assert second.made.plan.estimate == first.made.plan.estimate
    anew = profile(compiler, graph, Timing(path, setting, True, QUICK))
    assert {t.call.text for t in anew.timed} == {t.call.text for t in first.timed}


def test_every_candidate_can_be_timed(made: Compilation, tmp_path: Path) -> None:
    model, inputs, loss = mlp()
    compiler, graph = captured_by(model, ONE, inputs, CPU, Options(loss=loss))
    setting = replace(setting_here(CPU, ONE), device="made up")
    compiler_of_two = compiler.on(Mesh.of(2))
    options = compiler_of_two.compile(graph).priced.candidates.operators
    wanted = {
        local.text
        for name, every in options.items()
        for option in every
        for local in [local_call(graph.node[name], option, graph, Mesh.of(2))]
        if local is not None
    }
    few = {t.call.text for t in invented(made, setting)}
    assert few < wanted and any("float32[128, 16] grad" in text for text in wanted)


def test_larger_products_take_longer() -> None:
    small, large = (product(n) for n in (32, 256))
    found, refused = measure([small, large], setting_here(CPU, ONE), QUICK)
    assert not refused
    first, second = found
    assert second.forward.seconds > 10 * first.forward.seconds
    assert first.backward is not None and second.backward is not None
    assert second.backward.seconds > 10 * first.backward.seconds
    assert 1.2 < second.backward.seconds / second.forward.seconds < 5, "two products against one"


def product(n: int) -> tuple[LocalCall, Call]:
    operands = tuple(Tensor(f"t{i}", (n, n), "float32", True) for i in range(2))
    local = LocalCall("aten.mm.default", (Ref("t0"), Ref("t1")), (), operands, True)
    forward = Work(2.0 * n**3, 12.0 * n**2, "float32")
    return local, Call(local.op, local.text, local.family, forward, forward)


def attention(length: int, dropout: float, causal: bool) -> LocalCall:
    shape = (2, 4, length, 8)
    operands = tuple(Tensor(f"t{i}", shape, "float32", True) for i in range(3))
    names = tuple(Ref(tensor.name) for tensor in operands)
    switches = (("dropout_p", dropout), ("is_causal", causal))
    return LocalCall("aten.scaled_dot_product_attention.default", names, switches, operands, True)


def test_a_family_differs_in_sizes_alone() -> None:
    """What is switched on or off is other work, of which other calls' times say nothing."""
    known = attention(16, 0.0, True)
    assert attention(32, 0.0, True).family == known.family != known.text
    assert attention(16, 0.0, False).family != known.family
    assert attention(16, 0.1, True).family != known.family
    assert attention(16, 0.1, True).family == attention(16, 0.2, True).family
    reshaped = [
        LocalCall("aten.view.default", (Ref("t0"), (n, 4)), (), known.operands, True)
        for n in (2, 8)
    ]
    assert reshaped[0].family == reshaped[1].family


def test_results_stay_until_the_next_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed at once, they would be written into what a cache holds."""
    made: list[weakref.ref[torch.Tensor]] = []

    def product_of(*args: Any) -> torch.Tensor:
        found = torch.mm(*args)
        made.append(weakref.ref(found))
        return found

    local, call = product(64)
    monkeypatch.setattr("autopar.profile.bench.callable_of", lambda op: product_of)
    found = bench(local, Pool("cpu", [local]), call.forward.nbytes)
    made.clear()
    found.forward()
    assert len(made) == found.copies and all(each() is not None for each in made)
    found.forward()
    assert [each() is not None for each in made] == [False] * found.copies + [True] * found.copies


def test_copies_lie_apart_in_cold_memory() -> None:
    local, call = product(512)
    pool = Pool("cpu", [local])
    starts = {pool.take(local.operands[0]).data_ptr() for _ in range(12)}
    assert len(starts) == 12, "no place is read twice before the pool was gone through"
    assert max(starts) - min(starts) < COLD_NBYTES["cpu"] + 2 * 2**20
    assert bench(local, pool, call.forward.nbytes).copies == 16
    assert bench(local, pool, 2.0**30).copies == 1


@pytest.mark.slow
def test_several_processes_time_the_same_at_once() -> None:
    setting = setting_here(CPU, Mesh.of(2))
    assert setting.ranks == 2
    found, refused = measure([product(64)], setting, QUICK)
    assert not refused and found[0].forward.seconds > 0


def test_an_operator_that_does_not_run_is_named(tmp_path: Path) -> None:
    local, call = product(8)
    broken = replace(local, operands=(replace(local.operands[0], shape=(8, 9)), local.operands[1]))
    found, refused = measure([(broken, call)], setting_here(CPU, ONE), QUICK)
    assert not found and "RuntimeError" in refused[0].reason


def test_interpolation_is_close_to_what_is_measured_later() -> None:
    """Between two measured sizes the guess beats the roofline of a wrong machine by far."""
    pairs = [product(n) for n in (64, 96, 128)]
    found, _ = measure(pairs, setting_here(CPU, ONE), Effort(rows=7, row_s=0.002))
    ends = Times(setting_here(CPU, ONE), {t.call.text: t for t in (found[0], found[2])})
    answer = ends.of(pairs[1][1], lambda work: work.flops / 1e6)
    assert answer.source == "interpolated"
    assert 0.4 < answer.forward_s / found[1].forward.seconds < 2.5


@pytest.mark.thorough
def test_the_command(tmp_path: Path) -> None:
    path, plan = tmp_path / "times.sqlite", tmp_path / "plan.json"
    words = ["profile", "tests/cli/factories.py:good", "--mesh", "1", "--hardware", "cpu"]
    done = CliRunner().invoke(app, [*words, "--database", str(path), "-o", str(plan)])
    assert done.exit_code == 0, done.output
    assert "measured operators" in done.stdout and "linear" in done.stdout
    assert Plan.load(plan).times is not None
    verified = CliRunner().invoke(
        app, ["verify", str(plan), words[1], "--database", str(path), "--no-bound"]
    )
    assert verified.exit_code == 0, verified.output
    other = CliRunner().invoke(app, [*words[:-1], "h100", "--database", str(path)])
    assert other.exit_code == 1 and "h100" in other.stderr


def test_times_of_more_threads_are_refused_where_plans_would_take_others(
    made: Compilation, tmp_path: Path
) -> None:
    path, mesh = tmp_path / "times.sqlite", Mesh.of(2)
    one, two = setting_here(CPU, mesh), setting_here(CPU, mesh, threads=2)
    refuse_fewer_threads(path, two, CPU, mesh)
    Database(path).write(one, invented(made, one))
    refuse_fewer_threads(path, one, CPU, mesh)
    with pytest.raises(InputError, match=r"with 1 thread per rank.*with 2"):
        refuse_fewer_threads(path, two, CPU, mesh)
