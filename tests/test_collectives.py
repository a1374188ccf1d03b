"""A collective that people add: one record, and no file of autopar's changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import autopar
from autopar import runtime
from autopar.cost.prices import Prices
from autopar.cost.routes import Routes
from autopar.errors import InputError, PlanError
from autopar.ir.collectives import COLLECTIVES, Collective
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, P, R, Sharding, Type
from autopar.memory.messages import _Messages
from autopar.plans.decisions import Conversion
from autopar.plans.plan import Plan
from autopar.profile import run_beside
from autopar.render.text import show_operators, to_text
from autopar.runtime._torch import fake_world
from autopar.runtime.axes import Axis
from autopar.runtime.convert import _RUN, step
from autopar.sharding.asked import posed_for
from autopar.utils.identifiers import FUNCTIONS
from autopar.verify import certify
from autopar.verify.witness import witness
from cost_models.exchanges import EXCHANGES
from cost_models.hardware import load
from tests import parity
from tests.live import LiveBytes
from tests.pool import Pool

COLLECTIVE = """
from autopar.ir.collectives import COLLECTIVES, Collective
from autopar.runtime import S, kernels

def one_shot(x, axis, source, target):
    (every,) = kernels.all_gather([x.unsqueeze(0)], [S(0)], axis)
    return every.sum(0)

def sends(nbytes, ranks):
    return [("all_gather", ranks * nbytes)]

COLLECTIVES.add("one_shot", Collective("P -> R | I | N", sends, one_shot))
"""
"""An all-reduce of half as many messages as a ring, and more bytes."""
CPU = load("cpu")


def small_plan() -> Plan:
    """Two layers whose tensor is summed over ranks in between."""
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    batch = {"input": torch.ones(8, 8)}
    return autopar.plan(layers, 2, batch, loss=torch.sum, hardware="cpu", preset="megatron")


@contextmanager
def added(file: str | Path) -> Iterator[None]:
    """With the collectives of this file, as if it were imported."""
    spec = spec_from_file_location("mine", file)
    assert spec is not None and spec.loader is not None
    sys.modules["mine"] = module = module_from_spec(spec)
    with mock.patch.object(COLLECTIVES, "_known", dict(COLLECTIVES)), mock.patch.dict(EXCHANGES):
        spec.loader.exec_module(module)
        yield
    del sys.modules["mine"]


def trained(file: str, work: parity.Work) -> None:
    """On every rank: equal to one process, with the bytes and calls of the plan; compiled, too."""
    with added(file):
        parity.check_all([work])
        parallel, batch = parity.parallel_of(work), parity.reference(work.name).inputs
        beside = run_beside(parallel, batch, parity.sgd(parallel, 0.0), 1)
        assert {flow.collective for flow in beside.flows} >= {"all_gather"}
        assert all(flow.predicted_calls == flow.measured_calls > 0 for flow in beside.flows)
        assert any(line.place.endswith(" one_shot x") for line in beside.lines)
        eager = parallel(**batch).detach()
        parallel.compile(fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(parallel(**batch).detach(), eager)


@pytest.mark.thorough
def test_a_collective(tmp_path: Path, pool: Pool) -> None:
    """Priced, chosen, emitted by its name, run, counted, traced, shown and verified like others."""
    file = tmp_path / "mine.py"
    file.write_text(COLLECTIVE)
    graph = parity.reference("mlp").graph
    before = parity.preset_work("mlp", (2,), "megatron")
    with added(file):
        work = parity.preset_work("mlp", (2,), "megatron")
        plan = Plan.from_json(work.plan)
        assert all(check.ok for check in certify(plan, posed_for(plan, graph, CPU)))
        verdicts = witness(plan, graph)
        pool.run(2, trained, str(file), work)
    assert "= one_shot(" in work.source and 'I, R, backward="one_shot")' in work.source
    shown = to_text(show_operators(plan, graph))
    assert re.search(r"P -> I +one_shot", shown) and re.search(r"I -> R +one_shot", shown)
    assert plan.estimate.step_s < Plan.from_json(before.plan).estimate.step_s
    mine = [verdict.kind for verdict in verdicts if "= one_shot(" in verdict.statement]
    assert mine and set(mine) == {"agrees"}
    with pytest.raises(PlanError, match=r"no collective 'one_shot' for .* Import the module"):
        plan.check(graph)
    assert parity.preset_work("mlp", (2,), "megatron") == before, "nothing is left of it"


WRONG = {
    "every.sum(0) * 2": "entries that are off by up to",
    "every[axis.rank]": "entries that are off by up to",
    "every.sum(0) if axis.rank == 0 else every.sum(0) * 1.001": "off by up to|on another rank",
    "every.sum(0)[:1]": r"shape \[1, \d+\], not \[",
    "every.sum(0).float()": "torch.float32 on cpu, not torch.float64 on cpu",
}
"""What is returned in place of the sum, and what is said of it."""


def refused_on_every_rank(files: dict[str, str], work: parity.Work) -> list[str]:
    """Return what the first step with each file's collective raises on this rank."""
    said = []
    for file in files:
        with added(file):
            parallel = parity.parallel_of(work)
            with pytest.raises(InputError) as error:
                parallel(**parity.reference(work.name).inputs).backward()
            said.append(str(error.value))
    return said


