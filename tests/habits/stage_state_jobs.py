"""Runs in pool workers: the state and the gradients of a pipeline rank's own stages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import autopar
from autopar.errors import InputError
from tests.habits.outside_jobs import Base, batches, entropy
from tests.parity import close


def built() -> tuple[Any, Any]:
    """Two stages, and the model in one process."""
    torch.manual_seed(0)
    single = Base().double()
    pipeline = autopar.Pipeline(2, "gpipe", 2)
    parallel = autopar.parallelize(
        copy.deepcopy(single), 2, batches(1)[0], loss=entropy, pipeline=pipeline, hardware="cpu"
    )
    return single, parallel


def own_state() -> None:
    """A copy of it comes back, beside a whole one; half of it does not fit."""
    _, parallel = built()
    batch = batches(1)[0]
    kept = copy.deepcopy(parallel.state_dict())
    whole = {name: tensor.clone() for name, tensor in parallel.full_state_dict().items()}
    assert 0 < len(kept) < len(whole)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for given in (kept, whole):
        parallel.train_step(**batch)
        optimizer.step()
        moved = parallel.full_state_dict()
        assert not all(torch.equal(moved[name], whole[name]) for name in whole)
        assert not parallel.load_state_dict(given).missing_keys
        for name, tensor in parallel.full_state_dict().items():
            assert torch.equal(tensor, whole[name]), name
    half = dict(list(kept.items())[1:])
    with pytest.raises(InputError, match="the state dict does not fit the model: it has no"):
        parallel.load_state_dict(half)


def muon() -> None:
    """It divides each gradient by its own norm; norms that somebody else takes are refused."""
    single, parallel = built()
    batch = batches(1)[0]
    loss = entropy(single(batch["x"]), y=batch["y"])
    loss.backward()
    close(parallel.train_step(**batch), loss.detach(), "loss")
    for model in (single, parallel):
        torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.01).step()
    after = parallel.full_state_dict()
    for name, tensor in single.state_dict().items():
        close(after[name], tensor, name)
    gradient = next(p.grad for p in parallel.parameters() if p.grad is not None)
    with pytest.raises(InputError, match="only the gradients of this rank's stages"):
        gradient.norm()


class ByHand(torch.optim.SGD):
    """Clips by a norm that it adds up as Python numbers."""

    def step(self, closure: Any = None) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        total = sum(gradient.norm().item() ** 2 for gradient in gradients) ** 0.5
        for gradient in gradients:
            gradient.mul_(1.0 / max(1.0, total))
        super().step()


def norms_of_others() -> None:
    """Of a closure, and of an optimizer that adds them up, norms are those of one rank's stages."""
    _, parallel = built()
    batch = batches(1)[0]
    matrices = [p for p in parallel.parameters() if p.ndim == 2]

    def closure() -> Any:
        loss = parallel.train_step(**batch)
        sum(p.grad.norm().item() ** 2 for p in matrices)
        return loss

    refused = "only the gradients of this rank's stages"
    with pytest.raises(InputError, match=refused):
        torch.optim.Muon(matrices, lr=0.01).step(closure)
    parallel.zero_grad()
    parallel.train_step(**batch)
    with pytest.raises(InputError, match="may need all parameters at once"):
        ByHand(matrices, lr=0.1).step()


def empty() -> None:
    """An empty batch is refused before the step, so the next one trains."""
    single, parallel = built()
    batch = batches(1)[0]
    parallel.train_step(**batch)
    parallel.zero_grad()
    none = {key: tensor[:0] for key, tensor in batch.items()}
    with pytest.raises(InputError, match="The batch is empty"):
        parallel.train_step(**none)
    with torch.no_grad(), pytest.raises(InputError, match="The batch is empty"):
        parallel(**none)
    want = entropy(single(batch["x"]), y=batch["y"])
    close(parallel.train_step(**batch), want.detach(), "the loss behind it")
