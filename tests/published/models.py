"""Models of published tables, built from configurations of transformers on the meta device."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
import transformers
from torch import nn

import autopar
from autopar.capture.saved import saved
from autopar.cost.work import StepFlops, step_flops
from autopar.ir.graph import Graph
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import Compilation

WHOLE = {"x": "I"}
"""What enters and leaves a block: the same on all ranks (Shoeybi et al. 2019, figure 3)."""
BETWEEN_BLOCKS = ("*resid_dropout/dropout", "*mlp.dropout/dropout", "*.h.?/add")
MEGATRON = {f"tensor:{pattern}": WHOLE for pattern in BETWEEN_BLOCKS}
"""The preset lets the solver do better than Megatron between blocks; this is Megatron."""


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int = 51200,
    sequence: int = 2048,
    attention: str = "eager",
) -> nn.Module:
    """A GPT with tied embeddings and dropout everywhere, as in Megatron's papers.

    `attention`: "eager" writes out every product, "sdpa" is one kernel (that has no dropout here).
    """
    config = transformers.GPT2Config(
        n_layer=layers, n_head=heads, n_embd=hidden, vocab_size=vocabulary, n_positions=sequence,
        activation_function="gelu_pytorch_tanh", use_cache=False, attn_implementation=attention,
        attn_pdrop=0.1 if attention == "eager" else 0.0, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLM",
    )  # fmt: skip
    return _on_meta(transformers.GPT2LMHeadModel, config)


def llama(**config: Any) -> nn.Module:
    """Llama; sizes that are not given are those of Llama-2 7B."""
    return _on_meta(transformers.LlamaForCausalLM, transformers.LlamaConfig(**config))


def _on_meta(kind: Any, config: Any) -> nn.Module:
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model: nn.Module = kind(config).train()
    return model


def compiled(
    model: nn.Module, batch: int, sequence: int, ranks: int, **options: Any
) -> Compilation:
    """The plan and graph of a batch of token ids, in bfloat16, on so many devices in a row."""
    ids = torch.zeros(batch, sequence, dtype=torch.int64, device="meta")
    return autopar.compile_model(
        model, (ranks,), {"input_ids": ids, "labels": ids}, hardware="a100",
        **({"memory_limit": "none"} | options),
    )  # fmt: skip


def kept(graph: Graph) -> Any:
    """What operators keep on a GPU."""
    return saved(graph, "cuda")


@cache
def small(
    attention: str, hidden: int, heads: int, layers: int, ranks: int, batch: int = 1, **options: Any
) -> Compilation:
    """A GPT of a few layers under a preset."""
    extra: dict[str, Any] = {"constraints": MEGATRON} if options.get("preset") == "megatron" else {}
    model = gpt(layers, hidden, heads, attention=attention)
    return compiled(model, batch, 2048, ranks, precision="bfloat16", **options, **extra)


def parameters(plan: Plan) -> int:
    """Of the whole model."""
    return sum(torch.Size(parameter.shape).numel() for parameter in plan.parameters)


def work(made: Compilation) -> StepFlops:
    """Floating-point operations of a step."""
    return step_flops(made.plan, made.graph, kept(made.graph))


def at_depth(few: float, more: float, layers: int) -> float:
    """A figure of so many layers, from those of two and of three: the layers are equal."""
    return few + (layers - 2) * (more - few)
