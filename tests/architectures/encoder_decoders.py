"""Models with an encoder and a decoder that attends to it."""

from __future__ import annotations

import torch

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
    ids,
    labels,
    of_transformers,
)

TARGETS = 12
"""Length of what the decoder writes; the encoder reads another one."""


def sources() -> dict[str, torch.Tensor]:
    """What the encoder reads, and what the decoder shall write."""
    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.int64)
    mask[3, SEQUENCE // 2 :] = 0
    targets = labels(ids(TARGETS, seed=4))
    return {"input_ids": ids(), "attention_mask": mask, "labels": targets}


def t5(dropout: float = 0.0) -> Case:
    """Relative position biases in buckets, shared by all layers; norms without mean."""
    settings = {
        "num_layers": LAYERS, "num_heads": HEADS, "d_model": HIDDEN, "d_kv": 20, "d_ff": INNER,
        "vocab_size": VOCAB, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12, "dropout_rate": dropout, "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    return of_transformers("T5ForConditionalGeneration", "T5Config", settings, sources())


def bart(dropout: float = 0.0) -> Case:
    """Learned positions, one embedding for both sides and the head."""
    settings = {
        "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "d_model": HIDDEN, "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER, "vocab_size": VOCAB, "max_position_embeddings": SEQUENCE,
        "dropout": dropout, "attention_dropout": dropout, "activation_dropout": dropout,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
    }  # fmt: skip
    return of_transformers("BartForConditionalGeneration", "BartConfig", settings, sources())


def whisper(dropout: float = 0.0) -> Case:
    """Convolutions over mel frames, then an encoder; text from a decoder."""
    mels = 20
    settings = {
        "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "d_model": HIDDEN, "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER, "vocab_size": VOCAB, "num_mel_bins": mels,
        "max_source_positions": SEQUENCE, "max_target_positions": TARGETS, "dropout": dropout,
        "attention_dropout": dropout, "activation_dropout": dropout, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    frames = torch.randn(BATCH, mels, 2 * SEQUENCE, generator=generator(5))
    inputs = {"input_features": frames, "labels": labels(ids(TARGETS, seed=4))}
    return of_transformers("WhisperForConditionalGeneration", "WhisperConfig", settings, inputs)
