"""No emitted step uses a tensor of the CPU, or waits for a value on the host, on another device."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import pytest

from tests.architectures import ARCHITECTURES, REFUSED
from tests.daily import daily
from tests.distributed import fake_device

LIMIT_S = 120.0
PRESETS: tuple[tuple[str, int | tuple[int, ...]], ...] = (
    ("ddp", 2), ("fsdp", 2), ("megatron_sp", 2), ("fsdp_megatron", (2, 2)),
)  # fmt: skip
CASES = [
    (f"architectures.{name}", *PRESETS[i % 4])
    for i, name in enumerate(ARCHITECTURES)
    if name not in REFUSED
]
MODELS = [(name, *each) for name in ("gpt2", "cnn") for each in PRESETS]
EVERY_DAY = MODELS[len(PRESETS) :]


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    """A process that has the device, which stays for the rest of its life."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=fake_device.register) as made:
        yield made


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "preset", "shape"), daily([*MODELS, *CASES], EVERY_DAY))
def test_everything_is_on_the_device(process: Executor, name: str, preset: str, shape: Any) -> None:
    found = process.submit(fake_device.elsewhere, name, preset, shape)
    assert found.result(LIMIT_S) == []


@pytest.mark.thorough
def test_a_tensor_of_the_cpu_is_found(process: Executor) -> None:
    """The recurrent network starts from zeros that emitted code makes."""
    found = process.submit(fake_device.elsewhere, "architectures.lstm", "ddp", 2, "cpu")
    with pytest.raises(RuntimeError, match="device"):
        found.result(LIMIT_S)
