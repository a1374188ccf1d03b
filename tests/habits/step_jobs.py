"""What every rank does in tests of a step's life; each job compares with one process by itself."""

from __future__ import annotations

import copy
import gc
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.errors import InputError

os.environ.setdefault("AUTOPAR_CACHE", tempfile.mkdtemp(prefix="autopar_cache_"))
Batch = dict[str, torch.Tensor]


class Root(nn.Module):
    """Its gradient at zero is not a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs().sqrt()


class Net(nn.Module):
    """Three equal layers; `cut` takes no part in the backward, `idle` none at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.root = Root()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.cut, self.idle = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.root(self.first(x))
        for layer in self.layers:
            x = layer(x).tanh()
        return (x + self.cut(x).detach()).square().mean()


def pair(ranks: int, preset: str | None) -> tuple[nn.Module, Any, Callable[[int], Batch]]:
    """The plain model, the parallel one, and batches by number; number 0 is all zeros."""
    torch.manual_seed(0)
    model = Net().double()

    def batch(number: int) -> Batch:
        torch.manual_seed(number)
        return {"x": torch.randn(8, 8, dtype=torch.float64) * bool(number)}

    return copy.deepcopy(model), autopar.parallelize(model, ranks, batch(1), preset=preset), batch


def same_gradients(plain: nn.Module, parallel: nn.Module) -> None:
    """All of them, None where there is none."""
    want = {name: p.grad for name, p in plain.named_parameters()}
    scale = max(float(g.abs().max()) for g in want.values() if g is not None)
    for name, parameter in parallel.named_parameters():
        gradient, wanted = parameter.grad, want[name]
        if wanted is None or gradient is None:
            assert gradient is None and wanted is None, f"{name}: {gradient} instead of {wanted}"
            continue
        assert isinstance(gradient, DTensor)
        difference = float((gradient.full_tensor() - wanted).abs().max())
        assert difference <= 1e-9 * scale, f"{name}: {difference} of {scale}"


def message_of(call: Callable[[], Any]) -> str:
    """Of the `InputError` that it has to raise."""
    try:
        call()
    except InputError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def fail(parallel: Any, batch: Batch) -> None:
    """A backward that raises midway, caught as loops do that skip a batch."""
    try:
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            parallel(**batch).backward()
    except RuntimeError as error:
        assert "nan" in str(error)
        return
    raise AssertionError("the backward did not fail")


def habit(ranks: int, preset: str | None, name: str) -> None:
    """One of the functions below, in one process and here."""
    plain, parallel, batch = pair(ranks, preset)
    HABITS[name](plain, parallel, batch)


