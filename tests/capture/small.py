"""One-layer modules around a function: what most capture tests need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Body = Callable[["Small", torch.Tensor], torch.Tensor]


class Small(nn.Module):
    """``forward`` is a function of the module and x; keywords become buffers."""

    def __init__(self, body: Body, **buffers: torch.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.body = body
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def small(body: Body, **buffers: torch.Tensor) -> tuple[Small, dict[str, torch.Tensor]]:
    """A float64 module and its input."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    return Small(body, **buffers).double(), {"x": x}
