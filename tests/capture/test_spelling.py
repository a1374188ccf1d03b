"""Operators that have several spellings are captured in one, and compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from autopar.ir.graph import is_random, short
from tests.capture.compare import captured_equals_eager
from tests.capture.small import Small, small

Body = Callable[[Small, torch.Tensor], torch.Tensor]
IDS = torch.arange(12).reshape(4, 3) % 4
SPELLED: dict[str, tuple[Body, set[str], set[str]]] = {
    "repeat": (lambda m, x: m.linear(x).repeat(2, 1, 3).pow(2).sum(), {"expand"}, {"repeat"}),
    "tile": (lambda m, x: m.linear(x).tile(3).pow(2).sum(), {"expand"}, {"tile"}),
    "zeros_like": (
        lambda m, x: torch.maximum(y := m.linear(x), torch.zeros_like(y)).sum(),
        set(),
        {"zeros_like"},
    ),
    "new_full": (lambda m, x: (m.linear(x) * x.new_full((4,), 2.0)).sum(), set(), {"new_full"}),
    "full_like": (
        lambda m, x: (y := m.linear(x)).pow(torch.full_like(y, 3.0)).sum(),
        set(),
        {"full_like"},
    ),
    "bags": (
        lambda m, x: (
            F.embedding_bag(IDS, m.linear.weight, mode="sum").pow(2).sum() + m.linear(x).sum()
        ),
        {"embedding", "sum"},
        {"embedding_bag"},
    ),
    "bags averaged": (
        lambda m, x: F.embedding_bag(IDS, m.linear.weight).pow(2).sum() + m.linear(x).sum(),
        {"embedding", "div"},
        {"embedding_bag"},
    ),
    "uneven bags": (
        lambda m, x: (
            F.embedding_bag(IDS.flatten(), m.linear.weight, torch.tensor([0, 5])).pow(2).sum()
            + m.linear(x).sum()
        ),
        {"embedding_bag"},
        {"embedding"},
    ),
    "vstack": (
        lambda m, x: torch.vstack([m.linear(x), m.linear(x)[0]]).pow(2).sum(),
        {"cat"},
        {"vstack"},
    ),
    "hstack": (
        lambda m, x: (torch.hstack([m.linear(x)[0], x[1]]) * torch.arange(8)).sum(),
        {"cat"},
        {"hstack"},
    ),
    "dstack": (
        lambda m, x: (torch.dstack([m.linear(x), x]) * torch.arange(2)).sum(),
        {"cat"},
        {"dstack"},
    ),
    "column_stack": (
        lambda m, x: (torch.column_stack([m.linear(x)[:, 0], x]) * torch.arange(5)).sum(),
        {"cat"},
        {"column_stack"},
    ),
    "meshgrid": (
        lambda m, x: (
            torch.sub(*torch.meshgrid(m.linear(x)[0], x[:, 1], indexing="ij")).pow(3).sum()
        ),
        {"expand"},
        {"meshgrid"},
    ),
    "meshgrid, columns first": (
        lambda m, x: (
            torch.meshgrid(m.linear(x)[0], x[:, 1], indexing="xy")[0] * torch.arange(4)
        ).sum(),
        {"expand"},
        {"meshgrid"},
    ),
    "hsplit": (
        lambda m, x: (y := torch.hsplit(m.linear(x), 2))[0].mul(y[1]).sum(),
        {"split_with_sizes"},
        {"hsplit"},
    ),
    "fliplr": (
        lambda m, x: (torch.fliplr(m.linear(x)) * torch.arange(4)).sum(),
        {"flip"},
        {"fliplr"},
    ),
    "ravel": (lambda m, x: m.linear(x).ravel().pow(2).sum(), {"reshape"}, {"ravel"}),
    "instance norm": (
        lambda m, x: F.instance_norm(m.linear(x).view(2, 4, 4)).pow(3).sum(),
        {"instance_norm"},
        set(),
    ),
}


@pytest.mark.parametrize("name", SPELLED)
def test_one_spelling(name: str) -> None:
    body, wanted, unwanted = SPELLED[name]
    model, inputs = small(body)
    graph = captured_equals_eager(model, inputs)
    kinds = {short(node.op) for node in graph.nodes}
    assert wanted <= kinds and not unwanted & kinds


def test_noise_looks_at_no_tensor() -> None:
    """Its shape is known, so nothing has to be whole for it; it draws what one process draws."""
    model, inputs = small(lambda m, x: (m.linear(x) + torch.randn_like(x[:, :4])).sum())
    from autopar.capture import capture

    graph = capture(model, inputs)
    noise = next(node for node in graph.nodes if short(node.op) == "randn")
    assert not noise.operands and is_random(noise)


@pytest.mark.parametrize(("chance", "random"), [(0.0, False), (0.5, True)])
def test_dropout_inside_recurrent_layers_is_random(chance: float, random: bool) -> None:
    from autopar.capture import capture
    from tests.architectures.other import lstm

    model, inputs, loss = lstm(chance)
    graph = capture(model, inputs, loss=loss)
    assert is_random(next(node for node in graph.nodes if short(node.op) == "lstm")) is random
