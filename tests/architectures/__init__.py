"""A tiny instance of each architecture, as its library builds it, with its loss, in train mode.

``ARCHITECTURES[name](dropout=0.0)`` gives the model, a batch of keyword arguments, and a loss where the
model has none of its own; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.architectures import (
    decoders,
    encoder_decoders,
    encoders,
    experts,
    other,
    unseen,
    vision,
)
from tests.architectures.sizes import Case

FAMILIES: Mapping[str, tuple[Callable[..., Case], ...]] = MappingProxyType(
    {
        "decoder": (
            decoders.gpt2, decoders.llama, decoders.mistral, decoders.qwen2, decoders.gemma,
            decoders.opt, decoders.gpt_neox, decoders.falcon, decoders.phi3, decoders.bloom,
        ),
        "encoder": (
            encoders.bert, encoders.roberta, encoders.distilbert, encoders.electra,
            encoders.electra_unmasked, encoders.electra_own_loss, encoders.albert, encoders.deberta_v2,
        ),
        "encoder-decoder": (encoder_decoders.t5, encoder_decoders.bart, encoder_decoders.whisper),
        "vision": (
            vision.vit, vision.swin, vision.convnext, vision.resnet, vision.segformer, vision.clip,
        ),
        "experts": (
            experts.mixtral, experts.mixtral_batched, experts.mixtral_looped, experts.gshard,
        ),
        "other": (other.unet, other.dlrm, other.lstm, other.denoiser, other.graph_network),
        "unseen": (
            unseen.mpt, unseen.gpt_bigcode, unseen.gptj, unseen.gemma2, unseen.cohere2,
            unseen.qwen2_moe, unseen.mamba2, unseen.longformer, unseen.longformer_local, unseen.fnet,
            unseen.pegasus, unseen.beit, unseen.dinov2, unseen.wav2vec2, unseen.jamba,
            unseen.nystromformer, unseen.siglip,
        ),
    }
)  # fmt: skip
ARCHITECTURES: Mapping[str, Callable[..., Case]] = MappingProxyType(
    {make.__name__: make for family in FAMILIES.values() for make in family}
)
WORKAROUNDS: Mapping[str, tuple[Callable[..., Case], ...]] = MappingProxyType(
    {
        "electra": (encoders.electra_own_loss, encoders.electra_unmasked),
        "longformer": (unseen.longformer_local,),
    }
)
"""What PyTorch cannot capture, and what a user can do: architectures that say it in their docstring."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "electra": "reads the value of a tensor",
        "longformer": "reads the value of a tensor",
    }
)
"""What cannot be captured, and why."""

__all__ = ["ARCHITECTURES", "FAMILIES", "REFUSED", "WORKAROUNDS", "Case"]
