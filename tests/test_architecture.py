"""The flow goes one way: imports are read, and an arrow that turns round fails."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import autopar

ROOT = Path(__file__).parent.parent
LAYERS = (
    ("buckets", "garbage", "identifiers", "nearby", "watch", "wording"),
    ("errors",),
    ("mesh", "cache", "processes", "reading"),
    ("schedules",),
    ("simulate",),
    ("stages",),
    ("placement",),
    ("pads",),
    ("conversion", "graph"),
    ("blocks", "experts", "functions", "leaving", "operators", "request", "selections"),
    ("solve", "split"),
    ("plans",),
    ("capture", "grouping", "presets", "rules"),
    ("pricing", "padding"),
    ("emit", "runtime"),
    ("planning",),
    ("staging",),
    ("certificate", "replay"),
    ("show",),
    ("explain", "report"),
    ("compiler",),
    ("api",),
    ("compare", "explained", "profile"),
    ("cli",),
    ("completion",),
)  # fmt: skip
"""Values at the bottom; a module imports from its own package and from layers below."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
CONVENIENCE = {("plans", "explained")}
"""Methods that lead to a reader of the value that has them; it is imported when they are called."""
NAMES_ONLY = {
    "torch.utils.checkpoint._NoopSaveInputs", "torch.Tensor.__matmul__", "torch.Tensor.__getitem__",
    "torch.utils._pytree",
}  # fmt: skip
"""Private names that are compared with or said, never imported."""
RUNTIME_MAY_IMPORT = {
    "buckets", "conversion", "errors", "experts", "graph", "grouping", "leaving", "mesh", "operators",
    "pads", "placement", "plans", "request", "runtime", "schedules", "split",
}  # fmt: skip


def sources(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def part_of(module: str) -> str:
    """``pricing`` for ``autopar.sharding.build``."""
    return module.split(".")[1]


def own_part(path: Path) -> str:
    return path.relative_to(ROOT / "autopar").parts[0].removesuffix(".py")


def test_imports_go_down() -> None:
    for path, tree in sources("autopar"):
        mine = own_part(path)
        if mine in ("__init__", "__main__"):
            continue
        assert mine in LEVEL, f"{path} has no layer: add {mine!r} to LAYERS"
        for module in imported(tree):
            if module.startswith("autopar.") and part_of(module) in LEVEL:
                theirs = part_of(module)
                if (mine, theirs) in CONVENIENCE:
                    continue
                below = LEVEL[theirs] < LEVEL[mine] or theirs == mine
                values = LEVEL[mine] == LEVEL[theirs] <= LEVEL["plans"]
                assert below or values, f"{path.relative_to(ROOT)} imports {module}"


def test_runtime_imports_values_only() -> None:
    for path, tree in sources("autopar/runtime"):
        for module in imported(tree):
            if module.startswith("autopar.") and part_of(module) in LEVEL:
                assert part_of(module) in RUNTIME_MAY_IMPORT, f"{path.name} imports {module}"


def test_cost_models_are_a_leaf() -> None:
    for path, tree in sources("cost_models"):
        assert not any(m.split(".")[0] == "autopar" for m in imported(tree)), path


@pytest.mark.parametrize(
    "folder",
    [
        "solve",
        "pricing",
        "placement.py",
        "plans",
        "schedules",
        "simulate",
        "stages",
    ],
)
def test_no_torch_where_decisions_are_made(folder: str) -> None:
    place = ROOT / "autopar" / folder
    assert place.exists()
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        roots = {module.split(".")[0] for module in imported(ast.parse(path.read_text()))}
        assert "torch" not in roots, path


def test_private_torch_names_and_spmd_types_have_one_home() -> None:
    private = re.compile(r"torch(?!\.ops)(\.\w+)*\._\w+|from torch[\w.]* import .*\b_\w+")
    for path, _ in sources("autopar"):
        text = path.read_text()
        if path.name != "_torch.py":
            uses = [m[0] for m in private.finditer(text) if m[0] not in NAMES_ONLY]
            assert not uses, f"{path}: {uses}"
        if path.name != "_typed.py":
            assert "import spmd_types" not in text, path


def test_the_store_has_one_door() -> None:
    """Keys that do not carry the launch are found again by its next attempt."""
    door = re.compile(r"_torch\.store\(|_get_default_store|[^_]\b(TCP|Prefix|File)Store\(")
    for path, _ in sources("autopar"):
        if path.name not in ("_torch.py", "launch.py"):
            assert not door.search(path.read_text()), path


def test_files_and_functions_stay_small() -> None:
    for folder in ("autopar", "cost_models"):
        for path, tree in sources(folder):
            lines = len(path.read_text().splitlines())
            assert lines <= 400, f"{path} has {lines} lines"
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    length = (node.end_lineno or 0) - node.lineno + 1
                    length -= len((ast.get_docstring(node) or "").splitlines())
                    # The trace of a model is one nest of context managers and closures.
                    allowed = 100 if path.name == "tracing.py" else 70
                    assert length <= allowed, f"{path}:{node.lineno} {node.name}: {length} lines"


def test_public_names() -> None:
    assert sorted(autopar.__all__) == [
        "AutoparError", "Compilation", "I", "Mesh", "N", "P", "Parallel", "Plan", "R", "S",
        "Sharding", "compile_model", "parallelize", "plan", "rule",
    ]  # fmt: skip
