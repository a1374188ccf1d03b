"""Builds models without weights from ``hf:CONFIG.json``, a saved transformers configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.cli.model_files import configuration
from autopar.errors import InputError
from autopar.utils.suggest import near

Batch = dict[str, torch.Tensor]
CODE = {
    "auto_map", "custom_pipelines", "kernel_config", "quantization_config", "trust_remote_code",
    "use_kernels", "use_pretrained_backbone",
}  # fmt: skip
"""Keys of a configuration that may name code to run or files to download."""
KERNELS = (None, "", "eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
"""Implementations of attention and experts that need no further package and no download."""
MOST_TOKENS = 2**40
"""Maximum per batch: the tensors of larger ones have more elements than PyTorch can count."""


def from_config(path: Path, batch: int | None, sequence: int | None) -> tuple[nn.Module, Batch]:
    """Return the model on the meta device, and a batch of token ids that are also the labels."""
    content = configuration(path)
    if batch is None or sequence is None:
        raise InputError("hf: models need --batch N and --sequence N, the global batch.")
    if batch * sequence > MOST_TOKENS:
        raise InputError(
            f"--batch {batch} of --sequence {sequence} are {batch * sequence} tokens; pass "
            f"{MOST_TOKENS} at most."
        )
    longest = content.get("max_position_embeddings", content.get("n_positions"))
    if isinstance(longest, int) and sequence > longest:
        raise InputError(f"--sequence {sequence} is longer than the model's {longest} positions.")
    _refuse_code(content, path, "")
    model = _built(content, path)
    ids = torch.zeros(batch, sequence, dtype=torch.int64, device="meta")
    return model.train(), {"input_ids": ids, "labels": ids}


def _refuse_code(content: Any, path: Path, at: str) -> None:
    """Raise `InputError` if a configuration or a nested one names code, kernels or downloads."""
    if isinstance(content, list):
        for number, each in enumerate(content):
            _refuse_code(each, path, f"{at}{number}.")
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        named = value.values() if isinstance(value, dict) else [value]
        elsewhere = key.endswith("_implementation") or "_implementation_" in key
        if (key in CODE and value) or (elsewhere and any(each not in KERNELS for each in named)):
            raise InputError(
                f"{path}: {at}{key} is {value!r}, which may load code, kernels or weights from "
                "elsewhere; a configuration is read as data only. Remove the key, or pass MODEL "
                "as file.py:factory, which builds the model itself."
            )
        _refuse_code(value, path, f"{at}{key}.")


def _built(content: dict[str, Any], path: Path) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise InputError("hf: models need transformers: pip install transformers.") from None
    kind, names = content.get("model_type"), content.get("architectures")
    known = tuple(transformers.CONFIG_MAPPING)
    if kind not in known:
        raise InputError(
            f"{path}: transformers has no model_type {kind!r}.{near(str(kind), known)}"
        )
    name = names[0] if isinstance(names, list) and names else None
    found = getattr(transformers, str(name), None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InputError(
            f"{path}: 'architectures' must name a model of transformers, such as "
            f"['GPT2LMHeadModel']; it is {names}.{near(str(name), dir(transformers))}"
        )
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(content)
        with torch.device("meta"):
            return found(config)
    except Exception as error:
        raise InputError(
            f"{path}: {name} cannot be built: {type(error).__name__}: {error}"
        ) from error
