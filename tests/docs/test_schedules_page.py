"""The page about schedules: its drawings are what the code draws, its lists are what the code writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autopar.pipeline.schedules import Schedule, build, lower
from autopar.pipeline.schedules.torch_csv import torch_csv
from autopar.pipeline.simulate import StageCost, fit, simulate, step_seconds
from autopar.pipeline.simulate.values import Costs
from autopar.render.text.schedules import BEGIN, END, page

ROOT = Path(__file__).parent.parent.parent
PATH = ROOT / "docs" / "schedules.md"


def test_the_generated_part(request: pytest.FixtureRequest) -> None:
    text = PATH.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END + "\n")[1]
    made = before + page() + after
    if request.config.getoption("--update-golden"):
        PATH.write_text(made)
        return
    assert made == text, "run pytest --update-golden and read the diff"


def test_its_lists() -> None:
    shown = [
        Schedule.parse(block)
        for block in re.findall(r"```text\n(1f1b stages.*?)```", PATH.read_text(), re.DOTALL)
    ]
    assert shown == [build("1f1b", 2, 3), lower(build("1f1b", 2, 3))]


def test_its_list_for_torch() -> None:
    assert f"```text\n{torch_csv(build('1f1b', 2, 2))}```" in PATH.read_text()


def test_what_it_says_of_v() -> None:
    """ "up to 4 % slower"."""
    for workers, microbatches in ((4, 8), (3, 9), (4, 16)):
        made = build("zb-v", workers, microbatches)
        part = StageCost(0.5, 0.5, 0.5, kept=1, kept_for_weights=0.5)
        costs = Costs((part,) * made.stages)
        placement = [held[0] for held in made.holders]
        alone = fit(costs, placement, microbatches, simulate(made, costs).peaks, rivals=())
        assert 1.0 <= alone.simulated.step / step_seconds(made, costs) <= 1.04
