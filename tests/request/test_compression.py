"""The `compression=` option: what it takes, what plans say of it, and where it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.api import plan_frontier
from autopar.compile.planned import captured_for
from autopar.errors import InputError
from autopar.plans.plan import Plan
from autopar.request.compression import Compression
from autopar.request.options import Options
from autopar.sharding.asked import posed_for
from autopar.verify import certify
from cost_models.hardware import load


class Net(nn.Module):
    """Two layers, of which the weights are large enough to travel compressed."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).square().mean()


BATCH = {"x": torch.zeros(8, 64)}


def planned(compression: Any, preset: str | None = "ddp", shape: Any = (2,), **more: Any) -> Plan:
    more = {"hardware": "cpu"} | more
    made = autopar.plan(Net(), shape, BATCH, preset=preset, compression=compression, **more)
    assert isinstance(made, Plan)
    return made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("int8", Compression("int8")),
        ("fp8", Compression("fp8")),
        ("powersgd", Compression("powersgd", rank=4)),
        ("powersgd:8", Compression("powersgd", rank=8)),
        ("powersgd:2@node", Compression("powersgd", rank=2, axes=("node",))),
        ("int8@x,y", Compression("int8", axes=("x", "y"))),
    ],
)
def test_texts(text: str, made: Compression) -> None:
    assert Compression.of(text) == made
    assert Compression.of(made) is made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("zip", "compression='zip' is unknown: pass 'powersgd', 'int8', 'fp8'"),
        ("powersgd:", "is unknown"),
        ("int8:4", "int8 has no rank; pass compression='int8'"),
        (8, "compression=8 is unknown"),
        (True, "compression=True is unknown"),
    ],
)
def test_other_values_are_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        Options.of(compression=given)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rank": 0}, "at least 1"),
        ({"rank": 2.0}, "a whole number"),
        ({"after": -1}, "at least 0"),
        ({"method": "gzip"}, "is unknown"),
    ],
)
def test_other_fields_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Compression(**fields)


def test_a_plan_says_that_its_step_is_not_exact() -> None:
    exact, plan = planned(None), planned("powersgd:2")
    assert plan.digest != exact.digest
    assert "powersgd of rank 2: a step is not exact" in str(plan)
    assert "not exact" not in str(exact)
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.compression == Compression("powersgd", rank=2)
    changed = exact.diff(plan)
    assert "compression" in str(changed)


def test_the_source_says_so() -> None:
    made = autopar.compile_model(Net(), (2,), BATCH, preset="ddp", compression="int8")
    assert "gradients travel compressed by int8: a step is not exact" in made.source


@pytest.mark.parametrize("compression", ["powersgd:2", "int8", "fp8@x"])
@pytest.mark.parametrize("preset", ["ddp", "zero2"])
def test_plans_are_verified(compression: str, preset: str) -> None:
    plan = planned(compression, preset)
    posed = posed_for(plan, captured_for(plan, Net(), BATCH, None), load("cpu"))
    checks = certify(plan, posed)
    assert len(checks) > 10
    assert not [check for check in checks if not check.ok]


def test_an_axis_that_the_mesh_lacks() -> None:
    with pytest.raises(InputError, match=r"names mesh axis 'node', but the mesh \(x=2\) has x"):
        planned("int8@node")


@pytest.mark.parametrize("preset", ["fsdp", "megatron"])
def test_nothing_to_compress(preset: str) -> None:
    with pytest.raises(InputError, match=r"compresses nothing.*preset='ddp'"):
        planned("int8", preset)


def test_no_gradient_is_large_enough() -> None:
    small = {"x": torch.zeros(8, 8)}
    with pytest.raises(InputError, match="compresses nothing"):
        autopar.plan(Net(8), (2,), small, preset="ddp", compression="powersgd", hardware="cpu")


def test_nothing_on_a_named_axis() -> None:
    with pytest.raises(InputError, match="compresses nothing over mesh axis 'y'"):
        planned("int8@y", "fsdp_megatron", (2, 2))


class Narrow(nn.Module):
    """Two layers, of which only the first is compressed by wide factors."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1024, 1024), nn.Linear(1024, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).square().mean()


def test_a_plan_that_fits_but_compresses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest plan replicates the first weight; what fits into the device's memory shards it."""
    own = load("cpu")
    slow = replace(own, intra_host=replace(own.intra_host, bytes_per_s=2.5e7, fits=()))

    def plan() -> Plan:
        batch = {"x": torch.zeros(4096, 1024)}
        made = autopar.plan(Narrow(), (2,), batch, compression="powersgd:16", hardware=slow)
        assert isinstance(made, Plan)
        return made

    most = plan().estimate.memory_nbytes
    monkeypatch.setattr("autopar.compile.compiler.device_memory", lambda *_: 0.9 * most)
    with pytest.raises(InputError, match="compresses nothing"):
        plan()


def test_plans_of_a_frontier_that_compress_nothing() -> None:
    with pytest.raises(InputError, match="compresses nothing"):
        plan_frontier(Net(), (2,), BATCH, compression="int8", hardware="cpu")


def test_one_device_sends_nothing() -> None:
    assert planned("int8", None, (1,)).compression == Compression("int8")


def test_pipelines_refuse_it() -> None:
    with pytest.raises(InputError, match=r"compression=.*not available for pipelines"):
        autopar.plan(Net(), 2, BATCH, pipeline=2, compression="int8", hardware="cpu")


def test_it_is_priced() -> None:
    """Two hosts: the wire takes a quarter of the time with bytes, less with thin factors."""
    wide, batch = Net(2048), {"x": torch.zeros(16, 2048)}

    def plan(compression: str | None) -> Plan:
        made = autopar.plan(
            wide, (2, 8), batch, preset="ddp", compression=compression, hardware="v100"
        )
        assert isinstance(made, Plan)
        return made

    plans = [plan(compression) for compression in (None, "int8@x", "powersgd@x")]
    exact, small, least = (
        sum(f.seconds for f in p.estimate.flows if f.axis == "x" and f.scope == "step")
        for p in plans
    )
    assert least < small / 2 < exact / 4
    assert [p.estimate.step_s for p in plans] == sorted(
        (p.estimate.step_s for p in plans), reverse=True
    )
    assert [p.objective_s for p in plans] == sorted((p.objective_s for p in plans), reverse=True)


def test_memory_has_what_is_left_out() -> None:
    exact, plan = planned(None).estimate, planned("int8").estimate
    weights = 2 * 64 * 64 * 4
    assert plan.optimizer_nbytes - exact.optimizer_nbytes == weights
