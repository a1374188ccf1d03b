"""Hooks, forwards and marks that people put on a model and its parameters, on ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import autopar
from autopar.errors import InputError
from tests.habits.outside_jobs import Base, batches, entropy


def parallel_of(model: torch.nn.Module, options: dict[str, Any]) -> Any:
    return autopar.parallelize(model, 2, batches(1)[0], loss=entropy, **options)


def beside_forward(options: dict[str, Any]) -> None:
    """What a step would not call raises; without it the step runs, and nothing is left behind."""
    parallel, batch = parallel_of(Base().double(), options), batches(1)[0]
    parts = {} if "pipeline" in options else {"microbatches": 2}
    want = parallel.train_step(**batch, **parts)
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        handle = getattr(parallel, register)(lambda *given: None)
        with pytest.raises(InputError, match="has hooks, which train_step does not call"):
            parallel.train_step(**batch, **parts)
        handle.remove()
    parallel.forward = lambda **given: None
    with pytest.raises(InputError, match="a forward that was set on it"):
        parallel.train_step(**batch, **parts)
    del parallel.forward
    layer = parallel.layers[0]
    kept, layer.forward = layer.forward, lambda x: x
    with pytest.raises(InputError, match=r"layers\.0\.forward was replaced"):
        parallel.train_step(**batch, **parts)
    layer.forward = kept
    assert torch.equal(parallel.train_step(**batch, **parts), want)


def marks(options: dict[str, Any]) -> None:
    """Groups by an attribute of parameters are those of one process."""
    model = Base().double()
    model.head.bias._no_weight_decay = True
    model.layers[1].weight.scale = 0.5
    parallel = parallel_of(model, options)
    for name, parameter in parallel.named_parameters():
        assert getattr(parameter, "_no_weight_decay", False) == (name == "head.bias"), name
        assert getattr(parameter, "scale", None) == (0.5 if name == "layers.1.weight" else None)
