"""One of each thing that people add: a file or a record, and no file of autopar's changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autopar
from autopar.errors import InputError, ScheduleError
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, R
from autopar.pipeline.schedules import SCHEDULES, Schedule
from autopar.pipeline.schedules.gpipe import gpipe
from autopar.pipeline.schedules.registry import Named
from autopar.request import presets
from autopar.rules import user
from autopar.solver.problem import Assignment, Factor, Limits, Problem, Variable
from autopar.solver.registry import SOLVERS, solve_with
from autopar.utils.registry import Registry


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


BATCH = {"input": torch.ones(8, 8)}
GIVEN = {"loss": torch.sum, "hardware": "cpu"}


def test_a_name_is_given_once_and_the_nearest_is_told() -> None:
    registry = Registry("schedule", {"gpipe": 1})
    assert registry.add("mine", 2) == 2 and list(registry) == ["gpipe", "mine"]
    assert registry.add("mine", 4) == 4 == registry["mine"], "a notebook's cell runs again"
    with pytest.raises(InputError, match="autopar has a schedule called 'gpipe'"):
        registry.add("gpipe", 3)
    with pytest.raises(
        InputError, match=r"No schedule is called 'gpip'.*mean 'gpipe'.*gpipe, mine"
    ):
        registry.named("gpip")


def test_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned with like another."""
    monkeypatch.setattr(SCHEDULES, "_known", dict(SCHEDULES))

    def mine(workers: int, microbatches: int) -> Schedule:
        return replace(gpipe(workers, microbatches), name="mine")

    SCHEDULES.add("mine", Named(mine))
    made = autopar.plan(model(), 2, BATCH, pipeline=autopar.Pipeline(2, "mine", 4), **GIVEN)
    assert made.schedule.name == "mine" and made.microbatches == 4
    same = autopar.plan(model(), 2, BATCH, pipeline=autopar.Pipeline(2, "gpipe", 4), **GIVEN)
    assert made.prediction == same.prediction


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "1f1b"}, "was asked for name mine and returned name 1f1b"),
        ({"microbatches": 2}, "was asked for microbatches 4 and returned microbatches 2"),
        ({"stages": 3}, "was asked for stages 2 and returned stages 3"),
        ({"workers": ()}, "was asked for workers 2 and returned workers 0"),
    ],
)
def test_a_schedule_that_is_another_one(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(SCHEDULES, "_known", dict(SCHEDULES))
    SCHEDULES.add("mine", Named(lambda *sizes: replace(gpipe(*sizes), **{"name": "mine"} | change)))
    with pytest.raises(ScheduleError, match=said):
        autopar.plan(model(), 2, BATCH, pipeline=autopar.Pipeline(2, "mine", 4), **GIVEN)


def test_what_is_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCHEDULES, "_known", dict(SCHEDULES))
    with pytest.raises(InputError, match=r"'mine' has to be a `Named`, such as Named\(gpipe\)"):
        SCHEDULES.add("mine", gpipe)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'mine' needs a function \(workers, microbatches\)"):
        SCHEDULES.add("mine", Named(3))  # type: ignore[arg-type]
    SCHEDULES.add("mine", Named(lambda workers, microbatches: None))  # type: ignore[arg-type,return-value]
    with pytest.raises(ScheduleError, match="of the schedule mine returns a NoneType, not a Sche"):
        autopar.plan(model(), 2, BATCH, pipeline=autopar.Pipeline(2, "mine", 4), **GIVEN)


def test_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SOLVERS, "_known", dict(SOLVERS))

    def first(problem: Problem, limits: Limits = None) -> Assignment:
        states = tuple(0 for _ in problem.variables)
        return Assignment(states, problem.seconds(states), problem.nbytes(states), 0.0, "none")

    SOLVERS.add("first", first)
    variables = tuple(Variable(n, np.array([2.0, 1.0]), np.array([1.0, 1.0])) for n in "ab")
    problem = Problem(variables, (Factor((0, 1), np.array([[0.0, 9.0], [9.0, 0.0]])),))
    found = {name: solve_with(name, problem).seconds for name in SOLVERS}
    assert found == {"elimination": 2.0, "ilp": 2.0, "brute-force": 2.0, "first": 4.0}


PRESET = """
# Two-dimensional weights of the first axis alone.
single = "data"
[data]
stored."*.weight" = "S, else I"
tensor."*" = "S(batch), else R | P | N"
[tensor]
tensor."*" = "I | R | P | N"
"""


def test_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PRESET)
    assert presets.known(str(file)) == str(file) and presets.regathers(str(file)) is None
    made = autopar.plan(model(), 2, BATCH, preset=str(file), **GIVEN)
    assert made.preset == str(file)
    assert all(p.stored.is_split == p.name.endswith("weight") for p in made.parameters)


