"""Measures what the CPU's LSTM kernel saves for its backward and its fake run does not show.

The amount is linear in the samples and in the steps. The kernel is run on few of both, and the
result is extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autopar.ir.graph import Node, Tensor
from autopar.ops.operators import bind, callable_of

LSTM = "aten.lstm.input"
BATCH_FIRST = 8
"""Position of the argument `batch_first`."""
MOST_STEPS, MOST_SAMPLES = 16, 32


def workspace_nbytes(node: Node, operands: Mapping[str, Tensor]) -> int:
    """Return the bytes of the whole operator; 0 if another kernel runs (float64, projections)."""
    if node.op != LSTM or not any(tensor.differentiable for tensor in node.outputs):
        return 0
    probe = _Probe(node, operands)
    few, some = min(probe.steps, MOST_STEPS), min(probe.samples, MOST_SAMPLES)
    most = probe.kept(few, some)
    half = few // 2
    per_step = (most - probe.kept(half, some)) / (few - half) if half else 0.0
    return round((most + per_step * (probe.steps - few)) * probe.samples / some)


class _Probe:
    """Runs the operator on zeros, with a given number of steps and samples."""

    def __init__(self, node: Node, operands: Mapping[str, Tensor]) -> None:
        self._node, self._operands = node, operands
        states = node.args[1]
        assert isinstance(states, tuple)
        self._input, *self._states = node.operands[: 1 + len(states)]
        sizes = operands[self._input].shape[:2]
        self._batch_first = bool(node.args[BATCH_FIRST])
        self.samples, self.steps = sizes if self._batch_first else sizes[::-1]

    def kept(self, steps: int, samples: int) -> int:
        """Return the bytes of the saved uint8 tensors, which are the kernel's own workspace."""
        found: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype == torch.uint8:
                found[tensor.data_ptr()] = tensor.nbytes
            return tensor

        tensors = {name: self._zeros(name, steps, samples) for name in self._operands}
        args = bind(self._node.args, tensors.__getitem__)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            _ = callable_of(self._node.op)(*args)
        return sum(found.values())

    def _zeros(self, name: str, steps: int, samples: int) -> torch.Tensor:
        tensor = self._operands[name]
        shape = tensor.shape
        if name == self._input:
            shape = (*((samples, steps) if self._batch_first else (steps, samples)), shape[2])
        elif name in self._states:
            shape = (shape[0], samples, shape[2])
        dtype = getattr(torch, tensor.dtype)
        return torch.zeros(shape, dtype=dtype, requires_grad=tensor.differentiable)
