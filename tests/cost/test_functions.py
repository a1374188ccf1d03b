"""Which functions a module will have is known before it is written."""

from __future__ import annotations

import re

import pytest

from autopar.memory.lifetimes import Lifetimes
from tests import parity, peaks
from tests.daily import daily

LOOP = re.compile(r"self\.each\(\w+, \"[\w.]+\", range\((\d+), (\d+)\)\)")
CALL = re.compile(r"= \w+\(self, \"[\w.]+\"\)\(")
EVERY_DAY = [
    ("gpt2", "fsdp"), ("bert", "megatron_sp"), ("heavy.shared", "fsdp"), ("cnn", "fsdp"),
    ("architectures.unet", "megatron"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "preset"),
    daily(
        [
            (name, preset)
            for name in (
                "gpt2", "llama", "bert", "cnn", "heavy.shared", "heavy.mixer", "heavy.encoder",
                "architectures.unet", "architectures.t5", "architectures.swin",
                "architectures.segformer", "architectures.whisper", "architectures.longformer_local",
            )
            for preset in ("ddp", "fsdp", "megatron", "megatron_sp")
        ],
        EVERY_DAY,
    ),
)  # fmt: skip
def test_blocks_are_called_and_looped_over_as_predicted(name: str, preset: str) -> None:
    plan, work = peaks.planned(name, 2, "none", preset)
    case = parity.reference(name)
    functions = Lifetimes.of(plan, case.graph, case.saved).functions
    turns = [int(last) - int(first) for first, last in LOOP.findall(work.source)]
    blocks = sorted(set(functions.of) - {0})
    assert len(blocks) == sum(turns) + len(CALL.findall(work.source))
    followed = sum(functions.loop(block, block + 1) for block in blocks[:-1])
    assert followed == sum(turns) - len(turns)
