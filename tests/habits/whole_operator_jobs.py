"""Runs in pool workers: operators on parameters that torch's DTensor lacks, refuses or gets wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import autopar
from autopar.errors import InputError
from tests.distributed.optimizer_jobs import LIMIT, models

Operation = Callable[[Any], Any]


def drawn(p: torch.Tensor) -> torch.Tensor:
    """Values that differ between ranks in all but the first."""
    rank = p.device_mesh.get_local_rank() if hasattr(p, "device_mesh") else 0
    return torch.full(p.shape, 0.5 + rank, dtype=p.dtype)


def numbers(p: torch.Tensor) -> torch.Tensor:
    """A plain tensor like the whole parameter, equal on all ranks."""
    return torch.linspace(-1, 1, p.numel(), dtype=p.dtype).view(p.shape)


def row(p: nn.Parameter) -> None:
    p[..., 0] = 2.0


def masked(p: nn.Parameter) -> None:
    p[p > 0] = 0.0


def seeded(draw: Operation) -> Operation:
    """Draw with generators that differ between ranks in all but the first."""

    def run(p: torch.Tensor) -> Any:
        torch.manual_seed(p.device_mesh.get_local_rank() if hasattr(p, "device_mesh") else 0)
        return draw(p)

    return run


def matrix(operation: Operation) -> Operation:
    return lambda p: operation(p) if p.dim() > 1 else p


def first(p: torch.Tensor) -> torch.Tensor:
    return torch.zeros((1, *p.shape[1:]), dtype=torch.long)


OPERATIONS: dict[str, Operation] = {
    "copy of plain values": lambda p: p.copy_(drawn(p)),
    "copy of a number": lambda p: p.copy_(torch.tensor(3.0)),
    "renorm": lambda p: p.unsqueeze(0).renorm(2, 1, 0.5) if p.dim() > 1 else p,
    "renorm in place": matrix(lambda p: p.renorm_(2, 0, 0.5)),
    "unique": lambda p: p.unique(),
    "nonzero": lambda p: p.nonzero().sum(),
    "allclose": lambda p: torch.tensor(torch.allclose(p, p + 1e-12)),
    "flatten": lambda p: p.flatten().square(),
    "view": lambda p: p.view(-1).norm(),
    "vector": lambda p: nn.utils.parameters_to_vector([p]),
    "median": lambda p: p.median(),
    "addition of plain values": lambda p: p.add_(drawn(p)),
    "plain average": lambda p: numbers(p).mul_(0.9).add_(p, alpha=0.1),
    "plain average of a list": lambda p: torch._foreach_lerp([numbers(p)], [p], 0.1)[0],
    "plain copy": lambda p: numbers(p).copy_(p),
    "where": lambda p: torch.where(numbers(p) > 0, p, 0.0),
    "plain mask": lambda p: p.masked_fill_(numbers(p) > 0, 0.0),
    "own mask": masked,
    "chosen": lambda p: p[p > 0],
    "rows": lambda p: p[[0, 2]],
    "addition to rows": lambda p: p.index_add_(0, first(p).flatten()[:1] + 1, first(p) + p.new_ones(())),
    "scatter in place": lambda p: p.scatter_(0, first(p), 3.0),
    "fill of rows": lambda p: p.index_fill_(0, torch.tensor([1]), 3.0),
    "out": lambda p: torch.cumsum(p, 0, out=p),
    "identity": matrix(nn.init.eye_),
    "norm as text": lambda p: torch.tensor(float(f"{whole(p).norm():.9f}")),
    "array": lambda p: torch.from_numpy(p.detach().numpy().copy()),
    "list": lambda p: torch.tensor(p.tolist(), dtype=p.dtype),
    "singular values": matrix(torch.linalg.svdvals),
    "quantile": lambda p: torch.quantile(p, 0.3) + torch.zeros(()),
    "mean loss": lambda p: nn.functional.mse_loss(p, p * 2),
    "sum over no dims": lambda p: p.sum([], keepdim=True),
    "unsqueezed in place": lambda p: p.detach().clone().unsqueeze_(0) * 2,
    "entries": lambda p: torch.stack([each.sum() for each in p]),
    "lower triangle": matrix(lambda p: p.tril_()),
    "histogram": lambda p: torch.histc(p, 5, -1, 1),
}  # fmt: skip
DRAWS: dict[str, Operation] = {
    "orthogonal": matrix(seeded(nn.init.orthogonal_)),
    "bernoulli": seeded(lambda p: torch.bernoulli(p.sigmoid())),
    "integers": seeded(lambda p: torch.randint_like(p, 5)),
    "noise": seeded(lambda p: torch.normal(p, 1.0)),
}
"""Refused for parameters of stages."""
LOSSES: dict[str, Operation] = {
    "to plain values": lambda p: nn.functional.mse_loss(p, numbers(p)),
    "huber": lambda p: nn.functional.huber_loss(p, p.detach() * 2),
    "largest": lambda p: p.norm(torch.inf),
    "rows": lambda p: p[[0, 2]].square().sum(),
    "gather": lambda p: p.gather(0, first(p)).square().sum(),
    "top": lambda p: p.abs().flatten().topk(3).values.sum(),
    "nuclear": lambda p: torch.linalg.matrix_norm(p, "nuc") if p.dim() > 1 else p.sum(),
    "windows": lambda p: p.unfold(0, 2, 1).square().sum(),
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
    own, run = dict(parallel.named_parameters()), {**OPERATIONS, **DRAWS}[name]
    for key, plain in single.named_parameters():
        if key in own:
            layout = own[key].placements
            want, got = (run(p) for p in (plain, own[key]))
            if want is not None:
                assert want.shape == got.shape, key
                assert torch.allclose(whole(got), want, rtol=0, atol=LIMIT), key
            assert torch.allclose(whole(own[key]), plain, rtol=0, atol=LIMIT), key
            assert own[key].placements == layout, key


def penalty(name: str, options: dict[str, Any]) -> None:
    """Gradients of a loss on weights are those of one process."""
    single, parallel = models(2, options)
    for key, plain in single.named_parameters():
        if plain.requires_grad:
            own = parallel.get_parameter(key)
            for p in (plain, own):
                LOSSES[name](p).backward()
            assert torch.allclose(whole(own.grad), plain.grad, rtol=0, atol=LIMIT), key


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


@torch.no_grad()
def refused() -> None:
    """What would not reach the parameter is refused, and leaves it as it was."""
    _, parallel = models(2, {"preset": "fsdp"})
    parameter = parallel.get_parameter("layers.0.weight")
    before = copy.deepcopy(parallel.full_state_dict())
    plain = numbers(parameter)
    for call, words in (
        (lambda: nn.utils.vector_to_parameters(torch.ones(655), parallel.parameters()), "copy_"),
        (lambda: setattr(parameter, "data", plain), r"layers.0.weight.data was assigned"),
        (lambda: parameter.squeeze_(), "returns a new tensor"),
        (lambda: parameter.sparse_mask(plain.to_sparse()), "to_dense"),
        (lambda: parameter.share_memory_(), "full_tensor"),
        (lambda: torch.distributed.all_reduce(parameter), "Leave it out"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    norm = parameter.norm()
    assert f"{norm:.6f}" == f"{norm.full_tensor():.6f}"
    array = parameter.detach().numpy()
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 0
    assert numpy.array_equal(array, before["layers.0.weight"].numpy())
    after = parallel.full_state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def beside_a_pipeline_of_one_stage() -> None:
    """A pipeline whose one stage has all ranks has whole numbers, and so has a model on its mesh."""
    for layout in ({"pipeline": autopar.Pipeline([(2,)])}, {"preset": "fsdp"}):
        single, parallel = models(2, layout)
        name, parameter = next(parallel.named_parameters())
        norm, want = float(parameter.norm()), float(single.get_parameter(name).norm())
        assert abs(norm - want) < LIMIT, name
