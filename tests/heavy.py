"""Models whose weights are most of what a step has in use: wide layers, few rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests import models

ROWS = 16


class Pair(nn.Module):
    """Up and down again, beside what comes in."""

    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inside), nn.Linear(inside, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + made


class Pairs(nn.Module):
    """Blocks of two layers."""

    def __init__(self, pairs: int, width: int, inside: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Pair(width, inside) for _ in range(pairs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Chain(nn.Module):
    """Layers of unequal widths, in no block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 256), nn.Linear(256, 128)
        self.third, self.last = nn.Linear(128, 192), nn.Linear(192, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        made: torch.Tensor = self.last(torch.relu(self.third(x)))
        return made


class Buffered(nn.Module):
    """Holds as much in buffers as in weights; the forward reads one of the two, late."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 256), nn.Linear(256, 128)
        self.register_buffer("mixed", torch.rand(128, 256))
        self.register_buffer("unread", torch.rand(128, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.relu(self.second(torch.relu(self.first(x)))) @ self.mixed
        return made


class Mixing(nn.Module):
    """Mixes along the tokens, then along the channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = Pair(tokens, 2 * tokens), Pair(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.before(x).transpose(1, 2)).transpose(1, 2)
        made: torch.Tensor = x + self.channels(self.between(x))
        return made


class Mixer(nn.Module):
    """Two of them, and a head."""

    def __init__(self, tokens: int = 16, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mixing(tokens, width) for _ in range(2))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = self.head(x.mean(1))
        return made


class Encoder(nn.Module):
    """Attention and two layers per block, over few tokens."""

    def __init__(self, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attending(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Attending(nn.Module):
    """One block of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.pair = Pair(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        heads = [
            each(y).unflatten(-1, (4, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        made: torch.Tensor = self.pair(x + self.out(mixed))
        return made


class Tied(nn.Module):
    """A pair of layers between norms, the first with a weight that may be another's, too."""

    def __init__(self, width: int, inner: int, weight: nn.Parameter | None) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.own, self.up, self.down = (
            nn.Linear(width, width), nn.Linear(width, inner), nn.Linear(inner, width),
        )  # fmt: skip
        if weight is not None:
            self.up.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.own(self.before(x)))
        made = torch.nn.functional.gelu(self.up(self.behind(x)))
        made = made + torch.nn.functional.gelu(self.up(gate))
        added: torch.Tensor = x + self.down(made) * gate
        return added


class Shared(nn.Module):
    """Blocks that share their largest weight."""

    def __init__(self, width: int = 64, inner: int = 512) -> None:
        super().__init__()
        first = Tied(width, inner, None)
        others = (Tied(width, inner, first.up.weight) for _ in range(3))
        self.layers = nn.ModuleList([first, *others])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Tables(nn.Module):
    """Blocks that are normed behind, between a table and itself as the head."""

    def __init__(self, rows: int = 512, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, rows, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.table(x)
        for layer in self.layers:
            made = layer(made)
        found: torch.Tensor = self.head(made)
        return found


def _case(model: nn.Module, *shape: int) -> models.Case:
    return model, {"x": torch.randn(ROWS, *shape)}, lambda output: output.square().mean()


def pairs() -> models.Case:
    """Three pairs of layers of 96 x 288."""
    torch.manual_seed(0)
    return _case(Pairs(3, 96, 288), 96)


def chain() -> models.Case:
    """Four layers."""
    torch.manual_seed(0)
    return _case(Chain(), 32)


def buffered() -> models.Case:
    """Two layers and two buffers."""
    torch.manual_seed(0)
    return _case(Buffered(), 32)


def mixer() -> models.Case:
    """Weights along tokens and along channels."""
    torch.manual_seed(0)
    return _case(Mixer(), 16, 64)


def encoder() -> models.Case:
    """Attention over four tokens."""
    torch.manual_seed(0)
    return _case(Encoder(), 4, 64)


def shared() -> models.Case:
    """Four blocks."""
    torch.manual_seed(0)
    return _case(Shared(), 4, 64)


def tables() -> models.Case:
    """A table of 512 rows for tokens and for their scores."""
    torch.manual_seed(0)
    return Tables(), {"x": torch.randint(512, (8, 4))}, lambda output: output.square().mean()


MADE = (pairs, chain, buffered, mixer, encoder, shared, tables)
ALL = {f"heavy.{make.__name__}": make for make in MADE}
"""By name."""
