"""Numbers as people read them."""

from __future__ import annotations

import pytest

from autopar.ir.placement import Sharding
from autopar.ir.units import form, joined, nbytes, seconds, shape, wrapped


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (3.21e-5, "32.1 µs"), (0.0412, "41.2 ms"), (1.25, "1.2 s"), (90, "90.0 s")],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (700, "700 B"), (2048, "2.0 KiB"), (3 * 2**30, "3.0 GiB")]
)
def test_nbytes(value: int, text: str) -> None:
    assert nbytes(value) == text


def test_shape() -> None:
    assert shape((32, 64)) == "32x64"
    assert shape(()) == "scalar"


def test_a_form_is_broken_between_types_and_parses_back() -> None:
    sharding = Sharding.parse("[S(0, of=4), S(0, of=2), S(0), R]")
    text = form(sharding, 24)
    assert text == "[S(0, of=4), S(0, of=2),\n S(0), R]"
    assert Sharding.parse(text.replace("\n", "")) == sharding


def test_a_part_is_never_broken() -> None:
    assert joined(["a" * 50, "b"], 10) == "a" * 50 + ",\nb"


def test_long_names_are_broken_where_parts_meet() -> None:
    assert wrapped("  model.attention/sdpa", 18) == "  model.attention\n      /sdpa"
    assert wrapped("mlp/mul ... act/tanh", 15) == "mlp/mul ... act\n    /tanh"
    assert wrapped("post_attention_norm.weight", 16) == ("post_attention\n    _norm.weight")
    assert wrapped("short.name", 18) == "short.name"


@pytest.mark.parametrize("width", [1, 8, 20])
def test_wrapping_loses_nothing(width: int) -> None:
    for label in ("  a.b.c/d ... e.f/g", "0.weight", "model.layers.0 ... 3, 7", "", "x/_y..z"):
        text = wrapped(label, width)
        assert "".join(text.split()) == "".join(label.split())