def test_a_wrong_collective_is_refused_in_the_first_step(tmp_path: Path, pool: Pool) -> None:
    files = {}
    for number, returned in enumerate(WRONG):
        file = tmp_path / f"wrong{number}.py"
        file.write_text(COLLECTIVE.replace("every.sum(0)", returned))
        files[str(file)] = returned
    with added(next(iter(files))):
        work = parity.preset_work("mlp", (2,), "megatron")
    for said in pool.run(2, refused_on_every_rank, files, work):
        for message, expected in zip(said, WRONG.values(), strict=True):
            assert re.search(expected, message), message
            assert "The collective 'one_shot' converts P to I on axis 'x' of 2 ranks" in message


def test_a_collective_that_is_wrong_in_the_backward_alone(tmp_path: Path, pool: Pool) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        COLLECTIVE.replace(
            "return every.sum(0)", "return every.sum(0) * (2 if str(target) == 'I' else 1)"
        ).replace("P -> R | I | N", "P -> R | I")
    )
    with added(file):
        work = parity.preset_work("mlp", (2,), "megatron")
    for (said,) in pool.run(2, refused_on_every_rank, {str(file): ""}, work):
        assert "The collective 'one_shot' converts P to I" in said


def test_a_collective_is_used_where_it_is_cheaper(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COLLECTIVE)
    mesh = Mesh.of(2)
    prices = Prices(mesh, CPU)

    def chosen(source: Type, target: Type, *shape: int, together: float = 0) -> tuple[str, str]:
        tensor, ends = (
            Tensor("x", shape, "float32", True),
            (Sharding((source,)), Sharding((target,))),
        )
        routes = Routes(mesh, prices.step, prices.weight_step)
        (step,) = routes.closure(tensor, ends, together).path(*ends)
        return step.forward, step.backward

    with added(tmp_path / "mine.py"):
        assert chosen(P, R, 8, 64) == ("one_shot", "one_shot")
        assert chosen(P, I, 8, 64) == ("one_shot", "")
        assert chosen(I, R, 8, 64) == ("", "one_shot")
        assert chosen(P, R, 2**17, 64) == ("", ""), "large: the ring sends less"
        assert chosen(P, I) == ("", ""), "a loss is summed beside the backward"
        assert chosen(I, R, 8, 64, together=1.0) == ("", ""), "a weight shares its message"


