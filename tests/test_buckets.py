"""What travels together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autopar.plans.buckets import FIRST_NBYTES, NBYTES, SHARES, buckets


@given(st.lists(st.integers(0, 2 * NBYTES)), st.sampled_from(SHARES))
def test_buckets_hold_everything_in_order_up_to_their_size(sizes: list[int], shares: int) -> None:
    found = list(buckets(sizes, shares=shares))
    assert [place for places in found for place in places] == list(range(len(sizes)))
    for number, places in enumerate(found):
        limit = NBYTES if number else FIRST_NBYTES
        assert len(places) == 1 or sum(sizes[place] for place in places) <= limit


def test_the_first_bucket_is_small() -> None:
    sizes = [2**19, 2**19, 1, 24 * 2**20, 2**20]
    assert list(buckets(sizes, shares=1)) == [[0, 1], [2, 3], [4]]
    assert list(buckets([], shares=1)) == []


def test_gradients_of_a_small_model_are_not_all_in_the_last_bucket() -> None:
    sizes = [2**18] * 64  # 16 MiB
    found = [len(places) for places in buckets(sizes, shares=8)]
    assert found == [4, *[8] * 7, 4]
    assert [len(places) for places in buckets(sizes, shares=1)] == [4, 60]
    assert [len(places) for places in buckets([2**16] * 32, shares=8)] == [16, 16]
