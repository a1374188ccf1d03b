"""A graph for other sizes of the batch, from two that were captured: shapes are linear in it.

Between two sizes every dim and every literal number of a captured graph either stays or grows with the
batch.  What lies on the line through both is what a capture would give; a graph that does not (other
operators, rounded sizes) is captured for each size.
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
    """The two graphs are not one graph of two sizes."""


@dataclass(frozen=True)
class Sized:
    """A graph of one size of the batch, and what its operators keep."""

    samples: int
    graph: Graph
    saved: Mapping[str, Saved]


class Sizes:
    """The folded graph for any number of samples: two captures, and the line through both."""

    def __init__(
        self, batch: int, whole: Graph, capture: Callable[[int], Graph], kind: str = "cpu"
    ) -> None:
        """`kind`: of device."""
        self.batch, self._capture, self._kind = batch, capture, kind
        self._captured = {batch: _sized(batch, whole, kind)}
        self._known: dict[int, Sized] = {}

    def __call__(self, samples: int) -> Sized:
        """The graph of so many samples."""
        if samples not in self._known:
            is_end = samples in (1, self.batch)
            found = None if is_end else self._on_line(samples)
            self._known[samples] = found or self._at(samples)
        return self._known[samples]

    def is_like_batch(self, samples: int) -> bool:
        """Whether so many samples run the batch's operators: for one, some `expand` is nothing, and a
        batch norm fails."""
        try:
            names = [[node.name for node in self(n).graph.nodes] for n in (samples, self.batch)]
        except CaptureError:
            return False
        return names[0] == names[1]

    def least_like_batch(self, samples: int) -> int:
        """The size from `samples` on, doubled until it is like the batch."""
        while samples < self.batch and not self.is_like_batch(samples):
            samples *= 2
        return min(samples, self.batch)

    def _on_line(self, samples: int) -> Sized | None:
        """Through the batch and one sample, which may be what runs; where one is special, a part."""
        for other in (1, _largest_part(self.batch)):
            with suppress(NotLinear, CaptureError):
                return between(self._at(self.batch), self._at(other), samples)
        return None

    def _at(self, samples: int) -> Sized:
        """What a capture gives."""
        if samples not in self._captured:
            self._captured[samples] = _sized(samples, self._capture(samples), self._kind)
        return self._captured[samples]


def _largest_part(batch: int) -> int:
    return next((batch // part for part in range(2, batch) if batch % part == 0), 1)


def _sized(samples: int, graph: Graph, kind: str) -> Sized:
    folded = fold(graph).graph
    return Sized(samples, folded, saved(folded, kind))


def between(one: Sized, two: Sized, samples: int) -> Sized:
    """The graph for so many samples, on the line through two; raise `NotLinear` where it is none.

    The first is the one that is more like it.
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
    """Numbers with a fraction may not differ either: where only costs count, they may."""

    def number(self, one: int, two: int) -> int:
        """On the line, a whole number."""
        value, rest = divmod((two - one) * (self.at - self.low), self.high - self.low)
        if rest:
            raise NotLinear
        return one + value

    def about(self, one: int, two: int) -> int:
        """Near the line: what is not kept need not lie on it."""
        return max(0, round(one + (two - one) * (self.at - self.low) / (self.high - self.low)))

    def graph(self, one: Graph, two: Graph) -> Graph:
        """Node by node."""
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
        """Memory is shared as in the first: of a single sample some copies are views."""
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
        """Bytes of what is shaped as the same operands."""
        if [place for place, _ in one] != [place for place, _ in two]:
            raise NotLinear
        pairs = zip(one, two, strict=True)
        return tuple((place, self.number(few, many)) for (place, few), (_, many) in pairs)


def graph_between(one: tuple[int, Graph], two: tuple[int, Graph], samples: int) -> Graph:
    """The very graph that a capture would give, of two with their numbers of samples."""
    return _Line(one[0], two[0], samples, exact=True).graph(one[1], two[1])


def _pairs(one: tuple[int, ...], two: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Nothing said is nothing there."""
    return itertools.zip_longest(one, two, fillvalue=0)


def _kept(saved: Saved) -> tuple[object, ...]:
    """What is kept, whatever its size."""
    return saved.operands, saved.outputs, saved.cached
