"""The page about rules: its rules are what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from autopar.rules import parse_rule
from tests.rules.building import Example, build, t

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "rules.md").read_text()


def test_its_rules_parse() -> None:
    shown = re.findall(r"^\w+ {2,}(.* -> .*)$", PAGE, re.MULTILINE)
    assert len(shown) == 3
    for text in shown:
        parse_rule(text)


def test_its_linear_is_ours() -> None:
    from autopar.rules import declare

    graph, node = build(Example("aten.linear.default", (t(6, 12), t(18, 12), t(18))))
    call = declare.Call(node, tuple(graph.tensors[name] for name in node.operands))
    declaration = declare.declaration(node.op)
    assert declaration is not None
    declared = declaration(call)
    assert declared is not None and f"linear      {declared.text}\n" in PAGE
