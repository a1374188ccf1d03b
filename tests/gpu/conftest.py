"""One process with a GPU and an NCCL group of its own; without a GPU nothing of this folder runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip them where there is no GPU."""
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in Path(item.path).parent.name:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The default group, on NCCL."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.set_device(0)
    store = tmp_path_factory.mktemp("gpu") / "store"
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
