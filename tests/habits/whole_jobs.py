"""What needs whole weights or other modules, asked of a parallel model; runs inside pool workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import autopar
from autopar.errors import InputError
from tests import models


class Extra(nn.Module):
    """Keeps a number in its state dict."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.value = value

    def get_extra_state(self) -> dict[str, int]:
        return {"value": self.value}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.value = state["value"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Two(nn.Module):
    """Two stages' worth of it."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.first, self.last = Extra(value), Extra(value + 1)
        self.value = 10 * value

    def get_extra_state(self) -> int:
        return self.value

    def set_extra_state(self, state: int) -> None:
        self.value = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu()).square().mean()


def extra(options: dict[str, Any]) -> None:
    """It goes through full_state_dict and load_state_dict, both ways."""
    parallel = autopar.parallelize(Two(3), 2, {"x": torch.ones(4, 8)}, hardware="cpu", **options)
    plain = Two(0)
    plain.load_state_dict(parallel.full_state_dict())
    assert (plain.first.value, plain.last.value, plain.value) == (3, 4, 30)
    assert parallel.state_dict()["_extra_state"] == 30
    assert parallel.state_dict(prefix="model.")["model._extra_state"] == 30
    plain.first.value = 7
    parallel.load_state_dict(plain.state_dict())
    assert parallel.first.value == 7
    lacking = {name: value for name, value in plain.state_dict().items() if "extra" not in name}
    parallel.load_state_dict(lacking, strict=False)
    before = parallel.full_state_dict()
    lacking = {name: value + 1 for name, value in lacking.items()}
    said(lambda: parallel.load_state_dict(lacking), "lacks '_extra_state'")
    after = parallel.full_state_dict()
    assert all(torch.equal(after[name], before[name]) for name in lacking), "partly loaded"


def said(call: Any, words: str) -> None:
    try:
        call()
    except InputError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error with {words!r}")


def refused() -> None:
    """Methods of Hugging Face models that need whole weights; weights stay as they were."""
    model, batch, loss = models.gpt2(layers=2)
    parallel = autopar.parallelize(model, 2, batch, loss=loss, preset="fsdp", hardware="cpu")
    before = parallel.full_state_dict()
    said(lambda: parallel.save_pretrained("/tmp/nowhere"), "state_dict=")
    said(lambda: parallel.generate(batch["input_ids"]), "generate there")
    said(lambda: parallel.resize_token_embeddings(100), "before autopar.parallelize")
    said(lambda: parallel.gradient_checkpointing_enable(), 'recompute="full"')
    model.load_state_dict(before)
