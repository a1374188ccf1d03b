"""What travels together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autopar.buckets import FIRST_NBYTES, NBYTES, buckets


@given(st.lists(st.integers(0, 2 * NBYTES)))
def test_buckets_hold_everything_in_order_up_to_their_size(sizes: list[int]) -> None:
    found = list(buckets(sizes))
    assert [place for places in found for place in places] == list(range(len(sizes)))
    for number, places in enumerate(found):
        limit = NBYTES if number else FIRST_NBYTES
        assert len(places) == 1 or sum(sizes[place] for place in places) <= limit


def test_the_first_bucket_is_small() -> None:
    assert list(buckets([2**19, 2**19, 1, 24 * 2**20, 2**20])) == [[0, 1], [2, 3], [4]]
    assert list(buckets([])) == []
