"""Parallel steps equal the single process's on a GPU, for every architecture."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import autopar
from autopar.errors import CaptureError
from tests import models, parity
from tests.architectures import ARCHITECTURES, WORKAROUNDS
from tests.capture.compare import eager_loss
from tests.wide import Wide

STEPS, RATE = 3, 1e-3
NAMES = [name for name in ARCHITECTURES if name not in WORKAROUNDS]


def on_gpu(value: Any) -> Any:
    """The same there."""
    return value.cuda() if isinstance(value, torch.Tensor) else value


def case_of(name: str, dropout: float = 0.0) -> tuple[torch.nn.Module, dict[str, Any], Any]:
    """An architecture on the GPU, in float64 where its operators know it."""
    made = ARCHITECTURES[name](dropout=dropout)
    if f"architectures.{name}" not in parity.SINGLE:
        made = models.double(made)
    model, inputs, loss = made
    return model.cuda(), {key: on_gpu(value) for key, value in inputs.items()}, loss


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=RATE, momentum=parity.MOMENTUM)


@pytest.mark.parametrize("name", NAMES)
def test_a_step(name: str) -> None:
    """Losses, gradients and weights."""
    single = f"architectures.{name}" in parity.SINGLE
    tolerance = parity.TOLERANCE[torch.float32 if single else torch.float64]
    model, inputs, loss = case_of(name)
    before = copy.deepcopy(model).cpu()
    with nullcontext() if single else Wide():
        eager = copy.deepcopy(model)
        parallel = autopar.parallelize(model, 1, inputs, loss=loss, optimizer=torch.optim.SGD)
        ours, theirs = sgd(parallel), sgd(eager)
        for _ in range(STEPS):
            ours.zero_grad()
            theirs.zero_grad()
            got = parallel(**inputs)
            got.backward()
            want = eager_loss(eager, inputs, loss)
            want.backward()
            assert got.is_cuda
            parity.close(got.detach(), want.detach(), "loss", tolerance=tolerance)
            ours.step()
            theirs.step()
    case = parity.Reference(
        before,
        (inputs,),
        parallel.graph,
        {},
        (),
        {key: p.grad for key, p in eager.named_parameters()},
        {key: p.detach().cpu() for key, p in eager.named_parameters()},
        {},
        tolerance,
        RATE,
    )
    parity.check_gradients(parallel, case)
    parity.check_weights(parallel, case)


@pytest.mark.filterwarnings("ignore")  # torch's own compiler warns
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_compiled(name: str) -> None:
    """Under torch.compile the same numbers come out."""
    model, inputs, loss = case_of(name)
    eager = copy.deepcopy(model)
    parallel = autopar.parallelize(model, 1, inputs, loss=loss)
    parallel.compile()
    got, want = parallel(**inputs), eager_loss(eager, inputs, loss)
    parity.close(got.detach(), want.detach(), "loss", tolerance=1e-5)
    got.backward()
    want.backward()
    gradients = {key: p.grad for key, p in eager.named_parameters()}
    for key, parameter in parallel.named_parameters():
        whole = parameter.grad.full_tensor()
        parity.close(whole, gradients[key], f"gradient of {key}", 1.0, tolerance=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_dropout_follows_the_seed(name: str) -> None:
    """Two runs from one seed drop the same; two steps of one run do not."""

    def losses() -> list[float]:
        torch.manual_seed(3)
        model, inputs, loss = case_of(name, dropout=0.5)
        parallel = autopar.parallelize(model, 1, inputs, loss=loss)
        return [float(parallel(**inputs).detach()) for _ in range(2)]

    first = losses()
    assert first == losses() and first[0] != first[1]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision(precision: str) -> None:
    """As under torch.autocast, as far as rounding lets it be."""
    made, inputs, loss = ARCHITECTURES["gpt2"](dropout=0.0)
    model = made.cuda()
    inputs = {key: on_gpu(value) for key, value in inputs.items()}
    eager = copy.deepcopy(model)
    parallel = autopar.parallelize(model, 1, inputs, loss=loss, precision=precision)
    with torch.autocast("cuda", getattr(torch, precision)):
        want = eager_loss(eager, inputs, loss)
    got = parallel(**inputs)
    parity.close(got.detach(), want.detach(), "loss", tolerance=0.02)
    got.backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in parallel.parameters())


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    """Weights and the optimizer's moments."""
    model, inputs, loss = case_of("gpt2")
    other = copy.deepcopy(model)
    parallel = autopar.parallelize(model, 1, inputs, loss=loss)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)

    def step(module: Any, its: torch.optim.Optimizer) -> float:
        its.zero_grad()
        value = module(**inputs)
        value.backward()
        its.step()
        return float(value.detach())

    step(parallel, optimizer)
    parallel.save(tmp_path / "checkpoint", optimizer)
    want = [step(parallel, optimizer) for _ in range(2)]
    again = autopar.parallelize(other, 1, inputs, loss=loss)
    its = torch.optim.AdamW(again.parameters(), lr=1e-2)
    again.load(tmp_path / "checkpoint", its)
    assert [step(again, its) for _ in range(2)] == want


def test_uncaptured_models_are_refused_here_too() -> None:
    model, inputs, loss = case_of("electra")
    with pytest.raises(CaptureError, match="reads the value of a tensor"):
        autopar.parallelize(model, 1, inputs, loss=loss)
