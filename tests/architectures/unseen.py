"""Architectures that nobody looked at while autopar was written."""

from __future__ import annotations

from typing import Any

import torch

from tests.architectures.decoders import GATED, NAMES
from tests.architectures.sizes import (
    BATCH,
    CLASSES,
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    SEQUENCE,
    VOCAB,
    Case,
    classes,
    generator,
    ids,
    images,
    of_transformers,
    padded_text,
    text,
)

SEQ2SEQ: dict[str, Any] = {
    "d_model": HIDDEN, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "vocab_size": VOCAB,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER, "decoder_start_token_id": 2,
}  # fmt: skip


def mpt(dropout: float = 0.0) -> Case:
    """ALiBi, fused query-key-value without biases."""
    settings = {
        "d_model": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS, "expansion_ratio": 2,
        "max_seq_len": SEQUENCE, "vocab_size": VOCAB, "emb_pdrop": dropout, "resid_pdrop": dropout,
    }  # fmt: skip
    return of_transformers("MptForCausalLM", "MptConfig", settings, text())


def gpt_bigcode(dropout: float = 0.0) -> Case:
    """One key-value head for all queries, fused with them."""
    settings = {
        "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_inner": INNER,
        "n_positions": SEQUENCE, "vocab_size": VOCAB, "multi_query": True, "bos_token_id": 1,
        "eos_token_id": 2, "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
    }  # fmt: skip
    return of_transformers("GPTBigCodeForCausalLM", "GPTBigCodeConfig", settings, text())


def gptj(dropout: float = 0.0) -> Case:
    """Rotation of every other feature, attention and feed-forward side by side."""
    settings = {
        "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": SEQUENCE,
        "vocab_size": VOCAB, "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2,
        "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
    }  # fmt: skip
    return of_transformers("GPTJForCausalLM", "GPTJConfig", settings, text())


