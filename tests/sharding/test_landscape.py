"""Plans over batch and memory: the library's points are `plan`'s, and the page is the command's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import autopar
from autopar.cli.models import load
from autopar.compile.sweep import plan_landscape, resized
from autopar.errors import InfeasibleError, InputError
from autopar.render.text import landscape_grid, landscape_table, to_text
from autopar.render.text.table import WIDTH
from autopar.sharding.landscape import Point
from tests.models import CASES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plans.md"
BATCHES, MEMORIES = (8, 8192), (120e3, 300e3, 4e9)


@pytest.fixture(scope="module")
def points() -> tuple[Point, ...]:
    model, inputs, loss = CASES["mlp"]()
    found = plan_landscape(
        model, (2, 2), inputs, loss=loss, hardware="cpu", batches=BATCHES, memories=MEMORIES
    )
    return tuple(found)


def test_every_point_is_there(points: Iterable[Point]) -> None:
    asked = [(batch, limit) for batch in BATCHES for limit in sorted(MEMORIES, reverse=True)]
    assert [(point.batch, point.limit_nbytes) for point in points] == asked


@pytest.mark.slow
def test_points_are_what_plan_gives(points: Iterable[Point]) -> None:
    model, inputs, loss = CASES["mlp"]()
    chosen = [p for p in points if p.batch == BATCHES[1] or p.limit_nbytes == MEMORIES[0]]
    for point in chosen:
        batch = {k: v[:1].expand(point.batch, *v.shape[1:]) for k, v in inputs.items()}
        asked = {"loss": loss, "hardware": "cpu", "memory_limit": point.limit_nbytes}
        if point.made is None:
            assert point.smallest_nbytes is not None
            assert point.smallest_nbytes > point.limit_nbytes
            with pytest.raises(InfeasibleError):
                autopar.plan(model, (2, 2), batch, **asked)
            continue
        expected = autopar.plan(model, (2, 2), batch, **asked)
        assert point.made.plan.estimate == expected.estimate
        assert point.made.plan.estimate.memory_nbytes <= point.limit_nbytes
    assert {point.made is None for point in chosen} == {False, True}


def test_less_memory_is_never_faster(points: Iterable[Point]) -> None:
    for batch in BATCHES:
        steps = [p.made.plan.objective_s for p in points if p.batch == batch and p.made]
        assert steps == sorted(steps)


def test_what_is_little_too_large_is_told_from_the_limit() -> None:
    text = to_text(landscape_table([Point(1, 2**20, None, 2**20 + 312)]))
    assert "the smallest needs 1.0 MiB, 312 B too many" in " ".join(text.split())


def test_tables(points: tuple[Point, ...]) -> None:
    text = to_text(landscape_table(points))
    assert max(map(len, text.splitlines())) <= WIDTH
    smallest = next(p.smallest_nbytes for p in points if p.smallest_nbytes)
    assert f"nothing fits: the smallest needs {smallest / 2**20:.1f}" in text and "x: " in text
    grid = landscape_grid(points).splitlines()
    assert grid[0].count("|") == grid[2].count("|") == len(MEMORIES) + 2
    assert [line.split("|")[1].strip() for line in grid[2:]] == [str(b) for b in BATCHES]
    large = [p.made for p in points if p.batch == BATCHES[0]][:2]
    assert (large[0] == large[1]) == grid[2].endswith("| same |")
    unlimited = (replace(points[0], limit_nbytes=math.inf),)
    assert to_text(landscape_table(unlimited)).splitlines()[2].split()[1] == "none"
    assert landscape_grid(unlimited).splitlines()[0] == "| batch | none |"


def test_resized() -> None:
    scale = torch.ones(3)
    found = resized({"a": torch.ones(4, 2), "b": [torch.ones(4), 7], "scale": scale}, 16)
    assert found["a"].shape == (16, 2) and found["b"][0].shape == (16,) and found["b"][1] == 7
    assert found["scale"] is scale
    assert resized((torch.ones(4, 2),), 2)[0].shape == (2, 2)
    with pytest.raises(InputError, match="no tensor whose first dim"):
        resized({"a": 3}, 2)
    with pytest.raises(InputError, match="is too large: pass 1099511627776 at most"):
        resized({"a": torch.ones(4)}, 2**60)


def test_the_page_was_written_by_the_command_on_the_models_own_configuration() -> None:
    """Llama-3-8B is not planned here: that takes a minute."""
    written = re.search(r"    autopar map hf:(\S+) .* -o (\S+)", PAGE.read_text())
    assert written is not None and ROOT / written[2] == PAGE
    model = load(f"hf:{ROOT / written[1]}", 8, 4096).model
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248
