"""Plans in words: presets are called what the field calls them."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import pytest

from autopar import compile_model
from autopar.explain.words import words
from autopar.ir.mesh import Mesh
from autopar.request import presets
from autopar.request.constraints import Constraint
from autopar.request.planning import Planning
from autopar.sharding.sharding_problem import Compilation
from tests import models
from tests.daily import daily
from tests.mixtures import MIXTURES

FSDP, SEQUENCE = "data parallel (FSDP, regathered)", "_sp"
EXPECTED = {
    "ddp": ("data parallel", "data parallel"),
    "zero2": ("data parallel (ZeRO)", "data parallel (ZeRO)"),
    "fsdp": (FSDP, FSDP),
    "hsdp": ("data parallel", FSDP),
    "megatron": ("data parallel", "tensor parallel"),
    "megatron_sp": ("data parallel", "tensor + sequence parallel"),
    "fsdp_megatron": (FSDP, "tensor parallel"),
    "context_parallel": (FSDP, "sequence parallel (FSDP, regathered)"),
    "zero2_context_parallel": ("data parallel (ZeRO)", "sequence parallel (ZeRO)"),
    "ddp_context_parallel": ("data parallel", "sequence parallel"),
    "ring_attention": (FSDP, "sequence parallel (FSDP, regathered)"),
    "ulysses": (FSDP, "sequence parallel (FSDP, regathered)"),
    "zero2_megatron": ("data parallel (ZeRO)", "tensor parallel"),
    "zero2_megatron_sp": ("data parallel (ZeRO)", "tensor + sequence parallel"),
    "experts": ("data parallel", "data parallel"),
    "zero2_experts": ("data parallel (ZeRO)", "data parallel (ZeRO)"),
    "fsdp_experts": (FSDP, FSDP),
}
ALONG = (
    "context_parallel", "zero2_context_parallel", "ddp_context_parallel", "ring_attention", "ulysses",
)  # fmt: skip
"""Presets that split the sequence, and not the weights where they are used."""
SMALL: dict[str, Any] = {
    **models.CASES,
    **{name: partial(models.CASES[name], layers=1) for name in ("gpt2", "llama", "bert")},
}


@cache
def under(name: str, preset: str, shape: tuple[int, ...] = (2, 2)) -> Compilation:
    model, inputs, loss = SMALL[name]()
    # Images have no sequence.
    none = name == "cnn" and (preset.endswith(SEQUENCE) or preset in ALONG)
    return compile_model(
        model,
        shape,
        inputs,
        loss=loss,
        hardware="h100",
        preset=preset,
        planning=Planning(allow_undivided=none),
    )


def test_every_preset_is_expected() -> None:
    assert EXPECTED.keys() == set(presets.names())


@pytest.mark.parametrize("preset", daily(EXPECTED, list(EXPECTED)[::3]))
@pytest.mark.parametrize("name", daily(["llama", "cnn"], ["cnn"]))
def test_presets(name: str, preset: str) -> None:
    made = under(name, preset)
    expected = EXPECTED[preset.removesuffix(SEQUENCE) if name == "cnn" else preset]
    if name == "cnn" and preset in ALONG:
        expected = expected[0], expected[1].replace("sequence parallel", "replicated")
    assert words(made.plan, made.graph) == expected


@pytest.mark.parametrize("preset", ["fsdp", "megatron_sp"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_merged_dims_and_tied_weights(name: str, preset: str) -> None:
    """GPT-2 computes on batch x sequence as one dim, and its embedding is its head."""
    made = under(name, preset)
    assert words(made.plan, made.graph) == EXPECTED[preset]


def test_experts() -> None:
    """Most of the work is in the experts, to which tokens travel along the last axis."""
    model, inputs, _ = MIXTURES["mixtral"]()
    made = compile_model(model, (2, 2), inputs, hardware="h100", preset="fsdp_experts")
    data, experts = words(made.plan, made.graph)
    assert data == FSDP
    assert re.fullmatch(rf"(6|7|8)\d% expert parallel, \d+% {re.escape(FSDP)}", experts)


def constrained(pairs: dict[str, str], shape: tuple[int, ...] = (2,)) -> tuple[str, ...]:
    """The MLP with a type for everything of a subject."""
    model, inputs, loss = models.mlp()
    asked = tuple(Constraint.of(s, "*", types) for s, types in pairs.items())  # type: ignore[arg-type]
    made = compile_model(model, shape, inputs, loss=loss, hardware="h100", constraints=asked)
    return words(made.plan, made.graph)


def test_whole() -> None:
    everything = {"stored": "I", "leaf": "I", "used": "I", "tensor": "I | N"}
    assert constrained(everything) == ("replicated",)
    assert constrained({**everything, "stored": "S, else I"}) == ("replicated (ZeRO)",)


def test_an_axis_of_one_device() -> None:
    made = under("mlp", "ddp", (1, 2))
    assert words(made.plan, made.graph) == ("one device", "data parallel")


def test_mixtures_come_with_their_shares() -> None:
    """One of two large weights rests whole; one of three products is split by its weight."""
    model, inputs, loss = models.mlp()
    mesh = Mesh.of(2)
    whole = Constraint("stored", "up.*", (("I",),))
    zero = tuple(c for c in presets.load("zero2", mesh) if c.subject != "stored")
    others = Constraint("stored", "[!u]*", (("S",), ("I",)))
    made = compile_model(
        model, mesh, inputs, loss=loss, hardware="h100", constraints=(*zero, whole, others)
    )
    (phrase,) = words(made.plan, made.graph)
    assert phrase == "data parallel (53% ZeRO, 47% whole)", phrase