TABLES = '[data]\nstored."*" = "I"\n[tensor]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("single = 3\n" + TABLES, r'`single` has to be "data" or "tensor", .* not 3 \('),
        (TABLES, r'`single` has to be "data" or "tensor", .* not None \('),
        ('single = "data"\n[data]\n', r"it has no table \[tensor\]; .* one of context_parallel"),
        ('single = "data"\n[data]\nstored = 3\n[tensor]\n', "data.stored is not a table of pat"),
        ('single = "data"\n[data]\nstored."*" = 3\n[tensor]\n', "data.stored is not a table of"),
        (
            'single = "data"\nregathers = true\n' + TABLES,
            "the key 'regathers' is unknown, known ar",
        ),
        ('single = "data"\nregather = "yes"\n' + TABLES, "`regather` has to be true or false, not"),
        (
            'single = "data"\n' + TABLES.replace("stored", "storde"),
            r"the subject in \[data\] 'storde' is unknown, known are stored, leaf, used, tensor",
        ),
        (
            'single = "data"\n' + TABLES.replace('"I"', '"S, els I"'),
            r"""mine.toml, data.stored."\*": Cannot read the type 'S, els I'""",
        ),
        ("single = ", "is not a TOML file"),
    ],
)
def test_presets_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        autopar.plan(model(), 2, BATCH, preset=str(tmp_path / "mine.toml"), **GIVEN)


def test_a_preset_of_others_tables(tmp_path: Path) -> None:
    """In place of a table stands the name of the preset that has it."""
    mesh = Mesh.of(2, 2)
    file = tmp_path / "mine.toml"
    file.write_text('single = "tensor"\ndata = "fsdp"\ntensor = "megatron"\n')
    mine, ours = (presets.load(name, mesh) for name in (str(file), "fsdp_megatron"))
    assert mine == ours and presets.regathers(str(file)) is True
    file.write_text('single = "tensor"\ndata = "fsdq"\ntensor = "megatron"\n')
    with pytest.raises(
        InputError, match=r"'fsdq' is not a table \[data\]; .* one of context_parallel"
    ):
        presets.load(str(file), mesh)


def test_a_preset_for_each_axis() -> None:
    mesh = Mesh.of(2, 2, 2)
    found = presets.load("ddp+fsdp+megatron", mesh)
    for place, name in enumerate(("ddp", "fsdp", "megatron")):
        axis = mesh.names[place]
        alone = [c for c in presets.load(name, mesh) if c.axis == axis]
        assert [c for c in found if c.axis == axis] == alone
    assert (
        presets.regathers("ddp+fsdp+megatron") is True and presets.regathers("ddp+megatron") is None
    )
    assert presets.known("ddp+fsdp") == "ddp+fsdp"
    with pytest.raises(InputError, match=r"is for 2 axes; the mesh \(x=2\) has 1"):
        presets.load("ddp+fsdp", Mesh.of(2))
    with pytest.raises(InputError, match=r"no preset 'fsdq'\. Did you mean 'fsdp'"):
        presets.known("ddp+fsdq")


def test_megatron_with_its_distributed_optimizer() -> None:
    """Weights and optimizer state rest sharded on the data axis; the step has them whole there."""
    made = autopar.plan(model(), (2, 2), BATCH, preset="zero2_megatron", **GIVEN)
    for p in made.parameters:
        if p.name.endswith("weight"):
            assert p.stored.types[0] != I and p.leaf.types[0] == R
            assert p.stored[1] == p.leaf[1] and str(p.leaf[1]).startswith("S")


def test_a_preset_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Cannot read the preset .*none\.toml: No such file"):
        autopar.plan(model(), 2, BATCH, preset=str(tmp_path / "none.toml"), **GIVEN)


@pytest.mark.thorough
def test_a_device(tmp_path: Path) -> None:
    """A profile written after the pattern of another."""
    written = subprocess.run(
        [sys.executable, "-m", "autopar", "hardware", "h100"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    file = tmp_path / "mine.toml"
    file.write_text(written.replace('name = "h100"', 'name = "mine"'))
    made = autopar.plan(model(), 2, BATCH, loss=torch.sum, hardware=str(file))
    assert made.hardware == "mine"


def test_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proved when it is first used."""
    monkeypatch.setattr(user, "_RULES", {})

    @torch.library.custom_op("autopar_registries::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, grad: 2 * grad)
    autopar.rule("autopar_registries::twice", "b* -> b*", linear=[{0}])

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 8)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return twice(self.up(input)).sum()

    made = autopar.plan(Twice(), 2, BATCH, preset="ddp", hardware="cpu")
    (choice,) = (c for c in made.choices if c.node.startswith("twice"))
    assert choice.sharding.outputs[0].is_split