def test_buffers_of_a_collective_are_those_that_are_counted(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COLLECTIVE)
    tensor, ends = Tensor("x", (8, 8), "float32", True), (Sharding((P,)), Sharding((R,)))
    conversion = Conversion("x", 0, *ends, forward="one_shot", backward="one_shot")
    graph = SimpleNamespace(tensors={"x": tensor}, producer={"x": SimpleNamespace(op="relu")})
    keeps = SimpleNamespace(graph=graph, mesh=Mesh.of(2), precision="as the model")
    with added(tmp_path / "mine.py"), fake_world(2), LiveBytes() as live:
        said = _Messages(keeps).of((conversion,))  # type: ignore[arg-type]
        assert dist.group.WORLD is not None
        x = torch.ones(8, 8)
        live.count([x])
        made = step(x, Axis("x", dist.group.WORLD, 0, 2), P, R, "one_shot")
        assert live.most - x.nbytes - made.nbytes == said.forward_nbytes == said.backward_nbytes


@pytest.mark.parametrize("calls", [1, 2])
def test_a_collective_with_an_exchange_of_its_own(tmp_path: Path, calls: int) -> None:
    """A kernel that does not use torch's collectives is priced by its own messages and bytes."""
    (tmp_path / "mine.py").write_text(
        COLLECTIVE.replace("ranks * nbytes)]", f"nbytes)] * {calls}")
        .replace('"all_gather"', '"one_shot"')
        .replace(
            "import S, kernels", "import S, kernels\nfrom cost_models.exchanges import Exchange"
        )
        .replace("one_shot))", "one_shot, Exchange(lambda n: 0.1, lambda n: n - 1)))")
    )
    with added(tmp_path / "mine.py"):
        (flow,) = (flow for flow in small_plan().estimate.flows if flow.direction == "forward")
        assert (flow.collective, flow.calls, flow.nbytes) == ("one_shot", calls, calls * 8 * 8 * 4)
        prices = Prices(Mesh.of(2), CPU)
        link, late_s = prices.links[0], prices.late(0)
        one_s = 0.1 * link.latency_s + 8 * 8 * 4 / link.bytes_per_s + late_s
        assert flow.seconds == pytest.approx(calls * one_s)


def refused(name: str, record: Collective) -> str:
    with (
        mock.patch.object(COLLECTIVES, "_known", dict(COLLECTIVES)),
        pytest.raises(InputError) as error,
    ):
        COLLECTIVES.add(name, record)
    return str(error.value)


def test_collectives_that_cannot_be_added() -> None:
    right = Collective("P -> R", lambda nbytes, ranks: [("all_reduce", nbytes)], lambda x, *_: x)
    for name in ("one shot", "Module", "torch", "send"):
        assert "needs another name: an identifier" in refused(name, right)
    assert "autopar has a collective called 'all_reduce'" in refused("all_reduce", right)
    free = replace(right, converts="P -> R | S, R -> I")
    assert "conversions that send anything are P -> I, P -> N" in refused("mine", free)
    assert "needs `sends` and `run`" in refused("mine", replace(right, run=None))
    strange = replace(right, sends=lambda nbytes, ranks: [("mine", nbytes)])
    assert "sends 'mine', which has no facts: give its `exchange`" in refused("mine", strange)


@pytest.mark.parametrize(
    "sends",
    [
        lambda nbytes, ranks: [],
        lambda nbytes, ranks: [("all_reduce", -nbytes)],
        lambda nbytes, ranks: [("all_reduce", -nbytes), ("all_reduce", nbytes)],
        lambda nbytes, ranks: [("all_reduce", nbytes / 3)],
        lambda nbytes, ranks: ("all_reduce", nbytes),
        lambda nbytes: [("all_reduce", nbytes)],
    ],
)
def test_collectives_that_cannot_be_priced(sends: Any) -> None:
    said = refused("mine", Collective("P -> R", sends, lambda x, *_: x))
    assert "cannot be priced: `sends` has to return a list of (exchange, bytes)" in said


def test_every_collective_of_autopar_has_facts_and_runs() -> None:
    assert set(runtime.__all__) == FUNCTIONS
    assert all(callable(getattr(runtime, name)) for name in COLLECTIVES)
    moving = {name for name, each in COLLECTIVES.items() if each.sends or each.copies}
    assert set(_RUN) == moving
    assert all(kind in EXCHANGES for c in COLLECTIVES.values() for kind, _ in c.sent(8, 2))
