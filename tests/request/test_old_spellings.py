"""Arguments of the version before work for one version more, and say what to write instead."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar import Batches, Pipeline, Planning, Weights
from autopar.errors import InputError
from autopar.request.old_spellings import HOMES, respelt


def initialise(module: nn.Module) -> None:
    """What somebody passes as init=."""


SPELT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"stages": 2}, {"pipeline": Pipeline(2)}),
    ({"stages": "auto", "schedule": "zb-v"}, {"pipeline": Pipeline("auto", "zb-v")}),
    (
        {"stages": 2, "schedule": "pipedream", "cuts": ["a"], "asynchronous": True, "loss": None},
        {"pipeline": Pipeline(2, "pipedream", None, ("a",), True), "loss": None},
    ),
    ({"input": "local", "outputs": ["logits"]}, {"batches": Batches(True, ("logits",))}),
    ({"input": "global", "replan": False}, {"batches": Batches(replan=False)}),
    (
        {"database": "a.sqlite", "source": "b.py"},
        {"planning": Planning(Path("a.sqlite"), False, Path("b.py"))},
    ),
    ({"allow_undivided": True}, {"planning": Planning(allow_undivided=True)}),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), SPELT)
def test_they_are_the_fields_of_values(old: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.warns(FutureWarning, match=r"Write \w+=autopar\.(Pipeline|Batches|Planning)\("):
        assert respelt(old) == new


def test_an_initialiser_goes_beside_the_weights() -> None:
    with pytest.warns(FutureWarning, match=r"weights=autopar\.Weights\(source='a', init="):
        made = respelt({"weights": "a", "init": initialise})["weights"]
    assert isinstance(made, Weights) and (made.source, made.init) == ("a", initialise)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"input": "locall"}, "input='locall' is unknown"),
        (
            {"pipeline": Pipeline(2), "microbatches": 4},
            "write all of them as fields of autopar.Pipe",
        ),
        (
            {"batches": Batches(), "outputs": ["a"]},
            "write all of them as fields of autopar.Batches",
        ),
        ({"microbatches": 4}, "is for pipelines"),
    ],
)
def test_what_they_cannot_mean(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        respelt(asked)


def test_a_plan_is_the_same_by_both() -> None:
    model, batch = (
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)),
        {"input": torch.ones(8, 8)},
    )
    given: dict[str, Any] = {"loss": torch.sum, "hardware": "h100"}
    with pytest.warns(FutureWarning, match=r"Pipeline\(stages=2, microbatches=4\)") as heard:
        old = autopar.plan(model, 2, batch, stages=2, microbatches=4, **given)
    assert heard[0].filename == __file__, "the warning points at the caller"
    new = autopar.plan(model, 2, batch, pipeline=Pipeline(2, microbatches=4), **given)
    assert old.to_json() == new.to_json()


def test_none_of_them_is_an_argument_any_more() -> None:
    now = inspect.signature(autopar.parallelize).parameters
    assert not now.keys() & HOMES.keys()
    assert {name for name, _, _ in HOMES.values()} <= now.keys() and len(now) <= 16


@pytest.mark.parametrize("name", ["batches", "planning"])
def test_other_values_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}='local' is not a \w+: pass {name}=autopar\."):
        autopar.plan(nn.Linear(2, 2), 2, {"input": torch.ones(2, 2)}, **{name: "local"})
