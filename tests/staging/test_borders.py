"""What joins stages: links of hosts, and of tiers inside and beyond them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.mesh import Mesh
from autopar.plans.pipeline_plan import WorkerPlan
from autopar.staging.borders import link_between, link_of, name_of
from cost_models.hardware import Hardware, Tier, load

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
