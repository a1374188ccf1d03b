"""Reads the problems of the ASPLOS 2025 contest on intra-operator parallelism, as JSON.

`problem.nodes` has `costs`, `usages` and `intervals`, `problem.edges` has `nodes` and `costs` (row by
row), and `problem.usage_limit` is the bytes that may be in use at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autopar.errors import PlanError
from autopar.solver.anytime.timed_problem import Array, Pair, Span, TimedProblem

FORBIDDEN = 1e17
"""Costs from here on forbid: the contest writes 1e18 and sums of it."""
LAST = 10**7
"""The last time; the contest's problems have some ten thousands."""


def timed_problem(content: object, source: str) -> TimedProblem:
    """Return the problem; raise `PlanError` that names `source` and the place of the first fault."""
    try:
        problem = _field(content, "problem", dict, "")
        nodes = _field(problem, "nodes", dict, "problem.")
        edges = _field(problem, "edges", dict, "problem.")
        costs = _lists(nodes, "costs", "problem.nodes.")
        pairs = _pairs(edges, costs)
        found = TimedProblem(tuple(map(_forbidding, costs)), pairs, *_bytes(problem, nodes, costs))
        found.check()
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None
    return found


def _field(of: object, name: str, kind: type | tuple[type, ...], place: str) -> Any:
    value = of.get(name) if isinstance(of, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "an object" if kind is dict else "a list" if kind is list else "a number"
        raise PlanError(f"{place}{name} is not {wanted}.")
    return value


def _lists(of: object, name: str, place: str) -> list[Array]:
    """A list of lists of numbers; none is empty."""
    found = []
    for index, values in enumerate(_field(of, name, list, place)):
        numbers = _numbers(values, f"{place}{name}[{index}]")
        if len(numbers) == 0:
            raise PlanError(f"{place}{name}[{index}] is empty.")
        found.append(numbers)
    return found


def _numbers(values: object, place: str) -> Array:
    try:
        numbers = np.array(values)
    except ValueError:
        numbers = np.array(None)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iuf" and len(numbers) > 0):
        raise PlanError(f"{place} is not a list of numbers.")
    if np.any(np.isnan(numbers.astype(np.float64))):
        raise PlanError(f"{place} has a value that is not a number.")
    return numbers.astype(np.float64)


def _forbidding(costs: Array) -> Array:
    return np.where(costs >= FORBIDDEN, np.inf, costs)


def _whole(values: object, place: str) -> tuple[int, int]:
    whole = isinstance(values, list) and len(values) == 2 and all(type(v) is int for v in values)
    if not whole:
        raise PlanError(f"{place} is not a pair of whole numbers.")
    assert isinstance(values, list)
    return values[0], values[1]


def _pairs(edges: object, costs: list[Array]) -> tuple[Pair, ...]:
    ends = _field(edges, "nodes", list, "problem.edges.")
    tables = _lists(edges, "costs", "problem.edges.")
    if len(ends) != len(tables):
        raise PlanError(f"problem.edges has {len(ends)} nodes, but {len(tables)} costs.")
    found = []
    for index, (end, table) in enumerate(zip(ends, tables, strict=True)):
        first, second = _whole(end, f"problem.edges.nodes[{index}]")
        if not (0 <= first < len(costs) and 0 <= second < len(costs)) or first == second:
            raise PlanError(
                f"problem.edges.nodes[{index}] is [{first}, {second}]: not two of the "
                f"{len(costs)} nodes."
            )
        rows, columns = len(costs[first]), len(costs[second])
        if len(table) != rows * columns:
            raise PlanError(
                f"problem.edges.costs[{index}] has {len(table)} values, not {rows} x {columns}."
            )
        found.append(Pair(first, second, _forbidding(table).reshape(rows, columns)))
    return tuple(found)


def _limit(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise PlanError("problem.usage_limit is too large.") from None


def _bytes(problem: object, nodes: object, costs: list[Array]) -> tuple[tuple[Span, ...], Array]:
    usages = _lists(nodes, "usages", "problem.nodes.")
    intervals = _field(nodes, "intervals", list, "problem.nodes.")
    if not len(costs) == len(usages) == len(intervals):
        raise PlanError(
            f"problem.nodes has {len(costs)} costs, {len(usages)} usages and {len(intervals)} "
            "intervals: one each per node."
        )
    limit = _limit(_field(problem, "usage_limit", (int, float), "problem."))
    spans = []
    for index, (usage, interval) in enumerate(zip(usages, intervals, strict=True)):
        start, stop = _whole(interval, f"problem.nodes.intervals[{index}]")
        if not 0 <= start <= stop <= LAST:
            raise PlanError(
                f"problem.nodes.intervals[{index}] is [{start}, {stop}]: not a time from 0 to {LAST}."
            )
        if len(usage) != len(costs[index]):
            raise PlanError(
                f"problem.nodes.usages[{index}] has {len(usage)} values, not {len(costs[index])}."
            )
        if np.any(usage < 0):
            raise PlanError(f"problem.nodes.usages[{index}] has a negative value.")
        if stop > start and np.any(usage > 0):
            spans.append(Span(index, start, stop, usage))
    last = max((span.stop for span in spans), default=0)
    return tuple(spans), np.full(last, limit)
