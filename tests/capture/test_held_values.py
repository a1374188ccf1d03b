"""What a parallel model's attributes hold: changes are seen, and captured as in a fresh capture."""

from __future__ import annotations

import argparse
import copy
import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autopar.capture.held_values import HeldValues
from autopar.capture.outside import OutsideValues
from autopar.compile.compiler import captured
from autopar.errors import CaptureError, InputError
from autopar.ir.graph import Graph
from autopar.request.meta import without_weights
from autopar.request.options import Options
from tests.architectures import ARCHITECTURES
from tests.daily import daily
from tests.habits import held_jobs

BATCH = {"x": torch.zeros(4, 8, dtype=torch.float64), "y": torch.zeros(4, dtype=torch.int64)}


class Followed:
    """A model, a copy in the place of the parallel one, and what a compiler knows of both."""

    def __init__(self, model: nn.Module, tree: nn.Module | None = None) -> None:
        self.tree = copy.deepcopy(model) if tree is None else tree
        self.bare = without_weights(model)
        self.outside = OutsideValues(self.bare, held_jobs.entropy)
        self.held = HeldValues(self.tree, model, self.bare, ())
        self.outside.follow(self.held)

    def places(self) -> list[str]:
        """Places whose values have changed."""
        return [place for place, _ in self.outside.differences()]

    def graph(self) -> Graph:
        with self.outside.put_on():
            return graph_of(self.bare)


def graph_of(bare: nn.Module) -> Graph:
    return captured(bare, BATCH, Options(loss=held_jobs.entropy))


@pytest.mark.parametrize("name", daily(held_jobs.CHANGES, list(held_jobs.CHANGES)[::2]))
def test_a_change_is_captured(name: str) -> None:
    made = Followed(held_jobs.Holding().double())
    first = made.graph()
    assert made.places() == []
    with torch.no_grad():
        held_jobs.CHANGES[name](made.tree, 2.0)
    assert made.places()
    fresh = graph_of(without_weights(made.tree))
    assert made.graph().digest == fresh.digest != first.digest
    assert graph_of(made.bare).digest == first.digest, "the copy is as it was"


class Odd(nn.Module):
    """Names attributes with values that are hard to walk, and computes with none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.odd: Any = None
        self.feats: list[Any] = []
        self.cache: dict[Any, Any] = {}
        self.history: list[Any] = []
        self.averages = {"head": torch.ones(4)}
        self.count = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(x)
        if len(self.cache) > 1_000_000 or self.odd is self.feats:
            made = made * self.odd.scale.inner
        for each in self.feats:
            made = made * each
        return made

    def logged(self) -> list[Any]:
        """A method that forward does not call."""
        return [self.history, self.averages, self.count]


class Raises:
    """Raises whenever it is looked at."""

    scale = property(lambda self: 1 / 0)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Link:
    """A link of a chain."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def _chain(length: int) -> Link:
    made = Link(None)
    for _ in range(length):
        made = Link(made)
    return made


def _cycle() -> list[Any]:
    made: list[Any] = [{}, Link(None)]
    made[0]["again"], made[1].inner = made, made
    return made


ODD: dict[str, Any] = {
    "raises": Raises,
    "among_keys": lambda: {Raises(): Raises(), (1, 2): torch.ones(1), None: {Raises()}},
    "chain": lambda: _chain(50_000),
    "cycle": _cycle,
    "dead_proxy": lambda: [weakref.proxy(Link(None))],
    "dead_reference": lambda: weakref.ref(Link(None)),
    "empty_slots": lambda: object.__new__(held_jobs.Slotted),
    "wide": lambda: [[Link(i) for i in range(900)] for _ in range(200)],
    "large": lambda: {
        "a": list(range(100_000)),
        "b": dict.fromkeys(range(5_000)),
        "c": [0] * 3_000,
    },
    "generator": lambda: (i for i in range(3)),
    "lock": threading.Lock,
    "module": lambda: threading,
    "exception": lambda: ValueError("said"),
    "namespace": lambda: argparse.Namespace(scale=[torch.ones(2)]),
    "objects": lambda: np.array([object(), None], dtype=object),
    "inference": lambda: _inference(),
}


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


@pytest.mark.parametrize("name", daily(ODD, list(ODD)[::2]))
def test_odd_values_are_walked(name: str) -> None:
    """They are read without an error, in a short time, and do not seem to change by themselves."""
    model = Odd()
    made = Followed(model)
    made.tree.odd = ODD[name]()
    begin = time.perf_counter()
    first = made.outside.differences()
    assert time.perf_counter() - begin < 5.0
    assert made.outside.differences() == first
    gc.collect()
    assert made.outside.differences() == first and hash(first) == hash(first)


