"""The names that profiles may use are those that torch, the models and the calibration use."""

from __future__ import annotations

import torch

from autopar.rules import registered
from cost_models.calibrate.effort import QUICK
from cost_models.calibrate.operators import samples
from cost_models.collectives import ring_terms
from cost_models.curves import operator
from cost_models.names import COLLECTIVES, DTYPES, TIMED, is_operator, meant


def test_dtypes_are_those_of_torch() -> None:
    there = {str(found) for found in vars(torch).values() if isinstance(found, torch.dtype)}
    assert {name.removeprefix("torch.") for name in there} <= DTYPES


def test_collectives_are_those_that_have_a_formula() -> None:
    assert all(ring_terms(kind, 1.0, 2) for kind in COLLECTIVES)


def test_operators_that_are_timed_are_known_without_torch() -> None:
    every = samples(QUICK.matrices, QUICK.curve_nbytes)
    assert {sample.amount.operator for sample in every} == TIMED


def test_every_operator_with_a_rule_may_have_a_curve() -> None:
    ops = (op.replace("::", ".") if "::" in op else f"aten.{op}" for op in registered())
    assert [op for op in ops if not is_operator(operator(op))] == []
    assert not any(map(is_operator, ("tahn", "name", "mine.", ".tanh", "a b", "")))


def test_what_is_close_is_suggested() -> None:
    assert meant("all-reduce", COLLECTIVES) == "Did you mean 'all_reduce'?"
    assert meant("x", ["b", "a"]) == "Known: a, b."
