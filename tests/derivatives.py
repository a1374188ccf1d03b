"""Models whose forward takes gradients, as `tests.models` has them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tests import models

Forward = Callable[["Field", torch.Tensor], torch.Tensor]


class Field(nn.Module):
    """A network of three equal layers, and a loss on what can be derived from it."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        layers = [layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.Tanh())]
        self.net = nn.Sequential(nn.Linear(2, 16), *layers, nn.Linear(16, 1))
        self.norm = nn.LayerNorm(16)
        self.loss = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self, x)


def burgers(m: Field, x: torch.Tensor) -> torch.Tensor:
    """A physics-informed network: first and second derivatives in its inputs."""
    x = x.detach().requires_grad_()
    u = m.net(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    in_t, in_x = slope[:, :1], slope[:, 1:]
    (curved,) = torch.autograd.grad(in_x, x, torch.ones_like(in_x), create_graph=True)
    return (in_t + u * in_x - 0.01 * curved[:, 1:]).square().mean()


def columns(m: Field, x: torch.Tensor) -> torch.Tensor:
    """Coordinates apart, a third derivative, and a boundary beside."""
    t, z = (part.clone().requires_grad_() for part in x.split(1, 1))
    u = m.net(torch.cat([t, z], 1))
    in_t, in_z = torch.autograd.grad(u.sum(), [t, z], create_graph=True)
    (twice,) = torch.autograd.grad(in_z.sum(), z, create_graph=True)
    (thrice,) = torch.autograd.grad(twice.sum(), z, create_graph=True)
    return (in_t + u * in_z + thrice).square().mean() + m.net(x * 0).square().mean()


def penalty(m: Field, x: torch.Tensor) -> torch.Tensor:
    """A critic with a penalty on the norm of its gradient."""
    mixed = (0.3 * x + 0.7 * x.flip(0)).detach().requires_grad_()
    made = m.net(mixed)
    (slope,) = torch.autograd.grad(
        made, mixed, torch.ones_like(made), create_graph=True, retain_graph=True
    )
    return m.net(x).mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()


def forces(m: Field, x: torch.Tensor) -> torch.Tensor:
    """An energy through a norm and a softmax, and the forces that it gives."""
    x = x.clone().requires_grad_()
    hidden = m.norm(m.net[0](x)).softmax(-1)
    energy = m.net[1:](hidden).sum(1)
    (pull,) = torch.autograd.grad(energy.sum(), x, create_graph=m.training)
    return (pull - 1).square().mean() + F.mse_loss(energy, x.detach().sum(1))


def adversarial(m: Field, x: torch.Tensor) -> torch.Tensor:
    """A step against the gradient, which is a number like others."""
    near = torch.zeros_like(x, requires_grad=True)
    with torch.no_grad():
        wanted = m.net(x)
    (away,) = torch.autograd.grad((m.net(x + near) - wanted - 1).square().mean(), near)
    return (m.net(x + F.normalize(away, dim=1)) - wanted).square().mean()


def inner_step(m: Field, x: torch.Tensor) -> torch.Tensor:
    """A loss behind a step of gradient descent, differentiated through it."""
    weights = dict(m.net.named_parameters())
    first = m.net(x).square().mean()
    slopes = torch.autograd.grad(first, list(weights.values()), create_graph=True)
    moved = {key: w - 0.1 * g for (key, w), g in zip(weights.items(), slopes, strict=True)}
    return torch.func.functional_call(m.net, moved, (x + 1,)).square().mean()


FORWARDS: tuple[Forward, ...] = (burgers, columns, penalty, forces, adversarial, inner_step)


def field(forward: Forward) -> models.Case:
    """A model with such a loss."""
    torch.manual_seed(5)
    return Field(forward), {"x": torch.randn(models.BATCH, 2)}, None


def _case(forward: Forward) -> Callable[[], models.Case]:
    return lambda: field(forward)


DERIVATIVES = {f"derivatives.{forward.__name__}": _case(forward) for forward in FORWARDS}
