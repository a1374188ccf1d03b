"""Interpolates graphs for any batch size from two captured ones: shapes are linear in the batch size.

Between two sizes, every dim and every integer in a captured graph is constant or linear in the batch
size.  So linear interpolation gives the graph that a capture would.  If two graphs are not linear
(other operators, rounded sizes), each size is captured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from autopar.capture.saved import saved
from autopar.errors import CaptureError
from autopar.ir.graph import Arg, Graph, Node, Saved, Tensor
from autopar.pipeline.build.folded import fold


class NotLinear(ValueError):
    """Raised if two graphs are not the same graph for two batch sizes."""


@dataclass(frozen=True)
class Sized:
    """A graph for one batch size, and what autograd saves of its operators."""

    samples: int
    graph: Graph
    saved: Mapping[str, Saved]


class Sizes:
    """The folded graph for any number of samples, interpolated from two captures."""

    def __init__(
        self, batch: int, whole: Graph, capture: Callable[[int], Graph], kind: str = "cpu"
    ) -> None:
        """`whole` is the graph of the batch; `kind` is the device kind."""
        self.batch, self._capture, self._kind = batch, capture, kind
        self._captured = {batch: _sized(batch, whole, kind)}
        self._known: dict[int, Sized] = {}

    def __call__(self, samples: int) -> Sized:
        """Return the graph of this many samples."""
        if samples not in self._known:
            is_end = samples in (1, self.batch)
            found = None if is_end else self._on_line(samples)
            self._known[samples] = found or self._at(samples)
        return self._known[samples]

    def is_like_batch(self, samples: int) -> bool:
        """Return whether this many samples run the same operators as the batch.

        For example, a single sample needs no `expand` of some tensors, and its batch norm fails.
        """
        try:
            names = [[node.name for node in self(n).graph.nodes] for n in (samples, self.batch)]
        except CaptureError:
            return False
        return names[0] == names[1]

    def least_like_batch(self, samples: int) -> int:
        """Return `samples`, doubled until this size is like the batch."""
        while samples < self.batch and not self.is_like_batch(samples):
            samples *= 2
        return min(samples, self.batch)

    def _on_line(self, samples: int) -> Sized | None:
        """Interpolate between the batch and one sample; return None if nothing is linear.

        If a single sample is a special case, the largest proper part of the batch is used instead.
        """
        for other in (1, _largest_part(self.batch)):
            with suppress(NotLinear, CaptureError):
                return between(self._at(self.batch), self._at(other), samples)
        return None

    def _at(self, samples: int) -> Sized:
        """Return the captured graph."""
        if samples not in self._captured:
            self._captured[samples] = _sized(samples, self._capture(samples), self._kind)
        return self._captured[samples]


def _largest_part(batch: int) -> int:
    return next((batch // part for part in range(2, batch) if batch % part == 0), 1)


def _sized(samples: int, graph: Graph, kind: str) -> Sized:
    folded = fold(graph).graph
    return Sized(samples, folded, saved(folded, kind))


def between(one: Sized, two: Sized, samples: int) -> Sized:
    """Return the graph for this many samples, interpolated linearly from two others.

    What is not interpolated is taken from `one`.  Raises `NotLinear` if the two are not linear.
    """
    line = _Line(one.samples, two.samples, samples)
    graph = line.graph(one.graph, two.graph)
    if one.saved.keys() != two.saved.keys():
        raise NotLinear
    kept = {name: line.saved(found, two.saved[name]) for name, found in one.saved.items()}
    return Sized(samples, graph, kept)


@dataclass(frozen=True)
class _Line:
    low: int
    high: int
    at: int
    exact: bool = False
    """Whether floats must be equal too; for costs they may differ."""

    def number(self, one: int, two: int) -> int:
        """Interpolate; raise `NotLinear` if the result is not a whole number."""
        value, rest = divmod((two - one) * (self.at - self.low), self.high - self.low)
        if rest:
            raise NotLinear
        return one + value

    def about(self, one: int, two: int) -> int:
        """Interpolate and round, for bytes that are not kept and need not be linear."""
        return max(0, round(one + (two - one) * (self.at - self.low) / (self.high - self.low)))

    def graph(self, one: Graph, two: Graph) -> Graph:
        """Interpolate node by node."""
        if len(one.nodes) != len(two.nodes) or self.low == self.high:
            raise NotLinear
        pairs = zip(one.nodes, two.nodes, strict=True)
        return replace(one, nodes=tuple(self.node(a, b) for a, b in pairs))

    def node(self, one: Node, two: Node) -> Node:
        if (one.name, one.op, one.target, len(one.outputs)) != (
            two.name,
            two.op,
            two.target,
            len(two.outputs),
        ):
            raise NotLinear
        return replace(
            one,
            args=tuple(self.args(one.args, two.args)),
            kwargs=tuple(
                zip(
                    (key for key, _ in one.kwargs),
                    self.args([v for _, v in one.kwargs], [v for _, v in two.kwargs]),
                    strict=True,
                )
            ),
            outputs=tuple(self.tensor(a, b) for a, b in zip(one.outputs, two.outputs, strict=True)),
        )

    def args(self, one: object, two: object) -> list[Arg]:
        assert isinstance(one, (tuple, list)) and isinstance(two, (tuple, list))
        if len(one) != len(two):
            raise NotLinear
        return [self.arg(a, b) for a, b in zip(one, two, strict=True)]

    def arg(self, one: Arg, two: Arg) -> Arg:
        if isinstance(one, tuple) and isinstance(two, tuple):
            return tuple(self.args(one, two))
        if type(one) is int and type(two) is int:
            return self.number(one, two)
        are_floats = isinstance(one, float) and isinstance(two, float) and not self.exact
        if one != two and not are_floats:
            raise NotLinear
        return one

    def tensor(self, one: Tensor, two: Tensor) -> Tensor:
        if len(one.shape) != len(two.shape) or one.dtype != two.dtype or one.pads or two.pads:
            raise NotLinear
        shape = (self.number(a, b) for a, b in zip(one.shape, two.shape, strict=True))
        return replace(one, shape=tuple(shape))

    def saved(self, one: Saved, two: Saved) -> Saved:
        """Interpolate bytes, and take storage sharing from `one`.

        With a single sample, some copies are views, so the two graphs can differ in this.
        """
        if _kept(one) != _kept(two):
            raise NotLinear
        return replace(
            one,
            extra_nbytes=self.number(one.extra_nbytes, two.extra_nbytes),
            like=self.like(one.like, two.like),
            cached_nbytes=self.number(one.cached_nbytes, two.cached_nbytes),
            forward_nbytes=self.about(one.forward_nbytes, two.forward_nbytes),
            backward_nbytes=self.about(one.backward_nbytes, two.backward_nbytes),
            early_nbytes=self.about(one.early_nbytes, two.early_nbytes),
            spare=tuple(itertools.starmap(self.about, _pairs(one.spare, two.spare))),
        )

    def like(
        self, one: tuple[tuple[int, int], ...], two: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[int, int], ...]:
        """Interpolate the bytes of tensors that are sharded as the same operands are."""
        if [place for place, _ in one] != [place for place, _ in two]:
            raise NotLinear
        pairs = zip(one, two, strict=True)
        return tuple((place, self.number(few, many)) for (place, few), (_, many) in pairs)


def graph_between(one: tuple[int, Graph], two: tuple[int, Graph], samples: int) -> Graph:
    """Return exactly the graph that a capture would give, from two pairs (number of samples, graph)."""
    return _Line(one[0], two[0], samples, exact=True).graph(one[1], two[1])


def _pairs(one: tuple[int, ...], two: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield pairs of entries; missing entries are 0."""
    return itertools.zip_longest(one, two, fillvalue=0)


def _kept(saved: Saved) -> tuple[object, ...]:
    """Return which tensors are kept, regardless of their sizes."""
    return saved.operands, saved.outputs, saved.cached
