"""Renders statements and loops as the text of one readable Python module."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autopar.emit.fold import Block, Item, Loop, fold
from autopar.emit.names import Names, imported, reserved
from autopar.emit.program import Localize, program, result_forms
from autopar.emit.statement import Statement, Value, Weight
from autopar.emit.text import comment, docstring, literal
from autopar.ir.graph import Graph, Saved
from autopar.plans.plan import Plan
from autopar.utils.identifiers import identifier, is_attribute

WIDTH = 88


def emit(plan: Plan, graph: Graph, localize: Localize, saved: Mapping[str, Saved]) -> str:
    """Return the plan as a Python module; `localize` rewrites literal sizes to one rank's shard.

    Tensors that the backward does not need, according to `saved`, are deleted after their last use.
    """
    statements = program(plan, graph, localize, saved)
    results = tuple(
        _result_value(plan, graph, name, form) for name, form in result_forms(plan, graph)
    )
    values = tuple(v for v in results if isinstance(v, Value))
    items = fold(statements, values, plan.recompute_of)
    classes = _classes(items, graph.name)
    body = [
        *(line for each in classes.values() for line in _class(*each, items, plan.prefetch)),
        *_model(plan, graph, items, {key: name for key, (name, _) in classes.items()}, results),
    ]
    text = "\n".join(body)
    return "\n".join([*_header(plan, graph), *_imports(text), *body]).rstrip() + "\n"


def _result_value(plan: Plan, graph: Graph, name: str, form: object) -> Value | Weight:
    node = graph.producer[name]
    value = Value(name, form)  # type: ignore[arg-type]
    if node.op in ("parameter", "buffer") and value.form == plan.choice[node.name].outputs[0]:
        return Weight(node.target)
    return value


def _header(plan: Plan, graph: Graph) -> list[str]:
    e = plan.estimate
    return [
        f'"""{docstring(graph.name)} on mesh ({plan.mesh}).  plan {docstring(plan.digest)}',
        "",
        f"predicted on {docstring(plan.hardware)}: "
        f"step {e.step_s * 1e3:.1f} ms (compute {e.compute_s * 1e3:.1f}, "
        f"exposed communication {e.exposed_s * 1e3:.1f}), {e.memory_nbytes / 2**20:.1f} MiB per rank",
        *_padding(plan),
        *_compression(plan),
        '"""',
        "",
    ]


def _padding(plan: Plan) -> list[str]:
    """Return a line for each size that is padded, with the first parameter or input that has it."""
    first: dict[tuple[int, int], str] = {}
    for each in plan.padding:
        first.setdefault((each.pad.size, each.pad.to), each.leaf)
    return [
        f"padded: {size} -> {to}, as in {docstring(leaf)}; {1 - size / to:.1%} of it wasted"
        for (size, to), leaf in first.items()
    ]


def _compression(plan: Plan) -> list[str]:
    """Return a line that says how gradients travel, if a step is not exact."""
    if plan.compression is None:
        return []
    said = docstring(str(plan.compression))
    return [f"gradients travel compressed by {said}: a step is not exact"]


def _imports(text: str) -> list[str]:
    read = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    used = sorted(imported() & read)
    lines = []
    if "torch" in read:
        lines.append("import torch")
    if "F" in read:
        lines.append("import torch.nn.functional as F")
    if lines:
        lines.append("")
    names = ", ".join(used)
    if len(names) < WIDTH - 30:
        return [*lines, f"from autopar.runtime import {names}", "", ""]
    return [
        *lines,
        "from autopar.runtime import (",
        *(f"    {name}," for name in used),
        ")",
        "",
        "",
    ]


def _classes(items: tuple[Item, ...], model: str) -> dict[str, tuple[str, Block]]:
    """Return a class name for each distinct block body; none equals the model's name."""
    found: dict[str, tuple[str, Block]] = {}
    taken = {model, *reserved()}
    for loop in (item for item in items if isinstance(item, Loop)):
        block = loop.blocks[0]
        if block.key in found:
            continue
        base, count = _class_name(block.prefix), 1
        name = base
        while name in taken:
            count += 1
            name = f"{base}{count}"
        taken.add(name)
        found[block.key] = (name, block)
    return found


