"""Names tensors in the user's terms: after the called submodule, the variable, or the operator."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from autopar.capture.passes.rewriting import rename, renamed_ends
from autopar.ir.collectives import COLLECTIVES
from autopar.ir.graph import Graph, Node, bare, short
from autopar.utils.identifiers import FUNCTIONS, identifier

RESERVED = {
    "self",
    "torch",
    "F",
    "nn",
    "math",
    "S",
    "R",
    "I",
    "P",
    "N",
    *dir(builtins),
    *keyword.kwlist,
}
"""Names that emitted code may use for other purposes."""
REGROUPING = {"reshape", "to", "transpose", "permute", "unsqueeze"}
"""Operators that are not named after the module that calls them."""
ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*(?:[-+*/@|&]|//|\*\*)?=(?!=)")


def name_tensors(graph: Graph) -> Graph:
    """Give every tensor a short, unique Python identifier; the first of a name has no suffix."""
    taken: dict[str, int] = {}
    names: dict[str, str] = {}
    nodes: list[Node] = []
    last_of_line = _last_of_line(graph)
    for node in graph.nodes:
        node = rename(node, names)
        wanted = list(_wanted(node, node.name in last_of_line))
        for tensor, name in zip(node.outputs, wanted, strict=True):
            names[tensor.name] = _unique(name, taken)
        outputs = tuple(replace(tensor, name=names[tensor.name]) for tensor in node.outputs)
        target = names[node.target] if node.op == "constant" else node.target
        new = replace(node, name=outputs[0].name, outputs=outputs, target=target)
        nodes.append(new)
    return replace(renamed_ends(graph, names), nodes=tuple(nodes))


def _wanted(node: Node, assigns: bool) -> Iterator[str]:
    count = len(node.outputs)
    if node.is_leaf:
        yield _identifier(node.target) if node.op != "constant" else "constant"
        return
    if node.op == "autopar.batch_norm":
        base = _base(node, assigns)
        yield from (base, f"{base}_running_mean", f"{base}_running_var")
        return
    variables = _variables(node) if assigns else ()
    if len(variables) == count > 1:
        yield from variables
        return
    base = _base(node, assigns)
    yield from (
        (base,) if count == 1 else (f"{base.removesuffix('_')}_{index}" for index in range(count))
    )


def _base(node: Node, assigns: bool) -> str:
    """Return the name of the submodule, else of the variable, else of the operator."""
    called = _called_module(node)
    if called:
        return called
    variables = _variables(node) if assigns else ()
    return variables[0] if len(variables) == 1 else _identifier(bare(node.op).strip("_"))


def _called_module(node: Node) -> str:
    """Return ``ln_1`` if the line calls ``self.ln_1(x)`` or the node reads its parameters, else ""."""
    path = node.origin.module.split(".")
    last = f"{path[-2]}_{path[-1]}" if path[-1].isdigit() and len(path) > 1 else path[-1]
    if not last or short(node.op) in REGROUPING:
        return ""
    owner = identifier(node.origin.module)
    applies = any(name.rpartition("_")[0] == owner for name in node.operands)
    callee = path[-2] if path[-1].isdigit() and len(path) > 1 else path[-1]
    calls = re.search(rf"(?<!\w){re.escape(callee)}(\[.*\])?\(", node.origin.code) is not None
    return _identifier(last) if applies or calls else ""


def _variables(node: Node) -> tuple[str, ...]:
    """Return the targets of the assignment on the user's line."""
    match = ASSIGNMENT.match(node.origin.code)
    return tuple(_identifier(part.strip()) for part in match[1].split(",")) if match else ()


def _last_of_line(graph: Graph) -> set[str]:
    """Return the last node from each of the user's lines: it made the value that the line assigns."""
    computing = [node for node in graph.nodes if not node.is_leaf]
    ends = set()
    for node, following in zip_longest(computing, computing[1:]):
        place = (node.origin.file, node.origin.line)
        if following is None or (following.origin.file, following.origin.line) != place:
            ends.add(node.name)
    return ends


def class_name(text: str) -> str:
    """Return the name of a model in emitted code and in its graph: an identifier without clashes."""
    name = identifier(text)
    taken = {*FUNCTIONS, *COLLECTIVES, *RESERVED, "Block", "block"}
    return f"{name}_" if name in taken or name.startswith("__") else name


def _identifier(text: str) -> str:
    name = identifier(text)
    return f"{name}_" if name in RESERVED else name


def _unique(name: str, taken: dict[str, int]) -> str:
    """Return the name, or the first free one with a number; `taken` has the last number per name."""
    candidate, number = name, taken.get(name, 0)
    while candidate in taken:
        number += 1
        candidate = f"{name.removesuffix('_')}_{number}"
    taken[name] = number
    taken[candidate] = taken.get(candidate, 0)
    return candidate
