"""One class, tried as a user would: three steps on two ranks under each plan, beside one process."""

from __future__ import annotations

import copy
import multiprocessing
import tempfile
import time
import traceback
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from batches import batch
from classes import ModelClass
from shrink import shrunk
from torch import nn

import autopar
from cost_models.hardware import Hardware, Link, load
from tests.wide import Wide

RANKS, STEPS, RATE, MOMENTUM = 2, 3, 1e-3, 0.9
SINGLE_ONLY = "Expected mat_a to be Float32"
"""What kernels for experts say of float64: such a model is tried in float32."""
LARGEST = 20_000_000
"""Parameters: a model that the rules of `shrink` leave larger is not tried."""
PLANS: tuple[str, ...] = ("free", "fsdp", "megatron")
"""`free`: the solver's, where communication costs nothing, so that it splits what it can."""


def built(which: ModelClass, dtype: torch.dtype) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The small model in train mode and its batch."""
    made = getattr(transformers, which.name)
    config = shrunk(made.config_class())
    torch.manual_seed(0)
    model = made(config).to(dtype).train()
    inputs = batch(which.task, config)
    return model, {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def warm() -> None:
    """Imports here what every class needs: the processes are forked from this one."""
    model, inputs = built(ModelClass("gpt2", "CAUSAL_LM", "GPT2LMHeadModel"), torch.float64)
    autopar.plan(model, RANKS, inputs, hardware=_free_links())


def within(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """In float64, models compute in float64 where they cast to float32."""
    return Wide() if dtype is torch.float64 else nullcontext()


def tried(which: ModelClass, plans: tuple[str, ...], limit_s: float) -> dict[str, Any]:
    """What came of it, by plan; ``{"single": why}`` where one process cannot train it."""
    getattr(transformers, which.name, None)  # imports its module, for all processes
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float64, torch.float32):
            said = _in_processes(1, _single, (which, dtype), folder, limit_s)
            if SINGLE_ONLY not in said[0]:
                break
        if said[0] != "ok":
            return {"single": said[0]}
        return {
            plan: _told(_in_processes(RANKS, _parallel, (which, dtype, plan), folder, limit_s))
            for plan in plans
        }


def _told(results: list[Any]) -> dict[str, Any]:
    """The first rank that failed, or the worst error of all, and how far one process is from itself."""
    for result in results:
        if not isinstance(result, dict):
            return {"failed": result}
    return {**results[0], "error": max(result["error"] for result in results)}


def _in_processes(
    count: int, work: Any, arguments: tuple[Any, ...], folder: str, limit_s: float
) -> list[Any]:
    """What each process says; forked from this one, which has imported everything."""
    context = multiprocessing.get_context("fork")
    store = Path(tempfile.mkdtemp(dir=folder)) / "store"
    pipes, processes = [], []
    for rank in range(count):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_told_by, args=(theirs, work, rank, store, arguments))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    end, said = time.monotonic() + limit_s, []
    for pipe in pipes:
        try:
            there = pipe.poll(max(0.0, end - time.monotonic()))
            said.append(pipe.recv() if there else f"not done after {limit_s:g} s")
        except EOFError:
            said.append("the process died")
    for process in processes:
        process.kill()
        process.join()
    return said


def _told_by(
    pipe: Connection, work: Any, rank: int, store: Path, arguments: tuple[Any, ...]
) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        pipe.send(work(rank, store, *arguments))
    except BaseException as error:
        if work is _parallel and not isinstance(error, autopar.AutoparError):
            traceback.print_exc()
        pipe.send(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Steps:
    """Losses, the last gradients and the weights after some steps."""

    losses: list[float]
    gradients: dict[str, torch.Tensor | None]
    weights: dict[str, torch.Tensor]


def stepped(model: Any, inputs: dict[str, torch.Tensor], turn: int = 1) -> Steps:
    """Some steps of SGD with momentum; in each the samples are turned by so many places more."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        result = model(**{key: value.roll(turn * step, 0) for key, value in inputs.items()})
        loss = result if isinstance(result, torch.Tensor) else result.loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = {
        name: None if p.grad is None else _whole(p.grad) for name, p in model.named_parameters()
    }
    return Steps(losses, gradients, {n: _whole(p.detach()) for n, p in model.named_parameters()})


def _whole(tensor: Any) -> torch.Tensor:
    made: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return made


def _single(rank: int, store: Path, which: ModelClass, dtype: torch.dtype) -> str:
    """Whether one process trains it at all: a finite loss, a gradient."""
    model, inputs = built(which, dtype)
    count = sum(p.numel() for p in model.parameters())
    if count > LARGEST:
        return f"{count:,} parameters are left"
    with within(dtype):
        found = stepped(model, inputs)
    if not all(torch.tensor(loss).isfinite() for loss in found.losses):
        return f"the losses are {found.losses}"
    return (
        "ok" if any(g is not None for g in found.gradients.values()) else "nothing has a gradient"
    )


def _parallel(
    rank: int, store: Path, which: ModelClass, dtype: torch.dtype, plan: str
) -> dict[str, Any]:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model, inputs = built(which, dtype)
    with within(dtype):
        want = stepped(copy.deepcopy(model), inputs)
        # The same sums in another order: what rounding alone does to this model.
        turned = stepped(
            copy.deepcopy(model), {key: value.flip(0) for key, value in inputs.items()}, -1
        )
        started = time.perf_counter()
        settings: dict[str, Any] = {"preset": plan} if plan != "free" else {}
        parallel = autopar.parallelize(
            model, RANKS, inputs, hardware=_free_links() if plan == "free" else None, **settings
        )
        took = time.perf_counter() - started
        got = stepped(parallel, inputs)
    share = parallel.plan.shares[0]
    dist.barrier()
    return {
        "error": _worst(got, want),
        "itself": _worst(turned, want),
        "dtype": str(dtype).removeprefix("torch."),
        "seconds": round(took, 1),
        "flops": round(share.flops, 3),
        "stored": round(share.stored, 3),
    }


def _free_links() -> Hardware:
    """Communication and calls for nothing: the solver then splits all that it can."""
    hardware = load("cpu")
    link = Link(bytes_per_s=1e18, latency_s=0.0)
    device = replace(hardware.device, launch_s=0.0)
    return replace(hardware, device=device, intra_host=link, inter_host=link, shared={})


def _worst(got: Steps, want: Steps) -> float:
    """Of losses, gradients (relative to the largest of the model) and weights (to the largest)."""
    errors = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(got.losses, want.losses, strict=True)]
    # A tie: one name of several may stand for the tensor.
    for mine, theirs in ((got.gradients, want.gradients), (got.weights, want.weights)):
        scale = max(float(t.abs().max()) for t in theirs.values() if t is not None and t.numel())
        for name, tensor in theirs.items():
            found = mine.get(name)
            if (found is None) != (tensor is None):
                raise AssertionError(f"the gradient of {name} is {found}, in one process {tensor}")
            if tensor is not None and tensor.numel():
                errors.append(float((found - tensor).abs().max()) / max(scale, 1e-30))
    return max(errors)
