"""What `predict.py` predicts and measures: networks, models at two sizes, plans.

Operators are timed at other sizes of each model than steps are measured at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

Case = tuple[nn.Module, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Network:
    """Hosts of so many ranks each; one host, or two joined at a rate as tc says it."""

    name: str
    per_host: int
    mesh: tuple[int, ...]
    rate: str = ""

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.per_host * (2 if self.rate else 1)


NETWORKS = (
    Network("2 ranks", 2, (2,)),
    Network("4 ranks", 4, (2, 2)),
    Network("2 hosts of 1 rank", 1, (2,), "1gbit"),
    Network("2 hosts of 2 ranks", 2, (2, 2), "1gbit"),
)
PLANS: Mapping[int, tuple[str, ...]] = {
    2: ("ddp", "fsdp", "megatron", "solver"),
    4: ("ddp", "fsdp", "hsdp", "megatron", "solver"),
}
"""By the number of ranks; all but the last are presets."""


@dataclass(frozen=True)
class Size:
    """Of a transformer and its batch."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    batch: int
    sequence: int

    def __str__(self) -> str:
        return (
            f"{self.layers} layers of width {self.hidden}, {self.heads} heads, {self.vocabulary} words, "
            f"batch {self.batch} x {self.sequence} tokens"
        )


@dataclass(frozen=True)
class Model:
    """A model that is measured at one size, after its operators were timed at others."""

    make: Callable[[Size], nn.Module]
    measured: Size
    timed: tuple[Size, ...]

    def case(self, size: Size) -> Case:
        """The model and a batch, equal in every process."""
        torch.manual_seed(0)
        model = self.make(size)
        ids = torch.randint(0, size.vocabulary, (size.batch, size.sequence))
        return model, {"input_ids": ids, "labels": ids}


def gpt2(size: Size) -> nn.Module:
    """GPT-2 without dropout."""
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=size.layers, n_head=size.heads, n_embd=size.hidden,
            vocab_size=size.vocabulary, n_positions=size.sequence, use_cache=False,
            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
        )
    )  # fmt: skip


def llama(size: Size) -> nn.Module:
    """Llama with half as many key-value heads."""
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=size.layers, num_attention_heads=size.heads,
            num_key_value_heads=size.heads // 2, hidden_size=size.hidden,
            intermediate_size=3 * size.hidden, vocab_size=size.vocabulary,
            max_position_embeddings=size.sequence, use_cache=False,
        )
    )  # fmt: skip


MODELS: Mapping[str, Model] = {
    "GPT-2": Model(
        gpt2,
        Size(4, 256, 8, 2048, 16, 64),
        (Size(1, 192, 4, 1024, 16, 96), Size(1, 320, 4, 1536, 8, 96)),
    ),
    "Llama": Model(
        llama,
        Size(4, 256, 8, 1024, 8, 128),
        (Size(1, 192, 4, 768, 16, 96), Size(1, 320, 4, 1536, 8, 96)),
    ),
}
