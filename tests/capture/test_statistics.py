"""Batch norms in low precision: weights are of the width of the statistics, which buffers keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autopar.capture import capture
from autopar.ir.graph import short
from autopar.request.meta import without_weights
from tests.capture.interpret import interpret


class Normed(torch.nn.Module):
    """A convolution and its norm."""

    def __init__(self, running: bool, affine: bool) -> None:
        super().__init__()
        self.mix = torch.nn.Conv2d(3, 5, 3)
        self.norm = torch.nn.BatchNorm2d(5, affine=affine)
        self.norm.train(running)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.norm(self.mix(x)).mean((2, 3)), y)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_a_norm_runs_in_low_precision(running: bool, affine: bool) -> None:
    torch.manual_seed(0)
    model = Normed(running, affine)
    batch = {"x": torch.randn(8, 3, 6, 6), "y": torch.arange(8) % 5}
    want = {k: v.clone() for k, v in model.state_dict().items()}
    low = {"x": batch["x"].bfloat16(), "y": batch["y"]}
    graph = capture(without_weights(model, torch.bfloat16), low)
    params = {key: p.detach().bfloat16() for key, p in model.named_parameters()}
    values = interpret(graph, params, dict(model.named_buffers()), low)
    assert graph.loss is not None
    assert values[graph.loss].item() == pytest.approx(model(**batch).item(), abs=2e-2)
    casts = [
        node for node in graph.nodes if short(node.op) == "to" and "norm" in node.origin.module
    ]
    assert len(casts) == (2 if affine else 0)
    new = dict(graph.mutations).get("norm.running_mean")
    if running:
        assert new is not None and values[new].dtype == torch.float32
        torch.testing.assert_close(values[new], model.norm.running_mean, atol=1e-2, rtol=1e-2)
        assert not torch.equal(values[new], want["norm.running_mean"])
