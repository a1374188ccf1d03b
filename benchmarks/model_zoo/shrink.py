"""A configuration of `transformers` made small: three layers, narrow, without dropout.

The rules speak of field names alone, so a model that is added to the library needs no line here.
"""

from __future__ import annotations

import re
from typing import Any

LAYERS, HEADS, KEY_VALUE_HEADS, HEAD, HIDDEN, INNER, VOCAB = 3, 4, 2, 16, 64, 96, 128
POSITIONS, IMAGE, PATCH, EXPERTS, CLASSES, RANK = 64, 32, 8, 4, 8, 16

SIZES: tuple[tuple[str, int], ...] = (
    (r"(num_|n_)?(hidden_|encoder_|decoder_|text_|block_)*layers?", LAYERS),
    (r"num_(encoder|decoder|hidden|transformer|attention|mamba|latent)_(layers|blocks)", LAYERS),
    (r"num_(key_value|kv)_heads|num_attention_heads_kv|n_head_kv|num_query_groups", KEY_VALUE_HEADS),
    (r"(num_|n_)?(encoder_|decoder_|text_|self_|cross_)*(attention_)?heads?", HEADS),
    (r"(attention_)?head_(dim|size)|d_kv|qk_(nope|rope)_head_dim|v_head_dim|kv_channels", HEAD),
    (r"rotary_dim", HEAD // 2),
    (r"(q|kv)_lora_rank", RANK),
    (r"hidden_(size|dim)|d_model|n_embd|(word_)?embed(ding)?_(dim|size)", HIDDEN),
    (r"(encoder|decoder)_hidden_size", HIDDEN),
    (r"projection_(dim|size)|proj_size|classifier_proj_size|conv_dim_out|dim", HIDDEN),
    (r"(\w+_)?intermediate_size|d_ff|ffn_(dim|hidden_size)|(encoder|decoder)_ffn_dim|n_inner", INNER),
    (r"(\w+_)?vocab_size", VOCAB),
    (r"n_positions|n_ctx|max_position_embeddings|max_(source|target)_positions|max_seq_len", POSITIONS),
    (r"image_size|img_size", IMAGE),
    (r"patch_size", PATCH),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts", EXPERTS),
    (r"num_experts_per_tok|moe_topk|moe_k|num_selected_experts", 2),
    (r"n_shared_experts|n_group|topk_group|first_k_dense_replace", 1),
    (r"(sliding|attention)_window(_size)?", POSITIONS // 4),
    (r"num_labels", CLASSES),
)  # fmt: skip
"""Field names, whole, and what they become where they are larger now."""
SWITCHED_OFF = re.compile(
    r".*(dropout|pdrop|layerdrop|drop_path|drop_rate|mask_time_prob|mask_feature_prob).*"
)
"""Fields that draw random numbers."""
TOKEN = re.compile(r".*token_(id|index)")
NESTED = 4
"""So deep configurations hold others."""


def shrunk(config: Any, depth: int = NESTED) -> Any:
    """The same configuration object with small sizes."""
    for name, value in list(vars(config).items()):
        if type(value).__name__.endswith("Config") and depth:
            shrunk(value, depth - 1)
            continue
        small = _small(name, value)
        if small is not value:
            setattr(config, name, small)
    if "layer_types" in vars(config) and config.layer_types:
        # Of all kinds of layers that the model has, as far as three layers can show them.
        kinds = list(dict.fromkeys(config.layer_types))
        config.layer_types = (kinds * LAYERS)[:LAYERS]
    _fit_state_space(config)
    _fit_latent_attention(config)
    config.use_cache = False
    if getattr(config, "is_encoder_decoder", False):
        started = getattr(config, "decoder_start_token_id", None)
        config.decoder_start_token_id = started if started is not None else 0
    return config


STATE_SPACES = (
    ("expand", "num_heads", "head_dim"),
    ("mamba_expand", "mamba_n_heads", "mamba_d_head"),
)
"""How configurations call the widening of a state space model, its heads and their width."""


def _fit_state_space(config: Any) -> None:
    """Heads of a state space model make up the expanded width together."""
    for expand, heads, head in STATE_SPACES:
        if {expand, heads, head, "hidden_size"} <= vars(config).keys():
            width = getattr(config, expand) * config.hidden_size
            size = getattr(config, head)
            setattr(config, heads, width // (size if isinstance(size, int) else HEAD))


def _fit_latent_attention(config: Any) -> None:
    """Latent attention has a key and a value for every head."""
    if {"kv_lora_rank", "num_key_value_heads"} <= vars(config).keys():
        config.num_key_value_heads = config.num_attention_heads


def _small(name: str, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return 0.0 if SWITCHED_OFF.fullmatch(name) else value
    if isinstance(value, int):
        return _integer(name, value)
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        return type(value)(_listed(name, value))
    return value


def _integer(name: str, value: int) -> int:
    if TOKEN.fullmatch(name):
        return value if value < VOCAB else VOCAB - 1 - value % 7
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return min(value, size)
    return value


def _listed(name: str, values: Any) -> list[int]:
    """Per stage of a network: widths become narrow in their order, depths short."""
    if re.fullmatch(r"depths|num_blocks|layers|num_encoder_blocks|layer_depths", name):
        return [min(v, 3 if place == 0 else 1) for place, v in enumerate(values)]
    if re.fullmatch(r"hidden_sizes|embed_dims?|encoder_hidden_sizes|neck_hidden_sizes", name):
        return [16 * 2 ** min(place, 3) for place in range(len(values))]
    if name == "image_size":
        return [IMAGE for _ in values]
    return list(values)
