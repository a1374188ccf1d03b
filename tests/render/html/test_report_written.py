"""The files beside emitted code: those that its comments speak of, wherever the factory stands."""

from __future__ import annotations

import re
from dataclasses import replace

import autopar
from autopar.ir.graph import Graph, Origin
from autopar.render.html import written
from tests.models import CASES


def made(name: str) -> autopar.Compilation:
    model, inputs, loss = CASES[name]()
    return autopar.compile_model(model, (2,), inputs, loss=loss, hardware="h100")


def test_every_line_that_emitted_code_speaks_of_is_there() -> None:
    found = made("mlp")
    files = {name: text.splitlines() for name, text in written(found.graph)}
    spoken = re.findall(r"^ *# (\w+\.py):(\d+)  (.*)$", found.source, re.MULTILINE)
    assert spoken
    for name, line, code in spoken:
        assert files[name][int(line) - 1].strip() == code


def test_the_file_with_most_operators_is_first() -> None:
    graph = made("mlp").graph
    one, *others = (node for node in graph.nodes if not node.is_leaf)
    elsewhere = Origin(one.origin.module, __file__, 1, "x = y")
    nowhere = replace(elsewhere, file="<string>")
    moved = (*(n for n in graph.nodes if n.is_leaf), replace(one, origin=elsewhere),
             replace(others[0], origin=nowhere), *others[1:])  # fmt: skip
    names = [name for name, _ in written(Graph(graph.name, moved, graph.loss))]
    assert names[0] != names[1] == "test_report_written.py" and len(names) == 2
