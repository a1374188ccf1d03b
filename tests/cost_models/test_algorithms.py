"""Trees and rings inside rings, beside the one ring."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.algorithms import axis_levels, hierarchical_seconds, tree_seconds
from cost_models.collectives import axis_link, collective_seconds
from cost_models.errors import ProfileError
from cost_models.hardware import Fit, Hardware, parse, to_text
from tests.cost_models.test_cost_formulas import HOST, POD

RAILS = replace(HOST, algorithms="ring, tree, hierarchical")


def alone(hardware: Hardware, *names: str) -> Hardware:
    return replace(hardware, algorithms=", ".join(("ring", *names)))


def seconds(hardware: Hardware, kind: str, nbytes: float, stride: int, size: int) -> float:
    return collective_seconds(kind, nbytes, size, axis_link(hardware, stride, size, kind))


def test_levels_of_an_axis() -> None:
    inner, outer = HOST.intra_host, HOST.inter_host
    per_host = HOST.devices_per_host
    assert [level.ranks for level in axis_levels(HOST, 1, 4 * per_host)] == [per_host, 4]
    assert [level.ranks for level in axis_levels(HOST, per_host // 2, 8)] == [2, 4]
    (across,) = axis_levels(HOST, per_host, 4)
    assert (across.bytes_per_s, across.inside_host) == (outer.bytes_per_s, False)
    (within,) = axis_levels(HOST, 1, per_host)
    assert (within.bytes_per_s, within.inside_host) == (inner.bytes_per_s, True)
    assert [level.ranks for level in axis_levels(POD, 1, 64)] == [8, 4, 2]


def test_wires_serve_those_whom_they_reach() -> None:
    """Four of eight devices that are wired to each other have three of the seven wires."""
    wired = replace(HOST, intra_host=replace(HOST.intra_host, neighbours=HOST.devices_per_host - 1))
    whole, per_host = HOST.intra_host.bytes_per_s, HOST.devices_per_host
    for size in (2, 4, per_host):
        expected = pytest.approx(whole * (size - 1) / (per_host - 1))
        assert axis_link(wired, 1, size).bytes_per_s == expected
        assert axis_levels(wired, 1, size)[0].bytes_per_s == expected
        assert axis_link(wired, per_host // size, size).bytes_per_s == expected
    assert axis_link(wired, per_host, 4) == axis_link(HOST, per_host, 4)
    assert axis_link(wired, 1, 4 * per_host) == axis_link(HOST, 1, 4 * per_host)
    assert parse(to_text(wired), "wired") == wired
    with pytest.raises(ProfileError, match=r"intra_host\.neighbours is -1, not zero or more"):
        replace(HOST, intra_host=replace(HOST.intra_host, neighbours=-1)).check()
    with pytest.raises(ProfileError, match=r"inter_host\.neighbours has no meaning"):
        replace(HOST, inter_host=replace(HOST.inter_host, neighbours=2)).check()


def test_a_tree_takes_as_many_hops_as_it_is_deep() -> None:
    """Sixteen hosts: four hops up and four down, where a ring takes thirty."""
    per_host, outer = HOST.devices_per_host, HOST.inter_host
    tree = seconds(alone(HOST, "tree"), "all_reduce", 0.0, per_host, 16)
    assert tree == pytest.approx(8 * outer.latency_s)
    assert seconds(HOST, "all_reduce", 0.0, per_host, 16) == pytest.approx(30 * outer.latency_s)
    whole = seconds(alone(HOST, "tree"), "all_reduce", 0.0, 1, 16 * per_host)
    chain = (per_host - 1) * HOST.intra_host.latency_s
    assert whole == pytest.approx(2 * (chain + 4 * outer.latency_s))
    down = seconds(alone(HOST, "tree"), "broadcast", 0.0, per_host, 16)
    assert down == pytest.approx(4 * outer.latency_s)


def test_large_tensors_go_round_the_ring() -> None:
    for algorithms in ("tree", "hierarchical"):
        for kind in ("all_reduce", "all_gather", "broadcast"):
            ring = seconds(HOST, kind, 1e12, 1, 16 * HOST.devices_per_host)
            other = seconds(alone(HOST, algorithms), kind, 1e12, 1, 16 * HOST.devices_per_host)
            assert other == pytest.approx(ring, rel=1e-6), (algorithms, kind)


def test_rings_inside_rings_by_hand() -> None:
    """Inside: all bytes; outside: each rank's part of them, on its own share of the border."""
    inner, outer, per_host = HOST.intra_host, HOST.inter_host, HOST.devices_per_host
    nbytes, hosts = 1e3, 16
    part = nbytes / per_host
    one_way = (per_host - 1) * inner.latency_s + (1 - 1 / per_host) * nbytes / inner.bytes_per_s
    one_way += (hosts - 1) * outer.latency_s + (1 - 1 / hosts) * part / outer.bytes_per_s
    link = axis_link(RAILS, 1, per_host * hosts)
    assert hierarchical_seconds("all_reduce", nbytes, link) == pytest.approx(2 * one_way)
    assert hierarchical_seconds("all_gather", nbytes, link) == pytest.approx(one_way)
    assert hierarchical_seconds("all_to_all", nbytes, link) is None
    assert tree_seconds("all_gather", nbytes, link) is None


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]),
    st.floats(0, 1e10), st.sampled_from([1, 2, 8, 16]), st.sampled_from([2, 3, 8, 48]),
)  # fmt: skip
def test_more_algorithms_never_cost_more(kind: str, nbytes: float, stride: int, size: int) -> None:
    every = seconds(RAILS, kind, nbytes, stride, size)
    assert 0 <= every <= seconds(HOST, kind, nbytes, stride, size)
    assert every <= seconds(RAILS, kind, 2 * nbytes + 1, stride, size)


def test_measured_collectives_are_believed_before_any_algorithm() -> None:
    fit = Fit("all_reduce", 16, 1.0, 1e9)
    link = replace(axis_link(RAILS, 1, 16), fits=(fit,))
    assert collective_seconds("all_reduce", 1e9, 16, link) == pytest.approx(2.0)


def test_algorithms_are_read_written_and_checked() -> None:
    assert parse(to_text(RAILS), "written") == RAILS
    assert "algorithms" not in to_text(HOST)
    for wrong in ("tree", "ring, star", ""):
        with pytest.raises(ProfileError, match="write 'ring'"):
            replace(HOST, algorithms=wrong).check()
