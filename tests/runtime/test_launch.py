"""Joining the ranks of a launch while the process that keeps their store ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from autopar.errors import RankFailedError
from autopar.runtime import launch


class Ending:
    """A store whose host ends at the call of this number."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def _called(self, *_: Any) -> Any:
        if not self._left:
            raise dist.DistNetworkError("Failed to recv, got 0 bytes.")
        self._left -= 1
        return False

    check = set = get = _called

    def clone(self) -> Ending:
        self._called()
        return self


@pytest.mark.parametrize("calls", range(6))
def test_the_store_ends_before_rank_0_answers(calls: int) -> None:
    with pytest.raises(RankFailedError, match=r"the process that keeps it .* on every rank"):
        launch.name_for(Ending(calls), rank=1, size=2, patience_s=60.0)
