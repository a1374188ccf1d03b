"""Hosts on one machine: network namespaces joined by a link of limited speed (Linux, as root).

Each namespace has an address and a loopback of its own; what goes to another one passes a veth pair
whose ends let through only so many bits a second (tc, token bucket filter).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from setting import environment
from shares import limited, share_of

PORT = 29511


@dataclass(frozen=True)
class Host:
    """A namespace."""

    name: str
    device: str
    address: str


@contextmanager
def two_hosts(rate: str) -> Iterator[tuple[Host, Host]]:
    """Two namespaces, joined at a rate such as ``200mbit``; gone afterwards."""
    tag = f"ap{os.getpid() % 10000}"
    hosts = tuple(Host(f"{tag}{end}", f"{tag}v{end}", f"10.77.0.{end + 1}") for end in (0, 1))
    try:
        for host in hosts:
            ip("netns", "add", host.name)
        ip("link", "add", hosts[0].device, "type", "veth", "peer", "name", hosts[1].device)
        for host in hosts:
            ip("link", "set", host.device, "netns", host.name)
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.device)
            ip("-n", host.name, "link", "set", host.device, "up")
            ip("-n", host.name, "link", "set", "lo", "up")
            run(
                "tc", "-n", host.name, "qdisc", "add", "dev", host.device, "root", "tbf",
                "rate", rate, "burst", "256kb", "latency", "50ms",
            )  # fmt: skip
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


def profile_of(hosts: Sequence[Host], per_host: int, given: str | None, limit_s: float) -> str:
    """The profile that is given, or else one that is calibrated on these hosts, in a new file."""
    if given:
        return given
    path = str(Path(tempfile.mkdtemp()) / "cluster.toml")
    launch(hosts, per_host, ["-m", "autopar", "calibrate", "-o", path], limit_s)
    return path


def launch(hosts: Sequence[Host], per_host: int, script: Sequence[str], limit_s: float) -> None:
    """``torchrun`` on every host; raise where one fails or takes too long.

    Where ranks outnumber cores each host has its share of these, also while others wait.
    """
    cores = share_of(len(hosts), per_host)
    with ExitStack() as stack:
        groups = [
            None if cores is None else stack.enter_context(limited(host.name, cores))
            for host in hosts
        ]
        running = [
            _start(hosts, place, per_host, script, group) for place, group in enumerate(groups)
        ]
        try:
            codes = [process.wait(timeout=limit_s) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
    if any(codes):
        raise SystemExit(f"torchrun ended with {codes}; what the ranks said stands above.")


def _start(
    hosts: Sequence[Host], place: int, per_host: int, script: Sequence[str], group: Path | None
) -> subprocess.Popen[bytes]:
    host = hosts[place]
    command = [
        "ip", "netns", "exec", host.name, "torchrun", "--nnodes", str(len(hosts)),
        "--node-rank", str(place), "--nproc-per-node", str(per_host),
        "--master-addr", hosts[0].address, "--master-port", str(PORT), *script,
    ]  # fmt: skip
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *command]
    return subprocess.Popen(command, env={**environment(), "GLOO_SOCKET_IFNAME": host.device})


def ip(*words: str) -> None:
    """``ip`` with these words; ends the program where it fails."""
    run("ip", *words)


def run(*words: str) -> None:
    """A command; ends the program where it fails."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(words)}: {done.stderr.strip()} (namespaces need Linux and root)"
        )
