"""Torch's pipeline engine against ours and the single process, inside pool workers."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime.pipeline import torch_engine
from autopar.runtime.pipeline.module import Pipelined
from autopar.runtime.pipeline.torch_engine import torch_step
from tests.parity import check_weights, close, reference, sgd
from tests.pipelines import Line, check_gradients, pipelined


def check_witness(line: Line, limit: str = "") -> None:
    """A step on torch's engine is the single process's, and the same as a step on our own.

    `limit`: what torch's engine lacks for this line, in the words of the refusal.
    """
    parallel = pipelined(line, reference(line.name, 1))
    if not limit:
        compare(parallel, line)
        return
    with pytest.raises(InputError, match=limit):
        torch_step(parallel, **reference(line.name, 1).inputs)


def check_unlimited(line: Line) -> None:
    """`compare`, although our limits say that it cannot be equal."""
    before, torch_engine.check_limits = torch_engine.check_limits, lambda *_: None
    try:
        compare(pipelined(line, reference(line.name, 1)), line)
    finally:
        torch_engine.check_limits = before


def compare(parallel: Pipelined, line: Line) -> None:
    """Both engines and the single process: loss, gradients, weights after a step."""
    case = reference(line.name, 1)
    close(parallel.train_step(**case.inputs), case.losses[0], "our loss")
    ours = {name: local(p.grad) for name, p in parallel.named_parameters() if p.grad is not None}
    parallel.zero_grad()
    close(torch_step(parallel, **case.inputs), case.losses[0], "torch's loss")
    check_gradients(parallel, case)
    scale = max(float(gradient.abs().max()) for gradient in ours.values())
    for name, parameter in parallel.named_parameters():
        if parameter.grad is not None:
            close(local(parameter.grad), ours.pop(name), f"gradient of {name}", scale)
    assert not ours
    sgd(parallel, case.rate).step()
    check_weights(parallel, case)  # type: ignore[arg-type]


def local(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    assert isinstance(gradient, DTensor)
    return gradient.to_local()
