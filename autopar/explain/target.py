"""Finds the operator, parameter or module for a name, the end of a name, or a pattern."""

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
    """No operator, parameter or module has this name."""


@dataclass(frozen=True)
class Module:
    """The operators and parameters of one of the model's modules."""

    path: str
    nodes: tuple[Node, ...]


Target = Node | Module


def found(plan: Plan, graph: Graph, name: str) -> Target:
    """Return the target of a name; the first of layers that are equal in all but their index.

    Equality includes the plan's decisions.  A module of one operator is that operator.  A module's full
    path means the module, even if the emitted code has a tensor of that name.
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
    """Yield the targets of these modules; a module with one differentiable operator means that one."""
    for path in paths:
        inside = tuple(node for node in nodes if path in _around(node))
        operators = [node for node in inside if not node.is_leaf]
        trained = [node for node in operators if any(t.differentiable for t in node.outputs)]
        if len(trained or operators) == 1:
            yield (trained or operators)[0]
        elif operators:
            yield Module(path, inside)


def _around(node: Node) -> tuple[str, ...]:
    """Return the paths of the modules that contain a node, outermost first."""
    inner = node.target.rpartition(".")[0] if node.is_leaf else node.origin.module
    parts = inner.split(".") if inner else []
    return tuple(".".join(parts[: place + 1]) for place in range(len(parts)))


def _ends(name: str, path: str) -> bool:
    """Return whether a module's path ends with `name`; parts may contain ``*``."""
    wanted, parts = name.split("."), path.split(".")
    tail = parts[-len(wanted) :]
    return len(tail) == len(wanted) and all(map(fnmatchcase, tail, wanted))


def _one(plan: Plan, name: str, matching: tuple[Target, ...]) -> Target:
    """Return the first match if all are equal; raise `InputError` if the name is ambiguous."""
    alike = {_signature(plan, each) for each in matching}
    if len(alike) == 1:
        return matching[0]
    shown = ", ".join(map(called, matching[:EXAMPLES]))
    raise InputError(f"{name!r} matches {len(matching)} targets: {shown} ... Name one of them.")


def called(target: Target) -> str:
    """Return a target's name for messages."""
    if isinstance(target, Module):
        return target.path
    return f"{target.outputs[0].name} ({target.path})"


def _signature(plan: Plan, target: Target) -> tuple[str, ...]:
    """Return a target's paths and decisions without layer numbers, to compare targets."""
    nodes = target.nodes if isinstance(target, Module) else (target,)
    again = plan.recompute_of.get(target.path, "") if isinstance(target, Module) else ""
    return (again, *(f"{_without_index(node.path)} {chosen(plan, node)}" for node in nodes))


def chosen(plan: Plan, node: Node) -> str:
    """Return the plan's decision for an operator or parameter as text."""
    if node.op == "parameter":
        entry = plan.parameter[node.target]
        return stored(str(entry.stored), str(entry.leaf))
    return str(plan.choice[node.name])


def stored(rests: str, enters: str) -> str:
    """Return a parameter's shardings at rest and in the step as text."""
    return f"stored {rests}, in the step {enters}"


def _names(node: Node) -> set[str]:
    return {node.path, node.name, *(tensor.name for tensor in node.outputs)}


def _spoken(node: Node) -> set[str]:
    """Return the user-visible names of a node: the parameter's name or the operator's path."""
    return {node.target if node.op == "parameter" else node.path}


def _means(name: str, other: str) -> bool:
    return other.endswith(f".{name}") or fnmatchcase(other, name)


def _without_index(path: str) -> str:
    return re.sub(r"\b\d+\b", "*", path)
