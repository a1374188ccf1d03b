"""On stages, a rank's own state and gradients are its stages'."""

from __future__ import annotations

from tests.habits import stage_state_jobs as jobs
from tests.pool import Pool


def test_a_state_dict_of_own_stages_loads_again(pool: Pool) -> None:
    pool.run(2, jobs.own_state)


def test_an_optimizer_may_take_norms(pool: Pool) -> None:
    pool.run(2, jobs.muon)


def test_norms_that_closures_and_other_optimizers_take_are_refused(pool: Pool) -> None:
    pool.run(2, jobs.norms_of_others)


def test_an_empty_batch_breaks_nothing(pool: Pool) -> None:
    pool.run(2, jobs.empty)
