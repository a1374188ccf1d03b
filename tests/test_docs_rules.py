"""The page about rules: its Python runs, its rules are what the code says, its files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autopar.rules import parse_rule, user
from autopar.rules.declare import forget
from tests.rules.building import Example, build, t

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "rules.md").read_text()


def test_its_python_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """All blocks as one file, from top to bottom; the error is the one that is printed there."""
    path = tmp_path / "page.py"
    path.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    try:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "page"})
        printed = " ".join(capsys.readouterr().out.split())
        shown = " ".join(re.findall(r"^    # (.*)$", PAGE, re.MULTILINE))
        assert printed.rpartition("error")[0] == shown.rpartition("error")[0] != ""
    finally:
        user._RULES.clear()
        forget()


def test_its_rules_parse() -> None:
    shown = re.findall(r"^    \w+ {2,}(.* -> .*)$", PAGE, re.MULTILINE)
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


def test_paths_exist() -> None:
    for name in re.findall(r"`(autopar/[\w/]+)`", PAGE):
        assert (ROOT / name).exists(), name
