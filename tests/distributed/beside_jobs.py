"""What every rank does where gradients are summed on an axis on which the backward communicates."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

import autopar
from autopar.runtime.counting import CountTraffic
from autopar.runtime.gradient_groups import both_at_once
from tests.distributed.jobs import same_weights
from tests.parity import check_traffic


class Mixed(nn.Module):
    """Two layers that may be split by features, and one by samples."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 64)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(torch.relu(self.a(input)))).square().mean()


def mixed(pinned: dict[str, str], apart: bool) -> int:
    """Two models in turn: equal to the single process, on the same groups; how many groups there are."""
    torch.manual_seed(0)
    single, batch = Mixed().double(), {"input": torch.randn(16, 64, dtype=torch.float64)}
    made = []
    for _ in range(2):
        whole = copy.deepcopy(single)
        parallel = autopar.parallelize(
            copy.deepcopy(whole), 2, batch, constraints=pinned, hardware="h100"
        )
        assert (both_at_once(parallel.plan) == ("x",)) is apart
        groups = {bucket.axes["x"].group for bucket in parallel._reducer.buckets}
        assert all((group is not parallel.axes["x"].group) is apart for group in groups)
        mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (parallel, whole))
        with CountTraffic(parallel.device_mesh) as counted:
            for _ in range(3):
                mine.zero_grad()
                theirs.zero_grad()
                counted.direction = "forward"
                loss = parallel(**batch)
                counted.direction = "backward"
                loss.backward()
                whole(**batch).backward()
                mine.step()
                theirs.step()
        check_traffic(parallel, parallel.plan, counted, 3)
        same_weights(parallel, whole, 1e-12)
        made.append(len(dist.distributed_c10d._world.pg_map))
    assert made[0] == made[1], "the second model made groups anew"
    return len(groups)
