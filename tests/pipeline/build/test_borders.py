"""What joins stages: links of hosts, and of tiers inside and beyond them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.borders import Border, link_between, link_of, name_of, passing, seconds
from autopar.plans.pipeline_data import WorkerPlan
from cost_models.hardware import Fit, Hardware, Link, Tier, load

HOST = load("h100")
PODS = replace(HOST, tiers=(Tier(32, bytes_per_s=5e9, latency_s=2e-5),))
PAIRS = replace(HOST, tiers=(Tier(2, bytes_per_s=2e10, latency_s=1e-5),))


def worker(first: int, count: int) -> WorkerPlan:
    return WorkerPlan(tuple(range(first, first + count)), Mesh.of(count))


@pytest.mark.parametrize(
    ("hardware", "ones", "others", "bytes_per_s", "name"),
    [
        (HOST, (0, 4), (4, 4), HOST.intra_host.bytes_per_s, "intra_host"),
        (HOST, (0, 8), (8, 8), HOST.inter_host.bytes_per_s, "inter_host"),
        (PODS, (0, 8), (8, 8), HOST.inter_host.bytes_per_s, "inter_host"),
        (PODS, (24, 8), (32, 8), 5e9, "inter_host"),
        (PAIRS, (0, 1), (1, 1), HOST.intra_host.bytes_per_s, "intra_host"),
        (PAIRS, (0, 2), (2, 2), 2e10, "intra_host"),
    ],
)
def test_stages_meet_at_the_widest_border_between_them(
    hardware: Hardware,
    ones: tuple[int, int],
    others: tuple[int, int],
    bytes_per_s: float,
    name: str,
) -> None:
    one, other = worker(*ones), worker(*others)
    assert link_of(hardware, one, other).bytes_per_s == bytes_per_s
    assert name_of(hardware, one, other) == name


def test_a_table_knows_tiers_inside_hosts() -> None:
    assert link_between(PAIRS, 2) is PAIRS.intra_host
    assert link_between(PAIRS, 8).bytes_per_s == 2e10
    assert link_between(PODS, 64) == HOST.inter_host


def test_two_stages_have_the_wire_between_them() -> None:
    wired = replace(HOST, intra_host=replace(HOST.intra_host, neighbours=5))
    assert link_of(wired, worker(0, 1), worker(1, 1)).bytes_per_s == HOST.intra_host.bytes_per_s / 5
    assert link_between(wired, 2).bytes_per_s == HOST.intra_host.bytes_per_s / 5
    assert link_between(wired, 2 * HOST.devices_per_host) == HOST.inter_host


def test_messages_that_were_measured_count_by_their_size() -> None:
    """A link that lets the first quarter of a megabyte through at once."""
    curve = ((1024.0, 0.002), (262144.0, 0.006), (4194304.0, 0.4))
    fit = Fit("send", 2, 0.001, 1e7, curve=curve)
    link = Link(1e7, 0.001, fits=(fit,), alone_bytes_per_s=2e7)
    one, two = Border(1, 1), Border(2, 1)
    assert seconds(262144, two, two, link) == pytest.approx(0.006 - 0.002)
    assert seconds(131072 + 512, one, one, link) == pytest.approx(0.002 / 2), "twice as fast alone"
    assert seconds(4194304 + 1e7, two, two, link) == pytest.approx(0.398 + 1.0)
    plain = replace(link, fits=())
    assert seconds(262144, two, two, plain) == pytest.approx(0.0262144)
    tensors = [Tensor("x", (65536,), "float32", True), Tensor("n", (65536,), "float32", False)]
    there, back = passing([tensors[:1], tensors, tensors[1:]], [one, two], link)
    assert there.shape == back.shape == (3, 2, 2)
    assert there[0, 1, 1] == pytest.approx(0.004) and there[1, 1, 1] > 2 * there[0, 1, 1]
    assert back[0, 0, 1] == back[1, 0, 1] == there[0, 1, 0] and not back[2].any()