def test_a_proxy_that_dies() -> None:
    made, alive = Followed(Odd()), Link(None)
    made.tree.odd = weakref.proxy(alive)
    first = made.outside.differences()
    del alive
    assert made.outside.differences() == first


def test_what_forward_does_not_read_may_change() -> None:
    made = Followed(Odd())
    made.tree.history.append(torch.ones(2))
    made.tree.averages["head"].mul_(2)
    made.tree.averages["new"] = torch.ones(3)
    made.tree.averages = {"head": torch.zeros(2)}
    made.tree.count[0] += 1
    made.tree.extra = {"loss": torch.ones(1)}
    made.tree.head.last_output = torch.ones(1)
    assert made.places() == []


def test_a_large_tensor_is_in_no_graph() -> None:
    """Capture refuses code that reads one, so averages of weights cost nothing."""
    model = Odd()
    model.cache["mean"] = torch.zeros(5_000)
    made = Followed(model)
    made.tree.cache["mean"].add_(1)
    made.tree.cache["mean"] = torch.ones(5_000)
    assert made.places() == []
    made.tree.cache["mean"] = torch.ones(4_000)
    assert made.places() == ["cache['mean']"]


def test_results_of_a_step_are_copied_without_their_history() -> None:
    made = Followed(Odd().double())
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    made.tree.feats.append((2 * weight).detach())
    made.tree.cache["loss"] = (weight * 3).sum()
    assert set(made.places()) == {"feats[0]", "cache['loss']"}
    changed = Odd().double()
    changed.feats.append(torch.full((4,), 2.0, dtype=torch.float64))
    assert made.graph().digest == graph_of(without_weights(changed)).digest


SOME = ("llama", "gpt2", "bert", "t5", "swin", "mamba2")
REFUSED = ("electra", "longformer")
"""Their values decide what runs, so they are not captured."""
NAMES = [name for name in ARCHITECTURES if name not in REFUSED]


@pytest.mark.parametrize("name", daily(NAMES, SOME))
def test_models_of_libraries_seem_unchanged(name: str) -> None:
    """After a capture, and after a step of the user's model, whose objects the parallel one shares."""
    model, batch, loss = ARCHITECTURES[name]()
    tree, bare = copy.copy(model), without_weights(model)
    outside = OutsideValues(bare, loss)
    outside.follow(HeldValues(tree, model, bare, ()))
    captured(bare, batch, Options(loss=loss))
    assert outside.differences() == ()
    if loss is None:
        model(**batch)
    assert outside.differences() == ()


def test_what_cannot_be_copied_is_named() -> None:
    made = Followed(Odd().double())
    made.tree.feats.append(threading.Lock())
    with pytest.raises(InputError, match=r"^feats cannot be copied \(.*register the tensors"):
        made.graph()


def test_what_is_removed_is_missing() -> None:
    made = Followed(Odd().double())
    del made.tree.feats
    assert made.places() == ["feats"]
    with pytest.raises(CaptureError, match="has no attribute 'feats'"):
        made.graph()
    assert made.bare.feats == []


def test_settings_of_a_module_of_torch_may_become_tensors() -> None:
    """Its own code reads them: the user's does not name them."""
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).double()
    made = Followed(model)
    assert isinstance(made.tree, nn.Sequential)
    made.tree[0].eps = torch.ones(())  # nothing reads it there
    assert made.places() == []
    made.tree[1].momentum = torch.tensor(0.5)
    assert made.places() == ["1.momentum"]


def test_one_of_two_names_of_an_object() -> None:
    """Two modules share settings; the second gets others."""
    model = nn.Sequential(Odd(), Odd())
    model[0].cache = model[1].cache = {"a": torch.ones(1)}
    made = Followed(model)
    assert isinstance(made.tree, nn.Sequential)
    made.tree[0].cache["a"].mul_(2)
    assert made.places() == ["0.cache['a']"]
    made.tree[1].cache = {"a": torch.ones(1)}
    assert "1.cache['a']" in made.places()
    with made.outside.put_on():
        assert isinstance(made.bare, nn.Sequential)
        assert float(made.bare[0].cache["a"]) == 2.0 and float(made.bare[1].cache["a"]) == 1.0
    assert made.bare[0].cache is made.bare[1].cache, "as it was"


def test_plain_items_that_are_compared_elsewhere_are_left_out() -> None:
    model = Odd()
    model.cache = {"number": 1.0, "tensor": torch.ones(1)}
    made = Followed(model)
    held = HeldValues(made.tree, model, made.bare, {id(made.tree.cache)})
    made.outside.follow(held)
    made.tree.cache["number"] = 2.0
    assert made.places() == []
    made.tree.cache["tensor"].mul_(2)
    assert made.places() == ["cache['tensor']"]
