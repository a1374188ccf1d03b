"""The flow goes one way: imports are read, and an arrow that turns round fails."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import autopar

ROOT = Path(__file__).parent.parent
LAYERS = (
    {"errors"},
    {"utils"},
    {"ir", "pipeline.schedules", "solver"},
    {"ops", "pipeline.simulate", "request"},
    {"capture", "pipeline.planner", "plans"},
    {"rules", "runtime"},
    {"memory"},
    {"cost", "emit"},
    {"sharding"},
    {"pipeline.build"},
    {"compile", "verify"},
    {"api", "explain"},
    {"price", "profile", "tune"},
    {"render"},
    {"cli"},
)
"""Values at the bottom; a package imports from itself and from layers below."""
LAYER = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
NAMES_ONLY = {
    "torch.utils.checkpoint._NoopSaveInputs", "torch.Tensor.__matmul__", "torch.Tensor.__getitem__",
    "torch.utils._pytree",
}  # fmt: skip
"""Private names that are compared with or said, never imported."""
RUNTIME_MAY_IMPORT = {
    "errors",
    "ir",
    "ops",
    "pipeline.schedules",
    "plans",
    "request",
    "runtime",
    "utils",
}


@cache
def sources(folder: str) -> tuple[tuple[Path, ast.Module], ...]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return tuple((path, ast.parse(path.read_text())) for path in paths)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def module_of(path: Path) -> str:
    """``autopar.ir.mesh`` for ``autopar/ir/mesh.py``."""
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


def package_of(module: str) -> str:
    """``cost`` for ``autopar.cost.prices``; the packages of ``pipeline`` are told apart."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[0] == "pipeline" else parts[:1])


def autopar_imports(tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    """The modules of autopar that are named: of ``from a.b import c``, a.b.c if that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                deep = f"{node.module}.{alias.name}"
                yield deep if deep in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def imports() -> nx.DiGraph[str]:
    """From each module of autopar to those of autopar that it imports, also in functions."""
    trees = {module_of(path): tree for path, tree in sources("autopar")}
    del trees["autopar"], trees["autopar.__main__"]
    found: nx.DiGraph[str] = nx.DiGraph()
    for module, tree in trees.items():
        others = set(autopar_imports(tree, trees)) & trees.keys() - {module}
        found.add_edges_from((module, other) for other in others)
    return found


def test_no_modules_import_each_other() -> None:
    circles = [
        sorted(each) for each in nx.strongly_connected_components(imports()) if len(each) > 1
    ]
    assert not circles


def test_imports_go_down() -> None:
    for module, other in imports().edges:
        mine, theirs = package_of(module), package_of(other)
        assert mine in LAYER, f"{module} has no layer: add {mine!r} to LAYERS"
        assert theirs == mine or LAYER[theirs] < LAYER[mine], f"{module} imports {other}"


def test_packages_have_the_lowest_layer_that_they_can() -> None:
    """So LAYERS has as few layers as the imports allow, and no package that is gone."""
    below: dict[str, set[str]] = {package: set() for package in LAYER}
    for module, other in imports().edges:
        if package_of(module) != package_of(other):
            below[package_of(module)].add(package_of(other))
    for package, others in below.items():
        lowest = 1 + max((LAYER[other] for other in others), default=-1)
        assert LAYER[package] == lowest, (
            f"{package} is in layer {LAYER[package]}, and could be in {lowest}"
        )


def test_runtime_imports_values_only() -> None:
    for module, other in imports().edges:
        if package_of(module) == "runtime":
            assert package_of(other) in RUNTIME_MAY_IMPORT, f"{module} imports {other}"


def test_cost_models_are_a_leaf() -> None:
    for path, tree in sources("cost_models"):
        assert not any(m.split(".")[0] == "autopar" for m in imported(tree)), path


@pytest.mark.parametrize(
    "folder", ["solver", "cost", "ir/placement.py", "memory", "pipeline", "plans"]
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
        if path.name != "spmd.py":
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


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    """Pytest leaves out folders that are called ``build`` or ``dist``, unless it is told."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {p.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py") for p in path.parents
               if p != ROOT and ROOT in p.parents}  # fmt: skip
    assert len(folders) > 20
    left_out = {f for f in folders for pattern in patterns if fnmatch(f.name, pattern)}
    assert not left_out


def test_public_names() -> None:
    assert sorted(autopar.__all__) == [
        "AutoparError", "Batches", "Compilation", "Compression", "I", "Mesh", "N", "P", "Parallel",
        "Pipeline", "Plan", "Planning", "R", "S", "Sharding", "Weights", "compile_model", "parallelize",
        "plan", "rule",
    ]  # fmt: skip
    assert all(getattr(autopar, name) is not None for name in autopar.__all__)
    assert callable(autopar.plan), "a package of that name stands in its place"


def test_files_that_comments_name_exist() -> None:
    """`comparison.py`, `autopar/pipeline/planner`: what a docstring points to is there."""
    files = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    named = re.compile(
        r"(?<!`)`((?:[\w.]+/)*\w+\.py|(?:autopar|tests|benchmarks|cost_models)(?:/\w+)+/?)`(?!`)"
    )
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in ("autopar", "cost_models")
        for path, _ in sources(package)
        for name in named.findall(path.read_text())
        if not ((ROOT / name).exists() or ("/" not in name and name in files))
    }
    assert not wrong, wrong


def test_the_page_of_decisions_has_these_layers() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE)
    table = {int(layer): set(re.findall(r"`([\w.]+)`", packages)) for layer, packages in rows}
    assert table == dict(enumerate(LAYERS))
