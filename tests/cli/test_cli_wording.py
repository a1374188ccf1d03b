"""Messages name flags on the command line, and arguments in Python; none is for one alone."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import autopar
from autopar.api import compile_staged
from autopar.cli.app import COMMANDS
from autopar.cli.flags import MODEL_HELP
from autopar.cli.messages import RENAMED, RETURNED, Flags
from autopar.explain.explained import explain_plan
from autopar.utils.messages import FIELDS, argument, of_python, quoted, worded
from tests.cli.commands import fails

ROOT = Path(__file__).parents[2]
FACTORIES = "tests.cli.factories"
GPT = f"{FACTORIES}:gpt"
CALLS = (autopar.parallelize, autopar.plan, compile_staged, explain_plan)
ARGUMENTS = {name for call in CALLS for name in inspect.signature(call).parameters} | {
    "stages",
    *FIELDS,
}
OF_PYTHON_ALONE = ("cli", "emit", "report", "runtime")
"""Folders whose messages are for one of the two, or are no messages."""
PRINTED = {
    "{} stages={} microbatches={}": "the head of a schedule, which is parsed again",
    "Cannot read {}; a schedule begins like '1f1b stages=4 microbatches=8'.": "as it is written",
    "optimizer={} precision={} memory={} preset={} constraints={} local={} outputs={} recompute={} "
    "compression={} allow_undivided={} pipeline={}":
        "what ranks compare",
    "{} is for pipelines: pass {} too. (Without stages, train_step(microbatches=...) says how a step is "
    "divided.)": "a method, which the command line has not",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stages", "1+2"), "--stages 1+2 takes 3 devices; the mesh (x=2) has 2."),
        (("--stages", "1x1+2x2"), "--stages 1x1+2x2 takes 5 devices"),
        (("--stages", "3"), "pass their meshes, such as --stages 1+3."),
        (("--stages", "auto", "--preset", "fsdp"), "which --stages auto has yet to choose"),
        (("--stages", "auto", "--schedule", "chimera"), "--stages auto takes the schedules"),
        (("--stages", "2", "--cut", "a", "--cut", "b"), "or --schedule interleaved for several stages"),
        (("--stages", "2", "--asynchronous"), "--asynchronous permits schedules whose updates"),
        (("--precision", "float8"), "--precision float8 is unknown: pass float32, bfloat16, float16"),
        (("--recompute", "some"), "--recompute some is unknown: pass none, gathers, selective, full"),
        (("--optimizer", "LBFGS"), "--optimizer LBFGS cannot be run"),
    ],
)  # fmt: skip
def test_a_plan_is_asked_for_by_flags(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    message = fails("plan", GPT, "--mesh", "2", "--hardware", "cpu", "-o", tmp_path / "p", *words)
    assert said in message and not re.search(r"\b\w+=[^=\d]", message.replace("(x=2)", ""))


def test_what_comes_with_the_model_is_asked_of_the_factory(tmp_path: Path) -> None:
    message = fails("plan", f"{FACTORIES}:bare", "--mesh", "2", "-o", tmp_path / "p.json")
    assert "Pass example_inputs (second of what MODEL returns) with" in message


def test_values_are_written_as_they_are_passed() -> None:
    assert argument("stages", [1, (1, 3)]) == "pipeline=[1, (1, 3)]" and quoted("none") == "'none'"
    with worded(Flags()):
        assert argument("stages", [1, (1, 3)]) == "--stages 1+1x3"
        assert (
            argument("stages", "auto") == "--stages auto" and argument("stages", 2) == "--stages 2"
        )
        assert argument("optimizer", "SGD(lr=1)") == "--optimizer 'SGD(lr=1)'"
        assert argument("asynchronous", True) == argument("asynchronous") == "--asynchronous"
        assert argument("memory_limit") == "--memory" and argument("cuts") == "--cut"
        assert quoted("none") == "none" and of_python("or a dtype") == ""
    assert argument("loss") == "loss=" and of_python("or a dtype") == "or a dtype"


def test_renamed_flags_exist() -> None:
    flags = {
        flag
        for module in COMMANDS.values()
        for name in inspect.signature(module.command).parameters
        for flag in (f"--{name.replace('_', '-')}",)
    }
    assert set(RENAMED.values()) <= flags and not flags & {f"--{name}" for name in RETURNED}
    assert "factory" in MODEL_HELP  # which returns them


@pytest.mark.thorough
def test_no_message_is_for_python_alone() -> None:
    assert {"stages", "hardware", "memory_limit", "example_inputs", "stage"} <= ARGUMENTS
    named = re.compile(rf"(?<![\w'.\[-])({'|'.join(sorted(ARGUMENTS))})=")
    found = {
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, line, text in _texts()
        if named.search(text) and text not in PRINTED
    }
    assert not found, f"write argument(...) of autopar.utils.messages: {found}"


def _texts() -> Iterator[tuple[Path, int, str]]:
    """Every text that is no docstring; ``{}`` for what is filled in."""
    for path in sorted([*ROOT.glob("autopar/**/*.py"), *ROOT.glob("cost_models/**/*.py")]):
        if path.relative_to(ROOT).parts[1] in OF_PYTHON_ALONE:
            continue
        tree = ast.parse(path.read_text())
        silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
                 for part in node.values}  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield path, node.lineno, "".join(map(_filled, node.values))
            elif isinstance(node, ast.Constant) and id(node) not in silent | parts:
                yield path, node.lineno, str(node.value)


def _filled(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{}"
