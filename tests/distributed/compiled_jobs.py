"""What every rank does to compare a compiled step with the eager one."""

from __future__ import annotations

import copy
import math
from typing import Any
from unittest import mock

import torch

import autopar
from autopar.ir.blocks import Recompute
from autopar.runtime import recompute as recomputation
from autopar.runtime import regather
from tests import models
from tests.distributed.jobs import losses_of
from tests.mixtures import MIXTURES


def equal(preset: str | None, recompute: Recompute | None, shape: tuple[int, ...]) -> None:
    """The same losses over two steps and on a shorter batch, without a break in any graph.

    Loops that can gather ahead do it eagerly, and not where they are compiled.
    """
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    case = models.double(models.llama(3))
    losses = []
    for compiles in (False, True):
        with mock.patch("autopar.sharding.assemble.WORTH", math.inf):
            parallel = autopar.parallelize(
                case[0], shape, case[1], preset=preset, recompute=recompute, hardware="cpu"
            )
            if compiles:
                counters.clear()
                parallel.compile(fullgraph=True, backend="aot_eager")
            optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
            losses.append(losses_of(parallel, case, 2, optimizer))
            shorter = {key: value[:4] for key, value in case[1].items()}
            losses[-1].append(float(parallel(**shorter).detach()))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=0.0)
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]


def stages(
    schedule: str, preset: str | None, shape: tuple[int, ...], recompute: Recompute | None
) -> None:
    """The same losses and weights of stages after three steps, and of an evaluation."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    model, batch, _ = models.double(models.llama(4))
    found = []
    for compiles in (False, True):
        parallel: Any = autopar.parallelize(
            copy.deepcopy(model), shape, batch, preset=preset, recompute=recompute, hardware="cpu",
            pipeline=autopar.Pipeline(stages=2, schedule=schedule, microbatches=4),
        )  # fmt: skip
        if compiles:
            counters.clear()
            parallel.compile(fullgraph=True, backend="aot_eager")
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            losses.append(parallel.train_step(**batch))
            optimizer.step()
            parallel.zero_grad()
        parallel.eval()
        found.append((torch.stack([*losses, parallel(**batch)]), parallel.full_state_dict()))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]


def saved(gathers_again: bool) -> int:
    """Bytes that a compiled forward under fsdp saves for the backward, without parameters."""
    torch._dynamo.reset()
    model, inputs, _ = models.llama(3)
    parallel: Any = autopar.parallelize(model, (2,), inputs, preset="fsdp", hardware="cpu")
    assert parallel._programs.first.regathers
    patch = mock.patch.object(recomputation, "within_graph", lambda forward, *_: forward)
    with mock.MagicMock() if gathers_again else patch:
        parallel.compile(fullgraph=True, backend="aot_eager")
    own = {slot.leaf.untyped_storage().data_ptr() for slot in parallel._slots}
    found: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    with mock.patch.object(regather, "packed", pack):
        loss = parallel(**inputs)
    loss.backward()
    return sum(found.values())


def gathered_nbytes() -> int:
    """Of the weights of three layers, whole."""
    model, _, _ = models.llama(3)
    return sum(p.nbytes for name, p in model.named_parameters() if "layers" in name and p.dim() > 1)


def mixture(name: str, backend: str) -> None:
    """The same losses over two steps, with tokens that travel to experts."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    case = models.double(MIXTURES[name]())
    constraints = {"used:*.experts.*": "[S(0)]", "*/routed_experts": "[S(0)]"}
    losses = []
    for compiles in (False, True):
        parallel = autopar.parallelize(
            case[0], (2,), case[1], constraints=constraints, hardware="cpu"
        )
        assert "expert_dispatch(" in parallel.source
        if compiles:
            counters.clear()
            parallel.compile(fullgraph=True, backend=backend)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        losses.append(losses_of(parallel, case, 2, optimizer))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=0.0)
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
