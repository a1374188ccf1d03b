"""GPT-2-XL and Llama-3-8B, whole or with fewer layers, and a batch for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]


def gpt2_xl(layers: int = 48) -> nn.Module:
    """1.56 B parameters; no dropout, so that two runs can be compared."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=1600, n_head=25, n_positions=1024, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama3_8b(layers: int = 32) -> nn.Module:
    """8.03 B parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=4096, intermediate_size=14336, vocab_size=128256,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
        rope_theta=500000.0, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


MODELS: dict[str, Callable[..., nn.Module]] = {"GPT-2-XL": gpt2_xl, "Llama-3-8B": llama3_8b}


def batch_of(rows: int, tokens: int, device: str) -> Batch:
    """Token ids that are their own labels."""
    if device == "meta":
        ids = torch.zeros(rows, tokens, dtype=torch.int64, device="meta")
    else:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, 50_000, (rows, tokens), generator=generator).to(device)
    return {"input_ids": ids, "labels": ids}


def built(name: str, layers: int | None, dtype: torch.dtype, device: str) -> Any:
    """The model in training mode, from one seed."""
    make = MODELS[name]
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return (make() if layers is None else make(layers)).train()
    finally:
        torch.set_default_dtype(before)
