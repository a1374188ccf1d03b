"""Random choices of the grammar, and the two modules that every layer is written with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")
Shape = tuple[int, ...]
WIDTHS = (8, 12, 16, 20, 24, 32)
"""Of features and channels: all but none divide by four, and neighbours are often different."""


class Draw(random.Random):
    """A seeded source of choices."""

    def one(self, options: Sequence[T]) -> T:
        """Any of these."""
        return options[self.randrange(len(options))]

    def flag(self, chance: float = 0.5) -> bool:
        """True so often."""
        return self.random() < chance

    def width(self, *, of: int = 1) -> int:
        """Some number of features that `of` divides."""
        return self.one([width for width in WIDTHS if width % of == 0])

    def divisor(self, number: int, options: Sequence[int] = (1, 2, 3, 4, 6, 8)) -> int:
        """One of the options that divides."""
        return self.one([option for option in options if number % option == 0])

    def permutation(self, size: int) -> list[int]:
        """The numbers below `size` in any order."""
        order = list(range(size))
        self.shuffle(order)
        return order


class Do(nn.Module):
    """A function without parameters of its own, with a name to read in a failure."""

    def __init__(self, name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


class With(nn.Module):
    """A function of the input and of parameters, buffers or modules that are given by name."""

    def __init__(self, name: str, function: Callable[..., torch.Tensor], **parts: Any) -> None:
        super().__init__()
        self.name, self.function, self.parts = name, function, tuple(parts)
        for key, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(key, part)
            else:
                setattr(self, key, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *(getattr(self, part) for part in self.parts))

    def extra_repr(self) -> str:
        return self.name


def weight(*shape: int) -> nn.Parameter:
    """A parameter whose products stay of size one."""
    return nn.Parameter(torch.randn(shape) / max(shape[-1], 1) ** 0.5)