def _class_name(prefix: str) -> str:
    last = prefix.rsplit(".", 1)[-1]
    word = "".join(part.title() for part in last.split("_") if part)
    if len(word) < 3 or not word.isidentifier() or identifier(word) != word:
        return "Block"
    return word.removesuffix("s") if word.endswith("s") and not word.endswith("ss") else word


def _class(name: str, block: Block, items: tuple[Item, ...], prefetch: bool) -> list[str]:
    loops = [i for i in items if isinstance(i, Loop) and i.blocks[0].key == block.key]
    spans = [_span(loop.blocks) for loop in loops]
    home = block.path
    first = first_gather(block) if prefetch and any(len(i.blocks) > 1 for i in loops) else None
    names = Names(strip=_strip(block))
    inputs = [
        names.define(v) if isinstance(v, Value) else names.free(_argument(v, i))
        for i, v in enumerate(block.inputs)
    ]
    weights = {v: inputs[i] for i, v in enumerate(block.inputs) if isinstance(v, Weight)}
    statements = tuple(_started(each) if each is first else each for each in block.body)
    body = _statements(statements, names, weights, home)
    returned = ", ".join(names[value] for value in block.outputs)
    signature = ", ".join(["self", *inputs])
    return [
        f"class {name}(Module):  # {comment(', '.join(spans))}",
        *([] if block.recompute == "none" else [f"    recompute = {literal(block.recompute)}", ""]),
        *([] if first is None else _gather(first, names, home)),
        f"    def forward({signature}):",
        *(f"        {line}" if line else "" for line in body),
        f"        return {returned}",
        "",
        "",
    ]


def first_gather(block: Block) -> Statement | None:
    """Return the statement whose gather may start before the block: its first, of weights of its own."""
    gathers = (statement for statement in block.body if statement.gather)
    first = next(gathers, None)
    read = () if first is None else (part for part in first.gather if isinstance(part, Weight))
    return first if all(part.path.startswith(f"{block.path}.") for part in read) else None


def _started(statement: Statement) -> Statement:
    *parts, last = statement.parts
    return replace(statement, parts=(*parts, "    ahead=self.ahead,\n", last))


def _gather(statement: Statement, names: Names, home: str) -> list[str]:
    """Return the method that starts the gather."""
    call = "".join(_text(part, names, {}, home) for part in statement.gather)
    first, *rest = f"return {call}".split("\n")
    return ["    def gather(self):", *(f"        {line}" for line in (first, *rest)), ""]


def _strip(block: Block) -> str:
    """Return a pattern of the prefix with the block's number in tensor names, such as ``layers_0_``."""
    words = re.split(r"[._]", block.prefix)
    tails = ["_".join(words[i:]) for i in range(len(words))]
    options = "|".join(re.escape(f"{tail}_{block.index}_") for tail in tails)
    return rf"^(?:{options})(?=[A-Za-z])"


def _argument(weight: Weight, place: int) -> str:
    return f"{identifier(re.sub(r'[^0-9A-Za-z]', '_', weight.path))}_{place}"


def _span(blocks: tuple[Block, ...]) -> str:
    first, last = blocks[0].path, blocks[-1].path
    return first if len(blocks) == 1 else f"{first} ... {last}"


def _statements(
    statements: tuple[Statement, ...], names: Names, weights: dict[Weight, str], home: str
) -> list[str]:
    lines: list[str] = []
    for (file, line, code), run in itertools.groupby(statements, key=_written_at):
        if code:
            lines.append(comment(f"# {Path(file).name}:{line}  {code}"))
        for statement in run:
            lines += _lines(statement, names, weights, home)
            # Values that a block does not return have no name here, and are freed already.
            if dead := [names[value] for value in statement.frees if value in names]:
                lines.append(f"del {', '.join(dead)}")
    return lines


