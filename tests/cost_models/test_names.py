"""The names that profiles may use are those that torch, the models and the calibration use."""

from __future__ import annotations

import torch

from autopar.rules import registered
from cost_models.calibrate.effort import QUICK
from cost_models.calibrate.measure import KINDS
from cost_models.calibrate.operators import samples
from cost_models.curves import operator
from cost_models.exchanges import EXCHANGES
from cost_models.names import DTYPES, TIMED, is_operator, meant


def test_dtypes_are_those_of_torch() -> None:
    there = {str(found) for found in vars(torch).values() if isinstance(found, torch.dtype)}
    assert {name.removeprefix("torch.") for name in there} <= DTYPES


def test_exchanges_that_are_timed_have_facts() -> None:
    """A broadcast and a permute have no measurement of their own, and a send has another one."""
    untimed = {"broadcast", "send", "permute"}
    assert EXCHANGES.keys() - set(KINDS) == untimed and set(KINDS) < EXCHANGES.keys()


def test_operators_that_are_timed_are_known_without_torch() -> None:
    every = samples(QUICK.matrices, QUICK.curve_nbytes)
    assert {sample.amount.operator for sample in every} == TIMED


def test_every_operator_with_a_rule_may_have_a_curve() -> None:
    ops = (op.replace("::", ".") if "::" in op else f"aten.{op}" for op in registered())
    assert [op for op in ops if not is_operator(operator(op))] == []
    assert not any(map(is_operator, ("tahn", "name", "mine.", ".tanh", "a b", "")))


def test_what_is_close_is_suggested() -> None:
    assert meant("all-reduce", EXCHANGES) == "Did you mean 'all_reduce'?"
    assert meant("x", ["b", "a"]) == "Known: a, b."
