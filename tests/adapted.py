"""Models that train in part, and models whose buffers are odd; as `tests.models` has them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests import models


class LoRA(nn.Module):
    """A frozen linear map with a low-rank one beside it (Hu et al., 2021)."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(inputs, rank) / rank)
        self.up = nn.Parameter(torch.randn(rank, outputs) / rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + x @ self.down @ self.up
        return result


def lora(seed: int = 0) -> models.Case:
    """GPT-2 with adapters on its projections; all that was there is frozen."""
    return with_adapters(models.gpt2(seed=seed), seed)


def with_adapters(case: models.Case, seed: int = 0) -> models.Case:
    """A case of GPT-2 that trains nothing but adapters."""
    model, batch, loss = case
    torch.manual_seed(seed)
    model.requires_grad_(False)
    for block in model.transformer.h:
        for module, names in ((block.attn, ("c_attn", "c_proj")), (block.mlp, ("c_fc",))):
            for name in names:
                base = getattr(module, name)
                setattr(module, name, LoRA(base, *base.weight.shape))
    return model.train(), batch, loss


def llama_lora(seed: int = 0) -> models.Case:
    """Llama with adapters on queries and values."""
    model, batch, loss = models.llama(seed=seed)
    torch.manual_seed(seed)
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            base = getattr(layer.self_attn, name)
            setattr(layer.self_attn, name, LoRA(base, base.in_features, base.out_features))
    return model.train(), batch, loss


def only(pattern: str, seed: int = 0) -> models.Case:
    """GPT-2 where only parameters whose names end so train."""
    model, batch, loss = models.gpt2(seed=seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith(pattern))
    return model, batch, loss


def one_bias() -> models.Case:
    """Everything frozen but one bias in the middle."""
    return only("h.1.mlp.c_fc.bias")


def half_frozen() -> models.Case:
    """The first block and the tied embedding are frozen."""
    model, batch, loss = models.gpt2()
    for module in (model.transformer.h[0], model.transformer.wte, model.transformer.wpe):
        module.requires_grad_(False)
    return model, batch, loss


class OddBuffers(nn.Module):
    """A buffer as a weight, counters of two widths, one assigned anew, an average, flags."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(32, 32)
        self.norm = nn.BatchNorm1d(32)
        self.register_buffer("weight", torch.randn(32, 16))
        self.register_buffer("table", torch.randn(16, 32), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ring", torch.arange(4, dtype=torch.int32))
        self.register_buffer("average", torch.zeros(32))
        self.register_buffer("seen", torch.zeros(32, dtype=torch.bool), persistent=False)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.mix(x)) + F.embedding(ids, self.table)
        self.steps += 1
        self.ring = self.ring + 2
        self.average.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        self.seen |= (hidden.detach() > 1.0).any(0)
        self.seen ^= torch.zeros_like(self.seen)
        self.seen &= torch.ones_like(self.seen)
        hidden = (hidden + self.average) * self.steps
        hidden = torch.where(self.seen, hidden, 0.5 * hidden)
        out: torch.Tensor = hidden @ self.weight
        return out.square().mean() + self.ring.sum() * hidden.mean()


def odd_buffers(seed: int = 0) -> models.Case:
    """Returns its own loss."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(8, 32, generator=generator)
    ids = torch.randint(0, 16, (8,), generator=generator)
    return OddBuffers().train(), {"x": x, "ids": ids}, None


ADAPTED = {
    "lora": lora,
    "llama_lora": llama_lora,
    "one_bias": one_bias,
    "half_frozen": half_frozen,
    "odd_buffers": odd_buffers,
}
