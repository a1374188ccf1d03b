"""Sparse gradients of a table are refused where they are asked for, and dense ones are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autopar.capture import capture
from autopar.errors import CaptureError


class Table(nn.Module):
    """Looks rows up in one of four ways."""

    def __init__(self, way: str, sparse: bool) -> None:
        super().__init__()
        self.way, self.sparse = way, sparse
        kind = nn.EmbeddingBag if "bag" in way else nn.Embedding
        self.table = kind(8, 4, sparse=sparse)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.way == "function":
            return F.embedding(ids, self.table.weight, sparse=self.sparse).sum()
        if self.way == "bag function":
            return F.embedding_bag(ids, self.table.weight, sparse=self.sparse).sum()
        return self.table(ids).sum()  # type: ignore[no-any-return]


WAYS = ("module", "function", "bag", "bag function")


@pytest.mark.parametrize("way", WAYS)
def test_refused(way: str) -> None:
    with pytest.raises(CaptureError, match=r"sparse=True(.|\n)*Set sparse=False"):
        capture(Table(way, True), torch.randint(0, 8, (4, 3)))


@pytest.mark.parametrize("way", WAYS)
def test_remedy(way: str) -> None:
    """The module is told so, as the message says."""
    model = Table(way, True)
    model.sparse = model.table.sparse = False
    assert capture(model, torch.randint(0, 8, (4, 3))).nodes
