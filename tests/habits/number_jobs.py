"""Losses whose numbers follow the size of the batch, in parts and in stages."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import autopar
from autopar.errors import CaptureError, InputError

LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda h: h.square().mean(),
    "mean squared error": lambda h: F.mse_loss(h, torch.zeros_like(h)),
    "sum over the size": lambda h: h.square().sum() / len(h),
    "sum times a number": lambda h: h.square().sum() * (1 / len(h)),
    "number times a sum": lambda h: (4 / len(h)) * h.square().sum(),
    "divided twice": lambda h: (h.square().sum() / len(h)) / (len(h) * 0.5),
    "samples over the size": lambda h: (h.square() / len(h)).sum(),
    "samples times the size": lambda h: (h * len(h)).square().mean(),
    "nothing for the whole batch": lambda h: (h * (len(h) / 8)).square().mean(),
    "nothing for a part": lambda h: (h * len(h)).square().sum(),
    "added": lambda h: (h + len(h)).square().mean(),
    "added, weighted": lambda h: torch.add(h, h.square(), alpha=len(h)).square().mean(),
    "subtracted from": lambda h: (len(h) - h).square().mean(),
    "power": lambda h: h.square().pow(len(h)).mean(),
    "nothing as a power": lambda h: h.square().pow(len(h) / 8).mean(),
    "bounded": lambda h: (h * 8).clamp(max=len(h) / 4).square().mean(),
    "slope": lambda h: F.leaky_relu(h, 1 / len(h)).square().mean(),
    "one more in the loss": lambda h: h.square().mean() + len(h) / 8,
    "other operators": lambda h: (h * 2 if len(h) > 4 else h.sin()).square().mean(),
    "other functions": lambda h: (h.tanh() if len(h) > 4 else h.sin()).square().mean(),
    "fewer features": lambda h: torch.cat([h, h * 2, h * 3, h * 4], 1)[:, : len(h) // 2].sum(),
    "filled": lambda h: (h * torch.full((), float(len(h)), dtype=h.dtype)).square().mean(),
    "constant": lambda h: (h * torch.tensor(float(len(h)), dtype=h.dtype)).square().mean(),
    "filled for each": lambda h: (
        (h * torch.full((len(h), 1), float(len(h)), dtype=h.dtype)).square().mean()
    ),
}
REFUSED = ("one more in the loss", "other operators", "other functions", "fewer features")
"""As no sum over samples, and as another computation."""
SIZE, LIMIT = 8, 1e-9


class Model(nn.Module):
    """Two layers and a loss."""

    def __init__(self, loss: str) -> None:
        super().__init__()
        self.first, self.second, self.loss = nn.Linear(3, 4), nn.Linear(4, 1), loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return LOSSES[self.loss](self.second(self.first(x).tanh()))


def differences(name: str) -> dict[str, str]:
    """By way of training: "equal", how far off, or the refusal."""
    torch.manual_seed(0)
    model = Model(name).double()
    x = torch.randn(SIZE, 3, dtype=torch.float64)
    plain = copy.deepcopy(model)
    loss = plain(x=x)
    loss.backward()
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    ranks, found = dist.get_world_size(), {}
    for parts in (2, 8):
        options = {} if ranks == 1 else {"pipeline": autopar.Pipeline(2, microbatches=parts)}
        try:
            parallel = autopar.parallelize(copy.deepcopy(model), (ranks,), {"x": x}, **options)
            got = parallel.train_step(x=x, **({"microbatches": parts} if ranks == 1 else {}))
        except (CaptureError, InputError) as error:
            found[f"{parts} parts"] = f"refused: {error}"
            continue
        off = [(got - loss.detach()).abs().max()]
        for key, p in parallel.named_parameters():
            off.append((p.grad.full_tensor() - gradients[key]).abs().max())
        worst = max(map(float, off)) / max(1.0, float(loss))
        found[f"{parts} parts"] = "equal" if worst <= LIMIT else f"{worst:.1e} off"
    return found
