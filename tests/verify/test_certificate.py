"""A sound plan is certified; a plan that was changed in any place is refused, and the place is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

import autopar
from autopar.api import plan_frontier
from autopar.compile.planned import captured_for
from autopar.cost.parameters import Storage
from autopar.errors import AutoparError, ConstraintError, PlanError
from autopar.ir.blocks import MODES
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.plans.plan import Plan
from autopar.sharding.asked import posed_for
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Compilation, Settings, ShardingProblem
from autopar.verify import Check, certify
from cost_models.hardware import load
from tests import models, parity

Edit = Callable[[dict[str, Any]], object]
H100 = load("h100")
NAMES = ["graph", "hardware", "times", "optimizer", "structure", "types", "constraints",
         "conversions", "estimate", "shares", "memory", "objective", "search", "bound"]  # fmt: skip


@cache
def compiled(name: str, preset: str | None = None, limit: float | None = None) -> Compilation:
    """A tiny model on 2x2; `limit` is a share of what the plan without one needs."""
    model, inputs, loss = models.CASES[name]()
    free = None if limit is None else compiled(name, preset).plan.estimate.memory_nbytes
    return autopar.compile_model(
        model, (2, 2), inputs, loss=loss, hardware=H100, preset=preset,
        memory_limit=None if free is None or limit is None else limit * free,
    )  # fmt: skip


def checks_of(plan: Plan, graph: Graph, bound: bool = True) -> dict[str, Check]:
    """By name, for the plan as it is written to a file."""
    again = Plan.from_json(plan.to_json())
    return {check.name: check for check in certify(again, posed_for(again, graph, H100), bound)}


def padded() -> Compilation:
    """A model whose vocabulary only a padded plan can split as asked."""
    model, inputs, loss = parity.CASES["uneven_gpt2"]()
    return autopar.compile_model(
        model, (2, 2), inputs, loss=loss, hardware=H100,
        constraints={"used:*.wte.weight": {"y": "S(0)"}},
    )  # fmt: skip


@pytest.mark.slow
def test_padded_plans_are_sound() -> None:
    """As they are found again from the model: captured, padded as the plan says, posed and solved."""
    made = padded()
    assert [p.pad.to for p in made.plan.padding] == [258]
    model, inputs, loss = parity.CASES["uneven_gpt2"]()
    graph = captured_for(made.plan, model, inputs, loss)
    assert graph.digest == made.graph.digest == made.plan.graph_digest
    assert_sound(made.plan, graph)


@pytest.mark.slow
def test_wrong_words_about_padding_are_refused() -> None:
    """Axes that split nothing; and a pad that the graph has not makes it another graph."""
    made = padded()
    wrong = replace(made.plan, padding=(replace(made.plan.padding[0], axes=("x",)),))
    assert "padding is" in checks_of(wrong, made.graph)["conversions"].what
    pad = replace(made.plan.padding[0].pad, to=260)
    other = replace(made.plan, padding=(replace(made.plan.padding[0], pad=pad),))
    model, inputs, loss = parity.CASES["uneven_gpt2"]()
    found = checks_of(other, captured_for(other, model, inputs, loss))
    assert not found["graph"].ok and not found["structure"].ok


def assert_sound(plan: Plan, graph: Graph) -> None:
    found = checks_of(plan, graph)
    assert [check.what for check in found.values() if not check.ok] == []
    assert list(found) == NAMES


ASKED: tuple[tuple[str | None, float | None], ...] = (
    (None, None), (None, 0.7), ("fsdp_megatron", None), ("megatron", 1.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("mlp", ASKED[0]),
        pytest.param("mlp", ASKED[1], marks=pytest.mark.slow),  # the fixture `limited` has one
        pytest.param("mlp", ASKED[2], marks=pytest.mark.slow),
        ("mlp", ASKED[3]),
        ("gpt2", ASKED[2]),
    ],
)
def test_sound_plans(name: str, asked: tuple[str | None, float | None]) -> None:
    check_sound(name, *asked)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_sound_plan(name: str, asked: tuple[str | None, float | None]) -> None:
    check_sound(name, *asked)


def check_sound(name: str, preset: str | None, limit: float | None) -> None:
    made = compiled(name, preset, limit)
    assert_sound(made.plan, made.graph)
    assert made.plan.proof in ("elimination", "lagrange", "pareto")
    assert made.plan.search.candidates >= made.plan.search.largest > 1


@pytest.mark.slow
def test_corners_of_the_frontier() -> None:
    model, inputs, loss = models.mlp()
    plans = plan_frontier(model, (2, 2), inputs, loss=loss, hardware=H100)
    assert len(plans) > 2
    for plan in plans:
        assert plan.proof == "hull"
        assert_sound(plan, compiled("mlp").graph)


def test_constraints_of_the_user_are_in_the_plan() -> None:
    model, inputs, loss = models.mlp()
    asked = {"stored:up.weight": {"x": "S(0)", "y": "S | I"}, "used:head.weight": "[*, S(0)]"}
    made = autopar.compile_model(
        model, (2, 2), inputs, loss=loss, hardware=H100, constraints=asked, optimizer="SGD"
    )
    assert len(made.plan.asked.constraints) == 3
    assert_sound(made.plan, made.graph)
    content = json.loads(made.plan.to_json())
    content["asked"]["constraints"].pop()
    freer = Plan.from_json(json.dumps(content))
    assert not checks_of(freer, made.graph)["search"].ok


def test_batches_that_arrive_in_parts() -> None:
    model, inputs, loss = models.mlp()
    made = autopar.compile_model(
        model,
        (2, 2),
        inputs,
        loss=loss,
        hardware=H100,
        preset="ddp",
        batches=autopar.Batches(local=True),
    )
    assert str(made.plan.asked.batch) == "[S(0), S(0, of=2)]"
    assert_sound(made.plan, made.graph)


def test_parameters_that_an_earlier_plan_placed() -> None:
    case, first = parity.reference("mlp"), compiled("mlp", "fsdp").plan
    kept = {p.name: Storage(p.stored, p.leaf, False) for p in first.parameters}
    settings = Settings(storage=kept, first=False)
    made = compile_graph(case.graph, Mesh.of(2, 2), H100, settings, case.saved)
    assert made.plan.asked.kept
    assert_sound(made.plan, case.graph)


@dataclass(frozen=True)
class Made:
    """A plan with many types, as JSON, and what it is checked against."""

    compilation: Compilation
    posed: ShardingProblem

    def after(self, edit: Edit, bound: bool = True) -> dict[str, Check]:
        """The checks of the plan after an edit of its JSON."""
        content = json.loads(self.compilation.plan.to_json())
        edit(content)
        plan = Plan.from_json(json.dumps(content))
        posed = self.posed
        if (plan.asked, plan.preset) != (self.plan.asked, self.plan.preset):
            posed = posed_for(plan, self.compilation.graph, H100)
        return {check.name: check for check in certify(plan, posed, bound)}

    def refused(self, edit: Edit) -> Check:
        """The one check that fails after an edit."""
        found = [check for check in self.after(edit).values() if not check.ok]
        assert len(found) == 1, found
        return found[0]

    @property
    def plan(self) -> Plan:
        """As it was made."""
        return self.compilation.plan


def _made(preset: str | None, limit: float | None) -> Made:
    made = compiled("mlp", preset, limit)
    return Made(made, posed_for(made.plan, made.graph, H100))


@pytest.fixture(scope="module")
def forced() -> Made:
    """By a preset: shards, gathers and reductions."""
    return _made("fsdp_megatron", None)


@pytest.fixture(scope="module")
def limited() -> Made:
    """By the solver, within a limit that binds."""
    return _made(None, 0.72)


def put(*path: str | int, value: object) -> Edit:
    """An edit of one entry of the JSON."""

    def edit(content: dict[str, Any]) -> None:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return edit


def scale(*path: str | int, by: float) -> Edit:
    """An edit that multiplies one number."""

    def edit(content: dict[str, Any]) -> None:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] *= by

    return edit


def test_another_model_or_profile(forced: Made) -> None:
    plan, graph = forced.plan, forced.compilation.graph
    first = certify(replace(plan, graph_digest="0" * 12), forced.posed)[0]
    assert first.name == "graph" and not first.ok and graph.digest in first.what
    other = posed_for(plan, graph, load("a100"))
    (failed,) = [check for check in certify(plan, other) if not check.ok]
    assert failed.name == "hardware" and "a100" in failed.what
    failed = forced.refused(put("hardware_digest", value="0" * 12))
    assert failed.name == "hardware" and "hardware_digest is 000000000000" in failed.what
    assert "with --hardware" in failed.what


def test_an_optimizer_that_torch_lacks_or_that_keeps_something_else(forced: Made) -> None:
    failed = forced.refused(put("optimizer", value="AdamX"))
    assert failed.name == "optimizer" and "torch.optim has no optimizer 'AdamX'" in failed.what
    failed = forced.refused(put("optimizer", value="SGD"))
    assert failed.name == "optimizer"
    assert "state of SGD" in failed.what and "is 2.0 in the plan" in failed.what


def test_a_type_that_does_not_divide(forced: Made) -> None:
    place, _ = _chosen(forced, "up")
    form = "[S(0, of=8), I]"
    failed = forced.refused(put("choices", place, "sharding", "outputs", 0, value=form))
    assert failed.name == "structure"
    assert "tensor up: dim 0 of shape (8, 128) has size 8" in failed.what


def test_a_type_that_nobody_makes(forced: Made) -> None:
    place, choice = _chosen(forced, "up")
    assert choice["sharding"]["outputs"][0] == "[S(0), S(1)]"
    failed = forced.refused(put("choices", place, "sharding", "outputs", 0, value="[S(0), I]"))
    assert failed.name == "structure"
    assert "needs up as [S(0), S(1)], which is never made" in failed.what


def test_a_choice_with_too_few_operands(forced: Made) -> None:
    place, _ = _chosen(forced, "up")
    failed = forced.refused(put("choices", place, "sharding", "inputs", value=[]))
    assert failed.name == "structure" and "up/linear reads and makes other tensors" in failed.what


def test_a_type_that_the_rules_do_not_give(forced: Made) -> None:
    """Every form is made, but no linear layer makes this one from its operands."""
    place, choice = _chosen(forced, "up")
    before = choice["sharding"]["outputs"][0]

    def edit(content: dict[str, Any]) -> None:
        content["choices"][place]["sharding"]["outputs"][0] = "[R, S(1)]"
        step = {"tensor": "up", "axis": 0, "source": "[R, S(1)]", "target": before}
        content["conversions"].insert(0, step)

    failed = forced.refused(edit)
    assert failed.name == "types"
    assert "tensor up is made by up/linear as" in failed.what and "the rules" in failed.what


def test_a_local_implementation_that_the_rules_do_not_name(forced: Made) -> None:
    place, _ = _chosen(forced, "up")
    failed = forced.refused(put("choices", place, "sharding", "variants", value=["", "magic"]))
    assert failed.name == "types" and "via magic" in failed.what


def test_a_stored_type_that_its_steps_do_not_start_from(forced: Made) -> None:
    place = _parameter(forced, "up.weight")
    stored = str(forced.plan.parameters[place].stored)
    failed = forced.refused(put("parameters", place, "stored", value="[I, I]"))
    assert stored != "[I, I]"
    assert failed.name == "structure" and "'up.weight'" in failed.what


def test_a_stored_type_that_the_preset_does_not_allow(forced: Made) -> None:
    place = _parameter(forced, "norm.weight")
    parameter = forced.plan.parameters[place]
    step = {"tensor": "norm_weight", "axis": 0, "source": "[I, I]", "target": "[R, I]"}
    new = {"stored": "[I, I]", "leaf": "[R, I]", "steps": [step], "regather": False}

    def edit(content: dict[str, Any]) -> None:
        content["parameters"][place] |= new
        content["choices"][_chosen(forced, "norm_weight")[0]]["sharding"]["outputs"] = ["[R, I]"]
        content["conversions"] = [c for c in content["conversions"] if c["tensor"] != "norm_weight"]

    assert isinstance(parameter.stored[0], S)
    failed = forced.refused(edit)
    assert failed.name == "constraints" and "parameter norm.weight is stored [I, I]" in failed.what


def test_a_conversion_that_is_gone(forced: Made) -> None:
    graph = forced.compilation.graph
    for place, conversion in enumerate(forced.plan.conversions):
        failed = forced.refused(lambda content, at=place: content["conversions"].pop(at))
        assert failed.name in ("structure", "conversions")
        assert conversion.tensor in failed.what
    assert graph.loss in {c.tensor for c in forced.plan.conversions}


def test_a_conversion_that_nobody_needs(forced: Made) -> None:
    extra = {"tensor": "up", "axis": 1, "source": "[S(0), S(1)]", "target": "[S(0), R]"}
    failed = forced.refused(lambda content: content["conversions"].append(extra))
    assert failed.name == "conversions"
    assert "the plan has up [S(0), S(1)] -> [S(0), R], needed is nothing" in failed.what


def test_a_gather_that_is_not_repeated(forced: Made) -> None:
    place = next(i for i, c in enumerate(forced.plan.conversions) if c.regather)
    failed = forced.refused(put("conversions", place, "regather", value=False))
    assert failed.name == "conversions" and "needed is" in failed.what
    assert "gathered again" in failed.what


@pytest.mark.parametrize(
    "figure",
    ["compute_s", "exposed_s", "parameter_nbytes", "gradient_nbytes", "optimizer_nbytes",
     "activation_nbytes", "working_nbytes", "absent_nbytes"],
)  # fmt: skip
def test_figures_of_the_estimate(forced: Made, figure: str) -> None:
    failed = forced.refused(scale("estimate", figure, by=2))
    assert failed.name == "estimate"
    assert f"{figure} is " in failed.what and "computed again it is" in failed.what


@pytest.mark.parametrize("figure", ["calls", "nbytes", "seconds"])
def test_figures_of_communication(forced: Made, figure: str) -> None:
    flow = forced.plan.estimate.flows[1]
    failed = forced.refused(scale("estimate", "flows", 1, figure, by=2))
    assert failed.name == "estimate"
    assert f"flow 1 ({flow.collective} on {flow.axis}" in failed.what and figure in failed.what


def test_communication_that_is_not_mentioned(forced: Made) -> None:
    failed = forced.refused(lambda content: content["estimate"]["flows"].pop())
    assert failed.name == "estimate" and "missing in the plan" in failed.what


@pytest.mark.parametrize("figure", ["flops", "stored", "used"])
def test_shares(forced: Made, figure: str) -> None:
    assert getattr(forced.plan.shares[1], figure) > 0.5
    failed = forced.refused(put("shares", 1, figure, value=0.25))
    assert failed.name == "shares" and f"share 1 (y) {figure} is 0.25" in failed.what


def test_the_objective(forced: Made) -> None:
    failed = forced.refused(scale("objective_s", by=1 + 1e-6))
    assert failed.name == "objective" and "objective_s is " in failed.what


@pytest.mark.parametrize("by", [0.5, 0.9999, 1.5])
def test_the_bound(limited: Made, by: float) -> None:
    failed = limited.refused(scale("bound_s", by=by))
    assert failed.name == "bound" and "bound_s is " in failed.what
    assert ("above objective_s" in failed.what) == (by > 1)


def test_the_bound_of_a_stage_may_be_lower(limited: Made) -> None:
    """A little: it served others too.  Far below, or above what can be proved, it is refused as ever."""
    proved = limited.plan.bound_s
    found = {
        bound_s: certify(replace(limited.plan, bound_s=bound_s), limited.posed, is_stage=True)
        for bound_s in (0.99 * proved, proved, 0.97 * proved, 1.001 * proved)
    }
    wrong = [[check.name for check in checks if not check.ok] for checks in found.values()]
    assert wrong == [[], [], ["bound"], ["bound"]]


def test_a_bound_that_is_not_proved_again(limited: Made) -> None:
    below = limited.after(scale("bound_s", by=0.5), bound=False)["bound"]
    assert below.ok and "not proved again" in below.what
    assert not limited.after(scale("bound_s", by=2), bound=False)["bound"].ok
    with pytest.raises(PlanError, match="the bound is nan s"):
        limited.after(put("bound_s", value="nan"), bound=False)


def test_a_proof_of_another_kind(limited: Made) -> None:
    failed = limited.refused(put("proof", value="mini-buckets"))
    assert failed.name == "bound" and "proof is mini-buckets" in failed.what
    with pytest.raises(PlanError, match="proof"):
        limited.refused(put("proof", value="wishful thinking"))


def test_the_memory_limit(limited: Made) -> None:
    lower = limited.after(scale("asked", "memory_limit", by=0.99))
    assert not lower["memory"].ok and "memory_limit is " in lower["memory"].what
    assert "but memory_limit is " in limited.refused(scale("asked", "memory_limit", by=2)).what
    assert "memory_limit is None" in limited.refused(put("asked", "memory_limit", value=None)).what
    assert "memory_limit is " in limited.refused(scale("bound_nbytes", by=0.5)).what
    freer = limited.after(put("bound_nbytes", value=None))["bound"]
    assert not freer.ok and "what can be proved is" in freer.what

    def both(content: dict[str, Any]) -> None:
        scale("bound_nbytes", by=2)(content)
        scale("asked", "memory_limit", by=2)(content)

    assert not limited.after(both)["bound"].ok


@pytest.mark.slow
def test_recomputation_is_checked_like_every_decision() -> None:
    made = compiled("gpt2", "ddp", 0.92)
    assert made.plan.recompute and made.plan.asked.recompute == MODES
    found = Made(made, posed_for(made.plan, made.graph, H100))
    assert all(check.ok for check in found.after(lambda content: None).values())
    other = "full" if made.plan.recompute[0].recompute == "selective" else "selective"
    failed = found.after(put("recompute", 0, "recompute", value=other))
    assert not all(check.ok for check in failed.values())
    gone = found.after(lambda content: content["recompute"].pop())
    assert not all(check.ok for check in gone.values())
    unasked = found.after(put("asked", "recompute", value=["none"]))
    assert "block transformer.h." in unasked["constraints"].what
    strange = found.refused(put("recompute", 0, "path", value="transformer.h.9"))
    assert strange.name == "structure" and "'transformer.h.9'" in strange.what


def test_how_much_was_searched(limited: Made) -> None:
    for key in ("candidates", "largest", "variables", "states"):
        failed = limited.refused(scale("search", key, by=2))
        assert failed.name == "search" and f"search.{key} is " in failed.what


def test_what_was_asked(forced: Made) -> None:
    """Without its preset the plan is one of many, and not the best."""
    found = forced.after(put("preset", value=""))
    assert not found["search"].ok and not found["bound"].ok
    failed = forced.after(put("asked", "states", value=1.0))
    assert "is 1.0 in the plan" in failed["optimizer"].what
    constraint = {"subject": "stored", "pattern": "up.weight", "allowed": [["I"]], "axis": "x"}
    with pytest.raises(ConstraintError, match="two constraints clash"):
        forced.after(put("asked", "constraints", value=[constraint]))
    with pytest.raises(AutoparError, match="nope"):
        forced.after(put("preset", value="nope"))


def test_a_decision_that_the_users_constraint_forbids(limited: Made) -> None:
    parameter = limited.plan.parameter["up.weight"]
    other = "I" if isinstance(parameter.stored[0], S) else "S"
    constraint = {"subject": "stored", "pattern": "up.weight", "allowed": [[other]], "axis": "x"}
    failed = limited.refused(put("asked", "constraints", value=[constraint]))
    assert failed.name == "constraints" and "parameter up.weight is stored" in failed.what


INFORMATIVE = ("versions", "precision", "asked.recompute")
"""Entries that no figure of this plan depends on."""


@pytest.mark.slow
def test_every_entry_counts(forced: Made) -> None:
    """Any entry of the JSON changed in any of several ways: refused, and never by a crash."""
    content = json.loads(forced.plan.to_json())
    accepted = []
    for path, value in _entries(content):
        for other in _others(value):
            try:
                found = forced.after(put(*path, value=other))
            except AutoparError:
                continue
            if all(check.ok for check in found.values()):
                accepted.append((".".join(map(str, path)), value, other))
    assert not [entry for entry in accepted if not entry[0].startswith(INFORMATIVE)]


def _entries(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """(path, value) of every leaf and every list."""
    if not isinstance(value, dict):
        yield path, value
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _entries(part, (*path, key))


def _others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (value + 1, 1.5 * value + 3, -value - 1)
    elif isinstance(value, list):
        yield from (value[:-1], [*value, *value[-1:]]) if value else ([1],)
    elif isinstance(value, str):
        first, comma, last = value.strip("[]").partition(", ")
        kinds = ("R", "I", "P", "N", "S(0)", "S(1)") if comma else ()
        changed = (f"[{a}, {b}]" for kind in kinds for a, b in ((kind, last), (first, kind)))
        yield from {"", f"{value}x", "[R]", *changed} - {value}
    else:
        yield from (5.0, "x")


def _chosen(made: Made, node: str) -> tuple[int, dict[str, Any]]:
    choices = json.loads(made.plan.to_json())["choices"]
    return next((i, choice) for i, choice in enumerate(choices) if choice["node"] == node)


def _parameter(made: Made, name: str) -> int:
    return [p.name for p in made.plan.parameters].index(name)
