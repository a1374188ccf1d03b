"""Random numbers: equal on replicas, different on shards, reproducible.

Every forward runs on a seed that all ranks share, so operators with replicated results draw the same
numbers everywhere.  An operator whose result is sharded along some axes runs on a separate seed per
shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autopar.runtime.axes import Axis

LARGEST_SEED = 2**62
STRIDE = 1_000_003
"""Difference between the seeds of neighbouring shards."""


class Seeds:
    """The sequence of seeds for forwards, the same on all ranks."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Draw random numbers from the next seed inside; the state outside does not change."""
        with seeded(self.next()):
            yield

    def next(self) -> int:
        """Return the next seed, the same on all ranks."""
        return int(torch.randint(LARGEST_SEED, (), generator=self._generator, device="cpu"))

    @property
    def state(self) -> torch.Tensor:
        """The generator's state, which checkpoints keep."""
        return self._generator.get_state()

    @state.setter
    def state(self, state: torch.Tensor) -> None:
        self._generator.set_state(state)


def per_shard(function: Callable[..., Any], *axes: Axis) -> Callable[..., Any]:
    """Return `function` with random numbers that differ along `axes` and agree along all others."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # Drawn from the seed that all ranks share, so it is the same number everywhere.
        base = int(torch.randint(LARGEST_SEED, (), device="cpu"))
        place = 0
        for axis in axes:
            place = place * axis.size + axis.rank
        with seeded((base + STRIDE * place) % LARGEST_SEED):
            return function(*args, **kwargs)

    return call


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers from `seed` inside; the state outside does not change."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
