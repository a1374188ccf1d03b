"""The device type of a mesh: what the group's backends and this machine have."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.distributed as dist

from autopar.runtime import world


@pytest.mark.parametrize(
    ("accelerator", "backends", "expected"),
    [
        (None, "cpu:gloo", "cpu"),
        (None, "cpu:gloo,cuda:nccl", "cpu"),
        ("cuda", "cuda:nccl", "cuda"),
        # `init_process_group()` without a backend, or with "cpu:gloo,cuda:nccl".
        ("cuda", "cpu:gloo,cuda:nccl", "cuda"),
        # A machine with a GPU, and a job on gloo alone.
        ("cuda", "cpu:gloo,cuda:gloo", "cpu"),
        ("xpu", "cpu:gloo,xpu:xccl", "xpu"),
    ],
)
def test_device_type(accelerator: str | None, backends: str, expected: str) -> None:
    found = None if accelerator is None else torch.device(accelerator)
    with (
        mock.patch.object(torch.accelerator, "current_accelerator", lambda **_: found),
        mock.patch.object(dist, "get_backend_config", lambda: backends),
    ):
        assert world.device_type() == expected


@pytest.mark.parametrize(
    ("seen", "number", "expected"), [(8, "3", "cuda:3"), (1, "3", "cuda:0"), (0, "0", None)]
)
def test_own_gpu(
    monkeypatch: pytest.MonkeyPatch, seen: int, number: str, expected: str | None
) -> None:
    """Where a launcher shows each process one GPU, it is number 0."""
    made: list[torch.device] = []
    monkeypatch.setenv("LOCAL_RANK", number)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    assert world._own_gpu() == (None if expected is None else torch.device(expected))
    assert made == ([] if expected is None else [torch.device(expected)])