def caught_error(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """Before the first step, and between two."""
    for number in (1, 2):
        fail(parallel, batch(0))
        assert all(p.grad is None for p in parallel.parameters())
        plain.zero_grad()
        parallel.zero_grad()
        for model in (plain, parallel):
            model(**batch(number)).backward()
        same_gradients(plain, parallel)
        parallel.zero_grad()


def step_under_no_sync(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """A step after backwards that were all under no_sync: refused if parts are missing, else equal."""
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(**batch(1)).backward()
    with parallel.no_sync():
        parallel(**batch(1)).backward()
    gradient = parallel.first.weight.grad
    assert isinstance(gradient, DTensor)
    if (gradient.full_tensor() - plain.first.weight.grad).abs().max() > 1e-9:
        before = parallel.full_state_dict()
        assert "outside no_sync()" in message_of(ours.step)
        assert "outside no_sync()" in message_of(lambda: parallel.clip_grad_norm_(1.0))
        assert all(torch.equal(x, before[n]) for n, x in parallel.full_state_dict().items())
        parallel(**batch(2)).backward()  # adds the other ranks' parts of both
        plain(**batch(2)).backward()
    ours.step()
    theirs.step()
    for name, value in parallel.full_state_dict().items():
        assert (value - plain.state_dict()[name]).abs().max() < 1e-9


def zeroed_under_no_sync(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """A step after such gradients were zeroed, in place or not, moves nothing."""
    for set_to_none in (False, True):
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        with parallel.no_sync():
            parallel(**batch(1)).backward()
        optimizer.zero_grad(set_to_none=set_to_none)
        optimizer.step()
    for name, value in parallel.full_state_dict().items():
        assert torch.equal(value, plain.state_dict()[name])


def caught_error_zeros_kept(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """Gradients are zeroed in place, so a failed backward had something to add to."""
    ours = torch.optim.SGD(parallel.parameters(), lr=0.0)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.0)
    for number in (1, 2):
        for model in (plain, parallel):
            model(**batch(3)).backward()
        ours.zero_grad(set_to_none=False)
        theirs.zero_grad(set_to_none=False)
        fail(parallel, batch(0))
        ours.zero_grad(set_to_none=False)
        for model in (plain, parallel):
            model(**batch(number)).backward()
        same_gradients(plain, parallel)


def error_in_accumulation(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """What was summed before is lost: nothing steps on it, or adds to it, until it is cleared."""
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for synchronises in (True, False):
        if synchronises:
            parallel(**batch(1)).backward()
        else:
            with parallel.no_sync():
                parallel(**batch(1)).backward()
        fail(parallel, batch(0))
        assert "zero_grad()" in message_of(ours.step)
        assert "zero_grad()" in message_of(lambda: parallel(**batch(2)))
        assert "zero_grad()" in message_of(lambda: parallel.clip_grad_norm_(1.0))
        ours.zero_grad()
        plain.zero_grad()
        for model in (plain, parallel):
            model(**batch(2)).backward()
        same_gradients(plain, parallel)
        parallel.zero_grad()


def error_in_forward(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """Gradients of before stay, and are added to."""
    for model in (plain, parallel):
        model(**batch(1)).backward()
    assert "no 'x'" in message_of(lambda: parallel(y=batch(1)["x"]))
    for model in (plain, parallel):
        model(**batch(2)).backward()
    same_gradients(plain, parallel)


def weighted_twice(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """A sum of two losses, a weighted one, and one loss backward twice."""
    for model in (plain, parallel):
        (0.3 * model(**batch(1)) + 2 * model(**batch(2))).backward()
        loss = model(**batch(3))
        loss.backward(retain_graph=True)
        loss.backward()
    same_gradients(plain, parallel)


def penalty(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """On weights, beside the loss, made before and behind the forward."""
    for before in (False, True):
        for model in (plain, parallel):
            model.zero_grad()
            first = sum(p.pow(2).sum() for p in model.parameters()) if before else 0
            loss = model(**batch(1))
            other = first if before else sum(p.pow(2).sum() for p in model.parameters())
            (loss + 1e-3 * other).backward()
        same_gradients(plain, parallel)


def hygiene(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """Gradients scaled, noised and cleared between backwards."""
    for model in (plain, parallel):
        model(**batch(1)).backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(0.5).add_(0.25)
        model(**batch(2)).backward()
    same_gradients(plain, parallel)
    for model in (plain, parallel):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        model(**batch(3)).backward()
    same_gradients(plain, parallel)


def sums_not_synchronised(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """Cleared, zeroed: dropped. Scaled: refused."""
    with parallel.no_sync():
        parallel(**batch(1)).backward()
        loss = parallel(**batch(2))
        for p in parallel.parameters():
            p.grad = None
        loss.backward()
    parallel(**batch(3)).backward()
    for number in (2, 3):
        plain(**batch(number)).backward()
    same_gradients(plain, parallel)
    parallel.zero_grad()
    plain.zero_grad()
    with parallel.no_sync():
        parallel(**batch(1)).backward()
    for p in parallel.parameters():
        if p.grad is not None:
            p.grad.mul_(0.5)
    assert "no_sync" in message_of(lambda: parallel(**batch(2)))
    parallel.zero_grad()
    for model in (plain, parallel):
        model(**batch(2)).backward()
    same_gradients(plain, parallel)


def refusals(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """Asked for what a step does not give; the next step is right."""
    x = batch(1)["x"].requires_grad_()
    assert "'x' requires a gradient" in message_of(lambda: parallel(x=x))
    assert "'x' requires a gradient" in message_of(lambda: parallel(x=2 * x))
    loss, weights = parallel(**batch(1)), list(parallel.parameters())
    assert "read p.grad" in message_of(
        lambda: torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
    )
    assert "read p.grad" in message_of(lambda: loss.backward(inputs=weights, retain_graph=True))
    assert "create_graph" in message_of(lambda: loss.backward(create_graph=True))
    parallel.first.weight.requires_grad_(False)
    assert "'first.weight' no longer requires" in message_of(lambda: parallel(**batch(1)))
    parallel.first.weight.requires_grad_(True)
    hook = parallel.first.weight.register_hook(lambda g: 2 * g)
    assert "gradient hook" in message_of(lambda: parallel(**batch(1)))
    hook.remove()
    for model in (plain, parallel):
        model(**batch(1)).backward()
    same_gradients(plain, parallel)


def forwards_alone(plain: Any, parallel: Any, batch: Callable[[int], Batch]) -> None:
    """Their losses dropped, they leave nothing; a collective's thread lets go of its own a bit later."""
    counts = []
    for _ in range(3):
        for number in range(1, 6):
            parallel(**batch(number))
        counts.append(_settled(lambda: not counts or _tensors() == counts[-1]))
    assert counts[1] == counts[2], counts


def _tensors() -> int:
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


def _settled(done: Callable[[], bool], patience_s: float = 2.0) -> int:
    """How many tensors there are once `done` holds, or after a while."""
    until = time.monotonic() + patience_s
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
    return _tensors()


HABITS: dict[str, Callable[[Any, Any, Callable[[int], Batch]], None]] = {
    each.__name__: each
    for each in (
        caught_error, caught_error_zeros_kept, error_in_accumulation, error_in_forward,
        weighted_twice, penalty, hygiene, sums_not_synchronised, refusals, forwards_alone,
        step_under_no_sync, zeroed_under_no_sync,
    )
}  # fmt: skip


def stages_refuse(schedule: str) -> None:
    """What a pipeline's step does not give either; a failed step ends it."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(8, 8)}
    parallel = autopar.parallelize(
        Net(), 2, batch, pipeline=autopar.Pipeline(2, schedule=schedule, microbatches=2)
    )
    asking = {"x": batch["x"].clone().requires_grad_()}
    assert "'x' requires a gradient" in message_of(lambda: parallel.train_step(**asking))
    mine = [p for p in parallel.parameters() if p.numel()]
    mine[0].requires_grad_(not mine[0].requires_grad)
    assert "parallelize it again" in message_of(lambda: parallel.train_step(**batch))
    mine[0].requires_grad_(not mine[0].requires_grad)
    parallel.train_step(**batch)
