"""Constraints from a file: what they ask is so; clashes name their two lines."""

from __future__ import annotations

from pathlib import Path

import pytest

import autopar
from autopar.errors import ConstraintError
from autopar.explain.pins import pins
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.plans.plan import Plan
from autopar.request.constraint_file import from_file
from autopar.request.constraints import Given, from_user
from tests.models import CASES

MESH = Mesh.of(2, 2)
GOOD = """# mine
[pin]
"stored:up.weight" = "[S(0), *]"

[forbid]
"stored:head.weight" = { x = "S", y = "S" }
[prefer]
'used:up.weight' = { y = "S(0)" }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def planned(path: Path | Given, **options: object) -> Plan:
    model, inputs, loss = CASES["mlp"]()
    asked = {"hardware": "h100", "loss": loss, "constraints": path, **options}
    plan = autopar.plan(model, MESH, inputs, **asked)  # type: ignore[arg-type]
    assert isinstance(plan, Plan)
    return plan


def test_lines_and_kinds(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    found = from_file(path, MESH)
    assert [(c.kind, c.subject, c.pattern, c.axis, c.at) for c in found] == [
        ("pin", "stored", "up.weight", "x", f"{path}:3"),
        ("forbid", "stored", "head.weight", "x", f"{path}:6"),
        ("forbid", "stored", "head.weight", "y", f"{path}:6"),
        ("prefer", "used", "up.weight", "y", f"{path}:8"),
    ]
    assert str(found[1]).endswith("on x: not S") and str(found[3]).endswith("preferably S(0)")


@pytest.mark.parametrize("preset", [None, "fsdp"])
def test_a_plan_obeys(preset: str | None, tmp_path: Path) -> None:
    if preset == "fsdp":
        text = '[forbid]\n"stored:up.weight" = "[S(1), S(1)]"\n'
        plan = planned(written(tmp_path, text), preset=preset)
        assert S(1) not in plan.parameter["up.weight"].stored.types
        return
    plan = planned(written(tmp_path, GOOD))
    assert plan.parameter["up.weight"].stored.local(0, MESH) == S(0)
    assert not plan.parameter["head.weight"].stored.is_split
    assert Plan.from_json(plan.to_json()).asked == plan.asked
    marks = pins(plan)
    assert "stored S(0) on x" in marks["up.weight"] and "not S" in marks["head.weight"]


@pytest.mark.thorough
def test_what_cannot_be_is_only_preferred(tmp_path: Path) -> None:
    text = '"stored:up.weight" = "[P, P]"\n'
    planned(written(tmp_path, f"[prefer]\n{text}"))
    with pytest.raises(ConstraintError, match=r"mine\.toml:2: stored 'up\.weight' on x: P"):
        planned(written(tmp_path, f"[pin]\n{text}"))


def test_a_clash_names_both_lines(tmp_path: Path) -> None:
    text = '[pin]\n"stored:up.weight" = "[S(0), *]"\n\n[forbid]\n"stored:up.*" = { x = "S(0)" }\n'
    path = written(tmp_path, text)
    with pytest.raises(ConstraintError) as found:
        planned(path)
    said = str(found.value)
    assert "up.weight: two constraints clash" in said
    assert f"{path}:2: stored 'up.weight' on x: S(0)" in said
    assert f"{path}:5: stored 'up.*' on x: not S(0)" in said
    assert "both together none" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has nothing: write tables [pin], [forbid], [prefer]"),
        ("[pins]\n", "has a table 'pins'"),
        ('"a" = 3\n', "has 'a' above all tables: write it below [pin] or [forbid] or [prefer]."),
        ("pin = 3\n", "write [pin] above"),
        ("[pin]\nup.weight = 'S'\n", "(Put a name with dots in quotes.)"),
        ('[pin]\n"up.weight" = 3\n', "not 3"),
        ('[pin]\n"up.weight" = "S(0)"\n', "mine.toml:2: Constraint 'up.weight': write"),
        ('[forbid]\n"up.weight" = { x = "S(0), else R" }\n', "no 'else'"),
        ("[pin\n", "Cannot read the constraints"),
        ('[pin]\n"nope" = "[S(0), R]"\n', "No name matches the constraint ("),
        ('[pin]\n"stored:nope" = "[S(0), R]"\n', "mine.toml:2: stored 'nope' on x: S(0))"),
        ('[pin]\n"p/*" = "[S(0), R]"\n', "up/linear"),
        ('[pin]\n"p/*" = "[S(0), R]"\n', "A pattern matches a whole name"),
        ('[pin]\n"up.weight" = "[S(5), R]"\n', "mine.toml:2: tensor 'up.weight' on x: S(5))"),
        *(
            (
                f'[{kind}]\n"up.weight" = "[*, *]"\n',
                "mine.toml:2: Constraint 'up.weight': [*, *] constrains nothing",
            )
            for kind in ("pin", "forbid", "prefer")
        ),
        ('[pin]\n"up.weight" = { z = "R" }\n', "no axis 'z'"),
    ],
)
def test_mistakes_are_told(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(autopar.AutoparError) as found:
        planned(written(tmp_path, text))
    assert said in str(found.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConstraintError, match="Cannot read the constraints in"):
        planned(tmp_path / "none.toml")


def test_python_says_the_same_as_a_file(tmp_path: Path) -> None:
    tables: Given = {
        "pin": {"stored:up.weight": "[S(0), *]"},
        "forbid": {"stored:head.weight": {"x": "S", "y": "S"}},
        "prefer": {"used:up.weight": {"y": "S(0)"}},
    }
    text = (
        '[pin]\n"stored:up.weight" = "[S(0), *]"\n'
        '[forbid]\n"stored:head.weight" = { x = "S", y = "S" }\n'
        '[prefer]\n"used:up.weight" = { y = "S(0)" }\n'
    )
    assert from_user(tables, MESH) == from_file(written(tmp_path, text), MESH)
    plan = planned(tables)
    assert plan.parameter["up.weight"].stored.local(0, MESH) == S(0)
    assert not plan.parameter["head.weight"].stored.is_split
    assert "not S" in pins(plan)["head.weight"]


def test_python_tables_clash_by_name() -> None:
    tables: Given = {
        "pin": {"stored:up.weight": "[S(0), *]"}, "forbid": {"stored:up.*": {"x": "S(0)"}},
    }  # fmt: skip
    with pytest.raises(ConstraintError) as found:
        planned(tables)
    said = str(found.value)
    assert "[pin]: stored 'up.weight' on x: S(0)" in said
    assert "[forbid]: stored 'up.*' on x: not S(0)" in said


def test_what_is_pinned_propagates() -> None:
    """One operator is pinned by features: the weight that it reads and the operator behind it follow."""
    free, pinned = planned({}), planned({"pin": {"up/linear": {"y": "S(1)"}}})
    for plan, by_features in ((free, False), (pinned, True)):
        weight = plan.parameter["up.weight"].leaf.local(1, MESH)
        gelu = plan.choice["hidden"].outputs[0].local(1, MESH)
        assert (weight == S(0)) == (gelu == S(1)) == by_features


def test_a_pattern_that_means_too_much_is_told() -> None:
    """An operator's pattern means what it reads of its neighbours, too, where it matches their names."""
    with pytest.raises(ConstraintError) as found:
        planned({"*[ru]": {"y": "S(1)"}})
    said = str(found.value)
    assert "on everything that its pattern matches there: what it reads of" in said
    assert "and what it makes. Write a pattern that matches only one of them" in said
