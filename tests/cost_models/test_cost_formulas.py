"""Operator, collective and memory models: units, closed formulas, monotonicity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.collectives import axis_link, collective_seconds, lateness
from cost_models.errors import CostModelError
from cost_models.hardware import Device, Fit, Hardware, Link, Tier, load, names
from cost_models.ops import (
    GRADIENT_CALLS,
    MESSAGE_CALLS,
    SCATTER_CALLS,
    SPLIT_CALLS,
    adamw_seconds,
    gradient_seconds,
    message_copy_seconds,
    messages_seconds,
    op_seconds,
    scattered_seconds,
    split_seconds,
)

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
LINK = Link(bytes_per_s=1e9, latency_s=1e-5)
PLAIN = Device(
    name="plain",
    kind="cpu",
    memory_bytes=1e9,
    flops_per_s={"float32": 1e12, "float64": 5e11},
    bytes_per_s=1e11,
    matmul_efficiency=0.5,
    memory_efficiency=0.8,
    launch_s=1e-6,
)
CACHED = Device(
    "cached", "cpu", 1e9, {"float32": 1e12}, 1e10, cache_bytes=1e6, cache_bytes_per_s=1e11
)

amounts = st.floats(min_value=0, max_value=1e15)


def test_roofline_is_arithmetic_bound_memory_bound_or_overhead() -> None:
    assert op_seconds(1e12, 1e6, "float32", PLAIN) == pytest.approx(1 / 0.5 + 1e-6)
    assert op_seconds(1e12, 1e6, "float64", PLAIN) == pytest.approx(2 / 0.5 + 1e-6)
    assert op_seconds(1e3, 1e11, "float32", PLAIN) == pytest.approx(1 / 0.8 + 1e-6)
    assert op_seconds(0, 0, "float32", PLAIN) == 1e-6


def test_dtypes_that_the_profile_lacks_are_priced_as_float32() -> None:
    assert op_seconds(1e12, 0, "int64", PLAIN) == op_seconds(1e12, 0, "float32", PLAIN)


def test_the_first_bytes_go_at_the_speed_of_the_cache() -> None:
    assert op_seconds(0, 5e5, "float32", CACHED) == pytest.approx(5e-6)
    assert op_seconds(0, 3e6, "float32", CACHED) == pytest.approx(1e-5 + 2e-4)


@pytest.mark.parametrize("device", [PLAIN, CACHED, *(load(name).device for name in names())])
@given(flops=amounts, more_flops=amounts, nbytes=amounts, more_nbytes=amounts)
def test_more_work_never_takes_less_time(
    device: Device, flops: float, more_flops: float, nbytes: float, more_nbytes: float
) -> None:
    less = op_seconds(flops, nbytes, "float32", device)
    more = op_seconds(flops + more_flops, nbytes + more_nbytes, "float32", device)
    assert less <= more * (1 + 1e-12)


@pytest.mark.parametrize(
    ("kind", "messages", "share"),
    [
        ("all_reduce", 6, 6 / 4),
        ("all_gather", 3, 3 / 4),
        ("reduce_scatter", 3, 3 / 4),
        ("all_to_all", 3, 3 / 4),
        ("broadcast", 3, 1.0),
        ("send", 1, 1.0),
    ],
)
def test_ring_formulas_on_four_ranks(kind: str, messages: int, share: float) -> None:
    """n-1 rounds in which each rank sends an n-th; an all-reduce is two of them."""
    assert collective_seconds(kind, 8e6, 4, LINK) == pytest.approx(messages * 1e-5 + share * 8e-3)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_all_reduce_is_reduce_scatter_and_all_gather(ranks: int) -> None:
    parts = (collective_seconds(k, 1e6, ranks, LINK) for k in ("reduce_scatter", "all_gather"))
    assert collective_seconds("all_reduce", 1e6, ranks, LINK) == pytest.approx(sum(parts))


def test_fits_override_the_ring_for_their_kind_and_ranks_only() -> None:
    link = Link(1e9, 1e-5, (Fit("all_to_all", 4, latency_s=1e-3, bytes_per_s=1e6),))
    assert collective_seconds("all_to_all", 2e6, 4, link) == pytest.approx(2.001)
    for kind, ranks in (("all_to_all", 2), ("all_reduce", 4)):
        ring = collective_seconds(kind, 2e6, ranks, LINK)
        assert collective_seconds(kind, 2e6, ranks, link) == ring


CURVE = ((1e3, 1e-3), (2e3, 1e-3), (4e3, 3e-3))
CURVED = Fit("all_reduce", 4, latency_s=5.0, bytes_per_s=1e6, curve=CURVE)


def test_between_measured_sizes_what_was_measured_counts_and_not_the_line() -> None:
    link = Link(1e9, 1e-5, (CURVED,))
    for nbytes, seconds in {**dict(CURVE), 0: 1e-3, 3e3: 2e-3, 1.5e3: 1e-3, 1.004e6: 1.003}.items():
        assert collective_seconds("all_reduce", nbytes, 4, link) == pytest.approx(seconds)


def test_a_faster_link_spares_small_messages_nothing() -> None:
    twice = CURVED.faster(2.0)
    assert [twice.seconds(n) for n in (0.0, 2e3, 4e3)] == pytest.approx([1e-3, 1e-3, 2e-3])
    assert twice.seconds(1.004e6) == pytest.approx(2e-3 + 0.5)
    line = replace(CURVED, curve=()).faster(2.0)
    assert line.seconds(1e6) == pytest.approx(5.5)


def test_messages_are_copied_by_way_of_memory() -> None:
    assert message_copy_seconds(5e5, CACHED) == pytest.approx(1e-4)
    assert message_copy_seconds(4e9, PLAIN) == pytest.approx(0.1 + 1e-6)


def test_adamw_moves_twenty_tensors_or_seven() -> None:
    """By itself it spends five calls per parameter on a CPU, elsewhere those of many together."""
    gpu, memory = replace(PLAIN, kind="cuda"), 1e11 * 0.8
    assert adamw_seconds(1e9, PLAIN) == pytest.approx(20e9 / memory + 5e-6)
    assert adamw_seconds(1e9, gpu) == pytest.approx(20e9 / memory + 3e-6)
    assert adamw_seconds(0.0, PLAIN) == pytest.approx(5e-6)
    for device in (PLAIN, gpu):
        assert adamw_seconds(1e9, device, fused=True) == pytest.approx(7e9 / memory + 2e-6)


@pytest.mark.parametrize("name", names())
@given(
    kind=st.sampled_from(KINDS),
    ranks=st.sampled_from([1, 2, 3, 4, 8]),
    busy=st.sampled_from([2, 4, 8]),
    nbytes=amounts,
    more=amounts,
)
def test_more_bytes_never_cost_less(
    name: str, kind: str, ranks: int, busy: int, nbytes: float, more: float
) -> None:
    link = load(name).intra_host.shared_by(busy)
    less = collective_seconds(kind, nbytes, ranks, link)
    assert 0 <= less <= collective_seconds(kind, nbytes + more, ranks, link) * (1 + 1e-12)
    assert (less == 0) == (ranks == 1)


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("nbytes", [0.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize(
    ("stride", "sizes"),
    [(1, range(1, 20)), (16, range(1, 6)), (16, (1, 2, 4, 8, 12, 16))],
    ids=["near", "one more", "far"],
)
def test_more_ranks_are_not_faster(
    kind: str, nbytes: float, stride: int, sizes: Sequence[int]
) -> None:
    """The profile of CPUs has fits of 2 and 4 ranks; at stride 16 four are on a host, and a fifth on
    another one."""
    hardware = load("cpu")
    seconds = [
        collective_seconds(kind, nbytes, n, axis_link(hardware.filled(n), stride, n, kind))
        for n in sizes
    ]
    assert seconds == sorted(seconds)


def test_ranks_beside_those_that_were_measured_take_what_lies_between() -> None:
    """As much beyond the formula as the next smaller number, and no more than the next larger one."""
    fits = (Fit("all_to_all", 2, 1e-3, 1e9), Fit("all_to_all", 8, 1.2e-3, 1e9))
    link = Link(1e9, 1e-4, fits)
    took = [collective_seconds("all_to_all", 0.0, n, link) for n in (2, 3, 4, 8, 9)]
    assert took == pytest.approx([1e-3, 1.1e-3, 1.2e-3, 1.2e-3, 1.3e-3])
    noisy = replace(link, fits=(fits[0], replace(fits[1], latency_s=1e-5)))
    assert collective_seconds("all_to_all", 0.0, 3, noisy) == pytest.approx(1e-3)
    lucky = replace(link, fits=(replace(fits[0], latency_s=1e-5),))
    assert collective_seconds("all_to_all", 0.0, 3, lucky) == pytest.approx(2e-4)


def test_beyond_a_host_fits_count_that_leave_it_on_as_many_rails() -> None:
    """One rank of each of two hosts while all sixteen were busy, and all sixteen."""
    across, whole = Fit("all_reduce", 2, 100.0, 1.0, 16), Fit("all_reduce", 16, 900.0, 1.0, 16)
    inside = Fit("all_reduce", 2, 1.0, 1.0, 8)
    measured = replace(
        HOST,
        intra_host=replace(HOST.intra_host, fits=(inside,)),
        inter_host=replace(HOST.inter_host, fits=(across, whole)),
    )
    assert axis_link(measured, 8, 2).fits == axis_link(measured, 8, 4).fits == (across,)
    assert axis_link(measured, 1, 16).fits == axis_link(measured, 1, 32).fits == (whole, inside)
    assert axis_link(measured, 4, 4).fits == (inside,), "two rails: nobody measured them"
    assert collective_seconds("all_reduce", 0.0, 4, axis_link(measured, 8, 4)) == 100.0 + 36.0


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("nbytes", [1, 2**14, 2**24])
@pytest.mark.parametrize("part", ["all_gather", "reduce_scatter"])
def test_a_part_never_costs_more_than_the_all_reduce(part: str, nbytes: int, ranks: int) -> None:
    """Else planners would sum zeros instead of gathering shards."""
    noisy = Link(1e9, 1e-5, (Fit(part, ranks, 1.0, 1.0), Fit("all_reduce", ranks, 1e-5, 1e9)))
    for link in (noisy, load("cpu").intra_host.shared_by(4)):
        seconds = collective_seconds(part, nbytes, ranks, link)
        assert seconds <= collective_seconds("all_reduce", nbytes, ranks, link)


def test_an_axis_that_leaves_the_host_has_the_slower_link() -> None:
    hardware = load("h100")
    assert axis_link(hardware, stride=1, size=8) is hardware.intra_host
    assert axis_link(hardware, stride=2, size=4) is hardware.intra_host
    assert axis_link(hardware, stride=8, size=2) == hardware.inter_host


HOST = Hardware(PLAIN, 8, Link(400.0, 1.0), Link(50.0, 9.0), "a test", "2026-11-21")
POD = replace(HOST, tiers=(Tier(32, bytes_per_s=5.0, latency_s=17.0),))


@pytest.mark.parametrize(
    ("stride", "size", "bytes_per_s", "latency_s"),
    [(1, 16, 400.0, 2.0), (2, 8, 200.0, 3.0), (4, 4, 100.0, 5.0), (8, 2, 50.0, 9.0), (16, 2, 50.0, 9.0)],
)  # fmt: skip
def test_a_ring_leaves_the_host_on_the_rails_of_all_its_ranks_there(
    stride: int, size: int, bytes_per_s: float, latency_s: float
) -> None:
    """`stride` rings leave each host at once, and one step in 8 / stride is a slow one."""
    link = axis_link(HOST, stride, size)
    assert (link.bytes_per_s, link.latency_s) == (bytes_per_s, pytest.approx(latency_s))


def test_an_all_to_all_has_one_adapter_per_rank_for_what_leaves() -> None:
    """Of 16 ranks on two hosts each sends to 15, of which 8 are on the other one."""
    link = axis_link(HOST, 1, 16, "all_to_all")
    assert collective_seconds("all_to_all", 1600.0, 16, replace(link, latency_s=0.0)) == (
        pytest.approx(1600.0 * 8 / 16 / 50.0)
    )
    assert link.latency_s == pytest.approx((7 * 1.0 + 8 * 9.0) / 15)


@pytest.mark.parametrize("size", [2, 4])
def test_an_all_to_all_of_one_rank_per_host_sends_what_an_all_gather_does(size: int) -> None:
    scattered, gathered = (
        collective_seconds(kind, 800.0, size, axis_link(HOST, 8, size, kind))
        for kind in ("all_to_all", "all_gather")
    )
    assert scattered == pytest.approx(gathered)


def test_a_group_that_hosts_part_unevenly_has_the_rails_of_its_smaller_part() -> None:
    """Of 8 x 3 ranks on hosts of 8, some triples lie on two hosts, and all wait for these."""
    alone, among = axis_link(HOST, 1, 3), axis_link(HOST, 1, 3, ranks=24)
    assert alone == HOST.intra_host
    assert among.bytes_per_s == 50.0 and among.latency_s == pytest.approx(1.0 + 8.0 * 2 / 3)
    assert axis_link(HOST, 2, 4, ranks=64) == HOST.intra_host, "hosts part none"
    assert axis_link(HOST, 1, 12).bytes_per_s == 4 * 50.0, "eight and four"
    assert axis_link(replace(HOST, algorithms="ring, tree"), 1, 12).algorithms == ()


def test_a_wider_tier_is_felt_by_what_passes_it() -> None:
    """Four hosts in a pod; an oversubscribed switch carries a tenth of their adapters."""
    assert axis_link(POD, 8, 4) == axis_link(HOST, 8, 4), "inside the pod"
    assert axis_link(POD, 1, 64).bytes_per_s == 32 * 5.0, "one ring has all of the pod's uplinks"
    beyond = axis_link(POD, 8, 8)
    assert (beyond.bytes_per_s, beyond.latency_s) == (4 * 5.0, 9.0 + (17.0 - 9.0) / 4)
    assert axis_link(POD, 32, 2).bytes_per_s == 5.0


def test_pairs_inside_a_host_are_a_tier_too() -> None:
    """NVLink bridges between neighbours, PCIe between pairs."""
    pairs = replace(HOST, tiers=(Tier(2, bytes_per_s=20.0, latency_s=3.0),))
    assert axis_link(pairs, 1, 2) is pairs.intra_host
    assert axis_link(pairs, 1, 4).bytes_per_s == 40.0
    assert axis_link(pairs, 2, 4).bytes_per_s == 20.0


def test_impossible_amounts_are_refused() -> None:
    with pytest.raises(CostModelError, match="-1"):
        op_seconds(-1, 0, "float32", PLAIN)
    with pytest.raises(CostModelError, match="-1 bytes"):
        collective_seconds("all_reduce", -1, 2, LINK)
    with pytest.raises(CostModelError, match="0 ranks"):
        collective_seconds("all_reduce", 1, 0, LINK)
    with pytest.raises(CostModelError, match=r"'gossip'; known are all_reduce, "):
        collective_seconds("gossip", 1, 2, LINK)


def test_python_lays_a_gradient_in_its_bucket_on_a_cpu_and_beside_kernels_elsewhere() -> None:
    cpu, gpu = load("cpu").device, load("h100").device
    copied_s = message_copy_seconds(1e6, cpu)
    assert gradient_seconds(1e6, cpu) == pytest.approx(copied_s + GRADIENT_CALLS * cpu.launch_s)
    assert gradient_seconds(1e6, gpu) == message_copy_seconds(1e6, gpu) > 0


def test_every_scattered_gradient_takes_its_calls_and_all_together_their_bytes() -> None:
    cpu, gpu = load("cpu").device, load("h100").device
    for device, calls in ((cpu, 1 + SCATTER_CALLS), (gpu, 1)):
        more_s = scattered_seconds(1e6, device, 5) - scattered_seconds(1e6, device)
        assert more_s == pytest.approx(4 * calls * device.launch_s)
        assert scattered_seconds(1e6, device) >= message_copy_seconds(1e6, device)


def test_a_cpu_pays_for_gradients_that_wait() -> None:
    """Python's part is hidden where kernels are queued."""
    cpu, gpu = load("cpu").device, load("h100").device
    assert split_seconds(3, cpu) == pytest.approx(3 * SPLIT_CALLS * cpu.launch_s) and cpu.launch_s
    assert split_seconds(3, gpu) == 0.0 and gpu.launch_s


