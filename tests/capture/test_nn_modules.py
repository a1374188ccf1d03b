"""Every module of `torch.nn` that has tensors to compute with is captured, or refused by name."""

from __future__ import annotations

import pytest
from torch import nn

from autopar.errors import CaptureError
from tests import models
from tests.capture.compare import captured_equals_eager
from tests.daily import daily
from tests.nn_modules import EVERY, MODULES, REFUSED, Between

DAILY = ("nn.CTCLoss", "nn.GaussianNLLLoss", "nn.MultiheadAttention", "nn.PReLU", "nn.GRU")
CONTAINERS = {
    "Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "ParameterDict",
    "ParameterList", "RNNBase", "RNNCellBase", "Sequential",
}  # fmt: skip
ELSEWHERE = {
    "FractionalMaxPool3d", "Linear", "LinearCrossEntropyLoss", "MaxUnpool2d", "MaxUnpool3d",
    "TransformerDecoder", "TransformerEncoder",
}  # fmt: skip
"""Not tried here: as their relatives, or inside of them."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", daily(MODULES, DAILY))
def test_is_captured(name: str) -> None:
    model, inputs, _ = models.double(MODULES[name]())
    captured_equals_eager(model, inputs, tolerance=1e-10)


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name: str) -> None:
    make, use = EVERY[name]
    _, inputs, _ = MODULES["nn.ReLU"]()
    with pytest.raises(CaptureError, match=REFUSED[name]):
        captured_equals_eager(Between(make, use), inputs)


def test_none_is_forgotten() -> None:
    kinds = {
        name
        for name, kind in vars(nn).items()
        if isinstance(kind, type) and issubclass(kind, nn.Module) and not name.startswith("Lazy")
    }
    tried = {name.split()[0] for name in EVERY}
    assert kinds - tried - CONTAINERS - ELSEWHERE == set()
