"""What is recorded without being run is what running would have recorded."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from autopar.capture import _torch, capture, tracing
from autopar.capture.inputs import bind
from autopar.capture.remembered import Forgotten, Remembered
from autopar.errors import CaptureError
from autopar.ir.graph import Graph
from tests.architectures import (
    ARCHITECTURES,
    decoders,
    encoder_decoders,
    encoders,
    experts,
    other,
    sizes,
    unseen,
    vision,
)
from tests.capture.small import Small, small
from tests.daily import daily

LAYERS = 6
NAMES = sorted(ARCHITECTURES)


@contextmanager
def nothing_remembered() -> Iterator[None]:
    """Captures in here run every operator."""

    def forgetful() -> Remembered:
        raise Forgotten

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "Remembered", forgetful)
        yield


@contextmanager
def fake_tensors_uncached() -> Iterator[None]:
    """Captures in here compute the shape of each result anew."""

    class Uncached(tracing.KnownValues):
        def __init__(self) -> None:
            super().__init__()
            self.cache_enabled = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "KnownValues", Uncached)
        yield


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each operator is run, and how often a trace is "begun"."""
    runs: Counter[str] = Counter()

    class Counting(Remembered):
        def __init__(self) -> None:
            super().__init__()
            runs["begun"] += 1

        def _answer(self, tracer: Any, func: Any, args: Any, kwargs: Any, run: _torch.Run) -> Any:
            def counting() -> Any:
                runs[_torch.operator_name(func)] += 1
                return run()

            return super()._answer(tracer, func, args, kwargs, counting)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "Remembered", Counting)
        yield runs


def graph_or_error(make: Callable[[], Graph]) -> Graph | str:
    try:
        return make()
    except CaptureError as error:
        return str(error)


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(NAMES, NAMES[::6]))
def test_every_architecture_has_the_same_graph(name: str) -> None:
    model, batch, loss = ARCHITECTURES[name]()

    def captured() -> Graph | str:
        return graph_or_error(lambda: capture(model, batch, loss=loss))

    mine = captured()
    with nothing_remembered():
        assert mine == captured()


@pytest.fixture(scope="module")
def deep() -> Iterator[None]:
    """All architectures with three layers: what repeats once may still be right by chance."""
    families = (decoders, encoder_decoders, encoders, experts, other, unseen, vision)
    before = sizes.LAYERS

    def built_with(layers: int) -> None:
        sizes.LAYERS = layers
        for family in families:
            importlib.reload(family)

    built_with(3)
    yield
    built_with(before)


@contextmanager
def no_shortcut() -> Iterator[None]:
    """Nothing remembered by us, nor by torch's fake tensors."""
    with nothing_remembered(), fake_tensors_uncached():
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(NAMES, NAMES[1::18]))
def test_three_layers_have_the_same_graph_without_any_shortcut(name: str, deep: None) -> None:
    model, batch, loss = ARCHITECTURES[name]()

    def captured() -> Graph | str:
        return graph_or_error(lambda: capture(model, batch, loss=loss))

    mine = captured()
    with no_shortcut():
        assert mine == captured()


def layers(layer: Callable[[Small, torch.Tensor], torch.Tensor]) -> Any:
    """A model that applies one function again and again."""

    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        for _ in range(LAYERS):
            x = layer(m, x)
        return x.sum()

    return small(body)


def test_equal_operators_run_once() -> None:
    with counted() as runs:
        capture(*layers(lambda m, x: m.linear(x).tanh()))
    # The first input has no gradient, so that the second layer's product is another.
    assert runs == {"begun": 1, "linear": 2, "tanh": 1, "sum": 1}


def in_place(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).relu_()


def in_a_view(m: Small, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    y[:, 0] = x[:, 1]
    return y * 2


def part_by_part(m: Small, x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(x)
    made[:, 1:] += m.linear(x)[:, 1:]
    return made


def listed(m: Small, x: torch.Tensor) -> torch.Tensor:
    first, second = m.linear(x).chunk(2, dim=-1)
    return torch.cat([second, first.t().contiguous().t()], dim=-1)


def the_same(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).contiguous().to(torch.float64).view(2, 4, 4).reshape(8, 4)


def under_no_grad(m: Small, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = m.linear(x)
    return m.linear(x) * scale + m.linear(x).detach()


def autocast(m: Small, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        low = m.linear(x.float())
    return low.double() + m.linear(x)


def numbered(m: Small, x: torch.Tensor) -> torch.Tensor:
    m.calls = (getattr(m, "calls", 0) + 1) % LAYERS  # as before after each forward
    return m.linear(x) * m.calls + 1.0 * bool(m.calls)


def zeros_in_front(m: Small, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    return x + torch.cat([torch.zeros_like(y[:, :1]), y], 1)[:, :-1]


def made_like(m: Small, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    made = [torch.ones_like(y), torch.full_like(y, 0.5), torch.empty_like(y).fill_(2.0),
            y.new_zeros(8, 4), y.new_ones(8, 4), y.new_full((8, 4), 3.0), y.new_empty(8, 4).zero_(),
            y.new_tensor([[1.0, 2.0, 3.0, 4.0]]), torch.zeros_like(y, dtype=torch.float64),
            torch.zeros_like(y, requires_grad=False), torch.ones_like(y.detach())]  # fmt: skip
    return y + sum(one.mul(2) for one in made) + torch.cat([*made[:2], y])[16:]


def made_of_sizes(m: Small, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    numbers = torch.arange(4, dtype=y.dtype) + torch.linspace(0, 1, 4, dtype=y.dtype)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    return (y * numbers).masked_fill(~mask.repeat(2, 1), 0.0) + torch.eye(4, dtype=y.dtype)[:1]


def random_like(m: Small, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    return y + torch.randn_like(y) + torch.rand_like(y[:, :1]) + torch.bernoulli(y.sigmoid())


@pytest.mark.parametrize(
    "layer",
    [
        in_place, in_a_view, part_by_part, listed, the_same, under_no_grad, autocast, numbered,
        zeros_in_front, made_like, made_of_sizes, random_like,
    ],
)  # fmt: skip
def test_layers_of_every_kind_have_the_same_graph(layer: Any) -> None:
    mine = capture(*layers(layer))
    with nothing_remembered():
        assert mine == capture(*layers(layer))


TRAINING = tracing.Demands(train=True, keeps_modes=True, needs_loss=True)


@pytest.mark.parametrize("layer", [in_place, in_a_view])
def test_a_write_begins_anew(layer: Any) -> None:
    model, batch = layers(layer)
    with pytest.raises(Forgotten):
        tracing._traced(model, bind(model, batch, None), None, TRAINING, None, Remembered())


@pytest.mark.parametrize("asked", ["is_leaf", "grad_fn", "_base", "_version"])
def test_who_asks_for_history_gets_the_real_one(asked: str) -> None:
    seen: list[Any] = []
    note = seen.append

    def asking(m: Small, x: torch.Tensor) -> torch.Tensor:
        y = m.linear(x)
        note(getattr(y, asked))
        return y

    capture(*layers(asking))
    mine = [*map(told, seen[-LAYERS:])]
    seen.clear()
    with nothing_remembered():
        capture(*layers(asking))
    assert mine == [*map(told, seen)] and len(seen) == LAYERS


def told(history: Any) -> Any:
    """What can be compared between two traces."""
    return history if isinstance(history, int) else type(history)


def test_graphs_can_differ() -> None:
    """The comparison above is of everything: one literal more is seen."""
    one, other = (capture(*layers(lambda m, x, by=by: m.linear(x) * by)) for by in (2.0, 3.0))
    assert one != other and dataclasses.replace(one) == one
