"""Folding: nothing is lost, equal blocks are one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autopar.render.text.fold import Block, Item, Row, fold, lines, ranges

Rows = list[tuple[str, int]]


def unfolded(items: tuple[Item[int], ...], head: str = "") -> Counter[tuple[str, int]]:
    """Every row that went in."""
    found: Counter[tuple[str, int]] = Counter()
    for item in items:
        if isinstance(item, Row):
            found[head + item.name, item.value] += item.count
        else:
            for number in item.numbers:
                found += unfolded(item.body, f"{head}{item.prefix}{number}")
    return found


names = st.lists(st.sampled_from(["a", "b", "0", "1", "2", "3"]), min_size=1, max_size=5).map(
    ".".join
)


@given(st.lists(st.tuples(names, st.integers(0, 1)), max_size=30))
def test_no_row_is_lost_or_invented(rows: Rows) -> None:
    assert unfolded(fold(rows)) == Counter(rows)


def test_equal_layers_are_one_block() -> None:
    rows = [(f"h.{i}.{name}", 1) for i in range(32) for name in ("up", "down")]
    assert fold(rows) == (Block("h.", tuple(range(32)), (Row(".up", 1), Row(".down", 1))),)


def test_blocks_within_blocks() -> None:
    rows = [(f"h.{i}.experts.{e}.up", 1) for i in range(3) for e in range(4)]
    inner = Block(".experts.", (0, 1, 2, 3), (Row(".up", 1),))
    assert fold(rows) == (Block("h.", (0, 1, 2), (inner,)),)
    assert [line.label for line in lines(fold(rows))] == [
        "h.0 ... 2", "  experts.0 ... 3", "    up",
    ]  # fmt: skip


def test_a_row_that_differs_in_one_layer_stands_there() -> None:
    ups = [(f"h.{layer}.up", int(layer == 2)) for layer in range(4)]
    rows = [*ups, *((f"h.{layer}.down", 0) for layer in range(4))]
    labels = [(line.label, line.value) for line in lines(fold(rows))]
    assert labels == [
        ("h.0, 1, 3", None), ("  up", 0), ("h.0 ... 3", None), ("  down", 0), ("h.2.up", 1),
    ]  # fmt: skip


def test_operators_below_a_number() -> None:
    rows = [(f"h.{i}/add", 1) for i in range(2) for _ in range(3)]
    assert fold(rows) == (Block("h.", (0, 1), (Row("/add", 1, 3),)),)


def test_a_list_of_layers_at_the_top() -> None:
    assert fold([("0.weight", 1), ("1.weight", 1)]) == (Block("", (0, 1), (Row(".weight", 1),)),)


def test_ranges() -> None:
    assert ranges([0, 1, 2, 3, 7, 9, 10]) == "0 ... 3, 7, 9, 10"
