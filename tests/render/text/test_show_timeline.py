"""Schedules drawn as text."""

from __future__ import annotations

import pytest

from autopar.pipeline.schedules import SCHEDULES, build
from autopar.pipeline.simulate import Costs, StageCost, simulate, uniform
from autopar.render.text.timeline import WIDEST, timeline


def test_by_hand() -> None:
    drawn = timeline(simulate(build("1f1b", 2, 3), uniform(2)))
    assert drawn == (
        "worker 0 F0 F1 ······B0--- F2 B1--- ···B2---\nworker 1 ···F0 B0--- F1 B1--- F2 B2--- ······\n"
    )


def test_several_stages_have_letters() -> None:
    drawn = timeline(simulate(build("zb-v", 1, 2), uniform(2)))
    assert drawn == "worker 0 F0a F0b I0b W0b F1a I0a W0a F1b I1b W1b I1a W1a\n"


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_action_that_has_room_is_there(name: str) -> None:
    simulated = simulate(build(name, 4, 8), uniform(8 if SCHEDULES[name].per_worker != 1 else 4))
    for row, line in zip(simulated.ran, timeline(simulated).splitlines(), strict=True):
        shown = line.replace("·", " ").replace("-", "").split()[2:]
        several = len({run.action.stage for run in row}) > 1
        labels = [f"{r.action.kind}{r.action.microbatch}" for r in row if r.end > r.start]
        assert [text[: -1 if several else None] for text in shown] == labels


def test_width_is_limited() -> None:
    costs = Costs((StageCost(1e-3, 1.0, 1.0),) * 2)
    for line in timeline(simulate(build("1f1b", 2, 40), costs)).splitlines():
        assert len(line) <= WIDEST + len("worker 0 ")
