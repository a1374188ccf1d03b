"""Strides of one process's memory mean the same entries in any other layout."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.capture.strided import window
from autopar.errors import CaptureError
from autopar.ops.operators import strided
from tests.capture.compare import captured_equals_eager


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1)])
def test_any_layout(order: tuple[int, ...], shape: tuple[int, ...]) -> None:
    x = torch.arange(24.0)[: shape[0] * shape[1] * shape[2]].view(shape)
    x = x.permute(order).contiguous().permute(*(order.index(dim) for dim in range(3)))
    size, stride, offset = (2, 3), (1, 2), min(1, x.numel() - 6)
    read = window(x, size, stride, offset)
    assert read is not None
    elsewhere = x.permute(read.order).flip(0).contiguous().flip(0).transpose(0, 2).contiguous()
    made = strided(elsewhere.transpose(0, 2), read.size, read.stride, read.offset)
    assert torch.equal(made, x.as_strided(size, stride, offset))


def test_memory_of_others_is_no_window() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    assert window(x[:, :2], (2, 2), (12, 1), None) is None
    assert window(x[:, :1].expand(2, 3, 4), (2, 2), (1, 1), None) is None
    assert window(x[1], (2, 2), (1, 1), 0) is None, "before its first entry"
    assert window(x[1], (4, 4), (4, 1), None) is None, "behind its last"
    assert window(x[1], (2, 2), (4, 1), 13) == window(x[0], (2, 2), (4, 1), 1)


class Windows(nn.Module):
    """Overlapping windows over a tensor that lies transposed, as Longformer cuts them."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.mix, self.whole = nn.Linear(6, 6), whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lying = self.mix(x).transpose(0, 1)
        lying = lying if self.whole else lying[:2]
        return lying.as_strided((3, 2, 4), (6, 12, 1), 2).square().mean()


def test_captured() -> None:
    graph = captured_equals_eager(Windows(True).double(), {"x": torch.randn(4, 3, 6).double()})
    assert "autopar.strided" in {node.op for node in graph.nodes}


def test_refused() -> None:
    with pytest.raises(CaptureError, match="outside of its tensor"):
        capture(Windows(False), {"x": torch.randn(4, 3, 6)})
