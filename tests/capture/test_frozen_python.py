"""What Python gives a trace besides tensors is the same in every step, or refused with its line."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import itertools
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.errors import CaptureError
from autopar.ir.graph import Graph

COUNT = 0
BOX = {"n": 0}
GENERATOR = np.random.default_rng(0)


class Schedule:
    """A helper object that moves on at each call."""

    def __init__(self) -> None:
        self.step = 0

    def factor(self) -> float:
        """Smaller at each call."""
        self.step += 1
        return 1 / (1 + self.step)


@dataclasses.dataclass
class Counter:
    """A number in an object."""

    n: int = 0


class Held(nn.Module):
    """Three equal layers, then a function of the module and their result."""

    calls = 0

    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.body = body
        self.step, self.counter, self.schedule = 0, Counter(), Schedule()
        self.history: list[Any] = []
        self.cache: dict[Any, Any] = {}
        self.last: torch.Tensor | None = None
        self.done, self.rate, self.no_rate = False, 0.5, 0.0
        self.recent: collections.deque[float] = collections.deque(maxlen=2)
        self.generator, self.python = np.random.default_rng(1), random.Random(1)
        self.numbers, self.ends = itertools.count(), iter([1.0, 2.0, 3.0, 4.0])
        self.array = np.ones(3)
        self.register_buffer("scale", torch.arange(1.0, 5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.body(self, x)


def counter(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.step += 1  # here
    return x.sum() * m.step


def counter_for_a_log(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.step += 1  # here
    if m.step > 1000:
        x = x * 2
    return x.sum()


def new_attribute(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.seen = getattr(m, "seen", 0) + 1  # here
    return x.sum() * m.seen


def growing_list(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.history.append(1)  # here
    return x.sum() * len(m.history)


def list_of_results(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.history.append(x.detach())  # here
    return x.sum() * torch.stack(m.history).mean()


def recent_values(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.recent.append(2.0)  # here
    return x.sum() * sum(m.recent)


def entry_of_a_dict(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.cache["n"] = m.cache.get("n", 0) + 1  # here
    return x.sum() * m.cache["n"]


def state_from_the_step_before(m: Held, x: torch.Tensor) -> torch.Tensor:
    mixed = x if m.last is None else x + m.last
    m.last = x.detach()  # here
    return mixed.sum()


def other_in_the_first_step(m: Held, x: torch.Tensor) -> torch.Tensor:
    if not m.done:
        m.done = True  # here
        x = x * 2
    return x.sum()


def helper_object(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * m.schedule.factor()


def field_of_a_dataclass(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.counter.n += 1  # here
    return x.sum() * m.counter.n


def class_attribute(m: Held, x: torch.Tensor) -> torch.Tensor:
    type(m).calls += 1  # here
    return x.sum() * m.calls


def global_number(m: Held, x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1  # here
    return x.sum() * COUNT


def global_dict(m: Held, x: torch.Tensor) -> torch.Tensor:
    BOX["n"] += 1  # here
    return x.sum() * BOX["n"]


def array(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.array[0] += 1  # here
    return x.sum() * m.array[0]


def iterator(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * next(m.ends)  # here


def count(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * next(m.numbers)  # here


def python_random(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * random.random()  # here


def python_choice(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * random.choice([1.0, 2.0, 3.0])  # here


def rare_branch(m: Held, x: torch.Tensor) -> torch.Tensor:
    rare = random.random() < 0.001  # here
    return x.sum() * (0.0 if rare else 1.0)


def layer_drop(m: Held, x: torch.Tensor) -> torch.Tensor:
    for layer in m.layers:
        if random.random() < m.rate:  # here
            continue
        x = layer(x)
    return x.sum()


def shuffled(m: Held, x: torch.Tensor) -> torch.Tensor:
    order = [0, 1, 2, 3]
    random.shuffle(order)  # here
    return (x[:, order] * m.scale).sum()


def numpy_random(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * float(np.random.randn())  # here


def mixup(m: Held, x: torch.Tensor) -> torch.Tensor:
    share = np.random.beta(0.2, 0.2)  # here
    return (share * x + (1 - share) * x.flip(0)).square().sum()


def own_generator(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * m.generator.random()  # here


def own_python_generator(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * m.python.random()  # here


def global_generator(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * GENERATOR.random()  # here


def new_generator(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * np.random.default_rng().random()  # here


def clock(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * (time.time() % 100)  # here


def imported_clock(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * perf_counter()  # here


def hour(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * datetime.datetime.now().hour  # here


def year(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * datetime.date.today().year  # here


def identifier(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * (uuid.uuid4().int % 1009)  # here


def environment(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * float(os.environ.get("AUTOPAR_TEST_SCALE", "1"))  # here


def file(m: Held, x: torch.Tensor) -> torch.Tensor:
    with open(__file__) as text:  # here
        return x.sum() * len(text.read())


def path(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * len(Path(__file__).read_text())  # here


def seed(m: Held, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)  # here
    return torch.dropout(x, 0.5, True).sum()


def random_item(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * torch.rand(1).item()  # here


def random_branch(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * (0.0 if torch.rand([]) < m.rate else 1.0)  # here


BUFFER, DRAW, ATTRIBUTE = "register_buffer(", "torch.rand", "in __init__"
REFUSED: dict[Callable[[Held, torch.Tensor], torch.Tensor], tuple[str, str]] = {
    counter: ("'step', from 0 to 1", BUFFER),
    counter_for_a_log: ("'step'", BUFFER),
    new_attribute: ("'seen'", BUFFER),
    growing_list: ("'history[0]'", BUFFER),
    list_of_results: ("'history[0]'", BUFFER),
    recent_values: ("'recent[0]'", BUFFER),
    entry_of_a_dict: ("cache['n']", BUFFER),
    state_from_the_step_before: ("'last'", BUFFER),
    other_in_the_first_step: ("'done', from False to True", BUFFER),
    helper_object: ("'schedule.step', from 0 to 1", BUFFER),
    field_of_a_dataclass: ("'counter.n'", BUFFER),
    class_attribute: ("'Held.calls'", BUFFER),
    global_number: ("COUNT'", BUFFER),
    global_dict: ("BOX['n']", BUFFER),
    array: ("'array'", BUFFER),
    iterator: ("'ends'", BUFFER),
    count: ("'numbers'", BUFFER),
    python_random: ("the random numbers of Python", DRAW),
    python_choice: ("the random numbers of Python", DRAW),
    rare_branch: ("the random numbers of Python", DRAW),
    layer_drop: ("the random numbers of Python", DRAW),
    shuffled: ("the random numbers of Python", DRAW),
    numpy_random: ("the random numbers of NumPy", DRAW),
    mixup: ("the random numbers of NumPy", DRAW),
    own_generator: ("'generator'", DRAW),
    own_python_generator: ("'python'", DRAW),
    global_generator: ("GENERATOR'", DRAW),
    new_generator: ("a generator of its own", DRAW),
    clock: ("the time", "Pass it as an input"),
    imported_clock: ("the time", "Pass it as an input"),
    hour: ("the time", "Pass it as an input"),
    year: ("the time", "Pass it as an input"),
    identifier: ("identifier", "Pass it as an input"),
    environment: ("'AUTOPAR_TEST_SCALE'", ATTRIBUTE),
    file: ("the file", ATTRIBUTE),
    path: ("the file", ATTRIBUTE),
    seed: ("torch.manual_seed", "training loop"),
    random_item: ("reads the value", "tensor operations"),
    random_branch: ("reads the value", "torch.where"),
}


def captured(body: Callable[[Any, torch.Tensor], torch.Tensor]) -> Graph:
    return capture(Held(body), {"x": torch.ones(2, 4)})


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_refused_with_its_line(body: Callable[[Held, torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(CaptureError) as caught:
        captured(body)
    told, (what, remedy) = str(caught.value), REFUSED[body]
    source = Path(__file__).read_text().split("\n")
    first = body.__code__.co_firstlineno
    if body is helper_object:
        first = Schedule.factor.__code__.co_firstlineno - 1
        line = next(n for n in range(first, len(source)) if "self.step += 1" in source[n - 1])
    else:
        line = next(n for n in range(first, len(source)) if source[n - 1].endswith("# here"))
    assert f"{__file__}:{line}\n" in told
    assert what in told and remedy in told


def never_dropped(m: Held, x: torch.Tensor) -> torch.Tensor:
    """Draws, but to no effect: as transformers' layer drop does at a rate of zero."""
    for layer in m.layers:
        if random.random() < m.no_rate or np.random.rand() < m.no_rate:
            continue
        x = layer(x)
    return x.sum()


