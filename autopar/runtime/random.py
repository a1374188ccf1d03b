"""Random numbers: equal on replicas, different on shards, reproducible.

Every forward runs on a seed that all ranks share, so what is computed whole draws the same numbers
everywhere.  An operator whose result is split along some axes runs on a seed of its own per shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autopar.runtime.context import axis as axis_named

LARGEST_SEED = 2**62
STRIDE = 1_000_003
"""Between the seeds of neighbouring shards."""


class Seeds:
    """The seeds of forwards, one after the other, the same on all ranks."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Random numbers inside are those of the next seed; outside nothing changes."""
        with seeded(self.next()):
            yield

    def next(self) -> int:
        """A seed, the same on all ranks."""
        return int(torch.randint(LARGEST_SEED, (), generator=self._generator, device="cpu"))

    @property
    def state(self) -> torch.Tensor:
        """What a checkpoint keeps."""
        return self._generator.get_state()

    @state.setter
    def state(self, state: torch.Tensor) -> None:
        self._generator.set_state(state)


def per_shard(function: Callable[..., Any], *axes: str) -> Callable[..., Any]:
    """`function` with random numbers that differ along `axes` and agree along all others."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # Drawn from the seed that all ranks share, so it is the same number everywhere.
        base = int(torch.randint(LARGEST_SEED, (), device="cpu"))
        place = 0
        for name in axes:
            place = place * axis_named(name).size + axis_named(name).rank
        with seeded((base + STRIDE * place) % LARGEST_SEED):
            return function(*args, **kwargs)

    return call


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers inside are those of a seed; outside nothing changes."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
