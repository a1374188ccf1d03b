"""Racks on one machine: hosts (`namespaces.py`) behind switches, which one link joins.

Every host is a network namespace at a bridge; what leaves it passes a token bucket filter (tc) of the
rate of hosts.  The bridges stand in a namespace of their own, and what goes from one to the other passes
another filter.  A host alone has its loopback.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from namespaces import Host, ip, run

RACKS = 2
"""At most so many: one link joins them."""


@contextmanager
def joined(sizes: Sequence[int], rate: str = "", between: str = "") -> Iterator[tuple[Host, ...]]:
    """So many hosts in each rack, their links of `rate`, the racks joined at `between` (as tc says them)."""
    if len(sizes) > RACKS:
        raise SystemExit(f"{len(sizes)} racks; one link joins two.")
    tag = f"rk{os.getpid() % 10000}"
    hosts = [Host(f"{tag}h{n}", f"{tag}d{n}", f"10.78.0.{n + 1}") for n in range(sum(sizes))]
    switch = f"{tag}sw"
    try:
        if len(hosts) == 1:
            yield (_alone(hosts[0]),)
            return
        ip("netns", "add", switch)
        for rack, size in enumerate(sizes):
            ip("-n", switch, "link", "add", f"br{rack}", "type", "bridge")
            ip("-n", switch, "link", "set", f"br{rack}", "up")
            first = sum(sizes[:rack])
            for host in hosts[first : first + size]:
                _plug(host, switch, f"br{rack}", rate)
        if len(sizes) == RACKS:
            _join(switch, between)
        yield tuple(hosts)
    finally:
        for name in (*(host.name for host in hosts), switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _alone(host: Host) -> Host:
    ip("netns", "add", host.name)
    ip("-n", host.name, "link", "set", "lo", "up")
    return Host(host.name, "lo", "127.0.0.1")


def _plug(host: Host, switch: str, bridge: str, rate: str) -> None:
    """A host at a switch: both ends of its cable let through `rate`."""
    ip("netns", "add", host.name)
    port = f"p{host.device}"
    ip("link", "add", host.device, "type", "veth", "peer", "name", port)
    ip("link", "set", host.device, "netns", host.name)
    ip("link", "set", port, "netns", switch)
    ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.device)
    for place, device in ((host.name, host.device), (host.name, "lo"), (switch, port)):
        ip("-n", place, "link", "set", device, "up")
    ip("-n", switch, "link", "set", port, "master", bridge)
    for place, device in ((host.name, host.device), (switch, port)):
        _limit(place, device, rate)


def _join(switch: str, rate: str) -> None:
    ip("-n", switch, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    for rack in range(RACKS):
        ip("-n", switch, "link", "set", f"up{rack}", "master", f"br{rack}")
        ip("-n", switch, "link", "set", f"up{rack}", "up")
        _limit(switch, f"up{rack}", rate)


def _limit(place: str, device: str, rate: str) -> None:
    run(
        "tc", "-n", place, "qdisc", "add", "dev", device, "root", "tbf",
        "rate", rate, "burst", "256kb", "latency", "50ms",
    )  # fmt: skip
