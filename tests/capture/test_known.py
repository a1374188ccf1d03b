"""Values that follow from shapes alone decide Python's branches; no other value does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers

from autopar.capture import capture
from autopar.errors import CaptureError
from autopar.graph import Graph, short
from tests.capture.small import Small, small
from tests.models import CASES, SEQUENCE, gpt2


def consecutive(m: Small, x: torch.Tensor) -> torch.Tensor:
    position = torch.arange(x.shape[0])
    assert (position.diff() == 1).all()
    return m.linear(x).sum() * position.sum().item()


def of_an_input(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).sum() * x.sum().item()


def written_from_an_input(m: Small, x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(8, dtype=x.dtype)
    mask[0] = x[0, 0]
    return m.linear(x).sum() * mask.sum().item()


def seen_through_a_view(m: Small, x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(8, dtype=x.dtype)
    view = mask[1:]
    mask[1:] = x[1:, 0]
    return m.linear(x).sum() * view.sum().item()


def random(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).sum() * torch.zeros(8).uniform_().sum().item()


def unwritten(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).sum() * torch.empty(8).sum().item()


def test_a_value_of_shapes_alone_is_known() -> None:
    graph = capture(*small(consecutive))
    (factor,) = (node.args[1] for node in graph.nodes if short(node.op) == "mul")
    assert factor == sum(range(8))


@pytest.mark.parametrize(
    "forward", [of_an_input, written_from_an_input, seen_through_a_view, random, unwritten]
)
def test_any_other_value_is_not(forward: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(CaptureError, match="reads the value of a tensor"):
        capture(*small(forward))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_attention_is_causal_without_a_mask(name: str) -> None:
    model, batch, _ = CASES[name]()
    assert set(_masks(capture(model, batch))) == {(None, True)}


def test_attention_without_cache_is_causal_without_a_mask() -> None:
    """Without a cache the model looks for packed sequences in its position ids."""
    model, batch, _ = gpt2(use_cache=False)
    assert set(_masks(capture(model, batch))) == {(None, True)}


def test_attention_is_causal_without_a_mask_in_large_batches() -> None:
    """Of two million tokens, say, whose positions the model looks at as well."""
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8,
        max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        ids = torch.zeros(512, 8192, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids}
    assert set(_masks(capture(model, batch))) == {(None, True)}


@pytest.mark.parametrize(
    "extra",
    [
        {"attention_mask": torch.ones(8, SEQUENCE, dtype=torch.int64)},
        {"position_ids": torch.arange(SEQUENCE).expand(8, -1)},
    ],
    ids=lambda extra: str(*extra),
)
def test_a_mask_that_the_batch_decides_stays(extra: dict[str, torch.Tensor]) -> None:
    model, batch, _ = gpt2(use_cache=False)
    for mask, is_causal in _masks(capture(model, {**batch, **extra})):
        assert mask is not None and not is_causal


def _masks(graph: Graph) -> list[tuple[object, bool]]:
    found = []
    for node in graph.nodes:
        if short(node.op) == "scaled_dot_product_attention":
            arguments = dict(enumerate(node.args)) | dict(node.kwargs)
            mask = arguments.get(3, arguments.get("attn_mask"))
            found.append((mask, bool(arguments.get(5, arguments.get("is_causal", False)))))
    assert found
    return found
