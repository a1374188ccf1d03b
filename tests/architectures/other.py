"""What is no transformer: a U-Net, a recommender, a recurrent network, a denoiser, a graph network."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.architectures.sizes import (
    BATCH,
    CHANNELS,
    CLASSES,
    HEADS,
    HIDDEN,
    IMAGE,
    INNER,
    LAYERS,
    SEQUENCE,
    VOCAB,
    Case,
    generator,
    ids,
    images,
    seeded,
)


class Double(nn.Sequential):
    """Two convolutions, each with group norm."""

    def __init__(self, read: int, made: int, dropout: float) -> None:
        super().__init__(
            nn.Conv2d(read, made, 3, padding=1, bias=False),
            nn.GroupNorm(4, made),
            nn.SiLU(),
            nn.Dropout2d(dropout) if dropout else nn.Identity(),
            nn.Conv2d(made, made, 3, padding=1, bias=False),
            nn.GroupNorm(4, made),
            nn.SiLU(inplace=True),
        )


class UNet(nn.Module):
    """Down twice, up twice by transposed convolutions, with skips."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = Double(CHANNELS, 16, dropout)
        self.second = Double(16, 24, dropout)
        self.bottom = Double(24, 48, dropout)
        self.up_second = nn.ConvTranspose2d(48, 24, 2, stride=2)
        self.back_second = Double(48, 24, dropout)
        self.up_first = nn.ConvTranspose2d(24, 16, 2, stride=2)
        self.back_first = Double(32, 16, dropout)
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image)
        second = self.second(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = self.back_second(torch.cat([second, self.up_second(x)], dim=1))
        x = self.back_first(torch.cat([first, self.up_first(x)], dim=1))
        logits: torch.Tensor = self.head(x)
        return logits


def unet(dropout: float = 0.0) -> Case:
    """Segmentation; the loss is a callable."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target, ignore_index=0)

    shape = (BATCH, IMAGE, IMAGE)
    target = torch.randint(0, CLASSES, shape, generator=generator(6))
    return seeded(lambda: UNet(dropout)), {"image": images(), "target": target}, loss


class Recommender(nn.Module):
    """Embedding tables, bags of items, products of all pairs of features (DLRM, Naumov et al. 2019)."""

    def __init__(self, dropout: float, tables: tuple[int, ...] = (64, 100, 128)) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 24) for rows in tables)
        self.bag = nn.EmbeddingBag(VOCAB, 24, mode="sum")
        self.dense = nn.Sequential(nn.Linear(12, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 24))
        features = len(tables) + 2
        self.register_buffer("pairs", torch.tril_indices(features, features, -1), persistent=False)
        self.top = nn.Sequential(
            nn.Linear(24 + features * (features - 1) // 2, INNER),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(INNER, 1),
        )

    def forward(
        self, numbers: torch.Tensor, categories: torch.Tensor, bags: torch.Tensor
    ) -> torch.Tensor:
        dense = self.dense(numbers)
        looked = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([dense, *looked, self.bag(bags)], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        crossed = products[:, self.pairs[0], self.pairs[1]]
        clicked: torch.Tensor = self.top(torch.cat([dense, crossed], dim=1)).squeeze(-1)
        return clicked


def dlrm(dropout: float = 0.0) -> Case:
    """Clicks; a binary loss."""

    def loss(output: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(output, clicked)

    batch = 16
    inputs = {
        "numbers": torch.randn(batch, 12, generator=generator(1)),
        "categories": torch.randint(0, 64, (batch, 3), generator=generator(2)),
        "bags": torch.randint(0, VOCAB, (batch, 5), generator=generator(3)),
        "clicked": torch.randint(0, 2, (batch,), generator=generator(4)).float(),
    }
    return seeded(lambda: Recommender(dropout)), inputs, loss


class Recurrent(nn.Module):
    """A language model of stacked LSTMs."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, HIDDEN)
        self.rnn = nn.LSTM(HIDDEN, 40, LAYERS, batch_first=True, dropout=dropout)
        self.head = nn.Linear(40, VOCAB)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(self.table(input_ids))
        return F.cross_entropy(self.head(hidden).transpose(1, 2), labels)


def lstm(dropout: float = 0.0) -> Case:
    """Returns its own loss."""
    tokens = ids(SEQUENCE + 1)
    inputs = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}
    return seeded(lambda: Recurrent(dropout)), inputs, None


