"""`spmd_types` agrees with our plans wherever it can speak, and contradicts wrong ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autopar.emit.program import program
from autopar.emit.statement import Statement
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, P, R, S, Type
from autopar.plans.plan import Plan
from autopar.request.presets import names
from autopar.rules import localize
from autopar.verify.witness import Verdict, weigh, witness
from tests import parity
from tests.daily import daily
from tests.models import CASES
from tests.random_plans import random_plan

MESH = Mesh.of(2, 2)
EVERY_DAY = ("megatron_sp",)


def _preset_plan(name: str, preset: str) -> Plan:
    return Plan.from_json(parity.preset_work(name, (2, 2), preset).plan, preset)


def kinds(verdicts: tuple[Verdict, ...]) -> Counter[str]:
    wrong = [v for v in verdicts if v.kind == "contradicts"]
    assert not wrong, wrong[0]
    return Counter(verdict.kind for verdict in verdicts)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "preset",
    [n if n in EVERY_DAY else pytest.param(n, marks=pytest.mark.slow) for n in names()],
)
def test_presets(name: str, preset: str) -> None:
    case = parity.reference(name)
    found = kinds(witness(_preset_plan(name, preset), case.graph))
    assert found["agrees"] > found["silent"] / 3


@pytest.mark.parametrize("name", daily(["gpt2", "llama", "bert", "mlp"], ["llama"]))
@pytest.mark.parametrize("seed", [0])
def test_random_plans(name: str, seed: int) -> None:
    case = parity.reference(name)
    plan = random_plan(case.graph, MESH, seed, case.saved)
    assert kinds(witness(plan, case.graph))["agrees"]


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
@pytest.mark.parametrize("letter", [R, I, P, S(0)], ids=str)
def test_a_wrong_type_is_contradicted(name: str, letter: Type) -> None:
    """Every result that the checker agrees with, called something else on the last axis."""
    case = parity.reference(name)
    plan = _preset_plan(name, "fsdp_megatron")
    right = program(plan, case.graph, localize, case.saved)
    verdicts = weigh(right, plan, case.graph)
    agreed = [s for s, v in zip(right, verdicts, strict=True) if v.kind == "agrees"]
    wrong = [changed for statement in agreed for changed in _changed(statement, letter)]
    differentiable = [s for s in wrong if case.graph.tensors[s.targets[0].tensor].differentiable]
    assert differentiable
    for verdict in weigh(differentiable, plan, case.graph):
        assert verdict.kind == "contradicts", verdict


def _changed(statement: Statement, letter: Type) -> Iterator[Statement]:
    target = statement.targets[0]
    form = target.form.with_type(1, letter)
    if isinstance(letter, S) and "[]" in statement.comment:
        return
    if form != target.form and not any(form.cuts(0)[1:]):
        yield replace(statement, targets=(replace(target, form=form), *statement.targets[1:]))
