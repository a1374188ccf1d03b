"""Sizes that follow from known values are captured, and checked in the step; others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autopar.capture import capture
from autopar.capture.spec_augment import masked_spans
from autopar.errors import CaptureError, InputError
from tests.capture.compare import captured_equals_eager

MASK = torch.tensor([True, False, True, True, False, True, True, False])
COUNTS = torch.tensor([1, 2, 1, 3, 0, 1, 2, 1])
Body = Callable[["Selecting", torch.Tensor], torch.Tensor]


class Selecting(nn.Module):
    """A linear layer, and buffers that select."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.body = body
        self.register_buffer("mask", MASK.clone())
        self.register_buffer("counts", COUNTS.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, self.up(x)).square().mean()


def symmetric(h: torch.Tensor) -> torch.Tensor:
    return h @ h.T


def lengths(h: torch.Tensor) -> torch.Tensor:
    return (h * torch.arange(1.0, 6.0).to(h)[:, None, None]).log_softmax(-1)


def ctc(h: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return F.ctc_loss(lengths(h), *args, **kwargs)


TARGETS = torch.tensor([[1, 2, 3], [4, 4, 0], [5, 1, 0], [2, 2, 2], [7, 6, 5], [1, 0, 0]] * 2)[:8]
LONG = (3, 2, 2, 3, 3, 1, 3, 2)
KNOWN: dict[str, Body] = {
    "constant mask": lambda m, h: h[:, MASK],
    "mask of a buffer": lambda m, h: h[:, m.mask],
    "mask of rows": lambda m, h: h[m.mask],
    "other mask": lambda m, h: h[:, ~m.mask],
    "mask of numpy": lambda m, h: h[:, np.array([True, False] * 4)],
    "mask in a list": lambda m, h: h[:, [True, False] * 4],
    "mask and slice": lambda m, h: h[1:, m.mask & MASK],
    "mask of all but the diagonal": lambda m, h: symmetric(h)[
        ~torch.eye(len(h), dtype=torch.bool)
    ].view(len(h), -1),
    "mask over two dims": lambda m, h: symmetric(h)[torch.ones(8, 8).triu(1).bool()],
    "masked_select": lambda m, h: h.masked_select(m.mask),
    "torch.masked_select": lambda m, h: torch.masked_select(h, MASK[:, None]),
    "nonzero": lambda m, h: h[:, m.mask.nonzero().squeeze(1)],
    "nonzero as a tuple": lambda m, h: h[:, m.mask.nonzero(as_tuple=True)[0]],
    "nonzero of numbers": lambda m, h: h[:, torch.nonzero(m.counts)[:, 0]],
    "argwhere": lambda m, h: h[:, torch.argwhere(MASK)[:, 0]],
    "where": lambda m, h: h[:, torch.where(m.mask)[0]],
    "repeats of a buffer": lambda m, h: h.repeat_interleave(m.counts, 1),
    "repeats of a constant": lambda m, h: torch.repeat_interleave(h, COUNTS, dim=0),
    "one repeat": lambda m, h: h.repeat_interleave(torch.tensor([2]), 1),
    "repeats alone": lambda m, h: h[:, torch.repeat_interleave(m.counts) % 8],
    "repeats of arange": lambda m, h: h.repeat_interleave(torch.arange(8), 1),
    "tolist": lambda m, h: h[:, torch.tensor([1, 2]).tolist()],
    "unique": lambda m, h: h[:, torch.unique(torch.tensor([3, 1, 3]))],
    "bincount": lambda m, h: h * torch.bincount(torch.tensor([1, 1, 7])),
    "combinations": lambda m, h: h[:, torch.combinations(torch.arange(8))].prod(-1),
    "ctc_loss": lambda m, h: ctc(h, TARGETS, torch.full((8,), 5), torch.tensor(LONG)),
    "ctc_loss of tuples": lambda m, h: ctc(h, TARGETS, (5,) * 8, LONG, reduction="none"),
    "ctc_loss of one row of targets": lambda m, h: ctc(
        h, torch.arange(1, 4).repeat(8), (5,) * 8, (3,) * 8, blank=7, reduction="sum"
    ),
    "ctc_loss of one sample": lambda m, h: F.ctc_loss(
        lengths(h)[:, 0], TARGETS[0], torch.tensor(5), torch.tensor(3)
    ),
    "ctc_loss of none": lambda m, h: ctc(
        h, TARGETS, (2,) * 8, (3, 2, 2, 3, 3, 1, 3, 2), zero_infinity=True
    ),
    "ctc_loss of selected labels": lambda m, h: ctc(
        h, TARGETS.masked_select(h.detach()[:, :3] < 99), (5,) * 8, (3,) * 8
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_is_captured(name: str) -> None:
    torch.manual_seed(0)
    model = Selecting(KNOWN[name]).double()
    captured_equals_eager(model, {"x": torch.randn(8, 6, dtype=torch.float64)})


UNKNOWN: dict[str, tuple[Body, str]] = {
    "tolist of a buffer": (lambda m, h: h[:, m.counts.tolist()], "plain attribute"),
    "loop over a buffer": (lambda m, h: h * sum(int(i) for i in m.counts), "plain attribute"),
    "unique of a buffer": (lambda m, h: h[:, torch.unique(m.counts)], "plain attribute"),
    "mask of an input": (lambda m, h: h[h > 0], "torch.where"),
    "repeats of an input": (lambda m, h: h.repeat_interleave((h[0] > 0).long(), 1), "number"),
    "labels that are used": (
        lambda m, h: h * torch.arange(64).view(8, 8).masked_select(h > 0).sum(),
        "torch.where",
    ),
    "size of labels": (
        lambda m, h: h * len(torch.arange(64).view(8, 8).masked_select(h > 0)),
        "torch.where",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_is_refused(name: str) -> None:
    body, remedy = UNKNOWN[name]
    with pytest.raises(CaptureError, match=remedy):
        capture(Selecting(body), {"x": torch.randn(8, 6)})


def test_remedies_for_buffers() -> None:
    """A plain attribute, or a tensor that forward makes."""
    captured_equals_eager(
        Selecting(lambda m, h: h[:, torch.tensor([1, 2, 1]).tolist()]).double(),
        {"x": torch.randn(8, 6, dtype=torch.float64)},
    )


def test_a_size_that_changes_is_noticed() -> None:
    for call in (
        lambda: torch.ops.autopar_static.nonzero(MASK, 4),
        lambda: torch.ops.autopar_static.repeats(COUNTS, 4),
    ):
        with pytest.raises(InputError, match="when the model was captured"):
            call()


def test_spans_are_as_many_as_the_librarys() -> None:
    """Of each row, where nothing is rounded at random; of short rows none lies behind the end."""
    models = pytest.importorskip("transformers.models.wav2vec2.modeling_wav2vec2")
    attention = (torch.arange(40) < torch.tensor([40, 20, 10])[:, None]).long()
    np.random.seed(0)
    torch.manual_seed(0)
    ours = torch.stack([masked_spans((3, 40), 0.3, 3, attention) for _ in range(400)]).double()
    theirs = np.stack(
        [models._compute_mask_indices((3, 40), 0.3, 3, attention) for _ in range(400)]
    )
    theirs = torch.from_numpy(theirs).double()
    torch.testing.assert_close(ours.sum(2).mean(0), theirs.sum(2).mean(0), atol=0.25, rtol=0.0)
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=0.12, rtol=0.0)
    assert not ours[:, 1, 20:].any()
    assert not ours[:, 2, 10:].any()
