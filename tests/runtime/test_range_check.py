"""The check of ids and labels itself: eager, in a compiled graph, and what it costs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from autopar.runtime.ranges import check_range, padded_embedding


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bounds_and_the_ignored_index(dtype: torch.dtype) -> None:
    fine = torch.tensor([[0, 6], [3, 0]], dtype=dtype)
    check_range(fine, 7, "id")
    check_range(torch.tensor([-100, 6], dtype=dtype), 7, "target", ignored=-100)
    check_range(torch.tensor([], dtype=dtype), 7, "id")
    check_range(torch.tensor([9], dtype=dtype, device="meta"), 7, "id")
    with pytest.raises(IndexError, match=r"^id 7 is out of range; valid are 0 \.\.\. 6\.$"):
        check_range(fine + 1, 7, "id")
    with pytest.raises(IndexError, match=r"^target -1 .* 0 \.\.\. 6 and -100 \(ignored\)\.$"):
        check_range(torch.tensor([-100, -1], dtype=dtype), 7, "target", ignored=-100)


def test_a_padded_table() -> None:
    """Rows of padding are not read, and the padding row of the model gets no gradient."""
    weight = torch.randn(8, 3, requires_grad=True)
    ids = torch.tensor([[0, 6], [2, 2]])
    made = padded_embedding(weight, ids, 2, False, False, rows=7)
    want = F.embedding(ids, weight, padding_idx=2)
    assert torch.equal(made, want)
    (got,) = torch.autograd.grad(made.sum(), weight)
    assert not got[2].any()
    assert got[6].all()
    with pytest.raises(IndexError, match=r"padded_embedding \(table of shape \[7, 3\]\): id 7 "):
        padded_embedding(weight, ids + 1, rows=7)


@pytest.mark.filterwarnings("ignore")
def test_in_a_compiled_graph() -> None:
    """An assertion in the graph, as on a device: no break, no waiting; it fails all the same."""
    compiled = torch.compile(partial(padded_embedding, rows=7), backend="aot_eager", fullgraph=True)
    weight, ids = torch.randn(8, 3), torch.tensor([0, 6])
    assert torch.equal(compiled(weight, ids), F.embedding(ids, weight))
    with pytest.raises(RuntimeError, match=r"id is out of range; valid are 0 \.\.\. 6"):
        compiled(weight, ids + 1)
