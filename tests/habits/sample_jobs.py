"""Models with operators that are not split by samples, and what their messages say to do instead."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import autopar
from autopar.errors import AutoparError

WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp"},
    "fsdp": {"preset": "fsdp"},
    "stages": {"pipeline": autopar.Pipeline(2, "gpipe", 2)},
    "stages, whole batch": {"pipeline": autopar.Pipeline(2, "gpipe", 1)},
    "no preset": {},
}


class Bags(nn.Module):
    """Samples of unequal length, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode="mean")
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.loss(self.bag(ids, offsets))

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.up(rows).relu()).square().mean()
        return made


class Matrix(Bags):
    """What the message says: a matrix of ids."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.loss(self.bag(ids))


class Rows(Bags):
    """What the message says of weights and padding: a sum of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.Embedding(20, 8, padding_idx=0)  # type: ignore[assignment]

    def forward(self, ids: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.loss((self.bag(ids) * factors[..., None]).sum(1))


class Spectrum(nn.Module):
    """A filter in the frequencies of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.filter = nn.Linear(8, 8), nn.Parameter(torch.ones(5))
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.rfft(self.first(x), dim=-1) * self.filter
        made: torch.Tensor = self.last(torch.fft.irfft(found, n=8, dim=-1)).square().mean()
        return made


class RealPart(nn.Module):
    """The real part of a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.middle(torch.fft.fft(self.first(x)).real).relu()
        made: torch.Tensor = self.last(found).square().mean()
        return made


class Average(nn.Module):
    """A batch norm that averages all batches so far."""

    def __init__(self, momentum: float | None = None) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=momentum)
        self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.middle(self.norm(self.first(x))).relu()).square().mean()
        return made


def ids() -> torch.Tensor:
    return torch.randint(0, 20, (8, 3))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


MODELS: dict[str, tuple[Any, Any]] = {
    "bags": (
        Bags,
        lambda: {
            "ids": torch.randint(0, 20, (24,)),
            "offsets": torch.tensor([0, 1, 5, 9, 12, 13, 20, 22]),
        },
    ),
    "matrix": (Matrix, lambda: {"ids": ids()}),
    "rows": (Rows, lambda: {"ids": ids(), "factors": numbers(8, 3)}),
    "spectrum": (Spectrum, lambda: {"x": numbers(8, 8)}),
    "real part": (RealPart, lambda: {"x": numbers(8, 8)}),
    "average": (Average, lambda: {"x": numbers(8, 8)}),
    "batch norm": (lambda: Average(0.1), lambda: {"x": numbers(8, 8)}),
}


def outcome(name: str, way: str) -> str:
    """Train three steps: "equal" to one process, or the refusal."""
    make, batch = MODELS[name]
    torch.manual_seed(0)
    single = make().double()
    try:
        parallel = autopar.parallelize(
            copy.deepcopy(single), 2, batch(), hardware="cpu", **WAYS[way]
        )
    except AutoparError as error:
        return f"{type(error).__name__}: {error}"
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1)
    theirs = torch.optim.SGD(single.parameters(), lr=0.1)
    for _ in range(3):
        given = batch()
        got, want = parallel.train_step(**given), single(**given)
        want.backward()
        torch.testing.assert_close(got, want.detach(), rtol=1e-9, atol=1e-12)
        for model, optimizer in ((parallel, ours), (single, theirs)):
            optimizer.step()
            model.zero_grad()
    whole = parallel.full_state_dict()
    for key, value in single.state_dict().items():
        torch.testing.assert_close(whole[key], value, rtol=1e-9, atol=1e-12, msg=key)
    return "equal"
