"""Models of images, and of images with text."""

from __future__ import annotations

from typing import Any

import torch

from tests.architectures.sizes import (
    CHANNELS,
    CLASSES,
    HEADS,
    HIDDEN,
    IMAGE,
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
)


def labelled() -> dict[str, torch.Tensor]:
    """Images and their classes."""
    return {"pixel_values": images(), "labels": classes()}


def vit(dropout: float = 0.0) -> Case:
    """Patches, a class token, learned positions."""
    settings = {
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "image_size": IMAGE, "patch_size": 8, "num_channels": CHANNELS,
        "num_labels": CLASSES, "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }  # fmt: skip
    return of_transformers("ViTForImageClassification", "ViTConfig", settings, labelled())


def swin(dropout: float = 0.0) -> Case:
    """Shifted windows, patches merged between stages."""
    settings = {
        "image_size": IMAGE, "patch_size": 2, "num_channels": CHANNELS, "embed_dim": 24,
        "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "num_labels": CLASSES,
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout,
        "drop_path_rate": dropout,
    }  # fmt: skip
    return of_transformers("SwinForImageClassification", "SwinConfig", settings, labelled())


def convnext(dropout: float = 0.0) -> Case:
    """Depthwise convolutions, norms over channels, layer scale."""
    settings = {
        "num_channels": CHANNELS, "patch_size": 4, "num_stages": 2, "hidden_sizes": [24, 48],
        "depths": [2, 2], "image_size": IMAGE, "num_labels": CLASSES, "drop_path_rate": dropout,
    }  # fmt: skip
    return of_transformers("ConvNextForImageClassification", "ConvNextConfig", settings, labelled())


def resnet(dropout: float = 0.0) -> Case:
    """Bottleneck blocks with batch norm; it has no dropout."""
    settings = {
        "num_channels": CHANNELS, "embedding_size": 16, "hidden_sizes": [24, 48],
        "depths": [2, 2], "layer_type": "bottleneck", "num_labels": CLASSES,
    }  # fmt: skip
    return of_transformers("ResNetForImageClassification", "ResNetConfig", settings, labelled())


def segformer(dropout: float = 0.0) -> Case:
    """Attention over reduced keys, depthwise convolutions, a head that sees all stages."""
    settings = {
        "num_channels": CHANNELS, "num_encoder_blocks": 2, "depths": [2, 2], "sr_ratios": [4, 2],
        "hidden_sizes": [24, 48], "patch_sizes": [7, 3], "strides": [2, 2],
        "num_attention_heads": [2, 4], "mlp_ratios": [2, 2], "decoder_hidden_size": 40,
        "num_labels": CLASSES, "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout, "classifier_dropout_prob": dropout,
        "drop_path_rate": dropout,
    }  # fmt: skip
    pixels = images()
    shape = (pixels.shape[0], IMAGE, IMAGE)
    goal = torch.randint(0, CLASSES, shape, generator=generator(6))
    goal[1, :8] = 255
    inputs = {"pixel_values": pixels, "labels": goal}
    name = "SegformerForSemanticSegmentation"
    return of_transformers(name, "SegformerConfig", settings, inputs)


def clip(dropout: float = 0.0) -> Case:
    """Two towers, and a loss over all pairs of the batch."""
    both: dict[str, Any] = {
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "attention_dropout": dropout,
    }  # fmt: skip
    text = {
        **both, "vocab_size": VOCAB, "max_position_embeddings": SEQUENCE, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    vision = {**both, "image_size": IMAGE, "patch_size": 8, "num_channels": CHANNELS}
    settings = {"text_config": text, "vision_config": vision, "projection_dim": 40}
    tokens = ids()
    tokens[:, -2] = 2
    inputs = {"input_ids": tokens, "pixel_values": images(), "return_loss": True}
    return of_transformers("CLIPModel", "CLIPConfig", settings, inputs)
