"""Whether a contender trains the same model: its loss, and its weights after a step, as of one process."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from contender import Contender, Weights, groups, mean_loss
from models import Batch, Model

LEARNING_RATE = 0.1
TOLERANCE = 1e-4
"""Of the loss, and of the largest update of any weight: float32, summed in other orders."""


@dataclass(frozen=True)
class Reference:
    """One step of one process, with plain gradient descent: Adam would make steps of rounding noise."""

    loss: float
    before: Weights
    after: Weights

    @classmethod
    def of(cls, model: Model, batch: Batch) -> Reference:
        """Computed here."""
        module = model.make()
        before = {name: value.detach().clone() for name, value in module.named_parameters()}
        loss = module(**batch).loss
        loss.backward()
        torch.optim.SGD(module.parameters(), lr=LEARNING_RATE).step()
        return cls(float(loss.detach()), before, dict(module.named_parameters()))


def difference(loss: float, weights: Weights, single: Reference) -> float:
    """The larger of the loss' relative error and the weights', relative to the largest update."""
    missing = single.after.keys() - weights.keys()
    if missing:
        raise ValueError(f"no weights for {', '.join(sorted(missing))}")
    update = max(
        float((single.after[name] - single.before[name]).detach().abs().max())
        for name in single.after
    )
    worst = max(
        float((weights[name].detach() - single.after[name].detach()).abs().max())
        for name in single.after
    )
    return max(abs(loss - single.loss) / abs(single.loss), worst / update)


def error_of(contender: Contender, batch: Batch, single: Reference | None) -> float:
    """Of one step; every rank calls it, and the rank that has the reference knows (others: 0)."""
    optimizer = torch.optim.SGD(groups(contender.parameters), lr=LEARNING_RATE)
    loss = mean_loss(contender.step(batch))
    optimizer.step()
    optimizer.zero_grad()
    weights = contender.weights()
    return difference(loss, weights, single) if single is not None else 0.0
