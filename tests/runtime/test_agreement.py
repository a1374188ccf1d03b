"""What ranks say where they disagree."""

from __future__ import annotations

import pytest

from autopar.runtime.agreement import LONG, unlike_parts

SAME = "x" * LONG


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["a b c", "a d c"], ["a b c", "a d c"]),
        ([f"a b {SAME} d", f"a c {SAME} d"], ["... b ...", "... c ..."]),
        ([f"b {SAME}", f"c {SAME}"], ["b ...", "c ..."]),
        ([f"{SAME} b", f"{SAME} c e"], ["... b", "... c e"]),
        ([f"{SAME} b", f"{SAME} b b", f"{SAME} b"], ["...", "... b", "..."]),
    ],
)
def test_long_values_are_shown_where_they_differ(values: list[str], shown: list[str]) -> None:
    assert unlike_parts(values) == shown
