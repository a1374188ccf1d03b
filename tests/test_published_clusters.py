"""The benchmark of published clusters: its facts, its statistics, and what it found."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield


def test_every_row_is_whole() -> None:
    from clusters import rows

    every = rows()
    assert len({row.name for row in every}) == len(every) == 102
    for row in every:
        assert row.gpus == row.tp * row.pp * row.dp and row.source
        assert row.microbatches * row.microbatch * row.dp == row.batch
        assert sum(row.sizes) == row.layers and len(row.sizes) == row.pp * row.virtual
        assert row.machine in ("selene", "jean zay") and row.recompute in ("full", "selective")
    assert sum(row.seconds is None for row in every) == 6


def test_layers_are_divided_as_the_source_says() -> None:
    """78 layers on 12 stages leave one for the last; later, embeddings count as layers."""
    from clusters import rows

    sizes = {(row.layers, row.pp, row.partition): row.sizes for row in rows()}
    assert sizes[78, 12, "even"] == (*(7,) * 11, 1)
    assert sizes[70, 12, "slots"] == (5, *(6,) * 10, 5)


def test_halves_are_halves_and_forget_what_was_measured() -> None:
    from dataclasses import replace

    from clusters import rows
    from published import half

    every = rows()
    assert 0.35 < sum(map(half, every)) / len(every) < 0.65
    assert all(half(replace(row, seconds=1.0, memory_gb=1.0)) == half(row) for row in every)


def test_tau() -> None:
    from published import tau

    assert tau([1, 2, 3], [10, 20, 30]) == 1.0
    assert tau([1, 2, 3], [30, 20, 10]) == -1.0
    assert tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert tau([1.0, 1.01, 2.0], [1.01, 1.0, 2.0], apart=0.05) == 1.0


def test_fits_find_the_constants_that_made_the_figures() -> None:
    import numpy as np
    from published import _newton

    truth = np.log(np.array([0.5, 1e-4]))
    features = np.array([[1.0, 50.0], [1.0, 500.0], [2.0, 100.0], [3.0, 9000.0]])

    def seconds(theta: Any) -> Any:
        return features[:, 0] / np.exp(theta[0]) + features[:, 1] * np.exp(theta[1])

    def errors(theta: Any) -> Any:
        return np.log(seconds(theta) / seconds(truth))

    found = _newton(errors, np.log(np.array([0.6, 2e-5])))
    assert np.exp(found) == pytest.approx(np.exp(truth), rel=1e-3)


@pytest.mark.thorough
def test_a_row_is_predicted_from_its_configuration() -> None:
    """Without any fit: the profile's own assumptions."""
    from clusters import Simulator, machine, rows

    row = next(row for row in rows() if row.name == "narayanan 39.1B")
    found = Simulator(machine(row.machine)).predict(row)
    assert row.seconds is not None and abs(math.log(found.seconds / row.seconds)) < 0.2
    assert 30e9 < found.nbytes < 80e9


def test_what_was_found_is_within_the_aims_but_for_two() -> None:
    """One of six rows that ran out of memory is not predicted so, and the order of BLOOM's sweep has a
    tau below the aim of 0.8: what is here may not become worse."""
    found = json.loads((FOLDER / "published.json").read_text())
    for name in ("selene", "jean zay"):
        assert found[name]["all"]["mape"] <= 0.10
        assert not found[name]["all"]["ran, predicted out of memory"]
        for half in ("half 0", "half 1"):
            assert found[name][half]["mape"] <= 0.10
    assert found["jean zay"]["all"]["out of memory, predicted so"] == [5, 6]
    assert found["jean zay"]["topology sweep"]["tau"] >= 0.6


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["selene", "jean zay"])
def test_predictions_are_those_that_were_written(name: str) -> None:
    """Of every tenth row, by the constants in the file; `published.py` fits them again, in minutes."""
    from clusters import rows
    from published import Constants, half, simulator

    found = json.loads((FOLDER / "published.json").read_text())[name]
    written = {line["row"]: line for line in found["lines"]}
    for row in [row for row in rows() if row.machine == name][::10]:
        constants = Constants(**found["constants, fitted on the other half"][str(half(row))])
        made = simulator(name, constants).predict(row)
        assert made.seconds == pytest.approx(written[row.name]["predicted_s"], rel=0.02), row.name
