"""Decoder-only language models."""

from __future__ import annotations

from typing import Any

from tests.architectures.sizes import (
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    SEQUENCE,
    VOCAB,
    Case,
    of_transformers,
    text,
)

NAMES: dict[str, Any] = {
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "max_position_embeddings": SEQUENCE,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""What most configurations call the sizes."""
GATED: dict[str, Any] = {**NAMES, "num_key_value_heads": 2, "intermediate_size": INNER}


def gpt2(dropout: float = 0.0) -> Case:
    """Learned positions, fused query-key-value, tied embeddings."""
    settings = {
        "n_layer": LAYERS, "n_head": HEADS, "n_embd": HIDDEN, "n_inner": INNER,
        "vocab_size": VOCAB, "n_positions": SEQUENCE, "bos_token_id": 1, "eos_token_id": 2,
        "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
    }  # fmt: skip
    return of_transformers("GPT2LMHeadModel", "GPT2Config", settings, text())


def llama(dropout: float = 0.0) -> Case:
    """Rotary positions, grouped queries, gated feed-forward."""
    settings = {**GATED, "attention_dropout": dropout}
    return of_transformers("LlamaForCausalLM", "LlamaConfig", settings, text())


def mistral(dropout: float = 0.0) -> Case:
    """A sliding window shorter than the sequence."""
    settings = {**GATED, "attention_dropout": dropout, "sliding_window": SEQUENCE // 4}
    return of_transformers("MistralForCausalLM", "MistralConfig", settings, text())


def qwen2(dropout: float = 0.0) -> Case:
    """Biases in query, key and value."""
    settings = {**GATED, "attention_dropout": dropout}
    return of_transformers("Qwen2ForCausalLM", "Qwen2Config", settings, text())


def gemma(dropout: float = 0.0) -> Case:
    """One key-value head, a head dim of its own, scaled embeddings."""
    settings = {
        **GATED, "num_key_value_heads": 1, "head_dim": 20, "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("GemmaForCausalLM", "GemmaConfig", settings, text())


def opt(dropout: float = 0.0) -> Case:
    """Learned positions with an offset, ReLU."""
    settings = {
        **NAMES, "ffn_dim": INNER, "word_embed_proj_dim": HIDDEN, "dropout": dropout,
        "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("OPTForCausalLM", "OPTConfig", settings, text())


def gpt_neox(dropout: float = 0.0) -> Case:
    """Partly rotary, parallel residual, query-key-value fused per head."""
    settings = {
        **NAMES, "intermediate_size": INNER, "rotary_pct": 0.5, "hidden_dropout": dropout,
        "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("GPTNeoXForCausalLM", "GPTNeoXConfig", settings, text())


def falcon(dropout: float = 0.0) -> Case:
    """Multi-query attention, parallel residual, no biases."""
    settings = {
        **NAMES, "ffn_hidden_size": INNER, "hidden_dropout": dropout, "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("FalconForCausalLM", "FalconConfig", settings, text())


def phi3(dropout: float = 0.0) -> Case:
    """Fused query-key-value with grouped queries, fused gate and up."""
    settings = {
        **GATED, "attention_dropout": dropout, "resid_pdrop": dropout, "embd_pdrop": dropout,
    }  # fmt: skip
    return of_transformers("Phi3ForCausalLM", "Phi3Config", settings, text())


def bloom(dropout: float = 0.0) -> Case:
    """Linear biases for positions (ALiBi), norm behind the embedding."""
    settings = {
        "n_layer": LAYERS, "n_head": HEADS, "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_dropout": dropout,
        "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("BloomForCausalLM", "BloomConfig", settings, text())