def test_a_cpu_pays_for_messages_between_stages() -> None:
    cpu, gpu = load("cpu").device, load("h100").device
    assert messages_seconds(4, cpu) == pytest.approx(4 * MESSAGE_CALLS * cpu.launch_s)
    assert messages_seconds(4, gpu) == 0.0


@pytest.mark.parametrize("flops, nbytes", [(math.nan, 1.0), (1.0, math.nan), (-1.0, 1.0)])
def test_what_is_no_amount_is_refused(flops: float, nbytes: float) -> None:
    with pytest.raises(CostModelError, match="cannot do"):
        op_seconds(flops, nbytes, "float32", PLAIN)


def test_a_collective_of_no_amount_is_refused() -> None:
    for nbytes in (math.nan, -1.0):
        with pytest.raises(CostModelError, match="makes no sense"):
            collective_seconds("all_reduce", nbytes, 2, LINK)


@pytest.mark.parametrize("ranks", [0, -1, 2.5, math.nan])
def test_ranks_that_are_no_number_are_refused(ranks: float) -> None:
    calls = (
        lambda: collective_seconds("all_reduce", 1.0, ranks, LINK),  # type: ignore[arg-type]
        lambda: lateness(ranks),  # type: ignore[arg-type]
        lambda: axis_link(load("h100"), ranks, 8),  # type: ignore[arg-type]
        lambda: axis_link(load("h100"), 1, ranks),  # type: ignore[arg-type]
    )
    for call in calls:
        with pytest.raises(CostModelError, match=r"not a whole number of 1 or more|makes no sense"):
            call()


@pytest.mark.parametrize("amount", [-1, math.nan])
def test_overheads_of_no_amount_are_refused(amount: float) -> None:
    device = load("cpu").device
    for of in (
        message_copy_seconds, gradient_seconds, scattered_seconds, adamw_seconds, split_seconds,
        messages_seconds,
    ):  # fmt: skip
        with pytest.raises(CostModelError, match="There cannot be"):
            of(amount, device)  # type: ignore[arg-type]


def test_a_dtype_that_is_none_is_refused() -> None:
    assert op_seconds(1e6, 1e6, "int32", PLAIN) == op_seconds(1e6, 1e6, "float32", PLAIN)
    with pytest.raises(CostModelError, match=r"'flot32' is not a dtype .*'float32'"):
        op_seconds(1e6, 1e6, "flot32", PLAIN)
