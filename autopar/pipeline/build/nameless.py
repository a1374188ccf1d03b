"""Identifies graphs that differ in names only, such as pipeline stages or pieces with equal blocks.

A plan is made for one of them and renamed for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.blocks import block_of
from autopar.ir.graph import Arg, Graph, Node, Ref
from autopar.plans.decisions import Choice, Conversion
from autopar.plans.plan import Plan


def nameless(graph: Graph) -> str:
    """Return a text that is equal for graphs that differ only in names.

    These are the names of tensors, parameters and numbered modules.
    """
    numbers = {name: str(place) for place, name in enumerate(graph.tensors)}
    modules: dict[str, dict[str, int]] = {}
    lines = [_line(node, numbers, modules) for node in graph.nodes]
    targets = {node.target: str(place) for place, node in enumerate(graph.nodes) if node.is_leaf}
    ends = (
        graph.name,
        graph.loss and numbers[graph.loss],
        [(path, numbers[name]) for path, name in graph.outputs],
        [[targets.get(name, name) for name in pair] for pair in graph.aliases],
        [(targets.get(name, name), numbers[made]) for name, made in graph.mutations],
        [numbers[name] for name in graph.sends],
    )
    return "\n".join([*lines, repr(ends)])


def _line(node: Node, numbers: dict[str, str], modules: dict[str, dict[str, int]]) -> str:
    outputs = [(t.shape, t.dtype, t.differentiable, t.pads) for t in node.outputs]
    target = _target(node, modules)
    kwargs = [(key, _shown(value, numbers)) for key, value in node.kwargs]
    where = _module(node.origin.module, modules)
    return f"{node.op} {target} {_shown(node.args, numbers)} {kwargs} {outputs} {where}"


def _target(node: Node, modules: dict[str, dict[str, int]]) -> str:
    if node.op == "received":
        return ""
    own = node.op in ("parameter", "buffer")
    return _module(node.target, modules) if own else node.target


def _shown(arg: Arg, numbers: dict[str, str]) -> str:
    if isinstance(arg, Ref):
        return f"<{numbers[arg.name]}>"
    if isinstance(arg, tuple):
        return f"({','.join(_shown(item, numbers) for item in arg)})"
    return repr(arg)


def _module(path: str, known: dict[str, dict[str, int]]) -> str:
    """Return a module's path with numbered children renumbered in order of first occurrence."""
    made = ""
    for word in path.split("."):
        if word.isdigit():
            children = known.setdefault(made, {})
            word = f"#{children.setdefault(word, len(children))}"
        made = f"{made}.{word}"
    return made


def renamed(plan: Plan, source: Graph, target: Graph) -> Plan:
    """Return the plan of `source` as a plan of `target`, a graph that differs in names only."""
    pairs = list(zip(source.nodes, target.nodes, strict=True))
    nodes = {one.name: two.name for one, two in pairs}
    leaves = {one.target: two.target for one, two in pairs if one.op == "parameter"}
    paths = dict(_blocks(pairs))
    tensors = {
        one.name: two.name
        for before, after in pairs
        for one, two in zip(before.outputs, after.outputs, strict=True)
    }

    def steps(conversions: tuple[Conversion, ...]) -> tuple[Conversion, ...]:
        return tuple(replace(each, tensor=tensors[each.tensor]) for each in conversions)

    made = replace(
        plan,
        graph_digest=target.digest,
        choices=tuple(Choice(nodes[each.node], each.sharding) for each in plan.choices),
        parameters=tuple(
            replace(each, name=leaves[each.name], steps=steps(each.steps))
            for each in plan.parameters
        ),
        conversions=steps(plan.conversions),
        recompute=tuple(replace(each, path=paths[each.path]) for each in plan.recompute),
        estimate=replace(
            plan.estimate,
            operators=tuple(
                replace(each, node=nodes[each.node]) for each in plan.estimate.operators
            ),
        ),
    )
    made.check(target)
    return made


def _blocks(pairs: list[tuple[Node, Node]]) -> Iterator[tuple[str, str]]:
    for one, two in pairs:
        here, there = block_of(one.origin), block_of(two.origin)
        if here is not None and there is not None:
            yield f"{here[0]}.{here[1]}", f"{there[0]}.{there[1]}"
