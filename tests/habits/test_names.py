"""Any legal name of a module, buffer, input or class works, and none reaches source as code."""

from __future__ import annotations

import ast

import pytest
import torch

from autopar.api import compile_model
from autopar.plans.plan import Plan
from tests.daily import rotated
from tests.habits import batch_jobs as jobs
from tests.pool import Pool

NAMES = (
    "en-de", "class", "1a", "a b", "é", "ﬁ", "a\nimport os", '"""', "'", "\\", "x  # y", "graph",
    "plan", "_here", "recompute", "_path", "_children", "put", "at", "__x", "01", "self", "torch", "F",
    "Module", "a[0]", "[bold]", "٣",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_modules(name: str) -> None:
    made = compile_model(jobs.Named(name), (2,), {"x": torch.ones(4, 4)}, preset="fsdp")
    tree = ast.parse(made.source)
    assert {type(node) for node in tree.body} <= {
        ast.Expr,
        ast.Import,
        ast.ImportFrom,
        ast.ClassDef,
    }
    assert not any(
        "os" in (a.name for a in n.names) for n in tree.body if isinstance(n, ast.Import)
    )
    assert Plan.from_json(made.plan.to_json()).digest == made.plan.digest


@pytest.mark.parametrize(
    ("name", "preset"),
    rotated(["en-de", '"""', "plan", "put", "__x", "a\nb"], ["ddp", "fsdp"], part=2),
)
def test_models_with_such_names_train(pool: Pool, name: str, preset: str) -> None:
    assert max(pool.run(2, jobs.named, name, preset)) < 1e-9


@pytest.mark.parametrize("name", ["Module", "S", "torch", "class", 'a"""b', "<locals>", "range"])
def test_names_of_classes(name: str) -> None:
    kind = type(name, (jobs.Nested,), {})
    made = compile_model(kind(), (2,), {"batch": torch.ones(4, 4)}, preset="ddp")
    assert made.graph.name.isidentifier()
    ast.parse(made.source)
