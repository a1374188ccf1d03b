"""Calibration under torchrun: two hosts, and what they are told."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from autopar.pipeline.build.borders import Border, seconds
from cost_models.calibrate import cluster
from cost_models.calibrate.cluster import (
    Cluster,
    calibrate_cluster,
    linked,
    with_alone,
    with_sends,
)
from cost_models.calibrate.effort import QUICK
from cost_models.calibrate.measure import KINDS
from cost_models.calibrate.processes import run
from cost_models.calibrate.profile import Times, link_of
from cost_models.errors import CostModelError
from cost_models.hardware import Hardware, Link, load
from cost_models.profile_text import parse, to_text
from tests.cost_models.test_calibration import synthetic


def test_hosts_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(key, value)
    assert Cluster.here() == Cluster(5, 6, 3) and Cluster.here().hosts == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(CostModelError, match="start as many processes on every host"):
        Cluster.here()


def test_hosts_of_a_rack_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    assert Cluster.here(4) == Cluster(5, 8, 4)
    for group in (0, 3, 6):
        with pytest.raises(CostModelError, match=f"Groups of {group} ranks"):
            Cluster.here(group)


@pytest.mark.parametrize("per_host", [1, 2, 3, 4, 5])
def test_neighbours_are_mutual_and_on_one_host(per_host: int) -> None:
    of = {rank: Cluster(rank, 2 * per_host, per_host).neighbour for rank in range(2 * per_host)}
    for rank, other in of.items():
        assert other is None or of[other] == rank != other
        assert other is None or other // per_host == rank // per_host
    assert sum(other is None for other in of.values()) == 2 * (per_host % 2)


def test_messages_have_a_line_of_their_own() -> None:
    sizes = (1000, 10**6)
    seconds = {n: 1e-3 + n / 1e7 for n in sizes}
    times = [Times(kind, 2, 4, seconds) for kind in ("all_reduce", "all_gather")]
    link = with_sends(link_of(times), {n: 2e-4 + n / 5e7 for n in sizes}, 4)
    assert link.bytes_per_s == pytest.approx(5e7) and link.latency_s == pytest.approx(2e-4)
    fit = link.fits[0]
    assert fit.bytes_per_s == pytest.approx(1e7) and fit.host_ranks == 4
    sent = link.fits[-1]
    assert (sent.collective, sent.ranks, sent.host_ranks) == ("send", 2, 4)
    assert sent.curve == ((1000, 2.2e-4), (10**6, 0.0202)) and sent.error < 1e-2


def test_messages_that_do_not_rise_have_a_rate_at_least() -> None:
    flat = dict.fromkeys([2**10, 2**18], 1e-3)
    link = with_sends(link_of([Times("all_gather", 2, 2, flat)]), flat, 2)
    assert link.at_least and link.bytes_per_s == pytest.approx(2**18 / 1e-3, rel=1e-3)
    hardware = replace(load("h100"), intra_host=link)
    assert parse(to_text(hardware), "here").intra_host == link


def test_one_rank_alone_may_have_more_of_a_shared_link() -> None:
    """Racks of two hosts behind one uplink: each has half of it, one alone the whole."""
    link = with_alone(Link(1e7, 1e-4), {n: 1e-4 + n / 2e7 for n in (1000, 10**6)}, 2)
    assert link.among(1) == pytest.approx(2e7) and link.among(2) == pytest.approx(1e7)
    assert link.among(4) == pytest.approx(1e7)
    assert seconds(1e7, Border(1, 1), Border(1, 1), link) == pytest.approx(0.5)
    assert seconds(1e7, Border(2, 2), Border(2, 2), link) == pytest.approx(0.5)
    assert seconds(1e7, Border(2, 1), Border(2, 1), link) == pytest.approx(1.0)
    adapters = with_alone(Link(1e7, 1e-4), {n: 1e-4 + n / 1e7 for n in (1000, 10**6)}, 2)
    assert adapters.among(1) == adapters.among(8) == 1e7
    lucky = with_alone(Link(1e7, 1e-4), {n: 1e-4 + n / 5e8 for n in (1000, 10**6)}, 2)
    assert lucky.among(1) == 2e7
    hardware = replace(load("h100"), inter_host=link)
    assert parse(to_text(hardware), "here").inter_host == link
    assert "alone" not in to_text(load("h100"))


def test_a_cluster_knows_how_its_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "measure", lambda *_, **__: synthetic(1.0, True))
    monkeypatch.setattr(cluster, "_inside", lambda *_: Link(1e9, 1e-4, overlap=0.75))
    monkeypatch.setattr(cluster, "_across", lambda *_: Link(1e8, 1e-3, overlap=0.96))
    found = cluster._profile(Cluster(0, 4, 2), QUICK)
    device = found.device
    assert (device.overlap, device.behind, device.late_s) == (0.75, 0.125, 5e-4)
    assert found.inter_host.overlap == 0.96 and parse(to_text(found), "here") == found


def _links_of_an_accelerator() -> Hardware:
    """On one host of two ranks, with messages where gloo takes them."""
    return linked(load("h100"), Cluster(dist.get_rank(), 2, 2), QUICK)


@pytest.mark.slow
def test_of_accelerators_the_links_are_measured() -> None:
    base, found = load("h100"), run(2, _links_of_an_accelerator)
    found.check()
    assert found.devices_per_host == 2 and found.inter_host == base.inter_host
    assert {fit.collective for fit in found.intra_host.fits} == {*KINDS, "send"}
    assert found.intra_host.kind == "ranks, gloo" and found.intra_host.bytes_per_s > 0
    assert replace(found.device, overlap=0.0) == replace(base.device, overlap=0.0)
    assert found.device.overlap == found.intra_host.overlap
    assert "links measured" in found.source and base.source in found.source
    assert parse(to_text(found), "here") == found


def test_which_profile_a_calibration_starts_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(key, value)
    h100 = load("h100")
    with pytest.raises(CostModelError, match="PyTorch finds none here"):
        calibrate_cluster(base=h100)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for base in (None, replace(h100, device=replace(h100.device, kind="cpu"))):
        with pytest.raises(CostModelError, match="--hardware h100"):
            calibrate_cluster(base=base)


@pytest.mark.slow
def test_two_hosts_of_two(tmp_path: Path) -> None:
    """Both "hosts" are this machine; every rank ends well, and rank 0 writes both links."""
    output = tmp_path / "cluster.toml"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    nodes = [
        subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank",
                str(rank), "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port",
                port, "-m", "autopar", "calibrate", "--quick", "-o", str(output),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    assert [node.wait(timeout=300) for node in nodes] == [0, 0]
    found = load(output)
    assert (
        found.devices_per_host == 2 and f"2 {platform.machine()} hosts of 2 ranks" in found.source
    )
    assert {(f.collective, f.ranks) for f in found.intra_host.fits} >= {("all_reduce", 2)}
    assert {f.ranks for f in found.inter_host.fits} == {2, 4}
