"""Mixtures of experts with three layers, as `transformers` builds them: routers of four families."""

from __future__ import annotations

from typing import Any

from tests.architectures.sizes import HEADS, HIDDEN, INNER, VOCAB, Case, of_transformers, text

EXPERTS, CHOICES, LAYERS = 8, 2, 3
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "num_experts_per_tok": CHOICES, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
    "experts_implementation": "batched_mm",
}  # fmt: skip


def mixtral() -> Case:
    """Softmax over all experts, then the best."""
    settings = {**_SIZES, "num_local_experts": EXPERTS}
    return of_transformers("MixtralForCausalLM", "MixtralConfig", settings, text())


def qwen3_moe() -> Case:
    """As Mixtral; narrower experts."""
    settings = {**_SIZES, "num_experts": EXPERTS, "moe_intermediate_size": 40, "head_dim": 12}
    return of_transformers("Qwen3MoeForCausalLM", "Qwen3MoeConfig", settings, text())


def deepseek_v3() -> Case:
    """Sigmoids, the best groups, a bias that balances; shared experts; the first layer is dense."""
    settings = {
        **_SIZES, "n_routed_experts": EXPERTS, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
        "moe_intermediate_size": 40, "first_k_dense_replace": 1, "q_lora_rank": 24,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    }  # fmt: skip
    return of_transformers("DeepseekV3ForCausalLM", "DeepseekV3Config", settings, text())


def gpt_oss() -> Case:
    """The best experts, then softmax over them; biases, and clamped gates between others' columns."""
    settings = {**_SIZES, "num_local_experts": EXPERTS, "head_dim": 12, "sliding_window": 8}
    return of_transformers("GptOssForCausalLM", "GptOssConfig", settings, text())


MIXTURES = {
    "mixtral": mixtral, "qwen3_moe": qwen3_moe, "deepseek_v3": deepseek_v3, "gpt_oss": gpt_oss,
}  # fmt: skip