def _written_at(statement: Statement) -> tuple[str, int, str]:
    origin = statement.origin
    return origin.file, origin.line, origin.code


def _lines(statement: Statement, names: Names, weights: dict[Weight, str], home: str) -> list[str]:
    text = "".join(_text(part, names, weights, home) for part in statement.parts)
    targets = [names.define(value) for value in statement.targets]
    if "\n" in text:
        pairs = zip(targets, statement.comment.split("\n"), strict=True)
        rows = (_commented(f"    {target},", words) for target, words in pairs)
        return ["(", *rows, *f") = {text}".split("\n")]
    together = ", ".join(targets)
    if len(targets) == 1 and statement.is_list:
        together += ","
    return [_commented(f"{together} = {text}", statement.comment)]


def _commented(code: str, words: str) -> str:
    return f"{code:<{WIDTH - 24}}  # {comment(words)}"


def _text(part: str | Value | Weight, names: Names, weights: dict[Weight, str], home: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Value):
        return names[part]
    return weights.get(part) or _member(part.path.removeprefix(f"{home}."))


def _member(path: str) -> str:
    """Return ``self.h[0].ln.weight`` for ``h.0.ln.weight``, and ``self[0].weight`` for ``0.weight``."""
    parts = path.split(".")
    return "".join(["self", *map(_part, parts)])


def _part(name: str) -> str:
    """Return the access to a child: an attribute if its name allows that, else an item."""
    if name.isascii() and name.isdigit() and str(int(name)) == name:
        return f"[{name}]"
    return f".{name}" if is_attribute(name) else f"[{literal(name)}]"


def _model(
    plan: Plan,
    graph: Graph,
    items: tuple[Item, ...],
    classes: dict[str, str],
    results: tuple[Value | Weight, ...],
) -> list[str]:
    names = Names(taken=[graph.name, *classes.values()])
    inputs = [
        names.define(Value(n.outputs[0].name, plan.choice[n.name].outputs[0]), _key_name(n.target))
        for n in graph.arguments
    ]
    lines: list[str] = []
    for statement_run, group in itertools.groupby(items, key=lambda i: isinstance(i, Statement)):
        if statement_run:
            run = tuple(item for item in group if isinstance(item, Statement))
            lines.extend(_statements(run, names, {}, ""))
        else:
            for loop in group:
                if isinstance(loop, Loop):
                    name = classes[loop.blocks[0].key]
                    lines.extend(_loop(loop, name, names, plan.prefetch))
    returned = [names[v] if isinstance(v, Value) else _member(v.path) for v in results]
    return [
        f"class {graph.name}(Module):",
        f"    def forward({', '.join(['self', *inputs])}):",
        *(f"        {line}" if line else "" for line in lines),
        f"        return {', '.join(returned)}{',' if len(returned) == 1 else ''}",
    ]


def _key_name(target: str) -> str:
    return identifier(target if target.isidentifier() else f"input_{target}")


def _loop(loop: Loop, class_name: str, names: Names, prefetch: bool) -> list[str]:
    first, last = loop.blocks[0], loop.blocks[-1]
    lines = []
    inputs = [names[v] if isinstance(v, Value) else _member(v.path) for v in first.inputs]
    outputs = [names.define(value) for value in last.outputs]
    if len(loop.blocks) == 1:
        call = f"{class_name}(self, {literal(first.path)})({', '.join(inputs)})"
        return [f"{', '.join(outputs)} = {call}" if outputs else call]
    arguments = list(inputs)
    for place, source in enumerate(loop.carried):
        if source is not None:
            lines.append(f"{outputs[source]} = {inputs[place]}")
            arguments[place] = outputs[source]
    steps = f"range({first.index}, {last.index + 1})"
    more = ", prefetch=True" if prefetch and first_gather(first) is not None else ""
    span = f"self.each({class_name}, {literal(first.prefix)}, {steps}{more})"
    return [
        *lines,
        f"for block in {span}:",
        f"    {', '.join(outputs)} = block({', '.join(arguments)})",
    ]