def warned_once(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.done = True
    return x.sum()


def table_of_numbers(m: Held, x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] not in m.cache:
        m.cache[x.shape[1]] = [1 / (1 + place) for place in range(x.shape[1])]
    return x.sum() * m.cache[x.shape[1]][1]


def table_in_a_dict(m: Held, x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] not in m.cache:
        m.cache[x.shape[1]] = torch.arange(4) * m.scale
    return (x * m.cache[x.shape[1]]).sum()


def table_in_an_attribute(m: Held, x: torch.Tensor) -> torch.Tensor:
    if m.last is None:
        m.last = (torch.arange(4) * m.scale).cos()
    return (x * m.last).sum()


def by_product(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.last = x.detach()
    return x.sum()


def list_of_this_step(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.history.clear()
    m.history.append(x.mean())
    return x.sum() + torch.stack(m.history).sum()


def timed(m: Held, x: torch.Tensor) -> torch.Tensor:
    begun = time.perf_counter()
    total = x.sum()
    m.cache["seconds"] = len(str(time.perf_counter() - begun)) * 0
    return total


@pytest.mark.parametrize(
    "body",
    [
        never_dropped, warned_once, table_of_numbers, table_in_a_dict, table_in_an_attribute,
        by_product, list_of_this_step, timed,
    ],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_what_changes_no_step_passes(body: Callable[[Held, torch.Tensor], torch.Tensor]) -> None:
    captured(body).check()


@pytest.mark.parametrize("body", [*REFUSED, never_dropped, by_product, table_in_a_dict])
def test_capture_leaves_python_as_it_was(
    body: Callable[[Held, torch.Tensor], torch.Tensor],
) -> None:
    model = Held(body)
    model.history.append(7)

    def told() -> list[str]:
        mine = {key: value for key, value in vars(model).items() if key not in ("numbers", "ends")}
        state = (random.getstate(), np.random.get_state(), torch.get_rng_state().tolist())
        return [str(mine), str(model.schedule.step), str(model.counter), str(state), str(BOX),
                str((COUNT, Held.calls, model.python.getstate(), model.generator.bit_generator.state,
                     GENERATOR.bit_generator.state, model.array))]  # fmt: skip

    before = told()
    with contextlib.suppress(CaptureError):
        capture(model, {"x": torch.ones(2, 4)})
    assert told() == before


def as_buffer(m: Held, x: torch.Tensor) -> torch.Tensor:
    m.counted += 1
    return x.sum() * m.counted


def drawn_by_torch(m: Held, x: torch.Tensor) -> torch.Tensor:
    return x.sum() * torch.where(torch.rand((), device=x.device) < m.rate, 0.0, 1.0)


def as_input(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def test_the_remedies_work() -> None:
    model = Held(as_buffer)
    model.register_buffer("counted", torch.tensor(0))
    graph = capture(model, {"x": torch.ones(2, 4)})
    assert [name for name, _ in graph.mutations] == ["counted"]
    captured(drawn_by_torch).check()

    class Given(Held):
        def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * step

    inputs = {"x": torch.ones(2, 4), "step": torch.tensor(3.0)}
    assert "step" in [leaf.target for leaf in capture(Given(as_input), inputs).leaves("input")]


def test_other_threads_may_read_files_meanwhile() -> None:
    import threading

    read: list[int] = []
    start, stop = threading.Event(), threading.Event()

    def reading() -> None:
        while not stop.is_set():
            with open(__file__) as text:
                read.append(len(text.read()))
            start.set()

    thread = threading.Thread(target=reading)
    thread.start()
    try:
        start.wait(10)
        captured(warned_once)
    finally:
        stop.set()
        thread.join()
    assert read and not any(isinstance(value, str) for value in read)


def moving() -> Iterator[int]:
    """A generator that a model might hold."""
    yield from range(100)


def test_a_generator_function_that_moves_on() -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sum() * next(m.lines)

    model = Held(body)
    model.lines = moving()
    with pytest.raises(CaptureError, match="'lines'"):
        capture(model, {"x": torch.ones(2, 4)})
