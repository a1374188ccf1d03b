"""Tiny models that every test uses: dropout 0, sizes divisible by four, nothing downloaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Case = tuple[nn.Module, dict[str, Any], Callable[..., torch.Tensor] | None]
BATCH, SEQUENCE, HEADS, HIDDEN, VOCAB = 8, 16, 4, 32, 64


def tokens(seed: int = 0, ignored: bool = True) -> dict[str, torch.Tensor]:
    """Token ids and labels; some labels, and one whole row, are ignored."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (BATCH, SEQUENCE), generator=generator)
    labels = ids.clone()
    if ignored:
        labels[1] = -100
        labels[2, : SEQUENCE // 2] = -100
        labels[5, 3] = -100
    return {"input_ids": ids, "labels": labels}


def gpt2(layers: int = 2, seed: int = 0, **config: Any) -> Case:
    """GPT-2 with tied embeddings and its own loss."""
    import transformers

    settings = transformers.GPT2Config(
        **{
            "n_layer": layers,
            "n_head": HEADS,
            "n_embd": HIDDEN,
            "vocab_size": VOCAB,
            "n_positions": SEQUENCE,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "loss_type": "ForCausalLM",
            **config,
        }
    )
    return _seeded(lambda: transformers.GPT2LMHeadModel(settings), seed), tokens(), None


def llama(layers: int = 2, seed: int = 0, **config: Any) -> Case:
    """Llama with grouped-query attention (two key-value heads) and its own loss."""
    import transformers

    settings = transformers.LlamaConfig(
        **{
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": 2,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "vocab_size": VOCAB,
            "max_position_embeddings": SEQUENCE,
            **config,
        }
    )
    return _seeded(lambda: transformers.LlamaForCausalLM(settings), seed), tokens(), None


def bert(layers: int = 2, seed: int = 0, **config: Any) -> Case:
    """BERT for masked language modelling with an attention mask and its own loss."""
    import transformers

    settings = transformers.BertConfig(
        **{
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "vocab_size": VOCAB,
            "pad_token_id": 0,
            "max_position_embeddings": SEQUENCE,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **config,
        }
    )
    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.int64)
    mask[3, SEQUENCE // 2 :] = 0
    inputs = {**tokens(), "attention_mask": mask}
    return _seeded(lambda: transformers.BertForMaskedLM(settings), seed), inputs, None


class MLP(nn.Module):
    """Two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.middle = nn.Linear(4 * HIDDEN, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.up(x))
        hidden = x + self.middle(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


def mlp(seed: int = 0) -> Case:
    """A residual MLP; the loss is a callable with its own target."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target)

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, HIDDEN, generator=generator)
    target = torch.randint(0, 16, (BATCH,), generator=generator)
    target[2] = -100
    return _seeded(MLP, seed), {"x": x, "target": target}, loss


class CNN(nn.Module):
    """Two convolutions with batch norm, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(16, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.flatten(self.features(image), 1))
        return logits


def cnn(seed: int = 0) -> Case:
    """A convolutional network with batch norm in training mode."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target, label_smoothing=0.1)

    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(BATCH, 4, 8, 8, generator=generator)
    target = torch.randint(0, 8, (BATCH,), generator=generator)
    return _seeded(CNN, seed), {"image": image, "target": target}, loss


class Odds(nn.Module):
    """Operators with a trap each: cut gradients, comparisons, summed losses, scaled embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, HIDDEN, scale_grad_by_freq=True)
        self.mix = nn.Linear(HIDDEN, HIDDEN)
        self.gate = nn.Parameter(torch.linspace(-1, 1, HIDDEN))
        self.frozen = nn.Linear(HIDDEN, HIDDEN).requires_grad_(False)

    def forward(self, ids: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        hidden = self.mix(self.table(ids))
        mask = hidden > hidden.detach().mean(-1, keepdim=True)
        hidden = torch.where(mask, hidden, 0.1 * hidden) * self.gate
        hidden = hidden + self.frozen(hidden.clamp(-1.0, 1.0))
        best = hidden.argmax(-1, keepdim=True).to(hidden.dtype)
        loss = F.mse_loss(hidden, goal) + 0.5 * F.l1_loss(hidden * best, goal, reduction="sum")
        return loss + (self.gate**2).sum()


def odds(seed: int = 0) -> Case:
    """Returns its own loss, a scalar."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 12, (BATCH, 4), generator=generator)
    goal = torch.randn(BATCH, 4, HIDDEN, generator=generator)
    return _seeded(Odds, seed), {"ids": ids, "goal": goal}, None


CASES: dict[str, Callable[[], Case]] = {
    "gpt2": gpt2, "llama": llama, "bert": bert, "mlp": mlp, "cnn": cnn,
}  # fmt: skip


ALL = {**CASES, "odds": odds}
"""With the toy that no user would write."""


DEEP: dict[str, Callable[[], Case]] = {
    f"deep.{make.__name__}": partial(make, layers=4) for make in (gpt2, llama, bert)
}
"""Four blocks each: a first, a last, and two between."""


def double(case: Case) -> Case:
    """The case in float64."""
    model, inputs, loss = case
    wide = {
        key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in inputs.items()
    }
    return model.double(), wide, loss


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = make()
    return model.train()
