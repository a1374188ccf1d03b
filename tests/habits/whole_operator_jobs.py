"""Runs in pool workers: operators on parameters that torch's DTensor lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autopar.errors import InputError
from tests.distributed.optimizer_jobs import LIMIT, models

Operation = Callable[[nn.Parameter], Any]


def drawn(p: torch.Tensor) -> torch.Tensor:
    """Values that differ between ranks in all but the first."""
    rank = p.device_mesh.get_local_rank() if hasattr(p, "device_mesh") else 0
    return torch.full(p.shape, 0.5 + rank, dtype=p.dtype)


def row(p: nn.Parameter) -> None:
    p[..., 0] = 2.0


OPERATIONS: dict[str, Operation] = {
    "copy of plain values": lambda p: p.copy_(drawn(p)),
    "copy of a number": lambda p: p.copy_(torch.tensor(3.0)),
    "renorm": lambda p: p.unsqueeze(0).renorm(2, 1, 0.5) if p.dim() > 1 else p,
    "renorm in place": lambda p: p.renorm_(2, 0, 0.5) if p.dim() > 1 else p,
    "unique": lambda p: p.unique(),
    "nonzero": lambda p: p.nonzero().sum(),
    "allclose": lambda p: torch.tensor(torch.allclose(p, p + 1e-12)),
    "flatten": lambda p: p.flatten().square(),
    "view": lambda p: p.view(-1).norm(),
    "vector": lambda p: nn.utils.parameters_to_vector([p]),
    "median": lambda p: p.median(),
}
WAYS: tuple[dict[str, Any], ...] = (
    {"preset": "fsdp"}, {"constraints": {"used:layers.1.weight": "[S(0)]"}}, {"pipeline": 2},
)  # fmt: skip


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


@torch.no_grad()
def equal(name: str, options: dict[str, Any]) -> None:
    """Results, and the parameter behind them, are those of one process."""
    single, parallel = models(2, options)
    own = dict(parallel.named_parameters())
    for key, plain in single.named_parameters():
        if key in own:
            want, got = (OPERATIONS[name](p) for p in (plain, own[key]))
            assert torch.allclose(whole(got), want, rtol=0, atol=LIMIT), key
            assert torch.allclose(whole(own[key]), plain, rtol=0, atol=LIMIT), key


@torch.no_grad()
def slices() -> None:
    """An entry along a sharded dim is not written to; along another it is."""
    single, parallel = models(2, {"preset": "fsdp"})
    for key in ("layers.0.weight", "layers.0.bias"):
        parameter = parallel.get_parameter(key)
        before = parameter.full_tensor().clone()
        for value in (1.0, torch.tensor(1.0)):
            with pytest.raises(InputError, match="it would change a copy"):
                parameter[0] = value
        assert torch.equal(parameter.full_tensor(), before)
    for model in (single, parallel):
        row(model.get_parameter("layers.0.weight"))
    weight = parallel.get_parameter("layers.0.weight").full_tensor()
    assert torch.equal(weight, single.get_parameter("layers.0.weight"))


@torch.no_grad()
def gathered() -> None:
    """A view that was gathered is not written to."""
    _, parallel = models(2, WAYS[1])
    parameter = parallel.get_parameter("layers.1.weight")
    with pytest.raises(InputError, match="it would change a copy"):
        parameter.view(-1).mul_(2.0)