def gemma2(dropout: float = 0.0) -> Case:
    """Capped logits, norms before and after, windows in every other layer."""
    settings = {
        **GATED, "head_dim": HIDDEN // HEADS, "sliding_window": SEQUENCE // 2,
        "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("Gemma2ForCausalLM", "Gemma2Config", settings, text())


def cohere2(dropout: float = 0.0) -> Case:
    """Norms without bias, parallel blocks, scaled logits."""
    settings = {**GATED, "sliding_window": SEQUENCE // 2, "attention_dropout": dropout}
    return of_transformers("Cohere2ForCausalLM", "Cohere2Config", settings, text())


def qwen2_moe(dropout: float = 0.0) -> Case:
    """A shared expert behind a gate of its own beside the routed ones."""
    settings = {
        **GATED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 32, "attention_dropout": dropout,
        "experts_implementation": "batched_mm",
    }  # fmt: skip
    return of_transformers("Qwen2MoeForCausalLM", "Qwen2MoeConfig", settings, text())


def mamba2(dropout: float = 0.0) -> Case:
    """A state space in chunks: causal convolutions, segment sums, no attention."""
    settings = {
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_heads": 8, "head_dim": 12,
        "state_size": 8, "n_groups": 2, "chunk_size": 8, "vocab_size": VOCAB,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return of_transformers("Mamba2ForCausalLM", "Mamba2Config", settings, text())


def longformer(dropout: float = 0.0) -> Case:
    """Windows cut out by strides."""
    settings = {
        **NAMES, "intermediate_size": INNER, "attention_window": 4, "max_position_embeddings": 40,
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout,
    }  # fmt: skip
    return of_transformers("LongformerForMaskedLM", "LongformerConfig", settings, padded_text())


def longformer_local(dropout: float = 0.0) -> Case:
    """No token attends to all, which the encoder is told instead of asking the mask."""
    from transformers.models.longformer import modeling_longformer as library

    class Local(library.LongformerEncoder):
        def forward(
            self, hidden: torch.Tensor, attention_mask: torch.Tensor, padding_len: int = 0, **_: Any
        ) -> Any:
            for layer in self.layer:
                hidden = layer(
                    hidden, attention_mask=attention_mask, is_index_masked=attention_mask < 0,
                    is_global_attn=False,
                )[0]  # fmt: skip
            hidden = hidden[:, : hidden.shape[1] - padding_len]
            return library.LongformerBaseModelOutput(last_hidden_state=hidden)

    model, inputs, loss = longformer(dropout)
    model.longformer.encoder.__class__ = Local
    return model, inputs, loss


def fnet(dropout: float = 0.0) -> Case:
    """Fourier transforms for attention."""
    settings = {**NAMES, "intermediate_size": INNER, "hidden_dropout_prob": dropout}
    return of_transformers("FNetForMaskedLM", "FNetConfig", settings, text())


def pegasus(dropout: float = 0.0) -> Case:
    """Sinusoidal positions in an encoder and a decoder."""
    settings = {
        **SEQ2SEQ, "pad_token_id": 0, "eos_token_id": 1, "dropout": dropout,
        "attention_dropout": dropout, "activation_dropout": dropout,
        "max_position_embeddings": SEQUENCE,
    }  # fmt: skip
    return of_transformers("PegasusForConditionalGeneration", "PegasusConfig", settings, text())


def beit(dropout: float = 0.0) -> Case:
    """A bias by relative position, layer scales, patches pooled."""
    settings = {
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": INNER, "image_size": 16, "patch_size": 4, "num_channels": 4,
        "num_labels": CLASSES, "use_relative_position_bias": True, "drop_path_rate": dropout,
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout,
    }  # fmt: skip
    inputs = {"pixel_values": images(16), "labels": classes()}
    return of_transformers("BeitForImageClassification", "BeitConfig", settings, inputs)


def dinov2(dropout: float = 0.0) -> Case:
    """Positions interpolated to the image, class token beside the mean of patches."""
    settings = {
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "mlp_ratio": 2, "image_size": 32, "patch_size": 4, "num_channels": 4,
        "num_labels": CLASSES, "drop_path_rate": dropout, "use_swiglu_ffn": True,
    }  # fmt: skip
    inputs = {"pixel_values": images(16), "labels": classes()}
    return of_transformers("Dinov2ForImageClassification", "Dinov2Config", settings, inputs)


def wav2vec2(dropout: float = 0.0) -> Case:
    """Convolutions over a wave, positions by a grouped convolution whose weight is normalised."""
    settings = {
        **NAMES, "intermediate_size": INNER, "conv_dim": (16, 16), "conv_kernel": (10, 3),
        "conv_stride": (5, 2), "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
        "apply_spec_augment": False, "layerdrop": 0.0, "hidden_dropout": dropout,
        "attention_dropout": dropout, "activation_dropout": dropout, "feat_proj_dropout": dropout,
        "final_dropout": dropout, "num_labels": CLASSES, "classifier_proj_size": 24,
    }  # fmt: skip
    wave = torch.randn(BATCH, 405, generator=generator(7))
    return of_transformers(
        "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", settings,
        {"input_values": wave, "labels": classes()},
    )  # fmt: skip


def jamba(dropout: float = 0.0) -> Case:
    """A selective state space, then attention, and experts in some layers."""
    settings = {
        **GATED, "num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 4,
        "expert_layer_offset": 3, "use_mamba_kernels": False, "attention_dropout": dropout,
    }  # fmt: skip
    return of_transformers("JambaForCausalLM", "JambaConfig", settings, text())


def nystromformer(dropout: float = 0.0) -> Case:
    """Attention by landmarks and an iterated inverse, a convolution beside it."""
    settings = {
        **NAMES, "intermediate_size": INNER, "num_landmarks": 4, "segment_means_seq_len": SEQUENCE,
        "max_position_embeddings": 40, "conv_kernel_size": 5, "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }  # fmt: skip
    return of_transformers("NystromformerForMaskedLM", "NystromformerConfig", settings, text())


def siglip(dropout: float = 0.0) -> Case:
    """Every image against every text by sigmoids; queries of one probe pool the image."""
    tower = {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "attention_dropout": dropout,
    }  # fmt: skip
    words = {"vocab_size": VOCAB, "max_position_embeddings": SEQUENCE, "projection_size": HIDDEN}
    pixels = {"image_size": 16, "patch_size": 4, "num_channels": 4}
    settings = {"text_config": {**tower, **words}, "vision_config": {**tower, **pixels}}
    inputs = {"input_ids": ids(), "pixel_values": images(16), "return_loss": True}
    return of_transformers("SiglipModel", "SiglipConfig", settings, inputs)
