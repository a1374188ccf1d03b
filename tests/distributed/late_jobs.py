"""What every rank does to see when the loss is summed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

import autopar


class Squares(nn.Module):
    """A layer and its loss; with `scaled`, the loss is computed with once more."""

    def __init__(self, scaled: bool = False) -> None:
        super().__init__()
        self.up, self.scaled = nn.Linear(8, 4), scaled

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        loss = self.up(input).square().mean()
        return loss.exp() if self.scaled else loss


class Late:
    """A sum that nobody waits for at once; whether somebody has."""

    def __init__(self, work: dist.Work) -> None:
        self.work, self.is_waited_for = work, False

    def wait(self) -> None:
        """As the work itself does."""
        self.work.wait()
        self.is_waited_for = True


@contextmanager
def watched() -> Any:
    """The sums of single numbers that nobody waits for at once."""
    late: list[Late] = []
    whole = dist.all_reduce

    def reduced(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        work = whole(tensor, *args, **kwargs)
        if tensor.dim() or not kwargs.get("async_op"):
            return work
        late.append(Late(work))
        return late[-1]

    with patch.object(dist, "all_reduce", reduced):
        yield late


def summed(scaled: bool, sizes: tuple[int, ...]) -> None:
    """In `train_step` nobody waits for the loss before its end; it is the loss of one process."""
    torch.manual_seed(0)
    batch = {"input": torch.randn(16, 8, dtype=torch.float64)}
    model = Squares(scaled).double()
    want = model(**batch)
    want.backward()
    parallel = autopar.parallelize(model, sizes, batch, preset="ddp")
    for microbatches in (1,) if scaled else (1, 4):
        parallel.zero_grad()
        with watched() as late:
            loss = parallel.train_step(microbatches=microbatches, **batch)
        assert len(late) == (0 if scaled else len(sizes) * microbatches)
        assert all(each.is_waited_for for each in late)
        assert torch.allclose(loss, want.detach(), atol=1e-12)
        got = parallel.up.weight.grad.full_tensor()
        assert torch.allclose(got, model.up.weight.grad, atol=1e-12)
    with watched() as late:
        assert torch.allclose(parallel(**batch), want, atol=1e-12)
    assert not late
    read: list[torch.Tensor] = []
    parallel.register_forward_hook(lambda module, args, made: read.append(made.detach().clone()))
    with watched() as late:
        parallel.train_step(**batch)
    assert not late
    assert torch.allclose(read[0], want, atol=1e-12)
