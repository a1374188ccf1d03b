"""Hardware for small tests: two devices on a host, and a link between hosts as slow as one likes."""

from __future__ import annotations

from dataclasses import replace

from cost_models.hardware import Hardware, Link, load


def slow_hosts(bytes_per_s: float = 3e5, latency_s: float = 1e-4, per_host: int = 2) -> Hardware:
    """Devices so slow that little models keep them busy, joined by a fast link on each host."""
    profile = load("cpu")
    device = replace(
        profile.device,
        launch_s=0.0,
        overlap=0.0,
        flops_per_s={"float32": 1e8},
        bytes_per_s=1e9,
        cache_bytes=0.0,
        curves=(),
    )
    return replace(
        profile,
        device=device,
        devices_per_host=per_host,
        intra_host=Link(1e10, 1e-6),
        inter_host=Link(bytes_per_s, latency_s),
        cores=0,
        shared={},
    )
