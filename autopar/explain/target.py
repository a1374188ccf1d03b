"""Which operator, parameter or module a person means by a name, its end or a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autopar.errors import InputError
from autopar.ir.graph import LEAVES, Graph, Node
from autopar.plans.plan import Plan
from autopar.utils.suggest import EXAMPLES, closest


class AbsentError(InputError):
    """Nothing that is decided is called so."""


@dataclass(frozen=True)
class Module:
    """What lies in a module of the user's: its operators and its parameters."""

    path: str
    nodes: tuple[Node, ...]


Target = Node | Module


def found(plan: Plan, graph: Graph, name: str) -> Target:
    """What is meant; of layers that are equal in all but their index, decisions included, the first.

    A module of one operator is that operator.  A name that is a module's own path means the module, even
    where the emitted code calls a tensor so.
    """
    name = dict(graph.aliases).get(name, name)
    _refuse_fixed(graph, name)
    nodes = [node for node in graph.nodes if node.op == "parameter" or not node.is_leaf]
    for exact in (
        [node for node in nodes if node.is_leaf and node.target == name],
        [*_modules(nodes, [name])],
        [node for node in nodes if name in _names(node)],
    ):
        if len(exact) == 1:
            return exact[0]
    paths = dict.fromkeys(path for node in nodes for path in _around(node))
    modules = tuple(_modules(nodes, [path for path in paths if _ends(name, path)]))
    if modules:
        return _one(plan, name, modules)
    matching = tuple(node for node in nodes if any(_means(name, other) for other in _names(node)))
    if matching:
        return _one(plan, name, matching)
    close = ", ".join(closest(name, {spoken for node in nodes for spoken in _spoken(node)}))
    raise AbsentError(f"{graph.name} has no {name!r}. Names look like {close}.")


def _refuse_fixed(graph: Graph, name: str) -> None:
    fixed = [node for node in graph.nodes if node.op in LEAVES and node.op != "parameter"]
    if any(name in (node.target, node.name) for node in fixed):
        raise AbsentError(
            f"{name!r} is not decided: it is an input, a buffer, a constant, or from another stage."
        )


def _modules(nodes: list[Node], paths: list[str]) -> Iterator[Target]:
    """What lies in these modules; where one operator has gradients, it is meant."""
    for path in paths:
        inside = tuple(node for node in nodes if path in _around(node))
        operators = [node for node in inside if not node.is_leaf]
        trained = [node for node in operators if any(t.differentiable for t in node.outputs)]
        if len(trained or operators) == 1:
            yield (trained or operators)[0]
        elif operators:
            yield Module(path, inside)


def _around(node: Node) -> tuple[str, ...]:
    """The modules that hold a node, the outermost first."""
    inner = node.target.rpartition(".")[0] if node.is_leaf else node.origin.module
    parts = inner.split(".") if inner else []
    return tuple(".".join(parts[: place + 1]) for place in range(len(parts)))


def _ends(name: str, path: str) -> bool:
    """Whether a module is called so, or ends so; parts may have ``*``."""
    wanted, parts = name.split("."), path.split(".")
    tail = parts[-len(wanted) :]
    return len(tail) == len(wanted) and all(map(fnmatchcase, tail, wanted))


def _one(plan: Plan, name: str, matching: tuple[Target, ...]) -> Target:
    """The first, where all are alike."""
    alike = {_looks(plan, each) for each in matching}
    if len(alike) == 1:
        return matching[0]
    shown = ", ".join(map(called, matching[:EXAMPLES]))
    raise InputError(f"{name!r} means {len(matching)} things: {shown} ... Name one of them.")


def called(target: Target) -> str:
    """How people are told which it is."""
    if isinstance(target, Module):
        return target.path
    return f"{target.outputs[0].name} ({target.path})"


def _looks(plan: Plan, target: Target) -> tuple[str, ...]:
    """What it is and what was decided of it, without the numbers of layers."""
    nodes = target.nodes if isinstance(target, Module) else (target,)
    again = plan.recompute_of.get(target.path, "") if isinstance(target, Module) else ""
    return (again, *(f"{_without_index(node.path)} {chosen(plan, node)}" for node in nodes))


def chosen(plan: Plan, node: Node) -> str:
    """What a plan decides of an operator or parameter, as text."""
    if node.op == "parameter":
        entry = plan.parameter[node.target]
        return stored(str(entry.stored), str(entry.leaf))
    return str(plan.choice[node.name])


def stored(rests: str, enters: str) -> str:
    """A parameter's two types as text."""
    return f"rests {rests}, enters {enters}"


def _names(node: Node) -> set[str]:
    return {node.path, node.name, *(tensor.name for tensor in node.outputs)}


def _spoken(node: Node) -> set[str]:
    """The names that people know: a parameter's own, an operator's path."""
    return {node.target if node.op == "parameter" else node.path}


def _means(name: str, other: str) -> bool:
    return other.endswith(f".{name}") or fnmatchcase(other, name)


def _without_index(path: str) -> str:
    return re.sub(r"\b\d+\b", "*", path)
