"""Constraints: what is read, what is refused, and what presets say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import ConstraintError, InputError, MeshError
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, P, R, S, Sharding
from autopar.request import presets
from autopar.request.constraints import Constraint, from_user

MESH = Mesh.of(2, 2)


def test_alternatives_are_read_in_order() -> None:
    constraint = Constraint.of("stored", "*", "S | R, else I", "y")
    assert constraint.allowed == (("S", "R"), ("I",))
    assert constraint.rank(Sharding((I, S(1))), MESH) == 0
    assert constraint.rank(Sharding((S(1), I)), MESH) == 1
    assert constraint.rank(Sharding((S(1), P)), MESH) is None


def test_a_type_is_meant_as_a_rank_sees_it() -> None:
    inner = Sharding((S(0), S(0, 2)))
    assert Constraint.of("tensor", "*", "S(0)", "y").rank(inner, MESH) == 0


def test_the_batch_is_split_wherever_it_is() -> None:
    constraint = Constraint.of("tensor", "*", "S(batch), else R", "y")
    moved = S(1, of=4)
    assert constraint.place == "S(batch)"
    assert constraint.rank(Sharding((R, moved)), MESH, moved) == 0
    assert constraint.rank(Sharding((moved, S(1, of=8))), MESH, moved) == 0  # inside the outer axis
    assert constraint.rank(Sharding((S(1), moved)), MESH, moved) == 0  # inside of another split
    assert constraint.rank(Sharding((R, S(1))), MESH, moved) is None
    assert constraint.rank(Sharding((R, S(0))), MESH) is None
    assert constraint.rank(Sharding((R, R)), MESH, moved) == 1


def test_users_write_shardings_or_axes() -> None:
    found = from_user({"h.*.weight": "[S(0, of=3), *]", "stored:wte": {"y": "S, else I"}}, MESH)
    assert [(c.subject, c.pattern, c.axis) for c in found] == [
        ("tensor", "h.*.weight", "x"),
        ("stored", "wte", "y"),
    ]
    assert found[0].allowed == (("S(0, of=3)",),)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"a": "S(0)"}, ConstraintError),
        ({"a": "[S(0)]"}, ConstraintError),
        ({"a": "[Q, R]"}, ConstraintError),
        ({"a": {"z": "R"}}, MeshError),
    ],
)
def test_what_cannot_be_read_is_refused(given: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        from_user(given, MESH)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", presets.names())
@pytest.mark.parametrize("mesh", [Mesh.of(4), MESH, Mesh.of(2, 2, 2)])
def test_presets_speak_of_every_axis(name: str, mesh: Mesh) -> None:
    assert {constraint.axis for constraint in presets.load(name, mesh)} == set(mesh.names)


def test_an_unknown_preset_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"ddp, .*fsdp"):
        presets.load("megatorn", MESH)


def test_letters_are_allowed_literally() -> None:
    assert Constraint.of("used", "*", "R").rank(Sharding((R, R)), MESH) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"pins": {"a": "[S(0), R]"}},
            r"'pins' holds constraints, but is not a table.*Did you mean 'pin'",
        ),
        ({"pin": {"a": "[R, R]"}, "b": "[R, R]"}, "every constraint belongs in one of them"),
        ({"Pin": {"a": {"x": "R"}}}, "'Pin' holds constraints"),
    ],
)
def test_tables_that_are_none(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConstraintError, match=said):
        from_user(given, MESH)


def test_the_other_name_of_a_tied_parameter_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(
        ConstraintError, match=r"names 1\.weight, which the model ties to 0\.weight"
    ):
        autopar.plan(
            model, 2, {"input": torch.ones(4, 4)}, loss=torch.sum, hardware="cpu",
            constraints={"stored:1.weight": "[S(0)]"},
        )  # fmt: skip
