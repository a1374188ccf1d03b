"""Torch's pipeline engine against ours and the single process, inside pool workers."""

from __future__ import annotations

import torch

from autopar.runtime.pipeline.torch_engine import torch_step
from tests.parity import RATE, check_weights, close, reference
from tests.pipelines import Line, check_gradients, pipelined


def check_witness(line: Line) -> None:
    """A step on torch's engine is the single process's, and the same as a step on our own."""
    case = reference(line.name)
    parallel = pipelined(line, case)
    close(parallel.train_step(**case.inputs), case.loss, "our loss")
    ours = {name: p.grad.to_local() for name, p in parallel.named_parameters() if p.grad is not None}
    parallel.zero_grad()
    close(torch_step(parallel, **case.inputs), case.loss, "torch's loss")
    check_gradients(parallel, case)
    scale = max(float(gradient.abs().max()) for gradient in ours.values())
    for name, parameter in parallel.named_parameters():
        if parameter.grad is not None:
            close(parameter.grad.to_local(), ours.pop(name), f"gradient of {name}", scale)
    assert not ours
    torch.optim.SGD(parallel.parameters(), lr=RATE).step()
    check_weights(parallel, case)
