"""The benchmark of published clusters: its facts, its statistics, and what it found."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield


def test_every_row_is_whole() -> None:
    from published_facts import PROFILES, rows

    every = rows()
    assert len({row.name for row in every}) == len(every) == 102 + 795 + 113
    for row in every:
        assert row.gpus == row.tp * row.pp * row.dp and row.source
        assert row.microbatches * row.microbatch * row.dp == row.batch
        assert sum(row.sizes) == row.layers and len(row.sizes) == row.pp * row.virtual
        assert row.machine in PROFILES and row.recompute in ("full", "selective", "none")
    assert sum(row.seconds is None for row in every) == 6


def test_throughputs_are_those_that_the_source_computes_its_utilisation_from() -> None:
    """MFU of llm-foundry's README of three rows, which follows from the tokens per second."""
    from published_facts import rows

    published = {
        "mpt 70b of 2048, 64 GPUs, 4 x 8 (mosaic a100)": (64862437376, 312e12, 0.5333),
        "mpt 7b of 2048, 8 GPUs, 1 x 6 (mosaic h100)": (6658859008, 989.5e12, 0.4644),
        "mpt 125m of 512, 8 GPUs, 2 x 128 (mosaic a100)": (124131840, 312e12, 0.4256),
    }
    found = {row.name: row for row in rows()}
    for name, (parameters, peak, mfu) in published.items():
        row = found[name]
        assert row.seconds is not None
        attention = 4 * row.layers * row.hidden * row.sequence**2
        flops = 3 * row.batch * (2 * parameters * row.sequence + attention)
        assert flops / row.seconds / row.gpus / peak == pytest.approx(mfu, abs=0.0002)


def test_layers_are_divided_as_the_source_says() -> None:
    """78 layers on 12 stages leave one for the last; later, embeddings count as layers."""
    from published_facts import rows

    sizes = {(row.layers, row.pp, row.partition): row.sizes for row in rows()}
    assert sizes[78, 12, "even"] == (*(7,) * 11, 1)
    assert sizes[70, 12, "slots"] == (5, *(6,) * 10, 5)


def test_tau() -> None:
    from published import tau

    assert tau([1, 2, 3], [10, 20, 30]) == 1.0
    assert tau([1, 2, 3], [30, 20, 10]) == -1.0
    assert tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert tau([1.0, 1.01, 2.0], [1.01, 1.0, 2.0], apart=0.05) == 1.0


def test_picks_are_the_measured_steps_of_the_predicted_best() -> None:
    from clusters import Predicted
    from published import Line, picks
    from published_facts import rows

    row = rows()[0]
    measured, guessed = (3.0, 2.0, 4.0), (1.0, 2.0, 3.0)
    lines = [
        Line(replace(row, seconds=seconds), Predicted(step, 0.0))
        for seconds, step in zip(measured, guessed, strict=True)
    ]
    assert picks(lines) == [1.5]
    assert picks(lines[:1]) == [], "where there is no choice there is no pick"


def test_fits_find_the_constants_that_made_the_figures() -> None:
    import numpy as np
    from published_fit import _least

    truth = np.log(np.array([0.5, 1e-4]))
    features = np.array([[1.0, 50.0], [1.0, 500.0], [2.0, 100.0], [3.0, 9000.0]])

    def seconds(theta: Any) -> Any:
        return features[:, 0] / np.exp(theta[0]) + features[:, 1] * np.exp(theta[1])

    def errors(theta: Any) -> Any:
        return np.log(seconds(theta) / seconds(truth))

    found = _least(errors, np.log(np.array([0.6, 5e-5])), np.full(4, 1.0))
    assert np.exp(found) == pytest.approx(np.exp(truth), rel=0.02)


@pytest.mark.slow
def test_what_is_fitted_without_a_source_does_not_know_it() -> None:
    """No row of a device: the efficiencies of the other.  No row of a mode: what is known of another."""
    from published_facts import rows
    from published_fit import BEFORE, fitted

    mosaic = [row for row in rows() if row.table == "mpt a100" and row.sequence == 2048]
    found = fitted(mosaic[:3])
    assert found["mosaic h100"].products == found["mosaic a100"].products
    assert found["jean zay"].host_s == found["vtrain"].host_s == BEFORE.host_s


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["narayanan 39.1B", "korthikanti 22B selective"])
def test_a_row_is_predicted_from_its_configuration(name: str) -> None:
    """By the constants of the shipped profile."""
    from clusters import Simulator
    from published_facts import machine, rows

    row = next(row for row in rows() if row.name == name)
    found = Simulator(machine(row.machine)).predict(row)
    assert row.seconds is not None and abs(math.log(found.seconds / row.seconds)) < 0.2
    assert 20e9 < found.nbytes < 80e9


BOUNDS = {
    "narayanan": (0.05, 0.0, 0.0),
    "korthikanti": (0.06, 0.0, 1.01),
    "bloom": (0.055, 0.6, 1.06),
    "vtrain, one host": (0.082, 0.9, 1.04),
    "vtrain, hosts": (0.08, 0.75, 1.03),
    "mpt a100": (0.06, 0.94, 0.0),
    "mpt h100": (0.035, 0.92, 0.0),
}
"""Of each source: mean error, tau and mean pick that may not become worse; 0 where there is none."""


@pytest.mark.parametrize("name", BOUNDS)
def test_what_was_found_does_not_become_worse(name: str) -> None:
    found = json.loads((FOLDER / "published.json").read_text())[name]["all"]
    mape, rank, pick = BOUNDS[name]
    assert found["mape"] <= mape
    assert rank == 0.0 or found["tau within a model"] >= rank
    assert pick == 0.0 or found["pick"]["mean"] <= pick


def test_no_row_that_ran_is_called_out_of_memory() -> None:
    found = json.loads((FOLDER / "published.json").read_text())["bloom"]["all"]
    assert not found["ran, predicted out of memory"]
    assert found["out of memory, predicted so"] == [5, 6] and found["memory mape"] <= 0.08


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_predictions_are_those_that_were_written() -> None:
    """Of every fortieth row."""
    from published import predicted
    from published_facts import rows

    found = json.loads((FOLDER / "published.json").read_text())
    written = {name: step for each in found.values() for name, _, step in each["lines"]}
    for line in predicted(rows()[::40]):
        assert line.predicted.seconds == pytest.approx(written[line.row.name], rel=0.01), (
            line.row.name
        )
