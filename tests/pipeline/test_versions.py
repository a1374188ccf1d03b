"""Versions of weights by hand: one number, gathered from what is stored after every update."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from autopar.pipeline.schedules.action import Action
from autopar.runtime.pipeline.versions import Versions

LIST = "0F0 0F1 0B0 0U0 0F2@1 0B1 0B2@1 0U1 0F3@2 0B3@2 0U2"
"""The second update is on gradients of two versions, which no schedule with a name does."""
RATE = 0.5


class Held:
    """A slot and all leaves: the stored number is `stored`."""

    def __init__(self, value: float) -> None:
        self.stored = torch.tensor(value)
        self.slot: Any = SimpleNamespace(
            leaf=self.stored.clone().requires_grad_(),
            shares_storage=False,
            new_leaf=lambda: torch.empty(()).requires_grad_(),
        )

    def put(self, slot: Any, leaf: torch.Tensor) -> None:
        slot.leaf = leaf

    @torch.no_grad()
    def gather(self) -> None:
        self.slot.leaf.detach().copy_(self.stored)


def test_gradients_of_all_versions_are_summed() -> None:
    """Of w^3 per microbatch: the derivative at the version that the forward used."""
    held = Held(1.0)
    actions = [Action.parse(word) for word in LIST.split()]
    versions = Versions([held.slot], held, actions)  # type: ignore[arg-type]
    losses: dict[int, torch.Tensor] = {}
    kept = []

    def step() -> None:
        held.stored = held.stored - RATE * held.slot.leaf.grad
        held.slot.leaf.grad = None

    for action in actions:
        if action.kind == "U":
            versions.update(step)
            kept.append(versions.kept)
            continue
        versions.use(action.version)
        if action.kind == "F":
            losses[action.microbatch] = held.slot.leaf**3
        else:
            losses.pop(action.microbatch).backward()
        versions.used(action.version)
    first = 1.0 - RATE * 3.0
    second = first - RATE * (3.0 + 3.0 * first**2)
    third = second - RATE * 3.0 * second**2
    assert float(held.stored) == third
    assert kept == [(0, 1), (2,), (3,)]
