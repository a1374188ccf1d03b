"""The six models of the race, as `transformers` builds them from a configuration; nothing is downloaded.

A step of each takes some hundred milliseconds on one core.  Every sample has as many targets as any
other, so that the mean of the ranks' mean losses is the batch's: data parallelism takes it for that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import transformers
from torch import nn

HEADS, PATCH, EXPERTS = 4, 8, 4
BATCHES = 4
"""So many different batches take turns."""

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """Of all models; `image` is a side in pixels."""

    batch: int = 16
    sequence: int = 64
    hidden: int = 192
    vocabulary: int = 2048
    layers: int = 8
    image: int = 64
    classes: int = 100

    @property
    def inner(self) -> int:
        """Width of the products inside a block."""
        return 4 * self.hidden


TINY = Sizes(batch=8, sequence=8, hidden=48, vocabulary=64, layers=4, image=16, classes=8)
"""For comparing with one process alone."""


@dataclass(frozen=True)
class Model:
    """How to build one, and what it trains on: `blocks` are where its repeated modules are."""

    name: str
    says: str
    of: Callable[[Sizes], nn.Module]
    batch: Callable[[Sizes, torch.Generator], Batch]
    blocks: tuple[str, ...]
    sizes: Sizes = Sizes()

    def make(self) -> nn.Module:
        """The same weights at every call, in train mode."""
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            return self.of(self.sizes).train()

    def batches(self) -> list[Batch]:
        """Global ones."""
        generator = torch.Generator().manual_seed(1)
        return [self.batch(self.sizes, generator) for _ in range(BATCHES)]

    @property
    def blocks_in_all(self) -> int:
        """How many there are to share out among stages."""
        with torch.device("meta"):
            return len(self.layers_of(self.of(self.sizes)))

    def layers_of(self, model: nn.Module) -> list[nn.Module]:
        """The repeated modules, in the order in which they run."""
        return [layer for path in self.blocks for layer in model.get_submodule(path)]


def _tokens(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(3, sizes.vocabulary, (sizes.batch, sizes.sequence), generator=generator)


def _text(sizes: Sizes, generator: torch.Generator) -> Batch:
    ids = _tokens(sizes, generator)
    return {"input_ids": ids, "labels": ids}


def _pairs(sizes: Sizes, generator: torch.Generator) -> Batch:
    return {"input_ids": _tokens(sizes, generator), "labels": _tokens(sizes, generator)}


def _images(sizes: Sizes, generator: torch.Generator) -> Batch:
    pixels = torch.randn(sizes.batch, 3, sizes.image, sizes.image, generator=generator)
    return {
        "pixel_values": pixels,
        "labels": torch.randint(0, sizes.classes, (sizes.batch,), generator=generator),
    }


def gpt2(sizes: Sizes) -> nn.Module:
    """Tied embeddings, one product for query, key and value."""
    config = transformers.GPT2Config(
        n_layer=sizes.layers, n_head=HEADS, n_embd=sizes.hidden, vocab_size=sizes.vocabulary,
        n_positions=sizes.sequence,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False,
        bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama(sizes: Sizes) -> nn.Module:
    """Grouped queries, rotary positions, gated products."""
    config = transformers.LlamaConfig(
        num_hidden_layers=sizes.layers, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        hidden_size=sizes.hidden, intermediate_size=2 * sizes.inner // 3, vocab_size=sizes.vocabulary,
        max_position_embeddings=sizes.sequence, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert(sizes: Sizes) -> nn.Module:
    """Masked language modelling; the decoder's weight is the embedding's."""
    config = transformers.BertConfig(
        num_hidden_layers=sizes.layers, num_attention_heads=HEADS, hidden_size=sizes.hidden,
        intermediate_size=sizes.inner, vocab_size=sizes.vocabulary,
        max_position_embeddings=sizes.sequence,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def t5(sizes: Sizes) -> nn.Module:
    """An encoder and a decoder that attends to it; one table of position biases for each side."""
    config = transformers.T5Config(
        num_layers=sizes.layers // 2, num_decoder_layers=sizes.layers // 2, num_heads=HEADS,
        d_model=sizes.hidden,
        d_kv=sizes.hidden // HEADS, d_ff=sizes.inner, vocab_size=sizes.vocabulary,
        dropout_rate=0.0, use_cache=False,
        pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def vit(sizes: Sizes) -> nn.Module:
    """Patches and a class token."""
    config = transformers.ViTConfig(
        num_hidden_layers=sizes.layers, num_attention_heads=HEADS, hidden_size=sizes.hidden,
        intermediate_size=sizes.inner, image_size=sizes.image, patch_size=PATCH,
        num_labels=sizes.classes,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def moe(sizes: Sizes) -> nn.Module:
    """Mixtral: every token to two of four experts, as many as come; without the balancing loss, which
    is not a mean over samples, so that data parallelism as people use it would train another model."""
    config = transformers.MixtralConfig(
        num_hidden_layers=sizes.layers // 2, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        hidden_size=sizes.hidden, intermediate_size=sizes.inner // 2, vocab_size=sizes.vocabulary,
        use_cache=False, max_position_embeddings=sizes.sequence, num_local_experts=EXPERTS,
        num_experts_per_tok=2,
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
