"""Refuses models whose trace depends on Python state that differs from step to step.

A forward pass is a function of the Python state (`held_by`): it returns a graph and leaves a new
state. If a second trace from that state returns the same graph and leaves the same state, so does
every later step. For random numbers, the graph must be the same for the smallest and the largest
draws; for clocks, at two times. A second trace is made only if the first one changed something or
if the user's code names a clock.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from autopar.capture import _torch, containers
from autopar.capture.clocks import CLOCKS, later, reads_refused
from autopar.capture.lines import Line
from autopar.capture.lowering import lower
from autopar.capture.naming import class_name, name_tensors
from autopar.capture.passes.dead import drop_dead
from autopar.capture.python_state import NUMPY, PYTHON, PythonState, held_by
from autopar.capture.tracing import Trace
from autopar.capture.where import location
from autopar.errors import CaptureError
from autopar.ir.graph import Graph, Origin

Tracing = Callable[[], Trace]
WORDS, EXTREME = 624, 312
"""State words of a Mersenne Twister, and how many of them are set: rejection sampling must end."""
LOWEST, HIGHEST = 0, 0x12DD9BB3
"""State words that the generator outputs as 0 and as its largest number."""


def lowered(model: nn.Module, loss: Callable[..., Any] | None, trace: Tracing) -> tuple[Graph, str]:
    """Return the graph of a trace, if it is that of every step, and the type that the model returned.

    The Python state is restored. Raise `CaptureError` if a later step could have another graph.
    """
    name = type(model).__name__
    before = held_by(model, loss)
    try:
        with reads_refused():
            first = trace()
        after = held_by(model, loss)
        graph = lower(first, class_name(name), before.tensors)
        graph = _Check(model, loss, trace, before, after, first, graph).run()
    finally:
        before.put_back()
    return graph, first.results.returns


class _Check:
    """Makes the second traces and raises errors for the differences that they show."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None,
        trace: Tracing,
        before: PythonState,
        after: PythonState,
        first: Trace,
        graph: Graph,
    ) -> None:
        self.model, self.loss, self.trace = model, loss, trace
        self.before, self.after, self.first, self.graph = before, after, first, graph
        self.changed = before.differs(after)
        self.draws = [path for path in self.changed if path in (PYTHON, NUMPY)]

    def run(self) -> Graph:
        """Return the graph of every step; raise `CaptureError` if a later step could differ."""
        state = [path for path in self.changed if path not in self.draws]
        fixed = _Fixed(self.first)
        for held, key, value in self.after.traced:
            if fixed(value):
                containers.kind_of(held).pop(held, key, None)  # is made again with the same values
        poison = [left for left in self.first.left if not fixed(left[2])]
        if state or poison:
            self._state(state, poison)
        if self.draws:
            self._random()
        if self.after.names & CLOCKS:
            self._clock()
        return self.graph

    def _state(self, changed: list[str], poison: list[tuple[nn.Module, str, Any]]) -> None:
        """Trace what the next step would run, and compare it with the first trace."""
        names = {
            f"{_path_of(self.model, module)}.{key}".lstrip("."): key for module, key, _ in poison
        }
        empty = [(vars(module), key, key in vars(module)) for module, key, _ in poison]
        for module, key, value in poison:
            vars(module)[key] = value
        try:
            again = lower(self.trace(), self.graph.name, self.before.tensors)
        except CaptureError as error:
            what = next(iter([*names, *changed]))
            raise self._kept(what, "The next step could not run on it") from error
        finally:
            for held, key, was_there in empty:
                if was_there:
                    held[key] = None
                else:
                    held.pop(key, None)
        later = self.after.differs(held_by(self.model, self.loss))
        moving = [path for path in later if path not in self.draws]
        if moving:
            begins = moving[0].partition("[")[0]
            path = next((p for p in changed if p.partition("[")[0] == begins), moving[0])
            raise self._kept(path, "It would be frozen as it is in the first step")
        if _computed(again) != _computed(self.graph):
            what = next(iter([*changed, *names]))
            raise self._kept(what, "The second step would compute something else")
        self.graph = again  # lacks dead nodes that only the first step makes

    def _kept(self, path: str, why: str) -> CaptureError:
        old, new = self.before.values.get(path), self.after.values.get(path)
        values = (
            f", from {_said(old)} to {_said(new)}" if None not in (old, new) and old != new else ""
        )
        line = location(self._line_of(path))
        key = path.split("[")[0].rpartition(".")[2]
        remedy = (
            "Draw with torch on the device (torch.rand), or in the training loop and pass it as an "
            "input."
            if self.before.generators.get(path)
            else f"Keep it in a buffer, self.register_buffer({key!r}, torch.tensor(...)), and change "
            "that with tensor operations; or change it in the training loop and pass it as an input; "
            "what is made once belongs in __init__."
        )
        return CaptureError(
            f"forward changes {path!r}{values}, at {line}\n{why}: a captured graph is the same for "
            f"every step. {remedy}"
        )

    def _line_of(self, path: str) -> Origin:
        """Return the line that changes a path's value, found by tracing again from the initial state."""
        self.before.put_back()
        held = held_by(self.model, self.loss)
        root = held.roots.get(path) or self.after.roots.get(path) or self._attribute(path)
        line = Line(lambda: PythonState.below(path, root()))
        with nullcontext() if root is None else line.watched(), suppress(CaptureError):
            self.trace()
        return line.found or Origin()

    def _attribute(self, path: str) -> Callable[[], Any]:
        owner, _, key = path.rpartition(".")
        modules = dict(self.model.named_modules())
        return lambda: vars(modules[owner]).get(key) if owner in modules else None

    def _random(self) -> None:
        """Raise `CaptureError` unless the smallest and the largest numbers give the same graph."""
        for word in (LOWEST, HIGHEST):
            self.before.put_back()
            _set_random(word)
            if self._again() != self.graph:
                path = self.draws[0]
                raise CaptureError(
                    f"The model draws from {path} at {location(self._line_of(path))}\nwhich would "
                    "be frozen: a captured graph is the same for every step. Draw with torch on the "
                    "device (torch.rand(())), or in the training loop and pass it as an input."
                )

    def _clock(self) -> None:
        self.before.put_back()
        with later(self.after):
            other = self._again()
        if other == self.graph:
            return
        pair = zip(self.graph.nodes, other.nodes, strict=False) if isinstance(other, Graph) else ()
        origin = next((mine.origin for mine, its in pair if mine != its), Origin())
        raise CaptureError(
            "The model computes with a value that differs from step to step (the time, an "
            f"identifier, a generator of its own) at {location(origin)}\n"
            "which would be frozen: a captured graph is the same for every step. Pass it as an "
            "input, or draw with torch.rand on the device."
        )

    def _again(self) -> Graph | str:
        try:
            return lower(self.trace(), self.graph.name, self.before.tensors)
        except CaptureError as error:
            return str(error)