class Modulated(nn.Module):
    """A block whose norms are shifted and scaled by the condition (DiT, Peebles and Xie 2023)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(HIDDEN, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(HIDDEN, HEADS, dropout, batch_first=True)
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.modulation = nn.Linear(HIDDEN, 6 * HIDDEN)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shifts = self.modulation(F.silu(condition)).unsqueeze(1).chunk(6, dim=-1)
        shift, scale, gate, shift2, scale2, gate2 = shifts
        read = self.norm(x) * (1 + scale) + shift
        x = x + gate * self.attention(read, read, read, need_weights=False)[0]
        read = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(read), approximate="tanh"))


class Denoiser(nn.Module):
    """Predicts the noise in an image from the image, the time and a class."""

    def __init__(self, dropout: float, patch: int = 8) -> None:
        super().__init__()
        self.patch = patch
        places = (IMAGE // patch) ** 2
        self.patches = nn.Conv2d(CHANNELS, HIDDEN, patch, stride=patch)
        self.places = nn.Parameter(torch.randn(1, places, HIDDEN) * 0.02)
        self.time = nn.Sequential(nn.Linear(24, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN))
        self.kind = nn.Embedding(CLASSES + 1, HIDDEN)
        self.blocks = nn.ModuleList(Modulated(dropout) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, CHANNELS * patch * patch)
        self.register_buffer("kept", torch.linspace(0.99, 0.01, 100))

    def forward(
        self, image: torch.Tensor, noise: torch.Tensor, step: torch.Tensor, kind: torch.Tensor
    ) -> torch.Tensor:
        kept = self.kept[step].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * image + (1 - kept).sqrt() * noise
        condition = self.time(self.waves(step, image.dtype)) + self.kind(kind)
        x = self.patches(noisy).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        return F.mse_loss(self.unpatched(self.head(self.norm(x))), noise)

    @staticmethod
    def waves(step: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Sines and cosines of the time at twelve frequencies."""
        rates = torch.exp(torch.arange(12, device=step.device, dtype=dtype) * -math.log(1e4) / 12)
        angles = step[:, None].to(dtype) * rates[None]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def unpatched(self, x: torch.Tensor) -> torch.Tensor:
        side = IMAGE // self.patch
        x = x.reshape(-1, side, side, self.patch, self.patch, CHANNELS)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, CHANNELS, IMAGE, IMAGE)


def denoiser(dropout: float = 0.0) -> Case:
    """A diffusion transformer; noise and time are part of the batch."""
    inputs = {
        "image": images(),
        "noise": torch.randn(BATCH, CHANNELS, IMAGE, IMAGE, generator=generator(7)),
        "step": torch.randint(0, 100, (BATCH,), generator=generator(8)),
        "kind": torch.randint(0, CLASSES, (BATCH,), generator=generator(9)),
    }
    return seeded(lambda: Denoiser(dropout)), inputs, None


class MessagePassing(nn.Module):
    """Messages along edges, added up at the nodes they reach."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(2 * HIDDEN + 12, INNER)
        self.update = nn.Linear(HIDDEN + INNER, HIDDEN)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        source, target = edges[0], edges[1]
        read = torch.cat([x[source], x.index_select(0, target), kinds], dim=-1)
        sent = F.relu(self.message(read))
        received = torch.zeros(x.shape[0], INNER, dtype=x.dtype, device=x.device)
        received = received.index_add(0, target, sent)
        return x + self.update(torch.cat([x, received], dim=-1))


class GraphNetwork(nn.Module):
    """Rounds of messages, means over the nodes of each graph, a class per graph."""

    def __init__(self, dropout: float, graphs: int = BATCH) -> None:
        super().__init__()
        self.graphs = graphs
        self.read = nn.Linear(20, HIDDEN)
        self.rounds = nn.ModuleList(MessagePassing() for _ in range(LAYERS))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(
        self,
        features: torch.Tensor,
        edges: torch.Tensor,
        kinds: torch.Tensor,
        graph: torch.Tensor,
        labels: torch.Tensor,
    ) -> torch.Tensor:
        x = self.read(features)
        for messages in self.rounds:
            x = self.dropout(messages(x, edges, kinds))
        place = graph[:, None].expand_as(x)
        total = x.new_zeros(self.graphs, HIDDEN).scatter_add_(0, place, x)
        count = x.new_zeros(self.graphs).scatter_add(0, graph, x.new_ones(x.shape[0]))
        mean = total / count.clamp(min=1)[:, None]
        return F.cross_entropy(self.head(mean), labels)


def graph_network(dropout: float = 0.0) -> Case:
    """Eight graphs of eight nodes in one batch."""
    nodes, edges = 64, 256
    ends = torch.randint(0, nodes, (2, edges), generator=generator(2))
    inputs = {
        "features": torch.randn(nodes, 20, generator=generator(1)),
        "edges": ends,
        "kinds": torch.randn(edges, 12, generator=generator(3)),
        "graph": torch.arange(BATCH).repeat_interleave(nodes // BATCH),
        "labels": torch.randint(0, CLASSES, (BATCH,), generator=generator(4)),
    }
    return seeded(lambda: GraphNetwork(dropout)), inputs, None
