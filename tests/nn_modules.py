"""Every module of `torch.nn` between two linear layers, three times, as `tests.models` has models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests import models

WIDTH, LENGTH = 16, 6
Make = Callable[[], nn.Module]
Use = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Between(nn.Module):
    """Linear layers around a module, three times; the module is used in its own way."""

    def __init__(self, make: Make, use: Use) -> None:
        super().__init__()
        self.into = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.between = nn.ModuleList(make() for _ in range(3))
        self.use = use
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear, module in zip(self.into, self.between, strict=True):
            made = self.use(module, linear(x))
            x = x + made.flatten(1).mean(1)[:, None, None] if made.shape != x.shape else x + made
        return self.out(x).square().mean()


def plain(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of [batch, length, width]."""
    return module(x)  # type: ignore[no-any-return]


def channels(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of [batch, channels, length]."""
    return module(x.transpose(1, 2))  # type: ignore[no-any-return]


def image(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of [batch, channels, height, width]."""
    return module(x.transpose(1, 2).unflatten(2, (2, 3)).repeat(1, 1, 4, 3))  # type: ignore[no-any-return]


def volume(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of [batch, channels, depth, height, width]."""
    made = x.transpose(1, 2).unflatten(2, (1, 2, 3)).repeat(1, 1, 5, 3, 2)
    return module(made)  # type: ignore[no-any-return]


def first(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What it gives first."""
    return module(x)[0]  # type: ignore[no-any-return]


def attended(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x, x, x)[0]  # type: ignore[no-any-return]


def twice(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x, x * 0.5)  # type: ignore[no-any-return]


def stepped(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    made = module(x[:, 0])
    return (made[0] if isinstance(made, tuple) else made)[:, None].expand_as(x)


def labels(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x), device=x.device) % WIDTH


def classes(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Scores against labels."""
    return module(x[:, 0].log_softmax(-1), labels(x)).expand(len(x), 1)  # type: ignore[no-any-return]


def signs(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Against plus and minus one."""
    return module(x, 1 - 2 * (torch.arange(WIDTH) % 2).to(x.dtype).expand_as(x)).expand(len(x), 1)  # type: ignore[no-any-return]


def shares(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Against numbers between nought and one."""
    target = torch.linspace(0.1, 0.9, WIDTH, dtype=x.dtype).expand_as(x)
    return module(x.sigmoid(), target).expand(len(x), 1)  # type: ignore[no-any-return]


def pairs(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Two rows and how they are to compare."""
    sign = 1 - 2 * (labels(x) % 2).to(x.dtype)
    return module(x[:, 0], x[:, 1], sign).expand(len(x), 1)  # type: ignore[no-any-return]


def triples(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x[:, 0], x[:, 1], x[:, 2]).expand(len(x), 1)  # type: ignore[no-any-return]


def several(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Against several labels of each sample."""
    target = torch.full((len(x), WIDTH), -1).index_fill(1, torch.tensor([0]), 3)
    return module(x[:, 0], target).expand(len(x), 1)  # type: ignore[no-any-return]


def looked_up(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(labels(x))[:, None] * x  # type: ignore[no-any-return]


def bags(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module((labels(x)[:, None] + torch.arange(3)) % WIDTH)[:, None] * x  # type: ignore[no-any-return]


def aligned(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    scores = x.transpose(0, 1).log_softmax(-1)
    target = 1 + (labels(x)[:, None] + 2 * torch.arange(2)) % (WIDTH - 1)
    sizes = torch.full((len(x),), LENGTH), torch.full((len(x),), 2)
    # Small, as it is added to what the next layer reads: losses of losses would grow without bound.
    return (module(scores, target, *sizes) / 100).expand(len(x), 1)  # type: ignore[no-any-return]


def varied(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x, x.detach() * 0, 1 + x.square()).expand(len(x), 1)  # type: ignore[no-any-return]


def unpooled(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    made, places = F.max_pool1d(x, 2, return_indices=True)
    return module(made, places)  # type: ignore[no-any-return]


def decoded(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x, x.flip(1))  # type: ignore[no-any-return]


def log_likelihood(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x[:, 0], labels(x)).output[:, None]  # type: ignore[no-any-return]


ACTIVATIONS = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU,
    nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus,
    nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Identity,
)  # fmt: skip
POOLS: dict[Any, Use] = {}
for _dims, _use in ((1, channels), (2, image), (3, volume)):
    for _name in ("AvgPool", "MaxPool"):
        POOLS[getattr(nn, f"{_name}{_dims}d")] = _use
EVERY: dict[str, tuple[Make, Use]] = {
    **{kind.__name__: (kind, plain) for kind in ACTIVATIONS},
    **{kind.__name__: (lambda kind=kind: kind(2), use) for kind, use in POOLS.items()},
    "GLU": (nn.GLU, lambda m, x: m(torch.cat([x, x], -1))),
    "Threshold": (lambda: nn.Threshold(0.1, 0.2), plain),
    "RReLU": (lambda: nn.RReLU(0.2, 0.2), plain),
    "Softmax": (lambda: nn.Softmax(-1), plain),
    "Softmax over rows": (lambda: nn.Softmax(1), plain),
    "Softmin": (lambda: nn.Softmin(-1), plain),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), plain),
    "Softmax2d": (nn.Softmax2d, image),
    **{
        f"{kind.__name__}": (lambda kind=kind: kind(0.0), plain)
        for kind in (nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout)
    },
    "Dropout1d": (lambda: nn.Dropout1d(0.0), channels),
    "Dropout2d": (lambda: nn.Dropout2d(0.0), image),
    "Dropout3d": (lambda: nn.Dropout3d(0.0), volume),
    "Conv1d": (lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1), channels),
    "Conv1d of groups": (lambda: nn.Conv1d(WIDTH, WIDTH, 3, groups=4, dilation=2), channels),
    "Conv1d circular": (
        lambda: nn.Conv1d(WIDTH, 8, 3, padding=1, padding_mode="circular"), channels,
    ),
    "Conv2d": (lambda: nn.Conv2d(WIDTH, 8, 3, stride=2), image),
    "Conv2d reflected": (lambda: nn.Conv2d(WIDTH, 8, 3, padding=1, padding_mode="reflect"), image),
    "Conv3d": (lambda: nn.Conv3d(WIDTH, 8, 2), volume),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(WIDTH, 8, 3, 2), channels),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(WIDTH, 8, 3, 2), image),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(WIDTH, 8, 2), volume),
    "Unfold": (lambda: nn.Unfold(2), image),
    "Fold": (lambda: nn.Fold((3, 4), (2, 3)), lambda m, x: m(channels(nn.Identity(), x)[:, :12, :4])),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(4), channels),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((3, 2)), image),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), volume),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(4), channels),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), image),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), volume),
    "LPPool1d": (lambda: nn.LPPool1d(2, 2), lambda m, x: channels(m, x.exp())),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), lambda m, x: image(m, x.sigmoid())),
    "LPPool3d": (lambda: nn.LPPool3d(2, 2), lambda m, x: volume(m, x.sigmoid())),
    "MaxUnpool1d": (lambda: nn.MaxUnpool1d(2), unpooled),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=3), image),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(WIDTH), channels),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(WIDTH), image),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(WIDTH), volume),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(WIDTH), channels),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(WIDTH, affine=True), channels),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(WIDTH), image),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(WIDTH), volume),
    "InstanceNorm1d tracking": (
        lambda: nn.InstanceNorm1d(WIDTH, track_running_stats=True), channels,
    ),
    "GroupNorm": (lambda: nn.GroupNorm(4, WIDTH), channels),
    "LayerNorm": (lambda: nn.LayerNorm(WIDTH), plain),
    "LayerNorm of two dims": (lambda: nn.LayerNorm((LENGTH, WIDTH)), plain),
    "RMSNorm": (lambda: nn.RMSNorm(WIDTH), plain),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), channels),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(3), image),
    "RNN": (lambda: nn.RNN(WIDTH, WIDTH, batch_first=True), first),
    "LSTM": (lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), first),
    "GRU": (lambda: nn.GRU(WIDTH, 8, batch_first=True, bidirectional=True), first),
    "RNNCell": (lambda: nn.RNNCell(WIDTH, WIDTH), stepped),
    "LSTMCell": (lambda: nn.LSTMCell(WIDTH, WIDTH), stepped),
    "GRUCell": (lambda: nn.GRUCell(WIDTH, WIDTH), stepped),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(WIDTH, 4, batch_first=True), attended,
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(WIDTH, 4, 32, 0.0, batch_first=True), plain,
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(WIDTH, 4, 32, 0.0, batch_first=True), decoded,
    ),
    "Transformer": (
        lambda: nn.Transformer(WIDTH, 4, 1, 1, 32, 0.0, batch_first=True), decoded,
    ),
    "Bilinear": (lambda: nn.Bilinear(WIDTH, WIDTH, 4), twice),
    "Embedding": (lambda: nn.Embedding(WIDTH, WIDTH), looked_up),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(WIDTH, WIDTH), bags),
    "EmbeddingBag of largest": (lambda: nn.EmbeddingBag(WIDTH, WIDTH, mode="max"), bags),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(-1), twice),
    "PairwiseDistance": (nn.PairwiseDistance, twice),
    "Flatten": (nn.Flatten, plain),
    "Unflatten": (lambda: nn.Unflatten(2, (4, 4)), plain),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), image),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), lambda m, x: m(image(nn.Identity(), x)[..., :8])),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(4), image),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), image),
    "Upsample bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), image),
    "Upsample bicubic": (lambda: nn.Upsample(size=(5, 7), mode="bicubic"), image),
    "Upsample trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), volume),
    "Upsample linear": (lambda: nn.Upsample(scale_factor=2, mode="linear"), channels),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), image),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), image),
    **{
        f"{name}{dims}d": (partial(vars(nn)[f"{name}{dims}d"], *more), use)
        for name, more in (
            ("ReflectionPad", (1,)), ("ReplicationPad", (1,)), ("ZeroPad", (1,)),
            ("CircularPad", (1,)), ("ConstantPad", (1, 0.5)),
        )
        for dims, use in ((1, channels), (2, image), (3, volume))
    },
    "L1Loss": (nn.L1Loss, shares),
    "MSELoss": (nn.MSELoss, shares),
    "SmoothL1Loss": (nn.SmoothL1Loss, shares),
    "HuberLoss": (nn.HuberLoss, shares),
    "BCELoss": (nn.BCELoss, shares),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, shares),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), lambda m, x: shares(m, x)),
    "PoissonNLLLoss": (nn.PoissonNLLLoss, shares),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss, shares),
    "GaussianNLLLoss": (nn.GaussianNLLLoss, varied),
    "SoftMarginLoss": (nn.SoftMarginLoss, signs),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, signs),
    "NLLLoss": (nn.NLLLoss, classes),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), classes),
    "MultiMarginLoss": (nn.MultiMarginLoss, classes),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss, several),
    "MarginRankingLoss": (
        nn.MarginRankingLoss, lambda m, x: pairs(lambda a, b, s: m(a, b, s[:, None]), x),
    ),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, pairs),
    "TripletMarginLoss": (nn.TripletMarginLoss, triples),
    "TripletMarginWithDistanceLoss": (nn.TripletMarginWithDistanceLoss, triples),
    "CTCLoss": (nn.CTCLoss, aligned),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(WIDTH, WIDTH, [4, 8]), log_likelihood,
    ),
    "NLLLoss2d": (nn.NLLLoss, lambda m, x: m(
        image(nn.Identity(), x).log_softmax(1),
        (torch.arange(len(x))[:, None, None] + torch.zeros(8, 9).long()) % 16,
    ).expand(len(x), 1)),
}  # fmt: skip
REFUSED = {"InstanceNorm1d tracking": "running statistics"}
RANDOM = {"FractionalMaxPool2d"}
"""It draws where it pools, here and there."""


def _case(make: Make, use: Use) -> Callable[[], models.Case]:
    def made() -> models.Case:
        torch.manual_seed(7)
        return Between(make, use), {"x": torch.randn(models.BATCH, LENGTH, WIDTH)}, None

    return made


MODULES = {
    f"nn.{name}": _case(*each) for name, each in EVERY.items() if name not in {*REFUSED, *RANDOM}
}
