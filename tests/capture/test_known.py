"""Values that follow from shapes alone decide Python's branches; no other value does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers

from autopar.capture import capture
from autopar.errors import CaptureError
from autopar.ir.graph import Graph, short
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


SIZES = ((8, 64), (512, 8192), (2048, 8192), (20480, 8192))
"""Batches and sequences on both sides of 2**22 and of 2**24 tokens."""


@pytest.mark.parametrize("name", ["LlamaConfig", "GPT2Config"])
def test_a_graph_depends_on_the_size_of_the_batch_in_its_sizes_alone(name: str) -> None:
    made = [shape_of(name, batch, sequence) for batch, sequence in SIZES]
    for size, graph in zip(SIZES, made, strict=True):
        assert graph == made[0], f"of {size}"


def shape_of(name: str, batch: int, sequence: int) -> list[object]:
    """A graph without its sizes: operators, and what each reads."""
    config = getattr(transformers, name)(**dict.fromkeys(
        ("hidden_size", "intermediate_size", "vocab_size", "d_kv", "d_ff"), 16
    ), num_hidden_layers=3, num_layers=3, num_attention_heads=2, num_key_value_heads=2, num_heads=2,
        max_position_embeddings=8192, use_cache=False, pad_token_id=0, decoder_start_token_id=0,
        sliding_window=None, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    kind = "MaskedLM" if name == "BertConfig" else "CausalLM"
    if name == "T5Config":
        make: type = transformers.T5ForConditionalGeneration
    else:
        make = getattr(transformers, f"AutoModelFor{kind}")
    with torch.device("meta"):
        model = make(config) if name == "T5Config" else make.from_config(config)
        ids = torch.zeros(batch, sequence, dtype=torch.long)
    graph = capture(model, {"input_ids": ids, "labels": ids})
    return [(node.op, node.operands) for node in graph.nodes]


def rows_of_positions(m: Small, x: torch.Tensor) -> torch.Tensor:
    """What mask code does to positions: shifted, differences, sums, compared, joined, counted."""
    position = torch.arange(x.shape[1]).unsqueeze(0).expand(x.shape[0], -1)
    moved = torch.cat([position[:, :1] - 1, position], 1)
    assert ((moved[:, 1:] - moved[:, :-1]) == 1).all()
    full = torch.ones(x.shape[0], x.shape[1], dtype=torch.bool)
    assert bool(full.all()) and not (position.cumsum(-1) < 0).any()
    assert position.max() == x.shape[1] - 1 and position.flip(1)[0, 0] == position[0, -1]
    return m.linear(x).sum() * (1.0 + int(full.logical_and(position >= 0).all()))


@pytest.mark.parametrize("rows", [2, 1 << 21, 1 << 23, 1 << 27])
def test_equal_rows_are_known_whatever_their_number(rows: int) -> None:
    model, _ = small(rows_of_positions)
    graph = capture(model, {"x": torch.empty(rows, 4, dtype=torch.float64, device="meta")})
    assert [node.args[1] for node in graph.nodes if short(node.op) == "mul"] == [2.0]


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


def rows_copied_flat(m: Small, x: torch.Tensor) -> torch.Tensor:
    flat = torch.arange(4).expand(8, 4).reshape(-1)
    columns = torch.arange(4)[:, None].expand(4, 8).reshape(2, 16)
    return m.linear(x).sum() * (flat[5].item() + columns[1, 15].item())


def test_equal_rows_that_are_copied_may_be_made_flat() -> None:
    graph = capture(*small(rows_copied_flat))
    (factor,) = (node.args[1] for node in graph.nodes if short(node.op) == "mul")
    assert factor == 1 + 3
