"""Encoder-only language models, trained on masked tokens (ELECTRA on replaced ones)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.architectures.sizes import (
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    SEQUENCE,
    VOCAB,
    Case,
    generator,
    of_transformers,
    padded_text,
)

NAMES: dict[str, Any] = {
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": SEQUENCE,
    "pad_token_id": 0,
}


def dropped(dropout: float) -> dict[str, float]:
    """What most configurations call the two dropouts."""
    return {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}


def bert(dropout: float = 0.0) -> Case:
    """Learned positions, token types, norm behind the residual."""
    settings = {**NAMES, **dropped(dropout)}
    return of_transformers("BertForMaskedLM", "BertConfig", settings, padded_text())


def roberta(dropout: float = 0.0) -> Case:
    """Positions counted over tokens that are no padding."""
    settings = {**NAMES, **dropped(dropout), "max_position_embeddings": SEQUENCE + 4}
    inputs = padded_text()
    inputs["input_ids"] = inputs["input_ids"] * inputs["attention_mask"]
    return of_transformers("RobertaForMaskedLM", "RobertaConfig", settings, inputs)


def distilbert(dropout: float = 0.0) -> Case:
    """No token types, no pooler."""
    settings = {
        "n_layers": LAYERS, "n_heads": HEADS, "dim": HIDDEN, "hidden_dim": INNER,
        "vocab_size": VOCAB, "max_position_embeddings": SEQUENCE, "pad_token_id": 0,
        "dropout": dropout, "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("DistilBertForMaskedLM", "DistilBertConfig", settings, padded_text())


def electra(dropout: float = 0.0) -> Case:
    """Narrow embeddings; a binary loss over tokens that are no padding."""
    settings = {**NAMES, **dropped(dropout), "embedding_size": 24}
    inputs = padded_text()
    replaced = torch.rand(inputs["input_ids"].shape, generator=generator(3)) < 0.3
    inputs["labels"] = replaced.long()
    return of_transformers("ElectraForPreTraining", "ElectraConfig", settings, inputs)


def electra_unmasked(dropout: float = 0.0) -> Case:
    """No sample is padded, so the loss counts every token."""
    model, inputs, loss = electra(dropout)
    inputs.pop("attention_mask")
    return model, inputs, loss


def electra_own_loss(dropout: float = 0.0) -> Case:
    """With a mask, by a loss of one's own: tokens that do not count are multiplied by zero."""
    model, inputs, _ = electra(dropout)
    inputs["counted"] = inputs["attention_mask"].float()
    inputs["replaced"] = inputs.pop("labels").float()

    def loss(output: Any, replaced: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        each = F.binary_cross_entropy_with_logits(output.logits, replaced, reduction="none")
        return (each * counted).sum() / counted.sum()

    return model, inputs, loss


def albert(dropout: float = 0.0) -> Case:
    """One block's weights used in every layer."""
    settings = {**NAMES, **dropped(dropout), "embedding_size": 24}
    return of_transformers("AlbertForMaskedLM", "AlbertConfig", settings, padded_text())


def deberta_v2(dropout: float = 0.0) -> Case:
    """Relative positions in buckets, content to position and back, as DeBERTa-v3 has them."""
    settings = {
        **NAMES, **dropped(dropout), "relative_attention": True, "position_buckets": 4,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": -1,
    }  # fmt: skip
    return of_transformers("DebertaV2ForMaskedLM", "DebertaV2Config", settings, padded_text())
