"""What the solver minimises is the prediction, where decisions leave nothing to be shared out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import autopar
from tests.daily import daily

NEARLY = 2e-3
TOKENS, SEQUENCE, VOCABULARY = 8, 16, 64


def gpt() -> torch.nn.Module:
    """Its first and its last operator read one weight."""
    config = GPT2Config(
        n_layer=4, n_head=4, n_embd=48, vocab_size=VOCABULARY, n_positions=SEQUENCE,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def t5() -> torch.nn.Module:
    """Three operators do, and others read two tables of positions."""
    config = T5Config(
        num_layers=2, d_model=48, d_ff=96, d_kv=12, num_heads=4, vocab_size=VOCABULARY,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


@pytest.mark.parametrize("make", [gpt, t5])
@pytest.mark.parametrize("ranks", daily([2, 4], [2]))
def test_weights_are_gathered_once_for_all_that_read_them(
    make: Callable[[], Any], ranks: int
) -> None:
    ids = torch.zeros(TOKENS, SEQUENCE, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids}
    plan = autopar.plan(make(), (ranks,), batch, hardware="cpu", preset="fsdp")
    assert plan.objective_s == pytest.approx(plan.estimate.step_s, rel=NEARLY)
