"""Mixtures of experts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import nn

from tests.architectures.decoders import GATED
from tests.architectures.sizes import (
    BATCH,
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    SEQUENCE,
    VOCAB,
    Case,
    generator,
    of_transformers,
    seeded,
    text,
)


def mixtral(dropout: float = 0.0, experts: str = "grouped_mm") -> Case:
    """Every token to two of four experts, as many as come: tokens sorted, products by group.

    This is what `transformers` takes by default; the products know no float64.
    """
    settings = {
        **GATED, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_dropout": dropout,
        "output_router_logits": True, "experts_implementation": experts,
    }  # fmt: skip
    return of_transformers("MixtralForCausalLM", "MixtralConfig", settings, text())


def mixtral_batched(dropout: float = 0.0) -> Case:
    """The weights of its experts are looked up for every token."""
    return mixtral(dropout, "batched_mm")


def mixtral_looped(dropout: float = 0.0) -> Case:
    """A Python loop over the experts that any token chose."""
    return mixtral(dropout, "eager")


@cache
def example_decoder() -> Callable[..., nn.Module]:
    """`Decoder` of examples/moe.py, by its path: pytest has another module of the name `examples`."""
    path = Path(__file__).parents[2] / "examples" / "moe.py"
    spec = importlib.util.spec_from_file_location("moe_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["moe_example"] = module
    spec.loader.exec_module(module)
    decoder: Callable[..., nn.Module] = module.Decoder
    return decoder


def gshard(dropout: float = 0.0) -> Case:
    """Experts of a fixed capacity, tokens sent and fetched by einsum."""
    decoder = example_decoder()

    def make() -> nn.Module:
        return decoder(VOCAB, HIDDEN, HEADS, INNER, LAYERS, SEQUENCE, experts=4, dropout=dropout)

    tokens = torch.randint(0, VOCAB, (BATCH, SEQUENCE), generator=generator())
    return seeded(make), {"input_ids": tokens, "labels": tokens.roll(-1, 1)}, None
