"""Sizes and inputs that the architectures share: sizes differ pairwise and four divides most of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Case = tuple[nn.Module, dict[str, Any], Callable[..., torch.Tensor] | None]
"""The model in train mode, a batch of keyword arguments, and a loss where the model has none."""
BATCH, SEQUENCE, HEADS, HIDDEN, INNER, VOCAB, LAYERS = 8, 16, 4, 48, 80, 128, 2
CLASSES, CHANNELS, IMAGE = 20, 4, 32


def generator(seed: int = 0) -> torch.Generator:
    """Random numbers that other tests do not touch."""
    return torch.Generator().manual_seed(seed)


def ids(sequence: int = SEQUENCE, seed: int = 0, first: int = 3) -> torch.Tensor:
    """Token ids; those below `first` (padding, begin, end) do not occur."""
    return torch.randint(first, VOCAB, (BATCH, sequence), generator=generator(seed))


def labels(of: torch.Tensor) -> torch.Tensor:
    """The same tokens, some of them and one whole row ignored."""
    made = of.clone()
    made[1] = -100
    made[2, : of.shape[1] // 2] = -100
    made[5, 3] = -100
    return made


def text() -> dict[str, torch.Tensor]:
    """What a decoder trains on."""
    tokens = ids()
    return {"input_ids": tokens, "labels": labels(tokens)}


def padded_text() -> dict[str, torch.Tensor]:
    """What an encoder trains on: with an attention mask."""
    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.int64)
    mask[3, SEQUENCE // 2 :] = 0
    return {**text(), "attention_mask": mask}


def images(size: int = IMAGE, channels: int = CHANNELS) -> torch.Tensor:
    """Normalised pixels."""
    return torch.randn(BATCH, channels, size, size, generator=generator(1))


def classes(count: int = CLASSES) -> torch.Tensor:
    """One class per sample."""
    return torch.randint(0, count, (BATCH,), generator=generator(2))


def of_transformers(
    model: str, config: str, settings: Mapping[str, Any], inputs: dict[str, Any], seed: int = 0
) -> Case:
    """A model as `transformers` builds it from a configuration."""
    import transformers

    made = getattr(transformers, config)(**settings)
    return seeded(lambda: getattr(transformers, model)(made), seed), inputs, None


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The model with the same weights at every call."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = make()
    return model.train()
