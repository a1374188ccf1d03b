"""Why a type was chosen: what the best plan would cost with any other type in its place.

Everything else is decided anew for each alternative; one elimination and its marginals give all of
them at once (`autopar.solve.marginals`).
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autopar.errors import InputError
from autopar.graph import Node
from autopar.plan import Plan
from autopar.posed import Posed
from autopar.solve import best_with_each_state

EXAMPLES = 5
FIXED = ("input", "buffer", "constant")


@dataclass(frozen=True)
class Alternative:
    """One candidate of an operator or parameter, and the best step that has it (inf: impossible)."""

    types: str
    seconds: float
    is_chosen: bool


@dataclass(frozen=True)
class Explanation:
    """All candidates of one operator or parameter, the cheapest first.

    Where memory is limited or communication may hide, the seconds are lower bounds (`is_exact` false).
    """

    name: str
    path: str
    alternatives: tuple[Alternative, ...]
    is_exact: bool


def explain(plan: Plan, posed: Posed, target: str) -> Explanation:
    """Every alternative to what the plan chose for `target`: a tensor, an operator or a parameter.

    `target` is a name as `autopar show` prints it, the end of one (``up_proj.weight``) or a pattern; it
    must mean one thing, and of layers that are equal in all but their index the first is explained.
    `posed` is the plan's problem.
    """
    node = _found(plan, posed, target)
    problem, index = posed.priced.problem, posed.priced.names.index(node.name)
    costs = best_with_each_state(problem, index, plan.bound_nbytes)
    least: dict[str, float] = {}
    for types, seconds in zip(_candidates(posed, node), costs, strict=True):
        least[types] = min(least.get(types, float("inf")), seconds)
    chosen = _chosen(plan, node)
    alternatives = (Alternative(types, s, types == chosen) for types, s in least.items())
    ordered = sorted(alternatives, key=lambda a: (a.seconds, not a.is_chosen))
    hides = any(t.uncovered is not None and t.uncovered.any() for t in problem.tables)
    is_exact = plan.bound_nbytes is None and not hides
    return Explanation(node.outputs[0].name, node.path, tuple(ordered), is_exact)


def _found(plan: Plan, posed: Posed, target: str) -> Node:
    """The node that the user means."""
    target = dict(posed.graph.aliases).get(target, target)
    fixed = [n for n in posed.graph.nodes if n.op in FIXED]
    if any(target in (node.target, node.name) for node in fixed):
        raise InputError(f"{target!r} is not decided: it is an input, a buffer or a constant.")
    nodes = [node for node in posed.graph.nodes if node.op not in FIXED]
    for names in (lambda n: {n.target} if n.is_leaf else set(), _names):
        exact = [node for node in nodes if target in names(node)]
        if len(exact) == 1:
            return exact[0]
    matching = [node for node in nodes if any(_means(target, name) for name in _names(node))]
    if not matching:
        close = ", ".join(_close(target, {name for node in nodes for name in _spoken(node)}))
        raise InputError(f"{posed.graph.name} has no {target!r}. Names look like {close}.")
    alike = {
        (_without_index(node.path), _chosen(plan, node), *_candidates(posed, node))
        for node in matching
    }
    if len(alike) == 1:
        return matching[0]
    shown = ", ".join(f"{node.outputs[0].name} ({node.path})" for node in matching[:EXAMPLES])
    raise InputError(f"{target!r} means {len(matching)} things: {shown} ... Name one of them.")


def _names(node: Node) -> set[str]:
    return {node.path, node.name, *(tensor.name for tensor in node.outputs)}


def _spoken(node: Node) -> set[str]:
    """The names that people know: a parameter's own, an operator's path."""
    return {node.target if node.op == "parameter" else node.path}


def _means(target: str, name: str) -> bool:
    return name.endswith(f".{target}") or fnmatch.fnmatchcase(name, target)


def _without_index(path: str) -> str:
    return re.sub(r"\b\d+\b", "*", path)


def _close(target: str, names: Iterable[str]) -> list[str]:
    """The names most like what was asked for, or with ends most like it; of equal layers the first."""

    def likeness(name: str) -> float:
        end = ".".join(name.split(".")[-1 - target.count(".") :])
        return max(difflib.SequenceMatcher(None, target, other).ratio() for other in (name, end))

    distinct: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        distinct.setdefault(_without_index(name), name)
    return sorted(distinct.values(), key=likeness, reverse=True)[:EXAMPLES]


def _candidates(posed: Posed, node: Node) -> Iterator[str]:
    candidates = posed.priced.candidates
    if node.op == "parameter":
        for storage in candidates.parameters[node.name]:
            yield _stored(str(storage.stored), str(storage.leaf))
    else:
        yield from map(str, candidates.operators[node.name])


def _chosen(plan: Plan, node: Node) -> str:
    if node.op == "parameter":
        entry = plan.parameter[node.target]
        return _stored(str(entry.stored), str(entry.leaf))
    return str(plan.choice[node.name])


def _stored(stored: str, leaf: str) -> str:
    return f"rests {stored}, enters {leaf}"
