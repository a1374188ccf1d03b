"""A batch for each task, for whatever configuration the model has."""

from __future__ import annotations

from typing import Any

import torch

BATCH, SEQUENCE, CHOICES, SOUND = 8, 16, 2, 1600


def batch(task: str, config: Any) -> dict[str, torch.Tensor]:
    """Arguments of forward, labels among them."""
    return _BATCHES[task](config)


def _field(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these that the configuration, or its text's or picture's part, has."""
    inner = [getattr(config, part, None) for part in ("text_config", "vision_config", "encoder")]
    for holder in (config, *filter(None, inner)):
        for name in names:
            value = getattr(holder, name, None)
            if value is not None:
                return value
    return default


def _tokens(config: Any, *shape: int, seed: int = 0) -> torch.Tensor:
    vocabulary = _field(config, "vocab_size", default=128)
    special = [
        value
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id")
        if isinstance(value := _field(config, name), int)
    ]
    first = max((v for v in special if v < vocabulary // 2), default=0) + 1
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(first, vocabulary // 2 + 8, shape, generator=generator)
    return made


def _classes(count: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(2))


def _language(config: Any) -> dict[str, torch.Tensor]:
    tokens = _tokens(config, BATCH, SEQUENCE)
    labels = tokens.clone()
    labels[1] = -100
    labels[2, : SEQUENCE // 2] = -100
    return {"input_ids": tokens, "labels": labels}


def _masked(config: Any) -> dict[str, torch.Tensor]:
    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.long)
    mask[3, SEQUENCE // 2 :] = 0
    return {**_language(config), "attention_mask": mask}


def _sequence_classes(config: Any) -> dict[str, torch.Tensor]:
    tokens = _tokens(config, BATCH, SEQUENCE)
    eos = _field(config, "eos_token_id")
    if isinstance(eos, int) and _field(config, "is_encoder_decoder", default=False):
        tokens[:, -1] = eos  # BART reads the state at the end mark
    return {"input_ids": tokens, "labels": _classes(_field(config, "num_labels", default=2), BATCH)}


def _token_classes(config: Any) -> dict[str, torch.Tensor]:
    labels = _classes(_field(config, "num_labels", default=2), BATCH, SEQUENCE)
    return {"input_ids": _tokens(config, BATCH, SEQUENCE), "labels": labels}


def _answers(config: Any) -> dict[str, torch.Tensor]:
    start = _classes(SEQUENCE // 2, BATCH)
    return {
        "input_ids": _sequence_classes(config)["input_ids"],
        "start_positions": start,
        "end_positions": start + 3,
    }


def _choices(config: Any) -> dict[str, torch.Tensor]:
    return {
        "input_ids": _tokens(config, BATCH, CHOICES, SEQUENCE),
        "labels": _classes(CHOICES, BATCH),
    }


def _pixels(config: Any) -> torch.Tensor:
    size = _field(config, "image_size", "img_size", default=32)
    height, width = (size, size) if isinstance(size, int) else (size[-2], size[-1])
    channels = _field(config, "num_channels", "in_channels", default=3)
    return torch.randn(BATCH, channels, height, width, generator=torch.Generator().manual_seed(1))


def _image_classes(config: Any) -> dict[str, torch.Tensor]:
    labels = _classes(_field(config, "num_labels", default=2), BATCH)
    return {"pixel_values": _pixels(config), "labels": labels}


def _segments(config: Any) -> dict[str, torch.Tensor]:
    pixels = _pixels(config)
    classes = _classes(_field(config, "num_labels", default=2), BATCH, *pixels.shape[-2:])
    return {"pixel_values": pixels, "labels": classes}


def _masked_image(config: Any) -> dict[str, torch.Tensor]:
    pixels = _pixels(config)
    patch = _field(config, "patch_size", default=8)
    count = (pixels.shape[-1] // patch) * (pixels.shape[-2] // patch)
    drawn = torch.rand(BATCH, count, generator=torch.Generator().manual_seed(3)) < 0.5
    return {"pixel_values": pixels, "bool_masked_pos": drawn}


def _wave() -> torch.Tensor:
    return torch.randn(BATCH, SOUND, generator=torch.Generator().manual_seed(4))


def _sound(config: Any) -> dict[str, torch.Tensor]:
    bins = _field(config, "num_mel_bins", "input_feat_per_channel")
    if bins is None:
        return {"input_values": _wave()}
    frames = 2 * _field(config, "max_source_positions", "max_length", default=32)
    generator = torch.Generator().manual_seed(4)
    return {"input_features": torch.randn(BATCH, frames, bins, generator=generator)}


def _transcribed(config: Any) -> dict[str, torch.Tensor]:
    return {**_sound(config), "labels": _tokens(config, BATCH, 3)}


def _heard_classes(config: Any) -> dict[str, torch.Tensor]:
    return {**_sound(config), "labels": _classes(_field(config, "num_labels", default=2), BATCH)}


def _speech(config: Any) -> dict[str, torch.Tensor]:
    return {**_sound(config), "labels": _tokens(config, BATCH, SEQUENCE)}


_BATCHES = {
    "CAUSAL_LM": _language,
    "MASKED_LM": _masked,
    "SEQ_TO_SEQ_CAUSAL_LM": _language,
    "IMAGE_CLASSIFICATION": _image_classes,
    "SEMANTIC_SEGMENTATION": _segments,
    "CTC": _transcribed,
    "AUDIO_CLASSIFICATION": _heard_classes,
    "SPEECH_SEQ_2_SEQ": _speech,
    "MASKED_IMAGE_MODELING": _masked_image,
    "SEQUENCE_CLASSIFICATION": _sequence_classes,
    "TOKEN_CLASSIFICATION": _token_classes,
    "QUESTION_ANSWERING": _answers,
    "MULTIPLE_CHOICE": _choices,
}