def _computed(graph: Graph) -> Graph:
    """Return the graph for comparison: without dead nodes and source locations."""
    nodes = tuple(replace(node, origin=Origin()) for node in drop_dead(graph).nodes)
    return name_tensors(replace(graph, nodes=nodes))


class _Fixed:
    """Tells whether a traced value depends only on shapes and buffers."""

    def __init__(self, trace: Trace) -> None:
        nodes = trace.module.graph.nodes
        self._made = {
            _torch.storage_id(node.meta["val"]): node
            for node in nodes
            if _torch.has_storage(node.meta.get("val"))
        }
        places = [node for node in nodes if node.op == "placeholder"]
        kinds = zip(places, trace.leaves, strict=True)
        self._varying = {node for node, (kind, _) in kinds if kind != "buffer"}

    def __call__(self, value: torch.Tensor) -> bool:
        node = self._made.get(_torch.storage_id(value))
        return node is not None and not self._varying & _ancestors(node)


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, waiting = {node}, [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _path_of(model: nn.Module, wanted: nn.Module) -> str:
    return next((path for path, module in model.named_modules() if module is wanted), "")


def _said(token: Any) -> str:
    plain = isinstance(token, tuple) and len(token) == 2
    return str(token[1])[:40] if plain else "another state"


def _set_random(word: int) -> None:
    """Make the global generators return one number repeatedly, then arbitrary numbers."""
    rest = random.Random(0)
    words = [word] * EXTREME + [rest.getrandbits(32) for _ in range(WORDS - EXTREME)]
    random.setstate((3, (*words, 0), None))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.set_state(("MT19937", words, 0))
