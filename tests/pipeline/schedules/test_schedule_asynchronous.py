"""Asynchronous schedules: running their lists with a stash of versions gives the papers' formulas.

A model of one number per stage, y = tanh(w y), loss y^2 / 2, in plain Python.  `run` knows only the
lists: it takes the weights of the version that an action states, from those its worker made by updates.
`formula` knows only the papers: one process, whole gradients, weights of earlier steps.
"""

from __future__ import annotations

import math

import pytest

from autopar.pipeline.schedules import Schedule, build, check
from autopar.pipeline.schedules.dependencies import dependencies
from autopar.pipeline.schedules.kept import most_versions
from autopar.pipeline.schedules.pipedream_2bw import pipedream_2bw
from autopar.pipeline.schedules.schedule import chain
from autopar.pipeline.schedules.stream import typical
from autopar.pipeline.simulate import StageCost
from autopar.pipeline.simulate.memory import peaks

RATE = 0.1


def start(stages: int) -> list[float]:
    return [0.7 + 0.1 * stage for stage in range(stages)]


def sample(microbatch: int) -> float:
    return 1.0 + 0.3 * math.sin(microbatch)


def gradient(weights: list[float], microbatch: int) -> list[float]:
    """Of the loss of one microbatch, with respect to each stage's weight."""
    values = [sample(microbatch)]
    for weight in weights:
        values.append(math.tanh(weight * values[-1]))
    upstream, found = values[-1], []
    for weight, before, after in zip(weights[::-1], values[-2::-1], values[::-1], strict=False):
        through = upstream * (1 - after**2)
        found.append(through * before)
        upstream = through * weight
    return found[::-1]


def run(schedule: Schedule, per_update: int = 1) -> list[float]:
    """The weights after all lists, from any order that respects what waits for what."""
    versions = [[weight] for weight in start(schedule.stages)]
    saved: dict[tuple[int, int], tuple[float, float]] = {}
    outputs: dict[tuple[int, int], float] = {}
    upstream: dict[tuple[int, int], float] = {}
    sums = [0.0] * schedule.stages
    graph = dependencies(schedule, chain(schedule.stages))
    for number in graph.order:
        action = graph.actions[number]
        stage, m = action.stage, action.microbatch
        if action.kind == "F":
            value = outputs[stage - 1, m] if stage else sample(m)
            outputs[stage, m] = math.tanh(versions[stage][action.version] * value)
            saved[stage, m] = (value, outputs[stage, m])
        elif action.kind == "B":
            value, output = saved.pop((stage, m))
            incoming = output if stage == schedule.stages - 1 else upstream[stage, m]
            through = incoming * (1 - output**2)
            upstream[stage - 1, m] = through * versions[stage][action.version]
            sums[stage] += through * value
        else:
            assert action.microbatch == len(versions[stage]) - 1
            versions[stage].append(versions[stage][-1] - RATE * sums[stage] / per_update)
            sums[stage] = 0.0
    return [history[-1] for history in versions]


def formula(stages: int, updates: int, delays: list[int], per_update: int = 1) -> list[float]:
    """w_s(t + 1) = w_s(t) - rate * d loss of batch t / d w_s, at the weights w_j(t - delays[j])."""
    history = [start(stages)]
    for t in range(updates):
        old = [history[max(0, t - delays[s])][s] for s in range(stages)]
        batch = range(t * per_update, (t + 1) * per_update)
        found = [gradient(old, m) for m in batch]
        total = [sum(each[s] for each in found) / per_update for s in range(stages)]
        history.append([w - RATE * g for w, g in zip(history[-1], total, strict=True)])
    return history[-1]


@pytest.mark.parametrize("stages", (1, 2, 3, 5))
def test_weight_stashing(stages: int) -> None:
    """w(t + 1) = w(t) - rate * grad f(w_1(t - n + 1), ..., w_n(t)): SOSP 2019, section 3.3."""
    delays = [stages - 1 - s for s in range(stages)]
    expected = formula(stages, 12, delays)
    assert run(build("pipedream", stages, 12)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stages", (1, 2, 3, 5))
def test_vertical_sync(stages: int) -> None:
    """w(t + 1) = w(t) - rate * grad f(w_1(t - n + 1), ..., w_n(t - n + 1))."""
    expected = formula(stages, 12, [stages - 1] * stages)
    assert run(build("pipedream-vertical", stages, 12)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("stages", "per_update"), [(1, 1), (2, 2), (3, 3), (3, 4), (4, 6)])
def test_2bw(stages: int, per_update: int) -> None:
    """W(t + 1) = W(t) - rate * grad f(W(t - 1)): arXiv:2006.09503, section 3.1."""
    expected = formula(stages, 4, [1] * stages, per_update)
    schedule = pipedream_2bw(stages, 4 * per_update, per_update)
    check(schedule)
    assert run(schedule, per_update) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stages", (1, 2, 3, 5))
def test_versions_that_are_kept(stages: int) -> None:
    """As the papers say; and as the simulator counts them, by the byte."""
    every = range(stages)
    for name, expected in {
        "pipedream": [stages - stage for stage in every],
        "pipedream-vertical": [stages] * stages,
        "pipedream-2bw": [2] * stages,
    }.items():
        schedule = typical(name, stages, max(1, stages * (name == "pipedream-2bw")))
        check(schedule)
        assert [most_versions(actions) for actions in schedule.workers] == expected
        weighed = peaks(schedule, (StageCost(1, 1, 1, static=1, version=1),) * stages)
        assert list(weighed) == expected
    assert most_versions(build("1f1b", stages, 4).workers[0]) == 1


def test_they_differ_from_the_plain_step_and_from_each_other() -> None:
    """Otherwise the tests above would show nothing."""
    results = [run(build(name, 3, 12)) for name in ("pipedream", "pipedream-vertical")]
    results.append(formula(3, 12, [0, 0, 0]))
    results.append(run(build("pipedream-2bw", 3, 12), 3))
    for i, one in enumerate(results):
        for other in results[:i]:
            assert one != pytest.approx(other, rel=1e-4)
