"""The six models of the race, as `transformers` builds them from a configuration; nothing is downloaded.

A step of each takes some hundred milliseconds on one core.  Every sample has as many targets as any
other, so that the mean of the ranks' mean losses is the mean over the batch, as data parallelism takes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import nn

BATCH, SEQUENCE, HEADS, HIDDEN, INNER, VOCAB, LAYERS = 16, 64, 4, 192, 768, 2048, 8
CLASSES, IMAGE, PATCH, EXPERTS = 100, 64, 8, 4
BATCHES = 4
"""So many different batches take turns."""

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Model:
    """How to build one, and what it trains on: `blocks` are where its repeated modules are."""

    name: str
    says: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    blocks: tuple[str, ...]

    def make(self) -> nn.Module:
        """The same weights at every call, in train mode."""
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            return self.build().train()

    def batches(self) -> list[Batch]:
        """Global ones."""
        generator = torch.Generator().manual_seed(1)
        return [self.batch(generator) for _ in range(BATCHES)]

    def layers_of(self, model: nn.Module) -> list[nn.Module]:
        """The repeated modules, in the order in which they run."""
        return [layer for path in self.blocks for layer in model.get_submodule(path)]


def _tokens(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(3, VOCAB, (BATCH, SEQUENCE), generator=generator)


def _text(generator: torch.Generator) -> Batch:
    ids = _tokens(generator)
    return {"input_ids": ids, "labels": ids}


def _pairs(generator: torch.Generator) -> Batch:
    return {"input_ids": _tokens(generator), "labels": _tokens(generator)}


def _images(generator: torch.Generator) -> Batch:
    pixels = torch.randn(BATCH, 3, IMAGE, IMAGE, generator=generator)
    return {
        "pixel_values": pixels,
        "labels": torch.randint(0, CLASSES, (BATCH,), generator=generator),
    }


def gpt2() -> nn.Module:
    """Tied embeddings, one product for query, key and value."""
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=HIDDEN, vocab_size=VOCAB, n_positions=SEQUENCE,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False,
        bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Grouped queries, rotary positions, gated products."""
    config = transformers.LlamaConfig(
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        hidden_size=HIDDEN, intermediate_size=2 * INNER // 3, vocab_size=VOCAB,
        max_position_embeddings=SEQUENCE, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert() -> nn.Module:
    """Masked language modelling; the decoder's weight is the embedding's."""
    config = transformers.BertConfig(
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, hidden_size=HIDDEN,
        intermediate_size=INNER, vocab_size=VOCAB, max_position_embeddings=SEQUENCE,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def t5() -> nn.Module:
    """An encoder and a decoder that attends to it; one table of position biases for each side."""
    config = transformers.T5Config(
        num_layers=LAYERS // 2, num_decoder_layers=LAYERS // 2, num_heads=HEADS, d_model=HIDDEN,
        d_kv=HIDDEN // HEADS, d_ff=INNER, vocab_size=VOCAB, dropout_rate=0.0, use_cache=False,
        pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    """Patches and a class token."""
    config = transformers.ViTConfig(
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, hidden_size=HIDDEN,
        intermediate_size=INNER, image_size=IMAGE, patch_size=PATCH, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def moe() -> nn.Module:
    """Mixtral: every token to two of four experts, as many as come; without the balancing loss, which
    is not a mean over samples, so that data parallelism as people use it would train another model."""
    config = transformers.MixtralConfig(
        num_hidden_layers=LAYERS // 2, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        hidden_size=HIDDEN, intermediate_size=INNER // 2, vocab_size=VOCAB, use_cache=False,
        max_position_embeddings=SEQUENCE, num_local_experts=EXPERTS, num_experts_per_tok=2,
        output_router_logits=False, experts_implementation="grouped_mm",
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (
            Model("gpt2", "GPT-2", gpt2, _text, ("transformer.h",)),
            Model("llama", "Llama", llama, _text, ("model.layers",)),
            Model("bert", "BERT", bert, _pairs, ("bert.encoder.layer",)),
            Model("t5", "T5", t5, _pairs, ("encoder.block", "decoder.block")),
            Model("vit", "ViT", vit, _images, ("vit.layers",)),
            Model("moe", "MoE", moe, _text, ("model.layers",)),
        )
    }
)
