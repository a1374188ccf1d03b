"""Emitted modules, pinned: what a person reads changes only when somebody looks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import autopar
from tests import models

CASES = [
    ("mlp", "2", "ddp"),
    ("cnn", "2", "zero2"),
    ("gpt2", "2x2", "megatron"),
    ("llama", "2x2", "fsdp_megatron"),
    ("bert", "2", "fsdp"),
]


def emitted(name: str, mesh: str, preset: str) -> str:
    """The source with prices taken out: they belong to the profile of the day."""
    model, inputs, loss = models.CASES[name]()
    made = autopar.compile_model(
        model, mesh, inputs, loss=loss, hardware="h100", preset=preset, optimizer="SGD"
    )
    return re.sub(r"predicted on .*", "predicted ...", made.source)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "mesh", "preset"), CASES)
def test_emitted(golden: Callable[[str, str], None], name: str, mesh: str, preset: str) -> None:
    golden(f"emitted_{name}_{mesh}_{preset}.txt", emitted(name, mesh, preset))


@pytest.mark.thorough
def test_layers_are_written_once() -> None:
    """Twelve layers emit no more code than three."""
    model, inputs, _ = models.gpt2(layers=3)
    short = autopar.compile_model(model, 2, inputs, hardware="h100", preset="megatron").source
    model, inputs, _ = models.gpt2(layers=12)
    long = autopar.compile_model(model, 2, inputs, hardware="h100", preset="megatron").source
    assert abs(len(long.splitlines()) - len(short.splitlines())) <= 3
    assert 'self.each(Block, "transformer.h", range(0, 12))' in long


def test_emission_is_deterministic() -> None:
    assert emitted("gpt2", "2x2", "megatron") == emitted("gpt2", "2x2", "megatron")
