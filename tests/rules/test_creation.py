"""Tensors that are made of nothing do not gather a batch that arrives in parts."""

from __future__ import annotations

import torch
from torch import nn

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.compile.outputs import with_outputs
from autopar.ir.mesh import Mesh
from autopar.request import presets
from autopar.rules import batch_forms
from autopar.sharding.compile import Settings, compile_graph
from cost_models.hardware import load


class Made(nn.Module):
    """Zeros, ones, positions and noise, each of the batch's size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = torch.maximum(y, torch.zeros_like(y)) + y.new_ones(y.shape) * 0.5
        places = torch.arange(8).repeat(x.shape[0], 1)
        y = y.view(x.shape[0], 8, 8) * (places < lengths[:, None]).unsqueeze(-1)
        counted = torch.zeros(x.shape[0], 64).scatter_add(
            1, lengths[:, None].expand(-1, 64), y.flatten(1)
        )
        made: torch.Tensor = self.second(counted + torch.randn_like(counted)).pow(2).mean()
        return made


def test_a_batch_in_parts_stays_in_parts() -> None:
    inputs = {"x": torch.randn(64, 64), "lengths": torch.zeros(64, dtype=torch.int64)}
    graph = with_outputs(capture(Made(), inputs), ())
    mesh = Mesh.of(4)
    _, parts = batch_forms(mesh)
    settings = Settings(batch=parts, preset="ddp", constraints=presets.load("ddp", mesh))
    source = compile_graph(graph, mesh, load("h100"), settings, saved(graph)).source
    assert "torch.zeros([16, 64]" in source and "expand([16, 1, 8])" in source
    assert "all_gather" not in source and "all_to_all" not in source
    assert source.count("all_reduce(") == 1, "the loss alone"
