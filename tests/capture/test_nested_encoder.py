"""Padding in evaluations of `nn.TransformerEncoder`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar
from autopar.capture import capture
from autopar.errors import CaptureError
from tests.daily import daily
from tests.pool import Pool


class Encoder(nn.Module):
    """Three layers, and a loss that reads padded positions too."""

    def __init__(self, nested: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=nested)

    def forward(self, x: torch.Tensor, pad: torch.Tensor | None = None) -> torch.Tensor:
        return self.layers(x, src_key_padding_mask=pad).square().mean()


def batch() -> dict[str, torch.Tensor]:
    """Four sequences, the second with three padded positions."""
    torch.manual_seed(1)
    pad = torch.zeros(4, 6, dtype=torch.bool)
    pad[1, 3:] = True
    return {"x": torch.randn(4, 6, 8, dtype=torch.float64), "pad": pad}


def evaluated(nested: bool, padded: bool) -> tuple[float, float, str]:
    """The loss in training and in evaluation less that of one process, and what is said."""
    torch.manual_seed(0)
    plain = Encoder(nested).double()
    given = batch() if padded else {"x": batch()["x"]}
    parallel = autopar.parallelize(plain, 2, given, hardware="cpu", preset="fsdp")
    trained = parallel(**given).item() - plain(**given).item()
    plain.eval(), parallel.eval()
    with torch.no_grad():
        try:
            return trained, parallel(**given).item() - plain(**given).item(), ""
        except CaptureError as error:
            return trained, 0.0, str(error)


@pytest.mark.parametrize(
    ("nested", "padded"), daily([(True, True), (False, True), (True, False)], [(True, True)])
)
def test_evaluations(pool: Pool, nested: bool, padded: bool) -> None:
    for trained, evaluation, said in pool.run(2, evaluated, nested, padded):
        assert abs(trained) < 1e-12
        assert abs(evaluation) < 1e-12
        assert ("enable_nested_tensor=False" in said) == (nested and padded)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_pytorch_does() -> None:
    """The reason of the refusal, and its remedy."""
    given = batch()
    for nested in (True, False):
        torch.manual_seed(0)
        model = Encoder(nested).double().eval()
        with_gradients = model(**given).item()
        with torch.no_grad():
            differs = abs(model(**given).item() - with_gradients) > 1e-3
        assert differs == nested


def test_training_with_padding_is_captured() -> None:
    assert capture(Encoder(nested=True).double(), batch()).nodes
