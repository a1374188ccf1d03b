"""The solver's plan beside presets and given plans: the same figures as each has alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

import autopar
from autopar.errors import InputError, PlanError
from autopar.explain.compare import SOLVER, Comparison, Contender, compare
from autopar.plans.plan import Plan
from autopar.render.text import contenders, to_text
from autopar.render.text.table import WIDTH
from cost_models.hardware import load
from tests.models import CASES
from tests.render.text import hand_made

NAMES = ("ddp", "megatron")
T = TypeVar("T")


def beside(**options: object) -> Comparison:
    model, inputs, loss = CASES["mlp"]()
    asked = {"hardware": "h100", "loss": loss, "names": NAMES, **options}
    return compare(model, (2, 2), inputs, **asked)  # type: ignore[arg-type]


def compared(**options: object) -> dict[str, Contender]:
    return {each.name: each for each in beside(**options)}


def planned(**options: object) -> Plan:
    model, inputs, loss = CASES["mlp"]()
    asked = {"hardware": "h100", "loss": loss, **options}
    plan = autopar.plan(model, (2, 2), inputs, **asked)  # type: ignore[arg-type]
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.thorough
def test_each_is_the_plan_that_it_is_alone() -> None:
    found = compared()
    assert list(found) == [SOLVER, *NAMES]
    for name, preset in ((SOLVER, None), *zip(NAMES, NAMES, strict=True)):
        plan, alone = found[name].plan, planned(preset=preset)
        assert plan is not None and plan.digest == alone.digest
    steps = {name: each.plan.objective_s for name, each in found.items()}  # type: ignore[union-attr]
    assert steps[SOLVER] == min(steps.values())


@pytest.mark.thorough
def test_what_does_not_fit_says_why() -> None:
    found = compared(memory_limit=2000)
    assert all(each.plan is None and "fit" in each.why for each in found.values())
    text = to_text(contenders([(c.name, c.plan, c.why) for c in found.values()], 2000))
    assert text.count("none fits") == 3 and "No other plan fits" in text


def test_a_comparison_is_a_value_that_is_drawn_whole() -> None:
    found = beside(names=("ddp",))
    assert [each.name for each in found] == [each.name for each in found] == [SOLVER, "ddp"]
    assert len(found) == 2 and found.limit_nbytes == load("h100").device.memory_bytes
    rows = [(each.name, each.plan, each.why) for each in found]
    assert str(found) == to_text(contenders(rows, found.limit_nbytes)).rstrip("\n")
    assert "ddp" in found._repr_html_()
    assert beside(names=(), memory_limit="1GiB").limit_nbytes == 2.0**30


def test_each_way_is_seen_as_it_comes() -> None:
    seen: list[object] = []

    def watch(every: Iterable[T], total: int | None, what: str) -> Iterator[T]:
        seen.append((what, total))
        for each in every:
            seen.append(type(each).__name__)
            yield each

    beside(names=("ddp",), watch=watch)
    capture, planned = ("capturing the model", None), ("planning", 2)
    assert seen == [capture, "Graph", planned, "Contender", "Contender"]


@pytest.mark.thorough
def test_a_plan_for_other_hardware_is_priced_again() -> None:
    mine = planned(hardware="a100", preset="ddp")
    found = compared(plans={"mine": mine})["mine"]
    alone = planned(preset="ddp")
    assert isinstance(found.plan, Plan) and "a100" in found.why
    assert found.plan.digest == mine.digest == alone.digest
    assert found.plan.estimate.step_s == pytest.approx(alone.estimate.step_s, rel=1e-9)
    assert found.plan.estimate.step_s != mine.estimate.step_s


@pytest.mark.thorough
def test_strangers_are_refused() -> None:
    with pytest.raises(PlanError, match=r"(?s)mine is not a plan of this model.*TinyLM"):
        compared(plans={"mine": hand_made.plan()})
    with pytest.raises(PlanError, match="pipe is not a plan of this model"):
        compared(plans={"pipe": replace(hand_made.pipeline(), stages=_in_model_precision())})
    with pytest.raises(InputError, match="every preset"):
        compared(preset="ddp")


def _in_model_precision() -> tuple[hand_made.StagePlan, ...]:
    return tuple(
        replace(each, plan=replace(each.plan, precision="as the model"))
        for each in hand_made.pipeline().stages
    )


def test_golden(golden: Callable[[str, str], None]) -> None:
    slower = hand_made.other().estimate
    rows = [
        (SOLVER, hand_made.plan(), ""),
        ("ddp", None, "Nothing fits into 40 GiB: the smallest plan needs 50 GiB.\nRaise it."),
        ("fsdp", replace(hand_made.other(), estimate=replace(slower, exposed_s=2.0)), ""),
        ("plans/of/mine/with/a/long/name.json", hand_made.other(), "priced again: made for a100"),
        ("pipe.json", hand_made.pipeline(), ""),
    ]
    text = to_text(contenders(rows, 2.5 * 2**30))
    golden("contenders.txt", text)
    assert max(map(len, text.splitlines())) <= WIDTH
