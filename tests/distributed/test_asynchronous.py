"""Asynchronous pipelines on real processes equal one process that keeps versions of weights."""

from __future__ import annotations

import pytest

from tests.asynchronous import Run, check_run, refusals
from tests.daily import daily
from tests.pool import Pool

EVERYDAY = [
    Run("mlp", (1, 1), "pipedream", "SGD"),
    Run("gpt2", (1, 3), "pipedream-2bw", "decayed", streams=(4, 3)),
    Run("mlp", (1, 1), "pipedream-vertical", "AdamW", streams=(9, 2)),
]
MORE = [
    Run("gpt2", (1, 1), "pipedream", "AdamW"),
    Run("gpt2", (1, 1, 1, 1), "pipedream-vertical", "AdamW", streams=(9, 2)),
    Run("cnn", (1, 1), "pipedream", "SGD"),
    Run("mlp", (1, 1), "pipedream-2bw", "AdamW", streams=(4, 3)),
    Run("gpt2", (1, 1), "pipedream-2bw", "SGD", 4, streams=(4, 3)),
    Run("gpt2", (1, 1, 1, 1), "pipedream", "SGD", streams=(9, 2)),
    Run("gpt2", (1, 1, 1, 1), "pipedream-2bw", "AdamW", 4, streams=(4, 3)),
    Run("gpt2", (2, 2), "pipedream", "AdamW"),
    Run("gpt2", (1, 1), "pipedream", "SGD", options={"recompute": "full"}),
    Run("gpt2", (2, 2), "pipedream-vertical", "AdamW", options={"preset": "fsdp"}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "run", daily(EVERYDAY, [run for run in EVERYDAY if run.name == "mlp"]), ids=str
)
def test_equal_to_one_process_with_versions(pool: Pool, run: Run) -> None:
    pool.run(run.size, check_run, run)


@pytest.mark.slow
@pytest.mark.parametrize("run", MORE, ids=str)
def test_more_are_equal(pool: Pool, run: Run) -> None:
    pool.run(run.size, check_run, run)


@pytest.mark.slow
def test_random_plans(pool: Pool) -> None:
    """Weights that are gathered once an update, or at every use; gradients summed over the mesh."""
    gathers = []
    for seed in range(6):
        schedule = ("pipedream", "pipedream-2bw", "pipedream-vertical")[seed % 3]
        run = Run("gpt2", (2, 2), schedule, "SGD", None, (4, 3), seed)
        gathers += pool.run(run.size, check_run, run)
    assert any(gathers)


@pytest.mark.thorough
def test_what_has_no_meaning_is_refused(pool: Pool) -> None:
    said = pool.run(2, refusals)[0]
    for name, words in {
        "train_step": "call parallel.train_steps(batches, optimizer), which steps the optimizer",
        "call": "Call parallel.train_steps(batches, optimizer)",
        "clip": "whole model has no gradient",
        "scaler": "Overflows cannot be found on all stages",
        "empty": "train_steps takes a list of batches",
        "one": "train_steps takes a list of batches",
        "shapes": "differs in shape from batch 0",
        "foreign": "none of the pipeline's parameters",
        "count": "Ranks disagree about the number of batches",
        "tied": "'transformer.wte.weight' is read by stages 0, 1",
    }.items():
        assert words in said[name], name
