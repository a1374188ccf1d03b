"""A model of a user's own operators: rules found by experiment, and a step equal to one process."""

from __future__ import annotations

import pytest

from autopar.errors import SourceError
from autopar.plans.plan import Plan
from autopar.rules import rule_of
from autopar.runtime import program
from tests import parity
from tests.pool import Pool


@pytest.mark.thorough
def test_step(pool: Pool) -> None:
    """The solver's plan, presets and random plans on two ranks."""
    works = [parity.preset_work("custom", (2,), preset) for preset in (None, "fsdp", "megatron")]
    works += [parity.random_work("custom", (2,), seed) for seed in range(4)]
    pool.run(2, parity.check_all, works)


def test_its_weights_are_split_where_they_are_used() -> None:
    """Megatron's plan splits a weight that only operators of the user's read, each half of it."""
    graph = parity.reference("custom").graph
    found = {node.op: rule_of(node, graph).source for node in graph.nodes if not node.is_leaf}
    assert {op for op, source in found.items() if source == "discovered"} == {
        "autopar_tests.project.default", "autopar_tests.add.default", "autopar_tests.swiglu.default"
    }  # fmt: skip
    work = parity.preset_work("custom", (2,), "megatron")
    assert "torch.ops.autopar_tests.swiglu.default(" in work.source
    used = {str(form) for form in Plan.from_json(work.plan).parameter["0.up"].leaf}
    assert used == {"S(1, of=2)"}


def test_an_operator_that_nobody_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emitted file says what to import."""
    case, work = parity.reference("custom"), parity.preset_work("custom", (2,), "ddp")

    def unknown(op: str) -> object:
        if op.startswith("autopar_tests.swiglu"):
            raise program.RuleError("unknown")
        return None

    monkeypatch.setattr(program, "callable_of", unknown)
    with pytest.raises(SourceError, match=r"calls autopar_tests::swiglu.*Import the module"):
        program.load(Plan.from_json(work.plan), case.graph, work.source, program.Path("a.py"))
