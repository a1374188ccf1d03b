"""Losses: the end of every generated model, with the targets that they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.fuzz.draw import Draw, Shape

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Targets = Callable[[torch.Generator], torch.Tensor]


def cross_entropy(draw: Draw, shape: Shape) -> tuple[Loss, Targets]:
    """Of the features as classes, at every place."""
    classes, places = shape[-1], shape[:-1]
    options: dict[str, Any] = {}
    if draw.flag(0.4):
        options["label_smoothing"] = 0.1
    if draw.flag(0.3):
        options["weight"] = torch.linspace(0.5, 1.5, classes, dtype=torch.float64)
    ignored = draw.one((None, -100, -1))
    if ignored is not None:
        options["ignore_index"] = ignored
    if draw.flag(0.15):
        options["reduction"] = "sum"
    flat, shifted = draw.flag(), len(shape) == 3 and draw.flag(0.4)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        given = {k: v.to(x) if k == "weight" else v for k, v in options.items()}
        if shifted:
            x, target = x[:, :-1], target[:, 1:]
        if flat:
            return F.cross_entropy(x.reshape(-1, classes), target.reshape(-1), **given)
        return F.cross_entropy(x.movedim(-1, 1), target, **given)

    def targets(generator: torch.Generator) -> torch.Tensor:
        made = torch.randint(0, classes, places, generator=generator)
        if ignored is not None:
            made[torch.rand(places, generator=generator) < 0.3] = ignored
        return made

    return loss, targets


def channels(draw: Draw, shape: Shape) -> tuple[Loss, Targets]:
    """Segmentation: the second dim as classes."""
    smooth = draw.one((0.0, 0.1))

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, ignore_index=0, label_smoothing=smooth)

    places = (shape[0], *shape[2:])
    return loss, lambda generator: torch.randint(0, shape[1], places, generator=generator)


def regression(draw: Draw, shape: Shape) -> tuple[Loss, Targets]:
    """A difference to a target of the same shape."""
    way = draw.one(("mse", "l1", "smooth", "huber", "sum", "masked", "root", "kl", "cosine"))

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if way == "mse":
            return F.mse_loss(x, target)
        if way == "l1":
            return F.l1_loss(x, target, reduction="mean")
        if way == "smooth":
            return F.smooth_l1_loss(x, target)
        if way == "huber":
            return F.huber_loss(x, target, delta=0.5)
        if way == "sum":
            return F.mse_loss(x, target, reduction="sum") / x.shape[0]
        if way == "masked":
            counted = (target > 0).to(x.dtype)
            return ((x - target).square() * counted).sum() / counted.sum().clamp(min=1)
        if way == "root":
            return (x - target).square().mean().sqrt()
        if way == "kl":
            return F.kl_div(x.log_softmax(-1), target.softmax(-1), reduction="batchmean")
        return 1 - F.cosine_similarity(x.flatten(1), target.flatten(1)).mean()

    return loss, lambda generator: torch.randn(shape, generator=generator)


def binary(draw: Draw, shape: Shape) -> tuple[Loss, Targets]:
    """Yes or no for every entry."""
    way = draw.one(("logits", "weighted", "probabilities", "dice", "margin"))
    weight = torch.linspace(0.5, 2.0, shape[-1], dtype=torch.float64)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if way == "logits":
            return F.binary_cross_entropy_with_logits(x, target)
        if way == "weighted":
            return F.binary_cross_entropy_with_logits(x, target, pos_weight=weight.to(x))
        if way == "probabilities":
            return F.binary_cross_entropy(x.sigmoid(), target)
        if way == "margin":
            return F.soft_margin_loss(x, 2 * target - 1)
        chance = x.sigmoid()
        return 1 - 2 * (chance * target).sum() / (chance.sum() + target.sum() + 1.0)

    def targets(generator: torch.Generator) -> torch.Tensor:
        return (torch.rand(shape, generator=generator) > 0.5).float()

    return loss, targets


def contrastive(draw: Draw, shape: Shape) -> tuple[Loss, Targets]:
    """Every row against every other row of the global batch."""

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        rows = F.normalize(x.flatten(1), dim=-1)
        other = F.normalize(target, dim=-1)
        logits = 5.0 * rows @ other.t()
        labels = torch.arange(x.shape[0], device=x.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2

    size = torch.Size(shape[1:]).numel()
    return loss, lambda generator: torch.randn((shape[0], size), generator=generator)


def plain(draw: Draw, shape: Shape) -> tuple[Loss, Targets]:
    """No targets to speak of."""
    way = draw.one(("mean", "square", "logsumexp", "nll", "norm", "variance"))

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if way == "mean":
            return (x * target).mean()
        if way == "square":
            return x.square().sum() / x.numel() + 0.0 * target.sum()
        if way == "logsumexp":
            return torch.logsumexp(x.flatten(1), 1).mean()
        if way == "norm":
            return x.norm() + (x - target).flatten(1).norm(dim=1).mean()
        if way == "variance":
            return x.var() + x.flatten(1).std(0).mean()
        chosen = target.flatten(1).argmax(1)
        return F.nll_loss(x.flatten(1).log_softmax(1), chosen)

    return loss, lambda generator: torch.randn(shape, generator=generator)


LOSSES = {
    2: (cross_entropy, cross_entropy, regression, binary, contrastive, plain),
    3: (cross_entropy, cross_entropy, cross_entropy, regression, binary, contrastive, plain),
    4: (channels, channels, regression, binary, plain),
}
"""By the number of dims."""
