"""Microbatches of models that keep state, or write the size of the batch out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar.errors import InputError

Forward = Callable[["Layers", torch.Tensor, torch.Tensor], torch.Tensor]


class Layers(nn.Module):
    """Three equal layers, buffers, and a forward from outside."""

    def __init__(self, way: Forward) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4, 4))
        self.way = way

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.way(self, x, y)


def planned(model: nn.Module, parts: int) -> autopar.plans.pipeline_plan.PipelinePlan:
    batch = {"x": torch.randn(4, 3, 4), "y": torch.randn(4, 3, 4)}
    return autopar.plan(
        model, (2,), batch, hardware="h100", pipeline=autopar.Pipeline(2, microbatches=parts)
    )


def counted(m: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m.count += 1
    return F.mse_loss(m.layers(x) * m.count, y)


def counted_after(m: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(m.layers(x), y)
    m.count.add_(1)
    return loss


def averaged(m: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m.mean.lerp_(m.layers[0].weight.detach(), 0.1)
    return F.mse_loss(F.linear(m.layers(x), m.mean), y)


def read_before(m: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(F.linear(m.layers(x), m.mean), y)
    m.mean.copy_(m.layers[0].weight.detach())
    return loss


def written(m: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Every microbatch leaves the same behind, and reads what it wrote."""
    m.mean.copy_(m.layers[0].weight.detach())
    return F.mse_loss(F.linear(m.layers(x), m.mean), y)


@pytest.mark.parametrize("way", [counted, counted_after, averaged, read_before])
def test_a_step_changes_state_once(way: Forward) -> None:
    with pytest.raises(InputError, match=r"reads the buffer '(count|mean)' and changes it"):
        planned(Layers(way), 4)
    assert planned(Layers(way), 1).stages


def test_spectral_norm_iterates_once_a_step() -> None:
    model = Layers(lambda m, x, y: F.mse_loss(m.layers(x), y))
    nn.utils.parametrizations.spectral_norm(model.layers[1])
    with pytest.raises(InputError, match="spectral_norm"):
        planned(model, 4)


def test_state_that_is_only_written_is_the_same_for_all_parts() -> None:
    assert planned(Layers(written), 4).stages


def assigned(m: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(4, 3, 4)
    made[:] = m.layers(x)
    return F.mse_loss(made, y)


WRITTEN_OUT: dict[str, Forward] = {
    "zeros": lambda m, x, y: m.layers(x + torch.zeros(4, 3, 4)).square().sum() + 0 * y.sum(),
    "expand": lambda m, x, y: m.layers(x.expand(4, 3, 4)).square().sum() + 0 * y.sum(),
    "broadcast_to": lambda m, x, y: F.mse_loss(torch.broadcast_to(m.layers(x), (4, 3, 4)), y),
    "where": lambda m, x, y: F.mse_loss(torch.where(torch.ones(4, 1, 1) > 0, m.layers(x), 0.0), y),
    "scatter": lambda m, x, y: F.mse_loss(
        torch.zeros(4, 3, 4).scatter_add(2, x.argsort(2), m.layers(x)), y
    ),
    "assigned": assigned,
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_part_of_one_sample_is_not_broadcast_to_the_batch(name: str) -> None:
    with pytest.raises(InputError, match=r"for a part of the batch.*Write len\(x\)"):
        planned(Layers(WRITTEN_OUT[name]), 4)
    assert planned(Layers(WRITTEN_OUT[name]), 1).stages


def sized(m: Layers, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(len(x), 3, 4)
    made[:] = m.layers(x + torch.zeros(x.shape[0], 3, 4))
    return F.mse_loss(made[:, :, None].expand(-1, -1, 2, -1).mean(2), y)


@pytest.mark.parametrize("parts", [2, 4])
def test_the_size_that_a_part_has_is_its_share(parts: int) -> None:
    assert planned(Layers(sized), parts).stages
